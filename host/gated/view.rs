//! Tensors with two leading dimensions.

use crate::error::{Argument, Error, Result};
use crate::view::{Dtype, continues};

/// A tensor [tokens, heads, hidden] with contiguous rows of `hidden` elements: an address, and the
/// distances between the rows of neighbouring tokens and of neighbouring heads.
///
/// A view is a plain description; only launching it is unsafe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsView {
    /// Address of the first element.
    pub address: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Tokens.
    pub tokens: u64,
    /// Heads of a token.
    pub heads: u64,
    /// H.
    pub hidden: u64,
    /// Elements between neighbouring tokens.
    pub token_stride: i64,
    /// Elements between neighbouring heads.
    pub head_stride: i64,
}

impl HeadsView {
    /// A packed BF16 tensor at `address`.
    #[must_use]
    pub const fn packed(address: u64, tokens: u64, heads: u64, hidden: u64) -> Self {
        Self {
            address,
            dtype: Dtype::Bf16,
            tokens,
            heads,
            hidden,
            token_stride: heads.saturating_mul(hidden) as i64,
            head_stride: hidden as i64,
        }
    }

    /// The same memory with other strides.
    #[must_use]
    pub const fn with_strides(self, token_stride: i64, head_stride: i64) -> Self {
        Self {
            token_stride,
            head_stride,
            ..self
        }
    }

    /// The distances that matter: 0 where there is no row, or but one.
    pub(crate) fn strides(&self) -> (i64, i64) {
        let (tokens, heads) = (self.tokens, self.heads);
        let of = |stride: i64, matters: bool| if matters { stride } else { 0 };
        (
            of(self.token_stride, tokens > 1 && heads > 0),
            of(self.head_stride, heads > 1 && tokens > 0),
        )
    }

    /// Elements between neighbouring rows, the heads of all tokens, where that is one distance, and
    /// less than 2³¹ bytes.
    #[must_use]
    pub(crate) fn row_stride(&self) -> Option<i64> {
        const MOST: i64 = (i32::MAX / 2) as i64;
        let (token, head) = self.strides();
        let stride = if self.heads <= 1 { token } else { head };
        let even = self.heads <= 1 || self.tokens <= 1 || continues(token, self.heads, head);
        (even && (-MOST..=MOST).contains(&stride)).then_some(stride)
    }

    /// The same rows as tokens of one head, where they are at one distance.
    pub(crate) fn as_tokens(self) -> Option<Self> {
        self.row_stride().map(|stride| Self {
            tokens: self.tokens * self.heads,
            heads: 1,
            token_stride: stride,
            ..self
        })
    }

    /// First and last byte, the end excluded; `None` when there are no elements.
    pub(crate) fn extent(&self, argument: Argument) -> Result<Option<(u64, u64)>> {
        if self.tokens == 0 || self.heads == 0 || self.hidden == 0 {
            return Ok(None);
        }
        let overflow = Error::AddressOverflow {
            argument,
            rows: self.tokens.saturating_mul(self.heads),
            stride: self.token_stride,
        };
        let bytes = i128::from(self.dtype.bytes());
        let (token, head) = self.strides();
        let reaches = [(self.tokens, token), (self.heads, head)]
            .map(|(count, stride)| i128::from(count - 1) * i128::from(stride) * bytes);
        let down: i128 = reaches.iter().map(|reach| (*reach).min(0)).sum();
        let up: i128 = reaches.iter().map(|reach| (*reach).max(0)).sum();
        let start = i128::from(self.address) + down;
        let end = i128::from(self.address) + up + i128::from(self.hidden) * bytes;
        // Kernels compute byte offsets in signed 64-bit arithmetic.
        if i64::try_from(up - down).is_err() {
            return Err(overflow);
        }
        match (u64::try_from(start), u64::try_from(end)) {
            (Ok(start), Ok(end)) => Ok(Some((start, end))),
            _ => Err(overflow),
        }
    }
}
