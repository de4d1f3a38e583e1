//! The spans of a trace that count into a figure.
use std::collections::BTreeMap;

use parshall_evidence::timeline::OffCpu;
use parshall_evidence::{Capture, FlowId};

use super::lane::{Lane, Of, Span, Trace};
use super::state::State;
use crate::critical_path::{self, Index, Request};
use crate::judge::counted::{Events, Held, Phase, RequestTimes};
use crate::sorting::IntoOrdered as _;
use crate::stats::Spans;

/// Begin and end of requests, by connection.
type BySocket = BTreeMap<FlowId, Vec<(u64, u64)>>;

/// Spans of a lane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The lane.
    pub lane: u32,
    /// The spans, in their order.
    pub spans: Vec<u32>,
}

/// Finds events in a trace.
pub struct Marker<'a> {
    capture: &'a Capture,
    trace: &'a Trace,
    requests: Vec<Request>,
    /// By lane and span, the call in which the thread slept.
    calls: Vec<Vec<&'a str>>,
}

impl<'a> Marker<'a> {
    /// `index` is that of the capture's timeline.
    pub fn new(capture: &'a Capture, index: Option<&Index<'_>>, trace: &'a Trace) -> Marker<'a> {
        let requests = index.map_or_else(Vec::new, critical_path::requests_by_connection);
        let calls = trace.lanes.iter().map(|lane| calls(capture, lane)).collect();
        Marker { capture, trace, requests, calls }
    }

    /// The spans of events, by lane. Those that are joined with others, or have no lane, are not among them.
    pub fn marks(&self, events: &Events) -> Vec<Mark> {
        let asked: Vec<(&RequestTimes, BySocket)> =
            events.requests.iter().map(|times| (times, self.of_service(times))).collect();
        let outstanding = asked.iter().flat_map(|(_, by_socket)| by_socket.values()).flatten().copied();
        let outstanding = Spans::union(outstanding.collect());
        let in_requests: Vec<(&RequestTimes, BTreeMap<FlowId, Spans>)> = asked
            .into_iter()
            .map(|(times, by_socket)| {
                (times, by_socket.into_iter().map(|(id, all)| (id, Spans::union(all))).into_map())
            })
            .collect();
        let mut marks = Vec::new();
        for (at, lane) in self.trace.lanes.iter().enumerate() {
            let counts = |number: usize, span: &Span| match lane.of {
                Of::Connection(socket) => in_requests.iter().any(|(times, by_socket)| {
                    let in_one = by_socket.get(&socket).is_some_and(|all| all.covered(span.begin_ns, span.end_ns) > 0);
                    in_one && phase(span.state).is_some_and(|phase| times.phases.contains(&phase))
                }),
                Of::Uring(_) | Of::Log(_) => false,
                Of::Socket(socket) => events.stalls.contains(&(socket, span.begin_ns)),
                Of::Thread(tid) => {
                    let call = self.calls[at].get(number).copied().unwrap_or_default();
                    let meanwhile = events.requests.is_empty() || outstanding.covered(span.begin_ns, span.end_ns) > 0;
                    meanwhile && self.is_wanted(events, tid, span.state, call)
                }
            };
            let whole = lane.spans.iter().enumerate().filter(|(_, span)| span.state != State::Many);
            let spans: Vec<u32> =
                whole.filter(|(number, span)| counts(*number, span)).map(|(number, _)| number as u32).collect();
            if !spans.is_empty() {
                marks.push(Mark { lane: at as u32, spans });
            }
        }
        marks
    }

    /// Whether a thread's wait is of a kind that counts.
    fn is_wanted(&self, events: &Events, tid: u32, state: State, call: &str) -> bool {
        if events.waits.is_empty() {
            return false;
        }
        let pid = self.pid(tid);
        events.waits.iter().any(|wait| {
            let kind = match (wait.held, state) {
                (Some(Held::RunQueue), State::Ready)
                | (Some(Held::Throttled), State::Throttled)
                | (Some(Held::Stopped), State::Stopped) => true,
                (Some(_), _) | (None, State::Ready | State::Throttled | State::Stopped) => false,
                (None, _) => wait.syscall == call,
            };
            kind && wait.pid.is_none_or(|wanted| pid == Some(wanted))
        })
    }

    fn pid(&self, tid: u32) -> Option<u32> {
        let names = self.capture.timeline.as_ref().and_then(|timeline| timeline.names.get(&tid));
        let record = || self.capture.threads.iter().find(|thread| thread.tid == tid).map(|thread| thread.pid);
        names.map(|names| names.pid).or_else(record)
    }

    /// When requests were outstanding, by connection.
    fn of_service(&self, times: &RequestTimes) -> BySocket {
        let Some(timeline) = &self.capture.timeline else { return BTreeMap::new() };
        let mut by_socket = BySocket::new();
        for request in &self.requests {
            let Some(socket) = timeline.sockets.get(&request.socket) else { continue };
            let is_its = match times.outbound {
                true => socket.remote == times.address,
                false => socket.local.port() == times.address.port() && socket.serves,
            };
            if is_its && request.ns() >= times.least_ns {
                by_socket.entry(request.socket).or_default().push((request.arrived_ns, request.end_ns));
            }
        }
        by_socket
    }
}

fn phase(state: State) -> Option<Phase> {
    match state {
        State::AcceptQueue => Some(Phase::AcceptQueue),
        State::Unread => Some(Phase::Unread),
        State::Working | State::Unanswered => Some(Phase::Worked),
        _ => None,
    }
}

/// The calls in which a thread slept; empty where it was in none.
fn calls<'a>(capture: &'a Capture, lane: &Lane) -> Vec<&'a str> {
    let Of::Thread(tid) = lane.of else { return Vec::new() };
    if let Some(timeline) = &capture.timeline {
        let offs = timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice);
        let name = |off: &OffCpu| timeline.syscalls.get(&off.syscall).map_or("", String::as_str);
        let at = |begin_ns: u64| offs.binary_search_by_key(&begin_ns, |off| off.begin_ns).ok();
        let found = |span: &Span| at(span.begin_ns).and_then(|at| offs.get(at)).map_or("", name);
        return lane.spans.iter().map(found).collect();
    }
    let own = capture.thread_stalls.iter().filter(|stall| stall.tid == tid);
    let names: BTreeMap<u64, &str> = own.map(|stall| (stall.begin_ns, stall.syscall_name.as_str())).into_map();
    lane.spans.iter().map(|span| names.get(&span.begin_ns).copied().unwrap_or_default()).collect()
}
