//! CPU bandwidth control: the threads' control group used up its quota and waits for the next period
//! (Documentation/scheduler/sched-bwc.rst).
//!
//! Look-alikes: the run queue (the quota is not used up), a pause of the whole process such as a garbage collection.
use parshall_evidence::{CgroupCpu, Evidence};

use super::base::{Candidate, Cause, Outcome, ThreadLoss, denied, main_thread, place_of, shows, stalls};
use super::common::Waits;
use crate::judge::chain::named;
use crate::judge::denial::{self, Denial, count, count_of};
use crate::judge::facts::{Blame, Facts, Spent, ThreadFact};
use crate::judge::ledger::thread::State;
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "cpu-throttled",
    title: "The CPU quota is used up",
    test,
    symptom: |facts| facts.throttled_periods() + record::most(facts, throttled),
    testable: |facts| record::threads(facts) || !facts.capture.cgroups.is_empty(),
};

/// Share of the threads' working time from which throttling counts although no flow shows it.
const MIN_THREAD_SHARE: f64 = 0.30;

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.blamed(&[Blame::Throttled]);
    let group = facts.capture.cgroups.iter().max_by_key(|c| (c.throttled_periods, c.throttled_ns));
    let threads = thread_loss(facts);
    let share = ratio(threads.ns, threads.wall_ns);
    if let Some(waits) = Waits::on(facts, Spent::Throttled) {
        return of_requests(waits, group, share);
    }
    let by_threads = !shows(facts, &lost) && share >= MIN_THREAD_SHARE;
    if !by_threads && lost.ns == 0.0 {
        return why_not(facts, group, share);
    }
    let summary = summary(group);
    let mut evidence = evidence(group, share);
    if lost.ns > 0.0 {
        evidence.insert(0, stalls("waits of flows for a throttled thread", &lost));
    }
    let tid = main_thread(facts, |p| p.blame == Blame::Throttled);
    let mut place = place_of(facts, &lost);
    place.tid = (tid != 0).then_some(tid);
    place.pid = place.pid.or_else(|| facts.capture.threads.first().map(|t| t.pid));
    place.cgroup = group.map(|g| g.path.clone());
    let trial = place.pid.map(|pid| format!("parshall try quota=max --pid {pid}"));
    let mut candidate = Candidate::new(lost, place, summary, evidence, FIX);
    candidate.trial = trial;
    candidate.thread = by_threads.then_some(threads);
    candidate.holds()
}

const FIX: &str =
    "Raise or remove the quota (cpu.max, cpu.cfs_quota_us), or run no more busy threads than it pays for.";

/// Requests whose path ends at a throttled thread.
fn of_requests(waits: Waits<'_, '_>, group: Option<&CgroupCpu>, share: f64) -> Outcome {
    let spent = waits.summary(&format!("{} is out of CPU quota, {} a request.", named(waits.leaf), waits.each()));
    let group = group.filter(|g| g.throttled_periods > 0);
    let summary = group.map_or(spent.clone(), |g| format!("{spent} {}", summary(Some(g))));
    let trial = (waits.leaf.pid != 0).then(|| format!("parshall try quota=max --pid {}", waits.leaf.pid));
    let mut candidate = waits.candidate(summary, evidence(group, share), FIX);
    candidate.trial = trial;
    candidate.place.cgroup = group.map(|g| g.path.clone());
    candidate.holds()
}

fn why_not(facts: &Facts<'_>, group: Option<&CgroupCpu>, share: f64) -> Outcome {
    let of_threads = denial::share(share, "of the time in which threads had work throttled");
    denied(match group {
        Some(g) => Denial::of(count_of(g.throttled_periods, g.periods, "quota periods", "throttled")).and(of_threads),
        None if facts.threads.is_empty() => {
            return Outcome::Untested("no thread and no control group with a quota was seen".to_string());
        }
        None => Denial::of(of_threads).beside(count(0, "control groups", "with a quota")),
    })
}

/// Share of its time in which a thread was throttled.
fn throttled(thread: &ThreadFact<'_>) -> f64 {
    ratio(thread.ledger.of(State::Throttled), thread.ledger.wall_ns)
}

/// Throttled time of the threads, of the time in which they had something to do.
fn thread_loss(facts: &Facts<'_>) -> ThreadLoss {
    let throttled = |t: &&ThreadFact<'_>| t.ledger.of(State::Throttled) > 0.0;
    let affected: Vec<_> = facts.threads.iter().filter(throttled).collect();
    if affected.is_empty() {
        // A rung that cannot see it thread by thread: the group's own account.
        let ns = facts.throttled_periods() * facts.capture.window_ns as f64;
        return ThreadLoss { ns, wall_ns: facts.capture.window_ns as f64, tids: Vec::new() };
    }
    ThreadLoss {
        ns: affected.iter().map(|t| t.ledger.of(State::Throttled)).sum(),
        wall_ns: affected.iter().map(|t| t.ledger.not_idle()).sum(),
        tids: affected.iter().map(|t| t.rec.tid).collect(),
    }
}

fn summary(group: Option<&CgroupCpu>) -> String {
    let Some(group) = group else {
        return "The threads have work, and are throttled.".to_string();
    };
    let quota = match group.quota_us {
        Some(q) => format!("{} µs of CPU per {} µs", units::count(q), units::count(group.period_us)),
        None => "its quota".to_string(),
    };
    format!(
        "Control group {} uses up {quota} and was stopped in {} of {} periods.",
        group.path,
        units::count(group.throttled_periods),
        units::count(group.periods)
    )
}

fn evidence(group: Option<&CgroupCpu>, share: f64) -> Vec<Evidence> {
    // Threads of another process than those that are observed may be the ones that it stops.
    let own = (share > 0.0).then(|| words::valued("of the threads' working time, throttled", share, "1"));
    let mut list: Vec<Evidence> = own.into_iter().collect();
    if let Some(group) = group {
        list.push(words::counted("quota periods in which the group was throttled", group.throttled_periods));
        list.push(words::counted("quota periods in all", group.periods));
        list.push(words::valued("time for which the group was throttled", group.throttled_ns as f64 / 1e6, "ms"));
        if let Some(quota) = group.quota_us {
            list.push(words::valued("CPUs that the quota allows", ratio(quota as f64, group.period_us as f64), "CPUs"));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, FdKind, FlowState, HopKind, Release, Role, Rung};

    use super::*;
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    fn server() -> FlowBuilder {
        FlowBuilder::new(1, Role::Server)
            .every(100 * MS, 20 * MS, 80 * MS, FlowState::RxWaiting, Release::AppRecv)
            .talks(1000, 100)
    }

    fn quota(mut capture: Capture) -> Capture {
        capture.cgroups.push(CgroupCpu {
            path: "/limited".to_string(),
            quota_us: Some(20_000),
            period_us: 100_000,
            periods: 10,
            throttled_periods: 10,
            throttled_ns: 800 * MS,
        });
        capture
    }

    #[test]
    fn flows_wait_for_the_next_period() {
        let thread = ThreadBuilder::new(101).throttled(100 * MS, 20 * MS, 80 * MS);
        let report = crate::judge::judge(&quota(capture(vec![server()], vec![thread])));
        assert_eq!(report.verdict.cause.as_deref(), Some("cpu-throttled"));
        assert!(report.verdict.summary.contains("10 of 10 periods"), "{}", report.verdict.summary);
        assert_eq!(report.findings[0].place.cgroup.as_deref(), Some("/limited"));
    }

    #[test]
    fn threads_that_no_flow_shows() {
        let thread = ThreadBuilder::new(101).throttled(100 * MS, 20 * MS, 80 * MS);
        let idle = FlowBuilder::new(1, Role::Server);
        assert_eq!(verdict_of(&quota(capture(vec![idle], vec![thread]))), "cpu-throttled");
    }

    #[test]
    fn threads_that_one_flow_of_many_shows() {
        // Their other flows had time to move data, and lost none of it.
        let thread = ThreadBuilder::new(101).throttled(100 * MS, 20 * MS, 80 * MS);
        let busy = (1..20).map(|id| {
            let flow = FlowBuilder::new(id, Role::Client).talks(1000, 100);
            flow.cell(FlowState::IdleAfterSend, Release::RxData, 900 * MS, 1000)
        });
        let flows = busy.chain([server()]).collect();
        assert_eq!(verdict_of(&quota(capture(flows, vec![thread]))), "cpu-throttled");
    }

    #[test]
    fn a_rung_that_sees_only_the_group() {
        let mut sampled = quota(capture(vec![server()], vec![ThreadBuilder::new(101).samples(50, 50)]));
        sampled.threads[0].cpu_ns = 200 * MS;
        sampled.rung = Rung::Procfs;
        assert_eq!(verdict_of(&sampled), "cpu-throttled");
    }

    #[test]
    fn a_quota_that_is_not_used_up() {
        let thread = ThreadBuilder::new(101).sleeps(100 * MS, 20 * MS, 80 * MS, "futex", FdKind::None);
        let mut slow = quota(capture(vec![server()], vec![thread]));
        slow.cgroups[0].throttled_periods = 0;
        slow.cgroups[0].throttled_ns = 0;
        assert_eq!(verdict_of(&slow), "app-limited");
    }

    #[test]
    fn threads_that_were_not_throttled_are_no_evidence() {
        use crate::testkit::service::{Hops, ServiceBuilder, with};
        let way = Hops::new().thread(100, 101, "front").on(HopKind::Reply, "recv").thread(900, 901, "java");
        let service = ServiceBuilder::new(7000).requests(200, 40.0).part(way.on(HopKind::Throttled, ""), 0.9).cpu(0.1);
        let report = crate::judge::judge(&with(service));
        assert_eq!(report.verdict.cause.as_deref(), Some("cpu-throttled"));
        let own = report.findings[0].evidence.iter().find(|e| e.what.starts_with("of the threads"));
        assert_eq!(own, None);
    }
}
