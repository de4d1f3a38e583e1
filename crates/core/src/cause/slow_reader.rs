//! A local reader that does not keep up: data of a stream waits in the receive queue while its reader sleeps or works on
//! something else, and the window shuts.
//!
//! Look-alikes: a reader at work on what it read (user-cpu-bound), out of quota (cpu-throttled), copying in small pieces
//! (small-copy-buffer), or a small receive buffer with a reader that empties it at once.
use parshall_evidence::Confidence;

use super::{Candidate, Cause, Outcome, main_sleep, main_thread, place_of, stalls, thread_name, who};
use crate::facts::{Blame, Facts, Part};
use crate::ledger::flow::State;
use crate::ledger::thread::Wait;
use crate::stats::{quantile, ratio};
use crate::words;

/// The entry in the list.
pub const CAUSE: Cause = Cause { id: "slow-reader", title: "The local reader does not keep up", test };

fn test(facts: &Facts<'_>) -> Outcome {
    let take = |p: &Part| p.blame == Blame::ReaderBlocked;
    let lost = facts.lost(take);
    let Some(worst) = lost.worst() else { return Outcome::Rejected(why_not(facts)) };
    let tid = main_thread(facts, take);
    let sleep = main_sleep(facts, take);
    let doing = match &sleep {
        Some((call, wait, share)) => format!("{} in {call} ({})", doing(*wait), words::percent(*share)),
        None => "not reading".to_string(),
    };
    let reader = if tid != 0 { thread_name(facts, tid) } else { "the reader".to_string() };
    let summary = format!(
        "{}: received data waits {} at a time while {reader} is {doing}.",
        who(facts, &lost),
        words::duration(lost.p50_ns)
    );
    let unread = unread(facts, worst);
    let mut evidence = vec![stalls("waits of received data for the local reader", &lost)];
    if let Some(bytes) = quantile(&unread, 0.5) {
        evidence.push(words::valued("unread bytes, median", bytes, "B"));
    }
    let shut = shut_share(facts, worst);
    if let Some(shut) = shut {
        evidence.push(words::valued("time in which the other end found the window full", shut, "1"));
    }
    if let Some((call, _, share)) = &sleep {
        evidence.push(words::valued(format!("of the waits, reader in {call}"), *share, "1"));
    }
    let mut place = place_of(facts, &lost);
    place.tid = (tid != 0).then_some(tid);
    let fix = "Read earlier or in another thread: what this thread waits for does not belong between two reads.";
    let mut candidate = Candidate::new(lost, place, summary, evidence, fix);
    if sleep.is_none() {
        candidate.confidence = Confidence::Medium;
    }
    candidate.holds()
}

fn doing(wait: Wait) -> &'static str {
    match wait {
        Wait::Sleep => "asleep",
        Wait::Futex => "waiting for another thread",
        Wait::File => "waiting for the disk",
        Wait::SocketReceive | Wait::SocketSend | Wait::Connect | Wait::Accept => "waiting for another socket",
        Wait::Multiplex => "waiting for other events",
        Wait::Pipe => "waiting for a pipe",
        Wait::PageFault | Wait::Other => "blocked",
    }
}

fn unread(facts: &Facts<'_>, flow: usize) -> Vec<f64> {
    facts
        .parts
        .iter()
        .filter(|p| p.flow == flow && p.blame == Blame::ReaderBlocked)
        .filter_map(|p| p.stall.and_then(|i| facts.capture.flow_stalls.get(i)))
        .map(|s| f64::from(s.unread_bytes))
        .collect()
}

fn shut_share(facts: &Facts<'_>, flow: usize) -> Option<f64> {
    let other = &facts.flows[facts.flows[flow].pair?].ledger;
    Some(ratio(other.of(State::PeerWindowLimited), other.wall_ns))
}

fn why_not(facts: &Facts<'_>) -> String {
    let waiting: f64 = facts.flows.iter().map(|f| f.ledger.of(State::ReaderWaiting)).sum();
    let wall: f64 = facts.flows.iter().map(|f| f.ledger.wall_ns).sum();
    let share = words::percent(ratio(waiting, wall));
    format!("received data waited for {share} of the time, never while its reader slept")
}
