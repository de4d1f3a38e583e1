//! One observation, from attach to capture.
use std::time::Duration;

use parshall_evidence::{Capture, Rung};

use super::subject::Select;

/// How to observe.
#[derive(Debug, Clone)]
pub struct ObserveOptions {
    /// Length of the window.
    pub window: Duration,
    /// The best rung to use; None for the best the host offers.
    pub rung: Option<Rung>,
    /// Draw progress on stderr.
    pub progress: bool,
}

/// Observes the subject for the window, or until its last process exits or the user interrupts.
pub fn observe(_select: &Select, _options: &ObserveOptions) -> anyhow::Result<Capture> {
    anyhow::bail!("to be written")
}
