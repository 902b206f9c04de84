//! Cases whose rows are further apart than 2³¹ elements.

use super::{BackwardInput, Case, Data, InPlace, Layout, Layouts, Step, WeightOutput};
use crate::view::Dtype;

/// Elements between rows: more than 2³¹, no power of two, a multiple of 16 bytes of any type.
const FAR: usize = (1 << 31) + 4104;

impl Case {
    /// Cases whose rows are more than 2³¹ elements apart, forwards and backwards in memory, in every
    /// family of kernels: of each width, dtype and form a few rows. A matrix takes up to 24 GiB of
    /// addresses, in which little is touched.
    #[must_use]
    pub fn far() -> Vec<Self> {
        use Dtype::{Bf16, F16, F32};
        // The second of a pair cannot be read or written 16 bytes at a time.
        let widths = [
            (Bf16, 256, 0),
            (Bf16, 512, 0),
            (Bf16, 520, 0),
            (Bf16, 2048, 0),
            (Bf16, 8192, 0),
            (Bf16, 8200, 0),
            (Bf16, 16_392, 0),
            (Bf16, 2048, 3),
            (F16, 520, 0),
            (F16, 77, 1),
            (F32, 520, 0),
            (F32, 33, 1),
        ];
        let mut cases = Vec::new();
        for (input, hidden, offset) in widths {
            let options = [
                (false, None, false),
                (true, Some(BackwardInput::Dy), false),
                (false, Some(BackwardInput::X), true),
            ];
            for (residual, dx, grouped) in options {
                let seed = cases.len() as u64;
                cases.push(case(input, hidden, offset, residual, dx, grouped, seed));
            }
        }
        cases
    }
}

fn case(
    input: Dtype,
    hidden: usize,
    offset: usize,
    residual: bool,
    dx: Option<BackwardInput>,
    grouped: bool,
    seed: u64,
) -> Case {
    // With the offset no row but the first starts where the first does.
    let gap = FAR + offset;
    let layout = |step| Layout { offset, step };
    let apart = match grouped {
        true => layout(Step::Grouped { rows: 2, gap }),
        false => layout(Step::Gap(gap)),
    };
    let backwards = layout(Step::Reversed(gap));
    Case {
        rows: if grouped { 4 } else { 3 },
        hidden,
        input,
        weight: Some(Dtype::F32),
        weight_offset: 0.0,
        residual,
        eps: 1e-6,
        x: Data::Ordinary,
        dy: Data::Ordinary,
        layouts: Layouts {
            x: apart,
            residual: backwards,
            h: apart,
            y: apart,
            dy: if grouped { apart } else { backwards },
            dh: backwards,
            dx: apart,
        },
        weight_start: 0,
        gradients: (true, true),
        dw: WeightOutput::Overwritten,
        keeps_rstd: !grouped,
        in_place: InPlace {
            dx,
            ..InPlace::default()
        },
        seed,
    }
}
