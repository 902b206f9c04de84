//! What a call asks for, as far as its plan depends on it.

use super::Alignment;
use crate::gated::GatedForwardArgs;
use crate::op::{BackwardArgs, ForwardArgs};
use crate::view::RowsView;

/// Of a forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ForwardForm {
    /// h = x + residual is normalised, and stored.
    pub residual: bool,
    /// How rows and weight lie.
    pub alignment: Alignment,
    /// Rows of some matrix come in groups.
    pub grouped: bool,
}

/// Of a backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BackwardForm {
    /// dh is added to dx.
    pub residual: bool,
    /// How rows and weight lie.
    pub alignment: Alignment,
    /// Rows of some matrix come in groups.
    pub grouped: bool,
    /// Which gradients are wanted.
    pub gradients: Gradients,
    /// dx lies in the place of dy or x.
    pub in_place: bool,
    /// Where rstd comes from.
    pub rstd: Rstd,
}

/// Which gradients a backward gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gradients {
    /// dx and dw.
    #[default]
    Both,
    /// dx.
    Input,
    /// dw.
    Weight,
}

/// Where a backward has rstd from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rstd {
    /// The forward's was kept.
    #[default]
    Kept,
    /// It is worked out again.
    Recomputed,
}

/// Where the rows of a gated forward's matrices lie: row r is head r mod heads of token r / heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Spacing {
    /// x, z and y have one distance each between neighbouring rows, as packed tensors have.
    #[default]
    Even,
    /// Tokens lie further apart than their heads, as in a slice of a wider projection.
    Any,
}

impl ForwardForm {
    /// The form of a call.
    #[must_use]
    pub fn of(args: &ForwardArgs) -> Self {
        let (residual, h) = (args.residual.as_ref(), args.h.as_ref());
        let matrices = [Some(&args.x), residual, h, Some(&args.y)];
        Self {
            residual: args.residual.is_some(),
            alignment: Alignment::of(matrices, args.w.as_ref()),
            grouped: grouped(matrices),
        }
    }

    /// Every form of a call with or without a residual.
    pub fn every(residual: bool) -> impl Iterator<Item = Self> {
        let forms = pairs(Alignment::EVERY, [false, true]);
        forms.map(move |(alignment, grouped)| Self {
            residual,
            alignment,
            grouped,
        })
    }
}

impl BackwardForm {
    /// The form of a call.
    #[must_use]
    pub fn of(args: &BackwardArgs) -> Self {
        let (dh, dx) = (args.dh.as_ref(), args.dx.as_ref());
        let matrices = [Some(&args.dy), Some(&args.x), dh, dx];
        let over = |other: &RowsView| dx.is_some_and(|dx| dx.same_memory(other));
        Self {
            residual: args.dh.is_some(),
            alignment: Alignment::of(matrices, args.w.as_ref()),
            grouped: grouped(matrices),
            gradients: match (&args.dx, &args.dw) {
                (Some(_), None) => Gradients::Input,
                (None, Some(_)) => Gradients::Weight,
                _ => Gradients::Both,
            },
            in_place: over(&args.dy) || over(&args.x),
            rstd: match args.rstd {
                Some(_) => Rstd::Kept,
                None => Rstd::Recomputed,
            },
        }
    }

    /// Every form of a call with or without a residual.
    pub fn every(residual: bool) -> impl Iterator<Item = Self> {
        let gradients = [Gradients::Both, Gradients::Input, Gradients::Weight];
        let layouts = pairs(pairs(Alignment::EVERY, [false, true]), [false, true]);
        let forms = pairs(pairs(layouts, gradients), [Rstd::Kept, Rstd::Recomputed]);
        forms.map(
            move |((((alignment, grouped), in_place), gradients), rstd)| Self {
                residual,
                alignment,
                grouped,
                gradients,
                in_place,
                rstd,
            },
        )
    }
}

impl Spacing {
    /// The spacing of a call.
    #[must_use]
    pub fn of(args: &GatedForwardArgs) -> Self {
        let views = [&args.x, &args.z, &args.y];
        if views.iter().all(|view| view.row_stride().is_some()) {
            Self::Even
        } else {
            Self::Any
        }
    }
}

fn grouped(matrices: [Option<&RowsView>; 4]) -> bool {
    let mut matrices = matrices.into_iter().flatten();
    matrices.any(|view| view.groups.is_some() && view.normal().groups.is_some())
}

fn pairs<A: Clone, B: Clone>(
    first: impl IntoIterator<Item = A>,
    second: impl IntoIterator<Item = B> + Clone,
) -> impl Iterator<Item = (A, B)> {
    first
        .into_iter()
        .flat_map(move |a| second.clone().into_iter().map(move |b| (a.clone(), b)))
}
