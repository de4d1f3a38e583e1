//! Opening perf events (perf_event_open(2)): the one place that makes the call. The meaning of an event, and how it is read, is
//! the business of its users: `counters`, `perf_sampler`, `perf_probe`.
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;

const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// PERF_ATTR_SIZE_VER0, which every kernel accepts.
const SIZE: u32 = 64;

/// The leading fields of `struct perf_event_attr` (uapi/linux/perf_event.h), but for its size.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attr {
    /// PERF_TYPE_...
    pub kind: u32,
    /// The event of that type.
    pub config: u64,
    /// Events per sample, or samples per second.
    pub sample: u64,
    /// PERF_SAMPLE_...
    pub sample_type: u64,
    /// PERF_FORMAT_...
    pub read_format: u64,
    /// The bit fields: `disabled` is bit 0.
    pub flags: u64,
}

/// As the kernel reads it.
#[repr(C)]
struct Raw {
    kind: u32,
    size: u32,
    config: u64,
    sample: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    config1: u64,
}

/// The thread or CPU that an event counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// A thread's, on whatever CPU it runs; thread 0 is the caller.
    Thread(u32),
    /// A CPU's, whatever runs there.
    Cpu(u32),
}

/// Opens an event.
///
/// # Errors
/// Returns the kernel's error: ESRCH, EACCES, ENOENT for an event that the host does not have, ...
pub(crate) fn open(attr: Attr, of: Of) -> io::Result<File> {
    let Attr { kind, config, sample, sample_type, read_format, flags } = attr;
    let raw =
        Raw { kind, size: SIZE, config, sample, sample_type, read_format, flags, wakeup: 0, bp_type: 0, config1: 0 };
    const { assert!(size_of::<Raw>() == SIZE as usize) };
    let number = |n: u32| libc::pid_t::try_from(n).map_err(io::Error::other);
    let (tid, cpu) = match of {
        Of::Thread(tid) => (number(tid)?, -1),
        Of::Cpu(cpu) => (-1, number(cpu)?),
    };
    // SAFETY: `raw` is a valid perf_event_attr of the size it states and outlives the call; the rest are numbers.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw, tid, cpu, -1, PERF_FLAG_FD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel just returned this descriptor to us and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}
