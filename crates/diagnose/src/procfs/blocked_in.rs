//! What a blocked thread waits in: its system call and the kind of its descriptor.
//!
//! /proc/TID/syscall tells both, to whoever may trace the thread (PTRACE_MODE_ATTACH; Yama narrows that). To others there is
//! /proc/TID/wchan, the kernel function it sleeps in, from which the call is guessed.
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use parshall_evidence::FdKind;
use parshall_sys::sock_view;

use super::thread_account::{Call, Seen, UNKNOWN_CALL};
use crate::syscall_name::syscall_name;
use parshall_host::asker::Asker;

/// Entries of a pollfd array that are read.
const POLLFDS_MAX: usize = 8;
/// `struct pollfd`.
const POLLFD_BYTES: usize = 8;

/// A process, an address in its memory and a length.
type Place = (u32, u64, usize);

thread_local! {
    static MEMORY: RefCell<Asker<Place, Option<Vec<u8>>>> = const { RefCell::new(Asker::new(|| Box::new(read_memory))) };
}

fn read_memory((pid, address, length): Place) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    let read = File::open(format!("/proc/{pid}/mem")).ok()?.read_at(&mut bytes, address).ok()?;
    bytes.truncate(read);
    Some(bytes)
}

/// The text of a `syscall` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyscallFile {
    /// `running`: on a CPU or waiting for one.
    Running,
    /// Blocked outside of a system call (a page fault).
    Outside,
    /// Blocked in a call, with its first two arguments.
    In {
        /// Number.
        nr: i32,
        /// First two arguments.
        args: [u64; 2],
    },
}

/// Reads the text of a `syscall` file; None when it makes no sense.
pub fn parse_syscall(text: &str) -> Option<SyscallFile> {
    let mut fields = text.split_whitespace();
    let first = fields.next()?;
    if first == "running" {
        return Some(SyscallFile::Running);
    }
    let nr: i32 = first.parse().ok()?;
    if nr < 0 {
        return Some(SyscallFile::Outside);
    }
    let mut hex = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
    Some(SyscallFile::In { nr, args: [hex()?, hex()?] })
}

impl SyscallFile {
    /// With the kind of the descriptor, looked up in the process.
    pub fn seen(self, pid: u32) -> Seen {
        match self {
            SyscallFile::Running => Seen::Running,
            SyscallFile::Outside => Seen::Blocked(UNKNOWN_CALL),
            SyscallFile::In { nr, args } => Seen::Blocked(Call { syscall: nr, fd: descriptor_kind(pid, nr, args) }),
        }
    }
}

/// Calls whose first argument is a descriptor, as far as they block.
fn takes_descriptor(name: &str) -> bool {
    matches!(
        name,
        "read"
            | "write"
            | "readv"
            | "writev"
            | "pread64"
            | "pwrite64"
            | "preadv"
            | "pwritev"
            | "preadv2"
            | "pwritev2"
            | "recvfrom"
            | "sendto"
            | "recvmsg"
            | "sendmsg"
            | "recvmmsg"
            | "sendmmsg"
            | "accept"
            | "accept4"
            | "connect"
            | "epoll_wait"
            | "epoll_pwait"
            | "epoll_pwait2"
            | "fsync"
            | "fdatasync"
            | "sync_file_range"
            | "sendfile"
            | "splice"
            | "tee"
            | "vmsplice"
            | "copy_file_range"
            | "io_uring_enter"
            | "ioctl"
            | "fcntl"
            | "flock"
            | "getdents64"
            | "fallocate"
            | "ftruncate"
            | "close"
    )
}

fn descriptor_kind(pid: u32, nr: i32, args: [u64; 2]) -> FdKind {
    let name = syscall_name(nr);
    if takes_descriptor(&name) {
        return kind_of(pid, args[0] as i32);
    }
    if matches!(&*name, "poll" | "ppoll") {
        return polled_kind(pid, args[0], args[1]);
    }
    FdKind::None
}

/// What descriptor `fd` of a process is.
pub fn kind_of(pid: u32, fd: i32) -> FdKind {
    if fd < 0 {
        return FdKind::None;
    }
    let path = format!("/proc/{pid}/fd/{fd}");
    let Ok(metadata) = fs::metadata(&path) else { return FdKind::None };
    let kind = metadata.file_type();
    if kind.is_socket() {
        return socket_kind(&sock_view::protocol_name(Path::new(&path)).unwrap_or_default());
    }
    if kind.is_file() || kind.is_dir() {
        FdKind::File
    } else if kind.is_fifo() {
        FdKind::Pipe
    } else if kind.is_char_device() {
        FdKind::Char
    } else if kind.is_block_device() {
        FdKind::Block
    } else {
        FdKind::Anon
    }
}

fn socket_kind(protocol: &str) -> FdKind {
    if protocol.starts_with("TCP") || protocol.starts_with("MPTCP") {
        FdKind::Tcp
    } else if protocol.starts_with("UDP") {
        FdKind::Udp
    } else if protocol.starts_with("UNIX") {
        FdKind::Unix
    } else {
        FdKind::Socket
    }
}

/// poll() waits for several descriptors: a UDP socket among them is what matters (a resolver), else the first one counts. The
/// array lies in the memory of the process, which sleeps meanwhile; the page may be one of a file that does not answer.
fn polled_kind(pid: u32, address: u64, count: u64) -> FdKind {
    let wanted = (count as usize).min(POLLFDS_MAX) * POLLFD_BYTES;
    let bytes = MEMORY.with_borrow_mut(|memory| memory.ask((pid, address, wanted))).flatten().unwrap_or_default();
    let mut first = FdKind::None;
    for pollfd in bytes.chunks_exact(POLLFD_BYTES) {
        let fd = i32::from_ne_bytes([pollfd[0], pollfd[1], pollfd[2], pollfd[3]]);
        let kind = kind_of(pid, fd);
        if kind == FdKind::Udp {
            return kind;
        }
        if first == FdKind::None {
            first = kind;
        }
    }
    first
}

/// Guesses the call from the kernel function that a thread sleeps in.
pub fn call_of_wchan(function: &str) -> Call {
    let call = |syscall: libc::c_long, fd| Call { syscall: syscall as i32, fd };
    match function {
        "ep_poll" | "do_epoll_wait" => call(libc::SYS_epoll_pwait, FdKind::Anon),
        "hrtimer_nanosleep" | "do_nanosleep" | "common_nsleep" => call(libc::SYS_clock_nanosleep, FdKind::None),
        "poll_schedule_timeout" | "do_sys_poll" | "do_poll" => call(libc::SYS_ppoll, FdKind::None),
        "do_select" => call(libc::SYS_pselect6, FdKind::None),
        "pipe_read" | "anon_pipe_read" | "pipe_wait_readable" => call(libc::SYS_read, FdKind::Pipe),
        "pipe_write" | "anon_pipe_write" | "pipe_wait_writable" => call(libc::SYS_write, FdKind::Pipe),
        "inet_csk_accept" | "inet_csk_wait_for_connect" => call(libc::SYS_accept4, FdKind::Tcp),
        "sk_wait_data" => call(libc::SYS_recvfrom, FdKind::Socket),
        "sk_stream_wait_memory" => call(libc::SYS_sendto, FdKind::Socket),
        "unix_stream_read_generic" | "unix_stream_data_wait" => call(libc::SYS_recvfrom, FdKind::Unix),
        "__skb_wait_for_more_packets" => call(libc::SYS_recvfrom, FdKind::Socket),
        "io_cqring_wait" => call(libc::SYS_io_uring_enter, FdKind::Anon),
        "do_wait" | "kernel_wait4" => call(libc::SYS_wait4, FdKind::None),
        "do_sigtimedwait" => call(libc::SYS_rt_sigtimedwait, FdKind::None),
        name if name.starts_with("futex_") => call(libc::SYS_futex, FdKind::None),
        _ => UNKNOWN_CALL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn reads_the_syscall_file() {
        assert_eq!(parse_syscall("running\n"), Some(SyscallFile::Running));
        assert_eq!(parse_syscall("-1 0x7ffd 0x55\n"), Some(SyscallFile::Outside));
        let read = parse_syscall("0 0x3 0x7f1a70710000 0x20000 0x7f 0xffffffff 0x0 0x7f 0x7f\n");
        assert_eq!(read, Some(SyscallFile::In { nr: 0, args: [3, 0x7f1a_7071_0000] }));
        for text in ["", "x", "0", "0 3", "0 0x3", "0 0xq 0x1"] {
            assert_eq!(parse_syscall(text), None, "{text:?}");
        }
    }

    #[test]
    fn tells_kinds_of_descriptors() {
        let own = std::process::id();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let (pipe, _writer) = std::io::pipe().expect("a pipe");
        let null = File::open("/dev/null").expect("/dev/null opens");
        let file = tempfile::tempfile().expect("a temporary file");
        for (fd, kind) in [
            (udp.as_raw_fd(), FdKind::Udp),
            (tcp.as_raw_fd(), FdKind::Tcp),
            (unix.as_raw_fd(), FdKind::Unix),
            (pipe.as_raw_fd(), FdKind::Pipe),
            (null.as_raw_fd(), FdKind::Char),
            (file.as_raw_fd(), FdKind::File),
            (-1, FdKind::None),
            (1_000_000, FdKind::None),
        ] {
            assert_eq!(kind_of(own, fd), kind);
        }
    }

    #[test]
    fn finds_the_udp_socket_in_a_pollfd_array() {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let null = File::open("/dev/null").expect("/dev/null opens");
        let array: Vec<i32> = vec![null.as_raw_fd(), 1, udp.as_raw_fd(), 1];
        let kind = polled_kind(std::process::id(), array.as_ptr() as u64, 2);
        assert_eq!(kind, FdKind::Udp);
    }

    #[test]
    fn guesses_from_wchan() {
        assert_eq!(syscall_name(call_of_wchan("ep_poll").syscall), "epoll_pwait");
        assert_eq!(syscall_name(call_of_wchan("futex_wait_queue").syscall), "futex");
        assert_eq!(call_of_wchan("0"), UNKNOWN_CALL);
    }
}
