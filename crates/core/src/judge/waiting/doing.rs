//! The state of a thread, as far as a request may wait for it.
use parshall_evidence::timeline::NAMES_PORT;
use parshall_evidence::{FdKind, HopKind, WaitingEnd, WaitingThread};

use super::debt::Debt;
use super::scene::Scene;
use crate::wait::Wait;

/// The state of a thread when the window ends.
#[derive(Debug, Clone, Copy)]
pub enum Doing<'a> {
    /// It is stopped.
    Stopped,
    /// It waits for a file, a device or something else that no signal ends.
    Disk,
    /// Its session waits for a lock of the database that the session of this process holds.
    Session(u32),
    /// It sleeps for a mutex that this thread holds.
    Mutex(u32),
    /// It waits for the reply to what its process has sent there.
    Reply(&'a WaitingEnd),
    /// It waits for a name server to answer.
    Names,
    /// It waits for one of the processes at the other end of a UNIX socket or pipe.
    Partner,
    /// It waits for a lock of a file that one of its partners holds.
    FileLock,
    /// It sleeps so that no signal ends it, and not for a file.
    Stuck,
    /// For a connection to be established.
    Connect,
    /// For a receiver to take what it sends.
    Send,
    /// It receives on a connection on which a request may be unanswered.
    Receive(&'a WaitingEnd),
    /// For a lock, or for work: a futex does not tell.
    Futex,
    /// In the kernel, for something else.
    Kernel,
    /// For a child.
    Child,
    /// For a timer.
    Timer,
    /// It runs.
    Running,
    /// It was not seen.
    Unknown,
    /// For an event on any of many descriptors.
    Events,
    /// For something to do.
    Idle,
}

impl Doing<'_> {
    /// A thread that is blocked like this holds up what its process has taken in, whatever else the process waits for.
    pub fn is_blocked(self) -> bool {
        self.rank() < Doing::Futex.rank()
    }

    /// A thread like this may be the one that has the request.
    pub fn may_work(self) -> bool {
        self.rank() < Doing::Events.rank()
    }

    /// Of several, the one that explains a wait best comes first.
    pub fn rank(self) -> u32 {
        match self {
            Doing::Stopped => 0,
            Doing::Disk => 1,
            Doing::Session(_) => 2,
            Doing::Mutex(_) => 3,
            Doing::Reply(_) | Doing::Names => 4,
            Doing::Partner => 5,
            Doing::FileLock => 6,
            Doing::Connect => 7,
            Doing::Send => 8,
            Doing::Stuck => 8,
            Doing::Futex => 9,
            Doing::Receive(_) => 10,
            Doing::Kernel => 11,
            Doing::Child => 12,
            Doing::Timer => 13,
            Doing::Running => 14,
            Doing::Unknown => 15,
            Doing::Events => 16,
            Doing::Idle => 17,
        }
    }

    /// As a hop of a chain.
    pub fn kind(self) -> HopKind {
        match self {
            Doing::Stopped => HopKind::Stopped,
            Doing::Disk => HopKind::Disk,
            Doing::Session(_) | Doing::Mutex(_) | Doing::FileLock | Doing::Futex => HopKind::Lock,
            Doing::Reply(_) | Doing::Receive(_) => HopKind::Reply,
            Doing::Names => HopKind::NameServer,
            Doing::Partner => HopKind::Pipe,
            Doing::Connect => HopKind::Connect,
            Doing::Send => HopKind::Send,
            Doing::Kernel | Doing::Stuck => HopKind::Kernel,
            Doing::Child => HopKind::Worker,
            Doing::Timer => HopKind::Timer,
            Doing::Running => HopKind::OnCpu,
            Doing::Unknown => HopKind::Unseen,
            // It holds something while its own client sends nothing.
            Doing::Events | Doing::Idle => HopKind::Client,
        }
    }
}

/// The state of a thread when the window ends, by its system call, its target and its kernel state.
pub fn doing<'a>(scene: &Scene<'a>, thread: &WaitingThread) -> Doing<'a> {
    if matches!(thread.state, 'T' | 't') {
        return Doing::Stopped;
    }
    if thread.session_lock != 0 {
        return Doing::Session(thread.session_lock);
    }
    if thread.state == 'R' {
        return Doing::Running;
    }
    let wait = Wait::of(&thread.syscall_name, thread.fd, thread.syscall);
    if thread.state == 'D' {
        return if waits_for_files(thread, wait) { Doing::Disk } else { Doing::Stuck };
    }
    if !thread.seen {
        return Doing::Unknown;
    }
    let asked = || thread.awaits.iter().filter_map(|id| scene.end(*id));
    match wait {
        Wait::SocketReceive | Wait::Multiplex if asks_names(thread) => Doing::Names,
        Wait::SocketReceive if !thread.partners.is_empty() => Doing::Partner,
        Wait::SocketReceive => asked().find_map(|end| receives(scene, end)).unwrap_or(Doing::Idle),
        Wait::Multiplex if polls(thread) && !thread.partners.is_empty() => Doing::Partner,
        // One that polls for a reply alone is blocked by it; an event loop is not.
        Wait::Multiplex if polls(thread) && asked().all(|end| !end.serves) => {
            asked().find_map(|end| receives(scene, end)).unwrap_or(Doing::Events)
        }
        Wait::Multiplex => Doing::Events,
        Wait::Accept => Doing::Idle,
        Wait::Futex if thread.lock_owner != 0 => Doing::Mutex(thread.lock_owner),
        Wait::Futex => Doing::Futex,
        Wait::Sleep if thread.syscall_name == "pause" => Doing::Idle,
        Wait::Sleep => Doing::Timer,
        Wait::Connect => Doing::Connect,
        Wait::SocketSend | Wait::Pipe if !thread.partners.is_empty() && !thread.syscall_name.contains("read") => {
            Doing::Partner
        }
        Wait::SocketSend => Doing::Send,
        // A reader that nobody answers: its pipe may be one on which it is given work.
        Wait::Pipe if thread.syscall_name.contains("read") => Doing::Idle,
        Wait::File => Doing::Disk,
        Wait::Pipe | Wait::PageFault | Wait::Other => other(&thread.syscall_name),
    }
}

/// Of a thread that no signal wakes: whether its call is one of file systems. A page fault that lasts reads a file.
fn waits_for_files(thread: &WaitingThread, wait: Wait) -> bool {
    const CALLS: [&str; 24] = [
        "mkdir",
        "mkdirat",
        "rmdir",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
        "symlink",
        "symlinkat",
        "unlinkat",
        "truncate",
        "ftruncate",
        "fallocate",
        "chmod",
        "fchmod",
        "chown",
        "utimensat",
        "statx",
        "statfs",
        "sync",
        "syncfs",
        "msync",
        "io_submit",
    ];
    let file = matches!(thread.fd, FdKind::File | FdKind::Block);
    file || matches!(wait, Wait::File | Wait::PageFault) || CALLS.contains(&thread.syscall_name.as_str())
}

/// It waits for a UDP socket that is connected to a name server.
fn asks_names(thread: &WaitingThread) -> bool {
    let server = thread.target.parse::<std::net::SocketAddr>();
    thread.fd == FdKind::Udp && server.is_ok_and(|server| server.port() == NAMES_PORT)
}

fn polls(thread: &WaitingThread) -> bool {
    matches!(thread.syscall_name.as_str(), "poll" | "ppoll" | "select" | "pselect6")
}

fn receives<'a>(scene: &Scene<'a>, end: &'a WaitingEnd) -> Option<Doing<'a>> {
    match scene.debt(end) {
        _ if end.serves => None,
        Debt::Sure => Some(Doing::Reply(end)),
        Debt::Maybe => Some(Doing::Receive(end)),
        Debt::No => None,
    }
}

fn other<'a>(syscall: &str) -> Doing<'a> {
    match syscall {
        "flock" | "fcntl" | "semop" | "semtimedop" => Doing::FileLock,
        "wait4" | "waitid" => Doing::Child,
        // Signals are no request, and of a call that goes on after one it is not known which it is.
        _ if syscall == "restart_syscall" || ENDED_BY_SIGNALS.contains(&syscall) => Doing::Idle,
        _ => Doing::Kernel,
    }
}

/// Calls that nothing but a signal ends.
const ENDED_BY_SIGNALS: [&str; 3] = ["rt_sigtimedwait", "rt_sigsuspend", "pause"];

/// Nothing but a signal ends what the thread waits for.
pub fn waits_for_signals(thread: &WaitingThread) -> bool {
    thread.seen && ENDED_BY_SIGNALS.contains(&thread.syscall_name.as_str())
}
