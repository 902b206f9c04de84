//! OS threads that run resident blocks. A block never moves to another one.

use super::block::{Block, Outcome};
use super::request::Reply;
use super::run::Run;
use crate::Fault;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

/// Names a resident block: residents in the order in which they started.
pub(crate) type ResidentId = u64;

/// What to do with one block in a round.
pub(crate) struct Command {
    pub id: ResidentId,
    pub worker: usize,
    pub work: Work,
}

pub(crate) enum Work {
    /// Start block `block` of launch `launch`, and run it.
    Start { launch: usize, block: u32 },
    /// Answer its requests, and run it.
    Resume(Vec<Reply>),
}

type Done = (ResidentId, Result<Outcome, Fault>);

struct Worker<'r> {
    run: &'r Run<'r>,
    blocks: BTreeMap<ResidentId, Block<'r>>,
}

impl<'r> Worker<'r> {
    fn round(&mut self, commands: Vec<Command>) -> Vec<Done> {
        commands
            .into_iter()
            .map(|command| (command.id, self.execute(command)))
            .collect()
    }

    fn execute(&mut self, Command { id, work, .. }: Command) -> Result<Outcome, Fault> {
        let (mut block, replies) = match work {
            Work::Start { launch, block } => {
                let planned = &self.run.launches[launch];
                (Block::new(self.run, planned, block)?, Vec::new())
            }
            Work::Resume(replies) => {
                let block = self
                    .blocks
                    .remove(&id)
                    .expect("commands go to the block's worker");
                (block, replies)
            }
        };
        let outcome = block.run(replies)?;
        if !outcome.finished {
            self.blocks.insert(id, block);
        }
        Ok(outcome)
    }
}

/// The way to a helper and back.
type Helper = (Sender<Vec<Command>>, Receiver<Vec<Done>>);

/// The caller's thread and its helpers.
pub(crate) struct Workers<'r> {
    own: Worker<'r>,
    helpers: Vec<Helper>,
}

impl<'r> Workers<'r> {
    /// `count` workers, of which one is the caller.
    pub fn new<'scope>(scope: &'scope Scope<'scope, '_>, run: &'r Run<'r>, count: usize) -> Self
    where
        'r: 'scope,
    {
        let helper = || {
            let (to_helper, commands) = channel();
            let (done, from_helper) = channel();
            scope.spawn(move || {
                let mut worker = Worker {
                    run,
                    blocks: BTreeMap::new(),
                };
                while let Ok(commands) = commands.recv() {
                    if done.send(worker.round(commands)).is_err() {
                        break;
                    }
                }
            });
            (to_helper, from_helper)
        };
        let helpers = (1..count).map(|_| helper()).collect();
        Self {
            own: Worker {
                run,
                blocks: BTreeMap::new(),
            },
            helpers,
        }
    }

    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Executes commands side by side; the results come in the order of the blocks' ids.
    pub fn round(&mut self, commands: Vec<Command>) -> Vec<Done> {
        let mut shares: Vec<Vec<Command>> = (0..self.count()).map(|_| Vec::new()).collect();
        for command in commands {
            shares[command.worker].push(command);
        }
        let mut shares = shares.into_iter();
        let own = shares.next().unwrap_or_default();
        for ((sender, _), share) in self.helpers.iter().zip(shares) {
            sender
                .send(share)
                .expect("a helper lives until its sender is dropped");
        }
        let mut done = self.own.round(own);
        for (_, receiver) in &self.helpers {
            done.extend(receiver.recv().expect("a helper answers every round"));
        }
        done.sort_unstable_by_key(|&(id, _)| id);
        done
    }
}
