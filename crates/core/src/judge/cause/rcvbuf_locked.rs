//! The receiver set SO_RCVBUF: its window cannot grow, and is smaller than what the path holds in one round trip.
//!
//! Look-alikes: the kernel's own limit (`buffer-sysctl-cap`), a reader that does not keep up (`slow-reader`: data waits unread).
use super::base::{Candidate, Cause, Outcome, not_lost, place_of, stalls, try_command, who};
use crate::judge::facts::{Blame, Facts};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::{stream, words};
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "rcvbuf-locked",
    title: "A fixed receive buffer is too small for the path",
    test,
    symptom: |facts| facts.share_in(&[State::PeerWindowLimited]),
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some((lost, worst)) = stream::lost_to(facts, Blame::RcvbufLocked) else {
        return not_lost(
            facts,
            "with the peer's window full",
            &[State::PeerWindowLimited],
            "for a reason other than SO_RCVBUF, or under 1 ms each",
        );
    };
    let flow = &facts.flows[worst];
    let receiver = stream::receiver(facts, worst).unwrap_or(flow);
    let buffer = f64::from(receiver.rec.last.rcvbuf);
    let summary = format!(
        "{}: the receiver set SO_RCVBUF to {}, so its window stays at {} and the stream moves {}.",
        who(facts, &lost),
        units::bytes(buffer / 2.0),
        units::bytes(f64::from(receiver.rec.last.rcv_wnd)),
        stream::pace(flow)
    );
    let mut evidence = vec![
        stalls("waits for the window, one round trip each", &lost),
        words::valued("receive buffer, fixed by SO_RCVBUF (the kernel doubles what is asked for)", buffer, "B"),
        words::valued("receive window", f64::from(receiver.rec.last.rcv_wnd), "B"),
    ];
    evidence.extend(stream::evidence(flow));
    let limit = facts.capture.counters.as_ref().and_then(|c| c.namespace(receiver.rec.netns)?.settings);
    let grows =
        limit.map(|l| format!(" (up to tcp_rmem's {})", units::bytes(l.tcp_rmem[2] as f64))).unwrap_or_default();
    let fix = format!(
        "Remove the setsockopt(SO_RCVBUF) from the receiver: the kernel then sizes the buffer by itself{grows}. Where it must stay, give \
         it at least twice the bandwidth times the round trip.",
    );
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    let end = if receiver.rec.id == flow.rec.id { Some(worst) } else { flow.pair };
    candidate.trial = end.and_then(|end| try_command(facts, end, "rcvbuf=auto"));
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Release, Role};

    use crate::judge::judge;
    use crate::testkit::{FlowBuilder, MS, bound_by_window, capture, verdict_of};

    #[test]
    fn a_fixed_buffer_below_the_path_s_capacity() {
        let (sender, mut receiver) = bound_by_window();
        receiver.record.last.userlocks = 2;
        assert_eq!(verdict_of(&capture(vec![sender.clone(), receiver.clone()], vec![])), "rcvbuf-locked");
        // Seen from the receiver alone.
        assert_eq!(verdict_of(&capture(vec![receiver.clone()], vec![])), "rcvbuf-locked");
        // A buffer that is fixed and large enough limits nothing.
        receiver.record.last.bytes_received = receiver.record.first.bytes_received + 100_000;
        assert_eq!(verdict_of(&capture(vec![receiver], vec![])), "healthy");
        assert_eq!(sender.record.role, Role::Client);
    }

    /// Replies of this many windows, one after the other, over a connection whose other end is elsewhere.
    fn replies(windows: u64) -> FlowBuilder {
        let (_, mut receiver) = bound_by_window();
        let window = u64::from(receiver.record.last.rcv_wnd);
        let received = receiver.record.received_bytes();
        receiver = receiver.every(20 * MS, 0, 19 * MS, FlowState::IdleAfterSend, Release::RxData);
        let calls = &mut receiver.record.calls;
        (calls.exchanges, calls.sends) = (received / (windows * window), received / (windows * window));
        (calls.small_sends, calls.send_bytes) = (calls.sends, 100 * calls.sends);
        receiver.record.cells.retain(|cell| cell.state != FlowState::IdleAfterRecv);
        receiver.record.last.userlocks = 2;
        receiver
    }

    #[test]
    fn replies_of_many_windows_are_streams() {
        assert_eq!(verdict_of(&capture(vec![replies(10)], vec![])), "rcvbuf-locked");
        // A reply that fits in its window waits for whoever makes it.
        assert_ne!(verdict_of(&capture(vec![replies(1)], vec![])), "rcvbuf-locked");
    }

    #[test]
    fn who_waits_for_a_proxy_waits_for_what_limits_its_other_side() {
        let upstream = replies(10);
        let client = FlowBuilder::new(5, Role::Client)
            .owner(300, 301)
            .every(20 * MS, 0, 18 * MS, FlowState::IdleAfterSend, Release::RxData)
            .talks(40, 100);
        let mut proxy = FlowBuilder::new(6, Role::Server).to(&client).owner(200, 202).talks(40, 100);
        proxy = proxy.cell(FlowState::IdleAfterSend, Release::AppSend, 900 * MS, 40);
        let report = judge(&capture(vec![upstream, client.clone(), proxy.clone()], vec![]));
        assert_eq!(report.verdict.cause.as_deref(), Some("rcvbuf-locked"), "{report:#?}");
        // A proxy that asks nobody thinks by itself.
        assert_eq!(verdict_of(&capture(vec![client, proxy], vec![])), "peer-think-time");
    }

    #[test]
    fn a_reader_that_sleeps_is_not_a_small_buffer() {
        let (mut sender, mut receiver) = bound_by_window();
        receiver.record.last.userlocks = 2;
        // It takes a hundredth of what the window would let through.
        sender.record.last.bytes_acked /= 100;
        receiver.record.last.bytes_received /= 100;
        assert_eq!(verdict_of(&capture(vec![sender], vec![])), "peer-window-limited");
    }
}
