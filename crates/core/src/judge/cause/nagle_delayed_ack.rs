//! Nagle's algorithm against a delayed ACK (RFC 896, RFC 1122 4.2.3.2): a small write is held until the one before it
//! is acknowledged, and the peer, which has nothing to send, delays that ACK.
//!
//! Look-alikes: a cork (nothing is in flight), a retransmission timeout (something is retransmitted), a slow peer (its ACK
//! comes at once, only its reply is late), Nagle alone (released after one round trip).
//!
//! Of a service that requests wait for, and whose sockets have no account, it is known by its writes: see [`Spent::Held`].
use parshall_evidence::{Evidence, Figure, Release};

use super::base::{Candidate, Cause, Outcome, denied, nodelay_is_on, not_lost, place_of, stalls, try_command};
use super::common::{Waits, not_spent};
use crate::judge::chain::named;
use crate::judge::confidence::Gap;
use crate::judge::denial::amount;
use crate::judge::facts::{Blame, Facts, FlowFact, Lost, Spent, is_client};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "nagle-delayed-ack",
    title: "Small writes wait for a delayed ACK",
    test,
    symptom: |facts| {
        facts.share_in(&[State::HeldByNagleDelayedAck, State::PeerHeld]) + facts.requests.share(Spent::Held)
    },
    testable: |facts| record::flows(facts) || record::requests(facts),
};

fn test(facts: &Facts<'_>) -> Outcome {
    let lost =
        facts.lost(|p| matches!(p.blame, Blame::NagleDelack | Blame::PeerHeld) && !nodelay(&facts.flows[p.flow]));
    let Some(worst) = lost.worst() else {
        return Waits::on(facts, Spent::Held).map_or_else(|| why_not(facts), |waits| of_requests(waits).holds());
    };
    let own = facts.lost(|p| p.blame == Blame::NagleDelack && p.flow == worst).ns;
    let held_here = own * 2.0 >= lost.by_flow[0].1;
    let timers = timers_seen(facts, if held_here { Blame::NagleDelack } else { Blame::PeerHeld });
    let flow = &facts.flows[worst];
    let (summary, fix) = if held_here { explained_by_sender(flow, &lost) } else { explained_by_peer(flow, &lost) };
    let mut candidate =
        Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence(facts, &lost, timers, held_here), fix);
    if timers == 0 {
        candidate.gaps.push(Gap::Inferred("no delayed-ACK timer was seen to end a wait"));
    }
    candidate.always_wrong = true;
    // The socket that holds the bytes: ours, or that of the other end if it is on this host.
    let holder = if held_here { Some(worst) } else { flow.pair };
    candidate.trial = holder.and_then(|holder| try_command(facts, holder, "nodelay"));
    candidate.holds()
}

/// The candidate for requests that wait for what a process on their way has written, and its socket holds.
fn of_requests(waits: Waits<'_, '_>) -> Candidate {
    let writer = named(waits.leaf);
    let to = units::or(&waits.leaf.target, "the other end");
    let summary = waits.summary(&format!(
        "{writer} writes what it sends to {to} in two parts. Nagle holds the second until the first is acknowledged; the \
         receiver has nothing to send yet, and its delayed-ACK timer sends that ACK: {} a request.",
        waits.each()
    ));
    let fix =
        format!("Write both parts at once in {writer} (writev or a buffer), or set TCP_NODELAY on its socket to {to}.");
    waits.candidate(summary, Vec::new(), fix)
}

fn nodelay(flow: &FlowFact<'_>) -> bool {
    let off = |nonagle: u8| nonagle != 255 && nonagle & 1 == 1;
    off(flow.rec.first.nonagle) && off(flow.rec.last.nonagle)
}

/// Holds that a delayed-ACK timer on this host was seen to end.
fn timers_seen(facts: &Facts<'_>, blame: Blame) -> u64 {
    let seen = |r| matches!(r, Release::RxAckDelayed | Release::RxDataAfterOwnDelack);
    facts.lost(|p| p.blame == blame && seen(p.release)).count
}

fn explained_by_sender(flow: &FlowFact<'_>, lost: &Lost) -> (String, String) {
    let name = words::flow_arrow(flow.rec);
    let timer = timer(lost);
    let summary = match flow.rec.calls.last_pair_bytes {
        (0, _) | (_, 0) => format!(
            "{name} sends its messages in two or more small writes. Nagle holds the second until the first is \
             acknowledged; the peer has nothing to send yet and its delayed-ACK timer ({timer}) sends that ACK."
        ),
        (first, second) => {
            let (first, second) = (units::bytes(f64::from(first)), units::bytes(f64::from(second)));
            format!(
                "{name} sends {first}, then {second}. Nagle holds the {second} until the {first} are acknowledged; the \
                 peer has nothing to send yet and its delayed-ACK timer ({timer}) sends that ACK."
            )
        }
    };
    let end = if is_client(flow.rec) { "client's" } else { "server's" };
    let fix = match nodelay_is_on(flow) {
        true => {
            "Write both parts at once (writev or a buffer). TCP_NODELAY was set on this socket meanwhile.".to_string()
        }
        false => format!("Write both parts at once (writev or a buffer), or set TCP_NODELAY on the {end} socket."),
    };
    (summary, fix)
}

/// The timer's setting: 40 ms (TCP_DELACK_MIN) unless the waits were clearly longer; they end a little later than it.
fn timer(lost: &Lost) -> String {
    let ms = lost.p50_ns / 1e6;
    if (35.0..60.0).contains(&ms) { "40 ms".to_string() } else { format!("{ms:.0} ms") }
}

fn explained_by_peer(flow: &FlowFact<'_>, lost: &Lost) -> (String, String) {
    let end = if is_client(flow.rec) { "server" } else { "client" };
    let summary = format!(
        "{}: the peer sends each message in two or more small writes. Its Nagle algorithm holds the second until we \
         acknowledge the first; we have nothing to send yet and our delayed-ACK timer ({}) sends that ACK.",
        words::flow_arrow(flow.rec),
        timer(lost)
    );
    let fix = format!(
        "The fix is on the {end}: write each message at once (writev or a buffer), or set TCP_NODELAY on its socket."
    );
    (summary, fix)
}

fn evidence(facts: &Facts<'_>, lost: &Lost, timers: u64, held_here: bool) -> Vec<Evidence> {
    let mut list = vec![if held_here {
        stalls("waits of data held by Nagle while an ACK was outstanding", lost)
    } else {
        stalls("data of the peer that came right after our own delayed ACK", lost)
    }];
    if timers > 0 {
        list.push(Evidence {
            scaled: lost.scaled,
            ..words::counted("delayed-ACK timers seen to end such a wait", timers)
        });
    }
    let Some(flow) = lost.worst().map(|i| &facts.flows[i]) else { return list };
    let calls = &flow.rec.calls;
    let pairs: f64 = facts.flows.iter().map(|f| f.rec.calls.write_after_write as f64 * f.ledger.scale).sum();
    if held_here && pairs >= 1.0 {
        list.push(Evidence {
            scaled: flow.ledger.scaled,
            ..words::counted("writes after a write with no read between", pairs.round() as u64)
        });
    }
    if held_here && calls.last_pair_bytes.0 > 0 {
        list.push(words::valued("first write of a pair", f64::from(calls.last_pair_bytes.0), "B"));
        list.push(words::valued("second write of a pair", f64::from(calls.last_pair_bytes.1), "B"));
    }
    if held_here && flow.rec.last.nonagle != 255 {
        let state = if nodelay_is_on(flow) { "on" } else { "off" };
        list.push(Evidence { what: format!("TCP_NODELAY is {state} on this socket"), ..Evidence::default() });
    }
    list
}

fn why_not(facts: &Facts<'_>) -> Outcome {
    if facts.requests.share(Spent::Held) > 0.0 {
        return not_spent(facts, Spent::Held);
    }
    let states = [State::HeldByNagleDelayedAck, State::PeerHeld];
    let otherwise = "with TCP_NODELAY on, under 1 ms each, or counted at the other end";
    let outcome = not_lost(facts, "waiting for a delayed ACK", &states, otherwise);
    let sum = |of: fn(&FlowFact<'_>) -> u64| -> f64 { facts.flows.iter().map(|f| of(f) as f64 * f.ledger.scale).sum() };
    let (held, sends) = (sum(|f| f.rec.calls.held_sends), sum(|f| f.rec.calls.sends));
    match outcome {
        Outcome::Rejected(denial) if sends >= 1.0 => {
            let held = amount(held.round(), "sends", "held by Nagle");
            denied(denial.beside(Figure { of: Some(sends.round()), scaled: facts.scaled(), ..held }))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, Confidence, FlowState, HopKind, Role, Rung, Status};

    use super::*;
    use crate::judge::judge;
    use crate::testkit::{FlowBuilder, MS, capture, verdict_of};

    /// The client of an echo service that writes 40 B and then 136 B, 41 ms per request.
    fn client() -> FlowBuilder {
        FlowBuilder::new(6224, Role::Client)
            .every(41 * MS, 0, 40 * MS, FlowState::Nagle, Release::RxAckDelayed)
            .talks_in_parts(24)
    }

    fn server(client: &FlowBuilder) -> FlowBuilder {
        FlowBuilder::new(6225, Role::Server)
            .to(client)
            .owner(200, 201)
            .every(41 * MS, 0, 40 * MS, FlowState::IdleAfterRecv, Release::RxDataAfterOwnDelack)
            .talks(24, 96)
    }

    fn first(capture: &Capture) -> parshall_evidence::Finding {
        judge(capture).findings.into_iter().next().expect("a finding")
    }

    #[test]
    fn a_process_on_the_way_writes_in_two_parts() {
        use crate::testkit::service::{Hops, ServiceBuilder, with};
        let captured = |way: Hops| {
            let held = way.thread(200, 201, "php-fpm").on(HopKind::Held, "").target("127.0.0.1:6379");
            with(ServiceBuilder::new(7000).requests(60, 40.0).part(held, 0.95).cpu(0.05))
        };
        let service = |way: Hops| judge(&captured(way));
        let asks = Hops::new().thread(100, 101, "nginx").on(HopKind::Reply, "epoll_wait").target("127.0.0.1:9000");
        let asks = asks.thread(200, 201, "php-fpm").on(HopKind::Reply, "poll").target("127.0.0.1:6379");
        let asks = asks.thread(300, 301, "redis-server").on(HopKind::Client, "");
        let report = service(asks.clone());
        assert_eq!(
            report.verdict.summary,
            "php-fpm 200 writes what it sends to 127.0.0.1:6379 in two parts. Nagle holds the second until the \
             first is acknowledged; the receiver has nothing to send yet, and its delayed-ACK timer sends that ACK: 38.0 ms a \
             request."
        );
        assert_eq!(report.findings[0].cause, "nagle-delayed-ack");
        // The connection has an account of its own, which counts once.
        let mut with_account = captured(asks);
        let mut flow = FlowBuilder::new(9, Role::Client).owner(200, 201).talks(60, 40).record;
        flow.remote = "127.0.0.1:6379".parse().expect("an address");
        with_account.flows.push(flow);
        assert!(judge(&with_account).findings.is_empty());
        // The service's own client writes so: the account of its flow has that.
        let own = service(Hops::new().thread(100, 101, "nginx").on(HopKind::Client, ""));
        assert!(own.findings.is_empty(), "{:?}", own.findings);
    }

    #[test]
    fn names_the_sizes_and_the_timer() {
        let report = judge(&capture(vec![client()], vec![]));
        assert_eq!(report.verdict.status, Status::Cause);
        assert_eq!(
            report.verdict.summary,
            "127.0.0.1:56224 -> 127.0.0.1:7000 sends 40 B, then 136 B. Nagle holds the 136 B until the 40 B are \
             acknowledged; the peer has nothing to send yet and its delayed-ACK timer (40 ms) sends that ACK."
        );
        let finding = &report.findings[0];
        assert_eq!(finding.cause, "nagle-delayed-ack");
        assert_eq!(finding.confidence, Confidence::High);
        assert_eq!(finding.evidence[0].count, Some(24));
        assert_eq!(finding.evidence[0].p50_ms, Some(40.0));
        assert_eq!(finding.place.flow.as_deref(), Some("127.0.0.1:56224->127.0.0.1:7000"));
        assert_eq!(finding.fix.command.as_deref(), Some("parshall try nodelay --pid 100"));
        assert!(finding.share > 0.95 && finding.lost_share > 0.99, "{} {}", finding.share, finding.lost_share);
        assert!((finding.lost_ms - 960.0).abs() < 1.0);
        assert_eq!(report.ruled_out.len() + report.not_tested.len(), super::super::CAUSES.len() - 1);
    }

    #[test]
    fn both_ends_count_once() {
        let client = client();
        let both = capture(vec![client.clone(), server(&client)], vec![]);
        let finding = first(&both);
        assert_eq!((finding.cause.as_str(), finding.place.flows), ("nagle-delayed-ack", 1));
        assert!(finding.share > 0.95, "{}", finding.share);
    }

    #[test]
    fn the_server_alone_sends_to_the_client() {
        let finding = first(&capture(vec![server(&client())], vec![]));
        assert_eq!(finding.cause, "nagle-delayed-ack");
        assert!(finding.fix.text.starts_with("The fix is on the client"));
    }

    #[test]
    fn a_remote_timer_is_inferred() {
        let mut flow = FlowBuilder::new(1, Role::Client).remote_host();
        flow = flow.every(41 * MS, 0, 40 * MS, FlowState::Nagle, Release::RxAck).talks_in_parts(24);
        assert_eq!(first(&capture(vec![flow], vec![])).confidence, Confidence::Medium);
    }

    #[test]
    fn sampling_tells_it_with_less_confidence() {
        let mut flow = client();
        flow.record.cells.clear();
        flow.stalls.clear();
        flow.record.calls = Default::default();
        let flow = flow.every(41 * MS, 0, 40 * MS, FlowState::Nagle, Release::Sampled);
        let mut sampled = capture(vec![flow], vec![]);
        sampled.rung = Rung::Procfs;
        let finding = first(&sampled);
        assert_eq!((finding.cause.as_str(), finding.confidence), ("nagle-delayed-ack", Confidence::Low));
    }

    #[test]
    fn sampling_slower_than_the_holds_tells_it_too() {
        let mut flow = client();
        flow.record.cells.clear();
        flow.stalls.clear();
        flow.record.calls = Default::default();
        let flow = flow.cell(FlowState::Nagle, Release::Sampled, 960 * MS, 20);
        let mut sampled = capture(vec![flow], vec![]);
        sampled.rung = Rung::Procfs;
        assert_eq!(first(&sampled).cause, "nagle-delayed-ack");
    }

    #[test]
    fn slices_are_scaled() {
        let mut sliced = capture(vec![client()], vec![]);
        sliced.flows[0].end_ns *= 10;
        sliced.window_ns *= 10;
        let finding = first(&sliced);
        assert_eq!(finding.evidence[0].count, Some(240));
        assert!(finding.evidence[0].scaled && (finding.lost_ms - 9600.0).abs() < 10.0);
    }

    #[test]
    fn lost_events_lower_the_confidence() {
        let mut lossy = capture(vec![client()], vec![]);
        lossy.probe.lost_events = 100;
        assert_eq!(first(&lossy).confidence, Confidence::Medium);
        lossy.probe.lost_events = 1000;
        assert_eq!(first(&lossy).confidence, Confidence::Low);
        // Single ones here and there say less than a ring that was full.
        let missed = |missed_events: u64, switches: u64| {
            let mut capture = capture(vec![client()], vec![]);
            (capture.probe.events, capture.probe.missed_events) = (10_000, missed_events);
            capture.host.switches = switches;
            first(&capture).confidence
        };
        assert_eq!((missed(50, 0), missed(200, 0)), (Confidence::High, Confidence::Medium));
        // Nearly all of them are of other programs, for which the probes run as well.
        assert_eq!(missed(200, 100_000), Confidence::High);
    }

    #[test]
    fn a_late_ack_that_holds_nothing_is_healthy() {
        let flow = FlowBuilder::new(1, Role::Server)
            .every(50 * MS, 0, 40 * MS, FlowState::InFlight, Release::RxAckDelayed)
            .talks(20, 100);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "healthy");
    }

    #[test]
    fn a_timeout_during_a_hold_is_loss() {
        let flow = FlowBuilder::new(1, Role::Client)
            .every(220 * MS, 0, 200 * MS, FlowState::Nagle, Release::RtoTimer)
            .talks_in_parts(4)
            .retransmitted(4);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "retransmission-timeout");
    }
}
