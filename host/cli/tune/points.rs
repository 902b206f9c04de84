//! What was measured so far, in a file that grows by a line a point, and the routes that follow.

use crate::cli::error::{CliError, Result};
use crate::cli::{dtype_name, weight_type};
use cake_rmsnorm::RmsNorm;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Forward.
    Forward,
    /// Backward.
    Backward,
}

impl Direction {
    /// Both.
    pub const BOTH: [Direction; 2] = [Direction::Forward, Direction::Backward];
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point {
    /// Forward or backward.
    pub direction: Direction,
    /// H.
    pub hidden: u64,
    /// The weight's type.
    pub weight: String,
    /// The residual form.
    pub residual: bool,
    /// T.
    pub rows: u64,
}

impl Point {
    /// A point of an operator.
    pub fn new(op: &RmsNorm, rows: u64, residual: bool, direction: Direction) -> Self {
        Self {
            direction,
            hidden: op.hidden(),
            weight: dtype_name(weight_type(op)).to_owned(),
            residual,
            rows,
        }
    }

    /// Whether they differ in T alone.
    fn is_beside(&self, other: &Point) -> bool {
        let others = Point {
            rows: self.rows,
            ..other.clone()
        };
        *self == others
    }
}

/// What a route says of the launch, as the file of routes writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// The program.
    pub program: String,
    /// Warps of a block.
    pub warps: u32,
    /// Threads that stay on a multiprocessor.
    pub resident_threads: u32,
    /// log₂ of the leaves of a run.
    pub run_log2: Option<u32>,
}

/// A point with its fastest choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// The choice.
    pub route: Chosen,
    /// Its time.
    pub us: f64,
    /// The time of the built-in route.
    pub built_in_us: f64,
    /// Choices measured.
    pub tried: usize,
}

/// The first line of the file.
#[derive(Serialize, Deserialize)]
struct Head {
    device: String,
    version: String,
}

/// The points in a file.
pub struct Points {
    path: PathBuf,
    file: File,
    points: Vec<Measured>,
}

impl Points {
    /// The points beside the routes `out`, of earlier runs on the same device and version.
    pub fn open(out: &Path, device: &str) -> Result<Self> {
        let path = PathBuf::from(format!("{}.points.jsonl", out.display()));
        let write = |error: std::io::Error| CliError::Write {
            path: path.clone(),
            detail: error.to_string(),
        };
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|source| CliError::Read {
                path: path.clone(),
                source,
            })?,
        };
        // A line that a stopped run did not finish is measured again.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let points = parse(whole, device).map_err(|reason| CliError::Usage {
            option: "--out",
            reason: format!("{}: {reason}; remove it to start anew", path.display()),
        })?;
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .map_err(write)?;
        file.set_len(whole.len() as u64).map_err(write)?;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(write)?;
        let mut points = Self { path, file, points };
        if whole.is_empty() {
            points.append(&Head {
                device: device.to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            })?;
        }
        Ok(points)
    }

    /// Whether the point was measured.
    pub fn has(&self, point: &Point) -> bool {
        self.points.iter().any(|known| known.point == *point)
    }

    /// Keeps a point.
    pub fn add(&mut self, measured: Measured) -> Result<()> {
        self.append(&measured)?;
        self.points.push(measured);
        Ok(())
    }

    fn append(&mut self, line: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(line).map_err(std::io::Error::from);
        let written = text.and_then(|text| {
            writeln!(self.file, "{text}")?;
            self.file.flush()
        });
        written.map_err(|error| CliError::Write {
            path: self.path.clone(),
            detail: error.to_string(),
        })
    }

    /// Writes the routes of all points, and reads them back as the library does.
    pub fn write_routes(&self, out: &Path, device: &str) -> Result<()> {
        let text = routes(&self.points, device);
        std::fs::write(out, text).map_err(|error| CliError::Write {
            path: out.to_owned(),
            detail: error.to_string(),
        })?;
        cake_rmsnorm::plan::Routes::load(out)?;
        Ok(())
    }
}

fn parse(text: &str, device: &str) -> std::result::Result<Vec<Measured>, String> {
    let mut lines = text.lines();
    let Some(head) = lines.next() else {
        return Ok(Vec::new());
    };
    let head: Head = serde_json::from_str(head).map_err(|error| error.to_string())?;
    if head.device != device || head.version != env!("CARGO_PKG_VERSION") {
        return Err(format!(
            "it holds points of {} by version {}",
            head.device, head.version
        ));
    }
    let points = lines.map(|line| serde_json::from_str(line).map_err(|error| error.to_string()));
    points.collect()
}

/// The file of routes: from one T that was measured to the next, up to their geometric mean;
/// neighbours with the same choice are one route.
fn routes(points: &[Measured], device: &str) -> String {
    let mut points: Vec<&Measured> = points.iter().collect();
    points.sort_by(|a, b| a.point.cmp(&b.point));
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for (i, measured) in points.iter().enumerate() {
        let next = points
            .get(i + 1)
            .filter(|next| next.point.is_beside(&measured.point));
        if next.is_some_and(|next| next.route == measured.route) {
            continue;
        }
        let max_rows = next.map(|next| {
            let (low, high) = (measured.point.rows as f64, next.point.rows as f64);
            (low * high).sqrt() as u64
        });
        let list = match measured.point.direction {
            Direction::Forward => &mut forward,
            Direction::Backward => &mut backward,
        };
        list.push(entry(measured, max_rows));
    }
    let file = json!({
        "format": "cake-rmsnorm routes 1",
        "device": device,
        "forward": forward,
        "backward": backward,
    });
    format!("{file:#}\n")
}

fn entry(measured: &Measured, max_rows: Option<u64>) -> Value {
    let Measured { point, route, .. } = measured;
    let mut entry = json!({
        "min_hidden": point.hidden,
        "max_hidden": point.hidden,
        "weight": point.weight,
        "residual": point.residual,
        "program": route.program,
        "warps": route.warps,
        "resident_threads": route.resident_threads,
    });
    let optional = [
        ("max_rows", max_rows),
        ("run_log2", route.run_log2.map(u64::from)),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            entry[key] = value.into();
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_rmsnorm::Dtype;
    use cake_rmsnorm::plan::{DeviceProperties, Origin, Routes};
    use tempfile::TempDir;

    const DEVICE: &str = "a GPU";

    fn measured(direction: Direction, rows: u64, program: &str, warps: u32) -> Measured {
        let op = RmsNorm::new(4096, Dtype::F32, 1e-6).expect("a width");
        Measured {
            point: Point::new(&op, rows, false, direction),
            route: Chosen {
                program: program.to_owned(),
                warps,
                resident_threads: 0,
                run_log2: None,
            },
            us: 1.0,
            built_in_us: 1.0,
            tried: 3,
        }
    }

    #[test]
    fn a_stopped_run_goes_on() {
        let folder = TempDir::new().expect("a folder");
        let out = folder.path().join("routes.json");
        let first = measured(Direction::Forward, 1, "ForwardWide", 8);
        let second = measured(Direction::Forward, 32, "ForwardWide", 16);
        let mut points = Points::open(&out, DEVICE).expect("a new file");
        points.add(first.clone()).expect("a file");
        drop(points);
        // Stopped while it wrote.
        let path = folder.path().join("routes.json.points.jsonl");
        let mut file = OpenOptions::new().append(true).open(&path).expect("it");
        file.write_all(b"{\"direction\":\"forw").expect("a file");
        drop(file);

        let mut points = Points::open(&out, DEVICE).expect("the same file");
        assert!(points.has(&first.point) && !points.has(&second.point));
        points.add(second.clone()).expect("a file");
        drop(points);
        let points = Points::open(&out, DEVICE).expect("the same file");
        assert!(points.has(&first.point) && points.has(&second.point));
        assert!(Points::open(&out, "another GPU").is_err());
    }

    #[test]
    fn routes_reach_to_the_middle_and_are_merged() {
        let folder = TempDir::new().expect("a folder");
        let out = folder.path().join("routes.json");
        let mut points = Points::open(&out, DEVICE).expect("a new file");
        let split = "BackwardSplitWide";
        for (rows, program, warps) in [
            (1024, "BackwardWide", 1),
            (16, split, 8),
            (64, split, 8),
            (256, split, 16),
        ] {
            let point = measured(Direction::Backward, rows, program, warps);
            points.add(point).expect("a file");
        }
        points
            .write_routes(&out, DEVICE)
            .expect("routes that serve");
        let routes = Routes::load(&out).expect("what was written");
        let op = RmsNorm::new(4096, Dtype::F32, 1e-6).expect("a width");
        let warps = |rows| {
            let device = &DeviceProperties::H200;
            let (route, origin) = op
                .backward_route(&routes, rows, false, device)
                .expect("a route");
            assert_eq!(origin, Origin::File(&out), "T = {rows}");
            (format!("{:?}", route.choice.program), route.choice.warps)
        };
        for rows in [1, 16, 64, 128] {
            assert_eq!(warps(rows), (split.to_owned(), 8), "T = {rows}");
        }
        for rows in [129, 512] {
            assert_eq!(warps(rows), (split.to_owned(), 16), "T = {rows}");
        }
        assert_eq!(warps(513).0, "BackwardWide");
        assert_eq!(warps(1 << 20).0, "BackwardWide");
        // Other calls have the built-in routes.
        let device = &DeviceProperties::H200;
        let other = op
            .backward_route(&routes, 16, true, device)
            .expect("a route");
        assert_eq!(other.1, Origin::BuiltIn);
    }
}
