//! Shapes of any number of dimensions as rows.

use super::RowGroups;
use crate::error::{Error, Result};

/// Rows that a tensor's leading dimensions make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leading {
    pub rows: u64,
    pub stride: i64,
    pub groups: Option<RowGroups>,
}

/// The leading dimensions of `shape` as rows: dimensions of size 1 go, and one that continues the
/// next (its stride is the next one's size times its stride) joins it. At most two may be left.
pub(super) fn collapse(shape: &[u64], strides: &[i64]) -> Result<Leading> {
    let (Some((&hidden, leading)), true) = (shape.split_last(), shape.len() == strides.len())
    else {
        return Err(Error::Dimensions {
            shape: shape.len(),
            strides: strides.len(),
        });
    };
    let (column_stride, strides) = (strides[leading.len()], &strides[..leading.len()]);
    if hidden > 1 && column_stride != 1 {
        return Err(Error::ColumnStride {
            stride: column_stride,
        });
    }
    let packed = Leading {
        rows: 1,
        stride: i64::try_from(hidden).unwrap_or(i64::MAX),
        groups: None,
    };
    if leading.contains(&0) {
        return Ok(Leading { rows: 0, ..packed });
    }
    let rows = leading
        .iter()
        .try_fold(1u64, |rows, &size| rows.checked_mul(size));
    let rows = rows.ok_or(Error::TooManyRows { rows: u64::MAX })?;
    // From the innermost on.
    let (mut dimensions, mut found) = ([(1, packed.stride); 2], 0_usize);
    for (&size, &stride) in leading.iter().zip(strides).rev() {
        let before = found.checked_sub(1).map(|last| dimensions[last]);
        match before {
            _ if size == 1 => {}
            Some((count, step)) if continues(stride, count, step) => {
                dimensions[found - 1].0 *= size;
            }
            _ if found == dimensions.len() => {
                return Err(Error::Uncollapsible {
                    shape: shape.to_vec(),
                    strides: [strides, &[column_stride]].concat(),
                });
            }
            _ => {
                dimensions[found] = (size, stride);
                found += 1;
            }
        }
    }
    let [(inner, stride), (_, outer_stride)] = dimensions;
    Ok(Leading {
        rows,
        stride,
        groups: (found == 2).then_some(RowGroups {
            rows: inner,
            stride: outer_stride,
        }),
    })
}

/// Whether a dimension of this stride goes on where `count` steps of `step` end.
pub(crate) fn continues(stride: i64, count: u64, step: i64) -> bool {
    i128::from(stride) == i128::from(count) * i128::from(step)
}
