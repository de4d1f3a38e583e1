//! A pool that a process has for its requests and that is all in use while none of them is answered: the threads behind an event loop,
//! or the connections to a server. Nobody wakes anybody for the requests that wait there, so no path leads to it: it is found by state.
//!
//! Look-alike: long polls, which wait for what others bring. Those are answered in the end, and their clients do not give them up.
use std::collections::BTreeMap;
use std::net::SocketAddr;

use parshall_evidence::socket::selection::state::{CLOSE, CLOSE_WAIT, ESTABLISHED, LAST_ACK};
use parshall_evidence::{Capture, FdKind, FlowRecord, OffCpu, OffCpuCell, Service, ThreadRecord};

use crate::judge::ledger::flow_rules::serves;
use crate::wait::Wait;

/// Fewer requests that clients gave up may have had reasons of their own.
const GIVEN_UP_MIN: u64 = 3;
/// Fewer threads or connections are no pool.
const POOL_MIN: usize = 2;
/// A sleep of this share of the time was one all the time.
const ALL: f64 = 0.99;

/// A pool of which nothing is free.
#[derive(Debug, Clone, PartialEq)]
pub enum UsedUp<'c> {
    /// Threads that have slept in the same call for all of the window.
    Threads {
        /// Their number.
        count: u64,
        /// The call.
        syscall: &'c str,
        /// The object that one of them waits for; empty when unknown.
        on: &'c str,
    },
    /// Connections to a server that are open and on which nothing moved in the window.
    Connections {
        /// The server.
        next: SocketAddr,
        /// Their number.
        count: u64,
    },
}

/// No request of the service was answered, and their clients gave up: it does not wait for what another one brings.
pub fn gives_nothing(service: &Service, capture: &Capture) -> bool {
    let seen = !service.waited && !service.outbound;
    seen && service.requests == 0 && given_up(service, capture) >= GIVEN_UP_MIN
}

/// Requests that clients gave up. Of those that were sent before the window, the connections tell: their clients closed them, and nothing
/// was ever answered on them. A service that waits for something inside of itself does not notice.
pub fn given_up(service: &Service, capture: &Capture) -> u64 {
    let served = |flow: &&FlowRecord| serves(flow) && flow.local.port() == service.address.port();
    let silent = |flow: &FlowRecord| flow.last.bytes_received > 0 && flow.last.bytes_acked <= 1;
    let left = |flow: &FlowRecord| [CLOSE, CLOSE_WAIT, LAST_ACK].contains(&flow.last.state) && silent(flow);
    let flows = capture.flows.iter().filter(served).filter(|flow| left(flow));
    flows.map(FlowRecord::connections).fold(0, u64::saturating_add).max(service.abandoned)
}

/// The pool of its process that is used up, if the service answers nothing.
pub fn used_up<'c>(service: &Service, capture: &'c Capture) -> Option<UsedUp<'c>> {
    let pid = *service.pids.first().filter(|_| gives_nothing(service, capture))?;
    threads(capture, pid).or_else(|| connections(capture, pid))
}

/// Threads that sleep in the same call on a pipe, a file or a lock of one all the time. Those without work sleep in futex.
fn threads(capture: &Capture, pid: u32) -> Option<UsedUp<'_>> {
    let mut alike: BTreeMap<(&str, FdKind), Vec<&ThreadRecord>> = BTreeMap::new();
    for thread in capture.threads.iter().filter(|thread| thread.pid == pid) {
        if let Some(cell) = thread.off_cpu.iter().find(|cell| takes_all(cell, thread.observed_ns)) {
            alike.entry((cell.syscall_name.as_str(), cell.fd)).or_default().push(thread);
        }
    }
    let ((syscall, _), threads) = alike.into_iter().max_by_key(|(_, threads)| threads.len())?;
    let waiting = capture.waiting.iter().flat_map(|waiting| &waiting.threads);
    let on = waiting.filter(|t| threads.iter().any(|thread| thread.tid == t.tid)).map(|t| t.target.as_str());
    let on = on.into_iter().find(|target| !target.is_empty()).unwrap_or_default();
    (threads.len() >= POOL_MIN).then_some(UsedUp::Threads { count: threads.len() as u64, syscall, on })
}

fn takes_all(cell: &OffCpuCell, observed_ns: u64) -> bool {
    let held = matches!(Wait::of(&cell.syscall_name, cell.fd, cell.syscall), Wait::Pipe | Wait::File);
    let held = held || cell.syscall_name == "flock";
    held && cell.why == OffCpu::Blocked && observed_ns > 0 && cell.ns as f64 >= ALL * observed_ns as f64
}

/// Connections that were used before the window, all to one server, of a process that asks nobody else either.
fn connections(capture: &Capture, pid: u32) -> Option<UsedUp<'_>> {
    let moved = |flow: &FlowRecord| flow.acked_bytes() > 0 || flow.received_bytes() > 0;
    let mut open: BTreeMap<SocketAddr, u64> = BTreeMap::new();
    for flow in capture.flows.iter().filter(|flow| flow.pid == pid && !serves(flow)) {
        let stays = flow.begin_ns == 0 && flow.end_ns >= capture.window_ns && flow.last.state == ESTABLISHED;
        if moved(flow) {
            return None;
        }
        if stays && flow.last.bytes_received > 0 {
            *open.entry(flow.remote).or_default() += flow.connections();
        }
    }
    let (&next, &count) = open.iter().next().filter(|_| open.len() == 1)?;
    (count >= POOL_MIN as u64).then_some(UsedUp::Connections { next, count })
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Confidence, HopKind, Role};

    use super::*;
    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder};
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, WINDOW_NS, capture, verdict_of};

    /// Six requests that an event loop has read; their clients gave up `given_up` of them, and `answered` others were answered.
    fn service(given_up: u64, answered: u64) -> Service {
        let waits = Hops::new().thread(100, 101, "app").on(HopKind::OtherRequest, "");
        let mut service = ServiceBuilder::new(7000).requests(answered, 300.0).unanswered(6, 700.0).part(waits, 1.0);
        service.record.abandoned = given_up;
        service.build()
    }

    fn asleep(tid: u32, call: &str, fd: FdKind) -> ThreadBuilder {
        ThreadBuilder::new(tid).blocked(0, WINDOW_NS, call, fd)
    }

    /// An event loop, threads without work, and `count` threads that sleep in `call`.
    fn threads_in(count: u32, call: &str, fd: FdKind, service: Service) -> Capture {
        let mut threads = vec![asleep(101, "epoll_wait", FdKind::Anon), asleep(102, "futex", FdKind::None)];
        threads.push(asleep(103, "futex", FdKind::None));
        threads.extend((0..count).map(|n| asleep(110 + n, call, fd)));
        let mut capture = capture(vec![], threads);
        capture.services = vec![service];
        capture
    }

    #[test]
    fn a_pool_whose_threads_are_all_blocked_answers_nothing() {
        let report = judge(&threads_in(4, "read", FdKind::Pipe, service(6, 0)));
        assert_eq!(report.verdict.cause.as_deref(), Some("workers-exhausted"), "{report:#?}");
        assert_eq!(report.verdict.confidence, Confidence::Medium);
        assert!(report.verdict.summary.contains("4 threads of it sat in read"), "{}", report.verdict.summary);
        assert_eq!(verdict_of(&threads_in(4, "flock", FdKind::File, service(6, 0))), "workers-exhausted");
    }

    #[test]
    fn threads_that_wait_for_work_are_no_pool_in_hand() {
        for other in [
            threads_in(4, "futex", FdKind::None, service(6, 0)),
            threads_in(4, "epoll_wait", FdKind::Anon, service(6, 0)),
            // One thread may read a pipe for itself.
            threads_in(1, "read", FdKind::Pipe, service(6, 0)),
        ] {
            assert_eq!(verdict_of(&other), "no-dominant-cause");
        }
    }

    #[test]
    fn who_gave_up_may_have_asked_before_the_window() {
        let left = |state: u8, received: u64, acked: u64| {
            let mut capture = threads_in(4, "read", FdKind::Pipe, service(0, 0));
            for id in 1..=4 {
                let mut flow = FlowBuilder::new(id, Role::Server).fill().record;
                flow.last.state = state;
                (flow.last.bytes_received, flow.last.bytes_acked) = (received, acked);
                capture.flows.push(flow);
            }
            verdict_of(&capture)
        };
        assert_eq!(left(CLOSE_WAIT, 80, 0), "workers-exhausted");
        assert_eq!(left(CLOSE, 80, 1), "workers-exhausted");
        // The clients are there, were answered before, or asked nothing.
        assert_eq!(left(ESTABLISHED, 80, 0), "healthy");
        assert_eq!(left(CLOSE_WAIT, 80, 900), "healthy");
        assert_eq!(left(CLOSE_WAIT, 0, 0), "healthy");
    }

    #[test]
    fn long_polls_are_not_given_up() {
        // Others are answered, or nobody has given up: they wait for what somebody brings.
        assert_eq!(verdict_of(&threads_in(4, "read", FdKind::Pipe, service(2, 0))), "healthy");
        assert_eq!(verdict_of(&threads_in(4, "read", FdKind::Pipe, service(6, 8))), "healthy");
    }

    /// Connections of process 100 to a server, on which `moved` bytes were received in the window; 500 before.
    fn connected(moved: &[u64], to: u16) -> Vec<FlowBuilder> {
        let flow = |(n, moved): (usize, &u64)| {
            let mut flow = FlowBuilder::new(10 + n as u64 + u64::from(to), Role::Client);
            flow.record.remote.set_port(to);
            (flow.record.first.bytes_received, flow.record.last.bytes_received) = (500, 500 + moved);
            flow
        };
        moved.iter().enumerate().map(flow).collect()
    }

    fn with_connections(flows: Vec<FlowBuilder>, service: Service) -> Capture {
        let mut capture = capture(flows, vec![asleep(101, "epoll_wait", FdKind::Anon)]);
        capture.services = vec![service];
        capture
    }

    #[test]
    fn connections_that_are_open_and_idle_while_nobody_is_answered() {
        let report = judge(&with_connections(connected(&[0; 10], 5432), service(6, 0)));
        assert_eq!(report.verdict.cause.as_deref(), Some("concurrency-limit"), "{report:#?}");
        assert_eq!(report.verdict.confidence, Confidence::Medium);
        assert!(report.verdict.summary.contains("10 connections to 127.0.0.1:5432"), "{}", report.verdict.summary);
    }

    #[test]
    fn connections_that_are_used_are_not_what_is_waited_for() {
        // One of them answers, the process asks another server, there is one only, or it was opened in the window.
        assert_eq!(verdict_of(&with_connections(connected(&[0, 0, 90], 5432), service(6, 0))), "no-dominant-cause");
        let mut both = connected(&[0, 0], 5432);
        both.extend(connected(&[0, 0], 6379));
        assert_eq!(verdict_of(&with_connections(both, service(6, 0))), "no-dominant-cause");
        assert_eq!(verdict_of(&with_connections(connected(&[0], 5432), service(6, 0))), "no-dominant-cause");
        let mut opened = connected(&[0, 0], 5432);
        opened.iter_mut().for_each(|flow| flow.record.begin_ns = 10 * MS);
        assert_eq!(verdict_of(&with_connections(opened, service(6, 0))), "no-dominant-cause");
        // Requests are answered: the pool is idle.
        assert_eq!(verdict_of(&with_connections(connected(&[0; 10], 5432), service(6, 8))), "healthy");
    }
}
