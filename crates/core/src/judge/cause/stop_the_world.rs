//! Requests wait until a garbage collector is done. It is known by the name of the thread that ends the wait, for which all threads of a
//! runtime stand still (the JVM's `VM Thread`, `GC Thread#0`, ...), or by its functions, where the threads that compute collect as well:
//! most of the samples of the process that the requests wait for are in them.
//!
//! Look-alikes: quota and SIGSTOP (the threads did not wait for each other), a lock that one of the application's threads holds.
use parshall_evidence::{Evidence, HopKind};

use super::base::{Candidate, Cause, Outcome};
use super::common::{Mode, Waits, hottest_of_process, not_spent};
use crate::judge::chain::named;
use crate::judge::facts::requests::is_collector;
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "stop-the-world",
    title: "Garbage collection stops all threads",
    test,
    symptom: |facts| facts.requests.share(Spent::StopTheWorld),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::StopTheWorld) else { return not_spent(facts, Spent::StopTheWorld) };
    let Some(collector) = waits.hop(|h| is_collector(&h.thread)) else { return in_the_threads(facts, waits).holds() };
    let summary = waits.summary(&format!(
        "The threads of {} wait until {} is done, {} a request.",
        units::or(&collector.process, "the process"),
        named(collector),
        waits.each()
    ));
    let busy: f64 = facts
        .threads_of(collector.pid)
        .filter(|t| is_collector(&t.rec.comm))
        .map(|t| ratio(t.ledger.on_cpu(), t.ledger.wall_ns))
        .sum();
    // No thread of it was seen on a CPU where it only waits for the last one to stop.
    let used = (busy > 0.0).then(|| words::valued("CPUs that the collector's threads use", busy, "CPUs"));
    let evidence: Vec<Evidence> = used.into_iter().collect();
    // The collector only waits for the last thread that has not stopped: memory is not what it lacks.
    if !is_collector(&waits.leaf.thread) && matches!(waits.leaf.kind, HopKind::OnCpu | HopKind::RunQueue) {
        let late = format!(
            "{} does not reach its safepoint: find the loop or the call that it is in (Java: `-Xlog:safepoint`, \
             `-XX:+UseCountedLoopSafepoints`). More memory does not help.",
            named(waits.leaf)
        );
        return waits.candidate(summary, evidence, late).holds();
    }
    let fix = format!(
        "Give the heap room or let it hold less; where requests call the collector themselves, remove that (Java: \
         `-XX:+DisableExplicitGC`). What it does: `jcmd {} GC.heap_info`; start it with `-Xlog:gc`",
        collector.pid
    );
    waits.candidate(summary, evidence, fix).holds()
}

/// A collector without a thread of its own.
fn in_the_threads(facts: &Facts<'_>, waits: Waits<'_, '_>) -> Candidate {
    let leaf = waits.leaf;
    let share = facts.requests.code.collects_share(leaf.pid);
    let summary = waits.summary(&format!(
        "{} collects garbage meanwhile, {} a request: {} of the CPU samples of {} are in its collector.",
        named(leaf),
        waits.each(),
        units::percent(share),
        units::or(&leaf.process, "the process"),
    ));
    let mut evidence = vec![words::valued("samples of this process in its garbage collector", share, "1")];
    evidence.extend(hottest_of_process(facts, leaf.pid, Mode::User));
    let fix = "Give the heap room (Node: `--max-old-space-size`, GHC: `+RTS -M -A -F`), or let it hold less; where it is collected because \
               the program is idle or a call asks for it, remove that (GHC: `+RTS -I0`, or a longer `-Iw`).";
    waits.candidate(summary, evidence, fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::service::{Hops, ServiceBuilder, with};

    #[test]
    fn a_collector_ends_the_wait() {
        let way = Hops::new().thread(100, 105, "java").on(HopKind::Lock, "futex").thread(100, 103, "java");
        let way = way.named("VM Thread").on(HopKind::OnCpu, "");
        let service = ServiceBuilder::new(8080).requests(30, 130.0).part(way, 0.9).cpu(0.1);
        let report = crate::judge::judge(&with(service));
        assert_eq!(report.verdict.cause.as_deref(), Some("stop-the-world"));
        assert!(report.verdict.summary.contains("thread 103 VM Thread"), "{}", report.verdict.summary);
        assert!(report.findings[0].fix.text.contains("heap"), "{}", report.findings[0].fix.text);
        // None of its threads is on record: that they used no CPU is not known.
        assert_eq!(report.findings[0].evidence.iter().find(|e| e.what.starts_with("CPUs")), None);
    }

    #[test]
    fn a_thread_that_does_not_stop_needs_no_heap() {
        let way = Hops::new().thread(100, 105, "java").on(HopKind::Lock, "futex").thread(100, 103, "java");
        let way = way.named("VM Thread").on(HopKind::Worker, "futex").thread(100, 120, "java").named("cruncher");
        let service = ServiceBuilder::new(8080).requests(30, 130.0).part(way.on(HopKind::OnCpu, ""), 0.9).cpu(0.1);
        let report = crate::judge::judge(&with(service));
        assert_eq!(report.verdict.cause.as_deref(), Some("stop-the-world"));
        let fix = &report.findings[0].fix.text;
        assert!(fix.contains("cruncher") && fix.contains("safepoint") && !fix.contains("heap"), "{fix}");
    }
}
