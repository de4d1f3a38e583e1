//! Difficult hosts and subjects: missing and exiting processes, other namespaces, no symbols, no root, no BPF, a full ring
//! buffer. The result is always a report of what could be observed or an error with a hint, never a panic.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{
    self, Done, NOBODY, PARSHALL, Pair, Running, Scratch, begin, begin_window, finish, has, parshall, service,
    service_py, verdict,
};
use parshall_evidence::{Confidence, Report, Rung, ServiceReport, Status};

const CAUSE: &str = "nagle-delayed-ack";

#[test]
fn a_missing_process() {
    let gone = finish(&mut Command::new("true"));
    assert_eq!(gone.code, Some(0));
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let pid = gone.id().to_string();
    let done = parshall(&["attach", "--pid", &pid]);
    let (error, hint) = done.error_and_hint();
    assert!(error.contains(&pid) && hint.contains("ps"), "{done:?}");
}

#[test]
fn a_zombie() {
    let mut zombie = Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", zombie.id());
    common::until("it is a zombie", || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")));
    let done = parshall(&["attach", "--pid", &zombie.id().to_string()]);
    assert!(done.error_and_hint().0.contains("has exited"), "{done:?}");
    zombie.wait().unwrap();
}

#[test]
fn a_port_without_a_socket() {
    // A socket listens on the next port, so the hint can name it.
    let neighbour = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let done = parshall(&["attach", "--port", &free]);
    let (error, hint) = done.error_and_hint();
    assert!(error.contains(&free) && hint.contains("listening: "), "{done:?}");
    drop(neighbour);
}

#[test]
fn missing_groups_and_namespaces() {
    for arguments in [["--cgroup", "/no/such/group"], ["--netns", "no-such-namespace"]] {
        let done = parshall(&["attach", arguments[0], arguments[1]]);
        assert!(done.error_and_hint().0.contains(arguments[1]), "{done:?}");
    }
}

#[test]
fn a_process_that_exits_during_the_window() {
    let what = "a subject that exits half-way";
    if !has(&["python3"], what) {
        return;
    }
    let rungs = if common::btf(what) { &["btf", "procfs"][..] } else { &["procfs"] };
    for rung in rungs {
        let pair = Pair::start(&["--rounds", "60"]);
        let pid = pair.client.pid();
        // Its parent must reap it, or it remains as a zombie.
        let client = std::thread::spawn(move || drop_when_done(pair));
        let done =
            parshall(&["attach", "--pid", &pid.to_string(), "--for", "600s", "--format", "json", "--rung", rung]);
        client.join().unwrap();
        let report = done.orderly().report();
        assert!(report.window_s > 0.5 && report.window_s < 590.0, "{rung}: {}", report.window_s);
        assert_eq!(verdict(&report), CAUSE, "{rung}: {report:#?}");
    }
}

fn drop_when_done(mut pair: Pair) {
    pair.client.wait_for_end();
}

/// The report, again where other programs had the CPUs while a request waited for one.
fn report_with_cpu(arguments: &[&str]) -> Report {
    let waits =
        |service: &ServiceReport| service.time.work.iter().any(|row| row.state == "run-queue" && row.share > 0.2);
    common::again_while(|| parshall(arguments).report(), |report| report.services.iter().any(waits))
}

#[test]
fn a_process_in_other_namespaces() {
    let what = "subjects in other pid and network namespaces";
    if !has(&["python3", "unshare", "ip"], what) || !common::btf(what) {
        return;
    }
    let script = format!("ip link set lo up; exec python3 {} fork", service_py());
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child", "sh", "-c", &script]);
    let (inside, port) = common::serve_with(&mut command);
    let parent = inside.children()[0];
    let pids = common::children(parent);
    let [server, client] = pids[..] else { panic!("two children: {pids:?}") };
    for pids in [&[server][..], &[client], &[server, client]] {
        let named: Vec<String> = pids.iter().flat_map(|pid| ["--pid".to_owned(), pid.to_string()]).collect();
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        let report = report_with_cpu(&[&["attach", "--for", "1s", "--format", "json"], &named[..]].concat());
        assert_eq!(verdict(&report), CAUSE, "{pids:?}: {report:#?}");
        // The client began later, and has the smaller number where the host's numbers began again between the two.
        let mut in_order = pids.to_vec();
        in_order.sort_unstable();
        assert_eq!(report.subject.pids, in_order, "as this host numbers them");
    }
    let port = port.to_string();
    let by_port = ["attach", "--port", &port, "--for", "1s", "--format", "json"];
    let elsewhere = parshall(&by_port);
    assert!(elsewhere.error_and_hint().1.contains("--netns"), "{elsewhere:?}");
    let report = report_with_cpu(&[&by_port[..], &["--netns", "all"]].concat());
    assert_eq!(verdict(&report), CAUSE, "by port: {report:#?}");
}

#[test]
fn a_server_comes_before_its_workers_also_where_these_have_lower_numbers() {
    let (what, last_pid) = ("processes numbered from the bottom again", "/proc/sys/kernel/ns_last_pid");
    if !has(&["python3", "unshare", "ip", "bash"], what) || !common::root(what) {
        return;
    }
    if !Path::new(last_pid).exists() {
        return common::skip(what, "this kernel does not let the next number be chosen (CONFIG_CHECKPOINT_RESTORE)");
    }
    let server = format!(
        "import os, signal, socket\n\
         listener = socket.create_server((\"127.0.0.1\", 0))\n\
         open(\"{last_pid}\", \"w\").write(\"400\")\n\
         if os.fork(): print(\"ready\", listener.getsockname()[1], flush=True)\n\
         signal.pause()"
    );
    let script = format!(
        "ip link set lo up; echo 4000 > {last_pid}; coproc S {{ exec python3 -c '{server}'; }}; \
         read _ port <&${{S[0]}}; {PARSHALL} attach --port $port --for 500ms --rung procfs --format json"
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", &script]);
    assert_eq!(common::finish(&mut command).report().subject.pids, [4001, 401]);
}

#[test]
fn where_processes_have_other_numbers_there_are_no_probes_and_still_an_answer() {
    let what = "an observer in a pid namespace of its own";
    if !has(&["python3", "unshare", "ip", "bash"], what) || !common::btf(what) {
        return;
    }
    let script = format!(
        "ip link set lo up; coproc S {{ exec python3 {} fork; }}; read _ port <&${{S[0]}}; \
         {PARSHALL} attach --port $port --for 1s --format json",
        service_py()
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", &script]);
    let report = finish(&mut command).report();
    assert_eq!(
        (report.rung, report.verdict.status != Status::InsufficientEvidence),
        (Rung::Procfs, true),
        "{report:#?}"
    );
    assert!(report.blind.iter().any(|note| note.contains("--pid=host")), "{:?}", report.blind);
}

/// Starts a stalling load of the lab as the user nobody: server and client in one process.
fn load_of_nobody(binary: &str) -> Running {
    let mut command = Command::new(binary);
    command.args(["lab", "load", "rpc-echo", "--clients", "4", "--for", "600s"]).uid(NOBODY).gid(NOBODY);
    with_connections(begin(&mut command))
}

/// It reports that it is ready before the connections of its four clients are open.
fn with_connections(load: Running) -> Running {
    let sockets = || {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", load.pid())).into_iter().flatten().flatten();
        let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    };
    common::until("its connections are open", || sockets() > 8);
    load
}

#[test]
fn without_root() {
    let scratch = Scratch::shared();
    let copy = common::is_root().then(|| scratch.parshall());
    let binary = copy.as_ref().map_or(PARSHALL, |copy| copy.to_str().unwrap());
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(binary);
        command.args(arguments);
        if common::is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    };
    let load = if common::is_root() { load_of_nobody(binary) } else { own_load(binary) };
    let pid = load.pid().to_string();
    let attach = ["attach", "--pid", &pid, "--for", "1s"];
    let report = finish(&mut as_nobody(&[&attach[..], &["--format", "json"]].concat())).orderly().report();
    assert_eq!(report.rung, Rung::Procfs, "{report:#?}");
    assert!(!report.blind.is_empty() && report.time.flows.n >= 4, "{report:#?}");
    assert_eq!(verdict(&report), CAUSE, "{report:#?}");
    let text = finish(&mut as_nobody(&attach));
    assert!(text.stdout.contains("rung procfs") && text.stdout.contains(CAUSE), "{text:?}");
    if common::is_root() {
        // A process of another user: the report says what could be observed and what could not.
        let (idle, _) = service(&["idle"]);
        let done = finish(&mut as_nobody(&["attach", "--pid", &idle.pid().to_string(), "--for", "500ms"]));
        assert!(done.orderly().stdout.contains("root") || done.stderr.contains("hint: "), "{done:?}");
        // The whole host as well.
        let done = finish(&mut as_nobody(&["attach", "--all", "--for", "500ms"]));
        assert_eq!(done.orderly().code, Some(0), "{done:?}");
    }
}

fn own_load(binary: &str) -> Running {
    with_connections(begin(Command::new(binary).args(["lab", "load", "rpc-echo", "--clients", "4", "--for", "600s"])))
}

#[test]
fn a_lower_rung_by_choice() {
    if !has(&["python3"], "--rung procfs") {
        return;
    }
    let pair = Pair::start(&[]);
    let port = pair.port.to_string();
    let report = parshall(&["attach", "--port", &port, "--for", "1s", "--format", "json", "--rung", "procfs"]).report();
    assert_eq!((report.rung, verdict(&report).as_str()), (Rung::Procfs, CAUSE), "{report:#?}");
}

/// `attach` after a shell script, in a mount namespace of its own.
fn attach_after(script: &str, pair: &Pair) -> Done {
    let script = format!("{script}; exec {PARSHALL} attach --port {} --for 1s --format json", pair.port);
    finish(Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-ec", &script]))
}

#[test]
fn hosts_that_lack_something() {
    let what = "hosts without BTF, tracefs, capabilities or descriptors";
    if !has(&["python3", "unshare", "mount", "setpriv"], what) || !common::btf(what) {
        return;
    }
    let pair = Pair::start(&[]);
    let empty = Scratch::new();
    let empty = empty.file("");
    let hide = |path: &str| format!("if [ -d {path} ]; then mount --bind {} {path}; fi", empty.display());
    let hosts = [
        ("no BTF", "mount --bind /dev/null /sys/kernel/btf/vmlinux".to_owned(), None),
        ("capabilities", drop_capabilities(pair.port), Some(Rung::Procfs)),
        ("no tracefs", format!("{}; {}", hide("/sys/kernel/tracing"), hide("/sys/kernel/debug")), None),
        ("no /sys/kernel", hide("/sys/kernel"), None),
        ("no cgroups", hide("/sys/fs/cgroup"), None),
        ("no kallsyms", "mount --bind /dev/null /proc/kallsyms".to_owned(), None),
    ];
    for (host, script, rung) in common::some_of(&hosts, 3) {
        let report = attach_after(script, &pair).orderly().report();
        println!("{host}: rung {}, {}, {:?}", report.rung.as_str(), verdict(&report), report.blind);
        assert_eq!(verdict(&report), CAUSE, "{host}: {report:#?}");
        assert!(report.rung == Rung::Btf || !report.blind.is_empty(), "{host}: it says why: {report:#?}");
        assert!(rung.is_none_or(|rung| report.rung == rung), "{host}: {report:#?}");
    }
}

/// A script that drops the capabilities that probes need, as for root in a container. It ends with `exec`.
fn drop_capabilities(port: u16) -> String {
    format!(
        "exec setpriv --bounding-set=-bpf,-perfmon,-sys_admin --inh-caps=-all \
         {PARSHALL} attach --port {port} --for 1s --format json"
    )
}

#[test]
fn a_low_descriptor_limit_is_no_panic() {
    if !has(&["python3"], "few descriptors") {
        return;
    }
    let pair = Pair::start(&[]);
    for limit in common::some_of(&[8, 32, 4, 16, 64], 2) {
        let script =
            format!("ulimit -n {limit}; exec {PARSHALL} attach --port {} --for 500ms --format json", pair.port);
        let done = finish(Command::new("sh").args(["-c", &script]));
        // A report, possibly from a lower rung, or an error with a hint.
        assert!(done.orderly().code == Some(0) || done.stderr.starts_with("error: "), "{limit}: {done:?}");
    }
}

#[test]
fn the_whole_host() {
    let done = parshall(&["attach", "--all", "--for", "1s", "--format", "json"]);
    let report = done.orderly().report();
    assert!(report.window_s >= 1.0, "{}", report.window_s);
}

#[test]
fn a_full_ring_is_counted_shown_and_lowers_the_confidence() {
    let what = "a full ring";
    if !has(&["python3"], what) || !common::btf(what) {
        return;
    }
    // Each closed connection leaves two records of 2 kB in a ring buffer of 4 MiB.
    let (_server, port) = service(&["serve"]);
    let port = port.to_string();
    let churn: Vec<(Running, u16)> = (0..3).map(|_| service(&["churn", "--port", &port])).collect();
    let mut command = Command::new(PARSHALL);
    command.args(["attach", "--port", &port, "--for", "7s", "--format", "json"]);
    let running = begin_window(&mut command);
    running.signal("-STOP");
    std::thread::sleep(Duration::from_millis(4500));
    running.signal("-CONT");
    let report = running.finish().orderly().report();
    drop(churn);
    println!("lost {} of {}, {:?}", report.probe.lost_events, report.probe.events, report.verdict);
    assert!(report.probe.lost_events > 0, "{report:#?}");
    assert!(report.verdict.confidence < Confidence::High, "{report:#?}");
}

/// The scheduling policy of a process (field 41 of /proc/PID/stat). None if it has ended.
fn policy(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    if fields[0] == "Z" { None } else { fields.get(38)?.parse().ok() }
}

#[test]
fn an_observation_runs_at_sched_idle() {
    const SCHED_IDLE: u32 = 5;
    const CAP_SYS_NICE: u64 = 1 << 23;
    let what = "observing in the background";
    if !has(&["python3"], what) || !common::btf(what) {
        return;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    if u64::from_str_radix(held, 16).unwrap() & CAP_SYS_NICE == 0 || policy(std::process::id()) != Some(0) {
        return common::skip(what, "needs CAP_SYS_NICE and the ordinary scheduling policy");
    }
    let pair = Pair::start(&[]);
    let attach = begin(Command::new(PARSHALL).args(["attach", "--port", &pair.port.to_string(), "--for", "1s"]));
    // It starts there, and leaves it soon on a busy host.
    let seen = std::iter::from_fn(|| policy(attach.pid())).any(|policy| policy == SCHED_IDLE);
    let done = attach.finish();
    assert!(seen && done.code == Some(0), "{done:?}");
}

#[test]
fn a_fifo_in_place_of_a_perf_map() {
    let what = "a FIFO in place of /tmp/perf-PID.map";
    if !has(&["python3", "mkfifo"], what) || !common::btf(what) {
        return;
    }
    let pair = Pair::start(&[]);
    let maps: Vec<String> =
        [pair.server.pid(), pair.client.pid()].iter().map(|pid| format!("/tmp/perf-{pid}.map")).collect();
    assert!(Command::new("mkfifo").args(&maps).status().unwrap().success());
    let scratch = Scratch::new();
    let case = scratch.file("case.json");
    // Saving a case resolves all symbols.
    let port = pair.port.to_string();
    let done = parshall(&["attach", "--port", &port, "--for", "1s", "--save", case.to_str().unwrap()]);
    maps.iter().for_each(|map| std::fs::remove_file(map).unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
    assert!(case.exists());
}
