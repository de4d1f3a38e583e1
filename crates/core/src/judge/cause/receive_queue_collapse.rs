//! Received data takes far more memory than its size: the kernel merges or drops what is queued, and the window stays shut.
//!
//! Look-alikes: a reader that does not keep up with full segments (`slow-reader`), a small buffer of full segments (`rcvbuf-locked`,
//! `buffer-sysctl-cap`): nothing is merged or pruned there.
use super::base::{Candidate, Cause, Outcome, denied, place_of, stalls, who};
use crate::judge::denial::{Denial, count};
use crate::judge::facts::network::RCVBUF_LOCK;
use crate::judge::facts::{Blame, Facts};
use crate::judge::record;
use crate::judge::{stream, words};
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "receive-queue-collapse",
    title: "The receive queue collapses under small segments",
    test,
    symptom: |facts| record::rose(facts, COUNTERS[0].0) as f64,
    testable: record::counters,
};

/// The usual largest receive buffer that the kernel sizes by itself.
const USUAL_RMEM_MAX: u64 = 6_291_456;

/// The kernel's steps against a queue that has outgrown its memory, from mild to drastic.
const COUNTERS: [(&str, &str); 4] = [
    ("TcpExt.PruneCalled", "times the receive memory ran out"),
    ("TcpExt.TCPRcvCollapsed", "segments merged to save memory"),
    ("TcpExt.OfoPruned", "times the out of order queue was dropped"),
    ("TcpExt.RcvPruned", "received segments dropped for lack of memory"),
];

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(counters) = &facts.capture.counters else {
        return Outcome::Untested("the counters of the receive queues were not read".to_string());
    };
    let pruned = counters.rose(COUNTERS[0].0);
    let Some((lost, worst)) = stream::lost_to(facts, Blame::QueueCollapse) else {
        return denied(Denial::of(count(pruned, "shortages", "of receive memory")));
    };
    let flow = &facts.flows[worst];
    let receiver = stream::receiver(facts, worst).unwrap_or(flow);
    let figures = facts.figures(receiver.rec.id);
    let summary = format!(
        "{}: small segments fill the receiver's buffer of {} with overhead; its memory ran out {}, and the window shuts.",
        who(facts, &lost),
        units::bytes(f64::from(receiver.rec.last.rcvbuf)),
        units::plural(pruned, "time", "times")
    );
    let mut evidence = vec![stalls("waits with the window shut", &lost)];
    let counted = COUNTERS.iter().map(|(name, what)| (*what, counters.rose(name))).filter(|(_, n)| *n > 0);
    evidence.extend(counted.map(|(what, n)| words::counted(what, n)));
    if let Some((memory, data)) = figures.map(|f| f.unread_memory).filter(|(memory, _)| *memory > 0) {
        evidence.push(words::valued(
            "data in the receive memory that was taken",
            ratio(data.into(), memory.into()),
            "1",
        ));
    }
    evidence.extend(stream::evidence(flow));
    let mut fix = "Write larger pieces at the sender (collect small messages, leave TCP_NODELAY off for bulk data), and read sooner."
        .to_string();
    let small = facts.settings(receiver.rec.netns).is_none_or(|s| s.tcp_rmem[2] < USUAL_RMEM_MAX);
    match (receiver.rec.last.userlocks & RCVBUF_LOCK != 0, small) {
        (true, _) => fix.push_str(" Give the receiver more memory: remove its SO_RCVBUF."),
        (false, true) => fix.push_str(
            " Give the receiver more memory: `sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\"` (in its network namespace).",
        ),
        (false, false) => {}
    }
    Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix).holds()
}

#[cfg(test)]
mod tests {
    use crate::testkit::{bound_by_window, capture, rose, verdict_of};

    #[test]
    fn pruned_queues_shut_the_window() {
        let (sender, receiver) = bound_by_window();
        let mut pruned = capture(vec![sender, receiver], vec![]);
        pruned.counters = Some(rose(&[("TcpExt.PruneCalled", 400), ("TcpExt.TCPRcvCollapsed", 9000)]));
        assert_eq!(verdict_of(&pruned), "receive-queue-collapse");
        pruned.counters = Some(rose(&[("TcpExt.PruneCalled", 1)]));
        assert_ne!(verdict_of(&pruned), "receive-queue-collapse");
    }
}
