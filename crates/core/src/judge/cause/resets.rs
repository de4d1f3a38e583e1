//! Connections end with a reset: one side closes with data unread, or after the other has gone, and its peer has to open another one.
//!
//! Look-alikes: connections that are closed in order (`connection-per-request`), a few resets at the end of many requests, clients that
//! give up (what their requests waited for is the cause then), and clients that end a connection of their own with a reset when they have
//! their reply: it saves them the TIME_WAIT, and nobody waits for it.
use parshall_evidence::socket::selection::state::CLOSE;
use parshall_evidence::{Figure, Place, Service, ShareOf};

use super::base::{Candidate, Cause, Outcome, Refused, denied};
use crate::judge::denial::{Denial, amount, count, count_of};
use crate::judge::facts::{Facts, FlowFact, Lost, Shape, rtt_ns};
use crate::judge::ledger::flow_rules::serves;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "resets",
    title: "Connections end with a reset",
    test,
    symptom: |facts| resets(facts) as f64,
    testable: |_| true,
};

/// From this share of the connections on, resets are how this service ends them.
const MIN_SHARE: f64 = 0.2;
/// Fewer resets in the window are an accident.
const MIN_RESETS: u64 = 5;
/// Beside more requests for each reset, hardly any request pays for one.
const MAX_REQUESTS: f64 = 100.0;

fn test(facts: &Facts<'_>) -> Outcome {
    let net = &facts.capture.net;
    let rose = |name: &str| facts.capture.counters.as_ref().map_or(0, |c| c.rose(name));
    let resets = resets(facts);
    let closed = net.closed.max(resets);
    let counts = Denial::of(count_of(resets, closed, "connections", "reset"));
    if resets < MIN_RESETS || ratio(resets as f64, closed as f64) < MIN_SHARE {
        return denied(counts.because("too few to matter"));
    }
    let services = || facts.requests.services.iter().map(|service| service.rec);
    let abandoned = services().fold(0u64, |n, s| n.saturating_add(s.abandoned));
    // Each proxy on the way resets its own connection, too.
    let hops = facts.requests.services.len() as u64;
    if abandoned.saturating_mul(hops + 1) >= resets {
        return denied(counts.beside(count(abandoned, "requests", "given up by their clients")));
    }
    let requests: f64 = services().map(|s| requests_in(s, facts.window_s())).sum();
    if requests > MAX_REQUESTS * resets as f64 {
        let answered = Figure { scaled: true, ..amount(requests.round(), "requests", "answered meanwhile") };
        return denied(counts.beside(answered));
    }
    let sent = net.resets_sent > net.resets_received / 2;
    let unread = rose("TcpExt.TCPAbortOnClose");
    let after = rose("TcpExt.TCPAbortOnData");
    let how = match (unread, after) {
        (u, a) if u.max(a) < resets / 4 => "",
        (u, a) if u >= a => ", since they are closed with data unread",
        _ => ", since they are closed with SO_LINGER 0, or data comes after the close",
    };
    let who = if sent { "the subject resets them" } else { "the peers reset them" };
    let summary = format!(
        "{} of {} reset in the window: {who}{how}. Each costs its client a new connection, and what was under way.",
        units::count(resets),
        units::plural(closed, "connection", "connections")
    );
    let mut evidence = vec![
        words::counted("resets sent", net.resets_sent),
        words::counted("resets received", net.resets_received),
        words::counted("connections closed", closed),
        words::counted("connections opened", net.opened),
    ];
    let idle = resets_of_idle(facts);
    evidence.extend((idle > 0).then(|| words::counted("resets of idle connections, left out", idle)));
    let counters = [
        ("closed with data unread (TCPAbortOnClose)", unread),
        ("closed by SO_LINGER 0 or with data to come (TCPAbortOnData)", after),
    ];
    evidence.extend(counters.into_iter().filter(|(_, n)| *n > 0).map(|(what, n)| words::counted(what, n)));
    let fix = "Read a request to its end before closing (shutdown(SHUT_WR), read until 0, then close), and remove SO_LINGER with a time of 0. \
               Where a proxy or client keeps connections, its idle timeout must be shorter than the server's.";
    let worst = facts.flows.iter().find(|f| f.rec.begin_ns > 0 && f.rec.pid != 0);
    let place = Place { pid: worst.map(|f| f.rec.pid), flows: resets, ..Place::default() };
    let mut candidate = Candidate::new(Lost::default(), place, summary, evidence, fix);
    candidate.refused = Some(Refused {
        of_what: ShareOf::Connections,
        count: resets,
        of: closed,
        wait_ns: resets as f64 * (opening_ns(facts) + exchange_ns(facts)),
    });
    candidate.holds()
}

/// Both ends of a connection of this host count one reset each. An end that opened a connection and resets it cuts nobody's reply but its
/// own. A reset of a connection on which nothing had moved in the window cuts no request and no reply: it was idle and is given up, or a
/// probe of a load balancer.
fn resets(facts: &Facts<'_>) -> u64 {
    let net = &facts.capture.net;
    let sent = net.resets_sent.saturating_sub(net.resets_by_opener);
    let all = sent.max(net.resets_received.saturating_sub(net.resets_from_opener));
    all.saturating_sub(resets_of_idle(facts))
}

/// Resets of connections that were idle.
fn resets_of_idle(facts: &Facts<'_>) -> u64 {
    let ended_idle = |f: &&FlowFact<'_>| f.shape == Shape::Idle && f.rec.last.state == CLOSE;
    let at = |serving: bool| {
        let flows = facts.flows.iter().filter(ended_idle).filter(move |f| serves(f.rec) == serving);
        flows.fold(0u64, |n, f| n.saturating_add(f.rec.connections()))
    };
    at(true).max(at(false))
}

/// The requests that a service answered in the window.
fn requests_in(service: &Service, window_s: f64) -> f64 {
    ratio(service.requests as f64 * window_s, service.observed_ns as f64 / 1e9)
}

/// The time in ns in which a client opens another connection: a round trip, and what its protocol asks before the first request.
fn opening_ns(facts: &Facts<'_>) -> f64 {
    let round_trips: Vec<f64> = facts.flows.iter().map(rtt_ns).filter(|&ns| ns > 0.0).collect();
    let mean = ratio(round_trips.iter().sum(), round_trips.len() as f64);
    facts.network.setup.setup_ns.max(mean)
}

/// The time in ns of the exchange that a reset cut: the client does not know whether it was done, so it counts as lost. Its length is
/// that of the connections that ended in the window, by their exchanges.
fn exchange_ns(facts: &Facts<'_>) -> f64 {
    let (mut life_ns, mut exchanges) = (0.0, 0.0);
    for flow in facts.flows.iter().map(|f| f.rec).filter(|f| f.merged.is_some() || f.last.state == CLOSE) {
        life_ns += flow.wall_ns() as f64;
        exchanges += flow.calls.exchanges.max(flow.connections()) as f64;
    }
    ratio(life_ns, exchanges)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, HopKind, Role};

    use crate::testkit::service::{Hops, ServiceBuilder};
    use crate::testkit::{FlowBuilder, MS, capture, verdict_of};

    fn short_lives(resets: u64) -> Capture {
        let flows = (0..20).map(|i| {
            let mut flow = FlowBuilder::new(2 * i, Role::Server).talks(1, 64);
            (flow.record.begin_ns, flow.record.end_ns) = ((10 + i) * MS, (12 + i) * MS);
            flow.record.last.state = 7;
            flow
        });
        let mut capture = capture(flows.collect(), vec![]);
        (capture.net.resets_sent, capture.net.closed, capture.net.opened) = (resets, 1000, 1000);
        capture
    }

    #[test]
    fn on_a_busy_host_they_cost_more_than_waiting_for_a_cpu_does() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::RunQueue, "").runs("rustc", 7);
        let service = ServiceBuilder::new(7000).requests(1000, 0.5).part(way, 0.4).cpu(0.6);
        let mut capture = short_lives(990);
        capture.services = vec![service.build()];
        assert_eq!(verdict_of(&capture), "resets");
        capture.net.resets_sent = 3;
        assert_ne!(verdict_of(&capture), "resets");
    }

    #[test]
    fn a_few_beside_very_many_requests_are_an_accident() {
        let mut capture = short_lives(5);
        (capture.net.closed, capture.net.opened) = (10, 10);
        let service = |requests| ServiceBuilder::new(7000).requests(requests, 0.5).build();
        capture.services = vec![service(100)];
        assert_eq!(verdict_of(&capture), "resets");
        capture.services = vec![service(10_000)];
        assert_ne!(verdict_of(&capture), "resets");
    }

    #[test]
    fn clients_that_give_up_reset_their_connections() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Timer, "clock_nanosleep");
        let mut service = ServiceBuilder::new(7000).requests(0, 0.0).unanswered(20, 1500.0).part(way, 1.0).build();
        service.abandoned = 600;
        let mut capture = short_lives(990);
        capture.services = vec![service];
        assert_eq!(verdict_of(&capture), "timer-wait");
    }

    #[test]
    fn idle_connections_that_are_reset_cut_no_reply() {
        let mut capture = short_lives(20);
        (capture.net.closed, capture.net.opened) = (20, 20);
        assert_eq!(verdict_of(&capture), "resets");
        for flow in &mut capture.flows {
            (flow.calls, flow.last) = (Default::default(), parshall_evidence::TcpSnapshot { state: 7, ..flow.first });
        }
        assert_eq!(verdict_of(&capture), "healthy");
    }

    #[test]
    fn who_opened_a_connection_may_reset_it() {
        // At a proxy, which probes its servers, and at a server that is probed.
        for sends in [true, false] {
            let mut capture = short_lives(0);
            let net = &mut capture.net;
            let (resets, by_opener) = match sends {
                true => (&mut net.resets_sent, &mut net.resets_by_opener),
                false => (&mut net.resets_received, &mut net.resets_from_opener),
            };
            (*resets, *by_opener) = (990, 990);
            assert_eq!(verdict_of(&capture), "healthy");
        }
        // Where the other side resets it as often, replies are cut.
        let mut both = short_lives(990);
        both.net.resets_by_opener = 200;
        assert_eq!(verdict_of(&both), "resets");
    }

    #[test]
    fn connections_that_are_reset_after_each_reply() {
        assert_eq!(verdict_of(&short_lives(990)), "resets");
        assert_eq!(verdict_of(&short_lives(3)), "healthy");
    }
}
