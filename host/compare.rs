//! How far outputs are from the FP64 reference, and whether that is within the bounds of the
//! numerics contract (docs/numerics.md, "Accuracy").

use crate::Dtype;
use crate::error::{Argument, Error, Result};
use rayon::prelude::*;
use serde::Serialize;

mod format;
#[cfg(test)]
mod tests;

pub use crate::element::Element;
use format::distance;
pub use format::{round, ulp};

/// An output of the operators, which has a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// BF16(x + residual).
    H,
    /// The normalised rows.
    Y,
    /// The reciprocal roots.
    Rstd,
    /// Gradient of x.
    Dx,
    /// Gradient of w.
    Dw,
    /// Gradient of the gate.
    Dz,
}

/// The largest error that is accepted: `ulps` units in the last place of the exact value, or
/// `of_terms` times the sum of the absolute values of the terms that may cancel in it, whichever
/// is larger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Units in the last place.
    pub ulps: f64,
    /// Share of the terms.
    pub of_terms: f64,
}

impl Output {
    /// The bound of every element, of an output whose matrices are of `dtype`.
    #[must_use]
    pub fn bound(self, dtype: Dtype) -> Bound {
        match self {
            // Two roundings to FP32, of which the first costs up to a unit, before none but the
            // second.
            Output::Y if dtype == Dtype::F32 => Bound {
                ulps: 2.0,
                of_terms: 0.0,
            },
            Output::H | Output::Y => Bound {
                ulps: 1.0,
                of_terms: 0.0,
            },
            // Every rounding costs at most 2⁻²⁴ of the value, which is at most one unit. Of a row
            // sum of up to 65,536 positive terms each term is rounded at most 24 times (7 in its
            // lane, 5 in its tile, 7 over the tiles of a lane, 5 over the lanes); the division by
            // H and eps make 26. The root halves that; it and the reciprocal round once each: 15,
            // and second-order terms.
            Output::Rstd => Bound {
                ulps: 16.0,
                of_terms: 0.0,
            },
            // Before dx is rounded to its type the error is at most 32 · 2⁻²⁴ of the terms: 25
            // roundings in a row sum of 65,536 elements, one in a, four in k, two at the end; and
            // half a unit from the rounding. The larger of a unit and of twice the former covers
            // both.
            Output::Dx | Output::Dz => Bound {
                ulps: 1.0,
                of_terms: 2f64.powi(-18),
            },
            Output::Dw => Bound {
                ulps: 1.0,
                of_terms: 2f64.powi(-40),
            },
        }
    }

    /// The bound of every element of the gated form.
    #[must_use]
    pub fn gated_bound(self) -> Bound {
        match self {
            // Where the gate comes first, what is normalised is itself off by 4 units at most.
            Output::Rstd => Bound {
                ulps: 24.0,
                of_terms: 0.0,
            },
            Output::H | Output::Y | Output::Dx | Output::Dz => Bound {
                ulps: 1.0,
                of_terms: 2f64.powi(-20),
            },
            // A term's factor silu(z)·rstd is rounded: 4 · 2⁻²⁴ of the term at most, doubled.
            Output::Dw => Bound {
                ulps: 1.0,
                of_terms: 2f64.powi(-21),
            },
        }
    }

    /// The share of elements that equal the exact value rounded once, at least, for ordinary
    /// inputs and elements whose terms cancel little ([`Report::uncancelled`]); `None` where the
    /// contract asks for none.
    #[must_use]
    pub fn least_correctly_rounded(self, dtype: Dtype) -> Option<f64> {
        match (self, dtype) {
            (Output::H | Output::Rstd, _) => None,
            (Output::Dw, _) => Some(0.9999),
            // What is rounded to FP32 at every step is seldom the exact value rounded once.
            (_, Dtype::F32) => None,
            // Errors are eight times as large beside units of FP16 as beside those of BF16.
            (Output::Dx | Output::Dz, Dtype::F16) => Some(0.99),
            (Output::Y | Output::Dx | Output::Dz, _) => Some(0.999),
        }
    }

    fn argument(self) -> Argument {
        match self {
            Output::H => Argument::H,
            Output::Y => Argument::Y,
            Output::Rstd => Argument::Rstd,
            Output::Dx => Argument::Dx,
            Output::Dw => Argument::Dw,
            Output::Dz => Argument::Dz,
        }
    }
}

/// An element and what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// Index of the element.
    pub index: u64,
    /// What was found.
    pub found: f64,
    /// The FP64 reference.
    pub exact: f64,
    /// The largest error that is accepted.
    pub bound: f64,
}

/// The accuracy of one output. Numbers that are not finite become `null` in JSON: NaN where the
/// reference has a number, or a number where it has NaN, makes errors infinite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Which output.
    pub output: Output,
    /// Its elements' type; `None` when there were none.
    #[serde(skip)]
    pub dtype: Option<Dtype>,
    /// Elements compared.
    pub elements: u64,
    /// Largest error in units in the last place of the exact value; up to 0.5 is unavoidable.
    /// May be large where terms cancel: `bound_share` judges.
    pub max_ulp: f64,
    /// Share of the elements that equal the exact value rounded once (1 when there are none).
    pub correctly_rounded: f64,
    /// Elements whose terms cancel little: their sum is at most 4 times the exact value. Of these
    /// the contract promises a share of correctly rounded ones.
    pub uncancelled: u64,
    /// How many of those do not equal the exact value rounded once.
    pub uncancelled_misrounded: u64,
    /// Elements beyond the bound.
    pub out_of_bound: u64,
    /// Largest error as a share of its bound.
    pub bound_share: f64,
    /// Largest error as a share of 1e-4 + 1e-4·|exact|.
    pub worst_budget: f64,
    /// ‖found − exact‖ / ‖exact‖ (Euclidean).
    pub rel_l2: f64,
    /// The element whose share of the bound is largest; `None` when there are none.
    pub worst: Option<Worst>,
    /// Whether every byte equals the golden implementation's; `None` if not compared.
    pub bits_match_golden: Option<bool>,
}

impl Report {
    /// Whether every element is within its bound, and no byte differs from the golden
    /// implementation if compared.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.out_of_bound == 0 && self.bits_match_golden != Some(false)
    }

    /// Whether, besides, as many elements are correctly rounded as the contract promises for
    /// ordinary inputs.
    #[must_use]
    pub fn ok_for_ordinary_inputs(&self) -> bool {
        let least = self
            .dtype
            .and_then(|dtype| self.output.least_correctly_rounded(dtype))
            .unwrap_or(0.0);
        // One in few elements says nothing about shares.
        let allowed = 1.0 + (1.0 - least) * self.uncancelled as f64;
        self.ok() && self.uncancelled_misrounded as f64 <= allowed
    }
}

/// Compares a whole output with the reference, and with the golden implementation if given.
///
/// # Errors
/// - [`Error::Length`] when `exact`, `terms` or `golden` has another length than `found`.
pub fn compare<T: Element>(
    output: Output,
    found: &[T],
    exact: &[f64],
    terms: Option<&[f64]>,
    golden: Option<&[T]>,
) -> Result<Report> {
    let mut accuracy = Accuracy::new(output);
    accuracy.add(found, exact, terms)?;
    if let Some(golden) = golden {
        accuracy.add_golden(found, golden)?;
    }
    Ok(accuracy.report())
}

/// The accuracy of an output that comes in blocks, in order.
#[derive(Clone, Debug)]
pub struct Accuracy {
    output: Output,
    /// What was asked for; else the output's own, by type.
    bound: Option<Bound>,
    dtype: Option<Dtype>,
    totals: Totals,
    differences: Option<Differences>,
}

impl Accuracy {
    /// Nothing compared yet.
    #[must_use]
    pub fn new(output: Output) -> Self {
        Self {
            output,
            bound: None,
            dtype: None,
            totals: Totals::default(),
            differences: None,
        }
    }

    /// Nothing compared yet; every element is held to `bound`.
    #[must_use]
    pub fn with_bound(output: Output, bound: Bound) -> Self {
        Self {
            output,
            bound: Some(bound),
            dtype: None,
            totals: Totals::default(),
            differences: None,
        }
    }

    /// Compares the next elements with the reference. `terms` are the sums of absolute values in
    /// which [`Bound::of_terms`] counts; `None` where nothing cancels.
    ///
    /// # Errors
    /// - [`Error::Length`] when `exact` or `terms` has another length than `found`.
    pub fn add<T: Element>(
        &mut self,
        found: &[T],
        exact: &[f64],
        terms: Option<&[f64]>,
    ) -> Result<()> {
        /// Elements of a task. Tasks join in order: reports do not depend on the threads.
        const TASK: usize = 1 << 15;
        self.check_length(found.len(), exact.len())?;
        self.check_length(found.len(), terms.map_or(found.len(), <[f64]>::len))?;
        self.dtype = Some(T::DTYPE);
        let bound = self.bound.unwrap_or_else(|| self.output.bound(T::DTYPE));
        let start = self.totals.elements;
        let tasks = found
            .par_chunks(TASK)
            .zip(exact.par_chunks(TASK))
            .enumerate();
        let totals: Vec<Totals> = tasks
            .map(|(task, (found, exact))| {
                let first = task * TASK;
                let terms = terms.map(|terms| &terms[first..]);
                Totals::new(start + first as u64, bound, found, exact, terms)
            })
            .collect();
        totals.iter().for_each(|totals| self.totals.join(totals));
        Ok(())
    }

    /// Compares the bits of the next elements with the golden implementation's.
    ///
    /// # Errors
    /// - [`Error::Length`] when the lengths differ.
    pub fn add_golden<T: Element>(&mut self, found: &[T], golden: &[T]) -> Result<()> {
        self.check_length(found.len(), golden.len())?;
        let differences = self.differences.get_or_insert_default();
        differences.add(found, golden);
        Ok(())
    }

    /// How many elements differ in their bits from the golden implementation, and the first of
    /// them; `None` if not compared.
    #[must_use]
    pub fn differences(&self) -> Option<Differences> {
        self.differences
    }

    /// What was found so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let Totals {
            elements,
            rounded,
            uncancelled,
            uncancelled_misrounded,
            out_of_bound,
            ..
        } = self.totals;
        let ratio = |part: f64, whole: f64| if part == 0.0 { 0.0 } else { part / whole };
        Report {
            output: self.output,
            dtype: self.dtype,
            elements,
            max_ulp: self.totals.max_ulp,
            correctly_rounded: if elements == 0 {
                1.0
            } else {
                rounded as f64 / elements as f64
            },
            uncancelled,
            uncancelled_misrounded,
            out_of_bound,
            bound_share: self.totals.bound_share,
            worst_budget: self.totals.worst_budget,
            rel_l2: ratio(self.totals.error_squares, self.totals.exact_squares).sqrt(),
            worst: self.totals.worst,
            bits_match_golden: self.differences.map(|differences| differences.count == 0),
        }
    }

    fn check_length(&self, expected: usize, found: usize) -> Result<()> {
        if found != expected {
            let argument = self.output.argument();
            return Err(Error::Length {
                argument,
                found: found as u64,
                expected: expected as u64,
            });
        }
        Ok(())
    }
}

/// Elements whose bits differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Differences {
    /// Elements compared.
    pub elements: u64,
    /// How many differ.
    pub count: u64,
    /// Index of the first that differs.
    pub first: Option<u64>,
}

impl Differences {
    fn add<T: Element>(&mut self, found: &[T], golden: &[T]) {
        // One comparison of all bytes tells that nothing differs, which is the rule.
        if bytemuck::cast_slice::<T, u8>(found) != bytemuck::cast_slice::<T, u8>(golden) {
            let pairs = found.iter().zip(golden).enumerate();
            for (i, _) in
                pairs.filter(|(_, (a, b))| bytemuck::bytes_of(*a) != bytemuck::bytes_of(*b))
            {
                self.count += 1;
                self.first.get_or_insert(self.elements + i as u64);
            }
        }
        self.elements += found.len() as u64;
    }
}

#[derive(Clone, Debug, Default)]
struct Totals {
    elements: u64,
    max_ulp: f64,
    rounded: u64,
    uncancelled: u64,
    uncancelled_misrounded: u64,
    out_of_bound: u64,
    bound_share: f64,
    worst_budget: f64,
    error_squares: f64,
    exact_squares: f64,
    worst: Option<Worst>,
}

impl Totals {
    fn new<T: Element>(
        start: u64,
        bound: Bound,
        found: &[T],
        exact: &[f64],
        terms: Option<&[f64]>,
    ) -> Self {
        let mut totals = Totals::default();
        for (i, (found, &exact)) in found.iter().zip(exact).enumerate() {
            let terms = terms.map_or(0.0, |terms| terms[i]);
            totals.add::<T>(start + i as u64, bound, found.to_f64(), exact, terms);
        }
        totals
    }

    fn add<T: Element>(&mut self, index: u64, bound: Bound, found: f64, exact: f64, terms: f64) {
        let error = distance::<T>(found, exact);
        let unit = ulp::<T>(exact);
        // Terms that are not finite excuse nothing.
        let terms = if terms.is_finite() { terms } else { 0.0 };
        let bound = (bound.ulps * unit).max(bound.of_terms * terms);
        let share = error / bound;
        self.elements += 1;
        self.max_ulp = self.max_ulp.max(error / unit);
        let rounded = round::<T>(exact) == found || (found.is_nan() && exact.is_nan());
        self.rounded += u64::from(rounded);
        // An error of the terms' size moves the rounding of what is left of them more often.
        if terms <= 4.0 * exact.abs() {
            self.uncancelled += 1;
            self.uncancelled_misrounded += u64::from(!rounded);
        }
        self.out_of_bound += u64::from(share > 1.0);
        if self.worst.is_none() || share > self.bound_share {
            self.bound_share = share;
            self.worst = Some(Worst {
                index,
                found,
                exact,
                bound,
            });
        }
        let budget = if error < f64::INFINITY {
            1e-4 + 1e-4 * exact.abs()
        } else {
            1.0
        };
        self.worst_budget = self.worst_budget.max(error / budget);
        self.error_squares += error * error;
        if exact.is_finite() {
            self.exact_squares += exact * exact;
        }
    }

    /// Joins the totals of later elements.
    fn join(&mut self, later: &Totals) {
        self.elements += later.elements;
        self.max_ulp = self.max_ulp.max(later.max_ulp);
        self.rounded += later.rounded;
        self.uncancelled += later.uncancelled;
        self.uncancelled_misrounded += later.uncancelled_misrounded;
        self.out_of_bound += later.out_of_bound;
        if self.worst.is_none() || later.bound_share > self.bound_share {
            self.bound_share = later.bound_share;
            self.worst = later.worst;
        }
        self.worst_budget = self.worst_budget.max(later.worst_budget);
        self.error_squares += later.error_squares;
        self.exact_squares += later.exact_squares;
    }
}
