//! Clients that take the end of a reply from the end of the connection: they have read all of it, and wait until the server closes. HTTP/1.0
//! does so by design, and its servers close at once; one that keeps connections closes after a while without a request.
//!
//! Look-alike: a reply in pieces, of which a further one ends the wait.
use parshall_evidence::timeline::{OffCpu, Op, Waker};
use parshall_evidence::{FlowId, HopKind};

use super::index::Index;
use super::step::{Next, Step, Target};
use super::walk::Walk;
use crate::wait::Wait;

/// Within this time after the server has closed its end both are closed: the client closes its own, and the packets that say so cross.
const CLOSING_NS: u64 = 200_000_000;

impl Index<'_> {
    /// The connection to a server that a thread slept for until the server closed it: what the thread did last was to receive from there, nothing
    /// more came, and it was closed then, by the server first. (Whoever closes first has a socket in TIME-WAIT before the other end's is
    /// gone.)
    fn closed_by_server(&self, off: &OffCpu) -> Option<FlowId> {
        let waits = matches!(self.wait(off), Wait::Multiplex | Wait::SocketReceive) && off.waker == Waker::SoftIrq;
        let last = self.calls_within(off.tid, 0, off.begin_ns).last().filter(|call| waits && call.op == Op::Receive)?;
        let socket = self.socket(last.socket).filter(|socket| !socket.serves && !socket.udp)?;
        let server = socket.other_end.and_then(|end| self.socket(end));
        let closed_ns = socket.closed_ns?;
        let by_server = server.is_none_or(|server| server.closed_ns.is_some_and(|at| at <= closed_ns));
        let then = (off.wake_ns..=off.wake_ns.saturating_add(CLOSING_NS)).contains(&closed_ns);
        let goes_on = self.timeline.calls.get(&last.socket)?.last().is_some_and(|call| call.at_ns > off.begin_ns);
        (by_server && then && !goes_on).then_some(last.socket)
    }
}

impl Walk<'_> {
    /// A sleep, cut to `span`, of a thread that waits until a server closes their connection.
    pub(super) fn until_closed(&mut self, off: &OffCpu, (begin, wake): (u64, u64)) -> Option<Next> {
        let socket = self.index.closed_by_server(off)?;
        self.emit(Step::of(off, HopKind::Close).to(Target::Remote(socket)), wake - begin);
        Some(Next::Before(begin))
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::Service;
    use parshall_evidence::timeline::{Socket, Timeline};

    use super::*;
    use crate::critical_path::{reduced, services};
    use crate::testkit::timeline::{Script, client_socket, served_socket};

    const MS: u64 = 1_000_000;
    const POLL: i32 = 232;

    /// What ends the sleep of a thread that has its reply.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Ends {
        ServerCloses,
        /// The server sends a further piece.
        More,
        /// Something else: the thread closes the connection first.
        ClientCloses,
    }

    /// 101 asks a server with each request, has its reply after 2 ms, and goes on a second later.
    fn pages(ends: Ends) -> Timeline {
        let mut script = Script::new().socket(1, served_socket(7000), 101);
        script.timeline.slices = vec![(0, 3_300 * MS)];
        for n in 0..3_u64 {
            let (id, at) = (20 + 2 * n, 1_100 * n * MS + MS);
            let end = at + 1_002 * MS;
            let opened = |socket: Socket, closed_ns| Socket {
                opened: true,
                opened_ns: Some(at),
                closed_ns: Some(closed_ns),
                ..socket
            };
            script = script.socket(
                id,
                opened(client_socket(9000), end + if ends == Ends::ClientCloses { MS / 4 } else { MS }),
                101,
            );
            script = script.socket(id + 1, opened(served_socket(9000), end + MS / 2), 201).pair(id, id + 1);
            script = script.receives(101, 1, at, at + 10_000).sends(101, id, at + 100_000);
            script = script.receives(201, id + 1, at + 110_000, at + 120_000).sends(201, id + 1, at + 2 * MS);
            script = script.sleeps(101, at + 200_000, at + 2 * MS + 20_000, POLL, Waker::SoftIrq);
            script = script.receives(101, id, at + 2 * MS, at + 2 * MS + 30_000);
            script = script.sleeps(101, at + 2 * MS + 50_000, end + 30_000, POLL, Waker::SoftIrq);
            if ends == Ends::More {
                script = script.sends(201, id + 1, end).receives(101, id, end, end + 40_000);
            }
            script = script.sends(101, 1, end + MS);
        }
        script.timeline
    }

    #[test]
    fn a_thread_that_has_the_reply_waits_until_the_server_closes() {
        let spent = |timeline: &Timeline| {
            let service: Service = services(timeline).into_iter().next().expect("a service");
            let of = service.path.iter().filter(|part| part.hops.last().is_some_and(|hop| hop.kind == HopKind::Close));
            of.map(|part| part.ns / MS).sum::<u64>()
        };
        let closed = pages(Ends::ServerCloses);
        assert_eq!((spent(&closed), spent(&reduced(closed.clone()))), (2_999, 2_999));
        assert_eq!((spent(&pages(Ends::More)), spent(&pages(Ends::ClientCloses))), (0, 0));
    }

    #[test]
    fn a_thread_that_serves_nobody_else_does_not_wait_for_another_request() {
        // The window ends before the server closes.
        let mut timeline = pages(Ends::ServerCloses);
        timeline.slices = vec![(0, 500 * MS)];
        let service = services(&timeline).into_iter().next().expect("a service");
        assert_eq!((service.requests, service.unanswered), (0, 1));
        let others = service.path.iter().any(|part| part.hops.iter().any(|hop| hop.kind == HopKind::OtherRequest));
        assert!(!others, "{:#?}", service.path);
    }
}
