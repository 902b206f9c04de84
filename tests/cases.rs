//! Drawn cases: any shape, types, strides, alignment and data.

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cpu::Cpu;
use cake_rmsnorm::backend::sim::{Sim, SimBuffer};
use cake_rmsnorm::cases::{
    BackwardInput, Case, Device, ForwardInput, InPlace, Memory, Step, WeightOutput,
};
use cake_rmsnorm::{Dtype, Error};
use proptest::prelude::*;
use std::cell::UnsafeCell;

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

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        assert_eq!(bytes.len(), self.1);
        // SAFETY: as many bytes as asked for; no reference to them is ever given out.
        unsafe {
            self.pointer()
                .copy_from_nonoverlapping(bytes.as_ptr(), self.1)
        };
        Ok(())
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; self.1];
        // SAFETY: as above; calls are done when they return.
        unsafe {
            self.pointer()
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), self.1)
        };
        Ok(bytes)
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

/// The kernels, simulated.
struct Simulated(Sim);

impl Device for Simulated {
    type Error = Error;
    type Memory = SimBuffer;

    fn backend(&self) -> &dyn Backend {
        &self.0
    }

    fn alloc(&self, name: &'static str, bytes: usize) -> Result<SimBuffer, Error> {
        Ok(self.0.alloc(name, bytes))
    }

    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }
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
