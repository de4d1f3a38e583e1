//! Figures of a report that contradict each other, whatever the capture was: a reader who finds one trusts none of them.
use parshall_evidence::{Evidence, Report, RuledOut, ServiceReport};

use crate::judge::cause::CAUSES;
use crate::judge::facts::Facts;

/// Shares and sums are rounded.
const SLACK: f64 = 1e-6;

/// The contradictions of a report, a sentence each. A report that is printed has none; a property test feeds arbitrary captures.
pub fn contradictions(report: &Report) -> Vec<String> {
    let mut found: Vec<String> = report.services.iter().filter_map(service).collect();
    let window_ms = report.window_s * 1e3;
    for finding in &report.findings {
        found.extend(finding.evidence.iter().filter_map(|item| evidence(&finding.cause, item)));
        let of_requests = !finding.chain.is_empty();
        let what = match () {
            () if of_requests && finding.place.requests == 0 => "takes time of 0 requests",
            () if finding.lost_ms > window_ms * (1.0 + SLACK) => "takes longer than the window on average",
            () if !(0.0..=1.0).contains(&finding.share) || !(0.0..=1.0).contains(&finding.lost_share) => {
                "takes more than all of the time"
            }
            () => continue,
        };
        found.push(format!("{} {what}", finding.cause));
    }
    found
}

/// Causes that are ruled out against the record, or although nothing was seen of the evidence that they need, a sentence each.
pub fn denials(facts: &Facts<'_>, ruled_out: &[RuledOut]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in ruled_out {
        let Some(cause) = CAUSES.iter().find(|cause| cause.id == entry.cause) else { continue };
        if !(cause.testable)(facts) {
            found.push(format!("{} is ruled out, and what tells of it was not seen", cause.id));
        } else if !entry.seen && (cause.symptom)(facts) > 0.0 {
            found.push(format!("nothing was seen of {}, and it is on record", cause.id));
        }
    }
    found
}

fn service(service: &ServiceReport) -> Option<String> {
    let what = match service {
        s if above(s.p50_ms, s.p99_ms) => "its median is above its 99th percentile",
        s if s.requests_per_s == 0.0 && s.p50_ms.or(s.mean_ms).is_some() => {
            "requests that were not answered took a time"
        }
        s if s.unanswered == 0 && s.unanswered_longest_ms > 0.0 => "none waits, and one has waited",
        _ => return None,
    };
    Some(format!("service {}: {what}", service.address))
}

fn above(low: Option<f64>, high: Option<f64>) -> bool {
    low.zip(high).is_some_and(|(low, high)| low > high * (1.0 + SLACK))
}

fn evidence(cause: &str, item: &Evidence) -> Option<String> {
    let timed = item.mean_ms.or(item.max_ms).is_some();
    let what = match item {
        i if above(i.mean_ms, i.max_ms) => "has a mean above its maximum",
        i if above(i.p50_ms, i.p99_ms) => "has a median above its 99th percentile",
        i if timed && i.count == Some(0) => "has a duration, and did not happen",
        _ => return None,
    };
    Some(format!("{cause}: {:?} {what}", item.what))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::judge::judge;
    use crate::testkit::arb;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use parshall_evidence::HopKind;

    #[test]
    fn each_kind_is_found() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Disk, "fsync");
        let fine = judge(&with(ServiceBuilder::new(7000).requests(60, 16.0).part(way, 0.9).cpu(0.1)));
        assert!(contradictions(&fine).is_empty(), "{fine:#?}");
        let with = |change: fn(&mut Report)| {
            let mut report = fine.clone();
            change(&mut report);
            contradictions(&report)
        };
        for (change, words) in [
            ((|r| r.findings[0].evidence[0].mean_ms = Some(1e6)) as fn(&mut Report), "mean above its maximum"),
            (|r| r.findings[0].evidence[0].count = Some(0), "did not happen"),
            (|r| r.findings[0].place.requests = 0, "0 requests"),
            (|r| r.findings[0].lost_ms = 1e9, "longer than the window"),
            (|r| r.services[0].p50_ms = Some(1e9), "99th percentile"),
            (|r| r.services[0].requests_per_s = 0.0, "not answered took"),
            (|r| r.services[0].unanswered_longest_ms = 1.0, "none waits"),
        ] {
            let found = with(change);
            assert!(found.len() == 1 && found[0].contains(words), "{words}: {found:?}");
        }
    }

    #[test]
    fn requests_that_slices_cut_are_counted() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Disk, "fsync");
        let mut service = ServiceBuilder::new(7000).requests(6, 300.0).part(way, 1.0);
        service.record.requests = 0;
        let report = judge(&with(service));
        let finding = &report.findings[0];
        assert!(finding.place.requests == 6 && finding.lost_ms < 301.0, "{finding:#?}");
    }

    proptest! {
        #[test]
        fn no_report_contradicts_itself(capture in arb::capture()) {
            prop_assert_eq!(contradictions(&judge(&capture)), Vec::<String>::new());
        }
    }
}
