//! Limits on how much the helpers of a service ask at a time. A helper is a process that the service waits for over a pipe or a UNIX socket
//! and that serves no connection: a script that a server starts a few times and feeds, a worker that looks up users.
//!
//! A queue in front of helpers is nowhere to be seen: the service waits for one of them, whether that works on its request or on another
//! one before it. So the requests that are outstanding are compared with the questions that all helpers of this name have asked.
use std::collections::BTreeSet;
use std::net::SocketAddr;

use parshall_evidence::{Hop, HopKind, Limit, PathPart};

use super::index::Index;
use super::limit;
use super::requests::{self, Request};
use crate::sorting::IntoOrdered as _;

/// The limits of a service, `all` of whose requests are given, by the way that their time went.
pub fn limits(index: &Index<'_>, all: &[Request], path: &[PathPart]) -> Vec<Limit> {
    let asked: BTreeSet<(&str, SocketAddr)> =
        path.iter().flat_map(|part| part.hops.windows(2)).filter_map(asked_through).into_set();
    let outstanding: Vec<(u64, u64)> = all.iter().map(|r| (r.arrived_ns, r.end_ns)).collect();
    let found = |(process, next)| limit::found(&outstanding, &under_way(index, process, next)?, Some(next));
    asked.into_iter().filter_map(found).collect()
}

/// Whether of two hops, one after the other, the first waits for a helper and the second is this helper, which asks a server.
pub fn waits_for_helper(pair: &[Hop]) -> bool {
    let [hop, helper] = pair else { return false };
    hop.kind == HopKind::Pipe && helper.kind == HopKind::Reply && hop.pid != helper.pid && !helper.process.is_empty()
}

/// The name of the helper for which the first of two hops waits, and the server that it asks.
fn asked_through(pair: &[Hop]) -> Option<(&str, SocketAddr)> {
    let helper = pair.last().filter(|_| waits_for_helper(pair))?;
    Some((helper.process.as_str(), helper.object.peer()?))
}

/// The questions of all processes of this name to a server, from one time to another; None where it is not clear which belong together.
fn under_way(index: &Index<'_>, process: &str, next: SocketAddr) -> Option<Vec<(u64, u64)>> {
    let timeline = index.timeline;
    let named = timeline.names.values().filter(|names| names.process == process);
    let pids: BTreeSet<u32> = named.map(|names| names.pid).into_set();
    let sockets = pids.iter().filter_map(|pid| index.asking.get(pid)).flatten();
    let mut spans = Vec::new();
    for id in sockets.filter(|id| index.socket(**id).is_some_and(|socket| socket.remote == next)) {
        let sent = timeline.calls.get(id).map_or_else(Vec::new, |calls| requests::sent(*id, calls, &timeline.slices));
        if sent.iter().any(|request| request.overlaps) {
            return None;
        }
        spans.extend(sent.iter().map(|r| (r.arrived_ns, r.end_ns)));
    }
    Some(spans)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::Object;

    use super::*;
    use crate::testkit::timeline::{Script, client_socket, served_socket};

    /// 101 serves four clients, each of which asks again at once. Of its `helpers`, each asks 9000 for one request at a time, for 100.
    fn helped(helpers: usize) -> Script {
        let mut script = (1..=4).fold(Script::new(), |script, id| script.socket(id, served_socket(7000), 101));
        script.timeline.slices = vec![(0, 4_000)];
        let tid = |helper: usize| 300 + 10 * u32::try_from(helper).expect("few helpers");
        let (mut free, mut arrived) = (vec![50u64; helpers], [50u64; 4]);
        for n in 0..30 * helpers {
            let (client, helper) = (n % 4, n % helpers);
            let (came, begin) = (arrived[client], free[helper].max(arrived[client]));
            let (own, asked) = (1 + client as u64, 10 + helper as u64);
            script = script.socket(asked, client_socket(9000), tid(helper)).receives(101, own, came, came);
            script = script.sends(tid(helper), asked, begin).receives(tid(helper), asked, begin + 99, begin + 99);
            script = script.sends(101, own, begin + 100);
            (free[helper], arrived[client]) = (begin + 100, begin + 101);
        }
        let helpers = script.timeline.names.iter_mut().filter(|(tid, _)| **tid >= 300);
        helpers.for_each(|(_, names)| names.process = "zones.py".to_owned());
        script
    }

    fn hop(pid: u32, process: &str, kind: HopKind) -> Hop {
        let next = Object::Peer(client_socket(9000).remote);
        let stack = None;
        let (thread, title, syscall, target) = (String::new(), String::new(), String::new(), String::new());
        Hop {
            pid,
            tid: pid,
            threads: 1,
            process: process.into(),
            kind,
            object: next,
            thread,
            title,
            syscall,
            target,
            stack,
        }
    }

    fn most(helpers: usize, way: &[HopKind; 2]) -> Vec<u32> {
        let script = helped(helpers);
        let index = Index::new(&script.timeline);
        let all: Vec<Request> = index.requests.values().flatten().copied().collect();
        let hops = vec![hop(100, "pdns", way[0]), hop(300, "zones.py", way[1])];
        let path = [PathPart { hops, ns: 1, requests: 1, longest_ns: 1, setup: false }];
        limits(&index, &all, &path).iter().map(|limit| limit.most).collect()
    }

    #[test]
    fn all_helpers_of_a_name_are_counted_together() {
        let through = [HopKind::Pipe, HopKind::Reply];
        assert_eq!(most(1, &through), [1]);
        assert_eq!(most(2, &through), [2]);
        // As many as there are requests.
        assert_eq!(most(4, &through), [0; 0]);
        // It is waited for by somebody else, or works for itself.
        assert_eq!(most(1, &[HopKind::Pipe, HopKind::Timer]), [0; 0]);
        assert_eq!(most(1, &[HopKind::Worker, HopKind::Reply]), [0; 0]);
    }
}
