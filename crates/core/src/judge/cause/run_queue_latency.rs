//! Threads with a request could run and wait for a CPU, on which a process that has nothing to do with the service runs.
//!
//! Look-alikes: quota (cpu-throttled), and CPUs that the service and its own clients fill (at capacity, or user-cpu-bound).
use super::common::{Waits, not_spent};
use super::{Cause, Outcome};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};
use crate::judge::words;
use crate::stats::ratio;

/// The entry in the list.
pub const CAUSE: Cause = Cause { id: "run-queue-latency", title: "Requests wait for a CPU that others use", test };

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::RunQueue) else { return not_spent(facts, Spent::RunQueue) };
    let leaf = waits.leaf;
    let who = &leaf.target;
    let summary = format!(
        "{}: {} could run and waits for a CPU, on which {who} runs, {} a request.",
        waits.share_words(),
        named(leaf),
        waits.each()
    );
    let mut evidence = Vec::new();
    if let Some(p99) = facts.runq_p99_us() {
        evidence.push(words::valued("run queue wait, p99 below", p99 / 1e3, "ms"));
    }
    if let Some(busy) = facts.capture.host.busy_ns {
        let all = facts.capture.window_ns as f64 * f64::from(facts.capture.host.cpus.max(1));
        evidence.push(words::valued("of all CPUs' time, busy", ratio(busy as f64, all).min(1.0), "1"));
    }
    let fix = format!(
        "Keep {who} off the service's CPUs, or lower its priority (renice, cpu.weight), or give the service CPUs of its own \
         (taskset -cp CPUS {}). Who uses the CPUs: ps -eo pid,psr,ni,pcpu,comm --sort=-pcpu",
        leaf.pid
    );
    waits.candidate(summary, evidence, fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::HopKind;

    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::verdict_of;

    fn waits_while(runs: &str) -> ServiceBuilder {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::RunQueue, "").target(runs);
        ServiceBuilder::new(7000).requests(100, 20.0).part(way, 0.8).cpu(0.2)
    }

    #[test]
    fn names_who_ran_instead() {
        let report = crate::judge::judge(&with(waits_while("sh")));
        assert_eq!(report.verdict.cause.as_deref(), Some("run-queue-latency"));
        assert!(report.verdict.summary.contains("on which sh runs"), "{}", report.verdict.summary);
    }

    #[test]
    fn behind_its_own_threads_it_is_their_work() {
        assert_eq!(verdict_of(&with(waits_while("app"))), "user-cpu-bound");
        let cheap = Hops::new().thread(100, 101, "app").on(HopKind::RunQueue, "").target("app");
        let service = ServiceBuilder::new(7000).requests(5000, 0.9).part(cheap, 0.9).cpu(0.1);
        assert_eq!(verdict_of(&with(service)), "healthy");
    }
}
