//! Gathers facts about the host, without judging or changing anything.
use std::fs;
use std::io;
use std::path::Path;

use parshall_bpf::diagnose::classic::Classic;
use parshall_bpf::diagnose::classic::tracefs::Tracefs;
use parshall_bpf::diagnose::{Probes, Tried};
use parshall_bpf::kernel_release;
use parshall_host::{bounded_file, lockdown, mountinfo, proc_fs};
use parshall_sys::{limits, perf_probe};

use super::facts::{Attempt, CpuControllers, Facts, Trial};

/// Inode numbers of the initial namespaces (include/linux/proc_ns.h): PROC_USER_INIT_INO, PROC_PID_INIT_INO.
const INITIAL_USER_NS: u64 = 0xEFFF_FFFD;
const INITIAL_PID_NS: u64 = 0xEFFF_FFFC;

/// Everything at once, with a trial of the probes: what an observation loads is loaded and attached, which takes a tenth of a second.
pub fn gather_with_trial() -> Facts {
    let mut facts = gather();
    if facts.btf {
        facts.probes = match Probes::trial() {
            Ok(Tried { missing, replaced, .. }) => {
                Trial::Works { missing: missing.iter().map(ToString::to_string).collect(), replaced }
            }
            Err(error) => Trial::Refused(error.to_string()),
        };
    }
    if !matches!(facts.probes, Trial::Works { .. }) || facts.pid_namespace == Some(true) {
        facts.classic = match Classic::trial() {
            Ok(()) => Trial::all(),
            Err(error) => Trial::Refused(error.to_string()),
        };
    }
    facts
}

/// Everything but a trial of the probes; takes a few milliseconds. Where the kernel counts BPF memory against the limit on locked
/// memory, the limit is raised first.
pub fn gather() -> Facts {
    if kernel_release::counts_locked_memory(kernel_release::running()) {
        limits::raise_locked_memory();
    }
    let status = text("/proc/self/status").unwrap_or_default();
    let limits = text("/proc/self/limits").unwrap_or_default();
    let kernel = text("/proc/sys/kernel/osrelease");
    let (tracefs, mounts) = (Tracefs::open(), mountinfo::read());
    Facts {
        euid: field(&status, "Uid:").and_then(|v| v.split_whitespace().nth(1)?.parse().ok()),
        capabilities: field(&status, "CapEff:").and_then(|v| u64::from_str_radix(v, 16).ok()).unwrap_or(0),
        user_namespace: namespace("/proc/self/ns/user").map(|inode| inode != INITIAL_USER_NS),
        pid_namespace: namespace("/proc/self/ns/pid").map(|inode| inode != INITIAL_PID_NS),
        sees_host: is_of_host(Path::new("/proc")),
        host_proc: host_proc(&mounts),
        hz: kernel.as_deref().and_then(hz),
        kernel,
        arch: std::env::consts::ARCH,
        btf: fs::File::open("/sys/kernel/btf/vmlinux").is_ok(),
        traceable_functions: tracefs.as_ref().map(|t| t.path().join("available_filter_functions").exists()),
        tracefs: tracefs.map(|t| match t {
            Tracefs::Mounted(path) => path.display().to_string(),
            Tracefs::Detached(_) => "not mounted; parshall mounts a private instance".to_owned(),
        }),
        lockdown: lockdown::mode(),
        unprivileged_bpf_disabled: number("/proc/sys/kernel/unprivileged_bpf_disabled"),
        perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
        bpf_map: attempt(perf_probe::bpf_map()),
        bpf_ring_buffer: attempt(perf_probe::bpf_ring_buffer()),
        bpf_program: attempt(perf_probe::bpf_tracing_program()),
        probes: Trial::NotTried,
        classic: Trial::NotTried,
        bpf_jit: number("/proc/sys/net/core/bpf_jit_enable"),
        software_counter: attempt(perf_probe::software_counter()),
        hardware_counter: attempt(perf_probe::hardware_counter()),
        kprobes: Path::new("/sys/bus/event_source/devices/kprobe").exists(),
        memlock_bytes: limit(&limits, "Max locked memory"),
        open_files: limit(&limits, "Max open files"),
        schedstats: number("/proc/sys/kernel/sched_schedstats"),
        cpu_controllers: cpu_controllers(&mounts),
        congestion_default: text("/proc/sys/net/ipv4/tcp_congestion_control"),
        congestion_available: text("/proc/sys/net/ipv4/tcp_available_congestion_control"),
    }
}

fn attempt(result: io::Result<()>) -> Attempt {
    match result {
        Ok(()) => Attempt::Works,
        Err(error) => Attempt::Refused(error.to_string()),
    }
}

/// The content of a file without white space, and without the byte 0 that some files of /proc end with.
pub(super) fn text(path: &str) -> Option<String> {
    bounded_file::text(path).ok().map(|t| t.trim_end_matches('\0').trim().to_owned())
}

fn number(path: &str) -> Option<i64> {
    text(path)?.parse().ok()
}

/// The value behind a key of /proc/self/status.
pub(super) fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|l| l.strip_prefix(key)).map(str::trim)
}

/// The soft limit of a row of /proc/self/limits; None for `unlimited`.
fn limit(limits: &str, name: &str) -> Option<u64> {
    limits.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// The inode number of a namespace, from a link such as `user:[4026531837]`.
fn namespace(link: impl AsRef<Path>) -> Option<u64> {
    fs::read_link(link).ok()?.to_str()?.split(['[', ']']).nth(1)?.parse().ok()
}

/// Containers that observe their host have its /proc mounted somewhere.
fn host_proc(table: &[u8]) -> Option<String> {
    let mounted = mountinfo::mounts(table).filter(|mount| mount.kind == b"proc").map(|mount| mount.point());
    let found = mounted.into_iter().find(|point| point != Path::new("/proc") && is_of_host(point))?;
    Some(found.display().to_string())
}

/// Whether this is the /proc of the host: the second process there, and nowhere else, is the kernel thread that starts all others.
fn is_of_host(proc: &Path) -> bool {
    let stat = bounded_file::text(proc.join("2/stat"));
    stat.is_ok_and(|text| proc_fs::parse_stat(&text).is_some_and(|stat| stat.kernel_thread))
}

/// The kernel's configuration, where the distribution installs it as plain text.
pub(super) fn configuration(release: &str) -> Option<String> {
    [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")].iter().find_map(|path| text(path))
}

/// CONFIG_HZ.
fn hz(release: &str) -> Option<u32> {
    configuration(release)?.lines().find_map(|l| l.strip_prefix("CONFIG_HZ="))?.parse().ok()
}

/// Which hierarchies have the cpu controller. The v2 root may be mounted anywhere, below a v1 tree too.
fn cpu_controllers(table: &[u8]) -> CpuControllers {
    let mut found = CpuControllers { v1: false, v2: false };
    for mount in mountinfo::mounts(table) {
        match mount.kind {
            b"cgroup" => found.v1 |= mount.has_option("cpu"),
            b"cgroup2" => {
                let controllers = bounded_file::text(mount.point().join("cgroup.controllers")).unwrap_or_default();
                found.v2 |= controllers.split_whitespace().any(|c| c == "cpu");
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_formats_of_proc() {
        assert_eq!(field("Name:\tx\nCapEff:\t00ff\n", "CapEff:"), Some("00ff"));
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            20000   20000  files\n\
                      Max locked memory         unlimited  unlimited  bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(20_000));
        assert_eq!(limit(limits, "Max locked memory"), None);
    }

    #[test]
    fn finds_the_cpu_controller_of_v1() {
        let v1 = b"32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n";
        assert_eq!(cpu_controllers(v1), CpuControllers { v1: true, v2: false });
        let other = b"32 31 0:29 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n";
        assert_eq!(cpu_controllers(other), CpuControllers { v1: false, v2: false });
    }

    #[test]
    fn gathers_facts_of_this_host() {
        let facts = gather();
        assert!(facts.version().is_some(), "{facts:?}");
        assert!(facts.euid.is_some());
    }
}
