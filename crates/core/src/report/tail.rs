//! The waits of the slowest requests of a service, in a line.
use parshall_evidence::{Report, ServiceReport, TailReport};

use super::page::{Detail, Title};
use crate::units::{percent_fixed, time_ms};

/// States that are named, and the least share of one beside the first.
const STATES_MAX: usize = 3;
const STATE_MIN: f64 = 0.1;

/// `p99 16 ms: 94 % run queue, behind hog.py`. A short page has it only where the slowest requests are much slower than the others.
pub(super) fn line(report: &Report, detail: Detail) -> Option<(Title, String)> {
    let service = report.service.as_ref()?;
    let tail = service.tail.as_ref().filter(|tail| tail.notable || detail == Detail::Full)?;
    (!tail.time.is_empty()).then(|| (Title("TAIL"), words(service, tail)))
}

fn words(service: &ServiceReport, tail: &TailReport) -> String {
    let about = if service.scaled { "≈" } else { "" };
    let from = match service.p99_ms {
        Some(p99) => format!("p99 {about}{}", time_ms(p99)),
        None => format!("from {about}{}", time_ms(tail.from_ms)),
    };
    let shown = tail.time.iter().enumerate().filter(|(i, state)| *i == 0 || state.share >= STATE_MIN).take(STATES_MAX);
    let states: Vec<String> =
        shown.map(|(_, state)| format!("{} {}", percent_fixed(state.share), state.label)).collect();
    let behind = if tail.behind.is_empty() { String::new() } else { format!(", behind {}", tail.behind) };
    format!("{from}: {}{behind}", states.join(", "))
}
