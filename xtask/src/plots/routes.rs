//! Which program serves which call, and how large its workspace is: from the plans that the program
//! prints, for the device that it takes without a GPU, an H200.

use super::picture::{Axis, Colour, Mark, Panel, Picture};
use super::{Error, Pictures};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Largest T and H that are shown, by their logarithms.
const LAST_ROWS: u32 = 20;
const LAST_HIDDEN: u32 = 16;
/// Widths that are planned for each doubling of H.
const STEPS: u32 = 16;
/// Widths of which the workspace is shown.
const WORKSPACES: [u64; 6] = [256, 512, 2048, 4096, 8192, 16384];

/// Plans of one width, as `cake-rmsnorm routes --json` prints them.
#[derive(Deserialize)]
pub struct Plans {
    pub hidden: u64,
    pub sm_count: u32,
    pub routes: Vec<Plan>,
}

#[derive(Deserialize)]
pub struct Plan {
    pub rows: u64,
    pub workspace_bytes: u64,
    pub forward_route: Option<Program>,
    pub backward_route: Option<Program>,
}

#[derive(Deserialize)]
pub struct Program {
    pub program: String,
}

impl Program {
    /// Its name, without what it is compiled for.
    fn name(&self) -> &str {
        self.program.split(' ').next().unwrap_or(&self.program)
    }
}

/// The pictures, with plans of the program that it builds.
pub fn draw(root: &Path) -> Result<Pictures, Error> {
    let program = build(root)?;
    let mut widths: BTreeSet<u64> = WORKSPACES.into();
    for log2 in 3..=LAST_HIDDEN {
        // Choices change beside powers of two.
        widths.extend([1 << log2, (1 << log2) + 8]);
        let between = (1..STEPS).map(|i| f64::from(log2) + f64::from(i) / f64::from(STEPS));
        widths.extend(between.map(|log2| (log2.exp2() / 8.0).round() as u64 * 8));
    }
    let last = 1 << LAST_HIDDEN;
    let widths = widths.into_iter().filter(|hidden| *hidden <= last);
    let plans = widths.map(|hidden| plans(&program, hidden));
    Ok(pictures(&plans.collect::<Result<Vec<_>, _>>()?))
}

fn build(root: &Path) -> Result<std::path::PathBuf, Error> {
    let failed = |message: String| Error::Plans(message);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--release", "--bin", "cake-rmsnorm"]);
    let status = command.current_dir(root).status();
    match status.map_err(|error| failed(format!("cargo does not start: {error}")))? {
        status if status.success() => Ok(crate::workspace::target().join("release/cake-rmsnorm")),
        status => Err(failed(format!("the build ended with {status}"))),
    }
}

fn plans(program: &Path, hidden: u64) -> Result<Plans, Error> {
    let mut command = Command::new(program);
    command.args(["routes", "--json", "--hidden", &hidden.to_string()]);
    let output = command.output();
    let output = output.map_err(|error| Error::Plans(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Plans(format!("H = {hidden}: {}", said.trim())));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::Plans(format!("H = {hidden}: {error}")))
}

/// The pictures of plans in the order of their widths.
pub fn pictures(plans: &[Plans]) -> Pictures {
    let Some(first) = plans.first() else {
        return Pictures::new();
    };
    let device = format!("{} multiprocessors", first.sm_count);
    let mut pictures = Pictures::new();
    let forward = map("forward", &device, plans, |plan| &plan.forward_route);
    let backward = map("backward", &device, plans, |plan| &plan.backward_route);
    pictures.insert("routes-forward", forward);
    pictures.insert("routes-backward", backward);
    pictures.insert("workspace", workspace(&device, plans));
    pictures
}

/// Rows and widths, coloured by program.
fn map(name: &str, device: &str, plans: &[Plans], route: fn(&Plan) -> &Option<Program>) -> Picture {
    // From which T on which program serves, for each width.
    let spans = plans.iter().map(|plans| {
        let mut spans: Vec<(u64, &str)> = Vec::new();
        for plan in &plans.routes {
            if let Some(program) = route(plan)
                && spans.last().is_none_or(|(_, last)| *last != program.name())
            {
                spans.push((plan.rows, program.name()));
            }
        }
        spans
    });
    let spans: Vec<_> = spans.collect();
    let mut colours = BTreeMap::<&str, Colour>::new();
    let mut legend = Vec::new();
    let mut marks = Vec::new();
    let mut at = 0;
    while at < spans.len() {
        let same = spans[at..].iter().take_while(|next| **next == spans[at]);
        let next = at + same.count();
        let log2 = |value: u64| (value as f64).log2();
        let low = log2(plans[at].hidden);
        let high = plans
            .get(next)
            .map_or(f64::from(LAST_HIDDEN), |plans| log2(plans.hidden));
        for (i, (rows, program)) in spans[at].iter().enumerate() {
            let end = spans[at]
                .get(i + 1)
                .map_or(f64::from(LAST_ROWS), |(rows, _)| log2(*rows));
            let count = colours.len();
            let colour = *colours.entry(program).or_insert(count % 9);
            if colours.len() > count {
                legend.push(((*program).to_owned(), colour));
            }
            marks.push(Mark::Rectangle {
                corners: [(log2(*rows), low), (end, high)],
                colour,
            });
        }
        at = next;
    }
    let panel = Panel {
        title: String::new(),
        height: 330,
        x: Axis {
            labels: 11,
            ..Axis::log2("rows T", [1, 1 << LAST_ROWS])
        },
        y: Axis {
            labels: 14,
            ..Axis::log2("hidden size H", [8, 1 << LAST_HIDDEN])
        },
        marks,
    };
    Picture {
        title: format!("Programs of the {name}, {device}"),
        legend,
        panels: vec![panel],
    }
}

/// Bytes of a backward's workspace.
fn workspace(device: &str, plans: &[Plans]) -> Picture {
    let shown = plans
        .iter()
        .filter(|plans| WORKSPACES.contains(&plans.hidden));
    let (mut legend, mut marks, mut most) = (Vec::new(), Vec::new(), 1.0_f64);
    for (colour, plans) in shown.enumerate() {
        let routes = plans.routes.iter().filter(|plan| plan.rows > 0);
        let points: Vec<_> = routes
            .map(|plan| {
                let mebibytes = plan.workspace_bytes as f64 / f64::from(1 << 20);
                ((plan.rows as f64).log2(), mebibytes)
            })
            .collect();
        most = points.iter().fold(most, |most, (_, y)| most.max(*y));
        legend.push((format!("H = {}", plans.hidden), colour));
        marks.push(Mark::Steps { points, colour });
    }
    let panel = Panel {
        title: String::new(),
        height: 250,
        x: Axis {
            labels: 11,
            ..Axis::log2("rows T", [1, 1 << LAST_ROWS])
        },
        y: Axis {
            title: "MiB",
            range: 0.0..1.05 * most,
            labels: 8,
            label: |value| format!("{value:.0}"),
        },
        marks,
    };
    Picture {
        title: format!("Workspace of a backward, {device}"),
        legend,
        panels: vec![panel],
    }
}
