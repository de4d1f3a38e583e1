//! The window of an observation, for all rungs: what ends it early, and its progress bar.
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::request::ObserveOptions;

/// When an observation ends before its window does.
pub trait Stop {
    /// Called once, when everything is attached and the window begins.
    fn attached(&self) -> anyhow::Result<()> {
        Ok(())
    }
    /// Called once, when the window is over and before anything else is read.
    fn ended(&self) {}
    /// Whether the user ends the observation.
    fn requested(&self) -> bool;
    /// Whether no process of the subject is left.
    fn subject_gone(&self) -> bool;
}

/// A bar on stderr while the window runs.
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// Draws only when the options say so.
    pub fn new(options: &ObserveOptions) -> Self {
        Self(options.progress.then(|| {
            let bar = ProgressBar::new(options.window.as_millis() as u64);
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
