//! Routes as data: which program serves which calls. Kernels take no such decision, and no choice
//! changes a bit.

use super::DeviceProperties;
use super::choice::Choice;
use crate::error::Result;
use cake_rmsnorm_kernels::contract::{Program, WeightType};
use cake_rmsnorm_kernels::leaf;
use std::path::{Path, PathBuf};

/// A choice, and the calls that it is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// The calls.
    pub window: Window,
    /// What they launch.
    pub choice: Choice,
}

/// The calls that a route serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Narrowest row, H.
    pub min_hidden: u32,
    /// Widest row.
    pub max_hidden: u32,
    /// Most rows.
    pub max_rows: MaxRows,
    /// The weight's type; `None`: any.
    pub weight: Option<WeightType>,
    /// The residual form or the plain one; `None`: both.
    pub residual: Option<bool>,
}

/// A limit to T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxRows {
    /// None.
    Any,
    /// This many.
    Total(u64),
    /// This many for each multiprocessor.
    PerMultiprocessor(u64),
}

impl MaxRows {
    /// The limit on a device.
    #[must_use]
    pub fn on(self, multiprocessors: u32) -> u64 {
        match self {
            MaxRows::Any => u64::MAX,
            MaxRows::Total(rows) => rows,
            MaxRows::PerMultiprocessor(rows) => rows.saturating_mul(multiprocessors.into()),
        }
    }
}

/// A call, as windows see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Call {
    pub hidden: u32,
    pub rows: u64,
    pub weight: WeightType,
    pub residual: bool,
}

impl Window {
    /// Every call.
    pub const ALL: Window = Window {
        min_hidden: 0,
        max_hidden: u32::MAX,
        max_rows: MaxRows::Any,
        weight: None,
        residual: None,
    };

    pub(super) fn holds(&self, call: &Call, multiprocessors: u32) -> bool {
        self.holds_shape(call) && call.rows <= self.max_rows.on(multiprocessors)
    }

    /// Whether the call is inside but perhaps for T.
    pub(super) fn holds_shape(&self, call: &Call) -> bool {
        (self.min_hidden..=self.max_hidden).contains(&call.hidden)
            && self.weight.is_none_or(|weight| weight == call.weight)
            && self
                .residual
                .is_none_or(|residual| residual == call.residual)
    }
}

/// Where a route came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    /// The tables of this library.
    BuiltIn,
    /// A file.
    File(&'a Path),
    /// The program that made these routes.
    Chosen,
}

/// Routes for forwards and backwards: of every list the first that holds the call, and whose
/// contract the call and the device keep, serves. The built-in routes come last and serve every
/// call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    pub(super) forward: Vec<Route>,
    pub(super) backward: Vec<Route>,
    pub(super) path: Option<PathBuf>,
}

static BUILT_IN: Routes = Routes {
    forward: Vec::new(),
    backward: Vec::new(),
    path: None,
};

impl Routes {
    /// The tables of this library, from measurements on an H200.
    #[must_use]
    pub fn built_in() -> &'static Routes {
        &BUILT_IN
    }

    /// Every call is served by these choices, where it keeps their contracts.
    #[must_use]
    pub fn only(forward: Option<Choice>, backward: Option<Choice>) -> Routes {
        let route = |choice: Option<Choice>| {
            let window = Window::ALL;
            Vec::from_iter(choice.map(|choice| Route { window, choice }))
        };
        Routes {
            forward: route(forward),
            backward: route(backward),
            path: None,
        }
    }

    pub(super) fn forwards(&self) -> impl Iterator<Item = (&Route, Origin<'_>)> {
        self.of(&self.forward, FORWARD)
    }

    pub(super) fn backwards(&self) -> impl Iterator<Item = (&Route, Origin<'_>)> {
        self.of(&self.backward, BACKWARD)
    }

    /// Limits to T of the routes whose windows hold the call but for T.
    pub(super) fn limits(
        &self,
        call: &Call,
        device: &DeviceProperties,
    ) -> impl Iterator<Item = u64> {
        let multiprocessors = device.multiprocessors();
        let routes = self.forwards().chain(self.backwards());
        let held = routes.filter(move |(route, _)| route.window.holds_shape(call));
        held.map(move |(route, _)| route.window.max_rows.on(multiprocessors))
    }

    fn of<'a>(
        &'a self,
        own: &'a [Route],
        built_in: &'a [Route],
    ) -> impl Iterator<Item = (&'a Route, Origin<'a>)> {
        let origin = match &self.path {
            Some(path) => Origin::File(path),
            None => Origin::Chosen,
        };
        let own = own.iter().map(move |route| (route, origin));
        own.chain(built_in.iter().map(|route| (route, Origin::BuiltIn)))
    }
}

/// Of the `routes` that hold the call the first whose contract the call and the device keep: its plan,
/// which `chosen` makes.
pub(super) fn first<'a, Plan>(
    routes: impl Iterator<Item = (&'a Route, Origin<'a>)>,
    call: &Call,
    device: &DeviceProperties,
    chosen: impl Fn(&Choice, &Call, &DeviceProperties) -> Result<Plan>,
) -> Result<(Plan, &'a Route, Origin<'a>)> {
    let multiprocessors = device.multiprocessors();
    let mut refused = None;
    for (route, origin) in routes {
        if route.window.holds(call, multiprocessors) {
            match chosen(&route.choice, call, device) {
                Ok(plan) => return Ok((plan, route, origin)),
                Err(error) => refused = Some(error),
            }
        }
    }
    Err(refused.unwrap_or_else(|| unreachable!("the operator's hidden size was checked")))
}

/// Rows of up to `max_hidden` elements: in a table narrower ones meet their route before.
const fn up_to(max_hidden: u32, max_rows: MaxRows, choice: Choice) -> Route {
    let window = Window {
        max_hidden,
        max_rows,
        ..Window::ALL
    };
    Route { window, choice }
}

/// At most `rows` rows a multiprocessor.
const fn few(max_hidden: u32, rows: u64, choice: Choice) -> Route {
    up_to(max_hidden, MaxRows::PerMultiprocessor(rows), choice)
}

/// At most `rows` rows.
const fn total(max_hidden: u32, rows: u64, choice: Choice) -> Route {
    up_to(max_hidden, MaxRows::Total(rows), choice)
}

const fn any(max_hidden: u32, choice: Choice) -> Route {
    up_to(max_hidden, MaxRows::Any, choice)
}

/// The first that holds the call, and that the device has shared memory for, serves.
#[rustfmt::skip]
pub(super) const FORWARD: &[Route] = &[
    few(128, 256, forward_warp(16, 1, 4, 4)),
    any(128, forward_warp(16, 1, 4, 2)),
    few(256, 32, forward_warp(32, 1, 1, 4)),
    few(256, 128, forward_warp(32, 1, 4, 4)),
    any(256, forward_warp(32, 1, 4, 2)),
    few(512, 32, forward_warp(32, 2, 1, 4)),
    any(512, forward_warp(32, 2, 2, 2)),
    // Few rows are there sooner where more threads share one.
    few(2048, 8, forward_block(2, false)),
    few(4096, 4, forward_block(2, false)),
    plain(few(8192, 2, forward_block(2, false))),
    plain(few(16_384, 1, forward_block(2, false))),
    any(16_384, forward_block(4, false)),
    any(65_536, FORWARD_WIDE),
];

/// As [`FORWARD`], for rows in groups and for rstd alone.
#[rustfmt::skip]
pub(super) const FORWARD_ANY_VIEW: &[Route] = &[
    any(256, forward_warp(32, 1, 1, 4)),
    any(512, forward_warp(32, 2, 1, 4)),
    any(16_384, forward_block(4, true)),
    any(65_536, FORWARD_WIDE),
];

/// The first that holds the call, and that the device has shared memory for, serves.
#[rustfmt::skip]
pub(super) const BACKWARD: &[Route] = &[
    // One launch, in the window up to which its column tasks have a leaf a position, and their second
    // read comes from L2.
    total(2048, SPLIT_SMALL_BLOCK_MAX_ROWS, backward_split(1, 8)),
    wider(2048, total(4096, 256, backward_split(2, 8))),
    total(256, leaf::window_rows(256), backward_split(1, 16)),
    wider(256, total(1024, leaf::window_rows(1024), backward_split(1, 16))),
    wider(1024, total(4096, leaf::window_rows(4096), backward_split(1, 16))),
    wider(1024, total(8192, leaf::window_rows(8192), backward_split(2, 16))),
    wider(1024, total(65_536, leaf::window_rows(65_536), BACKWARD_SPLIT_WIDE)),
    // One read.
    any(256, backward_warp(1, 4).warps(8).resident_threads(768)),
    any(512, backward_warp(2, 2).warps(4).resident_threads(256)),
    // Rows that leave room for one group alone: it takes two rows at a time.
    plain(wider(4096, any(6144, backward_block(2)))),
    residual(wider(4096, any(5632, backward_block(2)))),
    any(8192, backward_block(1)),
    any(16_384, Choice::of(Program::BackwardWide)),
    // Rows that are too wide, devices with too little shared memory.
    any(65_536, BACKWARD_SPLIT_WIDE),
];

/// Most rows for which blocks of the split program have 256 threads; beyond, 512.
pub(super) const SPLIT_SMALL_BLOCK_MAX_ROWS: u64 = 64;

/// The route for rows of more than `hidden` elements.
const fn wider(hidden: u32, route: Route) -> Route {
    let window = Window {
        min_hidden: hidden + 1,
        ..route.window
    };
    Route { window, ..route }
}

/// The route for the plain form alone.
const fn plain(route: Route) -> Route {
    let window = Window {
        residual: Some(false),
        ..route.window
    };
    Route { window, ..route }
}

/// The route for the residual form alone.
const fn residual(route: Route) -> Route {
    let window = Window {
        residual: Some(true),
        ..route.window
    };
    Route { window, ..route }
}

const fn forward_warp(lanes: u32, vectors: u32, rows: u32, warps: u32) -> Choice {
    let program = Program::ForwardWarp {
        lanes,
        vectors,
        rows,
    };
    Choice::of(program).warps(warps)
}

const fn forward_block(vectors: u32, grouped: bool) -> Choice {
    Choice::of(Program::ForwardBlock { vectors, grouped })
}

/// Three blocks stay on a multiprocessor.
const FORWARD_WIDE: Choice = Choice::of(Program::ForwardWide)
    .warps(16)
    .resident_threads(3 * 512);

const fn backward_split(vectors: u32, warps: u32) -> Choice {
    Choice::of(Program::BackwardSplit { vectors }).warps(warps)
}

/// Eight blocks stay on a multiprocessor.
const BACKWARD_SPLIT_WIDE: Choice = Choice::of(Program::BackwardSplitWide)
    .warps(16)
    .resident_threads(8 * 512);

const fn backward_warp(vectors: u32, stages: u32) -> Choice {
    Choice::of(Program::BackwardWarp {
        vectors,
        stages,
        grouped: false,
    })
}

/// As many groups as fit in 16 warps. Two stages: with more under way at once, memory is slower.
const fn backward_block(rows: u32) -> Choice {
    Choice::of(Program::BackwardBlock {
        vectors: 2,
        rows,
        stages: 2,
    })
    .warps(16)
}
