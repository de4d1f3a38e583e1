//! Threads with a request could run and wait for a CPU, on which a process that has nothing to do with the service runs.
//!
//! Look-alikes: quota (cpu-throttled), and CPUs that the service and its own clients fill (at capacity, or user-cpu-bound). On the rungs
//! without single requests the threads show it, if others used the CPUs meanwhile.
use std::collections::BTreeSet;

use parshall_evidence::{Place, Rung};

use super::base::{Candidate, Cause, Outcome, RequestLoss, ThreadLoss, denied, thread_name};
use super::common::{Waits, not_spent};
use crate::judge::chain::named;
use crate::judge::confidence::Gap;
use crate::judge::denial::{Denial, amount};
use crate::judge::facts::{Facts, Lost, Shape, Spent, ThreadFact};
use crate::judge::ledger::thread::State;
use crate::judge::record;
use crate::judge::words;
use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "run-queue-latency",
    title: "Requests wait for a CPU that others use",
    test,
    symptom: |facts| facts.requests.share(Spent::RunQueue),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::RunQueue) else {
        return of_threads(facts).map_or_else(|| not_spent(facts, Spent::RunQueue), Candidate::holds);
    };
    if !is_noticed(&waits.loss) {
        let why = format!("under {}, and most of a request's time is something else", units::duration(NOTICED_NS));
        return denied(
            Denial::of(amount(waits.loss.each_ns / 1e6, "ms", "a request behind other programs")).seen().because(why),
        );
    }
    let leaf = waits.leaf;
    let who = &leaf.target;
    let summary = waits.summary(&format!(
        "{} could run and waits for a CPU, on which {who} runs, {} a request.",
        named(leaf),
        waits.each()
    ));
    let mut evidence = Vec::new();
    if let Some(p99) = facts.runq_p99_us() {
        evidence.push(words::valued("run queue wait, p99 below", p99 / 1e3, "ms"));
    }
    if let Some(busy) = facts.capture.host.busy_ns {
        let all = facts.capture.window_ns as f64 * f64::from(facts.capture.host.cpus.max(1));
        evidence.push(words::valued("of all CPUs' time, busy", ratio(busy as f64, all).min(1.0), "1"));
    }
    waits.candidate(summary, evidence, fix(who, "its", leaf.pid)).holds()
}

/// A host with more than one program lets each of them wait for a CPU for fractions of this time, in nanoseconds.
const NOTICED_NS: f64 = 1e6;
/// A shorter wait is noticed only where it is this share of the requests' time or more: they take three times as long as alone.
const MOST_OF_TIME: f64 = 2.0 / 3.0;

/// Whether clients notice it.
fn is_noticed(loss: &RequestLoss) -> bool {
    loss.waited || loss.each_ns >= NOTICED_NS || loss.ns >= MOST_OF_TIME * loss.time_ns
}

/// Advice against `who`, whose (`its`) programs use the CPUs of the service `pid`.
fn fix(who: &str, its: &str, pid: u32) -> String {
    format!(
        "Keep {who} off the service's CPUs, or lower {its} priority (renice, cpu.weight), or give the service CPUs of its own (`taskset -cp \
         CPUS {pid}`). Who uses the CPUs: `ps -eo pid,psr,ni,pcpu,comm --sort=-pcpu`"
    )
}

/// Share of the window from which a thread's waits for a CPU count, if they are as long as it runs.
const MIN_RUNNABLE: f64 = 0.20;

/// Threads that wait for a CPU as long as they run or longer, while others use as much of the CPUs as these waits are long: those of
/// processes whose connections moved data, since what a child does in the background delays no client. The rung btf sees what was lost to
/// it, by request and by flow.
fn of_threads(facts: &Facts<'_>) -> Option<Candidate> {
    if facts.capture.rung == Rung::Btf {
        return None;
    }
    let active = facts.flows.iter().filter(|flow| flow.shape != Shape::Idle);
    let serving: BTreeSet<u32> = active.map(|flow| flow.rec.pid).into_set();
    let runnable = |t: &ThreadFact<'_>| t.ledger.of(State::Runnable);
    let waits = |t: &&ThreadFact<'_>| {
        serving.contains(&t.rec.pid)
            && ratio(runnable(t), facts.capture.window_ns as f64) >= MIN_RUNNABLE
            && runnable(t) >= t.ledger.on_cpu()
    };
    let waiting: Vec<&ThreadFact<'_>> = facts.threads.iter().filter(waits).collect();
    let worst = *waiting.iter().max_by(|a, b| runnable(a).total_cmp(&runnable(b)))?;
    let others = facts.capture.host.busy_ns? as f64 - facts.cpu_ns();
    if others < runnable(worst) {
        return None;
    }
    let share = ratio(runnable(worst), worst.ledger.wall_ns);
    let name = words::begun(&thread_name(facts, worst.rec.tid));
    let summary = format!(
        "{name} could run, and waits for a CPU for longer than it runs; programs beside the subject use {} of CPU time a second meanwhile.",
        units::duration(ratio(others, facts.window_s()))
    );
    let evidence = vec![
        words::valued("thread ready and not on a CPU", share, "1"),
        words::valued("CPUs that others use", ratio(others, facts.capture.window_ns as f64), "CPUs"),
    ];
    let fix = fix("others", "their", worst.rec.pid);
    let place = Place { pid: Some(worst.rec.pid), tid: Some(worst.rec.tid), ..Place::default() };
    let mut candidate = Candidate::new(Lost::default(), place, summary, evidence, fix);
    candidate.thread = Some(ThreadLoss {
        ns: waiting.iter().map(|t| runnable(t)).sum(),
        wall_ns: waiting.iter().map(|t| t.ledger.wall_ns).sum(),
        tids: waiting.iter().map(|t| t.rec.tid).collect(),
    });
    candidate.gaps.push(Gap::Inferred("no request was seen to wait for it"));
    Some(candidate)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FdKind, HopKind, Role, Rung};

    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, WINDOW_NS, capture, verdict_of};

    /// A thread that runs for 2 ms of 10, sleeps for `sleep_ms` and waits for a CPU for the rest, while all CPUs are busy for `busy` windows.
    fn beside_others(sleep_ms: u64, busy: f64) -> String {
        of_process(100, sleep_ms, busy)
    }

    /// The same for a thread of this process; the connections that move data are those of 100.
    fn of_process(pid: u32, sleep_ms: u64, busy: f64) -> String {
        let thread = ThreadBuilder::new(101).of(pid).sleeps(10 * MS, 0, sleep_ms * MS, "read", FdKind::Tcp).runnable(
            10 * MS,
            sleep_ms * MS,
            (8 - sleep_ms) * MS,
        );
        let mut capture = capture(vec![FlowBuilder::new(1, Role::Server).talks(300, 100)], vec![thread]);
        capture.rung = Rung::Tracepoint;
        capture.host.busy_ns = Some((busy * WINDOW_NS as f64) as u64);
        verdict_of(&capture)
    }

    #[test]
    fn threads_tell_where_requests_were_not_seen() {
        assert_eq!(beside_others(3, 1.0), "run-queue-latency");
        assert_eq!(beside_others(7, 1.0), "healthy", "it hardly waits");
        assert_eq!(beside_others(3, 0.3), "healthy", "the CPUs that it waits for are used by nobody else");
        assert_eq!(of_process(200, 3, 1.0), "healthy", "no client waits for it");
    }

    fn waits_while(runs: &str, pid: u32) -> ServiceBuilder {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::RunQueue, "").runs(runs, pid);
        ServiceBuilder::new(7000).requests(100, 20.0).part(way, 0.8).cpu(0.2)
    }

    #[test]
    fn names_who_ran_instead() {
        let report = crate::judge::judge(&with(waits_while("sh", 0)));
        assert_eq!(report.verdict.cause.as_deref(), Some("run-queue-latency"));
        assert!(report.verdict.summary.contains("on which sh runs"), "{}", report.verdict.summary);
    }

    #[test]
    fn a_wait_of_a_fraction_of_a_millisecond_beside_a_compiler_is_no_fault() {
        let beside = |ms: f64, share: f64| {
            let way = Hops::new().thread(100, 101, "app").on(HopKind::RunQueue, "").runs("cc1", 900);
            let service = ServiceBuilder::new(7000).requests(600, ms).part(way, share).cpu(1.0 - share);
            verdict_of(&with(service))
        };
        assert_eq!(beside(0.6, 0.5), "healthy", "each of them waits for 0.3 ms and takes 0.6");
        assert_eq!(beside(0.6, 0.8), "run-queue-latency", "they take five times as long as alone");
        assert_eq!(beside(4.0, 0.5), "run-queue-latency", "they wait for 2 ms");
    }

    #[test]
    fn a_stranger_with_the_name_of_the_service_is_no_part_of_it() {
        let verdict = |observed: u32| {
            let mut capture = with(waits_while("app", 812));
            let observed_pids = [(100, 0), (observed, 0)].into();
            let timeline = parshall_evidence::Timeline { observed_pids, ..Default::default() };
            let services = capture.services.clone();
            capture.timeline = Some(timeline);
            let facts = crate::judge::facts::Facts::new(&capture, &services);
            facts.requests.share(super::Spent::RunQueue) > 0.5
        };
        assert!(verdict(100), "it is no process that was observed with the service");
        assert!(!verdict(812), "it is a child of the service, or asks it");
    }

    #[test]
    fn behind_its_own_threads_it_is_their_work() {
        assert_eq!(verdict_of(&with(waits_while("app", 0))), "user-cpu-bound");
        let cheap = Hops::new().thread(100, 101, "app").on(HopKind::RunQueue, "").runs("app", 0);
        let service = ServiceBuilder::new(7000).requests(5000, 0.9).part(cheap, 0.9).cpu(0.1);
        assert_eq!(verdict_of(&with(service)), "healthy");
    }
}
