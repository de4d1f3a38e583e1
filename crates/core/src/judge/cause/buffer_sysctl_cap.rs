//! The largest buffer that the host's settings allow (`tcp_rmem`, `tcp_wmem`) is smaller than what the path holds.
//!
//! Between neighbours the path holds little, but sender and reader take turns where the window holds less than two bursts.
//!
//! Look-alikes: an application that fixed its buffer (`rcvbuf-locked`, `sndbuf-limited`), a window without scaling
//! (`rtt-window-bound`).
use super::base::{Candidate, Cause, Outcome, not_lost, place_of, stalls, who};
use crate::judge::facts::{Blame, Facts};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::{stream, words};
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "buffer-sysctl-cap",
    title: "The host's largest buffer is too small for the path",
    test,
    symptom: |facts| facts.share_in(&[State::PeerWindowLimited, State::SndbufLimited]),
    testable: record::counters,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(counters) = &facts.capture.counters else {
        return Outcome::Untested("the host's buffer settings were not read".to_string());
    };
    let Some((lost, worst)) = stream::lost_to(facts, Blame::SysctlCap) else {
        let states = [State::PeerWindowLimited, State::SndbufLimited];
        return not_lost(facts, "with a window or send buffer full", &states, "with buffers below their largest size");
    };
    let flow = &facts.flows[worst];
    let sends =
        facts.parts.iter().any(|p| p.flow == worst && p.blame == Blame::SysctlCap && p.state == State::SndbufLimited);
    let receiver = stream::receiver(facts, worst).unwrap_or(flow);
    let (name, netns, buffer) = if sends {
        ("tcp_wmem", flow.rec.netns, flow.rec.last.sndbuf)
    } else {
        ("tcp_rmem", receiver.rec.netns, receiver.rec.last.rcvbuf)
    };
    let settings = counters.namespace(netns).and_then(|space| space.settings).unwrap_or_default();
    let sizes = if sends { settings.tcp_wmem } else { settings.tcp_rmem };
    let (side, end) = if sends { ("send", "sender") } else { ("receive", "receiver") };
    let summary = format!(
        "{}: the {side} buffer has reached the host's limit of {} (net.ipv4.{name}), and the stream moves {}.",
        who(facts, &lost),
        units::bytes(sizes[2] as f64),
        stream::pace(flow)
    );
    let mut evidence = vec![
        stalls(&format!("waits with the {side} buffer at its limit"), &lost),
        words::valued(format!("{side} buffer"), f64::from(buffer), "B"),
        words::valued(format!("net.ipv4.{name}, largest"), sizes[2] as f64, "B"),
    ];
    evidence.extend(stream::evidence(flow));
    let larger = sizes[2].saturating_mul(16).clamp(4 << 20, 64 << 20);
    let middle = sizes[1].max(if sends { 16_384 } else { 131_072 });
    let fix = format!(
        "Raise the limit where the {end} runs, to twice the bandwidth times the round trip or more: \
         `sysctl -w net.ipv4.{name}=\"{} {middle} {larger}\"` (in its network namespace).",
        sizes[0].max(4096)
    );
    Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FdKind, FlowState, Release, Role};

    use crate::testkit::{
        FlowBuilder, MS, ThreadBuilder, WINDOW_NS, bound_by_send_buffer, bound_by_window, capture, settings, verdict_of,
    };

    #[test]
    fn a_receive_buffer_at_its_limit() {
        let (sender, receiver) = bound_by_window();
        let mut small = capture(vec![sender, receiver], vec![]);
        small.counters = Some(settings(|s| s.tcp_rmem = [4096, 32_768, 32_768]));
        assert_eq!(verdict_of(&small), "buffer-sysctl-cap");
        small.counters = Some(settings(|s| s.tcp_rmem = [4096, 131_072, 6_291_456]));
        assert_eq!(verdict_of(&small), "rtt-window-bound");
    }

    #[test]
    fn a_window_of_less_than_two_bursts_between_neighbours() {
        let stream = |window, busy_ms| {
            let sender = FlowBuilder::new(1, Role::Client)
                .cell(FlowState::PeerWindow, Release::RxAck, 700 * MS, 70_000)
                .streams(100_000, 131_072);
            let receiver = FlowBuilder::new(2, Role::Server).to(&sender).owner(200, 201).drains(100_000, 131_072);
            let (mut sender, mut receiver) = (sender, receiver);
            sender.record.last.snd_wnd = window;
            receiver.record.last.rcvbuf = 65_536;
            let reader =
                ThreadBuilder::new(201).of(200).blocked(0, WINDOW_NS - busy_ms * MS, "recvfrom", FdKind::Tcp).fill();
            let mut capture = capture(vec![sender, receiver], vec![reader]);
            capture.counters = Some(settings(|s| s.tcp_rmem = [4096, 65_536, 65_536]));
            verdict_of(&capture)
        };
        assert_eq!(stream(32_768, 650), "buffer-sysctl-cap");
        assert_eq!(stream(262_144, 650), "healthy", "it holds several bursts");
        assert_eq!(stream(32_768, 980), "healthy", "the reader has no time left");
    }

    #[test]
    fn a_send_buffer_at_its_limit() {
        let mut small = capture(vec![bound_by_send_buffer()], vec![]);
        small.counters = Some(settings(|s| s.tcp_wmem = [4096, 8192, 16_384]));
        let report = crate::judge::judge(&small);
        assert_eq!(report.verdict.cause.as_deref(), Some("buffer-sysctl-cap"));
        assert!(
            report.findings[0].fix.text.contains("net.ipv4.tcp_wmem=\"4096 16384 "),
            "{:?}",
            report.findings[0].fix
        );
    }
}
