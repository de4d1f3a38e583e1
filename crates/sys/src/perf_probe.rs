//! Trial system calls that show what this host allows: performance counters and the parts of bpf(2).
//!
//! Each function makes the call once and releases the result at once. Sysctls alone do not show what is permitted: seccomp
//! filters, lockdown and security modules may refuse as well.
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::perf_event;

/// Whether the processor's cycle counter can be opened for this process.
pub fn hardware_counter() -> io::Result<()> {
    // PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES (uapi/linux/perf_event.h).
    open_counter(0, 0)
}

/// Whether the `cpu-clock` software counter can be opened: what CPU samples are driven by.
pub fn software_counter() -> io::Result<()> {
    // PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK.
    open_counter(1, 0)
}

/// Whether a BPF array map can be created, so that bpf(2) exists and is permitted.
pub fn bpf_map() -> io::Result<()> {
    // BPF_MAP_TYPE_ARRAY.
    create_map(2, 4, 4, 1)
}

/// Whether a BPF ring buffer can be created (since kernel 5.8).
pub fn bpf_ring_buffer() -> io::Result<()> {
    // BPF_MAP_TYPE_RINGBUF; its size is a power of two of pages, also where a page has 64 KiB.
    create_map(27, 0, 0, 1 << 16)
}

/// Whether a BPF program for classic tracepoints passes the verifier and its permissions.
pub fn bpf_tracing_program() -> io::Result<()> {
    // `r0 = 0; exit`: BPF_ALU64 | BPF_MOV | BPF_K, and BPF_JMP | BPF_EXIT.
    let program: [u64; 2] = [0x0000_0000_0000_00b7_u64.to_le(), 0x0000_0000_0000_0095_u64.to_le()];
    let licence = c"GPL";
    let attr = ProgLoad {
        // BPF_PROG_TYPE_TRACEPOINT.
        prog_type: 5,
        insn_cnt: 2,
        insns: program.as_ptr() as u64,
        license: licence.as_ptr() as u64,
        ..ProgLoad::default()
    };
    // BPF_PROG_LOAD. `program` and `licence` outlive the call.
    bpf(5, &attr).map(drop)
}

/// The part of `union bpf_attr` that BPF_MAP_CREATE reads.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// The part of `union bpf_attr` that BPF_PROG_LOAD reads.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// Types that the kernel may read as the beginning of a `union bpf_attr`.
///
/// # Safety
/// The type is `repr(C)`, without padding, and the addresses in it are valid for the call it is made for.
unsafe trait Attr {}
// SAFETY: five u32 in a row, no addresses.
unsafe impl Attr for MapCreate {}
// SAFETY: the u64 lie at multiples of 8 and the u32 come in pairs, so nothing is padded; the one function that builds it
// points to buffers that it still holds when it calls.
unsafe impl Attr for ProgLoad {}

fn create_map(map_type: u32, key_size: u32, value_size: u32, max_entries: u32) -> io::Result<()> {
    // BPF_MAP_CREATE.
    bpf(0, &MapCreate { map_type, key_size, value_size, max_entries, map_flags: 0 }).map(drop)
}

fn bpf<T: Attr>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of an initialised `repr(C)` value that lives until the call returns,
    // takes the rest of the union as zeros, and writes nothing (no log buffer is given).
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    owned(fd)
}

fn open_counter(kind: u32, config: u64) -> io::Result<()> {
    // Bit 0 `disabled`, bit 5 `exclude_kernel`, bit 6 `exclude_hv`: the smallest request.
    let attr = perf_event::Attr { kind, config, flags: 1 | 1 << 5 | 1 << 6, ..Default::default() };
    perf_event::open(attr, perf_event::Of::Thread(0)).map(drop)
}

/// A new descriptor returned by a system call.
fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    // SAFETY: the kernel has just returned this descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refusal by the host is no failure of the attempt; a malformed attribute (EINVAL, E2BIG, EFAULT) is.
    fn well_formed(result: io::Result<()>) {
        let code = result.err().and_then(|e| e.raw_os_error());
        assert!(!matches!(code, Some(libc::EINVAL | libc::E2BIG | libc::EFAULT | libc::EBADF)), "{code:?}");
    }

    #[test]
    fn attempts_are_well_formed() {
        well_formed(bpf_map());
        well_formed(bpf_ring_buffer());
        well_formed(bpf_tracing_program());
        well_formed(software_counter());
        well_formed(hardware_counter());
    }

    #[test]
    fn no_descriptor_is_left_open() {
        let count = || std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or(0);
        bpf_map().ok();
        let before = count();
        for _ in 0..32 {
            bpf_map().ok();
            software_counter().ok();
        }
        // Other tests of this process may open a few meanwhile.
        assert!(count() < before + 16);
    }
}
