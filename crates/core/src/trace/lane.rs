//! Lanes and their spans, and what they are made of before all of them are known.
use std::collections::HashMap;

use parshall_evidence::FlowId;

use super::state::{Kind, State};

/// Events of a capture on one axis of time. Times are nanoseconds since the window began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// The length of the axis.
    pub window_ns: u64,
    /// The parts of it in which single events were seen; nothing is known of the others but the stalls of sockets.
    pub slices: Vec<(u64, u64)>,
    /// Requests first, then threads by process, then sockets, requests to io_uring and log lines.
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

/// The spans of one connection, thread or socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The kind of thing that it is a lane of.
    pub kind: Kind,
    /// The same in the words of the evidence.
    pub of: Of,
    /// The service or process that it belongs to.
    pub group: String,
    /// Its own name.
    pub name: String,
    /// In order of their begin. Those of requests, to io_uring too, may overlap, others do not.
    pub spans: Vec<Span>,
}

/// A time in which one thing held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// When it began.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// The state that held.
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
pub struct Texts {
    /// In the order of their numbers.
    pub all: Vec<String>,
    known: HashMap<String, u32>,
}

impl Texts {
    /// The empty one alone.
    pub fn new() -> Texts {
        Texts { all: vec![String::new()], known: HashMap::from([(String::new(), 0)]) }
    }

    /// The number of a text.
    pub fn id(&mut self, text: String) -> u32 {
        let next = self.all.len() as u32;
        *self.known.entry(text).or_insert_with_key(|text| {
            self.all.push(text.clone());
            next
        })
    }
}

impl Trace {
    /// The text that a span refers to.
    pub fn text(&self, span: &Span) -> &str {
        self.texts.get(span.text as usize).map_or("", String::as_str)
    }
}

/// The object that a lane is of, in the words of the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// The requests on a socket.
    Connection(FlowId),
    /// A thread.
    Thread(u32),
    /// A socket.
    Socket(FlowId),
    /// The requests of a thread to io_uring with one opcode.
    Uring(u32),
    /// The log lines of a process.
    Log(u32),
}

impl Of {
    /// The kind of such a lane.
    pub fn kind(self) -> Kind {
        match self {
            Of::Connection(_) => Kind::Requests,
            Of::Thread(_) => Kind::Thread,
            Of::Socket(_) => Kind::Socket,
            Of::Uring(_) => Kind::Uring,
            Of::Log(_) => Kind::Log,
        }
    }
}

/// A lane before all others are known: who ended a span is the id of a thread.
pub struct Draft {
    /// The object that it is of.
    pub of: Of,
    /// See [`Lane`].
    pub group: String,
    /// See [`Lane`].
    pub name: String,
    /// With the thread that ended each, 0 for none.
    pub spans: Vec<(Span, u32)>,
}

impl Draft {
    /// The time of its waits: the longer, the sooner it is kept.
    pub fn waits_ns(&self) -> u64 {
        let waits = self.spans.iter().filter(|(span, _)| span.state.is_wait());
        waits.fold(0, |sum, (span, _)| sum.saturating_add(span.ns()))
    }

    /// The lane, with the lanes of those who ended its spans, by thread id.
    pub fn placed(self, threads: &HashMap<u32, u32>) -> Lane {
        let spans = self.spans.into_iter().map(|(span, ended_by)| Span {
            ended_by: threads.get(&ended_by).copied().filter(|_| ended_by != 0),
            ..span
        });
        Lane { kind: self.of.kind(), of: self.of, group: self.group, name: self.name, spans: spans.collect() }
    }
}
