//! `attach` to a Python service whose client writes each request in two small parts.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    self, ControlGroup, PARSHALL, Pair, Running, Scratch, begin, begin_window, has, parshall, service_py, verdict,
};
use parshall_evidence::{Capture, Confidence, Report, Rung, Status};

pub const CAUSE: &str = "nagle-delayed-ack";
/// The most resident memory of parshall.
const RSS_MAX_KIB: u64 = 96 * 1024;
/// The share by which a ledger may differ from the wall time.
const TOLERANCE: f64 = 0.01;

/// Whether this host has probes and Python, which the tests need. Reports a skip if not.
pub fn ready(what: &str) -> bool {
    has(&["python3"], what) && common::btf(what)
}

pub fn attach(arguments: &[&str]) -> Report {
    let done = parshall(&[&["attach"], arguments, &["--for", "1s", "--format", "json"]].concat());
    assert_eq!(done.stderr, "");
    done.report()
}

/// Asserts that the report has the cause, with its process and flow, evidence and a fix.
fn assert_named(report: &Report, pids: &[u32]) {
    assert_eq!(verdict(report), CAUSE, "{report:#?}");
    assert_eq!(report.verdict.status, Status::Cause);
    let first = &report.findings[0];
    assert_eq!(first.cause, CAUSE);
    assert!(first.share > 0.5 && first.share <= 1.0 && first.lost_share >= 0.3, "{first:#?}");
    assert!(first.lost_ms > 0.0 && first.lost_ms <= report.window_s * 1e3, "{first:#?}");
    assert!(first.place.pid.is_some_and(|pid| pids.contains(&pid)), "{:?} of {pids:?}", first.place);
    assert!(first.place.flow.as_ref().is_some_and(|flow| flow.contains("->")), "{:?}", first.place);
    assert!(first.evidence.iter().any(|e| e.p50_ms.is_some_and(|ms| (1.0..1000.0).contains(&ms))), "{first:#?}");
    assert!(first.fix.text.contains("TCP_NODELAY"), "{:?}", first.fix);
    assert!(report.ruled_out.iter().all(|r| r.cause != CAUSE && !r.why.is_empty()));
}

#[test]
fn the_text_report_of_a_port() {
    let what = "attach --port";
    if !ready(what) {
        return;
    }
    let pair = Pair::start(&[]);
    let done = parshall(&["attach", "--port", &pair.port.to_string(), "--for", "1s"]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
    assert!(done.stdout.starts_with("parshall "), "{}", done.stdout);
    for part in ["CAUSE ", "(nagle-delayed-ack, confidence ", "\nFIX ", "TCP_NODELAY", "\nTIME ", "\nRULED OUT"] {
        assert!(done.stdout.contains(part), "{part:?} in {}", done.stdout);
    }
}

#[test]
fn the_json_reports_of_a_port_and_of_each_process() {
    if !ready("attach --pid") {
        return;
    }
    let pair = Pair::start(&[]);
    let (port, server, client) = (pair.port.to_string(), pair.server.pid(), pair.client.pid());
    let report = attach(&["--port", &port]);
    assert_named(&report, &[server, client]);
    assert_eq!(report.schema, "parshall.verdict/1");
    assert_eq!((report.rung, &report.subject.ports[..]), (Rung::Btf, &[pair.port][..]));
    assert!(report.subject.pids.contains(&server) && report.subject.pids.contains(&client), "{:?}", report.subject);
    for pid in [server, client] {
        let report = attach(&["--pid", &pid.to_string()]);
        assert_named(&report, &[pid]);
        assert_eq!(report.subject.pids, [pid]);
    }
}

/// Servers in Java, Go and Node have an IPv6 socket and see an IPv4 client under an IPv4-mapped address. The two ends must still
/// be matched, so that the delayed-ACK timer of one end is found to release the data of the other.
#[test]
fn an_ipv4_client_of_a_dual_stack_service() {
    if !ready("attach: a dual-stack service") {
        return;
    }
    let pair = Pair::start_with(&["--dual"], &[]);
    for pid in [pair.server.pid(), pair.client.pid()] {
        let report = attach(&["--pid", &pid.to_string()]);
        assert_named(&report, &[pid]);
        assert_eq!(report.verdict.confidence, Confidence::High, "{report:#?}");
    }
}

#[test]
fn a_namespace() {
    let what = "attach --netns";
    if !ready(what) || !has(&["ip"], what) {
        return;
    }
    let mut wire = Command::new(PARSHALL);
    wire.args(["lab", "wire", "veth", "--for", "600s"]);
    // It prints `server NAME ADDRESS` and `client NAME ADDRESS`.
    let (mut wire, lines) = common::start_lines(&mut wire, 2);
    let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
    let ([_, server_ns, address], [_, client_ns, _]) = (&words[0][..], &words[1][..]) else { panic!("{lines:?}") };
    let inside = |namespace: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "python3", &service_py()]);
        command
    };
    let (server, port) = common::serve_with(inside(server_ns).args(["serve", "--host", address]));
    let call = ["call", "--host", address, "--port", &port.to_string()];
    let (client, _) = common::serve_with(inside(client_ns).args(call));
    let report = attach(&["--netns", client_ns]);
    assert_named(&report, &[client.pid()]);
    assert_eq!(report.subject.pids, [client.pid()], "the server is in another namespace");
    assert_named(&attach(&["--port", &port.to_string(), "--netns", "all"]), &[client.pid(), server.pid()]);
    drop((client, server));
    // SIGINT makes it remove its namespaces. If it were killed, the next run would remove them.
    wire.signal("-INT");
    wire.wait_for_end();
}

#[test]
fn a_control_group() {
    let what = "attach --cgroup";
    if !ready(what) {
        return;
    }
    let Some(group) = ControlGroup::create() else {
        return common::skip(what, "no control group can be created here");
    };
    let pair = Pair::start(&[]);
    group.add(pair.client.pid());
    let report = attach(&["--cgroup", group.path().to_str().unwrap()]);
    assert_named(&report, &[pair.client.pid()]);
    assert_eq!(report.subject.pids, [pair.client.pid()]);
    drop(pair);
}

#[test]
fn show_gives_the_same_report_for_a_saved_case() {
    if !ready("attach --save") {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.file("case.json");
    let file = file.to_str().unwrap();
    let pair = Pair::start(&[]);
    let done =
        parshall(&["attach", "--port", &pair.port.to_string(), "--for", "1s", "--format", "json", "--save", file]);
    assert_named(&done.report(), &[pair.server.pid(), pair.client.pid()]);
    drop(pair);
    assert_eq!(parshall(&["show", file, "--format", "json"]).stdout, done.stdout);
}

#[test]
fn with_o_the_report_is_in_a_file_that_only_its_owner_can_read() {
    if !has(&["python3"], "attach -o") {
        return;
    }
    let (running, _) = common::service(&["serve"]);
    let (scratch, pid) = (Scratch::new(), running.pid().to_string());
    let (out, case) = (scratch.file("out"), scratch.file("case.json"));
    let (out_name, case_name) = (out.to_str().unwrap(), case.to_str().unwrap());
    for format in ["text", "json"] {
        let attach = ["attach", "--pid", &pid, "--for", "300ms", "--rung", "procfs", "--format", format];
        let done = parshall(&[&attach[..], &["-o", out_name, "--save", case_name]].concat());
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), "", ""), "{done:?}");
        for file in [&out, &case] {
            assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let (text, shown) =
            (std::fs::read_to_string(&out).unwrap(), parshall(&["show", case_name, "--format", format]));
        assert_eq!(text, shown.stdout);
        assert!(text.contains("parshall") && text.contains("procfs"), "{text}");
        // A device or a pipe is written directly, without a temporary file.
        let done = parshall(&["show", case_name, "--format", format, "-o", "/proc/self/fd/1"]);
        assert_eq!(done.stdout, text);
    }
}

/// Asserts that the ledger of each flow and thread that existed during the whole window sums to the time that was observed, which is
/// the window unless the host is busy.
fn assert_sums(capture: &Capture, server: u32) {
    let (window, observed) = (capture.window_ns as f64, capture.slices.observed_ns as f64);
    let close = |sum: u64, what: &dyn std::fmt::Debug| {
        let error = (sum as f64 - observed).abs() / observed;
        assert!(error <= TOLERANCE, "{what:?}: {sum} of {observed} ns");
    };
    assert_eq!(capture.rung, Rung::Btf);
    let flows: Vec<_> = capture.flows.iter().filter(|f| f.begin_ns == 0 && f.end_ns == capture.window_ns).collect();
    // A listener is not a flow. A connection has a socket at each end.
    assert!(flows.len() >= 2, "{:?}", capture.flows);
    for flow in flows {
        close(flow.cells.iter().map(|cell| cell.ns).sum(), &(flow.local, flow.remote));
        assert_eq!(flow.observed_ns, flow.cells.iter().map(|cell| cell.ns).sum::<u64>());
    }
    let whole = |t: &&parshall_evidence::ThreadRecord| t.begin_ns == 0 && t.end_ns as f64 >= window * (1.0 - TOLERANCE);
    let threads: Vec<_> = capture.threads.iter().filter(whole).collect();
    assert!(threads.iter().filter(|t| t.pid == server).count() >= 2, "{:?}", capture.threads);
    for thread in threads {
        let off: u64 = thread.off_cpu.iter().map(|cell| cell.ns).sum();
        close(thread.on_cpu_ns + off, &(thread.tid, &thread.comm));
    }
}

#[test]
fn every_ledger_sums_to_the_wall_time() {
    if !ready("ledgers") {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.file("case.json");
    for options in [&[][..], &["--nodelay", "--pause-ms", "10"]] {
        let pair = Pair::start(options);
        let (port, began) = (pair.port.to_string(), Instant::now());
        let done = parshall(&["attach", "--port", &port, "--for", "1s", "--save", file.to_str().unwrap()]);
        assert_eq!(done.code, Some(0), "{done:?}");
        let (capture, outside) = (common::capture(&file), began.elapsed());
        // The window is no longer than the whole invocation and no shorter than requested.
        let outside = outside.as_nanos() as f64;
        let window = capture.window_ns as f64;
        assert!(window <= outside && window >= 1e9, "{window} of {outside}");
        assert_sums(&capture, pair.server.pid());
        // With a request every 10 ms both ends are mostly idle, so a ledger with too much time would be noticed.
        let cpu: u64 = capture.threads.iter().map(|thread| thread.cpu_ns).sum();
        assert!((cpu as f64) < window, "{cpu}");
    }
}

/// The ids of the BPF programs and links that a process holds.
fn bpf_ids(pid: u32) -> (Vec<u32>, Vec<u32>) {
    let (mut programs, mut links) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let number = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
        // The fdinfo of a link has the id of its program too.
        if let Some(id) = number("link_id:") {
            links.push(id);
        } else if let Some(id) = number("prog_id:") {
            programs.push(id);
        }
    }
    (programs, links)
}

/// The number of these programs and links that still exist in the kernel.
fn left((programs, links): &(Vec<u32>, Vec<u32>)) -> usize {
    use libbpf_rs::query::{LinkInfoIter, ProgInfoIter};
    let programs = ProgInfoIter::default().filter(|info| programs.contains(&info.id)).count();
    programs + LinkInfoIter::default().filter(|info| links.contains(&info.id)).count()
}

/// Waits until the probes of an observation are attached, and returns their ids.
fn attached(running: &Running) -> (Vec<u32>, Vec<u32>) {
    let mut ids = Default::default();
    // The programs that are always attached, and those of a slice, which may end meanwhile.
    common::until("probes are attached, and exist in the kernel", || {
        ids = bpf_ids(running.pid());
        ids.1.len() > 10 && left(&ids) == ids.0.len() + ids.1.len()
    });
    ids
}

#[test]
fn nothing_stays_attached_after_any_end() {
    if !ready("detaching of probes") {
        return;
    }
    let pair = Pair::start(&[]);
    let port = pair.port.to_string();
    let start = |window: &str| {
        // The tests may have been started with SIGHUP ignored.
        let words = ["--default-signal=HUP", PARSHALL, "attach", "--port", &port, "--format", "json", "--for", window];
        begin_window(Command::new("env").args(words))
    };
    for &signal in common::some_of(&[None, Some("-KILL"), Some("-INT"), Some("-TERM"), Some("-HUP")], 3) {
        let running = start(if signal.is_some() { "60s" } else { "1s" });
        let ids = attached(&running);
        std::thread::sleep(Duration::from_millis(500));
        signal.into_iter().for_each(|signal| running.signal(signal));
        let done = running.finish();
        common::until("the kernel has freed them", || left(&ids) == 0);
        if signal == Some("-KILL") {
            assert_eq!(done.code, None);
            continue;
        }
        let report = done.report();
        assert_eq!(report.rung, Rung::Btf, "{signal:?}");
        assert!(report.window_s > 0.2 && report.window_s < 50.0, "{signal:?}: the shorter window: {}", report.window_s);
        // Half a second with 25 requests/s is enough to name a cause.
        assert!(verdict(&report).starts_with("nagle-"), "{report:#?}");
    }
    // A run after the kill works as usual.
    assert_named(&attach(&["--port", &port]), &[pair.server.pid(), pair.client.pid()]);
}

#[test]
fn memory_is_bounded() {
    if !ready("memory of parshall") {
        return;
    }
    // Many short connections fill the ring buffer fastest.
    let (_server, port) = common::service(&["serve"]);
    let port = port.to_string();
    let _churn: Vec<_> = (0..2).map(|_| common::service(&["churn", "--port", &port])).collect();
    let running = begin(Command::new(PARSHALL).args(["attach", "--port", &port, "--for", "4s", "--format", "json"]));
    let mut peak_kib = 0;
    let until = Instant::now() + Duration::from_millis(4200);
    while Instant::now() < until {
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap_or_default();
        let hwm = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        peak_kib = peak_kib.max(hwm.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(20));
    }
    let report = running.finish().report();
    println!("peak {peak_kib} KiB, at the end {:.1} MiB", report.probe.rss_mib);
    assert!((1..=RSS_MAX_KIB).contains(&peak_kib), "{peak_kib} KiB");
    assert!(report.probe.rss_mib > 1.0 && report.probe.rss_mib * 1024.0 <= RSS_MAX_KIB as f64);
}
