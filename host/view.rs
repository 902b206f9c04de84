//! Views of memory: what an operator is handed.

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
/// and the simulator), and the distance between the starts of neighbouring rows.
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
        let step = i128::from(self.stride) * i128::from(self.dtype.bytes());
        self.address.is_multiple_of(16) && (self.rows < 2 || step % 16 == 0)
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
        let reach = i128::from(self.rows - 1) * i128::from(self.stride) * bytes;
        let start = i128::from(self.address) + reach.min(0);
        let end = i128::from(self.address) + reach.max(0) + i128::from(self.hidden) * bytes;
        // Kernels compute byte offsets in signed 64-bit arithmetic.
        if i64::try_from(reach).is_err() {
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
