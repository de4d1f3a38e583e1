//! The host's activity during a trial, and whether it spoilt the trial. The limits are set before the first trial and know nothing of
//! what was measured, so leaving trials out by them favours no variant.
use serde::{Deserialize, Serialize};

use crate::units;

/// The host's activity during a trial. None where the host does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Share of the time of all CPUs that the hypervisor gave to others (`steal` in /proc/stat).
    pub steal: Option<f64>,
    /// Share of the time of all CPUs that other processes used: user and system time without that of the trial.
    pub other_cpu: Option<f64>,
    /// Share of the time of all CPUs in which they were not idle.
    pub busy: Option<f64>,
    /// Share of the time in which some task waited for memory (/proc/pressure/memory).
    pub memory_pressure: Option<f64>,
    /// The same for I/O.
    pub io_pressure: Option<f64>,
    /// The lowest clock frequency of any CPU at the end, as a share of the highest that it can have.
    pub frequency: Option<f64>,
}

/// From where on a trial counts as spoilt. None for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    #[allow(missing_docs)]
    pub steal: Option<f64>,
    #[allow(missing_docs)]
    pub other_cpu: Option<f64>,
    #[allow(missing_docs)]
    pub memory_pressure: Option<f64>,
    #[allow(missing_docs)]
    pub io_pressure: Option<f64>,
    /// The least share of the highest frequency.
    pub frequency: Option<f64>,
}

impl Default for Limits {
    /// Only what no trial causes by itself is limited.
    fn default() -> Self {
        Self { steal: Some(0.02), other_cpu: None, memory_pressure: None, io_pressure: None, frequency: None }
    }
}

impl Limits {
    /// Why the trial is spoilt; None if it is not. A figure that the host does not give is no reason.
    pub fn breached(&self, found: &Conditions) -> Option<String> {
        let above = [
            ("steal", found.steal, self.steal),
            ("CPU time of other processes", found.other_cpu, self.other_cpu),
            ("memory pressure", found.memory_pressure, self.memory_pressure),
            ("I/O pressure", found.io_pressure, self.io_pressure),
        ];
        let text = |what: &str, value: f64, sign: &str, limit: f64| {
            format!("{what} {} {sign} {}", units::percent(value), units::percent(limit))
        };
        let high = above.into_iter().find_map(|(what, value, limit)| {
            let (value, limit) = (value?, limit?);
            (value > limit).then(|| text(what, value, ">", limit))
        });
        let (value, limit) = (found.frequency.unwrap_or(1.0), self.frequency.unwrap_or(0.0));
        high.or_else(|| (value < limit).then(|| text("frequency", value, "<", limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_breached_beyond_it_only() {
        let found = |steal| Conditions { steal: Some(steal), ..Conditions::default() };
        assert_eq!(Limits::default().breached(&found(0.02)), None);
        assert_eq!(Limits::default().breached(&found(0.05)), Some("steal 5 % > 2 %".to_owned()));
        assert_eq!(Limits::default().breached(&Conditions::default()), None);
    }

    #[test]
    fn a_low_frequency_is_a_breach_and_none_at_all_is_not() {
        let limits = Limits { frequency: Some(0.9), ..Limits::default() };
        let slow = Conditions { frequency: Some(0.5), ..Conditions::default() };
        assert_eq!(limits.breached(&slow), Some("frequency 50 % < 90 %".to_owned()));
        assert_eq!(limits.breached(&Conditions::default()), None);
    }
}
