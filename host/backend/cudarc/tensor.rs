//! Slices of `cudarc` as the operators' arguments.

use crate::element::Element;
use crate::error::{Argument, Error, Result};
use crate::gated::HeadsView;
use crate::view::{Dtype, RowsView, VectorView, Workspace};
use ::cudarc::driver::{
    CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};
use half::{bf16, f16};

/// A tensor in a slice: `memory` is a [`CudaView`] of an input or a [`CudaViewMut`] of an output,
/// `layout` a [`RowsView`] or [`HeadsView`] whose address counts from the start of the memory, in
/// bytes.
#[derive(Debug)]
pub struct Tensor<M, L = RowsView> {
    /// The slice.
    pub memory: M,
    /// Where in it the elements lie. Its element type is the slice's, whatever is said here.
    pub layout: L,
}

impl<M> Tensor<M> {
    /// Packed rows from the start of `memory` on.
    pub const fn rows(memory: M, rows: u64, hidden: u64) -> Self {
        Self {
            memory,
            layout: RowsView::packed(0, rows, hidden),
        }
    }
}

impl<M> Tensor<M, HeadsView> {
    /// A packed tensor [tokens, heads, H] from the start of `memory` on.
    pub const fn heads(memory: M, tokens: u64, heads: u64, hidden: u64) -> Self {
        Self {
            memory,
            layout: HeadsView::packed(0, tokens, heads, hidden),
        }
    }
}

/// A weight in device memory, \[H\].
#[derive(Debug)]
pub enum Weight<'a> {
    /// No weight.
    None,
    /// BF16.
    Bf16(CudaView<'a, bf16>),
    /// FP16.
    F16(CudaView<'a, f16>),
    /// FP32.
    F32(CudaView<'a, f32>),
}

/// A layout of elements.
pub(super) trait Layout: Copy {
    /// The same at another address, and of elements of type `dtype`.
    fn at(self, address: u64, dtype: Dtype) -> Self;
    fn address(&self) -> u64;
    fn extent(&self, argument: Argument) -> Result<Option<(u64, u64)>>;
}

impl Layout for RowsView {
    fn at(self, address: u64, dtype: Dtype) -> Self {
        Self {
            address,
            dtype,
            ..self
        }
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn extent(&self, argument: Argument) -> Result<Option<(u64, u64)>> {
        RowsView::extent(self, argument)
    }
}

impl Layout for HeadsView {
    fn at(self, address: u64, dtype: Dtype) -> Self {
        Self {
            address,
            dtype,
            ..self
        }
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn extent(&self, argument: Argument) -> Result<Option<(u64, u64)>> {
        HeadsView::extent(self, argument)
    }
}

/// `layout` in a slice of `len` elements at `base`.
fn place<L: Layout>(
    argument: Argument,
    layout: L,
    base: u64,
    len: usize,
    dtype: Dtype,
) -> Result<L> {
    // A base in the middle of all addresses, for rows that run backwards.
    const MIDDLE: u64 = 1 << 62;
    let there = |base: u64| layout.at(base.saturating_add(layout.address()), dtype);
    let size = i128::from(dtype.bytes());
    if let Some((start, end)) = there(MIDDLE).extent(argument)? {
        let elements = |address: u64| i128::from(address) - i128::from(MIDDLE);
        let (first, end) = (elements(start), elements(end));
        if first < 0 || end > len as i128 * size {
            return Err(Error::OutOfBounds {
                argument,
                first: first.div_euclid(size),
                end: (end + size - 1).div_euclid(size),
                found: len as u64,
            });
        }
    }
    Ok(there(base))
}

/// Resolves slices to addresses on a stream, and keeps what tells `cudarc` that the stream reads
/// or writes them: to be dropped when the work has been enqueued.
pub(super) struct Resolver<'a> {
    stream: &'a CudaStream,
    guards: Vec<SyncOnDrop<'a>>,
}

impl<'a> Resolver<'a> {
    pub fn new(stream: &'a CudaStream) -> Self {
        Self {
            stream,
            guards: Vec::with_capacity(10),
        }
    }

    /// Address and elements of an input.
    fn read<T>(
        &mut self,
        argument: Argument,
        memory: &'a impl DevicePtr<T>,
    ) -> Result<(u64, usize)> {
        self.same_context(argument, memory)?;
        let (address, guard) = memory.device_ptr(self.stream);
        self.guards.push(guard);
        Ok((address, memory.len()))
    }

    /// Address and elements of an output.
    fn write<T>(
        &mut self,
        argument: Argument,
        memory: &'a mut impl DevicePtrMut<T>,
    ) -> Result<(u64, usize)> {
        self.same_context(argument, memory)?;
        let len = memory.len();
        let (address, guard) = memory.device_ptr_mut(self.stream);
        self.guards.push(guard);
        Ok((address, len))
    }

    fn same_context<T>(&self, argument: Argument, memory: &impl DeviceSlice<T>) -> Result<()> {
        let context = memory.stream().context().cu_ctx();
        if context == self.stream.context().cu_ctx() {
            Ok(())
        } else {
            Err(Error::OtherContext { argument })
        }
    }

    pub fn input<E: Element, L: Layout>(
        &mut self,
        argument: Argument,
        tensor: &'a Tensor<CudaView<'_, E>, L>,
    ) -> Result<L> {
        let (base, len) = self.read(argument, &tensor.memory)?;
        place(argument, tensor.layout, base, len, E::DTYPE)
    }

    pub fn output<E: Element, L: Layout>(
        &mut self,
        argument: Argument,
        tensor: &'a mut Tensor<CudaViewMut<'_, E>, L>,
    ) -> Result<L> {
        let (base, len) = self.write(argument, &mut tensor.memory)?;
        place(argument, tensor.layout, base, len, E::DTYPE)
    }

    pub fn vector<E: Element>(
        &mut self,
        argument: Argument,
        memory: &'a CudaView<'_, E>,
    ) -> Result<VectorView> {
        let (address, len) = self.read(argument, memory)?;
        Ok(vector::<E>(address, len))
    }

    pub fn vector_mut<E: Element>(
        &mut self,
        argument: Argument,
        memory: &'a mut CudaViewMut<'_, E>,
    ) -> Result<VectorView> {
        let (address, len) = self.write(argument, memory)?;
        Ok(vector::<E>(address, len))
    }

    pub fn weight(&mut self, weight: &'a Weight<'_>) -> Result<Option<VectorView>> {
        let argument = Argument::W;
        match weight {
            Weight::None => Ok(None),
            Weight::Bf16(memory) => self.vector(argument, memory).map(Some),
            Weight::F16(memory) => self.vector(argument, memory).map(Some),
            Weight::F32(memory) => self.vector(argument, memory).map(Some),
        }
    }

    pub fn workspace(&mut self, memory: Option<&'a mut CudaViewMut<'_, u8>>) -> Result<Workspace> {
        let memory = memory.map(|memory| self.write(Argument::Workspace, memory));
        let (address, len) = memory.transpose()?.unwrap_or_default();
        Ok(Workspace {
            address,
            bytes: len as u64,
        })
    }
}

fn vector<E: Element>(address: u64, len: usize) -> VectorView {
    VectorView {
        address,
        dtype: E::DTYPE,
        len: len as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7000_0000;

    fn rows(layout: RowsView, len: usize, dtype: Dtype) -> Result<RowsView> {
        place(Argument::X, layout, BASE, len, dtype)
    }

    #[test]
    fn layouts_take_their_slice_s_address_and_type() {
        let layout = RowsView::packed(6, 3, 8).with_stride(11);
        let placed = rows(layout, 3 + 2 * 11 + 8, Dtype::F16);
        let expected = RowsView::packed(BASE + 6, 3, 8).with_stride(11);
        assert_eq!(placed, Ok(expected.with_dtype(Dtype::F16)));
        let heads = HeadsView::packed(16, 2, 3, 8);
        let placed = place(Argument::Z, heads, BASE, 8 + 2 * 3 * 8, Dtype::Bf16);
        assert_eq!(placed, Ok(HeadsView::packed(BASE + 16, 2, 3, 8)));
    }

    #[test]
    fn rows_beyond_their_slice_are_refused() {
        let refused = |first, end, found| {
            Err(Error::OutOfBounds {
                argument: Argument::X,
                first,
                end,
                found,
            })
        };
        let packed = RowsView::packed(0, 3, 8);
        assert!(rows(packed, 24, Dtype::F32).is_ok());
        assert_eq!(rows(packed, 23, Dtype::F32), refused(0, 24, 23));
        let behind = RowsView::packed(2, 3, 8);
        assert_eq!(rows(behind, 24, Dtype::Bf16), refused(1, 25, 24));
        let groups = packed.with_groups(1, 100);
        assert_eq!(rows(groups, 200, Dtype::F32), refused(0, 208, 200));
        // Backwards from the last row of the slice is right, from the first it is not.
        let backwards = packed.with_stride(-8);
        assert_eq!(rows(backwards, 24, Dtype::F32), refused(-16, 8, 24));
        let from_last = RowsView {
            address: 64,
            ..backwards
        };
        assert!(rows(from_last, 24, Dtype::F32).is_ok());
        // No rows, no elements.
        assert!(rows(RowsView::packed(0, 0, 8), 0, Dtype::F32).is_ok());
    }

    #[test]
    fn addresses_that_no_slice_has_are_refused() {
        let beyond = RowsView::packed(u64::MAX, 1, 8);
        assert!(rows(beyond, 8, Dtype::F32).is_err());
        let wide = RowsView::packed(0, 1 << 40, 8).with_stride(i64::MAX / 2);
        assert!(rows(wide, 8, Dtype::F32).is_err());
    }
}
