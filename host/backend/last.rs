//! The plans that a thread made last: the calls of a model's layers mostly are of one shape, and to
//! compare what a plan was made from takes a fraction of the time that making it does.

use crate::error::Result;
use crate::op::RmsNorm;
use crate::plan::{
    self, BackwardForm, BackwardPlan, DeviceProperties, ForwardForm, ForwardPlan, Routes,
};
use std::cell::Cell;
use std::thread::LocalKey;

/// What a plan depends on. Of routes that were dropped others may have taken the place: a plan is
/// valid by whatever routes it was made.
#[derive(Clone, Copy, PartialEq)]
struct Key<Form> {
    op: RmsNorm,
    rows: u32,
    form: Form,
    device: DeviceProperties,
    routes: *const Routes,
}

type Last<Form, Plan> = Cell<Option<(Key<Form>, Plan)>>;

thread_local! {
    static FORWARD: Last<ForwardForm, ForwardPlan> = const { Cell::new(None) };
    static BACKWARD: Last<BackwardForm, BackwardPlan> = const { Cell::new(None) };
}

/// As [`plan::forward_by`].
pub(super) fn forward(
    routes: &Routes,
    op: &RmsNorm,
    rows: u32,
    form: ForwardForm,
    device: &DeviceProperties,
) -> Result<ForwardPlan> {
    let key = Key::new(routes, op, rows, form, device);
    of(&FORWARD, key, || {
        plan::forward_by(routes, op, u64::from(rows), form, device)
    })
}

/// As [`plan::backward_by`].
pub(super) fn backward(
    routes: &Routes,
    op: &RmsNorm,
    rows: u32,
    form: BackwardForm,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    let key = Key::new(routes, op, rows, form, device);
    of(&BACKWARD, key, || {
        plan::backward_by(routes, op, u64::from(rows), form, device)
    })
}

impl<Form> Key<Form> {
    fn new(
        routes: &Routes,
        op: &RmsNorm,
        rows: u32,
        form: Form,
        device: &DeviceProperties,
    ) -> Self {
        Self {
            op: *op,
            rows,
            form,
            device: *device,
            routes,
        }
    }
}

/// The plan for `key`: the last one, or a new one.
fn of<Form: Copy + PartialEq, Plan: Copy>(
    last: &'static LocalKey<Last<Form, Plan>>,
    key: Key<Form>,
    new: impl FnOnce() -> Result<Plan>,
) -> Result<Plan> {
    if let Some((of, plan)) = last.get()
        && of == key
    {
        return Ok(plan);
    }
    let plan = new()?;
    last.set(Some((key, plan)));
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Dtype;

    /// Calls by turns, each differing from the one before in one thing, and calls that repeat.
    #[test]
    fn plans_are_those_that_would_be_made() {
        let device = DeviceProperties::H200;
        let (built_in, other) = (Routes::built_in(), Routes::built_in().clone());
        let operators = [512, 4096].map(|hidden| RmsNorm::new(hidden, Dtype::F32, 1e-6));
        let operators = operators.map(|op| op.expect("an operator"));
        let residual = |residual| ForwardForm {
            residual,
            ..ForwardForm::default()
        };
        for routes in [built_in, &other, built_in] {
            for device in [device, device.with_sm_count(7), device] {
                for op in &operators {
                    for rows in [1, 4096, 4096, 70_000] {
                        for form in [false, true, true] {
                            let expected =
                                plan::forward_by(routes, op, rows.into(), residual(form), &device);
                            let found = forward(routes, op, rows, residual(form), &device);
                            assert_eq!(format!("{found:?}"), format!("{expected:?}"));
                            let form = BackwardForm {
                                residual: form,
                                ..BackwardForm::default()
                            };
                            let expected =
                                plan::backward_by(routes, op, rows.into(), form, &device);
                            let found = backward(routes, op, rows, form, &device);
                            assert_eq!(format!("{found:?}"), format!("{expected:?}"));
                        }
                    }
                }
            }
        }
    }
}
