//! Drawn cases: a forward and a backward of any shape, types, strides, alignment and data, run on
//! a backend and judged.
//!
//! Outputs must have the golden implementation's bits, which are computed from packed copies of the
//! rows, and where the data allow it ([`Case::is_bounded`]) lie within the bounds of the FP64
//! reference. NaN lies around every buffer and in every gap between rows: what is read there shows in
//! the outputs, and what is written there is found.

mod data;
mod far;
mod guarded;
mod layout;
mod options;
mod run;
mod values;

pub use data::Data;
pub use guarded::{Device, Memory};
pub use layout::{Layout, Step};
pub use options::{BackwardInput, ForwardInput, InPlace, WeightOutput};

use crate::op::{MAX_HIDDEN, RmsNorm};
use crate::view::Dtype;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::fmt;

/// A forward and a backward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// T.
    pub rows: usize,
    /// H, at least 1.
    pub hidden: usize,
    /// Type of the matrices.
    pub input: Dtype,
    /// Type of the weight, if there is one.
    pub weight: Option<Dtype>,
    /// Added to every weight.
    pub weight_offset: f32,
    /// Whether it is the residual form, with a gradient of h.
    pub residual: bool,
    /// eps.
    pub eps: f32,
    /// What x holds.
    pub x: Data,
    /// What dy holds.
    pub dy: Data,
    /// Where the matrices lie.
    pub layouts: Layouts,
    /// Where the weight starts: elements behind a multiple of 16 bytes.
    pub weight_start: usize,
    /// Which gradients are wanted: dx, dw. At least one.
    pub gradients: (bool, bool),
    /// How dw is given, where it is wanted.
    pub dw: WeightOutput,
    /// Whether the forward keeps rstd for the backward.
    pub keeps_rstd: bool,
    /// Outputs that take the place of an input.
    pub in_place: InPlace,
    /// Names the values.
    pub seed: u64,
}

/// Where each matrix lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Layouts {
    pub x: Layout,
    pub residual: Layout,
    pub h: Layout,
    pub y: Layout,
    pub dy: Layout,
    pub dh: Layout,
    pub dx: Layout,
}

impl Case {
    /// The case of a seed, with at most about `elements` elements a matrix (at least 1).
    #[must_use]
    pub fn from_seed(seed: u64, elements: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let draw = &mut Draw(&mut rng);
        let hidden = draw.hidden(elements);
        let most = elements / hidden;
        let rows = match draw.below(8) {
            0 => draw.below(3),
            1..4 => draw.below(17),
            _ => draw.magnitude(most),
        };
        let dtypes = [Dtype::Bf16, Dtype::F16, Dtype::F32];
        let input = draw.one_of(&dtypes);
        let weight = (draw.below(6) > 0).then(|| draw.one_of(&dtypes));
        let eps = draw.one_of(&[1e-6, 1e-5, 0.0, 1e-30, 1e30]);
        let x = draw.one_of(&Data::ALL);
        let dy = match draw.below(4) {
            0 => draw.one_of(&Data::ALL),
            _ => Data::Ordinary,
        };
        // Every other case has nothing that rules out 16-byte access.
        let aligned = draw.below(2) == 0;
        let hidden = match aligned && draw.below(4) > 0 {
            true => hidden.next_multiple_of(8).min(MAX_HIDDEN as usize),
            false => hidden,
        };
        let rows = rows.min(most.max(1));
        // All matrices that have groups have the same.
        let group = 1 + draw.below(5);
        let group = if rows > 0 && rows.is_multiple_of(group) {
            group
        } else {
            0
        };
        let input_layout = |draw: &mut Draw<'_>| Layout::draw(draw, group, aligned, true);
        let output_layout = |draw: &mut Draw<'_>| Layout::draw(draw, group, aligned, false);
        let layouts = Layouts {
            x: input_layout(draw),
            residual: input_layout(draw),
            dy: input_layout(draw),
            dh: input_layout(draw),
            h: output_layout(draw),
            y: output_layout(draw),
            dx: output_layout(draw),
        };
        let gradients = match (draw.below(6), weight) {
            (0, _) | (_, None) => (true, false),
            (1, _) => (false, true),
            _ => (true, true),
        };
        let weight_offset = match weight {
            Some(_) if draw.below(3) == 0 => 1.0,
            _ => 0.0,
        };
        let residual = draw.below(2) == 0;
        Self {
            rows,
            hidden,
            input,
            weight,
            weight_offset,
            residual,
            eps,
            x,
            dy,
            layouts,
            weight_start: if aligned { 0 } else { draw.below(8) },
            gradients,
            keeps_rstd: draw.below(4) > 0,
            dw: WeightOutput::draw(draw),
            in_place: InPlace::draw(draw),
            seed,
        }
    }

    /// The operator.
    ///
    /// # Errors
    /// - As [`crate::RmsNormBuilder::build`].
    pub fn operator(&self) -> crate::Result<RmsNorm> {
        let builder = RmsNorm::builder(self.hidden as u64).input(self.input);
        let builder = match self.weight {
            Some(weight) => builder.weight(weight).weight_offset(self.weight_offset),
            None => builder.no_weight(),
        };
        builder.eps(self.eps).build()
    }

    /// Whether there is a weight whose gradient is wanted.
    #[must_use]
    pub fn wants_dw(&self) -> bool {
        self.gradients.1 && self.weight.is_some()
    }

    /// Whether the bounds of docs/numerics.md hold: dy is ordinary, so that no product but of tiny
    /// elements of x leaves the range of FP32 ("Limits" there).
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.dy == Data::Ordinary
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "T={} H={} {} w {:?} + {}{} eps={:e} x {:?} dy {:?}, {:?}, w at {}, gradients {:?}, \
             dw {:?}, {:?}, rstd kept {}, seed {}",
            self.rows,
            self.hidden,
            self.input,
            self.weight,
            self.weight_offset,
            if self.residual { " residual" } else { "" },
            self.eps,
            self.x,
            self.dy,
            self.layouts,
            self.weight_start,
            self.gradients,
            self.dw,
            self.in_place,
            self.keeps_rstd,
            self.seed,
        )
    }
}

/// Draws by integer arithmetic alone: a seed is the same case everywhere.
struct Draw<'a>(&'a mut ChaCha8Rng);

impl Draw<'_> {
    fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// From 0 to `bound` − 1; 0 when `bound` is 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// From 1 to `most`, all magnitudes alike.
    fn magnitude(&mut self, most: usize) -> usize {
        let log2 = self.below(most.max(1).ilog2() as usize + 1);
        let value = (1 << log2) + self.below(1 << log2);
        value.min(most.max(1))
    }

    /// Edges of tiles and of lanes, and any.
    fn hidden(&mut self, elements: usize) -> usize {
        let widest = elements.min(MAX_HIDDEN as usize);
        let hidden = match self.below(4) {
            0 => 1 + self.below(40),
            1 => 256 * (1 + self.below(12)) + self.below(17) - 8,
            _ => self.magnitude(widest),
        };
        hidden.min(widest)
    }
}
