//! What may be said of an output: its kind, and whose place it takes.

use super::{Case, Draw, Layouts};
use crate::op::WeightGradient;
use crate::view::VectorView;

/// How dw is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightOutput {
    /// In FP32.
    #[default]
    Overwritten,
    /// Added to FP32 values.
    Accumulated,
    /// In FP32 and in BF16.
    OverwrittenAndBf16,
    /// Added to FP32 values, and in BF16.
    AccumulatedAndBf16,
    /// In BF16.
    Bf16,
}

impl WeightOutput {
    const ALL: [WeightOutput; 5] = [
        WeightOutput::Overwritten,
        WeightOutput::Accumulated,
        WeightOutput::OverwrittenAndBf16,
        WeightOutput::AccumulatedAndBf16,
        WeightOutput::Bf16,
    ];

    pub(super) fn draw(draw: &mut Draw<'_>) -> Self {
        draw.one_of(&Self::ALL)
    }

    /// Whether dw is added to.
    #[must_use]
    pub fn accumulates(self) -> bool {
        use WeightOutput::{Accumulated, AccumulatedAndBf16};
        matches!(self, Accumulated | AccumulatedAndBf16)
    }

    /// Whether there is an FP32 output.
    #[must_use]
    pub fn has_f32(self) -> bool {
        self != WeightOutput::Bf16
    }

    /// Whether there is a BF16 output.
    #[must_use]
    pub fn has_bf16(self) -> bool {
        use WeightOutput::{AccumulatedAndBf16, Bf16, OverwrittenAndBf16};
        matches!(self, OverwrittenAndBf16 | AccumulatedAndBf16 | Bf16)
    }

    pub(super) fn view(self, f32: VectorView, bf16: VectorView) -> WeightGradient {
        match self {
            WeightOutput::Overwritten => WeightGradient::overwrite(f32),
            WeightOutput::Accumulated => WeightGradient::accumulate(f32),
            WeightOutput::OverwrittenAndBf16 => WeightGradient::overwrite(f32).and_bf16(bf16),
            WeightOutput::AccumulatedAndBf16 => WeightGradient::accumulate(f32).and_bf16(bf16),
            WeightOutput::Bf16 => WeightGradient::overwrite(bf16),
        }
    }
}

/// Outputs that take the place of an input. Where there is no such input or output, nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InPlace {
    /// Whose place y takes.
    pub y: Option<ForwardInput>,
    /// Whose place h takes, if y does not.
    pub h: Option<ForwardInput>,
    /// Whose place dx takes.
    pub dx: Option<BackwardInput>,
}

/// A matrix of the forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ForwardInput {
    X,
    Residual,
}

/// A matrix of the backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BackwardInput {
    Dy,
    X,
    Dh,
}

impl InPlace {
    /// Every other output takes a place, if all inputs are there.
    pub(super) fn draw(draw: &mut Draw<'_>) -> Self {
        use BackwardInput::{Dh, Dy};
        use ForwardInput::{Residual, X};
        Self {
            y: draw.one_of(&[None, None, Some(X), Some(Residual)]),
            h: draw.one_of(&[None, None, Some(X), Some(Residual)]),
            dx: draw.one_of(&[None, None, None, Some(Dy), Some(BackwardInput::X), Some(Dh)]),
        }
    }
}

impl Case {
    /// Whose places are taken, and where matrices lie then: an input as the output that takes its
    /// place, since outputs are laid in fewer ways.
    #[must_use]
    pub fn places(&self) -> (InPlace, Layouts) {
        let there = |input: &ForwardInput| self.residual || *input == ForwardInput::X;
        let y = self.in_place.y.filter(there);
        let h = self
            .in_place
            .h
            .filter(|input| self.residual && Some(*input) != y);
        let there = |input: &BackwardInput| self.residual || *input != BackwardInput::Dh;
        let dx = self
            .in_place
            .dx
            .filter(|input| self.gradients.0 && there(input));

        let mut layouts = self.layouts;
        for (output, input) in [(layouts.y, y), (layouts.h, h)] {
            match input {
                Some(ForwardInput::X) => layouts.x = output,
                Some(ForwardInput::Residual) => layouts.residual = output,
                None => {}
            }
        }
        match dx {
            Some(BackwardInput::Dy) => layouts.dy = layouts.dx,
            Some(BackwardInput::Dh) => layouts.dh = layouts.dx,
            // h, or x, where y may have lain before.
            Some(BackwardInput::X) if self.residual => layouts.dx = layouts.h,
            Some(BackwardInput::X) if y.is_some() => layouts.dx = layouts.x,
            Some(BackwardInput::X) => layouts.x = layouts.dx,
            None => {}
        }
        (InPlace { y, h, dx }, layouts)
    }
}
