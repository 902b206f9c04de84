//! Whether two arguments share a byte.
//!
//! Exact for rows of one stride, whatever the two strides are, and for rows in groups whose
//! distance is the same in both, as in slices of one interleaved buffer. With other distances
//! between groups, two arguments count as overlapping as soon as their extents meet.

/// Bytes in equal rows, in equal groups: group g, row r starts at
/// `start + g·group_stride + r·row_stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub start: i128,
    /// Bytes of a row, at least 1.
    pub width: i128,
    /// Rows of a group, at least 1.
    pub rows: i128,
    pub row_stride: i128,
    /// At least 1.
    pub groups: i128,
    pub group_stride: i128,
}

impl Region {
    /// First byte, and the one behind the last.
    pub fn extent(&self) -> (i128, i128) {
        let Self {
            start,
            rows,
            row_stride,
            groups,
            group_stride,
            ..
        } = *self;
        let (row, group) = ((rows - 1) * row_stride, (groups - 1) * group_stride);
        let last = start + row.max(0) + group.max(0);
        (start + row.min(0) + group.min(0), last + self.width)
    }

    /// The same bytes with strides that are not negative, 0 for what is there once, and one group
    /// where one stride tells all.
    fn normal(self) -> Self {
        let ascending = |start: i128, count: i128, stride: i128| {
            if count == 1 || stride == 0 {
                (start, 1, 0)
            } else {
                (start + (count - 1) * stride.min(0), count, stride.abs())
            }
        };
        let (start, rows, row_stride) = ascending(self.start, self.rows, self.row_stride);
        let (start, groups, group_stride) = ascending(start, self.groups, self.group_stride);
        let (rows, row_stride, groups, group_stride) = if rows == 1 {
            (groups, group_stride, 1, 0)
        } else if group_stride == rows * row_stride {
            (rows * groups, row_stride, 1, 0)
        } else {
            (rows, row_stride, groups, group_stride)
        };
        Self {
            start,
            width: self.width,
            rows,
            row_stride,
            groups,
            group_stride,
        }
    }

    /// One group, cut into groups at the distance of those of `other`, where it can be.
    fn regrouped(self, other: &Self) -> Self {
        let (distance, stride) = (other.group_stride, self.row_stride);
        if stride == 0 || distance % stride != 0 || self.rows % (distance / stride) != 0 {
            return self;
        }
        let rows = distance / stride;
        Self {
            rows,
            row_stride: if rows == 1 { 0 } else { stride },
            groups: self.rows / rows,
            group_stride: distance,
            ..self
        }
    }

    /// The first group.
    fn run(&self) -> Run {
        Run {
            start: self.start,
            width: self.width,
            rows: self.rows,
            stride: self.row_stride,
        }
    }
}

/// Rows of one stride, which is not negative.
#[derive(Clone, Copy)]
struct Run {
    start: i128,
    width: i128,
    rows: i128,
    stride: i128,
}

impl Run {
    fn end(&self) -> i128 {
        self.start + (self.rows - 1) * self.stride + self.width
    }
}

/// Distances between groups that are looked at one by one.
const MOST_DISTANCES: i128 = 64;

/// Whether the two share a byte; true where that is not known (see the module).
pub(super) fn overlap(a: &Region, b: &Region) -> bool {
    let ((a_start, a_end), (b_start, b_end)) = (a.extent(), b.extent());
    if a_end <= b_start || b_end <= a_start {
        return false;
    }
    let (a, b) = (a.normal(), b.normal());
    let (a, b) = match (a.groups, b.groups) {
        (1, 2..) => (a.regrouped(&b), b),
        (2.., 1) => (a, b.regrouped(&a)),
        _ => (a, b),
    };
    let stride = a.group_stride.max(b.group_stride);
    let known = |region: &Region| region.groups == 1 || region.group_stride == stride;
    if !known(&a) || !known(&b) {
        return true;
    }
    // Group i of a and group j of b lie as both first groups, one moved by (j − i)·stride.
    let (run, other) = (a.run(), b.run());
    let (mut first, mut last) = (1 - a.groups, b.groups - 1);
    if stride > 0 {
        first = first.max((run.start - other.end()).div_euclid(stride) + 1);
        last = last.min((run.end() - other.start - 1).div_euclid(stride));
    }
    if last - first >= MOST_DISTANCES {
        return true;
    }
    (first..=last).any(|distance| {
        let start = other.start + distance * stride;
        runs_overlap(&run, &Run { start, ..other })
    })
}

/// Whether two runs share a byte; exact.
fn runs_overlap(a: &Run, b: &Run) -> bool {
    let (a, b) = if b.stride == 0 { (b, a) } else { (a, b) };
    // Row i of a and row j of b do if low ≤ i·a.stride − j·b.stride ≤ low + length.
    let low = b.start - a.start - a.width + 1;
    let length = a.width + b.width - 2;
    if a.stride == 0 {
        let j = match b.stride {
            0 => 0,
            stride => -(low + length).div_euclid(stride),
        };
        let j = j.max(0);
        return j < b.rows && (low..=low + length).contains(&(-j * b.stride));
    }
    // The rows of a that b is around: from b's first row on, up to its last.
    let first = (low + a.stride - 1).div_euclid(a.stride).max(0);
    let last = (low + length + (b.rows - 1) * b.stride).div_euclid(a.stride);
    let last = last.min(a.rows - 1);
    if first > last {
        return false;
    }
    // One of them meets b if what it is beyond a row of b is at most `length`.
    let beyond = (first * a.stride - low).rem_euclid(b.stride);
    if beyond <= length {
        return true;
    }
    let step = a.stride.rem_euclid(b.stride);
    let from = b.stride - beyond;
    first_between(step, b.stride, from, from + length).is_some_and(|more| more <= last - first)
}

/// The least n ≥ 0 with `from` ≤ (n·step mod modulus) ≤ `to`, where 0 < from ≤ to < modulus: the
/// Euclidean algorithm on step and modulus.
fn first_between(step: i128, modulus: i128, from: i128, to: i128) -> Option<i128> {
    if step == 0 {
        return None;
    }
    let n = (from + step - 1) / step;
    if n * step <= to {
        return Some(n);
    }
    // n·step − turns·modulus must lie between: no multiple of step does, so the turns must bring
    // one there.
    let (to_left, from_left) = ((-to).rem_euclid(step), (-from).rem_euclid(step));
    let turns = first_between(modulus % step, step, to_left, from_left)?;
    Some((from + turns * modulus + step - 1) / step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn bytes(region: &Region) -> HashSet<i128> {
        let mut all = HashSet::new();
        for group in 0..region.groups {
            for row in 0..region.rows {
                let start = region.start + group * region.group_stride + row * region.row_stride;
                all.extend(start..start + region.width);
            }
        }
        all
    }

    fn region(groups: impl Strategy<Value = i128>) -> impl Strategy<Value = Region> {
        let shape = (0..200i128, 1..6i128, 1..9i128, groups);
        (shape, -40..60i128, -120..160i128).prop_map(
            |((start, width, rows, groups), row_stride, group_stride)| Region {
                start,
                width,
                rows,
                row_stride,
                groups,
                group_stride,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn rows_of_any_strides(a in region(Just(1)), b in region(Just(1))) {
            let shared = !bytes(&a).is_disjoint(&bytes(&b));
            prop_assert_eq!(overlap(&a, &b), shared, "{:?} {:?}", a, b);
        }

        /// Slices of one interleaved buffer.
        #[test]
        fn groups_of_one_distance(a in region(2..6i128), b in region(2..6i128)) {
            let b = Region { group_stride: a.group_stride, ..b };
            let shared = !bytes(&a).is_disjoint(&bytes(&b));
            prop_assert_eq!(overlap(&a, &b), shared, "{:?} {:?}", a, b);
        }

        /// A packed buffer beside a slice of an interleaved one.
        #[test]
        fn one_group_beside_groups(a in region(2..6i128), b in region(Just(1)), packed: bool) {
            let stride = a.group_stride.abs() / a.rows;
            let rows = a.rows * a.groups;
            let a = Region { group_stride: stride * a.rows, ..a };
            let b = Region { rows, row_stride: if packed { stride } else { b.row_stride }, ..b };
            let shared = !bytes(&a).is_disjoint(&bytes(&b));
            prop_assert!(overlap(&a, &b) || !shared, "{:?} {:?}", a, b);
            if packed {
                prop_assert_eq!(overlap(&a, &b), shared, "{:?} {:?}", a, b);
            }
        }

        /// Whatever is not known counts as an overlap.
        #[test]
        fn no_overlap_is_missed(a in region(1..6i128), b in region(1..6i128)) {
            let shared = !bytes(&a).is_disjoint(&bytes(&b));
            prop_assert!(overlap(&a, &b) || !shared, "{:?} {:?}", a, b);
        }
    }

    /// Rows by the billion, strides that have no common divisor.
    #[test]
    fn large_numbers() {
        let rows = (1 << 31) - 1;
        let one = |start, width, row_stride| Region {
            start,
            width,
            rows,
            row_stride,
            groups: 1,
            group_stride: 0,
        };
        // Even and odd starts of single bytes never meet; two bytes do.
        let (even, odd) = (one(0, 1, 1 << 30), one(1, 1, 6 << 20));
        assert!(!overlap(&even, &odd));
        assert!(overlap(&one(0, 2, 1 << 30), &odd));
        // 7·i = 3 + 5·j first at i = 4: beyond three rows.
        let few = |rows| Region {
            rows,
            ..one(0, 1, 7)
        };
        assert!(!overlap(&few(3), &one(3, 1, 5)) && !overlap(&few(4), &one(3, 1, 5)));
        assert!(overlap(&few(5), &one(3, 1, 5)));
        let huge = (1i128 << 62) - 2;
        assert!(!overlap(
            &Region {
                rows: 3,
                ..one(0, 16, huge)
            },
            &one(16, 16, 32)
        ));
    }
}
