//! A capture as it is drawn: lanes of requests, threads and sockets on one axis of time.
//!
//! Nothing is concluded here. A trace has at most [`SPANS_MAX`] spans, whatever the capture: short ones that follow each other become one
//! ([`State::Many`]), and lanes beyond [`LANES_MAX`] are counted.
mod limit;
mod requests;
mod sockets;
mod state;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::HashMap;

use parshall_evidence::{Capture, FlowId};

pub use state::{Kind, State};

/// Lanes of a trace, of all kinds together.
pub const LANES_MAX: usize = 1_000;
/// Spans of a trace, of all lanes together.
pub const SPANS_MAX: usize = 40_000;

/// Events of a capture on one axis of time. Times are nanoseconds since the window began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// The length of the axis.
    pub window_ns: u64,
    /// The parts of it in which single events were seen; nothing is known of the others but the stalls of sockets.
    pub slices: Vec<(u64, u64)>,
    /// Requests first, then threads by process, then sockets.
    pub lanes: Vec<Lane>,
    /// Texts that spans refer to. The first is empty.
    pub texts: Vec<String>,
    /// The part of the axis with the longest wait of a request, or else of a socket or thread.
    pub opens_at: (u64, u64),
    /// A saved case keeps only the times off the CPU that requests have to do with: a blank in a lane is not always time on the CPU.
    pub reduced: bool,
    /// Lanes that are left out.
    pub left_out: u64,
    /// Shorter spans are joined, or not there; 0 where all are as they were.
    pub whole_from_ns: u64,
}

/// What happened at one connection, thread or socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// What it is a lane of.
    pub kind: Kind,
    /// The service or process that it belongs to.
    pub group: String,
    /// Its own name.
    pub name: String,
    /// In order of their begin. Those of requests may overlap, others do not.
    pub spans: Vec<Span>,
}

/// A time in which one thing held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// When it began.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// What held.
    pub state: State,
    /// Index into [`Trace::texts`]: what it was for, 0 for nothing.
    pub text: u32,
    /// The lane of the thread that ended it, at its end.
    pub ended_by: Option<u32>,
    /// Index into the capture's stacks: of the thread, in this wait.
    pub stack: Option<u32>,
}

impl Span {
    /// How long it was.
    pub fn ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns)
    }
}

/// Texts that occur again and again.
struct Texts {
    all: Vec<String>,
    known: HashMap<String, u32>,
}

impl Texts {
    fn new() -> Texts {
        Texts { all: vec![String::new()], known: HashMap::from([(String::new(), 0)]) }
    }

    fn id(&mut self, text: String) -> u32 {
        let next = self.all.len() as u32;
        *self.known.entry(text).or_insert_with_key(|text| {
            self.all.push(text.clone());
            next
        })
    }
}

/// The lanes of threads and of connections, by what evidence calls them.
#[derive(Default)]
struct Places {
    threads: HashMap<u32, u32>,
    sockets: HashMap<FlowId, u32>,
}

impl Trace {
    /// The trace of a capture. One without single events, of a rung that does not see them, has the stalls of sockets and threads.
    pub fn new(capture: &Capture) -> Trace {
        let mut texts = Texts::new();
        let mut lanes = requests::lanes(capture, &mut texts);
        lanes.extend(threads::lanes(capture, &mut texts));
        lanes.extend(sockets::lanes(capture, &mut texts));
        let left_out = limit::lanes(&mut lanes, LANES_MAX);
        let opens_at = opens_at(&lanes, capture.window_ns);
        let mut places = Places::default();
        for (at, lane) in lanes.iter().enumerate() {
            match lane.of {
                Of::Connection(_) => {}
                Of::Thread(tid) => drop(places.threads.insert(tid, at as u32)),
                Of::Socket(id) => drop(places.sockets.insert(id, at as u32)),
            }
        }
        let mut lanes: Vec<Lane> = lanes.into_iter().map(|lane| lane.placed(&places)).collect();
        let whole_from_ns = limit::spans(&mut lanes, SPANS_MAX);
        let timeline = capture.timeline.as_ref();
        Trace {
            window_ns: capture.window_ns,
            slices: timeline.map_or_else(Vec::new, |timeline| timeline.slices.clone()),
            lanes,
            texts: texts.all,
            opens_at,
            reduced: timeline.is_some_and(|timeline| timeline.left_out > 0),
            left_out,
            whole_from_ns,
        }
    }

    /// The text that a span refers to.
    pub fn text(&self, span: &Span) -> &str {
        self.texts.get(span.text as usize).map_or("", String::as_str)
    }
}

/// What a lane is of, in the words of the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    Connection(FlowId),
    Thread(u32),
    Socket(FlowId),
}

/// A lane before all others are known: who ended a span is the id of a thread.
struct Draft {
    of: Of,
    group: String,
    name: String,
    spans: Vec<(Span, u32)>,
    /// The larger, the sooner it is kept.
    weight_ns: u64,
}

impl Draft {
    fn placed(self, places: &Places) -> Lane {
        let spans = self.spans.into_iter().map(|(span, ended_by)| Span {
            ended_by: places.threads.get(&ended_by).copied().filter(|_| ended_by != 0),
            ..span
        });
        let kind = match self.of {
            Of::Connection(_) => Kind::Requests,
            Of::Thread(_) => Kind::Thread,
            Of::Socket(_) => Kind::Socket,
        };
        Lane { kind, group: self.group, name: self.name, spans: spans.collect() }
    }
}

/// The longest wait of the first kind of lane that has one, with a quarter of its length on either side.
fn opens_at(lanes: &[Draft], window_ns: u64) -> (u64, u64) {
    let longest = |wanted: fn(&Of) -> bool| {
        let spans = lanes.iter().filter(|lane| wanted(&lane.of)).flat_map(|lane| &lane.spans);
        let waits = spans.filter(|(span, _)| span.state.is_wait()).map(|(span, _)| (span.begin_ns, span.end_ns));
        waits.max_by_key(|(begin, end)| (end.saturating_sub(*begin), std::cmp::Reverse(*begin)))
    };
    let found = longest(|of| matches!(of, Of::Connection(_)))
        .or_else(|| longest(|of| matches!(of, Of::Socket(_))))
        .or_else(|| longest(|of| matches!(of, Of::Thread(_))));
    let Some((begin, end)) = found else { return (0, window_ns) };
    let margin = (end - begin) / 4;
    (begin.saturating_sub(margin), end.saturating_add(margin).min(window_ns.max(end)))
}
