//! Loops that read a pipe or a file and write as much in as many pieces: the thread's calls show them, and neither end need be a
//! connection, as with a program that feeds another one which sends.
use parshall_evidence::{Evidence, FdKind, Place, SyscallCell};

use super::super::base::{Candidate, ThreadLoss, thread_name};
use super::thread::{MIN_RATE, busy, fix, is_as_much, is_receive, is_sliced, moved, observed_s, saturates};
use crate::judge::denial::{Denial, amount};
use crate::judge::facts::{Facts, Lost, ThreadFact};
use crate::judge::ledger::thread::State;
use crate::judge::words;
use crate::sorting::StableSort as _;
use crate::stats::ratio;
use crate::units;

/// Larger pieces gain little: `dd` into a pipe moves 135 MB/s by 512 bytes, 526 by 4 KiB, 735 by 8 KiB and 925 by 64 KiB (Linux 6.18).
const SMALL_BYTES: f64 = 4096.0;
/// Buffers have a multiple of these bytes. A program that reads what happens to be there has none in the mean.
const BUFFER_UNIT: f64 = 512.0;
/// How far the mean of full buffers is from it: the last read of a file is shorter.
const UNIT_SLACK: f64 = 0.005;
/// The least share of what the loops move that must pass over connections: a program that copies files beside a service delays no client.
const MIN_CARRIED: f64 = 0.5;

/// A thread whose calls are a loop.
struct Loop<'a, 'f> {
    thread: &'a ThreadFact<'f>,
    reads: u64,
    bytes: u64,
}

impl<'a, 'f> Loop<'a, 'f> {
    /// None if the thread writes something else than what it reads, or fills no buffer.
    fn of(thread: &'a ThreadFact<'f>) -> Option<Self> {
        let (reads, bytes) = moved(thread.rec, |cell| is_local(cell) && is_receive(&cell.name));
        let (writes, written) = moved(thread.rec, |cell| !is_receive(&cell.name));
        let each = ratio(bytes as f64, reads as f64);
        let buffers = (each / BUFFER_UNIT).round().max(1.0);
        let full = (each - buffers * BUFFER_UNIT).abs() <= UNIT_SLACK * each;
        let copied = is_as_much(writes, reads) && is_as_much(written, bytes);
        (reads > 0 && full && copied).then_some(Self { thread, reads, bytes })
    }

    fn bytes_each(&self) -> f64 {
        ratio(self.bytes as f64, self.reads as f64)
    }

    fn reads_per_s(&self) -> f64 {
        ratio(self.reads as f64, observed_s(self.thread))
    }

    /// Whether small pieces take all of its time. The error says which number speaks against it.
    fn is_limit(&self) -> Result<(), Box<Denial>> {
        if self.bytes_each() > SMALL_BYTES {
            let size = amount(self.bytes_each().round(), "B", "copied per call");
            return Err(Box::new(Denial::of(size).because("large enough")));
        }
        saturates(self.thread, busy(self.thread))
    }
}

/// None if no thread runs such a loop for the subject's connections.
pub fn test(facts: &Facts<'_>) -> Option<Result<Candidate, Box<Denial>>> {
    let mut loops: Vec<Loop<'_, '_>> = facts.threads.iter().filter_map(Loop::of).collect();
    loops.retain(|one| one.reads_per_s() >= MIN_RATE);
    let copied: u64 = loops.iter().map(|one| one.bytes).fold(0, u64::saturating_add);
    if (carried(facts) as f64) < MIN_CARRIED * copied as f64 {
        return None;
    }
    loops.stable_sort_by(|a, b| {
        b.thread.ledger.on_cpu().total_cmp(&a.thread.ledger.on_cpu()).then(a.thread.rec.tid.cmp(&b.thread.rec.tid))
    });
    let denied = loops.first()?.is_limit().err();
    loops.retain(|one| one.is_limit().is_ok());
    if loops.is_empty() { denied.map(Err) } else { Some(Ok(candidate(facts, &loops))) }
}

fn candidate(facts: &Facts<'_>, loops: &[Loop<'_, '_>]) -> Candidate {
    let first = &loops[0];
    let (rec, ledger, each) = (first.thread.rec, &first.thread.ledger, first.bytes_each());
    let (calls, per_gb) = (2.0 * first.reads_per_s(), ratio(2e9, each));
    let sliced = is_sliced(first.thread);
    let summary = format!(
        "{} copies {} per read and write, {} of these calls a second ({} per GB).",
        words::begun(&thread_name(facts, rec.tid)),
        units::bytes(each),
        words::about(sliced, units::count_f(calls)),
        units::count_f(per_gb)
    );
    let evidence = vec![
        words::valued("mean size of a read", each, "B"),
        Evidence { scaled: sliced, ..words::valued("reads and writes per second", calls, "1/s") },
        words::valued("system calls per GB", per_gb, "1"),
        words::valued("thread on a CPU", ratio(ledger.on_cpu(), ledger.wall_ns), "1"),
        words::valued("of its CPU time, in the kernel", ratio(ledger.of(State::OnCpuKernel), ledger.on_cpu()), "1"),
    ];
    let place = Place { pid: Some(rec.pid), tid: Some(rec.tid), ..Place::default() };
    let mut candidate = Candidate::new(Lost::default(), place, summary, evidence, fix(facts.capture, rec.pid));
    candidate.thread = Some(ThreadLoss {
        ns: loops.iter().map(|one| one.thread.ledger.of(State::OnCpuKernel)).sum(),
        wall_ns: loops.iter().map(|one| one.thread.ledger.wall_ns).sum(),
        tids: loops.iter().map(|one| one.thread.rec.tid).collect(),
    });
    candidate
}

/// Bytes that threads move between connections and pipes or files, in either direction.
fn carried(facts: &Facts<'_>) -> u64 {
    let of = |thread: &ThreadFact<'_>| {
        let tcp = moved(thread.rec, |cell| cell.fd == FdKind::Tcp).1;
        tcp.min(moved(thread.rec, is_local).1)
    };
    facts.threads.iter().map(of).fold(0, u64::saturating_add)
}

fn is_local(cell: &SyscallCell) -> bool {
    matches!(cell.fd, FdKind::Pipe | FdKind::File)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, FdKind, FlowState, Release, Role, SyscallCell};

    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    const PIECES: u64 = 100_000;

    fn cell(name: &str, fd: FdKind, count: u64, bytes: u64) -> SyscallCell {
        SyscallCell { name: name.into(), fd, count, bytes, ..SyscallCell::default() }
    }

    /// A program that copies a file to a pipe in pieces of `size`, all the time, and one that sends what it reads from it.
    fn piped(size: u64, sent: u64) -> Capture {
        let bytes = PIECES * size;
        let mut feeds = ThreadBuilder::new(101).of(101).samples(5, 95);
        feeds.record.syscalls =
            vec![cell("read", FdKind::File, PIECES, bytes), cell("write", FdKind::Pipe, PIECES, bytes)];
        let mut sends = ThreadBuilder::new(102).samples(20, 80).sleeps(10 * MS, 0, 4 * MS, "pselect6", FdKind::None);
        let pieces = sent / 2471;
        sends.record.syscalls =
            vec![cell("read", FdKind::Pipe, pieces, sent), cell("sendto", FdKind::Tcp, pieces, sent)];
        let flow = FlowBuilder::new(1, Role::Server)
            .cell(FlowState::InFlight, Release::RxAck, 900 * MS, 40_000)
            .streams(40_000, 8192);
        capture(vec![flow], vec![feeds, sends])
    }

    #[test]
    fn a_program_that_feeds_a_connection_by_a_pipe() {
        let report = crate::judge::judge(&piped(512, PIECES * 512));
        assert_eq!(report.verdict.cause.as_deref(), Some("small-copy-buffer"), "{report:#?}");
        assert_eq!(report.findings[0].place.pid, Some(101));
        assert!(report.verdict.summary.contains("512 B per read and write"), "{}", report.verdict.summary);
    }

    #[test]
    fn large_pieces_and_copies_for_nobody_are_none() {
        for size in [8192, 65_536] {
            assert_ne!(verdict_of(&piped(size, PIECES * size)), "small-copy-buffer");
        }
        // It copies files beside a service that sends little.
        assert_ne!(verdict_of(&piped(512, PIECES * 100)), "small-copy-buffer");
        // It waits for the file.
        let mut waits = piped(512, PIECES * 512);
        let slow = ThreadBuilder::new(101).of(101).samples(5, 25).sleeps(10 * MS, 0, 7 * MS, "read", FdKind::File);
        let calls = waits.threads[0].syscalls.clone();
        waits.threads[0] = capture(Vec::new(), vec![slow]).threads.remove(0);
        waits.threads[0].syscalls = calls;
        assert_ne!(verdict_of(&waits), "small-copy-buffer");
    }

    #[test]
    fn who_reads_what_is_there_fills_no_buffer() {
        let mut capture = piped(512, PIECES * 512);
        for cell in &mut capture.threads[0].syscalls {
            cell.bytes = cell.count * 2471;
        }
        capture.threads[1].syscalls.iter_mut().for_each(|cell| cell.bytes *= 4);
        assert_ne!(verdict_of(&capture), "small-copy-buffer");
    }
}
