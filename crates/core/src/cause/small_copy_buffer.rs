//! A copy loop with a small buffer: throughput is bytes per call times calls per second, and the calls saturate a core.
//!
//! Look-alikes: bound by the copying itself (64 KiB a call and more), by the network (the thread sleeps), or by the
//! application's own code (the time is in user mode).
use parshall_evidence::{Place, SyscallCell};

use super::{Candidate, Cause, Outcome, ThreadLoss, thread_name};
use crate::facts::{Facts, Lost, ThreadFact};
use crate::ledger::thread::State;
use crate::stats::ratio;
use crate::words;

/// The entry in the list.
pub const CAUSE: Cause = Cause { id: "small-copy-buffer", title: "A copy loop with a small buffer", test };

/// From this size of a call on, the copying itself costs more than the call.
const BIG_BYTES: u32 = 64 * 1024;

fn test(facts: &Facts<'_>) -> Outcome {
    let mut tested: Vec<(&ThreadFact<'_>, Result<(), String>)> =
        facts.threads.iter().filter(|t| t.rec.copy.recvs > 0).map(|t| (t, copies_in_small_pieces(t))).collect();
    tested.sort_by(|a, b| b.0.ledger.on_cpu().total_cmp(&a.0.ledger.on_cpu()).then(a.0.rec.tid.cmp(&b.0.rec.tid)));
    let holding: Vec<&ThreadFact<'_>> = tested.iter().filter(|(_, r)| r.is_ok()).map(|(t, _)| *t).collect();
    let Some(thread) = holding.first() else {
        let why = tested.into_iter().next().and_then(|(_, r)| r.err());
        return Outcome::Rejected(why.unwrap_or_else(|| "no thread copies between sockets".to_string()));
    };
    let rec = thread.rec;
    let size = words::bytes(f64::from(rec.copy.mode_bytes));
    let calls = calls_per_second(thread);
    let per_gb = ratio(1e9, ratio(rec.copy.bytes as f64, rec.copy.pairs as f64)) * 2.0;
    let kernel = ratio(thread.ledger.of(State::OnCpuKernel), thread.ledger.on_cpu());
    let summary = format!(
        "{} copies {size} per receive and send: {} of these calls a second ({} per GB) keep it on a CPU for {} of the time, \
         {} of that in the kernel, with more data waiting after each read.",
        thread_name(facts, rec.tid),
        words::count_f(calls),
        words::count_f(per_gb),
        words::percent(ratio(thread.ledger.on_cpu(), thread.ledger.wall_ns)),
        words::percent(kernel)
    );
    let evidence = vec![
        words::valued("commonest size of a receive", f64::from(rec.copy.mode_bytes), "B"),
        words::valued("receives and sends per second", calls, "1/s"),
        words::valued("system calls per GB", per_gb, "1"),
        words::valued("thread on a CPU", ratio(thread.ledger.on_cpu(), thread.ledger.wall_ns), "1"),
        words::valued("of its CPU time, in the kernel", kernel, "1"),
        words::valued("receives that left data unread", ratio(rec.copy.left_over as f64, rec.copy.recvs as f64), "1"),
    ];
    let place = Place { pid: Some(rec.pid), tid: Some(rec.tid), ..Place::default() };
    let fix = "Copy with a buffer of 64 to 256 KiB, or let the kernel move the data (splice).";
    let mut candidate = Candidate::new(Lost::default(), place, summary, evidence, fix);
    candidate.thread = Some(ThreadLoss {
        ns: holding.iter().map(|t| t.ledger.of(State::OnCpuKernel)).sum(),
        wall_ns: holding.iter().map(|t| t.ledger.wall_ns).sum(),
        tids: holding.iter().map(|t| t.rec.tid).collect(),
    });
    candidate.holds()
}

/// The discriminator; the error says which number speaks against it.
pub fn copies_in_small_pieces(thread: &ThreadFact<'_>) -> Result<(), String> {
    let (copy, ledger) = (&thread.rec.copy, &thread.ledger);
    let reject = |why: String| Err(why);
    let paired = ratio(copy.pairs as f64, copy.recvs as f64);
    if paired < 0.5 {
        return reject(format!("{} of the receives are copied to another socket", words::percent(paired)));
    }
    if copy.mode_bytes >= BIG_BYTES {
        return reject(format!("copies {} per call", words::bytes(f64::from(copy.mode_bytes))));
    }
    let rate = ratio(copy.recvs as f64, observed_s(thread));
    if rate < 1000.0 {
        return reject(format!("{} receives a second", words::count_f(rate)));
    }
    let same = ratio(copy.mode_count as f64, copy.pairs as f64);
    if same < 0.8 {
        return reject(format!("{} of the receives fill the same buffer", words::percent(same)));
    }
    let busy = ratio(ledger.on_cpu() + ledger.of(State::Runnable).min(ledger.on_cpu()), ledger.wall_ns);
    if busy < 0.85 {
        return reject(format!("the copying thread is {} busy", words::percent(busy)));
    }
    let user = ledger.of(State::OnCpuUser);
    if ledger.of(State::OnCpuKernel) <= user {
        return reject(format!(
            "the copying thread spends {} of its CPU in user mode",
            words::percent(ratio(user, ledger.on_cpu()))
        ));
    }
    let left = ratio(copy.left_over as f64, copy.recvs as f64);
    if left < 0.5 {
        return reject(format!("only {} of the receives left data unread", words::percent(left)));
    }
    Ok(())
}

fn observed_s(thread: &ThreadFact<'_>) -> f64 {
    let observed = if thread.rec.observed_ns > 0 { thread.rec.observed_ns as f64 } else { thread.ledger.wall_ns };
    observed / 1e9
}

fn calls_per_second(thread: &ThreadFact<'_>) -> f64 {
    let moves = |c: &&SyscallCell| c.bytes > 0;
    let counted: f64 = thread.rec.syscalls.iter().filter(moves).map(|c| c.count as f64).sum();
    let copied = thread.rec.copy.pairs as f64 * 2.0;
    ratio(counted.max(copied), observed_s(thread))
}
