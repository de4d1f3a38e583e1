//! The account of the slowest requests: the same rules as for all of them, and those by which a few requests differ from others.
//!
//! A request that computes, reads or sleeps for longer asked for more: nothing is wrong with it. The waits that it causes for others are
//! lost to these, and so is time that nobody asks for: a CPU that others use, a quota, a lock that is held.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parshall_evidence::{Capture, HopKind, Service, Tail};

use super::classify::{self, Context};
use super::spent::Spent;
use super::{Code, PartFact, Requests, ServiceFact};
use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;

/// A wait that a request itself asks for is lost if the slowest requests spend this share of the time of all requests on it.
const LARGE_SHARE: f64 = 0.30;
/// Share of the time in a queue from which on the slowest requests wait behind one other request, and not behind many.
const BEHIND_ONE: f64 = 0.5;
/// They are slow if they take this many times as long as the typical request.
const SLOW_TIMES: f64 = 10.0;
/// And at least so long: a collector or a scheduler that has much to do makes a request wait for 5 ms at times.
const SLOW_NS: f64 = 8e6;
/// Fewer may be chance.
const REQUESTS_MIN: u64 = 5;
/// Of all requests, the share that the slow ones are, or of the time of all of them: fewer are no tail.
const COUNT_SHARE: f64 = 0.01;
const TIME_SHARE: f64 = 0.30;

/// The slowest requests of each service as a service of their own, as far as they were told apart.
pub fn services(found: &[Service]) -> Vec<Service> {
    let tails = found.iter().filter(|service| !service.followed && !service.waited);
    tails.filter_map(|service| Some(of(service, service.tail.as_ref()?))).collect()
}

fn of(service: &Service, tail: &Tail) -> Service {
    Service {
        requests: tail.requests,
        unanswered: 0,
        unanswered_longest_ns: 0,
        abandoned: 0,
        connections: tail.connections,
        outstanding_ns: tail.ns,
        followed_requests: tail.followed_requests,
        followed_ns: tail.followed_ns,
        path: tail.path.clone(),
        tail: Some(Tail { path: Vec::new(), ..tail.clone() }),
        ..service.clone()
    }
}

/// The account of the slowest requests. `tails` are those of [`services`], and `whole` is the account of all requests.
pub fn account<'a>(capture: &'a Capture, tails: &'a [Service], whole: &Requests<'a>) -> Requests<'a> {
    if tails.is_empty() {
        return Requests::default();
    }
    let code = Arc::clone(&whole.code);
    let facts = tails.iter().filter_map(|rec| {
        let all = whole.counted().find(|service| !service.rec.waited && is_same(service.rec, rec))?;
        let mut fact = ServiceFact::new(rec, true, capture.window_ns as f64);
        classify(&mut fact, all, whole.all, capture, &code);
        fact.slow = is_slow(rec, all);
        Some(fact)
    });
    let services: Vec<ServiceFact<'a>> = facts.collect();
    let pids: BTreeSet<u32> = services.iter().flat_map(|s| &s.rec.pids).copied().into_set();
    Requests { services, all: whole.all, pids, code }
}

/// Two records of one service.
pub fn is_same(one: &Service, other: &Service) -> bool {
    (one.address, one.transport, one.outbound) == (other.address, other.transport, other.outbound)
}

/// Whether the slowest requests are much slower than the typical one, and not a handful of chance.
fn is_slow(rec: &Service, all: &ServiceFact<'_>) -> bool {
    let (Some(tail), Some(p50_ns)) = (&rec.tail, rec.p50_ns) else { return false };
    let mean_ns = ratio(tail.ns as f64, tail.requests as f64);
    let again = tail.requests >= REQUESTS_MIN && (tail.connections >= 2 || tail.moments >= 2);
    let counts = ratio(tail.requests as f64, all.seen_requests() as f64) >= COUNT_SHARE
        || ratio(tail.ns as f64, all.rec.outstanding_ns as f64) >= TIME_SHARE;
    again && counts && mean_ns >= SLOW_NS && mean_ns >= SLOW_TIMES * p50_ns as f64
}

fn classify(
    fact: &mut ServiceFact<'_>,
    all: &ServiceFact<'_>,
    services: &[Service],
    capture: &Capture,
    code: &Code<'_>,
) {
    let context = Context::new(fact, services, capture, code);
    let behind_one = is_behind_one(fact);
    let decided: Vec<Spent> = fact.parts.iter().map(|part| spent_on(&context, part, behind_one)).collect();
    // The time that they asked for themselves, by its use.
    let mut own: BTreeMap<Spent, f64> = BTreeMap::new();
    for (part, spent) in fact.parts.iter().zip(&decided).filter(|(part, spent)| is_own_wait(part, **spent)) {
        *own.entry(*spent).or_default() += part.ns;
    }
    for (part, spent) in fact.parts.iter_mut().zip(decided) {
        let asked_for = is_own_wait(part, spent) && own.get(&spent).is_some_and(|ns| *ns < LARGE_SHARE * all.time_ns);
        part.spent = if asked_for { Spent::Work } else { spent };
    }
}

/// Most of the time for which they lay unread, the thread that was to read them worked on one thing.
fn is_behind_one(fact: &ServiceFact<'_>) -> bool {
    let queued: f64 = fact.parts.iter().filter(|p| lies_here(p)).map(|p| p.rec.ns as f64).sum();
    fact.rec.tail.as_ref().is_some_and(|tail| queued > 0.0 && tail.behind_one_ns as f64 >= BEHIND_ONE * queued)
}

/// It lay unread in the service's own socket meanwhile.
fn lies_here(part: &PartFact<'_>) -> bool {
    part.rec.hops.first().is_some_and(|hop| hop.kind.is_queue())
}

fn spent_on(context: &Context<'_>, part: &PartFact<'_>, behind_one: bool) -> Spent {
    let spent = context.spent(part);
    let Some(leaf) = part.rec.hops.last() else { return spent };
    let on_cpu = matches!(leaf.kind, HopKind::OnCpu | HopKind::RunQueue);
    match spent {
        Spent::RunQueue | Spent::StopTheWorld | Spent::HotThread | Spent::Unseen | Spent::Log | Spent::Setup => spent,
        _ if on_cpu && classify::is_locked(part) && !context.is_interpreter_lock(part) => Spent::Lock,
        _ if on_cpu && classify::is_locked(part) => context.computes(leaf),
        // A queue of many cheap requests is how much there is to do at times.
        _ if on_cpu && lies_here(part) && behind_one => context.computes(leaf),
        _ if on_cpu => Spent::Work,
        _ => spent,
    }
}

/// The request itself waits for something that it may have asked for.
fn is_own_wait(part: &PartFact<'_>, spent: Spent) -> bool {
    let own = matches!(
        spent,
        Spent::Disk
            | Spent::Downstream
            | Spent::Dns
            | Spent::Timer
            | Spent::Memory
            | Spent::PageFaults
            | Spent::Connect
            | Spent::TurnedAway
            | Spent::Network
            | Spent::Other
    );
    own && !classify::is_queued(part) && !classify::is_locked(part)
}
