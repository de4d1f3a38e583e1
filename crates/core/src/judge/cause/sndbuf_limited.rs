//! The sender set SO_SNDBUF: less data can be under way than the path holds, and the writer waits for its own buffer.
//!
//! Look-alikes: the kernel's own limit (`buffer-sysctl-cap`), and a path whose queue makes every ACK late (`local-shaper`,
//! `bottleneck-bandwidth`): there the round trip is far above its minimum.
use super::base::{Candidate, Cause, Outcome, not_lost, place_of, stalls, try_command, who};
use crate::judge::facts::{Blame, Facts};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::{stream, words};
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "sndbuf-limited",
    title: "A fixed send buffer is too small for the path",
    test,
    symptom: |facts| facts.share_in(&[State::SndbufLimited]),
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some((lost, worst)) = stream::lost_to(facts, Blame::SndbufLocked) else {
        let otherwise = "for a reason other than SO_SNDBUF, or under 1 ms each";
        return not_lost(facts, "with the send buffer full", &[State::SndbufLimited], otherwise);
    };
    let flow = &facts.flows[worst];
    let last = &flow.rec.last;
    let summary = format!(
        "{}: the application set SO_SNDBUF to {}; the buffer is full with what is under way, and the stream moves {}.",
        who(facts, &lost),
        units::bytes(f64::from(last.sndbuf) / 2.0),
        stream::pace(flow)
    );
    let mut evidence = vec![
        stalls("waits for space in the send buffer", &lost),
        words::valued(
            "send buffer, fixed by SO_SNDBUF (the kernel doubles what is asked for)",
            f64::from(last.sndbuf),
            "B",
        ),
        words::valued("congestion window", f64::from(last.cwnd) * f64::from(last.mss.max(1)), "B"),
        words::valued("peer's window", f64::from(last.snd_wnd), "B"),
    ];
    let busy = last.busy_us.saturating_sub(flow.rec.first.busy_us) as f64;
    let limited = last.sndbuf_limited_us.saturating_sub(flow.rec.first.sndbuf_limited_us) as f64;
    if limited > 0.0 {
        let share = ratio(limited, busy).min(1.0);
        evidence.push(words::valued("sndbuf_limited of the busy time, by the kernel's account", share, "1"));
    }
    evidence.extend(stream::evidence(flow));
    let fix = "Remove the setsockopt(SO_SNDBUF): the kernel then sizes the buffer by itself, up to tcp_wmem. To bound what waits in the \
               socket, use TCP_NOTSENT_LOWAT instead.";
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    candidate.trial = try_command(facts, worst, "sndbuf=auto");
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use crate::testkit::{bound_by_send_buffer, capture, verdict_of};

    #[test]
    fn a_fixed_buffer_below_the_path_s_capacity() {
        let mut flow = bound_by_send_buffer();
        assert_eq!(verdict_of(&capture(vec![flow.clone()], vec![])), "no-dominant-cause");
        flow.record.last.userlocks = 1;
        assert_eq!(verdict_of(&capture(vec![flow.clone()], vec![])), "sndbuf-limited");
        // The queue of the path makes the ACKs late: a larger buffer would only fill it.
        flow.record.last.srtt_us = 200_000;
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "bottleneck-bandwidth");
    }
}
