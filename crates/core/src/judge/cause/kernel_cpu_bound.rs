//! A request costs much CPU time, and most of it is spent in the kernel: in the calls that its own work makes, or in the packet filter,
//! which runs for each segment in the context of whoever sends it, after the reply has begun too. Or a program receives a few bytes a call
//! (`piecemeal`), which needs no request to be seen.
//!
//! Look-alikes: copies in small pieces (small-copy-buffer), page faults and mapping (page-fault-churn), memory reclaim
//! (memory-reclaim), and a thread saturated by cheap calls (at capacity).
mod calls;
mod piecemeal;

use std::collections::BTreeMap;

use parshall_evidence::Stack;

use super::base::{Candidate, Cause, Outcome, ThreadLoss};
use super::common::{Mode, Waits, hottest, hottest_of_process, most_in, not_spent};
use crate::judge::chain::named;
use crate::judge::facts::requests::ServiceFact;
use crate::judge::facts::{CHEAP_NS, Facts, MOSTLY_BUSY, Spent, ThreadFact};
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "kernel-cpu-bound",
    title: "The kernel works for the requests",
    test,
    symptom: |facts| facts.requests.share(Spent::CpuKernel),
    testable: |facts| record::requests(facts) || piecemeal::found(facts).is_some(),
};

fn test(facts: &Facts<'_>) -> Outcome {
    let waits = Waits::on(facts, Spent::CpuKernel);
    let of_requests = waits.as_ref().map_or(0.0, |waits| waits.loss.ns);
    if let Some(filtered) = filtered(facts).filter(|filtered| filtered.ns > of_requests) {
        return filtered.candidate(facts).holds();
    }
    if let Some(piecemeal) = piecemeal::found(facts).filter(|piecemeal| piecemeal.ns > of_requests) {
        return piecemeal.candidate().holds();
    }
    let Some(waits) = waits else { return not_spent(facts, Spent::CpuKernel) };
    let leaf = waits.leaf;
    let hot = hottest_of_process(facts, leaf.pid, Mode::Kernel);
    let most = most_in(&hot);
    let requests = served(facts, leaf.pid).map(|service| service.rec.requests).fold(0, u64::saturating_add);
    let frequent = calls::frequent(facts, leaf.pid, requests);
    let calls = frequent.as_ref().map(calls::Frequent::sentence).unwrap_or_default();
    let summary = waits.summary(&format!(
        "{} is on a CPU for {} a request, most of it in the kernel.{most}{calls}",
        named(leaf),
        waits.each()
    ));
    let buffered = frequent.as_ref().and_then(|frequent| frequent.fix(&named(leaf)));
    let fix = buffered.unwrap_or_else(|| {
        let which = if hot.is_empty() { "" } else { "; the functions say which" };
        format!(
            "Make fewer or larger calls{which}. All functions, with callers: `perf record -g -p {} sleep 5; perf report`",
            leaf.pid
        )
    });
    let evidence = hot.into_iter().chain(frequent.map(|frequent| frequent.figure())).collect();
    waits.candidate(summary, evidence, fix).holds()
}

/// Kernel functions that compare a packet with the rules of a filter, one after the other (net/netfilter, net/sched).
const FILTERS: [&str; 6] =
    ["nft_do_chain", "ipt_do_table", "ip6t_do_table", "arpt_do_table", "ebt_do_table", "tcf_classify"];
/// Share of a thread's samples in them from which on they are what its CPU time is spent on. A filter with some dozens of rules takes a
/// few per cent of what it costs to send a segment.
const FILTERS_SHARE: f64 = 0.30;
/// Fewer samples say nothing of a thread.
const SAMPLES_MIN: f64 = 20.0;

/// The threads of a process that spend their CPU time in the packet filter.
struct Filtered {
    pid: u32,
    process: String,
    tids: Vec<u32>,
    /// Their CPU time in it.
    ns: f64,
    /// All of their CPU time.
    cpu_ns: f64,
    wall_ns: f64,
    /// Requests that their process served.
    requests: f64,
}

/// The process that spends most in the packet filter, if that is much of what its threads do and much for each request, or these threads
/// have little time left.
fn filtered(facts: &Facts<'_>) -> Option<Filtered> {
    let is_filter = |stack: &Stack| {
        let mut frames = stack.frames.iter().filter(|frame| frame.kernel);
        frames.any(|frame| FILTERS.iter().any(|name| frame.name.starts_with(name)))
    };
    let filters: Vec<bool> = facts.capture.stacks.iter().map(is_filter).collect();
    let mut samples: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for sample in &facts.capture.samples {
        let in_filter = sample.stack.and_then(|at| filters.get(at as usize)).is_some_and(|is_filter| *is_filter);
        let counts = samples.entry(sample.tid).or_default();
        counts.0 += sample.count as f64;
        counts.1 += if in_filter { sample.count as f64 } else { 0.0 };
    }
    let share = |thread: &ThreadFact<'_>| match samples.get(&thread.rec.tid) {
        Some((all, filters)) if *all >= SAMPLES_MIN => ratio(*filters, *all),
        _ => 0.0,
    };
    let mut by_pid: BTreeMap<u32, Filtered> = BTreeMap::new();
    for thread in facts.threads.iter().filter(|thread| share(thread) >= FILTERS_SHARE) {
        let pid = thread.rec.pid;
        let found = by_pid.entry(pid).or_insert_with(|| Filtered {
            pid,
            process: thread.rec.comm.clone(),
            tids: Vec::new(),
            ns: 0.0,
            cpu_ns: 0.0,
            wall_ns: 0.0,
            requests: served(facts, pid).map(|service| service.requests).sum(),
        });
        found.tids.push(thread.rec.tid);
        found.ns += share(thread) * thread.ledger.on_cpu();
        found.cpu_ns += thread.ledger.on_cpu();
        found.wall_ns += thread.ledger.wall_ns;
    }
    let matters = |found: &Filtered| {
        let each_ns = if found.requests > 0.0 { found.ns / found.requests } else { 0.0 };
        each_ns >= CHEAP_NS || found.cpu_ns >= MOSTLY_BUSY * found.wall_ns
    };
    by_pid.into_values().filter(matters).max_by(|a, b| a.ns.total_cmp(&b.ns))
}

/// The services on the account whose requests a process answers.
fn served<'f, 'a>(facts: &'f Facts<'a>, pid: u32) -> impl Iterator<Item = &'f ServiceFact<'a>> {
    facts.requests.counted().filter(move |s| !s.rec.waited && !s.rec.outbound && s.rec.pids.contains(&pid))
}

impl Filtered {
    fn candidate(self, facts: &Facts<'_>) -> Candidate {
        let Self { pid, process, tids, ns, cpu_ns, wall_ns, requests } = self;
        let hot = hottest(facts, |tid| tids.contains(&tid), Mode::Kernel);
        let each = if requests > 0.0 {
            format!(", {} a request", words::about(facts.scaled(), units::duration(ns / requests)))
        } else {
            String::new()
        };
        let summary = format!(
            "{process} {pid} spends {} of its CPU time in the packet filter{each}: each segment of its connections is compared with the \
             rules.",
            units::percent(ratio(ns, cpu_ns))
        );
        let mut evidence = vec![
            words::valued("of its CPU time, in the packet filter", ratio(ns, cpu_ns), "1"),
            words::valued("threads on a CPU", ratio(cpu_ns, wall_ns), "1"),
        ];
        evidence.extend(hot);
        let fix = "Have each packet meet fewer rules: one rule with a set of addresses (nft sets and maps, ipset) instead of a rule for each, and \
                   in front of them one that accepts what belongs to an established connection (`ct state established,related accept`). All \
                   rules, in the network namespace of the service: `nft list ruleset`";
        Candidate::at_threads(pid, ThreadLoss { ns, wall_ns, tids }, summary, evidence, fix)
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, CpuSample, FdKind, Frame, HopKind, Stack};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{MS, ThreadBuilder, verdict_of};

    /// A service whose requests take 4 ms on a CPU each, and samples of its thread in this kernel function.
    fn works_in(function: &str, kernel: u64) -> Capture {
        let queue = Hops::new().thread(100, 101, "app").on(HopKind::Unread, "").on(HopKind::OnCpu, "");
        let service = ServiceBuilder::new(7000).requests(200, 12.0).part(queue, 0.66).cpu(0.34);
        let mut capture = with(service);
        let thread = ThreadBuilder::new(101).samples(100 - kernel, kernel).fill();
        capture.threads = vec![thread.record];
        let frame = |name: &str| Frame { name: name.to_string(), module: "[kernel]".to_string(), kernel: true };
        capture.stacks = vec![Stack { frames: vec![frame(function), frame("do_syscall_64")] }];
        let sample = |user, count| CpuSample {
            tid: 101,
            user,
            syscall: 0,
            syscall_name: "getdents64".to_string(),
            stack: Some(0),
            count,
        };
        capture.samples = vec![sample(false, kernel), sample(true, 100 - kernel)];
        capture
    }

    #[test]
    fn a_process_that_was_not_sampled_has_no_more_user_time_than_the_host() {
        use parshall_evidence::CpuTime;
        // 200 requests of 4 ms in a second, while all programs together were in user mode for `user_ms`.
        let cause = |user_ms: u64| {
            let mut capture = works_in("ext4_readdir", 90);
            (capture.samples, capture.stacks) = (vec![], vec![]);
            capture.threads.iter_mut().for_each(|t| (t.samples_user, t.samples_kernel) = (0, 0));
            capture.host.each = vec![CpuTime { user_ns: user_ms * MS, system_ns: 850 * MS, ..CpuTime::default() }];
            judge(&capture).verdict.cause
        };
        assert_eq!(cause(100).as_deref(), Some("kernel-cpu-bound"));
        assert_eq!(cause(700).as_deref(), Some("user-cpu-bound"));
    }

    #[test]
    fn names_the_function() {
        let report = judge(&works_in("ext4_readdir", 90));
        assert_eq!(report.verdict.cause.as_deref(), Some("kernel-cpu-bound"));
        assert!(report.verdict.summary.contains("ext4_readdir"), "{}", report.verdict.summary);
    }

    /// A service whose thread is on a CPU for `busy_ms` of the second for `requests` requests, which take a tenth of a millisecond each until
    /// their replies begin; `filters` of the 100 samples are in this function below a call that sends.
    fn sends(function: &str, filters: u64, busy_ms: u64, requests: u64) -> Capture {
        let mut capture = with(ServiceBuilder::new(7000).requests(requests, 0.1).cpu(1.0));
        let idle_ms = (1000 - busy_ms) * MS;
        let thread = ThreadBuilder::new(101).samples(0, 100).blocked(0, idle_ms, "epoll_wait", FdKind::Anon).fill();
        capture.threads = vec![thread.record];
        let frame = |name: &str| Frame { name: name.to_string(), module: "[kernel]".to_string(), kernel: true };
        let stack = |top: &str| Stack { frames: vec![frame(top), frame("nf_hook_slow"), frame("tcp_sendmsg")] };
        capture.stacks = vec![stack(function), stack("tcp_write_xmit")];
        let sample = |stack, count| CpuSample {
            tid: 101,
            user: false,
            syscall: 0,
            syscall_name: "sendfile".to_string(),
            stack: Some(stack),
            count,
        };
        capture.samples = vec![sample(0, filters), sample(1, 100 - filters)];
        capture
    }

    #[test]
    fn the_packet_filter_works_after_the_reply_has_begun() {
        for function in ["nft_do_chain", "ipt_do_table", "tcf_classify"] {
            let report = judge(&sends(function, 95, 600, 90));
            assert_eq!(report.verdict.cause.as_deref(), Some("kernel-cpu-bound"), "{report:#?}");
            assert!(
                report.verdict.summary.contains("95 % of its CPU time in the packet filter"),
                "{}",
                report.verdict.summary
            );
        }
        // Not that it is the kernel that works tells, but what it does there: segments are copied and sent.
        assert_eq!(verdict_of(&sends("tcp_write_xmit", 95, 600, 90)), "healthy");
        // A filter that takes a small part of it, and one that takes much of very little.
        assert_eq!(verdict_of(&sends("nft_do_chain", 15, 600, 90)), "healthy");
        assert_eq!(verdict_of(&sends("nft_do_chain", 95, 50, 90)), "healthy");
        // Requests are cheap, and there are as many of them as the thread has time for.
        assert_eq!(verdict_of(&sends("nft_do_chain", 60, 980, 9000)), "kernel-cpu-bound");
    }

    #[test]
    fn its_look_alikes() {
        let cause = |function: &str, kernel| judge(&works_in(function, kernel)).verdict.cause.unwrap_or_default();
        assert_eq!(cause("ext4_readdir", 30), "user-cpu-bound");
        assert_eq!(cause("do_anonymous_page", 90), "page-fault-churn");
        assert_eq!(cause("shrink_folio_list", 90), "memory-reclaim");
    }
}
