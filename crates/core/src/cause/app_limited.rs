//! The local application has the network to itself and does not use it: it supplies a stream slowly, or it sleeps with a
//! request to answer.
//!
//! Look-alikes: CPU work (user-cpu-bound), quota (cpu-throttled). A client's pause between a reply and its next request
//! is nobody's loss, nor is a connection that sends less than ten times or 1 kB a second.
use parshall_evidence::Confidence;

use super::{Candidate, Cause, Outcome, main_sleep, main_thread, place_of, stalls, thread_name, who};
use crate::facts::{Blame, Facts, Part};
use crate::words;

/// The entry in the list.
pub const CAUSE: Cause = Cause { id: "app-limited", title: "The local application supplies data slowly", test };

fn test(facts: &Facts<'_>) -> Outcome {
    let take = |p: &Part| match p.blame {
        Blame::SupplyBlocked => true,
        Blame::AppBlocked => true,
        _ => false,
    };
    let lost = facts.lost(take);
    if lost.worst().is_none() {
        return Outcome::Rejected("no thread slept while a flow needed its data".to_string());
    }
    if lost.seen < 2 {
        return Outcome::Rejected("the application paused once".to_string());
    }
    let supply = facts.blamed(&[Blame::SupplyBlocked]).ns * 2.0 >= lost.ns;
    let tid = main_thread(facts, take);
    let sleep = main_sleep(facts, take);
    let thread = if tid != 0 { thread_name(facts, tid) } else { "the application".to_string() };
    let asleep = match &sleep {
        Some((call, _, share)) => format!("{thread} sleeps in {call} ({} of it)", words::percent(*share)),
        None => format!("{thread} is off the CPU"),
    };
    let wait = words::duration(lost.p50_ns);
    let summary = if supply {
        format!(
            "{}: nothing was left to send for {wait} at a time; the network waits, and {asleep}.",
            who(facts, &lost)
        )
    } else {
        format!("{}: a request waits {wait} for its answer; {asleep}.", who(facts, &lost))
    };
    let what = if supply {
        "gaps with nothing to send, ended by the application"
    } else {
        "requests read and not answered, thread asleep"
    };
    let mut evidence = vec![stalls(what, &lost)];
    if let Some((call, _, share)) = &sleep {
        evidence.push(words::valued(format!("of this time, thread in {call}"), *share, "1"));
    }
    if let Some(thread) = facts.thread(tid) {
        let busy = crate::stats::ratio(thread.ledger.on_cpu(), thread.ledger.wall_ns);
        evidence.push(words::valued("thread on a CPU", busy, "1"));
    }
    let mut place = place_of(facts, &lost);
    place.tid = (tid != 0).then_some(tid);
    let fix =
        "The network is not the limit: look at what this thread waits for, prepare data ahead, or do it concurrently.";
    let mut candidate = Candidate::new(lost, place, summary, evidence, fix);
    if supply {
        candidate.min_share = 0.30;
    }
    if sleep.is_none() {
        candidate.confidence = Confidence::Medium;
    }
    candidate.holds()
}
