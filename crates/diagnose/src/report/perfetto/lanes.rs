//! Tracks of threads, requests and sockets, with arrows from one to the other.
use std::collections::{BTreeMap, BTreeSet};

use parshall_core::critical_path::{self, Index, Request};
use parshall_core::sorting::StableSort as _;
use parshall_core::trace::{Lane, Of, State, Trace};
use parshall_core::units::{bytes, duration, or};
use parshall_evidence::timeline::Op;
use parshall_evidence::{Capture, FlowId, Timeline};
use parshall_host::output::clean;

use super::proto::Message;
use super::writer::{Event, Kind, Writer};

/// Numbers of tracks: what they are of, and its own number.
const PROCESS: u64 = 1 << 56;
const THREAD: u64 = 2 << 56;
const REQUESTS: u64 = 3 << 56;
const CONNECTION: u64 = 4 << 56;
const SOCKETS: u64 = 5 << 56;
const SOCKET: u64 = 6 << 56;

/// The rank of the track that comes last: an `int32`.
const LAST: u64 = 0x7fff_ffff;

/// The track of a thread.
pub fn thread_track(tid: u32) -> u64 {
    THREAD | u64::from(tid)
}

/// The process of a thread, and both names.
struct Who {
    pid: u32,
    process: String,
    thread: String,
}

fn who(capture: &Capture, tid: u32) -> Who {
    let timeline = capture.timeline.as_ref();
    if let Some(names) = timeline.and_then(|timeline| timeline.names.get(&tid)) {
        return Who { pid: names.pid, process: names.process.clone(), thread: names.thread.clone() };
    }
    let record = capture.threads.iter().find(|thread| thread.tid == tid);
    let pid = record.map_or(0, |record| record.pid);
    let at = capture.subject.pids.iter().position(|known| *known == pid);
    let process = at.and_then(|at| capture.subject.comms.get(at)).cloned().unwrap_or_default();
    Who { pid, process, thread: record.map_or_else(String::new, |record| record.comm.clone()) }
}

/// Threads whose tracks are there.
#[derive(Default)]
pub struct Threads {
    made: BTreeSet<u32>,
    processes: BTreeSet<u32>,
}

impl Threads {
    /// The track of a thread, made at its first use.
    pub fn track(&mut self, tid: u32, capture: &Capture, writer: &mut Writer<'_>) -> u64 {
        let track = thread_track(tid);
        if !self.made.insert(tid) {
            return track;
        }
        let who = who(capture, tid);
        let mut descriptor = Message::default();
        descriptor.uint(1, track);
        if who.pid == 0 {
            descriptor.text(2, &clean(&format!("{} {tid}", or(&who.thread, "thread"))));
        } else {
            if self.processes.insert(who.pid) {
                let mut process = Message::default();
                process.uint(1, u64::from(who.pid)).text(6, &clean(&or(&who.process, "process")));
                let mut own = Message::default();
                own.uint(1, PROCESS | u64::from(who.pid)).message(3, &process);
                writer.track(&own);
            }
            let mut thread = Message::default();
            let name = clean(&or(&who.thread, "thread"));
            thread.uint(1, u64::from(who.pid)).uint(2, u64::from(tid)).text(5, &name);
            descriptor.message(4, &thread);
        }
        writer.track(&descriptor);
        track
    }
}

/// Writes the waits of threads, and who ended each.
pub fn threads(capture: &Capture, trace: &Trace, threads: &mut Threads, writer: &mut Writer<'_>) {
    for lane in &trace.lanes {
        let Of::Thread(tid) = lane.of else { continue };
        let track = threads.track(tid, capture, writer);
        let mut free_ns = 0;
        for span in &lane.spans {
            let begin_ns = span.begin_ns.max(free_ns);
            if span.end_ns <= begin_ns {
                continue;
            }
            free_ns = span.end_ns;
            let begin = Event::new(Kind::Begin, track, begin_ns, span.state.label()).note("for", trace.text(span));
            writer.push(Event { stack: span.stack, ..begin });
            writer.push(Event::new(Kind::End, track, span.end_ns, ""));
            let waker = span.ended_by.and_then(|at| trace.lanes.get(at as usize));
            if let Some((waker, Of::Thread(waker_tid))) = waker.map(|lane| (lane, lane.of)) {
                let flow = writer.flow();
                let from = threads.track(waker_tid, capture, writer);
                let wakes = Event::new(Kind::Instant, from, span.end_ns, &format!("wakes {}", lane.name));
                writer.push(Event { flows: vec![flow], ..wakes });
                let woken = Event::new(Kind::Instant, track, span.end_ns, &format!("woken by {}", waker.name));
                writer.push(Event { ends: vec![flow], ..woken });
            }
        }
    }
}

/// A track with a name, below another one.
pub fn named(track: u64, parent: Option<u64>, name: &str, rank: u64) -> Message {
    let mut descriptor = Message::default();
    descriptor.uint(1, track).text(2, &clean(name)).uint(12, rank);
    if let Some(parent) = parent {
        descriptor.uint(5, parent);
    }
    descriptor
}

/// Requests by service and connection. Those of a connection that overlap have a track each.
pub fn requests(capture: &Capture, index: &Index<'_>, threads: &mut Threads, writer: &mut Writer<'_>) {
    let timeline = index.timeline;
    let mut groups: BTreeMap<String, u64> = BTreeMap::new();
    let mut tracks = 0;
    let all = critical_path::requests_by_connection(index);
    for of_connection in all.chunk_by(|a, b| a.socket == b.socket) {
        let Some(id) = of_connection.first().map(|request| request.socket) else { continue };
        let socket = timeline.sockets.get(&id);
        let service = socket.map_or_else(String::new, |s| if s.serves { s.local } else { s.remote }.to_string());
        let name = socket.map_or_else(|| format!("socket {id}"), |s| s.remote.to_string());
        let rank = groups.len() as u64;
        let group = *groups.entry(service.clone()).or_insert_with(|| {
            writer.track(&named(REQUESTS | rank, None, &format!("requests to {service}"), rank));
            REQUESTS | rank
        });
        let mut ordered: Vec<&Request> = of_connection.iter().filter(|r| r.end_ns > r.arrived_ns).collect();
        ordered.stable_sort_by_key(|request| (request.arrived_ns, request.end_ns));
        let mut rows: Vec<(u64, u64)> = Vec::new();
        for request in ordered {
            let at = rows.iter().position(|(free_ns, _)| *free_ns <= request.arrived_ns).unwrap_or_else(|| {
                let track = CONNECTION | tracks;
                tracks += 1;
                writer.track(&named(track, Some(group), &name, tracks));
                rows.push((0, track));
                rows.len() - 1
            });
            rows[at].0 = request.end_ns;
            one(capture, timeline, request, rows[at].1, threads, writer);
        }
    }
}

/// A slice with its parts; an arrow leads to it from the thread that sent it, and from it to those that read and answered it.
fn one(
    capture: &Capture,
    timeline: &Timeline,
    request: &Request,
    track: u64,
    threads: &mut Threads,
    writer: &mut Writer<'_>,
) {
    let took = duration(request.end_ns.saturating_sub(request.arrived_ns) as f64);
    let name = if request.cut { "a part of a request" } else { "request" };
    let mut whole = Event::new(Kind::Begin, track, request.arrived_ns, name).note("took", &took);
    let asked = sender(timeline, request);
    let flow = writer.flow();
    if let Some((tid, ns)) = asked {
        let from = threads.track(tid, capture, writer);
        writer.push(Event { flows: vec![flow], ..Event::new(Kind::Instant, from, ns, "asks") });
    }
    whole.flows.push(flow);
    writer.push(whole);
    let mut at = request.arrived_ns;
    let mut part = |until: u64, state: State, writer: &mut Writer<'_>| {
        let until = until.min(request.end_ns);
        if until > at {
            writer.push(Event::new(Kind::Begin, track, at, state.label()));
            writer.push(Event::new(Kind::End, track, until, ""));
            at = until;
        }
    };
    if let Some((accepted_ns, _)) = request.accepted {
        part(accepted_ns, State::AcceptQueue, writer);
    }
    part(request.read_ns, State::Unread, writer);
    part(request.end_ns, if request.reply_tid.is_some() { State::Working } else { State::Unanswered }, writer);
    writer.push(Event::new(Kind::End, track, request.end_ns, ""));
    if request.read_tid != 0 && request.read_ns <= request.end_ns {
        let reader = threads.track(request.read_tid, capture, writer);
        let reads = Event::new(Kind::Instant, reader, request.read_ns, "reads a request").note("took", &took);
        writer.push(match request.reply_tid {
            Some(_) => Event { flows: vec![flow], ..reads },
            None => Event { ends: vec![flow], ..reads },
        });
    }
    if let Some(tid) = request.reply_tid {
        let replier = threads.track(tid, capture, writer);
        let replies = Event::new(Kind::Instant, replier, request.end_ns, "replies").note("took", &took);
        writer.push(Event { ends: vec![flow], ..replies });
    }
}

/// The thread that sent a request, and when, if the other end of its connection was observed.
fn sender(timeline: &Timeline, request: &Request) -> Option<(u32, u64)> {
    let other: FlowId = timeline.sockets.get(&request.socket)?.other_end?;
    let calls = timeline.calls.get(&other)?;
    let until = calls.partition_point(|call| call.since_ns.min(call.at_ns) <= request.arrived_ns);
    let sent = calls[..until].iter().rev().find(|call| call.op == Op::Send)?;
    Some((sent.tid, sent.since_ns.min(sent.at_ns)))
}

/// Writes the socket calls of threads, with the bytes that they moved.
pub fn calls(capture: &Capture, threads: &mut Threads, writer: &mut Writer<'_>) {
    let Some(timeline) = &capture.timeline else { return };
    for call in timeline.calls.values().flatten() {
        let track = threads.track(call.tid, capture, writer);
        let name = match call.op {
            Op::Receive => "receives",
            Op::Send => "sends",
            Op::Accept => "accepts",
        };
        let other = timeline.sockets.get(&call.socket).map_or_else(String::new, |socket| socket.remote.to_string());
        let moved = if call.op == Op::Accept { String::new() } else { bytes(f64::from(call.bytes)) };
        writer.push(Event::new(Kind::Instant, track, call.at_ns, name).note("other end", &other).note("bytes", &moved));
    }
}

/// Times in which flows moved nothing.
pub fn sockets(trace: &Trace, writer: &mut Writer<'_>) {
    let lanes: Vec<&Lane> = trace.lanes.iter().filter(|lane| matches!(lane.of, Of::Socket(_))).collect();
    if !lanes.is_empty() {
        writer.track(&named(SOCKETS, None, "sockets", LAST));
    }
    for (rank, lane) in (0..).zip(lanes) {
        let track = SOCKET | rank;
        writer.track(&named(track, Some(SOCKETS), &lane.name, rank));
        let mut free_ns = 0;
        for span in &lane.spans {
            let begin_ns = span.begin_ns.max(free_ns);
            if span.end_ns <= begin_ns {
                continue;
            }
            free_ns = span.end_ns;
            writer.push(Event::new(Kind::Begin, track, begin_ns, span.state.label()).note("with", trace.text(span)));
            writer.push(Event::new(Kind::End, track, span.end_ns, ""));
        }
    }
}
