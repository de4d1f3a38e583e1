//! The validated request of `parshall try`.
use std::time::Duration;

use parshall_host::output::Output;

use super::change::Change;
use crate::request::ObserveOptions;
use crate::subject::Select;

/// A validated `parshall try`.
#[derive(Debug, Clone)]
pub struct TryRequest {
    pub change: Change,
    /// The subject.
    pub select: Select,
    /// How many pairs of windows.
    pub pairs: u32,
    /// How each window is observed, and how long.
    pub observe: ObserveOptions,
    /// Ask before the change is made.
    pub ask: bool,
    /// How the result is printed.
    pub output: Output,
}

impl TryRequest {
    /// The time after a switch that belongs to no window, so that earlier requests and delayed ACKs (40 ms) have ended.
    pub fn settle(&self) -> Duration {
        (self.observe.window / 5).clamp(Duration::from_millis(100), Duration::from_secs(5))
    }

    /// About how long the whole takes. A window is begun and evaluated in some 100 ms.
    pub fn takes(&self) -> Duration {
        let each = self.observe.window + self.settle() + Duration::from_millis(100);
        each * (2 * self.pairs + 1)
    }
}
