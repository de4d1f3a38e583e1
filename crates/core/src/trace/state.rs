//! The kinds of lanes, and the states that hold in their spans.
use parshall_evidence::FlowState;

/// The kind of thing that a lane is of. A page has their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The requests on a connection.
    Requests,
    /// A thread.
    Thread,
    /// A socket.
    Socket,
    /// Requests of a thread to io_uring.
    Uring,
    /// The log lines of a process.
    Log,
}

/// How many kinds there are.
pub const KINDS: usize = 5;

/// The state that held in a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Several short waits of a thread, with the time on the CPU between them.
    Many,
    /// A connection waited for accept().
    AcceptQueue,
    /// A request lay in its socket.
    Unread,
    /// A request had been read, and its reply had not begun.
    Working,
    /// The same, and no reply was seen.
    Unanswered,
    /// A thread could run, and waited for a CPU.
    Ready,
    /// Its control group was out of quota.
    Throttled,
    /// It was stopped or traced.
    Stopped,
    /// It slept in futex.
    Futex,
    /// It slept for a disk or a file.
    Disk,
    /// It slept for memory.
    Memory,
    /// It slept until a time.
    Timer,
    /// It slept for data from a socket.
    Receive,
    /// It slept for space in a socket.
    Send,
    /// It slept for a connection to be established.
    Connect,
    /// It slept in accept().
    Accept,
    /// It slept for a pipe.
    Pipe,
    /// It slept for any of several descriptors, or for completions.
    Events,
    /// It slept for something else.
    Kernel,
    /// A request to io_uring, from its submission to its last completion.
    UringDone,
    /// The same, and its result was an error.
    UringFailed,
    /// The same, and it was outstanding when the window ended.
    UringOpen,
    /// A line was written.
    LogLine,
    /// A socket that opened its connection had sent, and nothing came back yet.
    Reply,
    /// A socket of a stream had sent all that its application gave it, until the application gave it more.
    Supply,
    /// A socket moved nothing, in this state.
    Flow(FlowState),
}

/// The tones in which states are drawn, beside their pattern and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Waits for work, or has nothing to do.
    Quiet,
    /// Works.
    Busy,
    /// Waits for a CPU, or is not allowed one.
    Cpu,
    /// Waits for somebody else.
    Blocked,
    /// Waits in a queue.
    Queue,
    /// Something failed, was held back, or was not answered.
    Failed,
}

/// Name in data, name for people and tone.
type Row = (&'static str, &'static str, Tone);

impl State {
    /// All of them, in the order of their numbers in a page.
    pub fn all() -> Vec<State> {
        let of_others = [
            State::Many,
            State::AcceptQueue,
            State::Unread,
            State::Working,
            State::Unanswered,
            State::Ready,
            State::Throttled,
            State::Stopped,
            State::Futex,
            State::Disk,
            State::Memory,
            State::Timer,
            State::Receive,
            State::Send,
            State::Connect,
            State::Accept,
            State::Pipe,
            State::Events,
            State::Kernel,
            State::UringDone,
            State::UringFailed,
            State::UringOpen,
            State::LogLine,
            State::Reply,
            State::Supply,
        ];
        of_others.into_iter().chain(FlowState::ALL.map(State::Flow)).collect()
    }

    /// Its name in data.
    pub fn id(self) -> &'static str {
        self.row().0
    }

    /// Its name for people.
    pub fn label(self) -> &'static str {
        self.row().1
    }

    /// How it is drawn.
    pub fn tone(self) -> Tone {
        self.row().2
    }

    /// Somebody may wait in it: the others are the rhythm of a service without work.
    pub fn is_wait(self) -> bool {
        !matches!(self, State::Many | State::LogLine) && !matches!(self.tone(), Tone::Quiet)
    }

    fn row(self) -> Row {
        match self {
            State::Many => ("many", "several short waits", Tone::Quiet),
            State::AcceptQueue => ("accept-queue", "in the accept queue", Tone::Queue),
            State::Unread => ("unread", "unread in the socket", Tone::Queue),
            State::Working => ("working", "worked on", Tone::Busy),
            State::Unanswered => ("unanswered", "worked on, no reply seen", Tone::Failed),
            State::Ready => ("ready", "waits for a CPU", Tone::Cpu),
            State::Throttled => ("throttled", "out of CPU quota", Tone::Cpu),
            State::Stopped => ("stopped", "stopped", Tone::Failed),
            State::Futex => ("futex", "sleeps in futex", Tone::Blocked),
            State::Disk => ("disk", "waits for a file or disk", Tone::Blocked),
            State::Memory => ("memory", "waits for memory", Tone::Blocked),
            State::Timer => ("timer", "sleeps until a time", Tone::Blocked),
            State::Receive => ("receive", "waits for data from a socket", Tone::Blocked),
            State::Send => ("send", "waits for space in a socket", Tone::Blocked),
            State::Connect => ("connect", "waits for a connection", Tone::Blocked),
            State::Accept => ("accept", "waits in accept", Tone::Quiet),
            State::Pipe => ("pipe", "waits for a pipe", Tone::Blocked),
            State::Events => ("events", "waits for events", Tone::Quiet),
            State::Kernel => ("kernel", "sleeps in the kernel", Tone::Blocked),
            State::UringDone => ("uring-done", "done by io_uring", Tone::Blocked),
            State::UringFailed => ("uring-failed", "failed in io_uring", Tone::Failed),
            State::UringOpen => ("uring-open", "outstanding at io_uring", Tone::Quiet),
            State::LogLine => ("log-line", "writes", Tone::Busy),
            State::Reply => ("reply", "waits for a reply", Tone::Blocked),
            State::Supply => ("supply", "waits for its application's data", Tone::Blocked),
            State::Flow(state) => of_flow(state),
        }
    }
}

fn of_flow(state: FlowState) -> Row {
    match state {
        FlowState::IdleAfterRecv => ("idle-after-recv", "has nothing to send", Tone::Quiet),
        FlowState::IdleAfterSend => ("idle-after-send", "waits for the other end", Tone::Quiet),
        FlowState::InFlight => ("in-flight", "waits for an acknowledgement", Tone::Blocked),
        FlowState::Nagle => ("nagle", "held by Nagle", Tone::Failed),
        FlowState::Corked => ("corked", "held by a cork", Tone::Failed),
        FlowState::PeerWindow => ("peer-window", "the peer's window is full", Tone::Blocked),
        FlowState::Cwnd => ("cwnd", "the congestion window is full", Tone::Blocked),
        FlowState::Sndbuf => ("sndbuf", "the send buffer is full", Tone::Blocked),
        FlowState::Paced => ("paced", "paced", Tone::Blocked),
        FlowState::Qdisc => ("qdisc", "in the local queue", Tone::Queue),
        FlowState::Recovery => ("recovery", "recovers lost segments", Tone::Failed),
        FlowState::Loss => ("loss", "after a retransmission timeout", Tone::Failed),
        FlowState::RxWaiting => ("rx-waiting", "received data is unread", Tone::Queue),
        FlowState::Other => ("other", "connecting or closing", Tone::Quiet),
    }
}

impl Tone {
    /// Its name in data and in style sheets.
    pub fn id(self) -> &'static str {
        match self {
            Tone::Quiet => "quiet",
            Tone::Busy => "busy",
            Tone::Cpu => "cpu",
            Tone::Blocked => "blocked",
            Tone::Queue => "queue",
            Tone::Failed => "failed",
        }
    }
}
