//! The system call in which a blocked thread waits, and the kind of its descriptor.
//!
//! /proc/TID/syscall has both, for those who may trace the thread (PTRACE_MODE_ATTACH; Yama restricts that). Others read
//! /proc/TID/wchan, the kernel function that the thread sleeps in, from which the call is guessed.
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use parshall_evidence::FdKind;
use parshall_sys::{cached_stat, sock_view};

use super::thread_account::{Call, Seen, UNKNOWN_CALL};
use crate::syscall_name::syscall_name;
use parshall_host::timed_worker::TimedWorker;

/// Entries of a pollfd array that are read.
const POLLFDS_MAX: usize = 8;
/// `struct pollfd`.
const POLLFD_BYTES: usize = 8;

/// A process, an address in its memory and a length.
type MemoryRange = (u32, u64, usize);

thread_local! {
    static MEMORY: RefCell<TimedWorker<MemoryRange, Option<Vec<u8>>>> =
        const { RefCell::new(TimedWorker::new(|| Box::new(read_memory))) };
    static MODES: RefCell<TimedWorker<String, Option<u32>>> =
        const { RefCell::new(TimedWorker::new(|| Box::new(|path| cached_stat::mode(Path::new(&path)).ok()))) };
}

fn read_memory((pid, address, length): MemoryRange) -> Option<Vec<u8>> {
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
    In { nr: i32, args: [u64; 2] },
}

/// Parses the text of a `syscall` file; None when it has another form.
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
    /// Adds the kind of the descriptor, which is looked up in the process.
    pub fn seen(self, pid: u32) -> Seen {
        match self {
            SyscallFile::Running => Seen::Running,
            SyscallFile::Outside => Seen::Blocked(UNKNOWN_CALL),
            SyscallFile::In { nr, args } => Seen::Blocked(Call { syscall: nr, fd: descriptor_kind(pid, nr, args) }),
        }
    }
}

/// Whether a call's first argument is a descriptor; of calls that can block.
pub fn takes_descriptor(name: &str) -> bool {
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

/// The kind of descriptor `fd` of a process; `None` also when it cannot be read.
pub fn kind_of(pid: u32, fd: i32) -> FdKind {
    let path = format!("/proc/{pid}/fd/{fd}");
    match fs::read_link(&path) {
        Ok(link) => kind_of_link(&path, &link.to_string_lossy()),
        Err(_) => FdKind::None,
    }
}

/// The kind of the descriptor at `path` (/proc/PID/fd/N), which the kernel's link describes as `link`. Only a link that names a
/// file is followed, because its file system may not answer.
pub fn kind_of_link(path: &str, link: &str) -> FdKind {
    if link.starts_with("socket:[") {
        return socket_kind(&sock_view::protocol_name(Path::new(path)).unwrap_or_default());
    }
    if link.starts_with("pipe:[") {
        return FdKind::Pipe;
    }
    if link.starts_with("anon_inode:") {
        return FdKind::Anon;
    }
    match MODES.with_borrow_mut(|modes| modes.call(path.to_owned())).flatten().map(|mode| mode & libc::S_IFMT) {
        None => FdKind::None,
        Some(libc::S_IFREG | libc::S_IFDIR) => FdKind::File,
        Some(libc::S_IFIFO) => FdKind::Pipe,
        Some(libc::S_IFCHR) => FdKind::Char,
        Some(libc::S_IFBLK) => FdKind::Block,
        Some(_) => FdKind::Anon,
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

/// `length` bytes, or fewer, at an address of a process. Its page may belong to a file that cannot be read: no answer in time is
/// None.
pub fn memory(pid: u32, address: u64, length: usize) -> Option<Vec<u8>> {
    MEMORY.with_borrow_mut(|memory| memory.call((pid, address, length))).flatten()
}

/// poll() waits for several descriptors. A UDP socket among them decides (a resolver waits there), otherwise the first one does.
/// The array is in the memory of the process, which sleeps meanwhile.
fn polled_kind(pid: u32, address: u64, count: u64) -> FdKind {
    let wanted = (count as usize).min(POLLFDS_MAX) * POLLFD_BYTES;
    let bytes = memory(pid, address, wanted).unwrap_or_default();
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
    use std::io::{BufRead, BufReader};
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

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
    fn finds_kinds_of_descriptors() {
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

    /// Holds a descriptor (O_PATH) of a FUSE file system that no server answers for, in a mount namespace of its own.
    const UNANSWERED_FUSE: &str = r#"
import ctypes, os, sys, tempfile
libc = ctypes.CDLL(None, use_errno=True)
PRIVATE = 1 << 18 | 1 << 14
if libc.unshare(0x20000) or libc.mount(b'none', b'/', None, PRIVATE, None):
    sys.exit(1)
with tempfile.TemporaryDirectory() as directory:
    device = os.open('/dev/fuse', os.O_RDWR)
    options = f'fd={device},rootmode=40000,user_id=0,group_id=0,allow_other'
    if libc.mount(b'test', directory.encode(), b'fuse', 0, options.encode()):
        sys.exit(1)
    held = os.open(directory, os.O_PATH)
    libc.umount2(directory.encode(), 2)
print(held, flush=True)
sys.stdin.read()
"#;

    #[test]
    fn a_file_system_that_does_not_answer_is_not_waited_for() {
        const WHAT: &str = "a descriptor on a FUSE file system that does not answer";
        if !parshall_testkit::root(WHAT) {
            return;
        }
        let mut command = Command::new("python3");
        command.args(["-c", UNANSWERED_FUSE]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut holder) = command.spawn() else { return parshall_testkit::skip(WHAT, "no python3") };
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("piped")).read_line(&mut line).expect("readable");
        let pid = holder.id();
        let kind = line.trim().parse().ok().map(|fd: i32| {
            let (sender, kind) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                // As for a socket whose descriptor was replaced after its link was read.
                let protocol = sock_view::protocol_name(Path::new(&format!("/proc/{pid}/fd/{fd}")));
                sender.send((kind_of(pid, fd), protocol.ok()))
            });
            kind.recv_timeout(Duration::from_secs(5))
        });
        // The connection ends with the only descriptor of /dev/fuse, and so does every wait for it.
        holder.kill().expect("our own child");
        holder.wait().expect("our own child");
        match kind {
            Some(kind) => assert_eq!(kind, Ok((FdKind::File, None))),
            None => parshall_testkit::skip(WHAT, "no FUSE, or it cannot be mounted"),
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
