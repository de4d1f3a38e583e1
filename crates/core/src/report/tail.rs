//! The waits of the slowest requests of a service, in a line.
use parshall_evidence::{Report, ServiceReport, TailReport, TimeShare};

use super::page::{Detail, Title};
use super::spent::spent;
use crate::units::{percent_fixed, time_ms};

/// States that are named, and the least share of one beside the first.
const STATES_MAX: usize = 3;
const STATE_MIN: f64 = 0.1;

/// The state of what is not counted as lost. It says nothing of requests that are hardly slower than the others.
const NOT_LOST: &str = "work";

/// `p99 16 ms: 94 % waiting for a CPU, behind hog.py`. A short page has it only where the slowest requests are much slower than the others.
pub(super) fn line(report: &Report, detail: Detail) -> Option<(Title, String)> {
    let service = report.service.as_ref()?;
    let known = |tail: &&TailReport| tail.time.first().is_some_and(|state| state.state != NOT_LOST);
    let tail = service.tail.as_ref().filter(|tail| tail.notable || (detail == Detail::Full && known(tail)))?;
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
        shown.map(|(_, state)| format!("{} {}", percent_fixed(state.share), label(state))).collect();
    // Nobody is to blame for what is not counted as lost.
    let blamed = tail.time.first().is_some_and(|state| state.state != NOT_LOST) && !tail.behind.is_empty();
    let behind = if blamed { format!(", behind {}", tail.behind) } else { String::new() };
    format!("{from}: {}{behind}", states.join(", "))
}

/// A state as the other accounts of a page name it.
fn label(state: &TimeShare) -> &str {
    match state.state.as_str() {
        NOT_LOST => "not counted as lost",
        _ => spent(&state.label),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(state: &str, label: &str, notable: bool) -> Report {
        let time = vec![TimeShare { state: state.into(), label: label.into(), ms: 9.0, share: 0.99 }];
        let tail = TailReport { from_ms: 62.0, notable, time, behind: "hog 812".into(), ..TailReport::default() };
        let service = ServiceReport { p99_ms: Some(62.3), tail: Some(tail), ..ServiceReport::default() };
        Report { service: Some(service), ..crate::judge::judge(&crate::testkit::empty_capture()) }
    }

    fn line_of(report: &Report, detail: Detail) -> Option<String> {
        line(report, detail).map(|(_, line)| line)
    }

    #[test]
    fn requests_that_are_hardly_slower_than_others_are_not_said_to_work() {
        let line = |notable| line_of(&tail("work", "work", notable), Detail::Full);
        assert_eq!(line(false), None);
        assert_eq!(line(true).as_deref(), Some("p99 62.3 ms: 99.0 % not counted as lost"));
    }

    #[test]
    fn a_wait_has_the_words_of_the_other_accounts_and_whoever_is_to_blame() {
        let report = tail("run-queue", "run queue", false);
        assert_eq!(line_of(&report, Detail::Short), None);
        let line = line_of(&report, Detail::Full);
        assert_eq!(line.as_deref(), Some("p99 62.3 ms: 99.0 % waiting for a CPU, behind hog 812"));
    }
}
