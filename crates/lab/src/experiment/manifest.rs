//! The host and the programs of a run, so that a later run is compared only with its like.
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use parshall_sys::link::{self, Offload};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::file::Experiment;
use crate::process::program_path;
use parshall_core::sorting::IntoOrdered as _;

/// Settings that change how fast traffic moves.
const SYSCTLS: [&str; 22] = [
    "kernel.sched_autogroup_enabled",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.netdev_budget",
    "net.core.netdev_max_backlog",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.tcp_autocorking",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_limit_output_bytes",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_wmem",
];
/// Larger files are not hashed.
const HASHED_MAX: u64 = 1 << 30;

/// The host and the programs of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub parshall: String,
    pub host: Host,
    /// Share of the time since boot that the hypervisor gave to others.
    pub steal_since_boot: f64,
    /// SHA-256 of the programs, and of files among their arguments, by path.
    pub files: BTreeMap<String, String>,
}

/// Properties that two runs must share to be compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    pub kernel: String,
    pub architecture: String,
    pub cpu: String,
    pub cpus: usize,
    pub memory_gib: u64,
    /// The frequency governor of the first CPU; empty where the host has none.
    pub governor: String,
    /// The contents of /sys/devices/system/cpu/vulnerabilities.
    pub mitigations: BTreeMap<String, String>,
    pub sysctls: BTreeMap<String, String>,
    /// The offloads that are on, by interface.
    pub offloads: BTreeMap<String, Vec<String>>,
}

impl Manifest {
    /// Reads it now.
    pub fn now(experiment: &Experiment) -> Self {
        Self {
            parshall: env!("CARGO_PKG_VERSION").to_owned(),
            host: Host::now(),
            steal_since_boot: super::conditions::steal_since_boot(),
            files: files_of(experiment)
                .into_iter()
                .filter_map(|path| Some((path.display().to_string(), hash(&path)?)))
                .into_map(),
        }
    }
}

impl Host {
    fn now() -> Self {
        let text = |path: &str| fs::read_to_string(path).map(|text| normal(&text)).unwrap_or_default();
        let field = |path: &str, name: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
            line.split_once(':').map(|(_, value)| normal(value)).unwrap_or_default()
        };
        let memory_kib = field("/proc/meminfo", "MemTotal");
        let memory_kib: f64 = memory_kib.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
        Self {
            kernel: text("/proc/sys/kernel/osrelease"),
            architecture: std::env::consts::ARCH.to_owned(),
            cpu: cpu_name(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_gib: (memory_kib / f64::from(1 << 20)).round() as u64,
            governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            mitigations: directory("/sys/devices/system/cpu/vulnerabilities"),
            sysctls: SYSCTLS
                .iter()
                .map(|name| ((*name).to_owned(), text(&format!("/proc/sys/{}", name.replace('.', "/")))))
                .filter(|(_, value)| !value.is_empty())
                .into_map(),
            offloads: offloads(),
        }
    }

    /// Differences from another host, in words.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |what: &str, one: String, two: String| {
            if one != two {
                let or_none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
                found.push(format!("{what} {} and {}", or_none(one), or_none(two)));
            }
        };
        compare("kernel", self.kernel.clone(), other.kernel.clone());
        compare("architecture", self.architecture.clone(), other.architecture.clone());
        compare("CPU", self.cpu.clone(), other.cpu.clone());
        compare("CPUs", self.cpus.to_string(), other.cpus.to_string());
        compare("memory in GiB", self.memory_gib.to_string(), other.memory_gib.to_string());
        compare("governor", self.governor.clone(), other.governor.clone());
        for (one, two) in [(&self.mitigations, &other.mitigations), (&self.sysctls, &other.sysctls)] {
            let names: BTreeSet<&String> = one.keys().chain(two.keys()).into_set();
            for name in names {
                let value = |of: &BTreeMap<String, String>| of.get(name).cloned().unwrap_or_default();
                compare(name, value(one), value(two));
            }
        }
        let names: BTreeSet<&String> = self.offloads.keys().chain(other.offloads.keys()).into_set();
        for name in names {
            let value = |of: &Self| of.offloads.get(name).map(|on| on.join(" ")).unwrap_or_default();
            compare(&format!("offloads of {name}"), value(self), value(other));
        }
        found
    }
}

/// One line, with single spaces.
fn normal(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn directory(path: &str) -> BTreeMap<String, String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let entry = |entry: fs::DirEntry| {
        Some((entry.file_name().into_string().ok()?, normal(&fs::read_to_string(entry.path()).ok()?)))
    };
    entries.filter_map(entry).into_map()
}

/// Of the interfaces of this namespace. Those of a testbed are as its file says.
fn offloads() -> BTreeMap<String, Vec<String>> {
    let interfaces = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let interface = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let all = [(Offload::Tso, "tso"), (Offload::Gso, "gso"), (Offload::Gro, "gro")];
        let on = all.into_iter().filter(|(offload, _)| link::offload(&name, *offload).unwrap_or(false));
        let on = on.map(|(_, word)| word.to_owned()).collect();
        Some((name, on))
    };
    interfaces.filter_map(interface).filter(|(name, _)| !name.starts_with("veth")).into_map()
}

/// The programs of all variants, and the files among their arguments.
fn files_of(experiment: &Experiment) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for value in &experiment.variable.values {
        let stage = experiment.stage(value);
        let processes = stage.processes.iter().map(|process| process.command.clone());
        for command in processes.chain([experiment.command(value)]) {
            let Some((program, arguments)) = command.split_first() else { continue };
            found.extend(program_path(program));
            found.extend(arguments.iter().map(PathBuf::from).filter(|path| path.is_file()));
        }
    }
    found
}

fn hash(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    if file.metadata().ok()?.len() > HASHED_MAX {
        return None;
    }
    let (mut sum, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(hex(&sum.finalize())),
            n => sum.update(&buffer[..n]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of the first CPU in /proc/cpuinfo. arm64 has no name there, but numbers.
fn cpu_name(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| normal(value))
    };
    let numbers = || Some(format!("implementer {}, part {}", field("CPU implementer")?, field("CPU part")?));
    field("model name").or_else(numbers).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_like_itself() {
        let host = Host::now();
        assert!(!host.kernel.is_empty() && host.cpus > 0 && host.memory_gib > 0, "{host:?}");
        assert!(host.sysctls.contains_key("net.ipv4.tcp_rmem") && host.offloads.contains_key("lo"), "{host:?}");
        assert_eq!(host.differences(&Host::now()), Vec::<String>::new());
    }

    #[test]
    fn a_cpu_has_a_name_or_numbers() {
        let x86 = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 85\nmodel name\t: Intel(R)  Xeon(R)\n\nprocessor\t: 1\n";
        assert_eq!(cpu_name(x86), normal("Intel(R)  Xeon(R)"));
        let arm64 =
            "processor\t: 0\nBogoMIPS\t: 125.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n";
        assert_eq!(cpu_name(arm64), "implementer 0x41, part 0xd0c");
        assert_eq!(cpu_name(""), "");
    }

    #[test]
    fn differences_are_named_with_both_values() {
        let host = Host { kernel: "6.18".into(), ..Host::default() };
        let mut other = Host { kernel: "6.12".into(), cpus: 4, ..Host::default() };
        other.sysctls.insert("net.ipv4.tcp_sack".into(), "0".into());
        other.offloads.insert("eth0".into(), vec!["tso".into()]);
        let found = host.differences(&other);
        let wanted =
            ["kernel 6.18 and 6.12", "CPUs 0 and 4", "net.ipv4.tcp_sack none and 0", "offloads of eth0 none and tso"];
        assert_eq!(found, wanted);
    }

    #[test]
    fn files_are_known_by_their_hash() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "abc").expect("written");
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash(file.path()).as_deref(), Some(known));
    }
}
