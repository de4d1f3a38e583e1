//! A copy loop with a small buffer: throughput is bytes per call times calls per second, and the calls saturate a core.
//!
//! Between pipes and files the calls of a thread alone show it ([`calls`]).
//!
//! Look-alikes: bound by the copying itself (64 KiB a call and more), by the network (the thread sleeps), or by the
//! application's own code (the time is in user mode).
mod calls;
mod thread;

use std::collections::BTreeMap;

use parshall_evidence::{Evidence, Figure, Place, Rung, SyscallCell, ThreadRecord};

use thread::{BIG_BYTES, MIN_BUSY, MIN_RATE, busy, fix, is_as_much, is_sliced, moved, observed_s, saturates};

use super::base::{Candidate, Cause, Outcome, ThreadLoss, denied, thread_name};
use crate::judge::denial::{Denial, amount, count_of, share};
use crate::judge::facts::{Facts, Lost, Shape, ThreadFact};
use crate::judge::ledger::thread::State;
use crate::judge::record;
use crate::judge::words;
use crate::sorting::StableSort as _;
use crate::stats::ratio;
use crate::units;

pub use thread::is_receive;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "small-copy-buffer",
    title: "A copy loop with a small buffer",
    test,
    symptom: |facts| record::most(facts, |thread| thread.rec.copy.pairs.min(thread.rec.copy.recvs) as f64),
    testable: calls_seen,
};

/// The calls of a thread were observed.
fn calls_seen(facts: &Facts<'_>) -> bool {
    facts.capture.rung != Rung::Procfs && facts.capture.threads.iter().any(|thread| thread.observed_ns > 0)
}

fn test(facts: &Facts<'_>) -> Outcome {
    if let Some(why) = unseen(facts) {
        return Outcome::Untested(why);
    }
    let together = Together::new(facts);
    let mut tested: Vec<(&ThreadFact<'_>, Result<(), Box<Denial>>)> =
        facts.threads.iter().filter(|t| t.rec.copy.recvs > 0).map(|t| (t, copies(t, together.of(t.rec.pid)))).collect();
    let copies = |t: &ThreadFact<'_>| pairs(t.rec) > 0;
    let by_work = |a: &ThreadFact<'_>, b: &ThreadFact<'_>| b.ledger.on_cpu().total_cmp(&a.ledger.on_cpu());
    tested
        .stable_sort_by(|(a, _), (b, _)| copies(b).cmp(&copies(a)).then(by_work(a, b)).then(a.rec.tid.cmp(&b.rec.tid)));
    let holding: Vec<&ThreadFact<'_>> = tested.iter().filter(|(_, r)| r.is_ok()).map(|(t, _)| *t).collect();
    let Some(thread) = holding.first() else {
        match calls::test(facts) {
            Some(Ok(candidate)) => return candidate.holds(),
            Some(Err(denial)) => return denied(*denial),
            None => {}
        }
        let why = tested.into_iter().next().and_then(|(_, r)| r.err());
        let none = count_of(0, facts.threads.len() as u64, "threads", "receiving from a TCP socket");
        return denied(why.map_or_else(|| Denial::of(none), |denial| *denial));
    };
    let rec = thread.rec;
    let size = units::bytes(f64::from(rec.copy.mode_bytes));
    let calls = calls_per_second(thread);
    let per_gb = ratio(1e9, f64::from(rec.copy.mode_bytes)) * 2.0;
    let kernel = ratio(thread.ledger.of(State::OnCpuKernel), thread.ledger.on_cpu());
    let sliced = is_sliced(thread);
    let summary = format!(
        "{} copies {size} per receive and send, {} of these calls a second ({} per GB), with more data waiting after each read.",
        words::begun(&thread_name(facts, rec.tid)),
        words::about(sliced, units::count_f(calls)),
        units::count_f(per_gb)
    );
    let evidence = vec![
        words::valued("commonest size of a receive", f64::from(rec.copy.mode_bytes), "B"),
        Evidence { scaled: sliced, ..words::valued("receives and sends per second", calls, "1/s") },
        words::valued("system calls per GB", per_gb, "1"),
        words::valued("thread on a CPU", ratio(thread.ledger.on_cpu(), thread.ledger.wall_ns), "1"),
        words::valued("of its CPU time, in the kernel", kernel, "1"),
        words::valued("receives that left data unread", ratio(rec.copy.left_over as f64, rec.copy.recvs as f64), "1"),
    ];
    let place = Place { pid: Some(rec.pid), tid: Some(rec.tid), ..Place::default() };
    let mut candidate = Candidate::new(Lost::default(), place, summary, evidence, fix(facts.capture, rec.pid));
    let wall_ns: f64 = holding.iter().map(|t| t.ledger.wall_ns).sum();
    let working: f64 = holding.iter().map(|t| t.ledger.on_cpu() + t.ledger.of(State::Runnable)).sum();
    candidate.thread = Some(ThreadLoss {
        ns: holding.iter().map(|t| t.ledger.of(State::OnCpuKernel)).sum(),
        // Threads that take turns with a stream have no more time than one thread has.
        wall_ns: if busy(thread) < MIN_BUSY { working.min(wall_ns) } else { wall_ns },
        tids: holding.iter().map(|t| t.rec.tid).collect(),
    });
    candidate.holds()
}

/// Why the calls of the threads are not known.
fn unseen(facts: &Facts<'_>) -> Option<String> {
    if facts.threads.is_empty() {
        return Some("no thread was seen".to_string());
    }
    if facts.capture.rung == Rung::Procfs {
        return Some("the rung procfs does not see system calls".to_string());
    }
    facts.threads.iter().all(|t| t.rec.observed_ns == 0).then(|| "no probe saw the calls of the threads".to_string())
}

/// Receives that were copied on: those that the probes saw followed by a send of as much, or by the calls of the thread, if it wrote
/// what it received in as many pieces.
fn pairs(thread: &ThreadRecord) -> u64 {
    let copy = &thread.copy;
    let (received, bytes) = moved(thread, |cell| is_receive(&cell.name));
    let (written, written_bytes) = moved(thread, |cell| !is_receive(&cell.name));
    let copied = bytes > 0 && is_as_much(written_bytes, bytes) && is_as_much(written, received);
    if copied { copy.pairs.max(written.min(copy.recvs)) } else { copy.pairs }
}

fn paired(thread: &ThreadFact<'_>) -> f64 {
    ratio(pairs(thread.rec) as f64, thread.rec.copy.recvs as f64)
}

/// How busy the threads of each process are together with each of its streams: a runtime moves the copying of one stream between its
/// threads, none of which is busy by itself. Between slices other threads may have copied, so within them counts too.
struct Together {
    /// By process: as it is over the window, and within the slices.
    busy: BTreeMap<u32, (f64, f64)>,
    streams: BTreeMap<u32, usize>,
    cpus: usize,
}

impl Together {
    fn new(facts: &Facts<'_>) -> Together {
        let cpus = facts.capture.host.cpus.max(1) as usize;
        let mut together = Together { busy: BTreeMap::new(), streams: BTreeMap::new(), cpus };
        for thread in facts.threads.iter().filter(|t| paired(t) >= 0.5) {
            let sums = together.busy.entry(thread.rec.pid).or_default();
            let sliced = ratio(thread.rec.on_cpu_ns as f64, thread.rec.observed_ns as f64);
            *sums = (sums.0 + busy(thread), sums.1 + sliced);
        }
        for flow in facts.flows.iter().filter(|f| f.shape == Shape::StreamIn) {
            *together.streams.entry(flow.rec.pid).or_default() += 1;
        }
        together
    }

    fn of(&self, pid: u32) -> f64 {
        let (sum, sliced) = self.busy.get(&pid).copied().unwrap_or_default();
        let streams = self.streams.get(&pid).copied().unwrap_or(0);
        ratio(sum.max(sliced), streams.clamp(1, self.cpus) as f64)
    }
}

/// The discriminator; the error says which number speaks against it.
pub fn copies_in_small_pieces(thread: &ThreadFact<'_>) -> Result<(), Box<Denial>> {
    copies(thread, busy(thread))
}

/// `together` is how busy the thread is with those that take turns with it.
fn copies(thread: &ThreadFact<'_>, together: f64) -> Result<(), Box<Denial>> {
    let copy = &thread.rec.copy;
    // From here on something was seen: a thread copies.
    let too_little =
        |least: f64, figure: Figure| Err(Box::new(Denial::of(Figure { limit: Some(least), ..figure }).seen()));
    if paired(thread) < 0.5 {
        let copied = share(paired(thread), "of the receives copied to another socket");
        return Err(Box::new(Denial::of(Figure { limit: Some(0.5), ..copied })));
    }
    if copy.mode_bytes >= BIG_BYTES {
        let size = amount(copy.mode_bytes.into(), "B", "copied per call");
        return Err(Box::new(Denial::of(size).because("large enough")));
    }
    let rate = ratio(copy.recvs as f64, observed_s(thread));
    if rate < MIN_RATE {
        let rate = Figure { scaled: is_sliced(thread), ..amount(rate.round(), "receives", "a second") };
        return too_little(MIN_RATE, rate);
    }
    let same = ratio(copy.mode_count as f64, pairs(thread.rec) as f64);
    if same < 0.8 {
        return too_little(0.8, share(same, "of the receives filling the same buffer"));
    }
    saturates(thread, busy(thread).max(together))?;
    let left = ratio(copy.left_over as f64, copy.recvs as f64);
    if left < 0.5 {
        return too_little(0.5, share(left, "of the receives leaving data unread"));
    }
    Ok(())
}

fn calls_per_second(thread: &ThreadFact<'_>) -> f64 {
    let moves = |c: &&SyscallCell| c.bytes > 0;
    let counted: f64 = thread.rec.syscalls.iter().filter(moves).map(|c| c.count as f64).sum();
    let copied = pairs(thread.rec) as f64 * 2.0;
    ratio(counted.max(copied), observed_s(thread))
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, CopyPattern, FdKind, FlowState, OwnRelay, RelayStart, Release, Role};

    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    fn forwarder(mode_bytes: u32, samples: (u64, u64)) -> ThreadBuilder {
        let mut thread = ThreadBuilder::new(101).samples(samples.0, samples.1);
        thread.record.copy = CopyPattern {
            pairs: 40_000,
            bytes: 40_000 * u64::from(mode_bytes),
            recvs: 41_000,
            mode_bytes,
            mode_count: 39_000,
            left_over: 38_000,
        };
        thread
    }

    fn traffic(thread: ThreadBuilder) -> Capture {
        let from = FlowBuilder::new(1, Role::Server)
            .cell(FlowState::RxWaiting, Release::AppRecv, 900 * MS, 40_000)
            .drains(40_000, 8192);
        let to = FlowBuilder::new(2, Role::Client)
            .cell(FlowState::InFlight, Release::RxAck, 900 * MS, 40_000)
            .streams(40_000, 8192);
        capture(vec![from, to], vec![thread])
    }

    #[test]
    fn eight_kib_saturate_a_core() {
        let report = crate::judge::judge(&traffic(forwarder(8192, (10, 90))));
        assert_eq!(report.verdict.cause.as_deref(), Some("small-copy-buffer"));
        assert!(report.verdict.summary.contains("8 KiB"), "{}", report.verdict.summary);
        assert!(report.findings[0].share > 0.85);
    }

    #[test]
    fn a_stream_that_moves_between_threads_saturates_them_together() {
        let share = |tid| {
            let mut thread = forwarder(2048, (2, 28)).sleeps(10 * MS, 0, 7 * MS, "futex", FdKind::None);
            thread.record.tid = tid;
            thread
        };
        let mut capture = traffic(share(101));
        capture.threads.extend([102, 103].map(|tid| traffic(share(tid)).threads.remove(0)));
        let report = crate::judge::judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("small-copy-buffer"), "{:#?}", report.verdict);
        capture.threads.truncate(1);
        assert_ne!(verdict_of(&capture), "small-copy-buffer");
    }

    #[test]
    fn calls_tell_of_copies_to_a_socket_that_was_not_observed() {
        let relay = |written: u64| {
            let mut capture = traffic(forwarder(1024, (10, 90)));
            let thread = &mut capture.threads[0];
            thread.copy.pairs = 0;
            let cell = |name: &str, bytes| parshall_evidence::SyscallCell {
                name: name.into(),
                count: 41_000,
                bytes,
                ..call()
            };
            thread.syscalls = vec![cell("read", 41_000 * 1024), cell("write", written)];
            capture.flows.truncate(1);
            capture
        };
        assert_eq!(verdict_of(&relay(41_000 * 1024)), "small-copy-buffer");
        // It reads requests and writes short answers.
        assert_ne!(verdict_of(&relay(41_000 * 100)), "small-copy-buffer");
    }

    fn call() -> parshall_evidence::SyscallCell {
        parshall_evidence::SyscallCell {
            syscall: 0,
            name: String::new(),
            fd: FdKind::Tcp,
            count: 0,
            errors: 0,
            eagain: 0,
            bytes: 0,
            on_cpu_ns: 0,
            off_cpu_ns: 0,
        }
    }

    fn fix_of(start: Option<RelayStart>) -> String {
        let mut capture = traffic(forwarder(8192, (10, 90)));
        let pid = capture.threads[0].pid;
        let other = RelayStart::Flags { engine: "copy".into(), buffer_bytes: 1024 };
        capture.own_relays = vec![OwnRelay { pid: pid + 1, start: other }];
        capture.own_relays.extend(start.map(|start| OwnRelay { pid, start }));
        crate::judge::judge(&capture).findings[0].fix.text.clone()
    }

    #[test]
    fn a_fix_for_our_own_relay_names_the_flag() {
        let flags = |engine: &str, buffer_bytes| Some(RelayStart::Flags { engine: engine.into(), buffer_bytes });
        assert_eq!(
            fix_of(flags("copy", 8192)),
            "Start the relay with `--buffer 64KiB` in place of `--buffer 8KiB`, or with `--engine auto` in place of \
             `--engine copy`, which splices what streams."
        );
        assert_eq!(fix_of(flags("auto", 8192)), "Start the relay with `--buffer 64KiB` in place of `--buffer 8KiB`.");
        let fix = fix_of(Some(RelayStart::File { config: "/etc/relay.toml".into() }));
        assert!(fix.starts_with("In /etc/relay.toml,") && fix.contains("`buffer = \"64KiB\"`"), "{fix}");
        assert!(fix_of(None).starts_with("Copy with a buffer of 64"));
    }

    #[test]
    fn its_look_alikes() {
        assert_eq!(verdict_of(&traffic(forwarder(65_536, (10, 90)))), "healthy");
        let idle = forwarder(8192, (10, 90)).sleeps(10 * MS, 0, 5 * MS, "epoll_wait", FdKind::Anon);
        assert_eq!(verdict_of(&traffic(idle)), "healthy");
        let mut slow = traffic(forwarder(8192, (90, 10)));
        slow.threads[0].copy.recvs = 900;
        assert_ne!(verdict_of(&slow), "small-copy-buffer");
    }
}
