//! Drawn cases: any shape, types, strides, alignment and data.

#[path = "common/simulated.rs"]
mod simulated;

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cpu::Cpu;
use cake_rmsnorm::backend::sim::{Sim, SimBuffer};
use cake_rmsnorm::cases::{
    BackwardInput, Case, Device, ForwardInput, InPlace, Memory, Step, WeightOutput,
};
use cake_rmsnorm::{Dtype, Error};
use memmap2::{MmapMut, MmapOptions};
use proptest::prelude::*;
use rayon::prelude::*;
use simulated::Simulated;
use std::cell::{RefCell, UnsafeCell};

/// The golden implementation, on host memory.
struct Host;

/// Words of 16 bytes, and how many bytes are asked for.
struct HostMemory(Box<[UnsafeCell<u128>]>, usize);

impl HostMemory {
    fn pointer(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.0.as_ptr()).cast()
    }
}

impl Memory<Error> for HostMemory {
    fn address(&self) -> u64 {
        self.pointer().expose_provenance() as u64
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        assert!(at + bytes.len() <= self.1);
        // SAFETY: inside what was asked for; no reference to it is ever given out.
        unsafe {
            let to = self.pointer().add(at);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Ok(())
    }

    fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, Error> {
        assert!(at + bytes <= self.1);
        let mut found = vec![0; bytes];
        // SAFETY: as above; calls are done when they return.
        unsafe {
            let from = self.pointer().add(at);
            from.copy_to_nonoverlapping(found.as_mut_ptr(), bytes);
        }
        Ok(found)
    }
}

impl Device for Host {
    type Error = Error;
    type Memory = HostMemory;

    fn backend(&self) -> &dyn Backend {
        &Cpu
    }

    fn alloc(&self, _: &'static str, bytes: usize) -> Result<HostMemory, Error> {
        let words = (0..bytes.div_ceil(16)).map(|_| UnsafeCell::new(0));
        Ok(HostMemory(words.collect(), bytes))
    }

    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Addresses without memory behind them, until they are touched. They stay reserved, so that no two
/// buffers of a case have the same.
#[derive(Default)]
struct Reserved(RefCell<Vec<MmapMut>>);

impl Reserved {
    fn alloc(&self, bytes: usize) -> *mut u8 {
        let mut map = MmapOptions::new()
            .len(bytes)
            .no_reserve_swap()
            .map_anon()
            .expect("addresses");
        let start = map.as_mut_ptr();
        self.0.borrow_mut().push(map);
        start
    }
}

/// The golden implementation, on reserved addresses.
#[derive(Default)]
struct FarHost(Reserved);

struct FarHostMemory(*mut u8);

impl Memory<Error> for FarHostMemory {
    fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: inside the reserved addresses, as a case promises.
        unsafe {
            let to = self.0.add(at);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Ok(())
    }

    fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, Error> {
        let mut found = vec![0; bytes];
        // SAFETY: as above; calls are done when they return.
        unsafe {
            let from = self.0.add(at);
            from.copy_to_nonoverlapping(found.as_mut_ptr(), bytes);
        }
        Ok(found)
    }
}

impl Device for FarHost {
    type Error = Error;
    type Memory = FarHostMemory;

    fn backend(&self) -> &dyn Backend {
        &Cpu
    }

    fn alloc(&self, _: &'static str, bytes: usize) -> Result<FarHostMemory, Error> {
        Ok(FarHostMemory(self.0.alloc(bytes)))
    }

    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// The simulator, on reserved addresses. Kernels may touch what was written alone: an access that
/// misses a row by as much as a guard is an error.
struct FarSimulated(Sim, Reserved);

struct FarSimMemory {
    sim: Sim,
    name: &'static str,
    start: *mut u8,
    written: Vec<(usize, SimBuffer)>,
}

impl Memory<Error> for FarSimMemory {
    fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let start = self.start.wrapping_add(at);
        // SAFETY: reserved addresses, which stay so until the simulator is gone.
        let part = unsafe { self.sim.register(self.name, start, bytes.len())? };
        part.write(bytes)?;
        self.written.push((at, part));
        Ok(())
    }

    fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, Error> {
        let part = self.written.iter().find(|(start, _)| *start == at);
        let (_, part) = part.expect("what is read was written");
        part.part(0, bytes)?.read()
    }
}

impl Device for FarSimulated {
    type Error = Error;
    type Memory = FarSimMemory;

    fn backend(&self) -> &dyn Backend {
        &self.0
    }

    fn alloc(&self, name: &'static str, bytes: usize) -> Result<FarSimMemory, Error> {
        Ok(FarSimMemory {
            sim: self.0.clone(),
            name,
            start: self.1.alloc(bytes),
            written: Vec::new(),
        })
    }

    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Rows more than 2³¹ elements apart, in both directions, in every family of kernels.
#[test]
fn rows_far_apart() {
    Case::far().into_par_iter().for_each(|case| {
        let failures = case.run(&FarHost::default()).expect("it runs");
        assert!(failures.is_empty(), "{failures:#?} in {case}");
        let sim = FarSimulated(Sim::new().with_workers(1), Reserved::default());
        let failures = case.run(&sim).map_err(|error| format!("{error} in {case}"));
        let failures = failures.expect("it runs");
        assert!(failures.is_empty(), "{failures:#?} in {case}");
    });
}

#[track_caller]
fn check<D: Device<Error = Error>>(case: &Case, device: &D) -> Result<(), TestCaseError> {
    let failures = case.run(device);
    let failures = failures.map_err(|error| TestCaseError::fail(format!("{error} in {case}")))?;
    prop_assert!(failures.is_empty(), "{:#?} in {}", failures, case);
    Ok(())
}

/// A seed draws everything; proptest makes the matrices smaller when one fails.
fn cases(elements: usize) -> impl Strategy<Value = Case> {
    (any::<u64>(), 1..=elements).prop_map(|(seed, elements)| Case::from_seed(seed, elements))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_the_cpu(case in cases(3000)) {
        check(&case, &Host)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_the_simulator(case in cases(2000)) {
        check(&case, &Simulated(Sim::new()))?;
    }
}

/// Draws reach what they are for.
#[test]
fn seeds_draw_every_kind() {
    let cases: Vec<Case> = (0..2000).map(|seed| Case::from_seed(seed, 3000)).collect();
    let share = |what: &dyn Fn(&Case) -> bool| {
        let found = cases.iter().filter(|case| what(case)).count();
        assert!(found > 20, "{found} of {}", cases.len());
    };
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        share(&|case| case.input == dtype && case.is_bounded());
        share(&|case| case.weight == Some(dtype) && !case.is_bounded());
    }
    share(&|case| case.weight.is_none());
    share(&|case| case.weight_offset != 0.0);
    share(&|case| !case.keeps_rstd);
    share(&|case| case.gradients != (true, true));
    share(&|case| case.gradients.0 && case.layouts.dy.step == Step::Same && case.rows > 1);
    share(&|case| matches!(case.layouts.x.step, Step::Grouped { rows, .. } if rows > 1));
    let both = |case: &Case| case.gradients == (true, true) && case.rows > 1;
    for dw in [
        WeightOutput::Overwritten,
        WeightOutput::Accumulated,
        WeightOutput::OverwrittenAndBf16,
        WeightOutput::AccumulatedAndBf16,
        WeightOutput::Bf16,
    ] {
        share(&|case| both(case) && case.dw == dw);
    }
    for input in [ForwardInput::X, ForwardInput::Residual] {
        share(&|case| case.residual && case.in_place.y == Some(input));
        let h = |place: InPlace| place.h == Some(input) && place.y != Some(input);
        share(&|case| case.residual && h(case.in_place));
    }
    for input in [BackwardInput::Dy, BackwardInput::X, BackwardInput::Dh] {
        share(&|case| both(case) && case.residual && case.in_place.dx == Some(input));
    }
    share(&|case| case.rows == 0);
    share(&|case| case.rows > 200);
    share(&|case| case.hidden > 2000 && !case.hidden.is_multiple_of(8));
    share(&|case| case.hidden < 8);
    share(&|case| case.hidden.is_multiple_of(8) && case.weight_start == 0);
}
