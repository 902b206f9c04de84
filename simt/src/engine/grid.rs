//! The blocks of a run: which start when, and in which order the grid serves their requests.

use super::request::{Reply, Request};
use super::run::Run;
use super::serve::Server;
use super::worker::{Command, ResidentId, Work, Workers};
use crate::schedule::BlockOrder;
use crate::{Fault, FaultKind, Progress, Report};
use std::panic::Location;

/// Threads that are resident at most, unless a launch insists: each has a stack of its own.
const RESIDENT_THREADS: u32 = 8192;

/// A launch's blocks.
struct Blocks {
    /// In the order in which they start.
    order: Vec<u32>,
    started: usize,
    triggered: u32,
    finished: u32,
}

impl Blocks {
    fn all_started(&self) -> bool {
        self.started == self.order.len()
    }

    fn complete(&self) -> bool {
        self.finished as usize == self.order.len()
    }

    /// Every block has ended or lets the dependent launch start.
    fn released(&self) -> bool {
        self.triggered as usize == self.order.len()
    }
}

/// A block that has started and not ended.
pub(super) struct Resident {
    pub id: ResidentId,
    pub worker: usize,
    pub launch: usize,
    pub uid: u32,
    pub requests: Vec<(u32, Request)>,
    triggered: bool,
    /// Served last, under [`BlockOrder::Late`].
    pub late: bool,
    statistics: (u64, u64),
}

pub(crate) struct Grid<'g, 'r> {
    run: &'r Run<'r>,
    workers: Workers<'r>,
    on_block: Option<&'g (dyn Fn(Progress<'_>) + Sync)>,
    launches: Vec<Blocks>,
    residents: Vec<Resident>,
    server: Server<'r>,
    next_id: ResidentId,
    report: Report,
}

impl<'g, 'r> Grid<'g, 'r> {
    pub fn new(
        run: &'r Run<'r>,
        workers: Workers<'r>,
        on_block: Option<&'g (dyn Fn(Progress<'_>) + Sync)>,
    ) -> Self {
        let mut random = fastrand::Rng::with_seed(run.schedule.seed);
        let mut blocks = |grid: u32| {
            let mut order: Vec<u32> = (0..grid).collect();
            match run.schedule.blocks {
                BlockOrder::Ascending => {}
                BlockOrder::Descending => order.reverse(),
                BlockOrder::Random => random.shuffle(&mut order),
                BlockOrder::Late => {
                    let late = order.remove(random.usize(0..order.len()));
                    order.push(late);
                }
            }
            Blocks {
                order,
                started: 0,
                triggered: 0,
                finished: 0,
            }
        };
        let launches = run
            .launches
            .iter()
            .map(|planned| blocks(planned.launch.grid))
            .collect();
        Self {
            run,
            workers,
            on_block,
            launches,
            residents: Vec::new(),
            server: Server::new(run),
            next_id: 0,
            report: Report::default(),
        }
    }

    /// Runs everything to completion.
    pub fn execute(mut self) -> Result<Report, Fault> {
        loop {
            let mut commands = self.admit();
            if commands.is_empty() {
                let waiting = self.waiting_blocks();
                self.server.set_front(self.front());
                commands = self.server.serve(&mut self.residents, waiting)?;
            }
            if commands.is_empty() {
                break;
            }
            self.report.rounds += 1;
            for (id, result) in self.workers.round(commands) {
                self.finish_round(id, result?);
            }
        }
        match self.residents.first() {
            None => Ok(self.report),
            // Only a launch that its predecessor can no longer release gets here.
            Some(resident) => {
                let kind = FaultKind::Deadlock("no block can go on".to_string());
                Err(self.run.fault(resident.uid, 0, Location::caller(), kind))
            }
        }
    }

    /// The launch whose blocks run: the first one that is not complete.
    fn front(&self) -> usize {
        self.launches
            .iter()
            .position(|blocks| !blocks.complete())
            .unwrap_or(self.launches.len())
    }

    /// Blocks that have not started although nothing but room is missing.
    fn waiting_blocks(&self) -> u32 {
        let front = self.launches.get(self.front());
        front.map_or(0, |blocks| (blocks.order.len() - blocks.started) as u32)
    }

    fn room(&self, launch: usize) -> usize {
        let launch = &self.run.launches[launch].launch;
        let most = if launch.cooperative {
            launch.grid
        } else {
            self.run
                .schedule
                .resident
                .unwrap_or(RESIDENT_THREADS / launch.block)
                .max(1)
        };
        (most as usize).saturating_sub(self.residents.len())
    }

    fn admit(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        let mut launch = self.front();
        while launch < self.launches.len() {
            let room = self.room(launch);
            let blocks = &self.launches[launch];
            let count = room.min(blocks.order.len() - blocks.started);
            for _ in 0..count {
                commands.push(self.start(launch));
            }
            let blocks = &self.launches[launch];
            let next_may = blocks.all_started() && blocks.released();
            let next = launch + 1;
            let dependent = self
                .run
                .launches
                .get(next)
                .is_some_and(|next| next.dependent);
            if !(next_may && dependent && self.run.schedule.early_dependents) {
                break;
            }
            launch = next;
        }
        commands
    }

    fn start(&mut self, launch: usize) -> Command {
        let blocks = &mut self.launches[launch];
        let block = blocks.order[blocks.started];
        blocks.started += 1;
        let late = self.run.schedule.blocks == BlockOrder::Late && blocks.all_started();
        let id = self.next_id;
        self.next_id += 1;
        let worker = id as usize % self.workers.count();
        self.residents.push(Resident {
            id,
            worker,
            launch,
            uid: self.run.launches[launch].first_uid + block,
            requests: Vec::new(),
            triggered: false,
            late,
            statistics: (0, 0),
        });
        self.server.progressed();
        Command {
            id,
            worker,
            work: Work::Start { launch, block },
        }
    }

    fn finish_round(&mut self, id: ResidentId, outcome: super::block::Outcome) {
        let index = self.residents.iter().position(|resident| resident.id == id);
        let index = index.expect("only residents run");
        let resident = &mut self.residents[index];
        resident.requests.extend(outcome.requests);
        resident.statistics = (outcome.switches, outcome.order);
        let triggers = resident
            .requests
            .iter()
            .any(|(_, request)| matches!(request, Request::Trigger));
        let blocks = &mut self.launches[resident.launch];
        if (triggers || outcome.finished) && !resident.triggered {
            resident.triggered = true;
            blocks.triggered += 1;
        }
        if outcome.finished {
            blocks.finished += 1;
            let resident = self.residents.remove(index);
            self.count(&resident);
        }
    }

    fn count(&mut self, resident: &Resident) {
        let (switches, order) = resident.statistics;
        self.report.blocks += 1;
        self.report.switches += switches;
        self.report.order = (self.report.order ^ order ^ u64::from(resident.uid))
            .wrapping_mul(0x0000_0100_0000_01b3);
        self.server.progressed();
        if let Some(on_block) = self.on_block {
            on_block(Progress {
                kernel: self.run.launches[resident.launch].launch.name,
                finished: self.launches[resident.launch].finished,
                grid: self.run.launches[resident.launch].launch.grid,
            });
        }
    }
}

/// Lets a resident go on.
pub(super) fn resume(resident: &Resident, replies: Vec<Reply>) -> Command {
    Command {
        id: resident.id,
        worker: resident.worker,
        work: Work::Resume(replies),
    }
}
