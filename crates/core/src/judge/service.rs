//! Services as a report shows them: their requests in figures, and where the time of these went.
use parshall_evidence::{HopKind, RequestTime, Service, ServiceReport, Transport};

use crate::judge::facts::Facts;
use crate::judge::facts::requests::{ServiceFact, is_network, is_served_by};
use crate::stats::ratio;

/// All services, the one that lost most first; among those that lost nothing, the order of the capture.
pub fn all(facts: &Facts<'_>) -> Vec<ServiceReport> {
    let mut order: Vec<&ServiceFact<'_>> = facts.requests.services.iter().collect();
    let lost = |s: &ServiceFact<'_>| if s.counted { s.lost_ns() } else { 0.0 };
    order.sort_by(|a, b| (!a.counted).cmp(&!b.counted).then(lost(b).total_cmp(&lost(a))));
    order.into_iter().map(|fact| report(facts, fact)).collect()
}

fn report(facts: &Facts<'_>, fact: &ServiceFact<'_>) -> ServiceReport {
    let service = fact.rec;
    let seconds = service.observed_ns as f64 / 1e9;
    ServiceReport {
        port: service.address.port(),
        address: service.address.to_string(),
        transport: match service.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        }
        .to_string(),
        process: process(facts, service),
        pids: service.pids.clone(),
        outbound: service.outbound,
        followed: service.followed,
        requests_per_s: ratio(service.requests as f64, seconds),
        p50_ms: service.p50_ns as f64 / 1e6,
        p99_ms: service.p99_ns as f64 / 1e6,
        outstanding: fact.outstanding,
        unanswered: service.unanswered,
        unanswered_longest_ms: service.unanswered_longest_ns as f64 / 1e6,
        time: time(facts, fact),
    }
}

/// The name of the process that answered most requests.
fn process(facts: &Facts<'_>, service: &Service) -> String {
    let Some(pid) = service.pids.first() else { return String::new() };
    let hop = service.path.iter().flat_map(|p| &p.hops).find(|h| h.pid == *pid && !h.process.is_empty());
    let subject = &facts.capture.subject;
    let comm = || subject.pids.iter().position(|p| p == pid).and_then(|i| subject.comms.get(i)).cloned();
    hop.map(|h| h.process.clone()).or_else(comm).unwrap_or_default()
}

fn time(facts: &Facts<'_>, fact: &ServiceFact<'_>) -> RequestTime {
    let first = |kind: HopKind| -> f64 {
        fact.parts.iter().filter(|p| p.rec.hops.first().is_some_and(|h| h.kind == kind)).map(|p| p.ns).sum()
    };
    let (accept_queue, unread) = (first(HopKind::AcceptQueue), first(HopKind::Unread));
    let unsent: f64 = facts
        .parts
        .iter()
        .filter(|p| is_network(p.blame) && is_served_by(facts.flows[p.flow].rec, fact.rec))
        .map(|p| p.ns)
        .sum();
    let all = fact.time_ns + unsent;
    let share = |ns: f64| ratio(ns, all).clamp(0.0, 1.0);
    RequestTime {
        accept_queue: share(accept_queue),
        unread: share(unread),
        working: share(fact.time_ns - accept_queue - unread),
        reply_unsent: share(unsent),
    }
}
