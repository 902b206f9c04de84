//! Views of memory: what an operator is handed.

mod shape;

pub(crate) use shape::continues;

use crate::error::{Argument, Error, Result};
use std::fmt;

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Dtype {
    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 => 4,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::Bf16 => "BF16",
            Dtype::F16 => "FP16",
            Dtype::F32 => "FP32",
        })
    }
}

/// A matrix [rows, hidden] with contiguous rows: a device address (a host address for the CPU
/// and the simulator), and the distance between the starts of neighbouring rows. A second leading
/// dimension makes groups of rows.
///
/// A view is a plain description; only launching it is unsafe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsView {
    /// Address of the first element of row 0.
    pub address: u64,
    /// Element type.
    pub dtype: Dtype,
    /// T.
    pub rows: u64,
    /// H.
    pub hidden: u64,
    /// Elements between the starts of neighbouring rows. Inputs may have any (0 reads one row T
    /// times); outputs at least `hidden`.
    pub stride: i64,
    /// Where rows come in groups: [T, heads, H] has groups of `heads` rows. Else all rows have one
    /// distance.
    pub groups: Option<RowGroups>,
}

/// Groups of neighbouring rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroups {
    /// Rows of a group.
    pub rows: u64,
    /// Elements between the starts of neighbouring groups.
    pub stride: i64,
}

impl RowsView {
    /// A packed BF16 matrix at `address`.
    #[must_use]
    pub const fn packed(address: u64, rows: u64, hidden: u64) -> Self {
        Self {
            address,
            dtype: Dtype::Bf16,
            rows,
            hidden,
            stride: hidden as i64,
            groups: None,
        }
    }

    /// The rows of a tensor of any number of dimensions, of which the last is H and contiguous.
    ///
    /// Leading dimensions of size 1 do not matter. One that continues the next one (its stride is
    /// the next one's size times the next one's stride) joins it; at most two may be left then, which
    /// are groups and rows.
    ///
    /// ```
    /// use cake_rmsnorm::{Dtype, RowsView};
    ///
    /// // Four query heads of 64 beside key and value heads: 768 elements a token, five tokens, twice.
    /// let q = RowsView::from_shape(4096, Dtype::Bf16, &[2, 5, 4, 64], &[3840, 768, 64, 1])?;
    /// assert_eq!(q, RowsView::packed(4096, 40, 64).with_groups(4, 768));
    ///
    /// // A gate behind each query: the heads of all tokens are at one distance.
    /// let q = RowsView::from_shape(4096, Dtype::Bf16, &[2, 5, 4, 64], &[2560, 512, 128, 1])?;
    /// assert_eq!(q, RowsView::packed(4096, 40, 64).with_stride(128));
    /// # Ok::<(), cake_rmsnorm::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Dimensions`] without a dimension, or with another number of strides.
    /// - [`Error::ColumnStride`] when the last dimension is not contiguous.
    /// - [`Error::Uncollapsible`] when more than two leading dimensions are left.
    /// - [`Error::TooManyRows`] when their number does not fit in 64 bits.
    pub fn from_shape(address: u64, dtype: Dtype, shape: &[u64], strides: &[i64]) -> Result<Self> {
        let leading = shape::collapse(shape, strides)?;
        Ok(Self {
            address,
            dtype,
            rows: leading.rows,
            hidden: shape.last().copied().unwrap_or(0),
            stride: leading.stride,
            groups: leading.groups,
        })
    }

    /// The same memory, its rows in groups of `rows`, `stride` elements apart.
    #[must_use]
    pub const fn with_groups(self, rows: u64, stride: i64) -> Self {
        Self {
            groups: Some(RowGroups { rows, stride }),
            ..self
        }
    }

    /// The same rows, without groups where one stride tells all.
    pub(crate) fn normal(self) -> Self {
        let Some(groups) = self.groups else {
            return self;
        };
        let alone = |stride| Self {
            stride,
            groups: None,
            ..self
        };
        if groups.rows == 1 {
            alone(groups.stride)
        } else if groups.rows >= self.rows
            || i128::from(groups.rows) * i128::from(self.stride) == i128::from(groups.stride)
        {
            alone(self.stride)
        } else {
            self
        }
    }

    /// Whether the same elements have the same places.
    pub(crate) fn same_memory(&self, other: &Self) -> bool {
        if self.address != other.address {
            return false;
        }
        let single = |view: &Self| view.rows < 2;
        let (a, b) = (self.normal(), other.normal());
        a == b || single(&a) && single(&b) && a == b.with_stride(a.stride)
    }

    /// Groups, rows of a group, and the distance between groups.
    pub(crate) fn grouping(&self) -> (u64, u64, i64) {
        match self.groups {
            Some(groups) if groups.rows > 0 => {
                (self.rows.div_ceil(groups.rows), groups.rows, groups.stride)
            }
            _ => (1, self.rows, 0),
        }
    }

    /// The same memory with another element type.
    #[must_use]
    pub const fn with_dtype(self, dtype: Dtype) -> Self {
        Self { dtype, ..self }
    }

    /// The same memory with another row stride.
    #[must_use]
    pub const fn with_stride(self, stride: i64) -> Self {
        Self { stride, ..self }
    }

    /// Whether every row starts at a multiple of 16 bytes.
    pub(crate) fn is_aligned(&self) -> bool {
        // What leaves 64 bits is a multiple of 16.
        let bytes = self.dtype.bytes();
        let aligned = |stride: i64| (stride as u64).wrapping_mul(bytes).is_multiple_of(16);
        self.address.is_multiple_of(16)
            && (self.rows < 2 || aligned(self.stride))
            && self.groups.is_none_or(|groups| aligned(groups.stride))
    }

    /// First and last byte, the end excluded; `None` when there are no elements.
    pub(crate) fn extent(&self, argument: Argument) -> Result<Option<(u64, u64)>> {
        if self.rows == 0 || self.hidden == 0 {
            return Ok(None);
        }
        let overflow = Error::AddressOverflow {
            argument,
            rows: self.rows,
            stride: self.stride,
        };
        let bytes = i128::from(self.dtype.bytes());
        let (groups, rows, group_stride) = self.grouping();
        let reach = |count: u64, stride: i64| i128::from(count - 1) * i128::from(stride) * bytes;
        let (row, group) = (reach(rows, self.stride), reach(groups, group_stride));
        let start = i128::from(self.address) + row.min(0) + group.min(0);
        let end = i128::from(self.address) + row.max(0) + group.max(0);
        let end = end + i128::from(self.hidden) * bytes;
        // Kernels compute byte offsets in signed 64-bit arithmetic.
        if i64::try_from(row).is_err() || i64::try_from(group).is_err() {
            return Err(overflow);
        }
        match (u64::try_from(start), u64::try_from(end)) {
            (Ok(start), Ok(end)) => Ok(Some((start, end))),
            _ => Err(overflow),
        }
    }
}

/// A contiguous vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorView {
    /// Address of the first element.
    pub address: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Elements.
    pub len: u64,
}

impl VectorView {
    /// An FP32 vector at `address`.
    #[must_use]
    pub const fn f32(address: u64, len: u64) -> Self {
        Self {
            address,
            dtype: Dtype::F32,
            len,
        }
    }

    /// A BF16 vector at `address`.
    #[must_use]
    pub const fn bf16(address: u64, len: u64) -> Self {
        Self {
            address,
            dtype: Dtype::Bf16,
            len,
        }
    }

    /// An FP16 vector at `address`.
    #[must_use]
    pub const fn f16(address: u64, len: u64) -> Self {
        Self {
            address,
            dtype: Dtype::F16,
            len,
        }
    }

    /// The vector as a matrix of one row.
    pub(crate) const fn as_rows(&self) -> RowsView {
        RowsView {
            address: self.address,
            dtype: self.dtype,
            rows: 1,
            hidden: self.len,
            stride: 0,
            groups: None,
        }
    }
}

/// Scratch memory of the backward. Its contents never matter; one buffer serves every shape that
/// needs no more bytes, one launch at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Address, a multiple of 16; may be 0 where no bytes are needed.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}
