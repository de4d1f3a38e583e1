//! A process has as many descriptors open as its limit allows: accept() fails with EMFILE, and connections wait in the listen queue.
//!
//! Look-alikes: a listener that is not served fast enough (`accept-queue-overflow`), where the process has descriptors left.
use parshall_evidence::{DescriptorUse, Place, ShareOf};

use super::base::{Candidate, Cause, Outcome, Refused, denied};
use super::common::Waits;
use crate::judge::chain::named;
use crate::judge::denial::{Denial, count, count_of};
use crate::judge::facts::requests::short_of_descriptors;
use crate::judge::facts::{Facts, Lost, Spent};
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "fd-limit",
    title: "A process is out of descriptors",
    test,
    symptom: |facts| full(facts).len() as f64,
    testable: record::counters,
};

/// Descriptors are closed and opened all the time: with fewer than this share left, the next accept() fails.
const USED_UP: f64 = 0.98;

fn test(facts: &Facts<'_>) -> Outcome {
    let reserve = Waits::on(facts, Spent::Descriptors)
        .and_then(|waits| Some((short_of_descriptors(facts.capture, waits.leaf.pid)?, waits)));
    if let Some((used, waits)) = reserve {
        return reserved(waits, used).holds();
    }
    let Some(counters) = &facts.capture.counters else {
        return Outcome::Untested("the descriptors of the processes were not read".to_string());
    };
    let Some(fullest) = counters.descriptors.first() else {
        return Outcome::Untested("the descriptors of the processes could not be read".to_string());
    };
    let used = Denial::of(count_of(fullest.open, fullest.limit, "descriptors", "open in the fullest process"));
    let waiting = |pid: u32| {
        let own = counters.listeners.iter().filter(move |l| l.pid == pid || l.pid == 0);
        own.map(|l| l.queued.0.min(l.queued.1)).fold(0u64, u64::saturating_add)
    };
    let Some((full, queued)) = full(facts).into_iter().map(|d| (d, waiting(d.pid))).max_by_key(|(_, queued)| *queued)
    else {
        return denied(used);
    };
    let errors = failed_accepts(facts, full.pid);
    if queued == 0 && errors == 0 {
        return denied(used.beside(count(0, "connections", "waiting for it to accept")).seen());
    }
    let name = facts.capture.subject.pids.iter().position(|&pid| pid == full.pid);
    let name =
        name.and_then(|i| facts.capture.subject.comms.get(i)).map(|comm| format!(" ({comm})")).unwrap_or_default();
    let summary = format!(
        "Process {}{name} has {} of {} open (RLIMIT_NOFILE), so accept() fails; {} in its listen queue.",
        full.pid,
        units::count(full.open),
        units::plural(full.limit, "descriptor", "descriptors"),
        units::plural(queued, "connection waits", "connections wait")
    );
    let mut evidence = vec![
        words::counted("descriptors open", full.open),
        words::counted("limit of descriptors (RLIMIT_NOFILE)", full.limit),
        words::counted("connections that waited for accept() at the window's begin and end", queued),
    ];
    if errors > 0 {
        evidence.push(words::counted("calls of accept() that failed", errors));
    }
    let raised = full.limit.saturating_mul(16).max(65_536);
    let fix = format!(
        "Raise the limit: `prlimit --pid {0} --nofile={raised}:{raised}` at once, LimitNOFILE={raised} in its unit (or `ulimit -n`) for \
         the next start. If the number grows without more clients, descriptors leak: `ls -l /proc/{0}/fd` shows which.",
        full.pid
    );
    let place = Place { pid: Some(full.pid), ..Place::default() };
    let mut candidate = Candidate::new(Lost::default(), place, summary, evidence, fix);
    // Those that wait at both ends of the window have waited, or others in their place, for all of it.
    let waiting = queued.max(1);
    let served = counters.rose("Tcp.PassiveOpens");
    let wait_ns = waiting as f64 * facts.capture.window_ns as f64;
    // Connections that are served waited for a descriptor too.
    let all = waiting.saturating_add(served);
    candidate.refused = Some(Refused { of_what: ShareOf::Connections, count: all, of: all, wait_ns });
    candidate.holds()
}

/// A process that keeps some descriptors in reserve, and accepts no further connection although it has time.
fn reserved(waits: Waits<'_, '_>, used: &DescriptorUse) -> Candidate {
    let who = named(waits.leaf);
    let summary = waits.summary(&format!(
        "{who} has {} of {} open, and accepts no further connection until one is closed, although it has time: new ones wait {} in \
         its listen queue.",
        units::count(used.open),
        units::plural(used.limit, "descriptor", "descriptors"),
        waits.each()
    ));
    let evidence = vec![
        words::counted("descriptors open", used.open),
        words::counted("limit of descriptors (RLIMIT_NOFILE)", used.limit),
    ];
    let raised = used.limit.saturating_mul(16).max(65_536);
    let fix = format!(
        "Raise the limit of descriptors of {who} (its own setting, such as max_filedescriptors, and LimitNOFILE={raised} in its unit or \
         `ulimit -n`) and start it again; it keeps some of them in reserve."
    );
    let min_share = waits.min_kept_out_share();
    let mut candidate = waits.candidate(summary, evidence, fix);
    candidate.min_share = min_share;
    candidate
}

/// The processes that have hardly a descriptor left.
fn full<'a>(facts: &Facts<'a>) -> Vec<&'a DescriptorUse> {
    let counters = facts.capture.counters.iter();
    let full = |d: &&DescriptorUse| d.limit > 0 && d.open as f64 >= USED_UP * d.limit as f64;
    counters.flat_map(|counters| &counters.descriptors).filter(full).collect()
}

fn failed_accepts(facts: &Facts<'_>, pid: u32) -> u64 {
    let calls = facts.threads_of(pid).flat_map(|t| &t.rec.syscalls);
    calls.filter(|c| c.name.starts_with("accept")).map(|c| c.errors).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Confidence, Counters, DescriptorUse, HopKind, Role};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, capture, listener, rose, verdict_of};

    #[test]
    fn a_process_that_keeps_descriptors_in_reserve_accepts_nobody() {
        let full = || Hops::new().thread(100, 101, "app").on(HopKind::AcceptQueue, "").on(HopKind::Idle, "epoll_wait");
        let capture = |open, limit| {
            let service = ServiceBuilder::new(7000).requests(40, 250.0).part(full(), 0.9).cpu(0.1);
            let mut capture = with(service);
            capture.flows = (1..5).map(|id| FlowBuilder::new(id, Role::Server).talks(50, 100).fill().record).collect();
            let descriptors = vec![DescriptorUse { pid: 100, open, limit }];
            capture.counters = Some(Counters { descriptors, ..Counters::default() });
            capture
        };
        let report = judge(&capture(79, 96));
        assert_eq!(report.verdict.cause.as_deref(), Some("fd-limit"), "{report:#?}");
        assert!(report.verdict.summary.contains("79 of 96 descriptors"), "{}", report.verdict.summary);
        assert_eq!(report.verdict.confidence, Confidence::Medium);
        // Those that are served wait for what others bring.
        let mut polls = capture(79, 96);
        let poll = Hops::new().thread(100, 101, "app").on(HopKind::OtherRequest, "epoll_wait");
        polls.services = vec![ServiceBuilder::new(7000).requests(40, 250.0).part(full(), 0.2).part(poll, 0.8).build()];
        assert_eq!(verdict_of(&polls), "fd-limit");
        // It has enough of them: its own limit on connections.
        let report = judge(&capture(79, 1024));
        assert_eq!(report.verdict.cause.as_deref(), Some("concurrency-limit"), "{report:#?}");
        assert!(report.verdict.summary.contains("has 4 connections open"), "{}", report.verdict.summary);
        // It has none at all: somebody else should accept.
        let mut none = capture(79, 1024);
        none.flows.clear();
        let mut counters = none.counters.take().unwrap();
        counters.listeners = vec![listener(7000, 0); 2];
        none.counters = Some(counters.clone());
        assert_eq!(verdict_of(&none), "accept-queue-overflow");
        // There is nobody else: its connections come through it one after the other.
        counters.listeners.truncate(1);
        none.counters = Some(counters);
        assert_eq!(verdict_of(&none), "no-dominant-cause");
        // A process that sleeps for a request meanwhile has no time to watch its listener.
        let mut busy = capture(79, 96);
        let leaf = &mut busy.services[0].path[0].hops[1];
        (leaf.kind, leaf.syscall) = (HopKind::Timer, "clock_nanosleep".to_string());
        assert_eq!(verdict_of(&busy), "serialized-service");
    }

    #[test]
    fn a_process_with_a_quarter_of_its_descriptors_left_that_accepts_everybody_soon() {
        let full = || Hops::new().thread(100, 101, "app").on(HopKind::AcceptQueue, "").on(HopKind::Idle, "epoll_wait");
        let verdict = |kept_out: f64, ms: f64, limit: u64| {
            let poll = Hops::new().thread(100, 101, "app").on(HopKind::OtherRequest, "epoll_wait");
            let service = ServiceBuilder::new(7000).requests(100, ms).part(full(), kept_out).part(poll, 1.0 - kept_out);
            let mut capture = with(service);
            capture.flows = (1..5).map(|id| FlowBuilder::new(id, Role::Server).talks(50, 100).fill().record).collect();
            let descriptors = vec![DescriptorUse { pid: 100, open: 79, limit }];
            capture.counters = Some(Counters { descriptors, ..Counters::default() });
            verdict_of(&capture)
        };
        // Half a millisecond until it wakes up and accepts, and nobody is turned away.
        for limit in [96, 1024] {
            assert_eq!(verdict(0.15, 3.0, limit), "healthy", "{limit}");
        }
        // They wait for others to leave.
        assert_eq!(verdict(0.15, 200.0, 96), "fd-limit");
        assert_eq!(verdict(0.15, 200.0, 1024), "concurrency-limit");
    }

    #[test]
    fn connections_wait_for_a_process_without_descriptors() {
        let mut full = capture(vec![FlowBuilder::new(1, Role::Server).talks(500, 100)], vec![]);
        let mut counters = rose(&[("Tcp.PassiveOpens", 2000)]);
        counters.descriptors = vec![DescriptorUse { pid: 100, open: 16, limit: 16 }];
        let mut waiting = listener(7000, 0);
        waiting.queued = (28, 27);
        counters.listeners = vec![waiting.clone()];
        full.counters = Some(counters.clone());
        let report = crate::judge::judge(&full);
        assert_eq!(report.verdict.cause.as_deref(), Some("fd-limit"), "{report:?}");
        assert!(report.findings[0].fix.text.contains("prlimit --pid 100 "));
        // At its limit, and everybody is served.
        waiting.queued = (0, 3);
        counters.listeners = vec![waiting];
        full.counters = Some(counters.clone());
        assert_eq!(verdict_of(&full), "healthy");
        counters.descriptors[0].limit = 1024;
        counters.listeners[0].queued = (28, 27);
        full.counters = Some(counters);
        assert_eq!(verdict_of(&full), "healthy");
    }
}
