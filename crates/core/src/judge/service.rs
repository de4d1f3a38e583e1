//! Services as a report shows them: their requests in figures, and where the time of these went.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use parshall_evidence::{HopKind, RequestTime, Service, ServiceReport, TailReport, TimeShare, Transport};

use crate::judge::facts::Facts;
use crate::judge::facts::requests::served::ByService;
use crate::judge::facts::requests::{ServiceFact, is_network};
use crate::sorting::{IntoOrdered as _, StableSort as _};
use crate::stats::ratio;

/// All services, the one that lost most first; among those that lost nothing, the order of the capture. `tail` has what is known of
/// the slowest requests of a service.
pub fn all(facts: &Facts<'_>, tail: impl Fn(&Service) -> Option<TailReport>) -> Vec<ServiceReport> {
    let (waited, services): (Vec<_>, Vec<_>) = facts.requests.services.iter().partition(|s| s.rec.waited);
    let seen: BTreeSet<Ends> = services.iter().map(|s| ends(s.rec)).into_set();
    let mut order: Vec<&ServiceFact<'_>> = services;
    order.extend(waited.iter().filter(|w| !seen.contains(&ends(w.rec))));
    let lost = |s: &ServiceFact<'_>| if s.counted { s.lost_ns() } else { 0.0 };
    order.stable_sort_by(|a, b| (!a.counted).cmp(&!b.counted).then(lost(b).total_cmp(&lost(a))));
    let mut unsent = ByService::default();
    for part in facts.parts.iter().filter(|part| is_network(part.blame)) {
        unsent.add(facts.flows[part.flow].rec, part.ns);
    }
    let (pids, comms) = (&facts.capture.subject.pids, &facts.capture.subject.comms);
    // Of two processes with the same number, the first; and so with requests that only waited.
    let comms: BTreeMap<u32, &str> = pids.iter().copied().zip(comms.iter().map(String::as_str)).rev().into_map();
    let waited: BTreeMap<Ends, &ServiceFact<'_>> = waited.into_iter().rev().map(|w| (ends(w.rec), w)).into_map();
    let sliced = facts.capture.slices.count > 1;
    let report = |fact: &ServiceFact<'_>| {
        let scaled = sliced && fact.rec.requests > 0;
        ServiceReport { scaled, tail: tail(fact.rec), ..report(fact, &comms, unsent.of(fact.rec)) }
    };
    let reported = order.into_iter().map(|fact| match waited.get(&ends(fact.rec)).filter(|_| !fact.rec.waited) {
        Some(also) => together((fact.time_ns, report(fact)), (also.time_ns, report(also))),
        None => report(fact),
    });
    reported.collect()
}

/// The fields that two records of the same service have in common.
type Ends = (bool, bool, u16, Option<SocketAddr>);

fn ends(service: &Service) -> Ends {
    let udp = matches!(service.transport, Transport::Udp);
    (udp, service.outbound, service.address.port(), service.outbound.then_some(service.address))
}

/// A service with those of its requests that the probes could not see because they only waited; each with the time of its requests.
fn together((seen_ns, seen): (f64, ServiceReport), (also_ns, also): (f64, ServiceReport)) -> ServiceReport {
    let all = seen_ns + also_ns;
    let both = |a: f64, b: f64| (a * ratio(seen_ns, all) + b * ratio(also_ns, all)).clamp(0.0, 1.0);
    let (a, b) = (&seen.time, &also.time);
    let mut work: Vec<TimeShare> = Vec::new();
    let shares = a.work.iter().map(|w| (w, seen_ns)).chain(b.work.iter().map(|w| (w, also_ns)));
    for (part, ns) in shares {
        let share = part.share * ratio(ns, all);
        match work.iter_mut().find(|w| w.state == part.state) {
            Some(known) => (known.ms, known.share) = (known.ms + part.ms, known.share + share),
            None => work.push(TimeShare { share, ..part.clone() }),
        }
    }
    work.stable_sort_by(|a, b| b.ms.total_cmp(&a.ms));
    let time = RequestTime {
        accept_queue: both(a.accept_queue, b.accept_queue),
        unread: both(a.unread, b.unread),
        incomplete: both(a.incomplete, b.incomplete),
        working: both(a.working, b.working),
        work,
        reply_unsent: both(a.reply_unsent, b.reply_unsent),
    };
    ServiceReport {
        outstanding: seen.outstanding + also.outstanding,
        unanswered: seen.unanswered.saturating_add(also.unanswered),
        unanswered_longest_ms: seen.unanswered_longest_ms.max(also.unanswered_longest_ms),
        time,
        ..seen
    }
}

fn report(fact: &ServiceFact<'_>, comms: &BTreeMap<u32, &str>, unsent_ns: f64) -> ServiceReport {
    let service = fact.rec;
    let seconds = service.observed_ns as f64 / 1e9;
    let answered = service.requests > 0 && service.observed_ns > 0;
    let ms = |ns: u64| ns as f64 / 1e6;
    ServiceReport {
        port: service.address.port(),
        address: service.address.to_string(),
        transport: match service.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        }
        .to_string(),
        process: process(comms, service),
        pids: service.pids.clone(),
        outbound: service.outbound,
        followed: service.followed,
        requests_per_s: ratio(service.requests as f64, seconds),
        p50_ms: service.p50_ns.filter(|_| answered).map(ms),
        p99_ms: service.p99_ns.filter(|_| answered).map(|p99| ms(p99.max(service.p50_ns.unwrap_or(0)))),
        mean_ms: answered.then(|| ratio(service.outstanding_ns as f64, service.requests as f64) / 1e6),
        scaled: false,
        outstanding: fact.outstanding,
        unanswered: service.unanswered,
        unanswered_longest_ms: if service.unanswered > 0 { service.unanswered_longest_ns as f64 / 1e6 } else { 0.0 },
        abandoned: service.abandoned,
        overlapping: service.overlapping,
        time: time(fact, unsent_ns),
        tail: None,
    }
}

/// The name of the process that answered most requests.
fn process(comms: &BTreeMap<u32, &str>, service: &Service) -> String {
    let Some(pid) = service.pids.first() else { return String::new() };
    let hop = service.path.iter().flat_map(|p| &p.hops).find(|h| h.pid == *pid && !h.process.is_empty());
    let comm = || comms.get(pid).map(|comm| (*comm).to_owned());
    hop.map(|h| h.process.clone()).or_else(comm).unwrap_or_default()
}

fn time(fact: &ServiceFact<'_>, unsent: f64) -> RequestTime {
    // The time of the service's own threads; that of others for them is the chain's.
    let mut first: BTreeMap<HopKind, f64> = BTreeMap::new();
    for part in &fact.parts {
        *first.entry(part.row()).or_default() += part.ns;
    }
    *first.entry(HopKind::Unseen).or_default() += fact.unseen_ns;
    let mut take = |kind: HopKind| first.remove(&kind).unwrap_or(0.0);
    let (accept_queue, unread, incomplete) = (take(HopKind::AcceptQueue), take(HopKind::Unread), take(HopKind::Client));
    let all = fact.time_ns + unsent;
    let share = |ns: f64| ratio(ns, all).clamp(0.0, 1.0);
    let mut work: Vec<TimeShare> = first
        .iter()
        .filter(|(_, ns)| **ns > 0.0)
        .map(|(kind, ns)| TimeShare {
            state: kind.id().to_string(),
            label: label(*kind).to_string(),
            ms: ns / 1e6,
            share: share(*ns),
        })
        .collect();
    work.stable_sort_by(|a, b| b.ms.total_cmp(&a.ms));
    RequestTime {
        accept_queue: share(accept_queue),
        unread: share(unread),
        incomplete: share(incomplete),
        working: share(fact.time_ns - accept_queue - unread - incomplete),
        work,
        reply_unsent: share(unsent),
    }
}

/// The state of a thread of the service, in words for a reader of the report.
fn label(kind: HopKind) -> &'static str {
    match kind {
        HopKind::AcceptQueue => "in the accept queue",
        HopKind::Unread => "unread in the socket",
        HopKind::Client => "rest of it not sent by the client yet",
        HopKind::OnCpu => "on a CPU",
        HopKind::RunQueue => "waiting for a CPU",
        HopKind::Throttled => "out of CPU quota",
        HopKind::Stopped => "stopped",
        HopKind::Deadlock => "in a deadlock",
        HopKind::Lock => "waiting for a lock",
        HopKind::Turn => "waiting for its turn",
        HopKind::Worker => "waiting for another thread",
        HopKind::Disk => "waiting for a disk",
        HopKind::Memory => "waiting for memory",
        HopKind::Timer => "waiting for a timer",
        HopKind::Reply => "waiting for another service",
        HopKind::Close => "waiting until a server closes",
        HopKind::NameServer => "waiting for a name server",
        HopKind::Pipe => "waiting for a pipe or a UNIX socket",
        HopKind::Send => "waiting for a receiver",
        HopKind::Held => "held by Nagle's algorithm",
        HopKind::Connect => "connecting",
        HopKind::Network => "on the way on this host",
        HopKind::OtherRequest => "waiting for another request",
        HopKind::Idle => "waiting for events",
        HopKind::Kernel => "blocked in the kernel",
        HopKind::Unseen => "not seen",
    }
}
