//! Where the inputs of a check come from.

use super::Args;
use crate::cli::error::{CliError, Result};
use crate::cli::{dtype_name, tensors};
use cake_rmsnorm::inputs::{Inputs, Spec};
use cake_rmsnorm::{Dtype, Element, RmsNorm};

/// Layer 12's second norm of SmolLM2-135M in training, with its massive activations.
const TRAINING: &[u8] =
    include_bytes!("../../../examples/data/smollm2-135m-blk-12-ffn_norm.safetensors");
const TRAINING_NAME: &str = "smollm2-135m-blk-12-ffn_norm.safetensors";

/// eps where neither an option nor a file gives one.
const DEFAULT_EPS: f32 = 1e-6;
const DEFAULT_ROWS: u64 = 1024;
const DEFAULT_HIDDEN: u64 = 4096;

/// Inputs that are chosen, and perhaps not made yet.
pub struct Source {
    /// T.
    pub rows: u64,
    /// H.
    pub hidden: u64,
    /// The matrices' type.
    pub input: Dtype,
    /// The weight's type.
    pub weight: Dtype,
    /// eps of the operator.
    pub eps: f32,
    /// Whether there is a residual.
    pub residual: bool,
    /// The inputs in words, for the reader.
    pub description: String,
    /// Whether the accuracy of ordinary inputs may be asked for, beside the bounds of all inputs.
    pub ordinary: bool,
    origin: Origin,
}

enum Origin {
    Loaded(Box<Inputs>),
    Seeded(u64),
}

impl Source {
    /// The inputs that the arguments ask for. Files are read, seeded inputs not made yet: the
    /// shape may still be refused.
    pub fn choose(args: &Args) -> Result<Source> {
        if let Some(path) = &args.input {
            let stored = tensors::read(path)?;
            let source = Source::loaded(stored, args, path.display().to_string(), false);
            return source.with_weight_of(args, path.display().to_string());
        }
        let shape = args.rows.is_some() || args.hidden.is_some();
        if shape || args.seed.is_some() || args.dtype.is_some() {
            return Ok(Source::seeded(args));
        }
        if args.residual {
            return Err(CliError::Usage {
                option: "--residual",
                reason: "the embedded tensors have no residual: give --rows and --hidden, or \
                         --input with a file that has one"
                    .to_owned(),
            });
        }
        let mut stored = tensors::parse(TRAINING_NAME, TRAINING)?;
        let mut name = format!("{TRAINING_NAME} (embedded, real training tensors)");
        if let Some(narrow @ (Dtype::Bf16 | Dtype::F16)) = args.weight.map(Dtype::from) {
            stored.inputs.w = stored.inputs.w.to_dtype(narrow);
            name.push_str(&format!(", w rounded to {narrow}"));
        }
        Ok(Source::loaded(stored, args, name, true))
    }

    fn loaded(stored: tensors::Stored, args: &Args, description: String, ordinary: bool) -> Source {
        let inputs = stored.inputs;
        Source {
            rows: inputs.rows as u64,
            hidden: inputs.hidden as u64,
            input: Dtype::Bf16,
            weight: inputs.w.dtype(),
            eps: args.eps.or(stored.eps).unwrap_or(DEFAULT_EPS),
            residual: inputs.residual.is_some(),
            description,
            ordinary,
            origin: Origin::Loaded(Box::new(inputs)),
        }
    }

    /// A user's file must be what the other options say.
    fn with_weight_of(self, args: &Args, file: String) -> Result<Source> {
        match args.weight.map(Dtype::from) {
            Some(asked) if asked != self.weight => {
                return Err(CliError::Tensor {
                    file,
                    tensor: "w",
                    found: self.weight.to_string(),
                    accepted: format!("{asked} (--weight {})", dtype_name(asked)),
                });
            }
            _ => {}
        }
        if args.residual && !self.residual {
            return Err(CliError::Usage {
                option: "--residual",
                reason: format!("{file} has no tensor residual"),
            });
        }
        Ok(self)
    }

    fn seeded(args: &Args) -> Source {
        let seed = args.seed.unwrap_or(0);
        Source {
            rows: args.rows.unwrap_or(DEFAULT_ROWS),
            hidden: args.hidden.unwrap_or(DEFAULT_HIDDEN),
            input: args.dtype.map_or(Dtype::Bf16, Dtype::from),
            weight: args.weight.map_or(Dtype::F32, Dtype::from),
            eps: args.eps.unwrap_or(DEFAULT_EPS),
            residual: args.residual,
            description: format!("seed {seed} (ordinary, large-outlier and tiny rows)"),
            ordinary: true,
            origin: Origin::Seeded(seed),
        }
    }

    /// The operator of the inputs.
    pub fn operator(&self, weight_offset: f32) -> Result<RmsNorm> {
        let builder = RmsNorm::builder(self.hidden).input(self.input);
        let builder = builder.weight(self.weight).weight_offset(weight_offset);
        Ok(builder.eps(self.eps).build()?)
    }

    /// The inputs, made now where they are seeded; `E` is their type.
    pub fn inputs<E: Element>(self) -> Result<Inputs<E>> {
        let seed = match self.origin {
            Origin::Loaded(inputs) => return Ok(inputs.to_type()),
            Origin::Seeded(seed) => seed,
        };
        let none = || CliError::Memory {
            purpose: "one input tensor",
            bytes: self
                .rows
                .saturating_mul(self.hidden)
                .saturating_mul(self.input.bytes()),
        };
        let spec = Spec {
            rows: usize::try_from(self.rows).map_err(|_| none())?,
            hidden: self.hidden as usize,
            weight: self.weight,
            residual: self.residual,
            seed,
        };
        spec.generate_as().map_err(|_| none())
    }
}
