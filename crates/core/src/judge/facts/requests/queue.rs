//! Where requests wait for others: in front of which process, and for which limit.
use parshall_evidence::{Capture, FlowRecord, Hop, HopKind, Limit, Service};

use crate::judge::ledger::flow_rules::serves;

/// The service whose requests a process reads.
fn service_of(services: &[Service], pid: u32) -> Option<&Service> {
    services.iter().find(|service| !service.outbound && service.pids.contains(&pid))
}

/// The first hop in front of which requests lie unread, and how many its service works on at a time: by the limit that was counted, or
/// else by the threads that read or answer. None where no queue of a known service is on the way.
pub fn queue_of<'h>(services: &[Service], hops: &'h [Hop]) -> Option<(&'h Hop, u32)> {
    let hop = hops.iter().find(|hop| hop.kind.is_queue())?;
    let service = service_of(services, hop.pid)?;
    Some((hop, limit_in_hands(services, hop.pid).map_or(service.workers, |limit| limit.most)))
}

/// The limit on what the service of a process has in its hands, if it has one.
pub fn limit_in_hands(services: &[Service], pid: u32) -> Option<&Limit> {
    service_of(services, pid)?.limits.iter().find(|limit| limit.next.is_none())
}

/// The hop at which a request waits for its turn to be passed on, and the limit that it waits for: the walk has seen whose turn it was,
/// or threads of a process that has such a limit wait for each other while one of them waits for that server.
pub fn turn_of<'a>(services: &'a [Service], hops: &'a [Hop]) -> Option<(&'a Hop, &'a Limit)> {
    // Nothing was asked for it yet, and what it waits for is not seen in it: others have their turn.
    let asked = hops.iter().any(|hop| hop.kind == HopKind::Reply);
    let quiet = |leaf: &&Hop| matches!(leaf.kind, HopKind::OtherRequest | HopKind::Network | HopKind::Idle);
    if let Some(first) = hops.first().filter(|_| !asked && hops.last().is_some_and(|leaf| quiet(&leaf))) {
        return service_of(services, first.pid)?
            .limits
            .iter()
            .find(|limit| limit.next.is_some())
            .map(|limit| (first, limit));
    }
    hops.windows(2).find_map(|pair| {
        let (hop, after) = (&pair[0], &pair[1]);
        let limit = service_of(services, hop.pid)?.limits.iter().find(|limit| is_to(limit, after))?;
        let asks = after.kind == HopKind::Reply && after.pid == hop.pid;
        match hop.kind {
            HopKind::Turn => Some((hop, limit)),
            // One at a time is a lock as well.
            HopKind::Lock | HopKind::Worker if asks && limit.most > 1 => Some((hop, limit)),
            _ => None,
        }
    })
}

fn is_to(limit: &Limit, hop: &Hop) -> bool {
    limit.next.is_some() && limit.next == hop.object.peer()
}

/// The service that answers at the port at which requests wait to be accepted, if each of its workers keeps one connection open.
pub fn workers_keep_one_each<'s>(waited: &Service, services: &'s [Service], capture: &Capture) -> Option<&'s Service> {
    let port = waited.address.port();
    let serving = services.iter().find(|s| !s.waited && !s.outbound && s.address.port() == port && s.workers > 0)?;
    let open = capture.flows.iter().filter(|flow| {
        serves(flow)
            && flow.local.port() == port
            && flow.end_ns >= capture.window_ns
            && serving.pids.contains(&flow.pid)
    });
    let open: u64 = open.map(FlowRecord::connections).sum();
    (open == u64::from(serving.workers)).then_some(serving)
}

/// More at a time would only wait for this instead.
pub fn needs_what_is_scarce(leaf: &Hop) -> bool {
    use HopKind::{Disk, Lock, Memory, NameServer, OnCpu, RunQueue, Stopped, Throttled};
    matches!(leaf.kind, OnCpu | RunQueue | Throttled | Stopped | Disk | Memory | NameServer | Lock)
}
