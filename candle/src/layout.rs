//! candle's tensors as views.

use cake_rmsnorm::gated::HeadsView;
use cake_rmsnorm::{Dtype, Error, RowsView};
use candle_core::{DType, Layout, Result, Tensor};

/// This library's errors as candle's.
pub(crate) fn wrap<T>(result: cake_rmsnorm::Result<T>) -> Result<T> {
    result.map_err(candle_core::Error::wrap)
}

/// The element type; others than the three are refused.
pub(crate) fn dtype(tensor: &Tensor, op: &'static str) -> Result<Dtype> {
    match tensor.dtype() {
        DType::BF16 => Ok(Dtype::Bf16),
        DType::F16 => Ok(Dtype::F16),
        DType::F32 => Ok(Dtype::F32),
        dtype => Err(candle_core::Error::UnsupportedDTypeForOp(dtype, op).bt()),
    }
}

/// The rows of a tensor, its storage at address 0.
pub(crate) fn rows(layout: &Layout, dtype: Dtype) -> cake_rmsnorm::Result<RowsView> {
    let shape: Vec<u64> = layout.dims().iter().map(|&size| size as u64).collect();
    let strides: Vec<i64> = layout
        .stride()
        .iter()
        .map(|&stride| stride as i64)
        .collect();
    let address = layout.start_offset() as u64 * dtype.bytes();
    RowsView::from_shape(address, dtype, &shape, &strides)
}

/// Tensors that can be read where they lie in one call: the others are copied.
pub(crate) fn readable<const N: usize>(tensors: [&Tensor; N], dtype: Dtype) -> Result<[Tensor; N]> {
    // Rows in groups must be in the same groups everywhere.
    let mut group = None;
    let mut readable = tensors.map(Tensor::clone);
    for tensor in &mut readable {
        let in_place = match rows(tensor.layout(), dtype) {
            Ok(view) => match (view.groups, group) {
                (Some(found), None) => {
                    group = Some(found.rows);
                    true
                }
                (Some(found), Some(group)) => found.rows == group,
                (None, _) => true,
            },
            Err(Error::ColumnStride { .. } | Error::Uncollapsible { .. }) => false,
            Err(error) => return Err(candle_core::Error::wrap(error)),
        };
        if !in_place {
            *tensor = tensor.contiguous()?;
        }
    }
    Ok(readable)
}

/// Heads of a token in which all these rows lie; `None` where they have different ones.
pub(crate) fn heads(rows: &[RowsView]) -> Option<u64> {
    let mut groups = rows.iter().filter_map(|view| view.groups);
    let heads = groups.next().map_or(1, |groups| groups.rows);
    groups.all(|groups| groups.rows == heads).then_some(heads)
}

/// Rows as tokens of so many heads.
pub(crate) fn tokens(rows: RowsView, heads: u64) -> HeadsView {
    let token_stride = match rows.groups {
        Some(groups) => groups.stride,
        None => heads as i64 * rows.stride,
    };
    let packed = HeadsView::packed(rows.address, rows.rows / heads.max(1), heads, rows.hidden);
    HeadsView {
        dtype: rows.dtype,
        ..packed.with_strides(token_stride, rows.stride)
    }
}

/// Whether 16-byte accesses reach every row, as the gated form wants it.
pub(crate) fn is_aligned(rows: &RowsView, base: u64) -> bool {
    let groups = rows.groups.map_or(0, |groups| groups.stride);
    (base + rows.address).is_multiple_of(16) && rows.stride % 8 == 0 && groups % 8 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn tensor(shape: &[usize]) -> Result<Tensor> {
        Tensor::zeros(shape, DType::F32, &Device::Cpu)
    }

    #[test]
    fn rows_lie_where_the_tensor_says() -> Result<()> {
        let narrowed = tensor(&[4, 6, 10])?.narrow(1, 2, 3)?.narrow(2, 1, 8)?;
        let view = rows(narrowed.layout(), Dtype::F32);
        let expected = RowsView::packed(4 * 21, 12, 8).with_dtype(Dtype::F32);
        let expected = expected.with_stride(10).with_groups(3, 60);
        assert_eq!(view, Ok(expected));
        Ok(())
    }

    #[test]
    fn what_has_no_rows_is_copied() -> Result<()> {
        let base = tensor(&[2, 3, 4, 5])?;
        let in_place = base.transpose(0, 1)?.narrow(2, 0, 2)?;
        // Three strides that do not join; a last dimension with a stride.
        let (permuted, strided) = (in_place.narrow(0, 0, 2)?, base.transpose(2, 3)?);
        let read = readable([&permuted, &strided, &base], Dtype::F32)?;
        assert!(read[0].is_contiguous() && read[1].is_contiguous());
        // Rows in groups of 4, then of 12, of one shape: one call takes one kind.
        let four = tensor(&[2, 3, 5, 8])?.narrow(2, 0, 4)?;
        let twelve = tensor(&[2, 4, 4, 8])?.narrow(1, 0, 3)?;
        let [first, second, third] = readable([&four, &twelve, &four], Dtype::F32)?;
        assert!(!first.is_contiguous() && second.is_contiguous() && !third.is_contiguous());
        let [only] = readable([&twelve], Dtype::F32)?;
        assert!(!only.is_contiguous());
        assert!(dtype(&tensor(&[1])?.to_dtype(DType::F64)?, "test").is_err());
        Ok(())
    }

    #[test]
    fn rows_become_tokens_with_heads() {
        let grouped = RowsView::packed(32, 12, 8)
            .with_stride(16)
            .with_groups(3, 80);
        let packed = RowsView::packed(0, 12, 8);
        assert_eq!(heads(&[packed, grouped]), Some(3));
        assert_eq!(heads(&[packed]), Some(1));
        assert_eq!(heads(&[grouped, packed.with_groups(4, 40)]), None);
        let expected = HeadsView::packed(32, 4, 3, 8).with_strides(80, 16);
        assert_eq!(tokens(grouped, 3), expected);
        assert_eq!(tokens(packed, 3), HeadsView::packed(0, 4, 3, 8));
        assert!(is_aligned(&grouped, 16) && !is_aligned(&grouped, 8));
        assert!(!is_aligned(&packed.with_stride(12), 0));
    }
}
