//! Requests wait in the accept queue or unread while all workers are blocked in other requests.
//!
//! Look-alikes: one worker (serialized-service), workers that wait for a disk, a lock, a name server, another server or their quota
//! (that is the cause then), and workers at work on a CPU (user-cpu-bound, or at capacity).
use super::common::{Waits, limited, not_spent, outstanding};
use super::{Cause, Outcome, record};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "workers-exhausted",
    title: "All workers are blocked",
    test,
    symptom: |facts| facts.requests.share(Spent::Workers),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Workers) else { return not_spent(facts, Spent::Workers) };
    let did = waits.loss.chain.last().map(|h| h.text.clone()).unwrap_or_default();
    let (holder, at_a_time) = waits.queue().unwrap_or((waits.leaf, waits.service.rec.workers));
    let summary = waits.summary(&format!(
        "Requests wait {} until one of {} of {} is free; {} {did}.",
        waits.each(),
        units::plural(u64::from(at_a_time), "worker", "workers"),
        units::or(&holder.process, "the service"),
        named(waits.leaf)
    ));
    let mut evidence = vec![
        outstanding(waits.service),
        words::valued("requests worked on at a time, mean", waits.at_a_time(), "requests"),
        words::valued("threads that read or answer", f64::from(waits.service.rec.workers), "threads"),
    ];
    evidence.extend(waits.limit_in_hands(holder.pid).into_iter().flat_map(limited));
    let fix = format!(
        "Run more workers of {}, or let them not block on this in a request.",
        units::or(&holder.process, "this service")
    );
    waits.candidate(summary, evidence, fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::HopKind;

    use crate::testkit::service::{Hops, ServiceBuilder, with};

    #[test]
    fn says_on_what_they_are_blocked() {
        let thread = || Hops::new().thread(100, 101, "java");
        let queue = thread().on(HopKind::Unread, "").on(HopKind::Timer, "futex");
        let own = thread().on(HopKind::Timer, "futex");
        let service =
            ServiceBuilder::new(8080).requests(66, 160.0).workers(2).part(queue, 0.8).part(own, 0.19).cpu(0.01);
        let report = crate::judge::judge(&with(service));
        assert_eq!(report.verdict.cause.as_deref(), Some("workers-exhausted"));
        assert!(report.verdict.summary.contains("2 workers"), "{}", report.verdict.summary);
        assert!(report.verdict.summary.contains("timer in futex"), "{}", report.verdict.summary);
    }
}
