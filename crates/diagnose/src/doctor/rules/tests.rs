//! The rules on other hosts: without root, without BTF, locked down, in a container, with an old kernel.
use super::super::facts::{CpuControllers, Trial};
use super::super::{json, text};
use super::*;
use parshall_host::output::TextStyle;

/// A host where everything works.
fn full() -> Facts {
    Facts {
        euid: Some(0),
        capabilities: u64::MAX,
        user_namespace: Some(false),
        pid_namespace: Some(false),
        sees_host: true,
        host_proc: None,
        kernel: Some("6.18.5-amd64".into()),
        arch: "x86_64",
        btf: true,
        tracefs: Some("/sys/kernel/tracing".into()),
        lockdown: Some("none".into()),
        unprivileged_bpf_disabled: Some(2),
        perf_event_paranoid: Some(2),
        bpf_map: Attempt::Works,
        bpf_ring_buffer: Attempt::Works,
        bpf_program: Attempt::Works,
        probes: Trial::all(),
        classic: Trial::NotTried,
        bpf_jit: Some(1),
        software_counter: Attempt::Works,
        hardware_counter: Attempt::Works,
        traceable_functions: Some(true),
        kprobes: true,
        memlock_bytes: None,
        open_files: Some(20_000),
        hz: Some(250),
        schedstats: Some(1),
        cpu_controllers: CpuControllers { v1: false, v2: true },
        congestion_default: Some("cubic".into()),
        congestion_available: Some("reno cubic".into()),
    }
}

fn refused() -> Attempt {
    Attempt::Refused("Operation not permitted (os error 1)".into())
}

fn no_bpf(facts: Facts) -> Facts {
    Facts { bpf_map: refused(), bpf_ring_buffer: refused(), bpf_program: refused(), ..facts }
}

fn state(findings: &Findings, id: &str) -> State {
    findings.checks.iter().find(|c| c.id == id).unwrap().state
}

#[test]
fn everything_is_ok_on_a_full_host() {
    let findings = examine(&full());
    assert_eq!(findings.rung, Rung::Btf);
    assert!(findings.why_not_higher.is_empty());
    for check in &findings.checks {
        assert_eq!(check.state, State::Ok, "{check:?}");
    }
}

#[test]
fn every_check_that_is_not_ok_has_a_cost() {
    let worst = no_bpf(Facts {
        euid: Some(1000),
        capabilities: 0,
        user_namespace: Some(true),
        pid_namespace: Some(true),
        kernel: Some("4.19.0".into()),
        btf: false,
        tracefs: None,
        lockdown: Some("confidentiality".into()),
        bpf_jit: Some(0),
        software_counter: refused(),
        hardware_counter: refused(),
        traceable_functions: None,
        kprobes: false,
        memlock_bytes: Some(65_536),
        open_files: Some(64),
        schedstats: None,
        cpu_controllers: CpuControllers { v1: false, v2: false },
        ..full()
    });
    let findings = examine(&worst);
    assert_eq!(findings.rung, Rung::Procfs);
    for check in &findings.checks {
        assert_eq!(check.cost.is_some(), check.state != State::Ok, "{check:?}");
        assert!(!check.seen.is_empty(), "{check:?}");
    }
    let ids: std::collections::BTreeSet<_> = findings.checks.iter().map(|c| c.id).collect();
    assert_eq!(ids.len(), findings.checks.len(), "ids are unique");
}

#[test]
fn no_root() {
    let facts = no_bpf(Facts { euid: Some(1000), capabilities: 0, ..full() });
    let findings = examine(&facts);
    assert_eq!(findings.rung, Rung::Procfs);
    let lacks = "this process has neither CAP_BPF and CAP_PERFMON nor CAP_SYS_ADMIN";
    assert_eq!(findings.why_not_higher[0], format!("run it with sudo: {lacks}"));
    assert_eq!(state(&findings, "privileges"), State::Missing);
    // In a container root may lack them, and sudo would not help.
    let contained = no_bpf(Facts { euid: Some(0), capabilities: 0, ..full() });
    assert_eq!(examine(&contained).why_not_higher[0], lacks);
}

#[test]
fn no_btf() {
    let facts = Facts { btf: false, ..full() };
    assert_eq!(rung(&facts).0, Rung::Tracepoint);
    assert_eq!(state(&examine(&facts), "btf"), State::Missing);
    let (rung, why) = rung(&Facts { tracefs: None, ..facts });
    assert_eq!(rung, Rung::Procfs);
    assert_eq!(why.len(), 2, "{why:?}");
}

#[test]
fn without_ring_buffers_the_rung_is_procfs() {
    let facts = Facts { btf: false, bpf_ring_buffer: refused(), ..full() };
    assert_eq!(rung(&facts).0, Rung::Procfs);
    let findings = examine(&facts);
    assert_eq!(state(&findings, "bpf-ring-buffer"), State::Missing);
    assert!(findings.why_not_higher.iter().any(|w| w.contains("ring buffers")), "{:?}", findings.why_not_higher);
    let ringless = Facts { bpf_ring_buffer: refused(), ..full() };
    assert_eq!(rung(&ringless).0, Rung::Procfs);
}

#[test]
fn locked_down() {
    let facts = Facts { bpf_program: refused(), lockdown: Some("confidentiality".into()), ..full() };
    let findings = examine(&facts);
    assert_eq!(findings.rung, Rung::Procfs);
    assert!(findings.why_not_higher.iter().any(|w| w.contains("locked down")));
    assert_eq!(state(&findings, "lockdown"), State::Missing);
    assert_eq!(state(&examine(&Facts { lockdown: Some("integrity".into()), ..full() }), "lockdown"), State::Ok);
}

#[test]
fn lockdown_is_the_reason_also_where_programs_that_read_nothing_are_loaded() {
    let why = "on_switch: unknown func bpf_probe_read_kernel".to_owned();
    let facts = Facts { lockdown: Some("confidentiality".into()), probes: Trial::Refused(why), ..full() };
    let findings = examine(&facts);
    assert_eq!(findings.rung, Rung::Procfs);
    assert!(findings.why_not_higher[0].contains("locked down"), "{:?}", findings.why_not_higher);
    assert!(findings.checks.iter().find(|c| c.id == "probes").unwrap().remedy.as_deref().unwrap().contains("lockdown"));
}

#[test]
fn the_rung_is_the_one_whose_programs_the_kernel_takes() {
    let why = "sends are not seen (on_send_end: this kernel has no tracepoint sock_send_length)".to_owned();
    let facts = Facts { probes: Trial::Refused(why.clone()), classic: Trial::all(), ..full() };
    let findings = examine(&facts);
    assert_eq!((findings.rung, &findings.why_not_higher), (Rung::Tracepoint, &vec![why.clone()]));
    assert_eq!(state(&findings, "probes"), State::Limited);
    let neither = Facts { classic: Trial::Refused("tracefs is not mounted".into()), ..facts };
    let findings = examine(&neither);
    assert_eq!((findings.rung, findings.why_not_higher.len()), (Rung::Procfs, 2));
    assert_eq!(state(&findings, "probes"), State::Missing);
}

#[test]
fn a_program_that_is_refused_is_named_and_leaves_the_rung() {
    let lost = "TCP's timers are not seen (on_timer: invalid func)".to_owned();
    let findings =
        examine(&Facts { probes: Trial::Works { missing: vec![lost.clone()], replaced: Vec::new() }, ..full() });
    assert_eq!(findings.rung, Rung::Btf);
    let probes = findings.checks.iter().find(|c| c.id == "probes").unwrap();
    assert!(probes.state == State::Limited && probes.seen.contains(&lost), "{probes:?}");
}

#[test]
fn a_program_that_is_replaced_is_named_and_nothing_is_lost() {
    let replaced =
        vec!["on_inet_recvmsg in place of on_recv (this kernel has no tracepoint sock_recv_length)".to_owned()];
    let findings =
        examine(&Facts { probes: Trial::Works { missing: Vec::new(), replaced: replaced.clone() }, ..full() });
    let probes = findings.checks.iter().find(|c| c.id == "probes").unwrap();
    assert!(probes.state == State::Ok && probes.seen.contains(&replaced[0]), "{probes:?}");
}

#[test]
fn a_container_with_its_own_process_numbers_has_no_probes() {
    let own = Facts { pid_namespace: Some(true), sees_host: false, ..full() };
    let findings = examine(&own);
    assert_eq!(findings.rung, Rung::Procfs);
    assert!(findings.why_not_higher[0].contains("--pid=host"), "{:?}", findings.why_not_higher);
    assert_eq!(state(&findings, "namespaces"), State::Limited);
    // The host's /proc is a way to its processes.
    let host_proc = Some("/host/proc".to_owned());
    let findings = examine(&Facts { host_proc, ..own });
    assert!(findings.why_not_higher[0].contains("mount --bind /host/proc /proc"), "{:?}", findings.why_not_higher);
    // With it, only what the kernel's iterators show is missing.
    let findings = examine(&Facts { pid_namespace: Some(true), ..full() });
    assert_eq!(findings.rung, Rung::Tracepoint);
}

#[test]
fn a_container_with_its_own_user_namespace_is_refused() {
    let findings = examine(&no_bpf(Facts { user_namespace: Some(true), ..full() }));
    assert_eq!(findings.rung, Rung::Procfs);
    let bpf = findings.checks.iter().find(|c| c.id == "bpf").unwrap();
    assert!(bpf.remedy.as_deref().unwrap().contains("privileged container"));
}

#[test]
fn a_reference_machine_is_full_enough() {
    // Root without hardware counters, fentry, kprobes, schedstats and with tracefs unmounted.
    let facts = Facts {
        tracefs: None,
        traceable_functions: None,
        kprobes: false,
        hardware_counter: refused(),
        schedstats: None,
        lockdown: None,
        cpu_controllers: CpuControllers { v1: true, v2: false },
        hz: None,
        ..full()
    };
    let findings = examine(&facts);
    assert_eq!(findings.rung, Rung::Btf);
    assert_eq!(state(&findings, "tracefs"), State::Limited);
    assert_eq!(state(&findings, "cpu-quota"), State::Ok);
}

#[test]
fn split_capabilities_are_enough() {
    let bit = |c: Capability| 1_u64 << c as u32;
    let facts = Facts { capabilities: bit(Capability::Bpf) | bit(Capability::Perfmon), ..full() };
    assert!(facts.may_load_bpf());
    assert_eq!(state(&examine(&facts), "privileges"), State::Limited);
    assert!(!Facts { capabilities: bit(Capability::Bpf), ..full() }.may_load_bpf());
}

#[test]
fn versions() {
    for (release, version) in [("6.18.5-amd64", Some((6, 18))), ("5.8", Some((5, 8))), ("x", None), ("6", None)] {
        assert_eq!(Facts { kernel: Some(release.into()), ..full() }.version(), version, "{release}");
    }
    assert_eq!(rung(&Facts { kernel: Some("5.4.0".into()), ..full() }).0, Rung::Tracepoint);
}

#[test]
fn both_formats_name_the_rung_and_the_text_fits_its_width() {
    let findings = examine(&Facts { btf: false, ..full() });
    for width in [80, 100] {
        let page = text::text(&findings, TextStyle { width, ..TextStyle::default() });
        assert!(page.contains("\nrung: tracepoint\n"), "{page}");
        assert!(page.lines().all(|l| l.chars().count() <= width && l == l.trim_end()), "{page}");
    }
    let document: serde_json::Value =
        serde_json::from_str(&json::json(&findings, &Default::default()).unwrap()).unwrap();
    assert_eq!(document["schema"], "parshall.doctor/1");
    assert_eq!(document["rung"], "tracepoint");
    assert_eq!(document["checks"].as_array().unwrap().len(), findings.checks.len());
}
