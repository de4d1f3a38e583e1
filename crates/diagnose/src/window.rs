//! A window of an observation, on every rung: how one is begun, watched and ended, what ends it early, and its progress bar.
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::request::ObserveOptions;
use crate::seen::Seen;
use crate::subject::Resolved;

/// A way to observe, such as the btf probes.
pub trait Rung {
    /// Attaches to the subject. No window has begun yet.
    fn open(&self, resolved: &Resolved, options: &ObserveOptions) -> Result<Box<dyn Attached>>;
}

/// The attached probes of a rung. They stay so from window to window; between two of them nothing runs that costs the subject something for
/// each event. Dropping it detaches everything.
pub trait Attached {
    /// Begins a window: from now on everything counts, and nothing of what was before.
    fn begin<'a>(&'a mut self, resolved: &'a Resolved) -> Result<Box<dyn Window + 'a>>;
}

/// A window that has begun.
pub trait Window {
    /// Observes until `limit` has passed since the begin, the subject is gone, or the user stops it.
    fn watch(&mut self, limit: Duration, stop: &dyn Stop, progress: &mut Progress) -> Result<()>;
    /// Whether it has seen what the subject needs to be observed by, and had not from its begin on: a new window sees all of it.
    /// Only where `stop` allows it.
    fn begins_again(&self) -> bool {
        false
    }
    /// The evidence of the window, which must have been watched.
    fn end(self: Box<Self>) -> Result<Seen>;
}

/// When a window ends before its time.
pub trait Stop {
    /// Whether the user ends the observation.
    fn requested(&self) -> bool;
    /// Whether no process of the subject is left.
    fn subject_gone(&self) -> bool;
    /// Whether a window may begin anew: the begin of a command is seen but once.
    fn may_begin_again(&self) -> bool {
        false
    }
}

/// A bar on stderr while a window runs.
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// Of a window of at most `limit`; draws only if `shown`.
    pub fn new(shown: bool, limit: Duration) -> Self {
        Self(shown.then(|| {
            let bar = ProgressBar::new(limit.as_millis() as u64);
            if let Ok(style) = ProgressStyle::with_template("observing {wide_bar} {msg}") {
                bar.set_style(style);
            }
            bar
        }))
    }

    /// Moves to `elapsed`.
    pub fn at(&mut self, elapsed: Duration) {
        if let Some(bar) = &self.0 {
            bar.set_position(elapsed.as_millis() as u64);
            bar.set_message(format!("{:.1} s", elapsed.as_secs_f64()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
