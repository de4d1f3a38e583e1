//! Converts the probes' cells of a thread to those of a capture.
use parshall_bpf::diagnose::syscall::{SysKey, SysValue};
use parshall_bpf::diagnose::thread::{OffKey, OffValue, fd_kind, off_cpu};
use parshall_core::sorting::StableSort as _;
use parshall_evidence::{OffCpuCell, SyscallCell};

use super::syscall_name::syscall_name;

/// Time off the CPU, in descending order.
pub fn off_cells(cells: Option<&Vec<(OffKey, OffValue)>>) -> Vec<OffCpuCell> {
    let mut out: Vec<OffCpuCell> = cells
        .into_iter()
        .flatten()
        .map(|(key, value)| OffCpuCell {
            why: off_cpu(key.why),
            syscall: key.nr,
            syscall_name: syscall_name(key.nr).into_owned(),
            fd: fd_kind(key.fd),
            ns: value.ns,
            count: value.count,
        })
        .collect();
    out.stable_sort_by(|a, b| b.ns.cmp(&a.ns).then(a.syscall.cmp(&b.syscall)));
    out
}

/// System calls, the most frequent first.
pub fn call_cells(cells: Option<&Vec<(SysKey, SysValue)>>) -> Vec<SyscallCell> {
    let mut out: Vec<SyscallCell> = cells
        .into_iter()
        .flatten()
        .map(|(key, value)| SyscallCell {
            syscall: key.nr,
            name: syscall_name(key.nr).into_owned(),
            fd: fd_kind(key.fd as u8),
            count: value.count,
            errors: value.errors,
            eagain: value.eagain,
            bytes: value.bytes,
            on_cpu_ns: value.on_ns,
            off_cpu_ns: value.off_ns,
        })
        .collect();
    out.stable_sort_by(|a, b| b.count.cmp(&a.count).then(a.syscall.cmp(&b.syscall)));
    out
}
