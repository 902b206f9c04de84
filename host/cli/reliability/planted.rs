//! Kernels written here, that misbehave on purpose, and other things that only the driver can do.

use cake_rmsnorm::Error;
use cake_rmsnorm::backend::cuda::{Cuda, Device};
use cust::sys;
use std::ffi::{CString, c_void};

/// PTX for every GPU that the library runs on.
const HEADER: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";

/// Holds a multiprocessor a block, says so, and waits for a word to change, or for a deadline.
///
/// Parameters: where to say so (16 bytes a block: the multiprocessor + 1, then 1 at the end); the
/// word; the deadline in nanoseconds.
pub const HOLD: &str = "
.visible .entry planted(.param .u64 said, .param .u64 word, .param .u64 nanoseconds)
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %d<10>;
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra END;
    ld.param.u64 %d0, [said];
    ld.param.u64 %d1, [word];
    ld.param.u64 %d2, [nanoseconds];
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %d3, %r1, 16;
    add.u64 %d0, %d0, %d3;
    mov.u32 %r2, %smid;
    add.u32 %r2, %r2, 1;
    st.volatile.global.u32 [%d0], %r2;
    mov.u64 %d4, %globaltimer;
    add.u64 %d4, %d4, %d2;
WAIT:
    ld.volatile.global.u32 %r3, [%d1];
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra DONE;
    mov.u64 %d5, %globaltimer;
    setp.lt.u64 %p2, %d5, %d4;
    @%p2 bra WAIT;
DONE:
    mov.u32 %r4, 1;
    st.volatile.global.u32 [%d0+4], %r4;
END:
    bar.sync 0;
    ret;
}
";

/// Traps.
pub const TRAP: &str = "
.visible .entry planted(.param .u64 unused)
{
    trap;
    ret;
}
";

/// Stores a word behind the end of the memory it is given: 64 bytes.
pub const OUTSIDE: &str = "
.visible .entry planted(.param .u64 memory)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d0, [memory];
    mov.u32 %r0, 1;
    st.global.u32 [%d0+64], %r0;
    ret;
}
";

/// Reads memory that nobody wrote.
pub const UNWRITTEN: &str = "
.visible .entry planted(.param .u64 memory)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d0, [memory];
    ld.global.u32 %r0, [%d0];
    add.u32 %r0, %r0, 1;
    st.global.u32 [%d0+32], %r0;
    ret;
}
";

/// 64 threads store a word each to shared memory and read another warp's, with no barrier between.
pub const RACE: &str = "
.visible .entry planted(.param .u64 memory)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<2>;
    .shared .align 4 .b8 words[256];
    ld.param.u64 %d0, [memory];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, words;
    shl.b32 %r2, %r0, 2;
    add.u32 %r3, %r1, %r2;
    st.shared.u32 [%r3], %r0;
    xor.b32 %r4, %r2, 128;
    add.u32 %r5, %r1, %r4;
    ld.shared.u32 %r6, [%r5];
    st.global.u32 [%d0], %r6;
    ret;
}
";

/// The two halves of each warp go to different barriers.
pub const DIVERGENT: &str = "
.visible .entry planted(.param .u64 memory)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    mov.u32 %r0, %tid.x;
    and.b32 %r1, %r0, 31;
    setp.ge.u32 %p0, %r1, 16;
    @%p0 bra OTHER;
    bar.sync 0;
    bra END;
OTHER:
    bar.sync 1;
END:
    ret;
}
";

/// The error of a driver call, or nothing.
pub fn check(call: &'static str, result: sys::CUresult) -> cake_rmsnorm::Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Cuda {
        call,
        code: result as u32,
        name: format!("{result:?}"),
        detail: String::new(),
    })
}

/// Bytes of a GPU's memory that are free, and all of them.
pub fn memory(device: &Device) -> cake_rmsnorm::Result<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    device.with_context(|| {
        // SAFETY: the out pointers are live.
        let result = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check("cuMemGetInfo", result)
    })?;
    Ok((free, total))
}

/// A kernel that is loaded. It stays loaded: its process is for it alone.
pub struct Planted {
    device: Device,
    function: sys::CUfunction,
}

impl Planted {
    /// Loads one of the above.
    pub fn load(device: &Device, ptx: &str) -> cake_rmsnorm::Result<Self> {
        let image = CString::new([HEADER, ptx].concat()).unwrap_or_default();
        let mut module = std::ptr::null_mut();
        let mut function = std::ptr::null_mut();
        device.with_context(|| {
            // SAFETY: the image is terminated; the out pointers are live, the context is current.
            unsafe {
                let result = sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast());
                check("cuModuleLoadData", result)?;
                let name = c"planted";
                let result = sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr());
                check("cuModuleGetFunction", result)
            }
        })?;
        Ok(Self {
            device: device.clone(),
            function,
        })
    }

    /// Lets a block have so much dynamic shared memory.
    pub fn allow_shared(&self, bytes: u32) -> cake_rmsnorm::Result<()> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        self.device.with_context(|| {
            // SAFETY: the function is loaded in the context that is current.
            let result = unsafe { sys::cuFuncSetAttribute(self.function, attribute, bytes as i32) };
            check("cuFuncSetAttribute", result)
        })
    }

    /// Enqueues it with these parameters, 64 bits each.
    ///
    /// # Safety
    /// - The parameters are as the kernel's documentation says; its memory is valid until it has
    ///   completed, but for what it does wrong on purpose.
    pub unsafe fn launch(
        &self,
        cuda: &Cuda,
        (grid, block, shared): (u32, u32, u32),
        parameters: &mut [u64],
    ) -> cake_rmsnorm::Result<()> {
        let mut pointers: Vec<*mut c_void> = parameters
            .iter_mut()
            .map(|parameter| std::ptr::from_mut(parameter).cast())
            .collect();
        self.device.with_context(|| {
            // SAFETY: the function has as many parameters of 64 bits; the caller's obligations.
            let result = unsafe {
                sys::cuLaunchKernel(
                    self.function,
                    grid,
                    1,
                    1,
                    block,
                    1,
                    1,
                    shared,
                    cuda.stream(),
                    pointers.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            check("cuLaunchKernel", result)
        })
    }
}

/// Words of host memory that kernels and the host see at once, zero at first.
pub struct Shared {
    device: Device,
    words: *mut u32,
    len: usize,
    /// Where kernels find them.
    pub address: u64,
}

impl Shared {
    /// `len` words.
    pub fn new(device: &Device, len: usize) -> cake_rmsnorm::Result<Self> {
        let (mut pointer, mut address) = (std::ptr::null_mut(), 0);
        device.with_context(|| {
            // SAFETY: the out pointers are live.
            unsafe {
                let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP;
                let result = sys::cuMemHostAlloc(&raw mut pointer, 4 * len, flags);
                check("cuMemHostAlloc", result)?;
                std::ptr::write_bytes(pointer.cast::<u8>(), 0, 4 * len);
                let result = sys::cuMemHostGetDevicePointer_v2(&raw mut address, pointer, 0);
                check("cuMemHostGetDevicePointer", result)
            }
        })?;
        Ok(Self {
            device: device.clone(),
            words: pointer.cast(),
            len,
            address,
        })
    }

    /// The word at `index`.
    pub fn get(&self, index: usize) -> u32 {
        assert!(index < self.len, "word {index} of {}", self.len);
        // SAFETY: inside the allocation; a kernel may write it meanwhile, hence volatile.
        unsafe { self.words.add(index).read_volatile() }
    }

    /// Changes the word at `index`.
    pub fn set(&self, index: usize, value: u32) {
        assert!(index < self.len, "word {index} of {}", self.len);
        // SAFETY: as above.
        unsafe { self.words.add(index).write_volatile(value) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.device.with_context(|| {
            // SAFETY: allocated above; who launched a kernel with it has waited. An error leaves
            // nothing to do.
            check("cuMemFreeHost", unsafe {
                sys::cuMemFreeHost(self.words.cast())
            })
        });
    }
}
