//! A thread of the subject: where its time went and what it asked of the kernel.
use serde::{Deserialize, Serialize};

use crate::listed::listed;

listed! {
    /// The kind of object behind a descriptor. The discriminants are the wire numbers of `bpf/src/diagnose/records.h`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[repr(u8)]
    pub enum FdKind {
        /// The call takes no descriptor, or it could not be resolved.
        #[default]
        None = 0,
        /// A regular file or directory.
        File = 1,
        /// A pipe or FIFO.
        Pipe = 2,
        /// A TCP socket.
        Tcp = 3,
        /// A UDP socket.
        Udp = 4,
        /// A Unix-domain socket.
        Unix = 5,
        /// Another socket.
        Socket = 6,
        /// epoll, eventfd, timerfd, io_uring: inodes without a file type.
        Anon = 7,
        /// A character device, such as a terminal.
        Char = 8,
        /// A block device.
        Block = 9,
    }
}

impl FdKind {}

/// Why a thread was off the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum OffCpu {
    /// It slept until something woke it.
    Blocked = 0,
    /// It could run and waited for a CPU.
    Runnable = 1,
    /// It could run and its control group had used up its quota.
    Throttled = 2,
}

/// System call number that means "not in a system call" (a page fault, or preempted in user code).
pub const NO_SYSCALL: i32 = -1;

/// Time that a thread spent off the CPU in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffCpuCell {
    /// Why it was off.
    pub why: OffCpu,
    /// The system call it was in (the host's own numbers), or [`NO_SYSCALL`].
    pub syscall: i32,
    /// The name of that call, such as `epoll_wait`.
    pub syscall_name: String,
    /// The kind of the call's descriptor.
    pub fd: FdKind,
    /// Total time.
    pub ns: u64,
    /// Number of times.
    pub count: u64,
}

/// The calls of a thread of one system call on one kind of descriptor, in the observed time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyscallCell {
    /// The host's own number.
    pub syscall: i32,
    /// Its name.
    pub name: String,
    /// The kind of its descriptor.
    pub fd: FdKind,
    /// Calls that returned.
    pub count: u64,
    /// Of these, those that returned an error other than EAGAIN.
    pub errors: u64,
    /// Of these, those that returned EAGAIN.
    pub eagain: u64,
    /// Sum of the positive results of calls that move data.
    pub bytes: u64,
    /// Time between entry and exit that the thread was on a CPU.
    pub on_cpu_ns: u64,
    /// Time between entry and exit that it was off the CPU.
    pub off_cpu_ns: u64,
}

/// How a thread copies between sockets: receive on one, send on another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyPattern {
    /// Receives that were followed by a send of the same size on another socket.
    pub pairs: u64,
    /// Bytes of these pairs.
    pub bytes: u64,
    /// Receives on TCP sockets in all.
    pub recvs: u64,
    /// The commonest size of a receive.
    pub mode_bytes: u32,
    /// How many receives had that size (a lower bound: majority vote).
    pub mode_count: u64,
    /// Receives that left data unread.
    pub left_over: u64,
}

/// One thread over the observation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRecord {
    /// Thread id.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// When it began and ended within the window.
    pub begin_ns: u64,
    /// See `begin_ns`.
    pub end_ns: u64,
    /// CPU time over its whole life in the window, from the scheduler's own account (never scaled).
    pub cpu_ns: u64,
    /// Of `cpu_ns`, the share in user mode by the kernel's tick account; None when unknown.
    pub utime_ns: Option<u64>,
    /// Wall time that `on_cpu_ns` and `off_cpu` account for.
    pub observed_ns: u64,
    /// Time on a CPU within the observed time; `on_cpu_ns` + the sum of `off_cpu` is `observed_ns`.
    pub on_cpu_ns: u64,
    /// Time off the CPU within the observed time.
    pub off_cpu: Vec<OffCpuCell>,
    /// System calls in the observed time.
    pub syscalls: Vec<SyscallCell>,
    /// How it copies.
    pub copy: CopyPattern,
    /// Voluntary and forced switches within the window.
    pub switches: (u64, u64),
    /// CPU samples in user mode, over the whole window.
    pub samples_user: u64,
    /// CPU samples in kernel mode.
    pub samples_kernel: u64,
    /// Run-queue waits: number and the upper bounds of their 50th and 99th percentile, from a log2 histogram.
    pub runq: RunQueue,
}

/// Waits of a runnable thread for a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunQueue {
    /// Number of waits.
    pub count: u64,
    /// Total.
    pub ns: u64,
    /// Counts by log2 of the wait in microseconds: bucket 0 is < 1 us, bucket i is < 2^i us.
    pub log2_us: Vec<u64>,
}

/// One time off the CPU of at least [`crate::STALL_MIN_NS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStall {
    /// The thread.
    pub tid: u32,
    /// When it left the CPU.
    pub begin_ns: u64,
    /// How long it was off.
    pub ns: u64,
    /// Why.
    pub why: OffCpu,
    /// The system call it was in, or [`NO_SYSCALL`].
    pub syscall: i32,
    /// Its name.
    pub syscall_name: String,
    /// The kind of its descriptor.
    pub fd: FdKind,
    /// Its waker: thread id (0: an interrupt or nobody),
    pub waker_tid: u32,
    /// and name.
    pub waker_comm: String,
    /// The wake-up came from interrupt context, so the named waker is not the cause.
    pub waker_in_irq: bool,
    /// Stack of the sleeper and of the waker: index into [`crate::Capture::stacks`].
    pub stack: Option<u32>,
    /// See `stack`.
    pub waker_stack: Option<u32>,
}
