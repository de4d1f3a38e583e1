//! Waits of a service's observed clients outside of their requests: connections that are being opened, connections on which
//! the reply has come and the client still reads until the service closes, and replies that a client gave up waiting for.
//!
//! An idle connection is no such wait: its client sleeps for something else, or watches many. A subscriber waits for data to come, and
//! its connection does not end with the wait. Who has sent what is owed no reply does not wait for one before it closes.
use std::collections::BTreeMap;
use std::net::SocketAddr;

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{OffCpu, Op, Socket, SocketCall, Waker, Why};

use super::index::{Index, WAITS_SHARE};
use crate::sorting::StableSort as _;
use crate::wait::Wait;

/// A shorter wait is that of a round trip, or of a reply that is read to its end.
const LONG_NS: u64 = 100_000_000;
/// A client that gives up sooner has a reason of its own.
const GIVES_UP_NS: u64 = 1_000_000_000;

/// The event that a client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Awaits {
    /// The service's close of the connection, after it has replied.
    Close,
    /// The establishment of the connection.
    Connect,
    /// A reply, until the client's own timeout ended: it closed the connection then.
    Reply,
}

/// Waits of the threads of one process for the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientWait {
    /// The event that it waits for.
    pub awaits: Awaits,
    /// The process of the client, and its name.
    pub pid: u32,
    /// See `pid`.
    pub process: String,
    /// The service.
    pub remote: SocketAddr,
    /// How often.
    pub count: u64,
    /// All of these times together.
    pub ns: u64,
    /// The longest of them.
    pub longest_ns: u64,
}

/// The waits of the clients of what was asked about, the longest first.
pub fn found(index: &Index<'_>) -> Vec<ClientWait> {
    let mut sums: BTreeMap<(Awaits, u32, SocketAddr), (u64, u64, u64)> = BTreeMap::new();
    let mut processes = BTreeMap::new();
    let mut add = |awaits, tid, socket: &Socket, ns: u64| {
        let names = index.names(tid);
        let pid = names.map_or(0, |names| names.pid);
        processes.entry(pid).or_insert_with(|| names.map(|names| names.process.clone()).unwrap_or_default());
        let (count, sum, longest) = sums.entry((awaits, pid, socket.remote)).or_default();
        (*count, *sum, *longest) = (*count + 1, sum.saturating_add(ns), ns.max(*longest));
    };
    for (id, calls) in &index.timeline.calls {
        if let Some((awaits, socket, last, ns)) = until_close(index, *id, calls) {
            add(awaits, last.tid, socket, ns);
        }
    }
    for off in index.timeline.off_cpu.values().flatten() {
        let ns = off.wake_ns.saturating_sub(off.begin_ns);
        let socket = index.socket(off.target).filter(|socket| is_client(index, socket));
        if let Some(socket) = socket.filter(|_| ns >= LONG_NS && index.wait(off) == Wait::Connect) {
            index.note(off);
            add(Awaits::Connect, off.tid, socket, ns);
        }
    }
    let wait = |((awaits, pid, remote), (count, ns, longest_ns))| {
        let process = processes.get(&pid).cloned().unwrap_or_default();
        ClientWait { awaits, pid, process, remote, count, ns, longest_ns }
    };
    let mut found: Vec<ClientWait> = sums.into_iter().map(wait).collect();
    found.stable_sort_by_key(|wait| (std::cmp::Reverse(wait.ns), wait.pid, wait.remote));
    found
}

/// A socket of a client of what was asked about.
fn is_client(index: &Index<'_>, socket: &Socket) -> bool {
    let ports = &index.timeline.asked_ports;
    !socket.serves && !socket.udp && (ports.is_empty() || ports.contains(&socket.remote.port()))
}

/// The last call on a client's connection, if its thread then slept for nothing but data on it until it was closed, for how long, and what
/// for: with its reply, for the service's close; without one, for a reply, if its own timeout ended that. Only where replies came before is
/// it known that there are any.
fn until_close<'a>(
    index: &Index<'a>,
    id: FlowId,
    calls: &'a [SocketCall],
) -> Option<(Awaits, &'a Socket, &'a SocketCall, u64)> {
    let socket = index.socket(id).filter(|socket| is_client(index, socket))?;
    let last = calls.last()?;
    let (awaits, before, least_ns) = match last.op {
        Op::Receive => (Awaits::Close, Op::Send, LONG_NS),
        Op::Send => (Awaits::Reply, Op::Receive, GIVES_UP_NS),
        Op::Accept => return None,
    };
    let closed_ns = socket.closed_ns?;
    let in_slice = index.timeline.slices.iter().any(|slice| slice.0 <= last.at_ns && closed_ns <= slice.1);
    let ns = closed_ns.saturating_sub(last.at_ns);
    if ns < least_ns || !in_slice || !calls.iter().any(|call| call.op == before) {
        return None;
    }
    let (slept, ended_itself) = sleeps_for(index, id, last, closed_ns)?;
    let waits = slept as f64 >= WAITS_SHARE * ns as f64 && ended_itself == (awaits == Awaits::Reply);
    let alone = || !index.serves_others(last.tid, id, last.at_ns, closed_ns);
    (waits && alone()).then_some((awaits, socket, last, ns))
}

/// For how long a client's thread slept for data on its connection after its last call there, and whether a timer ended that.
fn sleeps_for(index: &Index<'_>, id: FlowId, last: &SocketCall, closed_ns: u64) -> Option<(u64, bool)> {
    let offs = index.off_cpu(last.tid, last.at_ns)?;
    let reads = |off: &OffCpu| match index.wait(off) {
        Wait::SocketReceive => off.target == id,
        // One that has nothing else to watch: event loops have epoll for that.
        Wait::Multiplex => off.why == Why::Slept && matches!(index.syscall(off), "poll" | "ppoll"),
        _ => false,
    };
    let begin = offs.partition_point(|off| off.end_ns <= last.at_ns);
    let (mut slept, mut ended_itself) = (0, false);
    for off in offs[begin..].iter().take_while(|off| off.begin_ns < closed_ns) {
        index.note(off);
        if reads(off) {
            slept += off.wake_ns.min(closed_ns).saturating_sub(off.begin_ns.max(last.at_ns));
            ended_itself = off.waker == Waker::HardIrq;
        }
    }
    Some((slept, ended_itself))
}

#[cfg(test)]
mod tests {
    use parshall_evidence::FdKind;

    use super::*;
    use crate::testkit::timeline::{Script, client_socket, off, served_socket};

    const MS: u64 = 1_000_000;
    const RECV: i32 = 45;
    const POLL: i32 = 7;
    const SLEEP: i32 = 35;
    const CONNECT: i32 = 42;

    /// 201 asks over socket 2 at 10 ms, and has the reply at 12 ms. The connection ends at 812 ms.
    fn replied() -> Script {
        let mut script = Script::new()
            .socket(1, Socket { closed_ns: Some(812 * MS), ..served_socket(7000) }, 101)
            .socket(2, Socket { opened: true, closed_ns: Some(812 * MS), ..client_socket(7000) }, 201)
            .pair(1, 2)
            .sends(201, 2, 10 * MS)
            .receives(101, 1, 10 * MS, 11 * MS)
            .sends(101, 1, 11 * MS)
            .receives(201, 2, 11 * MS, 12 * MS);
        script.timeline.slices = vec![(0, 1_000 * MS)];
        script.timeline.asked_ports = vec![7000];
        script.timeline.syscalls.extend([(POLL, "poll".to_string()), (CONNECT, "connect".to_string())]);
        script
    }

    fn sleep(syscall: i32, target: u64, waker: Waker) -> OffCpu {
        let fd = if syscall == RECV { FdKind::Tcp } else { FdKind::None };
        OffCpu { syscall, fd, target, waker, ..off(201, 12 * MS + 1, 811 * MS, 811 * MS) }
    }

    fn of(script: Script) -> Vec<(Awaits, u32, u64, u64)> {
        found(&Index::new(&script.timeline))
            .iter()
            .map(|wait| (wait.awaits, wait.pid, wait.count, wait.ns / MS))
            .collect()
    }

    #[test]
    fn a_client_that_reads_until_the_end_waits_for_the_close() {
        assert_eq!(of(replied().off(sleep(RECV, 2, Waker::SoftIrq))), [(Awaits::Close, 200, 1, 800)]);
        assert_eq!(of(replied().off(sleep(POLL, 0, Waker::SoftIrq))), [(Awaits::Close, 200, 1, 800)]);
    }

    #[test]
    fn a_connection_that_idles_is_no_wait() {
        // The client sleeps for something else, gives up by a timer of its own, or reads elsewhere.
        assert_eq!(of(replied().off(sleep(SLEEP, 0, Waker::HardIrq))), []);
        assert_eq!(of(replied().off(sleep(POLL, 0, Waker::HardIrq))), []);
        assert_eq!(of(replied().off(sleep(RECV, 9, Waker::SoftIrq))), []);
        assert_eq!(of(replied().off(sleep(232, 0, Waker::SoftIrq))), [], "an event loop watches many");
        // It is still open when the window ends: a subscriber.
        let mut open = replied().off(sleep(RECV, 2, Waker::Unknown));
        open.timeline.sockets.values_mut().for_each(|socket| socket.closed_ns = None);
        assert_eq!(of(open), []);
        // Other ports were not asked about.
        let mut other = replied().off(sleep(RECV, 2, Waker::SoftIrq));
        other.timeline.asked_ports = vec![9];
        assert_eq!(of(other), []);
    }

    /// As [`replied`], and 201 asks again at 20 ms, has no reply, and closes the connection at 2,020 ms.
    fn asked_again() -> Script {
        let mut script = replied().sends(201, 2, 20 * MS).receives(101, 1, 20 * MS, 21 * MS);
        script.timeline.slices = vec![(0, 3_000 * MS)];
        script.timeline.sockets.values_mut().for_each(|socket| socket.closed_ns = Some(2_021 * MS));
        script
    }

    fn until_timeout(syscall: i32, target: u64, waker: Waker) -> OffCpu {
        let (begin, end) = (20 * MS + 1, 2_020 * MS);
        OffCpu { begin_ns: begin, wake_ns: end, end_ns: end, ..sleep(syscall, target, waker) }
    }

    #[test]
    fn a_client_whose_timeout_ends_has_given_up_waiting_for_a_reply() {
        assert_eq!(of(asked_again().off(until_timeout(POLL, 0, Waker::HardIrq))), [(Awaits::Reply, 200, 1, 2_001)]);
        assert_eq!(of(asked_again().off(until_timeout(RECV, 2, Waker::HardIrq))), [(Awaits::Reply, 200, 1, 2_001)]);
        // It sleeps for something else, or watches many, or the service closed.
        assert_eq!(of(asked_again().off(until_timeout(SLEEP, 0, Waker::HardIrq))), []);
        assert_eq!(of(asked_again().off(until_timeout(232, 0, Waker::HardIrq))), []);
        assert_eq!(of(asked_again().off(until_timeout(POLL, 0, Waker::SoftIrq))), []);
        // It waits for the next thing to send, and is still connected.
        let mut open = asked_again().off(until_timeout(POLL, 0, Waker::HardIrq));
        open.timeline.sockets.values_mut().for_each(|socket| socket.closed_ns = None);
        assert_eq!(of(open), []);
        // Nothing is ever answered on its connection: messages that are owed no reply.
        let mut one_way = asked_again().off(until_timeout(POLL, 0, Waker::HardIrq));
        one_way.timeline.calls.get_mut(&2).expect("calls").retain(|call| call.op == Op::Send);
        assert_eq!(of(one_way), []);
    }

    #[test]
    fn a_connection_that_is_being_opened_is_waited_for() {
        let connects = |ms: u64| OffCpu {
            fd: FdKind::Tcp,
            ..OffCpu { target: 2, syscall: CONNECT, ..off(201, MS, MS + ms * MS, MS + ms * MS) }
        };
        let script = |ms| {
            let mut script = Script::new().socket(2, client_socket(7000), 201).off(connects(ms));
            script.timeline.slices = vec![(0, 3_000 * MS)];
            script.timeline.syscalls.insert(CONNECT, "connect".to_string());
            script
        };
        assert_eq!(of(script(1_003)), [(Awaits::Connect, 200, 1, 1_003)]);
        assert_eq!(of(script(40)), []);
    }
}
