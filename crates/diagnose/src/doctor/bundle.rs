//! `doctor --bundle`: what a report of a bug in the probes needs, as one text: the findings, what confines this process, every program that
//! was tried with the kernel's reason, and what libbpf said, with the verifier's logs.
//!
//! It names no host, no process and no address: neither of the network nor of the kernel's memory.
use std::fmt::Write;

use parshall_bpf::diagnose::Probes;
use parshall_bpf::diagnose::classic::Classic;
use parshall_bpf::sockets::closes::Closes;
use parshall_bpf::sockets::owners::Owners;
use parshall_bpf::sockets::{Means, Walk};
use parshall_bpf::transcript;
use parshall_evidence::socket::Selection;
use parshall_host::mountinfo;
use parshall_host::output::TextStyle;

use super::facts::Facts;
use super::gather::{configuration, field, text as content};
use super::rules::Findings;
use super::text;

/// Options of the kernel's configuration that the probes depend on, without `CONFIG_`.
const OPTIONS: [&str; 20] = [
    "BPF",
    "BPF_SYSCALL",
    "BPF_JIT",
    "BPF_JIT_ALWAYS_ON",
    "BPF_UNPRIV_DEFAULT_OFF",
    "BPF_EVENTS",
    "BPF_LSM",
    "CGROUPS",
    "DEBUG_INFO_BTF",
    "DEBUG_INFO_BTF_MODULES",
    "FUNCTION_TRACER",
    "HZ",
    "INET_DIAG",
    "INET_TCP_DIAG",
    "INET_UDP_DIAG",
    "KPROBES",
    "PREEMPT_RT",
    "SCHEDSTATS",
    "TASKS_TRACE_RCU",
    "UNIX_DIAG",
];

/// The ring of [`Closes`], which stays empty.
const RING_BYTES: u32 = 64 * 1024;

/// The outcome of a trial: what is to be said of it, line by line, or the kernel's reason.
type Outcome = Result<Vec<String>, String>;

/// The result of a trial of every object.
struct Trials {
    objects: Vec<(&'static str, Outcome)>,
    messages: Vec<String>,
}

/// The text. All objects are loaded, those of an observation attached too, which takes about a second.
pub fn bundle(findings: &Findings, facts: &Facts) -> String {
    let (objects, messages) = transcript(try_all);
    page(findings, facts, &host(facts), &Trials { objects, messages })
}

fn try_all() -> Vec<(&'static str, Outcome)> {
    let probes = Probes::trial().map_err(|error| error.to_string()).map(|tried| {
        let used = tried.used.iter().map(|program| format!("used: {program}"));
        let replaced = tried.replaced.iter().map(|text| format!("replaced: {text}"));
        let missing = tried.missing.iter().map(|missing| format!("missing: {missing}"));
        used.chain(replaced).chain(missing).collect()
    });
    vec![
        ("probes of the rung btf", probes),
        ("probes of the rung tracepoint", loads(Classic::trial())),
        ("sockets: walk, by casts", loads(Walk::open_by(Means::Casts, 1))),
        ("sockets: walk, by copies", loads(Walk::open_by(Means::Copies, 1))),
        ("sockets: owners", loads(Owners::load())),
        ("sockets: closes", loads(Closes::attach(&Selection::default(), RING_BYTES))),
    ]
}

fn loads<T, E: ToString>(loaded: Result<T, E>) -> Outcome {
    loaded.map(|_| Vec::new()).map_err(|error| error.to_string())
}

/// Facts of the host and of the confinement of this process, by name.
fn host(facts: &Facts) -> Vec<(&'static str, String)> {
    let status = content("/proc/self/status").unwrap_or_default();
    let of_status = |key| field(&status, key).map(str::to_owned);
    let distribution = content("/etc/os-release").unwrap_or_default();
    let release = facts.kernel.as_deref().unwrap_or_default();
    let mounts = mountinfo::read();
    let cgroups = mountinfo::mounts(&mounts).filter_map(|mount| {
        let kind = String::from_utf8_lossy(mount.kind);
        kind.starts_with("cgroup").then(|| format!("{kind} at {}", mount.point().display()))
    });
    let containers =
        ["/.dockerenv", "/run/.containerenv"].into_iter().filter(|path| std::fs::exists(path).unwrap_or(false));
    let found = [
        ("parshall", Some(env!("CARGO_PKG_VERSION").to_owned())),
        // Not /proc/version, which also says who built it, and where.
        ("kernel", content("/proc/sys/kernel/version").map(|built| format!("{release} {built}"))),
        ("machine", Some(facts.arch.to_owned())),
        ("distribution", field(&distribution, "PRETTY_NAME=").map(|name| name.trim_matches('"').to_owned())),
        ("seccomp", of_status("Seccomp:")),
        ("no new privileges", of_status("NoNewPrivs:")),
        ("capabilities", of_status("CapEff:")),
        ("bounding set", of_status("CapBnd:")),
        ("security label", content("/proc/self/attr/current")),
        ("security modules", content("/sys/kernel/security/lsm")),
        ("marks of containers", Some(containers.collect::<Vec<_>>().join(" "))),
        ("cgroups", Some(cgroups.collect::<Vec<_>>().join(", "))),
        (
            "configuration",
            Some(configuration(release).map_or_else(|| "not installed".to_owned(), |c| chosen_options(&c))),
        ),
    ];
    found.into_iter().map(|(name, value)| (name, value.unwrap_or_else(|| "unknown".to_owned()))).collect()
}

/// The options of the kernel that matter here.
fn chosen_options(config: &str) -> String {
    let wanted = |line: &&str| {
        let option = line.strip_prefix("CONFIG_").and_then(|line| line.split_once('=')).map(|(option, _)| option);
        option.is_some_and(|option| OPTIONS.contains(&option))
    };
    config.lines().filter(wanted).collect::<Vec<_>>().join(" ")
}

fn page(findings: &Findings, facts: &Facts, host: &[(&str, String)], trials: &Trials) -> String {
    let mut page = String::from(
        "The facts that a report of a bug in parshall's probes needs. They name no host, no process and no address.\n\n== doctor\n",
    );
    page.push_str(&text::text(findings, TextStyle { width: 120, ..TextStyle::default() }));
    page.push_str("\n== host\n");
    for (name, value) in host {
        let _ = writeln!(page, "{name}: {value}");
    }
    page.push_str("\n== objects\n");
    for (name, tried) in &trials.objects {
        match tried {
            Ok(_) => _ = writeln!(page, "{name}: works"),
            Err(why) => _ = writeln!(page, "{name}: refused: {why}"),
        }
        for line in tried.iter().flatten() {
            let _ = writeln!(page, "    {line}");
        }
    }
    let _ = write!(page, "\n== facts\n{facts:#?}\n\n== messages of libbpf\n");
    if trials.messages.is_empty() {
        page.push_str("none\n");
    }
    for message in &trials.messages {
        let _ = writeln!(page, "{}", message.trim_end());
    }
    without_kernel_addresses(&page)
}

/// Addresses of the kernel's memory, which the verifier prints to those who may see them, are no business of others.
fn without_kernel_addresses(text: &str) -> String {
    const PREFIX: &str = "0xffff";
    let mut parts = text.split(PREFIX);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_hexdigit).count();
        masked.push_str(PREFIX);
        // An address has 16 digits; shorter values are constants.
        masked.push_str(if digits >= 12 { "…" } else { &part[..digits] });
        masked.push_str(&part[digits..]);
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{gather, rules};

    #[test]
    fn it_says_what_became_of_each_object_and_why() {
        let facts = gather::gather();
        let trials = Trials {
            objects: vec![
                ("one", Ok(vec!["missing: timers (on_timer: unknown func)".to_owned()])),
                ("other", Err("no BTF".to_owned())),
            ],
            messages: vec![
                "libbpf: prog 'on_timer': BPF program load failed: -22\nR1=0xffff888012345678 (mask 0xffff)\n".into(),
            ],
        };
        let page = page(&rules::examine(&facts), &facts, &[("seccomp", "2".to_owned())], &trials);
        for line in [
            "one: works",
            "    missing: timers (on_timer: unknown func)",
            "other: refused: no BTF",
            "seccomp: 2",
            "R1=0xffff… (mask 0xffff)",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }

    #[test]
    fn of_the_configuration_only_what_the_probes_depend_on_is_shown() {
        let config =
            "CONFIG_BPF=y\nCONFIG_BPF_SYSCALL=y\n# CONFIG_BPF_LSM is not set\nCONFIG_DEFAULT_HOSTNAME=\"secret\"\n";
        assert_eq!(chosen_options(config), "CONFIG_BPF=y CONFIG_BPF_SYSCALL=y");
    }
}
