//! `routes`: the plan, printed.

use super::error::{CliError, Result};
use super::output::{Output, columns, thousands};
use super::{DtypeArg, dtype_name, weight_type};
use cake_rmsnorm::RmsNorm;
use cake_rmsnorm::plan::{
    self, Alignment, BackwardForm, BackwardPlan, DeviceProperties, ForwardForm, ForwardPlan,
    Launch, Origin, Routes,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Arguments of `routes`.
#[derive(clap::Args)]
pub struct Args {
    /// Elements of a row (H): 1 to 65,536.
    #[arg(long)]
    hidden: u64,
    /// Rows (T). Without it: powers of two, and where the choice of kernels changes.
    #[arg(long)]
    rows: Option<u64>,
    /// Element type of the matrices.
    #[arg(long, value_enum, default_value = "bf16")]
    dtype: DtypeArg,
    /// The weight's element type.
    #[arg(long, value_enum, default_value = "f32")]
    weight: DtypeArg,
    /// How rows and weight lie.
    #[arg(long, value_enum, default_value = "vector")]
    alignment: AlignmentArg,
    /// The residual form.
    #[arg(long)]
    residual: bool,
    /// Plan for this many multiprocessors [default: an H200's].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    sm_count: Option<u32>,
    /// Routes to plan by, of `cake-rmsnorm tune`, before the built-in ones.
    #[arg(long, value_name = "FILE.json")]
    routes: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How rows and weight lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum AlignmentArg {
    /// All start at multiples of 16 bytes.
    Vector,
    /// Some do not.
    Element,
}

/// Prints the plans.
pub fn run(args: &Args, out: &mut Output) -> Result<()> {
    let properties = DeviceProperties::H200;
    let properties = properties.with_sm_count(args.sm_count.unwrap_or(properties.sm_count));
    // eps takes no part in a plan.
    let builder = RmsNorm::builder(args.hidden).input(args.dtype.into());
    let op = builder.weight(args.weight.into()).build()?;
    let alignment = match args.alignment {
        AlignmentArg::Vector => Alignment::Vector,
        AlignmentArg::Element => Alignment::Element,
    };
    let loaded = args.routes.as_deref().map(Routes::load).transpose()?;
    let planner = Planner {
        op,
        alignment,
        residual: args.residual,
        properties,
        routes: loaded.as_ref().unwrap_or(Routes::built_in()),
    };
    let rows = match args.rows {
        Some(rows) => vec![rows],
        None => planner.interesting_rows()?,
    };
    let routes = rows
        .iter()
        .map(|&rows| planner.route(rows))
        .collect::<Result<Vec<_>>>()?;
    if args.json {
        return out.line(planner.json(args, &routes)?);
    }
    out.line(planner.heading(args))?;
    match &routes[..] {
        [route] if args.rows.is_some() => one(route, out),
        routes => table(routes, out),
    }
}

struct Planner<'a> {
    op: RmsNorm,
    alignment: Alignment,
    residual: bool,
    properties: DeviceProperties,
    routes: &'a Routes,
}

/// The plans of one number of rows.
struct Route {
    rows: u64,
    forward: ForwardPlan,
    backward: BackwardPlan,
    /// Where the forward's and the backward's route came from, and what it says; `None` where
    /// routes have no say.
    chosen: Option<[Chosen; 2]>,
}

/// A route and its origin.
#[derive(Clone, Serialize)]
struct Chosen {
    origin: String,
    program: String,
    warps: u32,
    resident_threads: u32,
    run_log2: Option<u32>,
}

impl Chosen {
    fn new((route, origin): (&plan::Route, Origin<'_>)) -> Self {
        let choice = route.choice;
        Self {
            origin: match origin {
                Origin::BuiltIn => "built-in".to_owned(),
                Origin::File(path) => path.display().to_string(),
                Origin::Chosen => "chosen".to_owned(),
            },
            program: format!("{:?}", choice.program),
            warps: choice.warps,
            resident_threads: choice.resident_threads,
            run_log2: choice.run_log2,
        }
    }
}

/// Most rows for which changes of kernels are looked for, and listed.
const LAST_SCANNED: u64 = 1 << 14;
const LAST_LISTED: u64 = 1 << 20;

impl Planner<'_> {
    fn route(&self, rows: u64) -> Result<Route> {
        let (op, routes, device) = (&self.op, self.routes, &self.properties);
        let (residual, alignment) = (self.residual, self.alignment);
        let form = ForwardForm {
            residual,
            alignment,
            ..ForwardForm::default()
        };
        let forward = plan::forward_by(routes, op, rows, form, device)?;
        let form = BackwardForm {
            residual,
            alignment,
            ..BackwardForm::default()
        };
        let backward = plan::backward_by(routes, op, rows, form, device)?;
        // The general kernels serve without routes.
        let chosen = (rows > 0 && alignment == Alignment::Vector)
            .then(|| {
                let forward = op.forward_route(routes, rows, residual, device).ok()?;
                let backward = op.backward_route(routes, rows, residual, device).ok()?;
                Some([Chosen::new(forward), Chosen::new(backward)])
            })
            .flatten();
        Ok(Route {
            rows,
            forward,
            backward,
            chosen,
        })
    }

    /// 0, powers of two, and every T up to [`LAST_SCANNED`] at which other kernels are chosen than
    /// at T − 1.
    fn interesting_rows(&self) -> Result<Vec<u64>> {
        let mut rows = BTreeSet::from([0]);
        rows.extend((0..=LAST_LISTED.ilog2()).map(|log2| 1u64 << log2));
        let mut previous = None;
        for t in 1..=LAST_SCANNED {
            let kernels = Some(self.route(t)?.kernels());
            if kernels != previous {
                rows.insert(t);
            }
            previous = kernels;
        }
        Ok(rows.into_iter().collect())
    }

    fn heading(&self, args: &Args) -> String {
        format!(
            "hidden {} {}, weight {}{}{}, {} multiprocessors of compute capability {}.{}",
            args.hidden,
            self.op.input(),
            weight_type(&self.op),
            match self.alignment {
                Alignment::Vector => "",
                Alignment::Element => ", rows at any address",
            },
            if self.residual { ", residual form" } else { "" },
            self.properties.sm_count,
            self.properties.compute_capability.0,
            self.properties.compute_capability.1,
        )
    }

    fn json(&self, args: &Args, routes: &[Route]) -> Result<String> {
        let document = Document {
            hidden: args.hidden,
            input: dtype_name(self.op.input()),
            weight: dtype_name(weight_type(&self.op)),
            residual: self.residual,
            sm_count: self.properties.sm_count,
            routes: routes.iter().map(RouteJson::from).collect(),
        };
        serde_json::to_string_pretty(&document).map_err(|error| CliError::Stdout(error.into()))
    }
}

impl Chosen {
    fn text(&self) -> String {
        let mut text = format!("{}: {}", self.origin, self.program);
        let said = [
            (self.warps > 1).then(|| format!("{} warps a block", self.warps)),
            (self.resident_threads > 0)
                .then(|| format!("{} resident threads", self.resident_threads)),
            self.run_log2
                .map(|run_log2| format!("runs of {} leaves", 1u64 << run_log2)),
        ];
        for said in said.into_iter().flatten() {
            text += &format!(", {said}");
        }
        text
    }
}

impl Route {
    /// Names of the kernels, with their blocks.
    fn kernels(&self) -> [Option<(&'static str, u32)>; 3] {
        let launches = [
            self.forward.launch,
            self.backward.main,
            self.backward.reduce,
        ];
        launches.map(|launch| launch.map(|launch| (launch.kernel.name, launch.block)))
    }

    fn nodes(&self) -> u32 {
        match self.backward.reduce {
            Some(_) => self.backward.leaf.runs(),
            None => 0,
        }
    }

    /// Where the routes came from: one word where both came from one place.
    fn origins(&self) -> String {
        match &self.chosen {
            None => "-".to_owned(),
            Some([forward, backward]) if forward.origin == backward.origin => {
                forward.origin.clone()
            }
            Some([forward, backward]) => format!("{} / {}", forward.origin, backward.origin),
        }
    }

    fn run_leaves(&self) -> u32 {
        1 << self.backward.leaf.run_log2
    }
}

/// The plan of one T, in words.
fn one(route: &Route, out: &mut Output) -> Result<()> {
    let launches = [
        ("forward", route.forward.launch),
        ("backward", route.backward.main),
        ("dw reduce", route.backward.reduce),
    ];
    let header = ["", "kernel", "grid", "block", "shared bytes"]
        .map(str::to_owned)
        .to_vec();
    let mut rows = vec![header];
    for (what, launch) in launches {
        rows.push(match launch {
            Some(launch) => launch_cells(what, &launch),
            None => vec![what.to_owned(), "no launch".to_owned()],
        });
    }
    out.line(format!("rows {}", thousands(route.rows)))?;
    for line in columns(&rows) {
        out.line(line)?;
    }
    if let Some([forward, backward]) = &route.chosen {
        out.line(format!("forward route: {}", forward.text()))?;
        out.line(format!("backward route: {}", backward.text()))?;
    }
    let leaf = &route.backward.leaf;
    out.line(format!(
        "dw: {} leaves of {} rows, runs of {} leaves, {} nodes",
        thousands(leaf.leaves.into()),
        leaf.leaf_rows(),
        route.run_leaves(),
        thousands(route.nodes().into()),
    ))?;
    out.line(format!(
        "workspace: {} bytes",
        thousands(route.backward.workspace_bytes)
    ))
}

fn launch_cells(what: &str, launch: &Launch) -> Vec<String> {
    vec![
        what.to_owned(),
        launch.kernel.name.to_owned(),
        thousands(launch.grid.into()),
        launch.block.to_string(),
        thousands(launch.shared_bytes.into()),
    ]
}

/// The plans of many T, one a line.
fn table(routes: &[Route], out: &mut Output) -> Result<()> {
    let header = [
        "rows",
        "forward",
        "grid x block",
        "backward",
        "grid x block",
        "shared",
        "leaf rows",
        "leaves",
        "run leaves",
        "nodes",
        "workspace",
        "routes",
    ];
    let mut lines = vec![header.map(str::to_owned).to_vec()];
    for route in routes {
        let name =
            |launch: Option<Launch>| launch.map_or("-", |launch| launch.kernel.name).to_owned();
        let size = |launch: Option<Launch>| match launch {
            Some(launch) => format!("{} x {}", launch.grid, launch.block),
            None => "-".to_owned(),
        };
        let backward = &route.backward;
        let shared = backward.main.map_or(0, |launch| launch.shared_bytes);
        lines.push(vec![
            thousands(route.rows),
            name(route.forward.launch),
            size(route.forward.launch),
            name(backward.main),
            size(backward.main),
            thousands(shared.into()),
            thousands(backward.leaf.leaf_rows()),
            thousands(backward.leaf.leaves.into()),
            route.run_leaves().to_string(),
            thousands(route.nodes().into()),
            thousands(backward.workspace_bytes),
            route.origins(),
        ]);
    }
    for line in columns(&lines) {
        out.line(line)?;
    }
    out.line("nodes: partial sums of dw that a second launch reduces; 0 where the first writes dw")
}

#[derive(Serialize)]
struct Document {
    hidden: u64,
    input: &'static str,
    weight: &'static str,
    residual: bool,
    sm_count: u32,
    routes: Vec<RouteJson>,
}

#[derive(Serialize)]
struct RouteJson {
    rows: u64,
    forward: Option<LaunchJson>,
    backward: Option<LaunchJson>,
    reduce: Option<LaunchJson>,
    leaf_rows: u64,
    leaves: u32,
    run_leaves: u32,
    nodes: u32,
    workspace_bytes: u64,
    forward_route: Option<Chosen>,
    backward_route: Option<Chosen>,
}

#[derive(Serialize)]
struct LaunchJson {
    kernel: &'static str,
    grid: u32,
    block: u32,
    shared_bytes: u32,
}

impl From<&Route> for RouteJson {
    fn from(route: &Route) -> Self {
        let leaf = &route.backward.leaf;
        let [forward_route, backward_route] = match &route.chosen {
            Some(chosen) => chosen.clone().map(Some),
            None => [None, None],
        };
        RouteJson {
            rows: route.rows,
            forward: route.forward.launch.map(LaunchJson::from),
            backward: route.backward.main.map(LaunchJson::from),
            reduce: route.backward.reduce.map(LaunchJson::from),
            leaf_rows: leaf.leaf_rows(),
            leaves: leaf.leaves,
            run_leaves: route.run_leaves(),
            nodes: route.nodes(),
            workspace_bytes: route.backward.workspace_bytes,
            forward_route,
            backward_route,
        }
    }
}

impl From<Launch> for LaunchJson {
    fn from(launch: Launch) -> Self {
        LaunchJson {
            kernel: launch.kernel.name,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
        }
    }
}
