//! A thread that copies: the limits and the figures that [`super`] and the loops by [`super::calls`] share, and the advice.
use parshall_evidence::{Capture, Figure, RelayStart, SyscallCell, ThreadRecord};

use crate::judge::denial::{Denial, share};
use crate::judge::facts::ThreadFact;
use crate::judge::ledger::thread::State;
use crate::stats::ratio;
use crate::values::bytes_text;

/// From this size of a call on, the copying itself costs more than the call.
pub const BIG_BYTES: u32 = 64 * 1024;

/// A thread that receives less often does not copy a stream.
pub const MIN_RATE: f64 = 1000.0;

/// Share of its time that a thread copies from which on it is the limit.
pub const MIN_BUSY: f64 = 0.85;

/// The share of its time in which it ran, or could have run as long as it did, 0..=1.
pub fn busy(thread: &ThreadFact<'_>) -> f64 {
    let on_cpu = thread.ledger.on_cpu();
    ratio(on_cpu + thread.ledger.of(State::Runnable).min(on_cpu), thread.ledger.wall_ns)
}

/// Whether a thread that is `busy` for this share of its time has no more of it, and spends most in the kernel. The error says which number
/// speaks against it.
pub fn saturates(thread: &ThreadFact<'_>, busy: f64) -> Result<(), Box<Denial>> {
    let ledger = &thread.ledger;
    if busy < MIN_BUSY {
        let busy = share(busy, "of the copying thread's time on a CPU");
        return Err(Box::new(Denial::of(Figure { limit: Some(MIN_BUSY), ..busy }).seen()));
    }
    let user = ledger.of(State::OnCpuUser);
    if ledger.of(State::OnCpuKernel) <= user {
        let user = share(ratio(user, ledger.on_cpu()), "of the copying thread's CPU time in user mode");
        return Err(Box::new(Denial::of(user).seen()));
    }
    Ok(())
}

/// What is written does not differ by more than this share from what was read, where the calls alone tell that it was copied.
const WRITTEN_SLACK: f64 = 0.05;

/// Whether what was written is what was read, in calls or in bytes.
pub fn is_as_much(written: u64, read: u64) -> bool {
    written.abs_diff(read) as f64 <= WRITTEN_SLACK * read as f64
}

/// The calls of a thread that moved data, and the bytes.
pub fn moved(thread: &ThreadRecord, which: impl Fn(&SyscallCell) -> bool) -> (u64, u64) {
    let cells = thread.syscalls.iter().filter(|cell| cell.bytes > 0 && which(cell));
    cells.fold((0u64, 0u64), |sum, cell| (sum.0.saturating_add(cell.count), sum.1.saturating_add(cell.bytes)))
}

/// Whether a call that moves data on a descriptor takes some from it.
pub fn is_receive(call: &str) -> bool {
    call.starts_with("recv") || call.contains("read")
}

/// Only part of the thread's time was observed, so what it did per second is an estimate.
pub fn is_sliced(thread: &ThreadFact<'_>) -> bool {
    observed_s(thread) * 1e9 < 0.99 * thread.ledger.wall_ns
}

/// The time in which its calls were counted, in seconds.
pub fn observed_s(thread: &ThreadFact<'_>) -> f64 {
    let observed = if thread.rec.observed_ns > 0 { thread.rec.observed_ns as f64 } else { thread.ledger.wall_ns };
    observed / 1e9
}

/// The change to make: where the process is a relay of parshall's own, the very flag or key.
pub fn fix(capture: &Capture, pid: u32) -> String {
    let own = capture.own_relays.iter().find(|relay| relay.pid == pid);
    match own.map(|relay| &relay.start) {
        None => "Copy with a buffer of 64 to 256 KiB, or let the kernel move the data (splice).".to_owned(),
        Some(RelayStart::File { config }) => format!(
            "In {config}, give this listener `buffer = \"64KiB\"`, or `engine = \"auto\"`, which splices what streams; then \
             reload it (SIGHUP): new connections have it."
        ),
        Some(RelayStart::Flags { engine, buffer_bytes }) => {
            let mut text = "Start the relay with `--buffer 64KiB`".to_owned();
            if *buffer_bytes != u64::from(BIG_BYTES) {
                text += &format!(" in place of `--buffer {}`", bytes_text(*buffer_bytes));
            }
            // Under `auto` it copies because it could not splice: asking again would not help.
            if engine != "auto" {
                text +=
                    &format!(", or with `--engine auto` in place of `--engine {engine}`, which splices what streams");
            }
            text + "."
        }
    }
}
