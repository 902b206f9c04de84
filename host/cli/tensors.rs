//! Reading inputs from safetensors files, and writing results to them.

use super::error::{CliError, Result};
use cake_rmsnorm::golden::{Backward, Forward};
use cake_rmsnorm::inputs::{Inputs, Weight};
use cake_rmsnorm::{Dtype, Element};
use half::bf16;
use safetensors::tensor::{Dtype as StoredDtype, SafeTensors, TensorView};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Inputs as a file holds them, with the eps of its metadata.
pub struct Stored {
    /// x, dy, w, and residual and dh where the file has them.
    pub inputs: Inputs,
    /// Metadata `eps`.
    pub eps: Option<f32>,
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Stored> {
    let bytes = fs::read(path).map_err(|source| CliError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&path.display().to_string(), &bytes)
}

/// Parses a file's bytes; `file` names it in errors.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Stored> {
    let invalid = |error: safetensors::SafeTensorError| CliError::Safetensors {
        file: file.to_owned(),
        detail: error.to_string(),
    };
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
    let tensors = SafeTensors::deserialize(bytes).map_err(invalid)?;
    let reader = Reader { file, tensors };

    let x = reader.required("x")?;
    let (rows, hidden) = reader.matrix_shape("x", &x)?;
    let dy = reader.required("dy")?;
    let inputs = Inputs {
        rows,
        hidden,
        x: reader.matrix("x", &x, [rows, hidden])?,
        residual: reader.optional_matrix("residual", [rows, hidden])?,
        dy: reader.matrix("dy", &dy, [rows, hidden])?,
        dh: reader.optional_matrix("dh", [rows, hidden])?,
        w: reader.weight(hidden)?,
    };
    let eps = header
        .metadata()
        .as_ref()
        .and_then(|metadata| metadata.get("eps"));
    let eps = eps.map(|text| reader.eps(text)).transpose()?;
    Ok(Stored { inputs, eps })
}

struct Reader<'a> {
    file: &'a str,
    tensors: SafeTensors<'a>,
}

impl<'a> Reader<'a> {
    fn required(&self, tensor: &'static str) -> Result<TensorView<'a>> {
        self.tensors.tensor(tensor).map_err(|_| {
            let mut names = self.tensors.names();
            names.sort_unstable();
            let found = if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            };
            CliError::MissingTensor {
                file: self.file.to_owned(),
                tensor,
                found,
            }
        })
    }

    fn matrix_shape(&self, tensor: &'static str, view: &TensorView) -> Result<(usize, usize)> {
        match *view.shape() {
            [rows, hidden] => Ok((rows, hidden)),
            ref other => {
                Err(self.refuse(tensor, shape(other), "a matrix [rows, hidden]".to_owned()))
            }
        }
    }

    fn matrix(
        &self,
        tensor: &'static str,
        view: &TensorView,
        expected: [usize; 2],
    ) -> Result<Vec<bf16>> {
        if view.dtype() != StoredDtype::BF16 {
            return Err(self.refuse(tensor, view.dtype().to_string(), "BF16".to_owned()));
        }
        if *view.shape() != expected {
            let accepted = format!("{} as x is", shape(&expected));
            return Err(self.refuse(tensor, shape(view.shape()), accepted));
        }
        Ok(values(view.data()))
    }

    fn optional_matrix(
        &self,
        tensor: &'static str,
        expected: [usize; 2],
    ) -> Result<Option<Vec<bf16>>> {
        match self.tensors.tensor(tensor) {
            Ok(view) => self.matrix(tensor, &view, expected).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn weight(&self, hidden: usize) -> Result<Weight> {
        let view = self.required("w")?;
        if *view.shape() != [hidden] {
            let accepted = format!("[{hidden}] as x is [rows, {hidden}]");
            return Err(self.refuse("w", shape(view.shape()), accepted));
        }
        match view.dtype() {
            StoredDtype::F32 => Ok(Weight::F32(values(view.data()))),
            StoredDtype::BF16 => Ok(Weight::Bf16(values(view.data()))),
            StoredDtype::F16 => Ok(Weight::F16(values(view.data()))),
            other => Err(self.refuse("w", other.to_string(), "F32, BF16 or F16".to_owned())),
        }
    }

    fn eps(&self, text: &str) -> Result<f32> {
        text.trim().parse().map_err(|_| CliError::Metadata {
            file: self.file.to_owned(),
            key: "eps",
            found: text.to_owned(),
            accepted: "a number",
        })
    }

    fn refuse(&self, tensor: &'static str, found: String, accepted: String) -> CliError {
        CliError::Tensor {
            file: self.file.to_owned(),
            tensor,
            found,
            accepted,
        }
    }
}

/// A tensor's bytes, of any alignment, as whole elements.
fn values<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
    values
}

fn shape(shape: &[usize]) -> String {
    format!("{shape:?}")
}

/// Writes y, rstd, dx, dw, and h where there is one, to a safetensors file, with `eps` and
/// `device` as metadata.
pub fn write<E: Element>(
    path: &Path,
    rows: usize,
    forward: &Forward<E>,
    backward: &Backward<E>,
    eps: f32,
    device: &str,
) -> Result<()> {
    fn bytes<T: bytemuck::Pod>(values: &[T]) -> &[u8] {
        bytemuck::cast_slice(values)
    }
    let hidden = backward.dw.len();
    let matrix = vec![rows, hidden];
    let stored = match E::DTYPE {
        Dtype::Bf16 => StoredDtype::BF16,
        Dtype::F16 => StoredDtype::F16,
        Dtype::F32 => StoredDtype::F32,
    };
    let mut tensors = vec![
        ("y", stored, matrix.clone(), bytes(&forward.y)),
        ("rstd", StoredDtype::F32, vec![rows], bytes(&forward.rstd)),
        ("dx", stored, matrix.clone(), bytes(&backward.dx)),
        ("dw", StoredDtype::F32, vec![hidden], bytes(&backward.dw)),
    ];
    if let Some(h) = &forward.h {
        tensors.push(("h", stored, matrix, bytes(h)));
    }
    let views = tensors.into_iter().map(|(name, dtype, shape, data)| {
        TensorView::new(dtype, shape, data).map(|view| (name, view))
    });
    let metadata = HashMap::from([
        ("eps".to_owned(), eps.to_string()),
        ("device".to_owned(), device.to_owned()),
    ]);
    let written = views
        .collect::<std::result::Result<Vec<_>, _>>()
        .and_then(|views| safetensors::serialize_to_file(views, Some(metadata), path));
    written.map_err(|error| CliError::Write {
        path: path.to_owned(),
        detail: error.to_string(),
    })
}
