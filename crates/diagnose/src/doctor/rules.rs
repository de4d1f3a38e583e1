//! Derives checks and a rung from facts, without access to the host.
use parshall_bpf::kernel_release;
use parshall_evidence::Rung;
use parshall_host::lockdown::CONFIDENTIALITY;

use super::facts::{Attempt, Capability, Facts, Trial};

/// The first version with ring buffers, typed tracepoints with sleepable iterators, and CAP_BPF.
const BTF_KERNEL: (u32, u32) = (5, 8);
/// One observation holds maps, programs, links and perf events: about 60 descriptors and one per CPU and probe.
const FEW_FILES: u64 = 256;
/// Enough locked memory for the maps of one observation, where BPF memory counts against RLIMIT_MEMLOCK.
const MEMLOCK_NEEDED: u64 = 64 << 20;

/// The result of an examination.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    /// The kernel's release, or `unknown`.
    pub kernel: String,
    /// The best rung for this process.
    pub rung: Rung,
    /// The evidence of the rung, in one sentence.
    pub meaning: String,
    /// Why no higher rung is available; empty on the highest.
    pub why_not_higher: Vec<String>,
    pub checks: Vec<Check>,
}

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The same in all versions.
    pub id: &'static str,
    /// The name in the text report.
    pub name: &'static str,
    pub state: State,
    /// The finding.
    pub seen: String,
    /// The abilities that parshall lacks, when it is not `ok`.
    pub cost: Option<String>,
    /// How to change that, where it is possible.
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Ok,
    /// Available in part.
    Limited,
    Missing,
}

impl State {
    /// As both formats print it.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Missing => "missing",
        }
    }
}

/// Derives checks and rung from facts.
pub fn examine(facts: &Facts) -> Findings {
    let (rung, why_not_higher) = rung(facts);
    let checks = vec![
        privileges(facts),
        ptrace(facts),
        container(facts),
        kernel(facts),
        btf(facts),
        bpf(facts),
        bpf_ring(facts),
        probes(facts),
        lockdown(facts),
        unprivileged_bpf(facts),
        jit(facts),
        memlock(facts),
        tracefs(facts),
        cpu_samples(facts),
        hardware_counters(facts),
        function_tracing(facts),
        open_files(facts),
        cpu_quota(facts),
        schedstats(facts),
        hz(facts),
        congestion(facts),
    ];
    Findings {
        kernel: facts.kernel.clone().unwrap_or_else(|| "unknown".to_owned()),
        rung,
        meaning: meaning(rung).to_owned(),
        why_not_higher,
        checks,
    }
}

/// The best rung, and what prevents a better one. Order matters: the first reason is the one to fix first.
pub fn rung(facts: &Facts) -> (Rung, Vec<String>) {
    let mut no_bpf = Vec::new();
    if let Attempt::Refused(why) = &facts.bpf_map {
        no_bpf.push(format!("bpf(2) does not create maps: {why}"));
    }
    if let Attempt::Refused(why) = &facts.bpf_program {
        no_bpf.push(format!("bpf(2) does not load tracing programs: {why}"));
    }
    if !no_bpf.is_empty() {
        if !facts.may_load_bpf() {
            let lacks = "this process has neither CAP_BPF and CAP_PERFMON nor CAP_SYS_ADMIN";
            // First, because a narrow terminal shows the beginning only.
            let sudo = if facts.euid == Some(0) { "" } else { "run it with sudo: " };
            no_bpf.insert(0, format!("{sudo}{lacks}"));
        }
        if is_confidential(facts) {
            no_bpf.push(LOCKED_DOWN.to_owned());
        }
        return (Rung::Procfs, no_bpf);
    }
    if facts.pid_namespace == Some(true) && !facts.sees_host {
        let why = "in this pid namespace processes have other numbers than the probes see";
        return (Rung::Procfs, vec![format!("{why}: {}", host_pids(facts))]);
    }
    if is_confidential(facts) {
        return (Rung::Procfs, vec![LOCKED_DOWN.to_owned()]);
    }
    let mut no_btf = Vec::new();
    if facts.pid_namespace == Some(true) {
        no_btf.push(format!("the kernel shows only the processes of this pid namespace to its iterators: {HOST_PIDS}"));
    }
    if let Trial::Refused(why) = &facts.probes {
        no_btf.push(why.clone());
    }
    if !facts.btf {
        no_btf.push("/sys/kernel/btf/vmlinux cannot be read".to_owned());
    }
    if let Attempt::Refused(why) = &facts.bpf_ring_buffer {
        no_btf.push(format!("bpf(2) does not create ring buffers: {why}"));
    }
    if let Some((major, minor)) = facts.version().filter(|v| *v < BTF_KERNEL) {
        no_btf.push(format!("Linux {major}.{minor} is older than {}.{}", BTF_KERNEL.0, BTF_KERNEL.1));
    }
    if no_btf.is_empty() {
        return (Rung::Btf, Vec::new());
    }
    // The classic probes send their records through the same ring.
    if !facts.bpf_ring_buffer.works() {
        return (Rung::Procfs, no_btf);
    }
    if let Trial::Refused(why) = &facts.classic {
        no_btf.push(why.clone());
        return (Rung::Procfs, no_btf);
    }
    if facts.tracefs.is_some() {
        return (Rung::Tracepoint, no_btf);
    }
    no_btf.push("tracefs is not mounted or cannot be read, so classic tracepoints cannot be found either".to_owned());
    (Rung::Procfs, no_btf)
}

/// Why no program that reads the kernel's memory can be loaded.
const LOCKED_DOWN: &str =
    "the kernel is locked down (confidentiality) and refuses programs that read its memory, which all probes do";

fn is_confidential(facts: &Facts) -> bool {
    facts.lockdown.as_deref() == Some(CONFIDENTIALITY)
}

fn meaning(rung: Rung) -> &'static str {
    match rung {
        Rung::Btf => "every send, receive, ACK and timer of the subject's sockets can be timed",
        Rung::Tracepoint => {
            "threads are timed event by event; flows are sampled, so short stalls are not seen one by one"
        }
        Rung::Procfs => {
            "threads and flows are sampled from /proc and SOCK_DIAG; only long and frequent stalls are seen"
        }
    }
}

fn ok(id: &'static str, name: &'static str, seen: impl Into<String>) -> Check {
    Check { id, name, state: State::Ok, seen: seen.into(), cost: None, remedy: None }
}

impl Check {
    fn limited(self, cost: &str) -> Self {
        Check { state: State::Limited, cost: Some(cost.to_owned()), ..self }
    }

    fn missing(self, cost: &str) -> Self {
        Check { state: State::Missing, cost: Some(cost.to_owned()), ..self }
    }

    fn remedy(self, how: &str) -> Self {
        Check { remedy: Some(how.to_owned()), ..self }
    }
}

fn privileges(f: &Facts) -> Check {
    let held: Vec<&str> = Capability::ALL.into_iter().filter(|c| f.has(*c)).map(Capability::name).collect();
    let held = if held.is_empty() { "none of the capabilities".to_owned() } else { held.join(" ") };
    let who = match f.euid {
        Some(0) => "root".to_owned(),
        Some(uid) => format!("uid {uid}"),
        None => "unknown user".to_owned(),
    };
    let check = ok("privileges", "privileges", format!("{who}; {held}"));
    if f.may_load_bpf() && f.has(Capability::NetAdmin) {
        check
    } else if f.may_load_bpf() {
        check
            .limited("sockets in other network namespaces are not listed")
            .remedy("run as root, or add CAP_NET_ADMIN and CAP_SYS_ADMIN")
    } else {
        check.missing("no BPF probes: the rung is procfs").remedy(
            "run as root, or give CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (`sudo setcap` or the container's settings)",
        )
    }
}

fn ptrace(f: &Facts) -> Check {
    if f.has(Capability::SysPtrace) {
        return ok("other-processes", "other processes", "CAP_SYS_PTRACE");
    }
    ok("other-processes", "other processes", "no CAP_SYS_PTRACE")
        .limited("sockets of other users' processes have no owner, and their functions have no names")
        .remedy("run as root, or add CAP_SYS_PTRACE")
}

/// How parshall gets to see the host's processes, with the host's numbers.
fn host_pids(f: &Facts) -> String {
    match &f.host_proc {
        Some(proc) => {
            format!("use the host's /proc: `unshare --mount sh -c 'mount --bind {proc} /proc && parshall ...'`")
        }
        None => HOST_PIDS.to_owned(),
    }
}

const HOST_PIDS: &str = "run parshall on the host, or with the host's pid namespace (such as --pid=host)";

fn container(f: &Facts) -> Check {
    let (id, name) = ("namespaces", "namespaces");
    match (f.user_namespace, f.pid_namespace) {
        (Some(true), _) => ok(id, name, "own user namespace")
            .limited("root in this container is not root on the host: the kernel refuses BPF")
            .remedy("run parshall on the host, or in a privileged container"),
        (_, Some(true)) if f.sees_host => ok(id, name, "own pid namespace, with the host's /proc")
            .limited("no evidence of the rung btf, and no `run` and `try`")
            .remedy(HOST_PIDS),
        (_, Some(true)) => ok(id, name, "own pid namespace")
            .limited(
                "processes outside this container are not seen, and the kernel's process ids differ from those inside it",
            )
            .remedy(&host_pids(f)),
        (None, None) => ok(id, name, "could not be read"),
        _ => ok(id, name, "those of the host"),
    }
}

fn kernel(f: &Facts) -> Check {
    let seen = format!("{} on {}", f.kernel.as_deref().unwrap_or("unknown"), f.arch);
    let check = ok("kernel", "kernel", seen);
    match f.version() {
        Some(version) if version < BTF_KERNEL => check
            .limited("the rung btf needs Linux 5.8, and so does the BPF ring buffer where it was not backported")
            .remedy("use a newer kernel"),
        Some(_) => check,
        None => check.limited("the kernel's release could not be read; its features are known only from trials"),
    }
}

fn btf(f: &Facts) -> Check {
    if f.btf {
        return ok("btf", "kernel types (BTF)", "/sys/kernel/btf/vmlinux");
    }
    ok("btf", "kernel types (BTF)", "/sys/kernel/btf/vmlinux cannot be read")
        .missing("no typed tracepoints: flows are sampled, not timed event by event")
        .remedy("use a kernel built with CONFIG_DEBUG_INFO_BTF=y; inside a container, with sysfs mounted on /sys")
}

fn bpf(f: &Facts) -> Check {
    let (id, name) = ("bpf", "BPF programs");
    match (&f.bpf_map, &f.bpf_program) {
        (Attempt::Works, Attempt::Works) => ok(id, name, "a map was created and a tracing program loaded"),
        (Attempt::Refused(why), _) | (_, Attempt::Refused(why)) => ok(id, name, format!("refused: {why}"))
            .missing("no probes in the kernel: the rung is procfs")
            .remedy(bpf_remedy(f)),
    }
}

fn bpf_remedy(f: &Facts) -> &'static str {
    if is_confidential(f) {
        "boot with lockdown=integrity, or without lockdown"
    } else if f.user_namespace == Some(true) {
        "run parshall on the host, or in a privileged container"
    } else if !f.may_load_bpf() {
        "run as root"
    } else {
        "the privileges suffice, so a seccomp filter or a security module forbids it, or the kernel lacks CONFIG_BPF_SYSCALL"
    }
}

fn bpf_ring(f: &Facts) -> Check {
    match &f.bpf_ring_buffer {
        Attempt::Works => ok("bpf-ring-buffer", "BPF ring buffer", "one was created"),
        Attempt::Refused(why) => ok("bpf-ring-buffer", "BPF ring buffer", format!("refused: {why}"))
            .missing("the rungs btf and tracepoint need it")
            .remedy("Linux 5.8 or newer, and what `BPF programs` needs"),
    }
}

/// The programs that an observation loads.
fn probes(f: &Facts) -> Check {
    let (id, name) = ("probes", "probes");
    let remedy =
        if is_confidential(f) { "boot with lockdown=integrity, or without lockdown" } else { "use a newer kernel" };
    match (&f.probes, &f.classic) {
        (Trial::Works { missing, replaced }, _) if missing.is_empty() && replaced.is_empty() => {
            ok(id, name, "all were loaded and attached")
        }
        (Trial::Works { missing, replaced }, _) if missing.is_empty() => {
            ok(id, name, format!("all is observed; {}", replaced.join("; ")))
        }
        (Trial::Works { missing, replaced }, _) => ok(id, name, refused_in_part(missing, replaced))
            .limited("causes that need what is not seen are not tested")
            .remedy(remedy),
        (Trial::Refused(why), Trial::Works { .. }) => {
            ok(id, name, why.clone()).limited("flows are sampled, not timed event by event").remedy(remedy)
        }
        (Trial::NotTried, Trial::Works { .. }) => {
            ok(id, name, "those for kernels without BTF were loaded and attached")
        }
        (Trial::Refused(why), _) | (_, Trial::Refused(why)) => {
            ok(id, name, why.clone()).missing("no probes in the kernel: the rung is procfs").remedy(remedy)
        }
        (Trial::NotTried, Trial::NotTried) => ok(id, name, "not tried"),
    }
}

fn refused_in_part(missing: &[String], replaced: &[String]) -> String {
    let others = if replaced.is_empty() { "" } else { "; the rest is observed, " };
    format!("refused in part: {}{others}{}", missing.join("; "), replaced.join("; "))
}

fn lockdown(f: &Facts) -> Check {
    let (id, name) = ("lockdown", "kernel lockdown");
    match f.lockdown.as_deref() {
        None => ok(id, name, "the kernel has none"),
        Some(CONFIDENTIALITY) => ok(id, name, "confidentiality")
            .missing("the kernel refuses BPF programs that read its memory, which all probes do")
            .remedy("boot with lockdown=integrity, or without lockdown"),
        Some(mode) => ok(id, name, mode),
    }
}

fn unprivileged_bpf(f: &Facts) -> Check {
    // Probes need privileges in any case; the value only explains a refusal.
    let seen = match f.unprivileged_bpf_disabled {
        Some(0) => "allowed, but never for probes",
        Some(_) => "off, as usual; probes need privileges in any case",
        None => "could not be read",
    };
    ok("unprivileged-bpf", "unprivileged BPF", seen)
}

fn jit(f: &Facts) -> Check {
    let (id, name) = ("bpf-jit", "BPF JIT");
    match f.bpf_jit {
        Some(0) => ok(id, name, "off")
            .limited("probes are interpreted and cost several times as much")
            .remedy("sysctl net.core.bpf_jit_enable=1"),
        Some(_) => ok(id, name, "on"),
        None => ok(id, name, "no sysctl: always on, or could not be read"),
    }
}

fn memlock(f: &Facts) -> Check {
    let (id, name) = ("memlock", "locked memory");
    let seen = f.memlock_bytes.map_or("no limit".to_owned(), |b| format!("limit {} MiB", b >> 20));
    let counts = kernel_release::counts_locked_memory(f.version());
    match f.memlock_bytes {
        Some(bytes) if counts && bytes < MEMLOCK_NEEDED => ok(id, name, seen)
            .limited("before Linux 5.11 BPF maps count against it, and those of an observation do not fit")
            .remedy("ulimit -l unlimited"),
        _ if counts => ok(id, name, seen),
        _ => ok(id, name, format!("{seen}; this kernel charges BPF to the memory cgroup instead")),
    }
}

fn tracefs(f: &Facts) -> Check {
    match &f.tracefs {
        Some(at) => ok("tracefs", "tracefs", at.clone()),
        None => ok("tracefs", "tracefs", "not mounted, or not readable")
            .limited("classic tracepoints are not found, so the rung tracepoint is not available")
            .remedy("mount -t tracefs tracefs /sys/kernel/tracing"),
    }
}

fn cpu_samples(f: &Facts) -> Check {
    let paranoid = f.perf_event_paranoid.map_or(String::new(), |p| format!("; perf_event_paranoid {p}"));
    match &f.software_counter {
        Attempt::Works => ok("cpu-samples", "CPU samples", format!("cpu-clock works{paranoid}")),
        Attempt::Refused(why) => ok("cpu-samples", "CPU samples", format!("refused: {why}{paranoid}"))
            .missing("no CPU samples: what runs on a busy thread is not known")
            .remedy("run as root, or sysctl kernel.perf_event_paranoid=1"),
    }
}

fn hardware_counters(f: &Facts) -> Check {
    match &f.hardware_counter {
        Attempt::Works => ok("hardware-counters", "hardware counters", "cycles can be counted"),
        Attempt::Refused(why) => ok("hardware-counters", "hardware counters", format!("refused: {why}"))
            .missing("no cycles, instructions or cache misses; no verdict needs them")
            .remedy("bare metal, or a virtual machine with a virtual PMU"),
    }
}

fn function_tracing(f: &Facts) -> Check {
    let (id, name) = ("function-tracing", "fentry and kprobes");
    match (f.traceable_functions, f.kprobes) {
        (Some(true), true) => ok(id, name, "both"),
        (Some(true), false) => ok(id, name, "fentry only"),
        (_, true) => ok(id, name, "kprobes only").limited("a few details cost more to collect; no verdict needs them"),
        (seen, false) => {
            let why = if seen.is_none() { "no kprobes; fentry cannot be checked without tracefs" } else { "neither" };
            ok(id, name, why)
                .missing("events without a tracepoint are known from counters only; no verdict needs them")
                .remedy("a kernel with CONFIG_FUNCTION_TRACER=y and CONFIG_KPROBE_EVENTS=y")
        }
    }
}

fn open_files(f: &Facts) -> Check {
    let (id, name) = ("open-files", "open files");
    match f.open_files {
        Some(n) if n < FEW_FILES => {
            ok(id, name, format!("limit {n}")).limited("one observation may need more").remedy("ulimit -n 4096")
        }
        Some(n) => ok(id, name, format!("limit {n}")),
        None => ok(id, name, "no limit, or could not be read"),
    }
}

fn cpu_quota(f: &Facts) -> Check {
    let (id, name) = ("cpu-quota", "CPU quotas");
    match (f.cpu_controllers.v1, f.cpu_controllers.v2) {
        (_, true) => ok(id, name, "cgroup v2"),
        (true, false) => ok(id, name, "cgroup v1"),
        (false, false) => ok(id, name, "no cpu controller is mounted")
            .limited("whether a control group is throttled is not known")
            .remedy("mount the cgroup file system, also inside the container"),
    }
}

fn schedstats(f: &Facts) -> Check {
    let (id, name) = ("schedstats", "scheduler statistics");
    match f.schedstats {
        Some(0) => ok(id, name, "off; waits for a CPU come from tracepoints"),
        Some(_) => ok(id, name, "on"),
        None if f.bpf_program.works() => ok(id, name, "not in this kernel; waits for a CPU come from tracepoints"),
        None => ok(id, name, "not in this kernel").limited("without probes, single waits for a CPU are not timed"),
    }
}

fn hz(f: &Facts) -> Check {
    let seen = f.hz.map_or("unknown; no verdict needs it".to_owned(), |hz| {
        format!("CONFIG_HZ {hz}: timers are exact to {} ms", 1000 / hz.max(1))
    });
    ok("timer-tick", "timer tick", seen)
}

fn congestion(f: &Facts) -> Check {
    let default = f.congestion_default.as_deref().unwrap_or("unknown");
    let seen = match f.congestion_available.as_deref() {
        Some(all) => format!("{default} (of {all})"),
        None => default.to_owned(),
    };
    ok("congestion-control", "congestion control", seen)
}

#[cfg(test)]
mod tests;
