//! Classifies a wait by its system call and descriptor, for the ledgers of threads and for critical paths alike.
use parshall_evidence::{FdKind, NO_SYSCALL, OffCpu, ThreadRecord};

use crate::stats::ratio;

/// The object that a sleeping thread waits for, by its system call and descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// Any of many descriptors, or a completion.
    Multiplex,
    /// Another thread.
    Futex,
    /// The clock.
    Sleep,
    /// Data from a socket.
    SocketReceive,
    /// Space in a socket.
    SocketSend,
    /// A connection.
    Accept,
    /// The answer of a peer to a connect.
    Connect,
    /// A pipe.
    Pipe,
    /// A disk.
    File,
    /// A page.
    PageFault,
    /// Anything else.
    Other,
}

impl Wait {
    /// From the call's name and the kind of its descriptor.
    pub fn of(name: &str, fd: FdKind, syscall: i32) -> Wait {
        let socket = matches!(fd, FdKind::Tcp | FdKind::Udp | FdKind::Unix | FdKind::Socket);
        match name {
            "epoll_wait" | "epoll_pwait" | "epoll_pwait2" | "poll" | "ppoll" | "select" | "pselect6"
            | "io_uring_enter" | "_newselect" => Wait::Multiplex,
            "futex" | "futex_wait" | "futex_waitv" => Wait::Futex,
            "nanosleep" | "clock_nanosleep" | "pause" => Wait::Sleep,
            "accept" | "accept4" => Wait::Accept,
            "connect" => Wait::Connect,
            "recvfrom" | "recvmsg" | "recvmmsg" => Wait::SocketReceive,
            "sendto" | "sendmsg" | "sendmmsg" => Wait::SocketSend,
            // For whoever holds the lock, on whatever it is.
            "flock" | "fcntl" => Wait::Other,
            "fsync" | "fdatasync" | "sync_file_range" | "openat" | "open" | "stat" | "newfstatat" | "unlink" => {
                Wait::File
            }
            _ if fd == FdKind::Pipe => Wait::Pipe,
            // A terminal takes what whoever shows it has read.
            "write" | "writev" if fd == FdKind::Char => Wait::Pipe,
            "read" | "readv" | "preadv" | "splice" if socket => Wait::SocketReceive,
            "write" | "writev" | "sendfile" | "sendfile64" if socket => Wait::SocketSend,
            _ if matches!(fd, FdKind::File | FdKind::Block) => Wait::File,
            "pread64" | "pwrite64" | "preadv" | "pwritev" => Wait::File,
            "" if syscall == NO_SYSCALL => Wait::PageFault,
            _ => Wait::Other,
        }
    }

    /// The thread waits for work to come, not for work to be done.
    pub fn is_for_work(self) -> bool {
        self.is_for_new_work() || self == Wait::SocketReceive
    }

    /// The same, without a receive, which may be that of an answer.
    pub fn is_for_new_work(self) -> bool {
        matches!(self, Wait::Multiplex | Wait::Accept)
    }
}

/// The share of its observed time that a thread was blocked in waits that `is` takes, by their kind and their system call; 0 where nothing
/// of it was observed.
pub fn blocked_share(thread: &ThreadRecord, is: impl Fn(Wait, &str) -> bool) -> f64 {
    let blocked = thread.off_cpu.iter().filter(|cell| cell.why == OffCpu::Blocked);
    let waits = blocked.filter(|cell| is(Wait::of(&cell.syscall_name, cell.fd, cell.syscall), &cell.syscall_name));
    ratio(waits.fold(0u64, |sum, cell| sum.saturating_add(cell.ns)) as f64, thread.observed_ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_classified_by_descriptor() {
        assert_eq!(Wait::of("read", FdKind::Tcp, 0), Wait::SocketReceive);
        assert_eq!(Wait::of("read", FdKind::File, 0), Wait::File);
        assert_eq!(Wait::of("read", FdKind::Pipe, 0), Wait::Pipe);
        assert_eq!(Wait::of("write", FdKind::Char, 0), Wait::Pipe);
        assert_eq!(Wait::of("read", FdKind::Char, 0), Wait::Other);
        assert_eq!(Wait::of("", FdKind::None, NO_SYSCALL), Wait::PageFault);
        assert_eq!(Wait::of("fsync", FdKind::File, 74), Wait::File);
        assert_eq!(Wait::of("flock", FdKind::File, 73), Wait::Other);
    }
}
