//! The steps and pieces of a critical path: data of [`super::walk`].
use parshall_evidence::timeline::{OffCpu, SocketCall};
use parshall_evidence::{FlowId, HopKind};

/// The object that a step of a path refers to beside its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// Nothing.
    None,
    /// A socket: its remote address.
    Remote(FlowId),
    /// A descriptor of the thread's process.
    File(i32),
    /// A thread that ran instead, or that is known by its id only.
    Thread(u32),
}

/// One step of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// The thread; 0 for none.
    pub tid: u32,
    /// The work that it did, or the kind of its wait.
    pub kind: HopKind,
    /// The system call in which it waited, -1 for none.
    pub syscall: i32,
    /// The object that it worked on or waited for.
    pub target: Target,
    /// Index of a stack.
    pub stack: Option<u32>,
}

/// A part of a request's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The way to it; the last step is what the time was spent on.
    pub steps: Vec<Step>,
    /// How long.
    pub ns: u64,
}

/// The work of a thread that is walked.
#[derive(Debug, Clone, Copy)]
pub enum Task {
    /// This request was read by `reader`, whose turn in which it read it ended at `turn_end`, and was answered at `end_ns`.
    Request { socket: FlowId, reader: u32, turn_end: u64, end_ns: u64 },
    /// The thread is to read this request.
    Unread { socket: FlowId },
    /// Something that another thread waits for.
    Other,
}

/// The place where the walk of a thread goes on.
pub enum Next {
    /// On the same thread, backwards from here; the thread did something for the request there.
    Turn(u64),
    /// On the same thread, backwards from here, within the same turn.
    Before(u64),
    /// Nowhere: the rest was walked elsewhere.
    Done,
}

impl Piece {
    /// It ends in a wait for work.
    pub fn is_idle(&self) -> bool {
        let leaf = self.steps.last().map(|step| step.kind);
        matches!(leaf, Some(HopKind::Client | HopKind::Network | HopKind::Idle | HopKind::Unseen))
    }
}

impl Step {
    /// A step of a thread, beside which nothing is known.
    pub fn new(tid: u32, kind: HopKind) -> Step {
        Step { tid, kind, syscall: -1, target: Target::None, stack: None }
    }

    /// A sleep.
    pub fn of(off: &OffCpu, kind: HopKind) -> Step {
        Step { tid: off.tid, kind, syscall: off.syscall, target: Target::None, stack: off.stack }
    }

    /// A sleep for what is behind its descriptor, if it has one.
    pub fn over_descriptor(off: &OffCpu, kind: HopKind) -> Step {
        let target = if off.fd_number >= 0 { Target::File(off.fd_number) } else { Target::None };
        Step::of(off, kind).to(target)
    }

    /// Data that lies in the socket on which this call wrote them.
    pub fn held(sent: &SocketCall) -> Step {
        Step::new(sent.tid, HopKind::Held).to(Target::Remote(sent.socket))
    }

    /// The same, with what it refers to.
    pub fn to(self, target: Target) -> Step {
        Step { target, ..self }
    }
}
