//! Observers in containers: what a seccomp profile, a security module or a namespace takes away is said, and the rest is used.

use std::fs;
use std::process::Command;

use crate::common::{self, Done, PARSHALL, Pair, Scratch, finish, has, verdict};
use parshall_evidence::{Report, Rung};

const CAUSE: &str = "nagle-delayed-ack";
const EPERM: &str = "1";
const EACCES: &str = "13";
/// Of the calls that Docker's default profile refuses without CAP_SYS_ADMIN, those that an observation may make.
const DEFAULT_PROFILE: &str = "bpf,perf_event_open,setns,unshare,mount,pidfd_getfd,process_vm_readv,io_uring_setup";

/// Whether the report has the cause, from the rung. On a busy host few samples of a flow fall into one hold, and a hold by a delayed ACK cannot
/// be told from one for a round trip.
fn has_cause(report: &Report, rung: Rung) -> bool {
    let found = verdict(report);
    report.rung == rung && (found == CAUSE || rung != Rung::Btf && found == "nagle-hold")
}

/// The report of an observation. While the tests beside this one use all CPUs, a rung without wake-ups sees the wait for a CPU first: of
/// such a rung it is the first of three reports that has the cause, or the last.
fn observed(rung: Rung, mut observe: impl FnMut() -> Report) -> Report {
    let more = if rung == Rung::Btf { 0 } else { 2 };
    for _ in 0..more {
        let report = observe();
        if has_cause(&report, rung) {
            return report;
        }
    }
    observe()
}

/// Runs parshall where the kernel refuses these calls with this error.
fn refused(errno: &str, calls: &str, arguments: &[&str]) -> Done {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/refuse.py");
    finish(Command::new("python3").args([script, errno, calls, PARSHALL]).args(arguments))
}

#[test]
fn what_a_seccomp_profile_or_a_security_module_refuses_is_said() {
    let what = "calls that are refused";
    if !has(&["python3"], what) || !common::btf(what) {
        return;
    }
    let pair = Pair::start(&[]);
    let port = pair.port.to_string();
    let hosts = [
        (EPERM, DEFAULT_PROFILE, Rung::Procfs, "bpf"),
        (EPERM, "perf_event_open", Rung::Btf, "cpu-samples"),
        (EPERM, "bpf", Rung::Procfs, "bpf"),
        (EACCES, "bpf", Rung::Procfs, "bpf"),
        (EPERM, "setns", Rung::Btf, ""),
    ];
    for &(errno, calls, rung, check) in common::some_of(&hosts, 2) {
        let host = format!("{calls} refused with {errno}");
        let doctor = refused(errno, calls, &["doctor", "--format", "json"]).orderly().stdout.clone();
        let doctor: serde_json::Value = serde_json::from_str(&doctor).unwrap();
        assert_eq!(doctor["rung"], rung.as_str(), "{host}: {doctor:#}");
        let found = doctor["checks"].as_array().unwrap().iter().find(|found| found["id"] == check);
        assert!(found.is_none_or(|found| found["state"] == "missing"), "{host}: {found:#?}");
        assert!(found.is_some() || check.is_empty(), "{host}: {doctor:#}");

        let attach = ["attach", "--port", &port, "--for", "1s", "--format", "json"];
        let report = observed(rung, || refused(errno, calls, &attach).orderly().report());
        println!("{host}: rung {}, {}, {:?}", report.rung.as_str(), verdict(&report), report.blind);
        assert!(has_cause(&report, rung), "{host}: {report:#?}");
        assert!(rung == Rung::Btf || !report.blind.is_empty(), "{host}: it says why: {report:#?}");
    }
}

#[test]
fn with_the_hosts_pid_namespace_a_container_has_all_evidence() {
    let what = "an observer in namespaces of its own but for that of processes";
    if !has(&["python3", "unshare"], what) || !common::btf(what) {
        return;
    }
    let pair = Pair::start(&[]);
    let (port, pid) = (pair.port.to_string(), pair.server.pid().to_string());
    let inside = |subject: &[&str]| {
        let mut command = Command::new("unshare");
        command.args([
            "--net", "--mount", "--uts", "--ipc", "--cgroup", PARSHALL, "attach", "--for", "1s", "--format", "json",
        ]);
        finish(command.args(subject))
    };
    for subject in [&["--pid", &pid][..], &["--port", &port, "--netns", "all"]] {
        let report = inside(subject).orderly().report();
        assert!(has_cause(&report, Rung::Btf), "{subject:?}: {report:#?}");
    }
    // The port is not in the container's network.
    let done = inside(&["--port", &port]);
    assert!(done.error_and_hint().1.contains("--netns"), "{done:?}");
}

#[test]
fn with_the_hosts_proc_a_container_sees_the_hosts_processes() {
    let what = "an observer in a pid namespace of its own with the host's /proc";
    if !has(&["python3", "unshare", "mount"], what) || !common::btf(what) {
        return;
    }
    let pair = Pair::start(&[]);
    let (scratch, port) = (Scratch::new(), pair.port.to_string());
    let host_proc = scratch.file("proc");
    fs::create_dir(&host_proc).unwrap();
    let inside = |command: &str| {
        let set_up = format!("mount --bind /proc {0} && mount -t proc proc /proc && {command}", host_proc.display());
        finish(Command::new("unshare").args(["--mount", "--pid", "--fork", "sh", "-c", &set_up]))
    };
    let attach = format!("{PARSHALL} attach --port {port} --for 1s --format json");
    let report = inside(&attach).orderly().report();
    assert_eq!(report.rung, Rung::Procfs, "{report:#?}");
    let way = report.blind.iter().find_map(|line| line.split_once("unshare")?.1.split_once("parshall ..."));
    let Some((way, end)) = way else { panic!("it names the way: {report:#?}") };
    // The command stands between backticks.
    let end = end.split('`').next().unwrap_or_default();
    let with_host_proc = |command: &str| inside(&format!("unshare{way}{command}{end}"));
    let report = observed(Rung::Tracepoint, || with_host_proc(&attach).orderly().report());
    assert!(has_cause(&report, Rung::Tracepoint), "{report:#?}");
    assert!(report.blind.iter().any(|line| line.contains("iterators")), "{report:#?}");
    assert!(report.subject.pids.contains(&pair.server.pid()), "{report:#?}");
    // Commands that take process ids are refused: there they are those of other processes.
    for command in [format!("run -- {PARSHALL} --version"), format!("try nodelay --port {port} --yes")] {
        let done = with_host_proc(&format!("{PARSHALL} {command}"));
        assert!(done.error_and_hint().0.contains("other numbers in this /proc"), "{done:?}");
    }
}
