//! The gain of removing a cause, by the account of requests: how long one would take without that part of its time.
//!
//! This module has the prediction. It is never measured here, and so it is a range, and left out where the account does not tell: of
//! flows and threads, of connections and datagrams that were turned away, and of requests that did nothing but wait.
use parshall_evidence::Gain;

use crate::judge::cause::Candidate;
use crate::stats::ratio;

/// The predicted gain of removing the cause of this candidate.
pub fn of(candidate: &Candidate) -> Option<Gain> {
    let loss = candidate.requests.as_ref().filter(|loss| !loss.waited && candidate.refused.is_none())?;
    // A wait behind the same wait of others is part of the loss, and goes with it.
    let requests = ratio(loss.ns, loss.each_ns);
    let now_ns = ratio(loss.time_ns, requests);
    let without = |removed: f64| ratio(loss.time_ns - removed, requests).max(loss.least_ns).clamp(0.0, now_ns) / 1e6;
    let gain = Gain { now_ms: now_ns / 1e6, without_ms: (without(loss.ns), without(loss.ns * loss.step)) };
    (requests > 0.0 && gain.now_ms.is_finite()).then_some(gain)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{HopKind, Limit};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};

    fn wait(kind: HopKind, syscall: &str) -> Hops {
        Hops::new().thread(100, 101, "app").on(kind, syscall)
    }

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() <= 0.01 * right.abs().max(0.1)
    }

    #[test]
    fn a_request_takes_what_the_rest_of_it_takes() {
        let queued = Hops::new().thread(100, 101, "app").on(HopKind::Unread, "").on(HopKind::Disk, "fsync");
        let service =
            ServiceBuilder::new(7000).requests(60, 16.0).part(wait(HopKind::Disk, "fsync"), 0.3).part(queued, 0.5);
        let report = judge(&with(service.cpu(0.2)));
        let gain = report.findings[0].gain.expect("an account of requests");
        // The wait behind the same wait of another request goes, too.
        assert!(near(gain.now_ms, 16.0) && near(gain.without_ms.0, 3.2) && near(gain.without_ms.1, 3.2), "{gain:?}");
    }

    #[test]
    fn the_cause_that_gives_most_is_the_first_and_one_that_is_true_and_small_says_so() {
        let disk = |share: f64| ServiceBuilder::new(7000).requests(60, 16.0).part(wait(HopKind::Disk, "fsync"), share);
        let report = judge(&with(disk(0.6).part(wait(HopKind::NameServer, "poll"), 0.4)));
        let gains: Vec<f64> =
            report.findings.iter().filter_map(|f| f.gain).map(|g| g.now_ms - g.without_ms.0).collect();
        assert_eq!(report.findings[0].cause, "blocking-disk-io");
        assert!(gains.len() == 2 && gains[0] > gains[1], "{gains:?}");
    }

    #[test]
    fn one_more_worker_does_not_give_what_enough_of_them_would() {
        let queue = Hops::new().thread(100, 101, "app").on(HopKind::AcceptQueue, "").on(HopKind::Timer, "nanosleep");
        let service =
            ServiceBuilder::new(7000).requests(50, 120.0).part(queue, 0.8).part(wait(HopKind::Timer, "nanosleep"), 0.2);
        let mut capture = with(service.workers(4));
        capture.services[0].limits = vec![Limit {
            next: None,
            by_connections: false,
            blocks: false,
            most: 4,
            waiting: 16.0,
            reached_ns: 9,
            beyond_ns: 9,
            each_ns: 9,
        }];
        let report = judge(&capture);
        let finding = &report.findings[0];
        let gain = finding.gain.expect("an account of requests");
        assert_eq!(finding.cause, "workers-exhausted");
        assert!(near(gain.without_ms.0, 24.0) && near(gain.without_ms.1, 120.0 - 96.0 / 5.0), "{gain:?}");
    }

    #[test]
    fn what_waited_for_all_of_the_window_has_no_time_to_compare_with() {
        let mut service = ServiceBuilder::new(7000).unanswered(3, 900.0).part(wait(HopKind::Disk, "fsync"), 1.0);
        service.record.waited = true;
        let report = judge(&with(service));
        assert!(
            !report.findings.is_empty() && report.findings.iter().all(|f| f.gain.is_none()),
            "{:?}",
            report.findings
        );
    }
}
