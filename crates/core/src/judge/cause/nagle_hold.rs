//! Nagle's algorithm alone: a small write waits one round trip for the ACK of the one before it.
//!
//! Look-alikes: the delayed ACK (40 ms and more), and a bulk sender whose last partial segment is topped up by its next
//! write: that delays no message. Where the writes are large and their peer waits for the last part of each message, as its next one
//! shows, that part is delayed all the same.
use parshall_evidence::{Evidence, Figure, FlowState, Release};

use super::base::{Candidate, Cause, Outcome, denied, nodelay_is_on, not_lost, place_of, stalls, try_command, who};
use crate::judge::confidence::FEW;
use crate::judge::denial::{Denial, count};
use crate::judge::facts::{Blame, Facts, FlowFact, Shape};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "nagle-hold",
    title: "Small writes wait a round trip for an ACK",
    test,
    symptom: |facts| facts.share_in(&[State::HeldByNagle]),
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.lost(|p| p.blame == Blame::Nagle && delays_messages(&facts.flows[p.flow]));
    let Some(worst) = lost.worst() else {
        let held = facts.blamed(&[Blame::Nagle]);
        return match held.count {
            0 => not_lost(facts, "held by Nagle for a round trip", &[State::HeldByNagle], "under 1 ms each"),
            n => {
                let holds = Figure { scaled: held.scaled, ..count(n, "holds", "by Nagle's algorithm") };
                denied(Denial::of(holds).because("all of a bulk sender"))
            }
        };
    };
    let flow = &facts.flows[worst];
    let (first, second) = flow.rec.calls.last_pair_bytes;
    let sizes = if first > 0 && second > 0 {
        format!(" ({}, then {})", units::bytes(f64::from(first)), units::bytes(f64::from(second)))
    } else {
        String::new()
    };
    let summary = format!(
        "{} writes its messages in pieces{sizes}. Nagle holds each piece until the last is acknowledged, {} later.",
        who(facts, &lost),
        units::duration(lost.p50_ns)
    );
    let mut evidence = vec![stalls("waits of data held by Nagle for one round trip", &lost)];
    let rtt_us = flow.rec.last.min_rtt_us;
    if rtt_us > 0 {
        evidence.push(words::valued("minimum RTT", f64::from(rtt_us) / 1e3, "ms"));
    }
    let pairs = flow.rec.calls.write_after_write as f64 * flow.ledger.scale;
    evidence.push(Evidence {
        scaled: flow.ledger.scaled,
        ..words::counted("writes after a write with no read between", pairs.round() as u64)
    });
    let mut candidate = Candidate::new(
        lost.clone(),
        place_of(facts, &lost),
        summary,
        evidence,
        match nodelay_is_on(flow) {
            true => "Write the whole message at once (writev or a buffer). TCP_NODELAY was set meanwhile.",
            false => "Write the whole message at once (writev or a buffer), or set TCP_NODELAY.",
        },
    );
    candidate.trial = try_command(facts, worst, "nodelay");
    candidate.holds()
}

fn delays_messages(flow: &FlowFact<'_>) -> bool {
    small_writer(flow) || holds_ends(flow)
}

/// In half of the exchanges the end of a message is held until an ACK comes, and the writer does not write again before: it has nothing
/// more to write.
fn holds_ends(flow: &FlowFact<'_>) -> bool {
    let held = |tops_up: bool| {
        let cells = flow.rec.cells.iter().filter(|cell| cell.state == FlowState::Nagle);
        let cells = cells.filter(|cell| (cell.release == Release::AppSend) == tops_up);
        cells.fold(0u64, |n, cell| n.saturating_add(cell.count))
    };
    let exchanges = flow.rec.calls.exchanges;
    flow.shape == Shape::RequestReply
        && exchanges >= FEW
        && held(false).saturating_mul(2) >= exchanges
        && held(true).saturating_mul(4) <= held(false)
}

fn small_writer(flow: &FlowFact<'_>) -> bool {
    let calls = &flow.rec.calls;
    calls.sends == 0 || calls.small_sends.saturating_mul(2) > calls.sends
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FdKind, FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    #[test]
    fn one_round_trip_per_request() {
        let mut flow = FlowBuilder::new(1, Role::Client).remote_host();
        flow.record.last.min_rtt_us = 20_000;
        let flow = flow.every(25 * MS, 0, 21 * MS, FlowState::Nagle, Release::RxAck).talks_in_parts(40);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "nagle-hold");
    }

    #[test]
    fn short_holds_count_in_a_write_write_read_flow() {
        let flow = FlowBuilder::new(1, Role::Client)
            .cell(FlowState::Nagle, Release::RxAck, 500 * MS, 5000)
            .talks_in_parts(5000);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "nagle-hold");
    }

    #[test]
    fn a_bulk_sender_that_tops_up_is_healthy() {
        let flow = FlowBuilder::new(1, Role::Client)
            .cell(FlowState::Nagle, Release::AppSend, 500 * MS, 50_000)
            .cell(FlowState::Nagle, Release::RxAck, 200 * MS, 20_000)
            .streams(70_000, 16_384);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "healthy");
    }

    /// A server of pages, which writes each in two large parts, over a path of 20 ms.
    fn pages(release: Release) -> FlowBuilder {
        let mut flow = FlowBuilder::new(1, Role::Server).remote_host().talks(40, 20_000);
        flow.record.last.min_rtt_us = 20_000;
        let calls = &mut flow.record.calls;
        (calls.sends, calls.write_after_write, calls.small_sends) = (80, 40, 0);
        flow.every(25 * MS, 0, 21 * MS, FlowState::Nagle, release)
    }

    #[test]
    fn the_end_of_a_large_message_is_held_for_a_round_trip() {
        assert_eq!(verdict_of(&capture(vec![pages(Release::RxAck)], vec![])), "nagle-hold");
        // Its writer fills the segment itself: it had more to write.
        assert_ne!(verdict_of(&capture(vec![pages(Release::AppSend)], vec![])), "nagle-hold");
    }

    #[test]
    fn a_stream_whose_writer_computes_meanwhile_waits_for_the_writer() {
        let stream = || {
            let held = FlowState::Nagle;
            let mut flow = FlowBuilder::new(1, Role::Server).owner(100, 101).streams(240, 14_000);
            let calls = &mut flow.record.calls;
            (calls.small_sends, calls.recvs, calls.write_after_write) = (200, 2, 200);
            flow.every(12 * MS, 4 * MS, 7 * MS, held, Release::RxAck)
        };
        let computes = ThreadBuilder::new(101).samples(95, 5);
        assert_ne!(verdict_of(&capture(vec![stream()], vec![computes])), "nagle-hold");
        // One that sleeps while its data is held has nothing else to do.
        let sleeps = ThreadBuilder::new(101).sleeps(12 * MS, 4 * MS, 7 * MS, "poll", FdKind::Socket);
        assert_eq!(verdict_of(&capture(vec![stream()], vec![sleeps])), "nagle-hold");
    }

    #[test]
    fn acknowledgements_to_a_peer_that_streams_on_delay_nobody() {
        let receiver = |bytes| {
            let mut flow = FlowBuilder::new(1, Role::Client).talks_in_parts(40);
            flow.record.last.min_rtt_us = 20_000;
            (flow.record.calls.recv_bytes, flow.record.calls.send_bytes) = (bytes, 10_000);
            flow.every(25 * MS, 0, 21 * MS, FlowState::Nagle, Release::RxData)
        };
        assert_ne!(verdict_of(&capture(vec![receiver(1_000_000)], vec![])), "nagle-hold");
        // A request whose second part is held until the reply to another one comes.
        assert_eq!(verdict_of(&capture(vec![receiver(20_000)], vec![])), "nagle-hold");
    }
}
