//! Facts that were found on the host: plain data, so that tests can apply the rules to other hosts.
use parshall_bpf::kernel_release;

/// A capability that a probe needs, and its bit (uapi/linux/capability.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Entering namespaces, reading the network state of other processes.
    NetAdmin = 12,
    /// Reading the descriptors and maps of other processes.
    SysPtrace = 19,
    /// Everything BPF before Linux 5.8; namespaces; mounting.
    SysAdmin = 21,
    /// perf events and tracing programs.
    Perfmon = 38,
    /// BPF maps and programs.
    Bpf = 39,
}

impl Capability {
    pub const ALL: [Capability; 5] =
        [Capability::Bpf, Capability::Perfmon, Capability::SysAdmin, Capability::NetAdmin, Capability::SysPtrace];

    pub fn name(self) -> &'static str {
        match self {
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
        }
    }
}

/// The outcome of a trial system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    Works,
    /// The kernel's error.
    Refused(String),
}

impl Attempt {
    pub fn works(&self) -> bool {
        *self == Attempt::Works
    }
}

/// The outcome of loading and attaching the programs that an observation uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trial {
    /// An observation finds out by itself.
    NotTried,
    /// It can be used.
    Works {
        /// Its gaps, a sentence each with the kernel's reason.
        missing: Vec<String>,
        /// Programs that are in the place of others, with the reason.
        replaced: Vec<String>,
    },
    /// It cannot be used, with the kernel's reason.
    Refused(String),
}

impl Trial {
    /// Everything can be used.
    pub fn all() -> Self {
        Trial::Works { missing: Vec::new(), replaced: Vec::new() }
    }
}

/// The hierarchies of control groups from which CPU quotas can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuControllers {
    /// A v1 hierarchy with the cpu controller is mounted.
    pub v1: bool,
    /// The v2 hierarchy has the cpu controller.
    pub v2: bool,
}

/// All that the rules use. `None` means that it could not be read, unless a field says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Effective user id.
    pub euid: Option<u32>,
    /// Effective capabilities, a bit mask.
    pub capabilities: u64,
    /// This process has its own user namespace (its root is not the host's).
    pub user_namespace: Option<bool>,
    /// This process is in a PID namespace other than the host's. The kernel's iterators show it the processes of that one only.
    pub pid_namespace: Option<bool>,
    /// /proc is the host's, as in a container that has mounted it there.
    pub sees_host: bool,
    /// Another directory at which the host's /proc is mounted.
    pub host_proc: Option<String>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Machine architecture.
    pub arch: &'static str,
    /// `/sys/kernel/btf/vmlinux` can be read.
    pub btf: bool,
    /// The directory at which tracefs can be read, or a sentence that parshall mounts a private instance.
    pub tracefs: Option<String>,
    /// Lockdown mode: `none`, `integrity` or `confidentiality`; None when the kernel has no lockdown.
    pub lockdown: Option<String>,
    /// `kernel.unprivileged_bpf_disabled`.
    pub unprivileged_bpf_disabled: Option<i64>,
    /// `kernel.perf_event_paranoid`.
    pub perf_event_paranoid: Option<i64>,
    /// A BPF map was created.
    pub bpf_map: Attempt,
    /// A BPF ring buffer was created.
    pub bpf_ring_buffer: Attempt,
    /// A BPF tracing program was loaded.
    pub bpf_program: Attempt,
    /// The programs for kernels with BTF.
    pub probes: Trial,
    /// The programs for other kernels; only tried where those for BTF were refused.
    pub classic: Trial,
    /// The JIT: 0 off, 1 on, 2 debug.
    pub bpf_jit: Option<i64>,
    /// A software counter was opened.
    pub software_counter: Attempt,
    /// The cycle counter was opened.
    pub hardware_counter: Attempt,
    /// The kernel lists functions that can be traced (fentry).
    pub traceable_functions: Option<bool>,
    /// The kernel has a kprobe event source.
    pub kprobes: bool,
    /// Soft limit on locked memory in bytes; None without a limit.
    pub memlock_bytes: Option<u64>,
    /// Soft limit on open files.
    pub open_files: Option<u64>,
    /// CONFIG_HZ.
    pub hz: Option<u32>,
    /// `kernel.sched_schedstats`; None when the kernel has none.
    pub schedstats: Option<i64>,
    /// CPU quotas.
    pub cpu_controllers: CpuControllers,
    /// `net.ipv4.tcp_congestion_control`.
    pub congestion_default: Option<String>,
    /// `net.ipv4.tcp_available_congestion_control`.
    pub congestion_available: Option<String>,
}

impl Facts {
    /// Whether a capability is held.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities & (1 << capability as u32) != 0
    }

    /// Whether it may load the probes: with CAP_SYS_ADMIN, or with CAP_BPF and CAP_PERFMON, which Linux 5.8 split off from it.
    pub fn may_load_bpf(&self) -> bool {
        self.has(Capability::SysAdmin) || (self.has(Capability::Bpf) && self.has(Capability::Perfmon))
    }

    /// Major and minor kernel version.
    pub fn version(&self) -> Option<(u32, u32)> {
        kernel_release::version(self.kernel.as_deref()?)
    }
}
