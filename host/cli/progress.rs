//! A progress bar for runs that take longer than a second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// Runs shorter than this show nothing.
const DELAY: Duration = Duration::from_secs(1);

/// Progress over a number of elements: on standard error, and only where that is a terminal.
/// Clones show the same bar.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
}

impl Progress {
    /// Progress that starts now.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if let Ok(style) =
            ProgressStyle::with_template("{elapsed} {wide_bar} {percent:>3} % {msg:40}")
        {
            bar.set_style(style);
        }
        Self {
            bar,
            started: Instant::now(),
        }
    }

    /// How many elements there will be.
    pub fn expect(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Says what happens from here on.
    pub fn stage(&self, what: impl Into<Cow<'static, str>>) {
        self.bar.set_message(what);
        self.advance(0);
    }

    /// Says how far a kernel is, which counts for nothing by itself.
    pub fn detail(&self, kernel: &str, finished: u32, grid: u32) {
        self.show();
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{kernel} {finished}/{grid}"));
        }
    }

    /// Counts `elements` as done.
    pub fn advance(&self, elements: u64) {
        self.show();
        self.bar.inc(elements);
    }

    /// Does `write`, which prints, while the bar is out of the way.
    pub fn hidden<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn show(&self) {
        if self.bar.is_hidden() && self.started.elapsed() >= DELAY {
            // Hidden still where standard error is not a terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}
