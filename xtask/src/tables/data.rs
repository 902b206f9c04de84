//! The files in `docs/measurements/`; its README describes the formats.

use super::Error;
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The label of this library among the candidates; all others are peers.
pub const OURS: &str = "cake-rmsnorm";

/// When, where and of what a measurement was made.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Record {
    /// ISO 8601, so that the order of texts is the order of days.
    pub date: String,
    pub gpu: String,
    pub driver: String,
    pub command: String,
    pub commit: String,
}

/// A measurement and the file it is from.
pub struct File<T> {
    pub name: String,
    pub record: Record,
    pub content: T,
}

/// Everything that is recorded.
#[derive(Default)]
pub struct Measurements {
    pub peers: Vec<File<Peers>>,
    pub checks: Vec<File<Vec<Check>>>,
    pub sanitizer: Vec<File<Vec<SanitizerRun>>>,
    pub reliability: Vec<File<Vec<Finding>>>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    Plain,
    Head,
    Add,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    F32,
    Bf16,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    Bwd,
    Fwd,
    FwdBwd,
    Step,
}

/// What the benchmark writes.
#[derive(Deserialize)]
pub struct Peers {
    pub meta: Meta,
    pub timer: Timer,
    pub results: Vec<Outcome>,
    pub ceilings: Vec<Ceiling>,
    #[serde(default)]
    pub accuracy: Vec<Accuracy>,
    #[serde(default)]
    pub skipped: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
pub struct Meta {
    pub cuda: String,
    pub flush: String,
    pub versions: BTreeMap<String, Option<String>>,
}

/// What the timer reads of next to nothing, in µs.
#[derive(Deserialize)]
pub struct Timer {
    pub no_kernel: Time,
    pub one_element_kernel: Time,
}

#[derive(Deserialize)]
pub struct Time {
    pub us: f64,
}

/// One candidate in one case.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Outcome {
    Timed(Timed),
    Failed(Failed),
}

#[derive(Clone, Deserialize)]
pub struct Timed {
    pub kind: Form,
    #[serde(rename = "T")]
    pub rows: u64,
    #[serde(rename = "H")]
    pub hidden: u64,
    pub w: Weight,
    pub candidate: String,
    pub op: Op,
    /// Median, µs.
    pub us: f64,
    /// Time of the copy of the same number of bytes, divided by `us`.
    pub frac: f64,
}

#[derive(Deserialize)]
pub struct Failed {
    pub kind: Form,
    #[serde(rename = "T")]
    pub rows: u64,
    #[serde(rename = "H")]
    pub hidden: u64,
    pub w: Weight,
    pub candidate: String,
    pub error: String,
}

/// The copy that a case is compared with.
#[derive(Deserialize)]
pub struct Ceiling {
    pub kind: Form,
    #[serde(rename = "T")]
    pub rows: u64,
    #[serde(rename = "H")]
    pub hidden: u64,
    pub w: Weight,
    pub op: Op,
    pub bytes: u64,
    pub us: f64,
}

/// dw of one candidate against an FP64 sum.
#[derive(Deserialize)]
pub struct Accuracy {
    pub candidate: String,
    #[serde(rename = "T")]
    pub rows: u64,
    #[serde(rename = "H")]
    pub hidden: u64,
    pub w: Weight,
    #[serde(flatten)]
    pub outcome: AccuracyOutcome,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum AccuracyOutcome {
    Measured {
        dw_dtype: String,
        dw_worst: f64,
        dw_rel_l2: f64,
        dw_bitwise: bool,
        dx_bitwise: bool,
    },
    Failed {
        error: String,
    },
}

/// What `cake-rmsnorm check --json` prints.
#[derive(Clone, Deserialize)]
pub struct Check {
    pub device: String,
    pub device_name: String,
    pub inputs: String,
    pub rows: u64,
    pub hidden: u64,
    pub weight: String,
    pub residual: bool,
    pub ok: bool,
    pub failures: Vec<String>,
    pub y: Output,
    pub rstd: Output,
    pub dx: Output,
    pub dw: Output,
    pub h: Option<Output>,
}

#[derive(Clone, Deserialize)]
pub struct Output {
    /// None where an element is infinitely far off, which JSON has no number for.
    pub max_ulp: Option<f64>,
    pub correctly_rounded: f64,
    pub within_bound: bool,
    pub bits_match_golden: bool,
    pub repeat_bits: Option<bool>,
}

impl Check {
    pub fn outputs(&self) -> impl Iterator<Item = &Output> {
        [&self.y, &self.rstd, &self.dx, &self.dw]
            .into_iter()
            .chain(&self.h)
    }

    pub fn golden_bits(&self) -> bool {
        self.outputs().all(|output| output.bits_match_golden)
    }
}

/// What a part of the reliability run found.
#[derive(Clone, Deserialize)]
pub struct Finding {
    pub part: String,
    pub status: FindingStatus,
    pub what: String,
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub enum FindingStatus {
    Pass,
    Fail,
    Skipped,
}

/// One tool of compute-sanitizer on one shape.
#[derive(Clone, Deserialize)]
pub struct SanitizerRun {
    pub tool: String,
    pub shape: serde_json::Value,
    pub command: String,
    pub errors: Option<u64>,
    pub hazards: Option<u64>,
    pub ok: bool,
}

#[derive(Deserialize)]
struct RecordedPeers {
    record: Record,
    #[serde(flatten)]
    peers: Peers,
}

#[derive(Deserialize)]
struct Recorded {
    record: Record,
}

#[derive(Deserialize)]
struct RecordedRuns {
    record: Record,
    runs: Vec<SanitizerRun>,
}

impl Measurements {
    /// Reads a folder, newest measurement first. The end of a name says the format.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io {
            path: folder.to_owned(),
            source,
        };
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(folder).map_err(io)? {
            names.insert(
                entry
                    .map_err(io)?
                    .file_name()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
        let mut all = Self::default();
        for name in names {
            let path = folder.join(&name);
            if name.ends_with(".peers.json") {
                let RecordedPeers { record, peers } = parse(&path)?;
                validate(&path, &peers)?;
                all.peers.push(file(name, record, peers));
            } else if name.ends_with(".check.jsonl") {
                let (record, checks) = parse_lines(&path)?;
                all.checks.push(file(name, record, checks));
            } else if name.ends_with(".sanitizer.json") {
                let RecordedRuns { record, runs } = parse(&path)?;
                all.sanitizer.push(file(name, record, runs));
            } else if name.ends_with(".reliability.jsonl") {
                let (record, findings) = parse_lines(&path)?;
                all.reliability.push(file(name, record, findings));
            } else if name.contains(".json") {
                return Err(invalid(&path, "not named as any format of measurements"));
            }
        }
        newest_first(&mut all.peers);
        newest_first(&mut all.checks);
        newest_first(&mut all.sanitizer);
        newest_first(&mut all.reliability);
        Ok(all)
    }
}

fn file<T>(name: String, record: Record, content: T) -> File<T> {
    File {
        name,
        record,
        content,
    }
}

fn newest_first<T>(files: &mut [File<T>]) {
    files.sort_by(|a, b| b.record.date.cmp(&a.record.date).then(a.name.cmp(&b.name)));
}

fn invalid(path: &Path, message: impl Into<String>) -> Error {
    Error::Invalid {
        path: path.to_owned(),
        message: message.into(),
    }
}

fn text(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    serde_json::from_str(&text(path)?).map_err(|source| Error::Format {
        path: path.to_owned(),
        source,
    })
}

/// A record, then an object a line; a line of totals says nothing new.
fn parse_lines<T: DeserializeOwned>(path: &Path) -> Result<(Record, Vec<T>), Error> {
    let text = text(path)?;
    let format = |source| Error::Format {
        path: path.to_owned(),
        source,
    };
    let mut objects = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
    let first = objects.next().ok_or_else(|| invalid(path, "is empty"))?;
    let Recorded { record } = serde_json::from_value(first.map_err(format)?).map_err(format)?;
    let lines = objects
        .filter(|object| !matches!(object, Ok(object) if object.get("totals").is_some()))
        .map(|object| serde_json::from_value(object?))
        .collect::<Result<_, _>>()
        .map_err(format)?;
    Ok((record, lines))
}

/// Times are positive, and no candidate is measured twice in one case.
fn validate(path: &Path, peers: &Peers) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    for outcome in &peers.results {
        let Outcome::Timed(timed) = outcome else {
            continue;
        };
        let Timed {
            kind,
            rows,
            hidden,
            w,
            op,
            ref candidate,
            us,
            frac,
        } = *timed;
        let case = format!("{candidate} {kind:?} T={rows} H={hidden} {w:?} {op:?}");
        if !(us > 0.0 && frac > 0.0) {
            return Err(invalid(
                path,
                format!("{case}: time or fraction not positive"),
            ));
        }
        if !seen.insert(case.clone()) {
            return Err(invalid(path, format!("{case}: measured twice")));
        }
    }
    Ok(())
}
