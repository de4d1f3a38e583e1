//! Figures that the kernel keeps of a loaded program.
use std::os::fd::{AsFd, AsRawFd};

use libbpf_sys::bpf_prog_info;

/// The kernel's figures of a program; zeros where it gives none.
pub fn of(program: &impl AsFd) -> bpf_prog_info {
    let mut info = bpf_prog_info::default();
    let mut len = size_of::<bpf_prog_info>() as u32;
    // SAFETY: `info` and `len` are valid for writes of the size that `len` states, and zeroed, so that the kernel
    // follows none of the pointers in it.
    let ret = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &mut info, &mut len) };
    if ret == 0 { info } else { bpf_prog_info::default() }
}

/// Events for which the kernel did not run a program, because they came in an interrupt of the same program on their CPU
/// (`bpf_prog_inc_misses_counter`; for tracepoints since Linux 6.1).
pub fn missed(program: &impl AsFd) -> u64 {
    of(program).recursion_misses
}
