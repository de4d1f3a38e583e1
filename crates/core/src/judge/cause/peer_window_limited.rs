//! The peer's receive window is full: unsent data waits until the peer's application reads.
//!
//! Look-alikes: the congestion window (its state is its own), and a slow reader on this host, which is then the cause.

use super::base::{Candidate, Cause, Outcome, not_lost, peer_command, peer_words, place_of, stalls, try_command, who};
use crate::judge::confidence::Gap;
use crate::judge::facts::{Blame, Facts};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "peer-window-limited",
    title: "The peer's receive window is full",
    test,
    symptom: |facts| facts.share_in(&[State::PeerWindowLimited]),
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.blamed(&[Blame::PeerWindow]);
    let Some(worst) = lost.worst() else { return why_not(facts) };
    let flow = &facts.flows[worst];
    let (first, last) = (&flow.rec.first, &flow.rec.last);
    let busy = last.busy_us.saturating_sub(first.busy_us) as f64;
    let limited = ratio(last.rwnd_limited_us.saturating_sub(first.rwnd_limited_us) as f64, busy).min(1.0);
    let summary = format!(
        "{} has data to send, and the peer's window is full ({} each time): the peer's application does not read, or its \
         receive buffer is too small for this path.",
        who(facts, &lost),
        units::duration(lost.p50_ns)
    );
    let window = lowest_window(facts, worst);
    let mut evidence = vec![stalls("waits with the peer's window full", &lost)];
    if busy > 0.0 {
        evidence.push(words::valued("rwnd_limited of the busy time, by the kernel's account", limited, "1"));
    }
    if let Some(window) = window {
        evidence.push(words::valued("smallest window of the peer during these waits", window, "B"));
    }
    let mss = f64::from(last.mss.max(1));
    evidence.push(words::valued("congestion window", f64::from(last.cwnd) * mss, "B"));
    let peer = peer_command(facts, worst);
    let fix = format!(
        "Look at {}: a reader that does not keep up shows there; if it does keep up, raise its receive buffer (SO_RCVBUF, \
         tcp_rmem).",
        peer_words(&peer)
    );
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    candidate.peer = Some(peer);
    // SOCK_RCVBUF_LOCK of the other end: its application has set the buffer, and with it the window.
    let fixed = facts.flows[worst].pair.filter(|&other| facts.flows[other].rec.last.userlocks & 2 != 0);
    candidate.trial = fixed.and_then(|other| try_command(facts, other, "rcvbuf=auto"));
    // A saturated receiver shuts its window for a moment now and then.
    candidate.min_share = 0.25;
    if busy > 0.0 && limited < 0.1 {
        candidate.gaps.push(Gap::Inferred("the kernel's own counter has less time with the window full"));
    }
    candidate.holds()
}

fn lowest_window(facts: &Facts<'_>, flow: usize) -> Option<f64> {
    facts
        .parts
        .iter()
        .filter(|p| p.flow == flow && p.blame == Blame::PeerWindow)
        .filter_map(|p| p.stall.and_then(|i| facts.capture.flow_stalls.get(i)))
        .map(|s| f64::from(s.snd_wnd))
        .min_by(f64::total_cmp)
}

fn why_not(facts: &Facts<'_>) -> Outcome {
    let otherwise = "for a reason found at the other end, or under 1 ms each";
    not_lost(facts, "with the peer's window full", &[State::PeerWindowLimited], otherwise)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, FdKind, FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    fn sender() -> FlowBuilder {
        FlowBuilder::new(1, Role::Client)
            .every(10 * MS, 0, 9 * MS, FlowState::PeerWindow, Release::RxAck)
            .streams(1000, 16_384)
    }

    #[test]
    fn a_remote_reader_shuts_the_window() {
        assert_eq!(verdict_of(&capture(vec![sender()], vec![])), "peer-window-limited");
    }

    /// Ten transfers on connections of their own, of `life_ms` each: a wait for the peer's window of `waits_ms` at these times of them, and
    /// a window that is `grows` times as large at the end.
    fn transfers(life_ms: u64, waits: &[u64], waits_ms: u64, grows: u32) -> Capture {
        let one = |n: u64| {
            let begin = 90 * n * MS + 1;
            let flow = FlowBuilder::new(n + 1, Role::Server).streams(13, 16_384);
            let wait = |flow: FlowBuilder, at: &u64| {
                flow.stall(begin + at * MS, waits_ms * MS, FlowState::PeerWindow, Release::RxAck)
            };
            let mut flow = waits.iter().fold(flow, wait);
            flow.stalls.iter_mut().for_each(|stall| stall.snd_wnd = 50_000);
            (flow.record.begin_ns, flow.record.end_ns) = (begin, begin + life_ms * MS);
            flow.record.last.snd_wnd = 50_000 * grows;
            flow
        };
        capture((0..10).map(one).collect(), vec![])
    }

    #[test]
    fn a_window_that_the_receiver_s_kernel_still_makes_larger() {
        assert_eq!(verdict_of(&transfers(14, &[4], 4, 4)), "healthy");
        for (other, why) in [
            (transfers(14, &[4], 4, 1), "a buffer that does not grow"),
            (transfers(60, &[4, 20, 36, 50], 4, 4), "a reader that pauses again and again"),
            (transfers(80, &[4], 36, 4), "a long pause"),
            (transfers(14, &[2, 9], 4, 4), "most of the transfer's time"),
        ] {
            assert_eq!(verdict_of(&other), "peer-window-limited", "{why}");
        }
    }

    #[test]
    fn a_reader_on_this_host_is_the_cause() {
        let sender = sender();
        let reader = FlowBuilder::new(2, Role::Server)
            .to(&sender)
            .owner(200, 201)
            .every(10 * MS, 0, 9 * MS, FlowState::RxWaiting, Release::AppRecv)
            .drains(1000, 16_384);
        let thread = ThreadBuilder::new(201).of(200).sleeps(10 * MS, 0, 9 * MS, "clock_nanosleep", FdKind::None);
        assert_eq!(verdict_of(&capture(vec![sender, reader], vec![thread])), "slow-reader");
    }

    #[test]
    fn microseconds_over_loopback_are_healthy() {
        let flow = FlowBuilder::new(1, Role::Client)
            .cell(FlowState::PeerWindow, Release::RxAck, 700 * MS, 70_000)
            .streams(100_000, 131_072);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "healthy");
    }

    #[test]
    fn a_full_congestion_window_is_not_the_peer_s() {
        let flow = FlowBuilder::new(1, Role::Client)
            .remote_host()
            .every(10 * MS, 0, 9 * MS, FlowState::Cwnd, Release::RxAck)
            .streams(1000, 16_384)
            .retransmitted(500);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "packet-loss");
    }
}
