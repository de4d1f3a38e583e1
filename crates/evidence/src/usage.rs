//! System calls and CPU time of the subject, and the time of the host's CPUs meanwhile: for users who want to see for themselves.
use serde::{Deserialize, Serialize};

use crate::thread::FdKind;

/// The time of a CPU over the window, by /proc/stat, and the packets that it received, by /proc/net/softnet_stat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Its number.
    pub cpu: u32,
    /// In user mode, at any nice value, guests included.
    pub user_ns: u64,
    /// In the kernel for processes.
    pub system_ns: u64,
    /// In interrupts.
    pub irq_ns: u64,
    /// In what interrupts left for later: packets, timers, block requests.
    pub softirq_ns: u64,
    /// Idle while a process waited for a disk.
    pub iowait_ns: u64,
    /// Idle otherwise.
    pub idle_ns: u64,
    /// Given to other guests by the hypervisor (steal).
    pub stolen_ns: u64,
    /// Packets received.
    pub packets: u64,
    /// Of these, those that were dropped because its backlog was full.
    pub dropped: u64,
    /// How often receiving stopped at its limit while packets were left.
    pub squeezed: u64,
}

/// A CPU of the host: shares of its time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuReport {
    /// Its number.
    pub cpu: u32,
    /// In user mode.
    pub user: f64,
    /// In the kernel for processes.
    pub system: f64,
    /// In interrupts.
    pub irq: f64,
    /// In what interrupts left for later.
    pub softirq: f64,
    /// Idle while a process waited for a disk.
    pub iowait: f64,
    /// Idle otherwise.
    pub idle: f64,
    /// Given to other guests by the hypervisor (steal).
    pub stolen: f64,
    /// Packets received per second.
    pub packets_per_s: f64,
    /// Packets that were dropped because its backlog was full.
    pub dropped: u64,
    /// How often receiving stopped at its limit while packets were left.
    pub squeezed: u64,
}

/// A system call of the subject on one kind of descriptor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallReport {
    /// Its name.
    pub syscall: String,
    /// The kind of its descriptor.
    pub fd: FdKind,
    /// Calls per second of the observed time.
    pub per_s: f64,
    /// On a CPU between its entry and its exit, a call. A tracer of calls mixes this with the next one.
    pub on_cpu_us: f64,
    /// Off the CPU between its entry and its exit, a call.
    pub off_cpu_us: f64,
    /// Of the CPU time of the subject's threads, the part in this call.
    pub cpu_share: f64,
    /// Bytes of a call that moved data; None for calls that move none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    /// Share of the calls that returned EAGAIN.
    pub again_share: f64,
    /// Share of the calls that returned another error.
    pub error_share: f64,
}
