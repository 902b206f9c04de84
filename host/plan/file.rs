//! Routes in a file, as `cake-rmsnorm tune` writes it.

use super::routes::{Call, MaxRows, Route, Routes, Window};
use super::{Choice, DeviceProperties, backward, forward};
use crate::error::{Error, Result};
use crate::op::{MAX_HIDDEN, MAX_ROWS};
use cake_rmsnorm_kernels::KERNELS;
use cake_rmsnorm_kernels::contract::{Program, WeightType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;

/// What the first field of a file says.
const FORMAT: &str = "cake-rmsnorm routes 1";

/// Contracts are checked for a device with as much as any has.
const DEVICE: DeviceProperties = DeviceProperties::H200;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    /// Where it was measured, for the reader.
    #[serde(default)]
    device: String,
    forward: Vec<Entry>,
    backward: Vec<Entry>,
}

/// A route.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    min_hidden: u32,
    max_hidden: u32,
    /// None: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_rows: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_rows_per_multiprocessor: Option<u64>,
    /// `f32`, `bf16`; none: both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weight: Option<String>,
    /// None: both forms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    residual: Option<bool>,
    program: String,
    warps: u32,
    #[serde(default)]
    resident_threads: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_log2: Option<u32>,
}

/// Forwards or backwards.
#[derive(Clone, Copy)]
enum Op {
    Forward,
    Backward,
}

impl Routes {
    /// Routes before the built-in ones; each is checked against its program's launch contract.
    ///
    /// # Errors
    /// - [`Error::RouteFile`] that names the first route which cannot serve.
    pub fn new(forward: Vec<Route>, backward: Vec<Route>) -> Result<Routes> {
        let routes = Routes {
            forward,
            backward,
            path: None,
        };
        routes.check()?;
        Ok(routes)
    }

    /// Reads routes from a file. Those of the file come before the built-in ones; each is checked
    /// against its program's launch contract.
    ///
    /// A file that is refused leaves the choice to the caller:
    /// `Routes::load(path).unwrap_or_else(|error| { report(error); Routes::built_in().clone() })`.
    ///
    /// # Errors
    /// - [`Error::RouteFile`] when the file cannot be read, is none of routes, or has a route that
    ///   cannot serve.
    pub fn load(path: impl AsRef<Path>) -> Result<Routes> {
        let path = path.as_ref();
        let named = |detail: String| Error::RouteFile {
            path: path.display().to_string(),
            detail,
        };
        let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
        let mut routes = Routes::parse(&text).map_err(|error| match error {
            Error::RouteFile { detail, .. } => named(detail),
            other => other,
        })?;
        routes.path = Some(path.to_owned());
        Ok(routes)
    }

    /// Routes from a file's text.
    ///
    /// # Errors
    /// - As [`Routes::load`].
    pub fn parse(text: &str) -> Result<Routes> {
        let file: File = serde_json::from_str(text).map_err(|error| refused(error.to_string()))?;
        if file.format != FORMAT {
            let found = file.format;
            return Err(refused(format!(
                "format is {found:?}, accepted is {FORMAT:?}"
            )));
        }
        let read = |entries: &[Entry], op: Op| {
            let routes = entries.iter().enumerate();
            let routes = routes.map(|(i, entry)| entry.route().map_err(|why| op.refused(i, &why)));
            routes.collect::<Result<Vec<_>>>()
        };
        Routes::new(
            read(&file.forward, Op::Forward)?,
            read(&file.backward, Op::Backward)?,
        )
    }

    /// The text of a file with these routes, but for the built-in ones; `device` says where they
    /// were measured.
    ///
    /// # Errors
    /// - [`Error::RouteFile`]; none is expected.
    pub fn to_json(&self, device: &str) -> Result<String> {
        let file = File {
            format: FORMAT.to_owned(),
            device: device.to_owned(),
            forward: self.forward.iter().map(Entry::from).collect(),
            backward: self.backward.iter().map(Entry::from).collect(),
        };
        let text = serde_json::to_string_pretty(&file);
        text.map(|text| text + "\n")
            .map_err(|error| refused(error.to_string()))
    }

    fn check(&self) -> Result<()> {
        let lists = [(&self.forward, Op::Forward), (&self.backward, Op::Backward)];
        for (routes, op) in lists {
            for (i, route) in routes.iter().enumerate() {
                route.check(op).map_err(|why| op.refused(i, &why))?;
            }
        }
        Ok(())
    }
}

impl Op {
    fn refused(self, index: usize, why: &str) -> Error {
        let list = match self {
            Op::Forward => "forward",
            Op::Backward => "backward",
        };
        refused(format!("route {index} of {list}: {why}"))
    }
}

fn refused(detail: String) -> Error {
    Error::RouteFile {
        path: "given".to_owned(),
        detail,
    }
}

impl Route {
    /// Whether the launch contract can be kept at both ends of the window, in every weight and
    /// form; for some T inside, since not every T has to be served.
    fn check(&self, op: Op) -> std::result::Result<(), String> {
        let Window {
            min_hidden,
            max_hidden,
            max_rows,
            weight,
            residual,
        } = self.window;
        if min_hidden > max_hidden || u64::from(max_hidden) > MAX_HIDDEN || min_hidden == 0 {
            return Err(format!(
                "hidden sizes from {min_hidden} to {max_hidden}: accepted are 8 to {MAX_HIDDEN}"
            ));
        }
        if max_rows.on(1) == 0 {
            return Err("at most 0 rows: accepted are 1 and more".to_owned());
        }
        let weights = weight.map_or(vec![WeightType::F32, WeightType::Bf16], |it| vec![it]);
        let forms = residual.map_or(vec![false, true], |it| vec![it]);
        let most = max_rows.on(DEVICE.multiprocessors()).min(MAX_ROWS);
        for hidden in [min_hidden.next_multiple_of(8), max_hidden / 8 * 8] {
            for &weight in &weights {
                for &residual in &forms {
                    let keeps = |rows| {
                        let call = Call {
                            hidden,
                            rows,
                            weight,
                            residual,
                        };
                        match op {
                            Op::Forward => forward::chosen(&self.choice, &call, &DEVICE).map(drop),
                            Op::Backward => {
                                backward::chosen(&self.choice, &call, &DEVICE).map(drop)
                            }
                        }
                    };
                    // Leaves are most where T is large, or just below a power of two.
                    let kept = keeps(most).or_else(|_| keeps(most.div_ceil(2)));
                    let kept = kept.or_else(|_| keeps(1));
                    kept.map_err(|error| format!("hidden size {hidden}: {error}"))?;
                }
            }
        }
        Ok(())
    }
}

impl Entry {
    fn route(&self) -> std::result::Result<Route, String> {
        let max_rows = match (self.max_rows, self.max_rows_per_multiprocessor) {
            (None, None) => MaxRows::Any,
            (Some(rows), None) => MaxRows::Total(rows),
            (None, Some(rows)) => MaxRows::PerMultiprocessor(rows),
            _ => return Err("max_rows and max_rows_per_multiprocessor: accepted is one".to_owned()),
        };
        let weight = match self.weight.as_deref() {
            None => None,
            Some("f32") => Some(WeightType::F32),
            Some("bf16") => Some(WeightType::Bf16),
            Some(other) => return Err(format!("weight {other:?}: accepted are f32 and bf16")),
        };
        Ok(Route {
            window: Window {
                min_hidden: self.min_hidden,
                max_hidden: self.max_hidden,
                max_rows,
                weight,
                residual: self.residual,
            },
            choice: Choice {
                program: program(&self.program)?,
                warps: self.warps,
                resident_threads: self.resident_threads,
                run_log2: self.run_log2,
            },
        })
    }
}

impl From<&Route> for Entry {
    fn from(route: &Route) -> Self {
        let Route { window, choice } = *route;
        let weight = window.weight.map(|weight| match weight {
            WeightType::F32 => "f32",
            WeightType::Bf16 => "bf16",
        });
        let (max_rows, max_rows_per_multiprocessor) = match window.max_rows {
            MaxRows::Any => (None, None),
            MaxRows::Total(rows) => (Some(rows), None),
            MaxRows::PerMultiprocessor(rows) => (None, Some(rows)),
        };
        Entry {
            min_hidden: window.min_hidden,
            max_hidden: window.max_hidden,
            max_rows,
            max_rows_per_multiprocessor,
            weight: weight.map(str::to_owned),
            residual: window.residual,
            program: program_name(choice.program),
            warps: choice.warps,
            resident_threads: choice.resident_threads,
            run_log2: choice.run_log2,
        }
    }
}

/// How a program is written.
fn program_name(program: Program) -> String {
    format!("{program:?}")
}

/// The compiled program of a name.
fn program(name: &str) -> std::result::Result<Program, String> {
    let found = KERNELS
        .iter()
        .find(|kernel| program_name(kernel.program) == name);
    found.map(|kernel| kernel.program).ok_or_else(|| {
        let names: BTreeSet<_> = KERNELS
            .iter()
            .map(|kernel| program_name(kernel.program))
            .collect();
        let names = Vec::from_iter(names).join("; ");
        format!("no program is called {name:?}: accepted are {names}")
    })
}
