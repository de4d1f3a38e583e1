//! Requests that are not read while an answer is outstanding to what was asked for the request before them: a copy that is sent elsewhere,
//! a log. The client has its reply by then, and the thread is idle.
//!
//! A thread that is busy looks alike, and one that leaves a connection alone for a time: neither reads the request in the turn in which
//! such an answer comes.
use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Op, SocketCall, Waker, Why};

use super::connection::Request;
use super::index::Index;
use crate::wait::Wait;

/// A request that lies there for less was read as soon as its thread could.
const LAY_NS: u64 = 1_000_000;
/// The share of that time in which the thread sleeps over its descriptors, so that it could have read the request.
const IDLE: f64 = 0.5;

/// The answer that a request waited for before it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The connection on which it came.
    pub socket: FlowId,
    /// When it came.
    pub until_ns: u64,
}

impl Index<'_> {
    /// The answer that a request of a kept connection waited for before it was read: it came in the turn in which the thread read the
    /// request, and had been asked for in the turn in which it read the one before, which was answered when the request came.
    pub fn held_back(&self, request: &Request) -> Option<Held> {
        let (tid, arrived, read) = (request.read_tid, request.arrived_ns, request.read_ns);
        let lay_ns = read.saturating_sub(arrived);
        if lay_ns < LAY_NS || request.accepted.is_some() {
            return None;
        }
        let all = self.requests.get(&request.socket)?;
        let before = all.get(all.partition_point(|other| other.arrived_ns < arrived).checked_sub(1)?)?;
        let is_done = before.reply_tid.is_some() && before.end_ns <= arrived && before.read_tid == tid;
        let slept = self.last_sleep(tid, read).filter(|_| is_done)?;
        let by_data = self.wait(slept) == Wait::Multiplex && slept.waker == Waker::SoftIrq;
        if !by_data || (self.idle_ns(tid, arrived, slept.wake_ns) as f64) < IDLE * lay_ns as f64 {
            return None;
        }
        let asked_in = before.read_ns..=self.turn_end(tid, before.read_ns);
        let asked = |call: &SocketCall| {
            let socket = self.socket(call.socket).filter(|socket| !socket.serves)?;
            let sent = self.last_send(call.socket, call.since_ns).filter(|sent| sent.tid == tid)?;
            // The connection may have been opened for it.
            [Some(sent.since_ns), socket.opened_ns].into_iter().flatten().find(|at| asked_in.contains(at))
        };
        let turn = self.calls_within(tid, slept.end_ns, read).iter().filter(|call| call.op == Op::Receive);
        let (_, answer) = turn.filter_map(|call| Some((asked(call)?, call))).min_by_key(|(at, _)| *at)?;
        (answer.since_ns > arrived).then_some(Held { socket: answer.socket, until_ns: answer.since_ns })
    }

    /// How long a thread sleeps over descriptors between two times.
    fn idle_ns(&self, tid: u32, from: u64, to: u64) -> u64 {
        let offs = self.timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice);
        let later = &offs[offs.partition_point(|off| off.end_ns <= from)..];
        let within = later.iter().take_while(|off| off.begin_ns < to).inspect(|off| self.note(off));
        let idle = within.filter(|off| off.why == Why::Slept && self.wait(off) == Wait::Multiplex);
        idle.map(|off| off.wake_ns.min(to).saturating_sub(off.begin_ns.max(from))).sum()
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::{Socket, Waker};
    use parshall_evidence::{HopKind, Service};

    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, client_socket, served_socket};

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;
    const EPOLL: i32 = 232;

    /// What is different from a loop that copies each request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum But {
        Nothing,
        /// The thread computes meanwhile.
        Busy,
        /// What it hears in the end was asked for later.
        AskedLater,
        /// The client asks again before it has its reply.
        Early,
        /// Another thread looks at it, and it does not hear anything in that turn.
        Unheard,
    }

    /// 101 serves socket 1. It asks 8000, which answers at once, and 8001 over a connection of its own, which takes 60 ms; it reads the next
    /// request, which comes after 5 ms, when that is there.
    fn copies(but: But) -> Service {
        let mut script = Script::new().socket(1, served_socket(7000), 101).socket(2, client_socket(8000), 101);
        script.timeline.slices = vec![(0, 1_000 * MS)];
        for n in 0..12_u64 {
            let (at, copy) = ((10 + 60 * n) * MS, 10 + n);
            let asked = at + if but == But::AskedLater { 20 * MS } else { 60 * US };
            let opened = Socket { opened: true, opened_ns: Some(asked), ..client_socket(8001) };
            let came = if n == 0 { at } else { at - 55 * MS - if but == But::Early { 5 * MS - 100 * US } else { 0 } };
            script = script.socket(copy, opened, 101).receives(101, 1, came, at).sends(101, 2, at + 50 * US);
            script = script.sends(101, copy, asked + 20 * US).sleeps(
                101,
                at + 90 * US,
                at + 200 * US,
                EPOLL,
                Waker::SoftIrq,
            );
            script = script.receives(101, 2, at + 195 * US, at + 210 * US).sends(101, 1, at + 220 * US);
            // It is woken for the request.
            if but != But::Busy {
                script = script.sleeps(101, at + 230 * US, at + 5 * MS, EPOLL, Waker::SoftIrq);
                script = script.sleeps(101, at + 5 * MS + 10 * US, at + 19 * MS, EPOLL, Waker::SoftIrq);
                script = script.sleeps(101, at + 21 * MS, at + 60 * MS - 50 * US, EPOLL, Waker::SoftIrq);
            } else {
                script = script.sleeps(101, at + 59 * MS, at + 60 * MS - 50 * US, EPOLL, Waker::SoftIrq);
            }
            if but != But::Unheard {
                script = script.receives(101, copy, at + 60 * MS - 60 * US, at + 60 * MS - 40 * US);
            }
        }
        services(&script.timeline).into_iter().next().expect("a service")
    }

    /// Time of waits for 8001 that are no part of the reading, in ms.
    fn asked_ms(service: &Service) -> u64 {
        let is = |hops: &[parshall_evidence::Hop]| hops[0].kind == HopKind::Reply && hops[0].target.ends_with(":8001");
        service.path.iter().filter(|part| is(&part.hops)).map(|part| part.ns / MS).sum()
    }

    #[test]
    fn a_request_that_is_not_read_before_the_last_question_is_answered_waits_for_that() {
        let service = copies(But::Nothing);
        let asked = asked_ms(&service);
        assert!((590..=606).contains(&asked), "{asked}: {:#?}", service.path);
    }

    #[test]
    fn a_request_that_lies_there_for_another_reason_waits_for_no_answer() {
        for but in [But::Busy, But::AskedLater, But::Early, But::Unheard] {
            let service = copies(but);
            assert_eq!(asked_ms(&service), 0, "{but:?}: {:#?}", service.path);
        }
    }
}
