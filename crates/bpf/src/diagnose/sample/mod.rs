//! CPU samples: opens perf events and decodes the samples.
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::diagnose::record_head::RecordHead;
use crate::diagnose::thread::{KSTACK_MAX, USTACK_MAX, head};

/// Samples per second and CPU: a prime near 100, so that samples do not coincide with periodic timers.
pub const SAMPLE_HZ: u64 = 97;

/// `struct sample_rec`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SampleWire {
    pub head: RecordHead,
    pub tgid: u32,
    pub nr: i32,
    pub user: u32,
    pub n_kstack: u32,
    pub n_ustack: u32,
    pub pad: u32,
    pub kstack: [u64; KSTACK_MAX],
    pub ustack: [u64; USTACK_MAX],
}

impl SampleWire {
    /// The kernel stack, innermost frame first.
    pub fn kernel_stack(&self) -> &[u64] {
        head(&self.kstack, self.n_kstack)
    }

    /// The user stack, innermost frame first.
    pub fn user_stack(&self) -> &[u64] {
        head(&self.ustack, self.n_ustack)
    }
}

/// The leading fields of `struct perf_event_attr` (uapi/linux/perf_event.h, PERF_ATTR_SIZE_VER0).
#[repr(C)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_freq: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
/// `perf_event_attr.freq`, bit 10 of the flags: `sample_freq` is a frequency, not a period.
const FLAG_FREQ: u64 = 1 << 10;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// Opens the sampling clock of one CPU.
pub fn open_clock(cpu: i32) -> io::Result<OwnedFd> {
    open_event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, SAMPLE_HZ, FLAG_FREQ, cpu)
}

/// Opens a tracepoint by its id. A program that is attached to it runs for the events of all CPUs; the CPU named here only
/// decides where the kernel counts events.
pub fn open_tracepoint(id: u64) -> io::Result<OwnedFd> {
    open_event(PERF_TYPE_TRACEPOINT, id, 0, 0, 0)
}

/// Opens a counter of the kernel's own (`PERF_COUNT_SW_*`) on one CPU, which reports each event.
pub fn open_software(counter: u64, cpu: i32) -> io::Result<OwnedFd> {
    // The field of the frequency is that of the period without the flag.
    open_event(PERF_TYPE_SOFTWARE, counter, 1, 0, cpu)
}

fn open_event(kind: u32, config: u64, sample_freq: u64, flags: u64, cpu: i32) -> io::Result<OwnedFd> {
    let attr = PerfEventAttr {
        kind,
        size: size_of::<PerfEventAttr>() as u32,
        config,
        sample_freq,
        sample_type: 0,
        read_format: 0,
        flags,
        wakeup_events: 0,
        bp_type: 0,
        config1: 0,
    };
    // SAFETY: `attr` is a valid perf_event_attr of the size it states and outlives the call; the other arguments are
    // plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor to us and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
