//! What a benchmark writes: the fields of `docs/measurements/README.md`, so that
//! `cargo xtask tables` reads it.

use super::case::{Case, Summary};
use super::timer::{Cache, Copy, Timer};
use crate::cli::dtype_name;
use crate::cli::error::{CliError, Result};
use crate::cli::record::Record;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The label of this library among the candidates.
const CANDIDATE: &str = "cake-rmsnorm";

/// A run.
#[derive(Serialize)]
pub struct Run {
    record: Record,
    meta: Meta,
    timer: BTreeMap<&'static str, Summary>,
    /// What was timed.
    pub results: Vec<Outcome>,
    ceilings: Vec<CeilingOf>,
    /// Of peers alone; here for readers of the format.
    accuracy: [(); 0],
    skipped: [(); 0],
}

#[derive(Serialize)]
struct Meta {
    device: &'static str,
    cuda: String,
    versions: BTreeMap<&'static str, &'static str>,
    flush: &'static str,
    flush_bytes: u64,
    sms: u32,
}

/// A case, timed or not.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// Timed.
    Timed(Box<Timed>),
    /// Not timed.
    Failed(Failed),
}

/// Shape and form of a case.
#[derive(Clone, Copy, Serialize)]
struct Shape {
    kind: &'static str,
    #[serde(rename = "T")]
    rows: u64,
    #[serde(rename = "H")]
    hidden: u64,
    w: &'static str,
}

/// A case with its times.
#[derive(Serialize)]
pub struct Timed {
    #[serde(flatten)]
    shape: Shape,
    candidate: &'static str,
    op: &'static str,
    /// With cold caches.
    #[serde(flatten)]
    pub cold: Summary,
    /// With what the sample before left in the caches.
    pub warm: Summary,
    /// The fewest that must move.
    pub bytes: u64,
    /// `bytes` over the cold median.
    pub gbps: f64,
    /// The copy's time over the cold median.
    pub frac: f64,
    /// The copy's time, µs.
    #[serde(skip)]
    pub copy_us: f64,
    /// The case.
    #[serde(skip)]
    pub case: Case,
}

/// A case without times.
#[derive(Serialize)]
pub struct Failed {
    #[serde(flatten)]
    shape: Shape,
    candidate: &'static str,
    op: &'static str,
    /// Why.
    pub error: String,
    /// The case.
    #[serde(skip)]
    pub case: Case,
}

/// The copies that a case is compared with.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ceiling {
    bytes: u64,
    copy_us: f64,
    kernel_copy_us: f64,
    /// The faster one.
    pub us: f64,
}

#[derive(Serialize)]
struct CeilingOf {
    #[serde(flatten)]
    shape: Shape,
    op: &'static str,
    #[serde(flatten)]
    ceiling: Ceiling,
}

impl Ceiling {
    /// Of copies of as many bytes, half read, half written.
    pub fn new(bytes: u64, of: impl Fn(Copy) -> Result<Summary>) -> Result<Self> {
        let (driver, kernel) = (of(Copy::Driver)?.us, of(Copy::Kernel)?.us);
        Ok(Self {
            bytes,
            copy_us: driver,
            kernel_copy_us: kernel,
            us: driver.min(kernel),
        })
    }
}

impl Run {
    /// A run that starts now.
    pub fn new(timer: &dyn Timer, intervals: [(&'static str, Summary); 2]) -> Self {
        let (cuda, driver) = timer.versions();
        let device = timer.device();
        Self {
            record: Record::now(timer.maker_name(), driver),
            meta: Meta {
                device: device.kind(),
                cuda,
                versions: BTreeMap::from([(CANDIDATE, env!("CARGO_PKG_VERSION"))]),
                flush: "clean",
                flush_bytes: timer.flush_bytes(),
                sms: device.backend().properties().sm_count,
            },
            timer: intervals.into_iter().collect(),
            results: Vec::new(),
            ceilings: Vec::new(),
            accuracy: [],
            skipped: [],
        }
    }

    /// Adds a case that was timed.
    pub fn timed(
        &mut self,
        case: Case,
        ceiling: Ceiling,
        mut of: impl FnMut(Cache) -> Result<Summary>,
    ) -> Result<()> {
        let (cold, warm) = (of(Cache::Cold)?, of(Cache::Warm)?);
        let bytes = case.bytes();
        let shape = Shape::of(&case);
        let op = case.op.name();
        self.ceilings.push(CeilingOf { shape, op, ceiling });
        self.results.push(Outcome::Timed(Box::new(Timed {
            shape,
            candidate: CANDIDATE,
            op,
            cold,
            warm,
            bytes,
            gbps: (bytes as f64 / cold.us / 100.0).round() / 10.0,
            frac: (ceiling.us / cold.us * 1e4).round() / 1e4,
            copy_us: ceiling.us,
            case,
        })));
        Ok(())
    }

    /// Adds a case that could not be timed.
    pub fn failed(&mut self, case: Case, error: &CliError) {
        self.results.push(Outcome::Failed(Failed {
            shape: Shape::of(&case),
            candidate: CANDIDATE,
            op: "*",
            error: error.to_string(),
            case,
        }));
    }

    /// The cases that were timed.
    pub fn timed_cases(&self) -> impl Iterator<Item = &Timed> {
        self.results.iter().filter_map(|outcome| match outcome {
            Outcome::Timed(timed) => Some(&**timed),
            Outcome::Failed(_) => None,
        })
    }

    /// The intervals around nothing and around next to nothing, µs.
    pub fn intervals(&self) -> impl Iterator<Item = (&'static str, f64)> {
        self.timer.iter().map(|(name, summary)| (*name, summary.us))
    }

    /// Where it ran.
    pub fn gpu(&self) -> &str {
        &self.record.gpu
    }

    /// The day.
    pub fn date(&self) -> &str {
        &self.record.date
    }

    /// Writes the run to a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let written = serde_json::to_string_pretty(self)
            .map_err(std::io::Error::from)
            .and_then(|text| std::fs::write(path, text + "\n"));
        written.map_err(|error| CliError::Write {
            path: path.to_owned(),
            detail: error.to_string(),
        })
    }
}

impl Shape {
    fn of(case: &Case) -> Self {
        Self {
            kind: case.kind(),
            rows: case.rows,
            hidden: case.hidden,
            w: dtype_name(case.weight),
        }
    }
}
