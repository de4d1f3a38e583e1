//! Decodes the ledgers, stalls and stacks that the thread probe reports.
use parshall_evidence::{FdKind, OffCpu};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::diagnose::record_head::RecordHead;

/// Most frames of a kernel stack.
pub const KSTACK_MAX: usize = 24;
/// Most frames of a user stack.
pub const USTACK_MAX: usize = 40;
/// Most bytes of a user stack's memory that are copied.
pub const MEMORY_MAX: usize = 16 << 10;

/// `struct thread_dump`: a thread's ledger. Times are CLOCK_MONOTONIC nanoseconds.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ThreadDump {
    pub at: u64,
    pub cpu_ns: u64,
    pub utime: u64,
    pub stime: u64,
    pub nvcsw: u64,
    pub nivcsw: u64,
    pub on_ns: u64,
    pub runq_ns: u64,
    pub copy_pairs: u64,
    pub copy_bytes: u64,
    pub copy_recvs: u64,
    pub copy_mode_count: u64,
    pub copy_left_over: u64,
    pub start_time: u64,
    pub tid: u32,
    pub tgid: u32,
    pub runq_count: u32,
    pub copy_mode: u32,
    pub runq_log2: [u32; 20],
    pub comm: [u8; 16],
    pub followed: u32,
    pub port_only: u32,
}

/// `struct thread_end_rec`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ThreadEndWire {
    pub head: RecordHead,
    pub dump: ThreadDump,
}

/// `struct thread_stall_rec`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ThreadStallWire {
    pub head: RecordHead,
    pub begin: u64,
    pub ns: u64,
    pub tgid: u32,
    pub seq: u32,
    pub nr: i32,
    pub fd: u8,
    pub why: u8,
    pub waker_irq: u8,
    pub followed: u8,
    pub waker_tid: u32,
    pub waker_comm: [u8; 16],
    pub n_kstack: u32,
    pub n_wstack: u32,
    pub waker_tgid: u32,
    pub kstack: [u64; KSTACK_MAX],
    pub wstack: [u64; KSTACK_MAX],
}

impl ThreadStallWire {
    /// The kernel stack of the thread that was off the CPU, innermost frame first.
    pub fn stack(&self) -> &[u64] {
        head(&self.kstack, self.n_kstack)
    }

    /// The kernel stack of the waker, innermost frame first.
    pub fn waker_stack(&self) -> &[u64] {
        head(&self.wstack, self.n_wstack)
    }

    /// Why the thread was off the CPU.
    pub fn why(&self) -> OffCpu {
        off_cpu(self.why)
    }
}

/// `struct user_stack_rec`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct UserStackWire {
    pub head: RecordHead,
    pub tgid: u32,
    pub seq: u32,
    pub n_ustack: u32,
    pub pad: u32,
    pub sp: u64,
    pub ustack: [u64; USTACK_MAX],
}

impl UserStackWire {
    /// The user stack, innermost frame first.
    pub fn stack(&self) -> &[u64] {
        head(&self.ustack, self.n_ustack)
    }
}

/// `struct user_memory_rec`: registers of user mode, and the memory of the user stack from `sp` on.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct UserMemoryWire {
    pub head: RecordHead,
    pub tgid: u32,
    pub seq: u32,
    pub ip: u64,
    pub sp: u64,
    pub fp: u64,
    pub lr: u64,
    pub n_memory: u32,
    pub pad: u32,
    pub memory: [u8; MEMORY_MAX],
}

impl UserMemoryWire {
    /// The copied part of the stack.
    pub fn memory(&self) -> &[u8] {
        &self.memory[..MEMORY_MAX.min(self.n_memory as usize)]
    }
}

/// `struct off_key`: the key of a cell of time off the CPU.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct OffKey {
    pub tid: u32,
    pub nr: i32,
    pub fd: u8,
    pub why: u8,
    pub pad: [u8; 2],
}

/// `struct off_value`: the value of a cell of time off the CPU.
#[derive(Debug, Clone, Copy, Default, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct OffValue {
    pub ns: u64,
    pub count: u64,
}

/// The first `n` addresses, up to the first zero.
pub(crate) fn head(stack: &[u64], n: u32) -> &[u64] {
    let used = &stack[..stack.len().min(n as usize)];
    &used[..used.iter().position(|&a| a == 0).unwrap_or(used.len())]
}

/// Decodes `enum fd_kind`.
pub fn fd_kind(wire: u8) -> FdKind {
    FdKind::ALL.get(usize::from(wire)).copied().unwrap_or_default()
}

/// Decodes `enum off_cpu`.
pub fn off_cpu(wire: u8) -> OffCpu {
    match wire {
        1 => OffCpu::Runnable,
        2 => OffCpu::Throttled,
        _ => OffCpu::Blocked,
    }
}
