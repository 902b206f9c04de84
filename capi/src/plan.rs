//! Plans: what a call would launch. They touch no device and no memory of the arguments.

use crate::device;
use crate::failure::{CakeRmsnormStatus, Failure, guard};
use crate::gated::{CakeRmsnormGatedBackward, CakeRmsnormGatedForward, CakeRmsnormGatedOperator};
use crate::plain::{CakeRmsnormBackward, CakeRmsnormForward, CakeRmsnormOperator};
use crate::types::{borrow, borrow_mut, check_size};
use cake_rmsnorm::plan::{self, BackwardForm, DeviceProperties, ForwardForm, Launch, Spacing};
use std::ffi::c_char;

/// Bytes of a kernel's name, the terminating zero included.
pub const CAKE_RMSNORM_KERNEL_NAME_BYTES: usize = 64;

/// What a plan needs to know of a GPU. For one that is there: cake_rmsnorm_device_properties.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CakeRmsnormDeviceProperties {
    /// sizeof(CakeRmsnormDeviceProperties).
    pub struct_size: usize,
    /// Multiprocessors.
    pub sm_count: u32,
    /// Compute capability, major.
    pub compute_capability_major: u32,
    /// Compute capability, minor.
    pub compute_capability_minor: u32,
    /// Shared memory that one block may have after opting in, in bytes.
    pub shared_bytes_per_block: u32,
}

/// One kernel launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CakeRmsnormLaunch {
    /// The kernel's name.
    pub kernel: [c_char; CAKE_RMSNORM_KERNEL_NAME_BYTES],
    /// Blocks.
    pub grid: u32,
    /// Threads a block.
    pub block: u32,
    /// Dynamic shared memory a block, in bytes.
    pub shared_bytes: u32,
}

/// What a call launches, one after the other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CakeRmsnormPlan {
    /// sizeof(CakeRmsnormPlan), set by the caller.
    pub struct_size: usize,
    /// Launches; none without rows.
    pub launch_count: u32,
    /// The launches; those from `launch_count` on are zero.
    pub launches: [CakeRmsnormLaunch; 3],
    /// Bytes of workspace that the call needs; 0 of a forward.
    pub workspace_bytes: u64,
}

impl CakeRmsnormDeviceProperties {
    fn properties(&self) -> Result<DeviceProperties, Failure> {
        check_size::<Self>("device", self.struct_size)?;
        Ok(DeviceProperties {
            sm_count: self.sm_count,
            compute_capability: (self.compute_capability_major, self.compute_capability_minor),
            shared_bytes_per_block: self.shared_bytes_per_block,
        })
    }
}

impl CakeRmsnormLaunch {
    const NONE: Self = Self {
        kernel: [0; CAKE_RMSNORM_KERNEL_NAME_BYTES],
        grid: 0,
        block: 0,
        shared_bytes: 0,
    };

    fn new(launch: &Launch) -> Self {
        let mut found = Self {
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            ..Self::NONE
        };
        // The last byte stays zero.
        let room = CAKE_RMSNORM_KERNEL_NAME_BYTES - 1;
        for (to, from) in found.kernel[..room]
            .iter_mut()
            .zip(launch.kernel.name.bytes())
        {
            *to = from as c_char;
        }
        found
    }
}

impl CakeRmsnormPlan {
    fn fill(&mut self, launches: [Option<Launch>; 3], workspace_bytes: u64) {
        self.launch_count = 0;
        self.launches = [CakeRmsnormLaunch::NONE; 3];
        self.workspace_bytes = workspace_bytes;
        for (slot, launch) in self.launches.iter_mut().zip(launches.iter().flatten()) {
            *slot = CakeRmsnormLaunch::new(launch);
            self.launch_count += 1;
        }
    }
}

/// Properties of a GPU of this machine. The CPU has none.
///
/// # Safety
/// - `properties` is null (refused) or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_device_properties(
    device: i32,
    properties: *mut CakeRmsnormDeviceProperties,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let out = unsafe { borrow_mut("properties", properties) }?;
        check_size::<CakeRmsnormDeviceProperties>("properties", out.struct_size)?;
        if device < 0 {
            return Err(Failure::new(
                CakeRmsnormStatus::InvalidArgument,
                format!("device is {device}: accepted are CUDA ordinals"),
            ));
        }
        // SAFETY: no stream.
        let found = unsafe {
            device::with(device, std::ptr::null_mut(), |backend| {
                Ok(*backend.properties())
            })
        }?;
        let (major, minor) = found.compute_capability;
        out.sm_count = found.sm_count;
        out.compute_capability_major = major;
        out.compute_capability_minor = minor;
        out.shared_bytes_per_block = found.shared_bytes_per_block;
        Ok(())
    })
}

/// What cake_rmsnorm_forward would launch for these arguments on such a device. Reads no memory of
/// theirs and checks them no further than the plan depends on them.
///
/// # Safety
/// - Pointers are null (refused) or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_forward_plan(
    op: *const CakeRmsnormOperator,
    device: *const CakeRmsnormDeviceProperties,
    args: *const CakeRmsnormForward,
    plan: *mut CakeRmsnormPlan,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (op, device) = unsafe { (borrow("op", op)?.0, borrow("device", device)?) };
        // SAFETY: as above.
        let (args, out) = unsafe { (borrow("args", args)?, borrow_mut("plan", plan)?) };
        check_size::<CakeRmsnormPlan>("plan", out.struct_size)?;
        let form = ForwardForm::of(&args.views(&op)?);
        let plan = plan::forward(&op, args.rows, form, &device.properties()?)?;
        out.fill([plan.launch, None, None], 0);
        Ok(())
    })
}

/// What cake_rmsnorm_backward would launch, as cake_rmsnorm_forward_plan tells of a forward, and the
/// workspace that it needs.
///
/// # Safety
/// - As cake_rmsnorm_forward_plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_backward_plan(
    op: *const CakeRmsnormOperator,
    device: *const CakeRmsnormDeviceProperties,
    args: *const CakeRmsnormBackward,
    plan: *mut CakeRmsnormPlan,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (op, device) = unsafe { (borrow("op", op)?.0, borrow("device", device)?) };
        // SAFETY: as above.
        let (args, out) = unsafe { (borrow("args", args)?, borrow_mut("plan", plan)?) };
        check_size::<CakeRmsnormPlan>("plan", out.struct_size)?;
        let form = BackwardForm::of(&args.views(&op)?);
        let plan = plan::backward(&op, args.rows, form, &device.properties()?)?;
        let launches = [plan.statistics, plan.main, plan.reduce];
        out.fill(launches, plan.workspace_bytes);
        Ok(())
    })
}

/// As cake_rmsnorm_forward_plan, for cake_rmsnorm_gated_forward.
///
/// # Safety
/// - As cake_rmsnorm_forward_plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_gated_forward_plan(
    op: *const CakeRmsnormGatedOperator,
    device: *const CakeRmsnormDeviceProperties,
    args: *const CakeRmsnormGatedForward,
    plan: *mut CakeRmsnormPlan,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (op, device) = unsafe { (borrow("op", op)?.0, borrow("device", device)?) };
        // SAFETY: as above.
        let (args, out) = unsafe { (borrow("args", args)?, borrow_mut("plan", plan)?) };
        check_size::<CakeRmsnormPlan>("plan", out.struct_size)?;
        let spacing = Spacing::of(&args.views(&op)?);
        let plan = op.forward_plan(args.rows, spacing, &device.properties()?)?;
        out.fill([plan.launch, None, None], 0);
        Ok(())
    })
}

/// As cake_rmsnorm_backward_plan, for cake_rmsnorm_gated_backward.
///
/// # Safety
/// - As cake_rmsnorm_forward_plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_gated_backward_plan(
    op: *const CakeRmsnormGatedOperator,
    device: *const CakeRmsnormDeviceProperties,
    args: *const CakeRmsnormGatedBackward,
    plan: *mut CakeRmsnormPlan,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (op, device) = unsafe { (borrow("op", op)?.0, borrow("device", device)?) };
        // SAFETY: as above.
        let (args, out) = unsafe { (borrow("args", args)?, borrow_mut("plan", plan)?) };
        check_size::<CakeRmsnormPlan>("plan", out.struct_size)?;
        let dw = args.views(&op)?.dw.is_some();
        let plan = op.backward_plan(args.rows, dw, &device.properties()?)?;
        out.fill([plan.main, plan.reduce, None], plan.workspace_bytes);
        Ok(())
    })
}
