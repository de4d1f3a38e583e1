//! `try` on real processes: a change that helps and one that does not, and that every end of a trial reverts its changes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::common::{
    self, Done, NOBODY, PARSHALL, Pair, Running, Scratch, begin, finish, has, parshall, service, until,
};
use parshall_evidence::{TrialReport, TrialStatus};
use parshall_host::proc_fs;
use parshall_sys::pidfd::Pidfd;
use parshall_sys::{socket_option, thread_setting};

/// Short windows, because the effects that are tested here show in each window.
pub const SHORT: [&str; 5] = ["--yes", "--pairs", "3", "--window", "300ms"];

pub fn ready(what: &str) -> bool {
    has(&["python3"], what) && common::btf(what)
}

pub fn trial(arguments: &[&str]) -> TrialReport {
    let done = parshall(&[&["try"], arguments, &SHORT, &["--format", "json"]].concat());
    result(&done)
}

pub fn result(done: &Done) -> TrialReport {
    assert_eq!(done.code, Some(0), "{done:?}");
    let report: TrialReport =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("one result: {e}: {done:?}"));
    assert_eq!(report.schema, "parshall.trial/1");
    assert!(report.reverted.failed.is_empty(), "{report:#?}");
    report
}

/// TCP_NODELAY of the connections of a process, read in the same way as by the trial.
pub fn nodelay(pid: u32) -> Vec<bool> {
    connections(pid, |fd| socket_option::number(fd, socket_option::Number::NoDelay).unwrap() != 0)
}

/// The results of `read` for each connection of a process.
fn connections<T>(pid: u32, read: impl Fn(BorrowedFd<'_>) -> T) -> Vec<T> {
    sockets(pid, true, read)
}

/// The results of `read` for each connection of a process, or for each of its listening sockets.
fn sockets<T>(pid: u32, connected: bool, read: impl Fn(BorrowedFd<'_>) -> T) -> Vec<T> {
    let process = Pidfd::open(pid).unwrap();
    let copies = proc_fs::sockets(pid).into_iter().filter_map(|(fd, _)| process.get_socket(fd).ok());
    let wanted = |copy: &OwnedFd| socket_option::connected_port(copy.as_fd()).is_some() == connected;
    copies.filter(wanted).map(|copy| read(copy.as_fd())).collect()
}

/// Starts a trial that the test ends before it is done.
pub fn start(arguments: &[&str]) -> Running {
    let mut command = Command::new(PARSHALL);
    begin(command.arg("try").args(arguments).args(["--yes", "--pairs", "20", "--window", "400ms"]))
}

#[test]
#[ignore = "make test-all"]
fn nodelay_makes_no_difference_if_the_client_has_it() {
    if !ready("try: a client with TCP_NODELAY") {
        return;
    }
    let pair = Pair::start(&["--nodelay", "--pause-ms", "1"]);
    // The server writes each reply at once, so its TCP_NODELAY has no effect. A 99 % interval is sometimes wrong.
    let mut reports = (0..3).map(|_| trial(&["nodelay", "--port", &pair.port.to_string()]));
    let report = reports.find(|report| report.outcome.status == TrialStatus::NoDifference).expect("one of three");
    assert_eq!((report.places.seen, report.places.changed, report.places.in_place), (2, 1, 1), "{report:#?}");
    assert!(report.figures[0].detectable > 0.0 && report.figures[0].detectable.is_finite());
}

#[test]
fn a_setting_that_is_already_in_place_is_not_changed() {
    if !ready("try: a setting that is in place") {
        return;
    }
    let pair = Pair::start(&["--pause-ms", "1"]);
    let algorithm = connections(pair.client.pid(), |fd| socket_option::congestion(fd).unwrap()).remove(0);
    let report = trial(&[&format!("congestion={algorithm}"), "--port", &pair.port.to_string()]);
    assert_eq!(report.outcome.status, TrialStatus::InPlace, "{report:#?}");
    assert!(report.windows.is_empty() && report.places.changed == 0 && report.places.in_place == 2);
}

#[test]
fn an_idle_service_is_not_changed() {
    if !ready("try: an idle service") {
        return;
    }
    let (idle, port) = service(&["idle"]);
    let report = trial(&["nodelay", "--port", &port.to_string()]);
    assert_eq!(report.outcome.status, TrialStatus::InsufficientEvidence, "{report:#?}");
    assert_eq!((report.windows.len(), report.places.changed), (1, 0));
    drop(idle);
}

#[test]
fn a_killed_trial_leaves_nothing_changed() {
    if !ready("try: killed") {
        return;
    }
    let pair = Pair::start(&["--pause-ms", "1"]);
    let port = pair.port.to_string();
    let (client, server) = (pair.client.pid(), pair.server.pid());
    let both = || [nodelay(client), nodelay(server)].concat();
    // While the change is in place, with each signal that ends a process. SIGKILL cannot be handled.
    for &signal in common::some_of(&["-KILL", "-INT", "-TERM", "-HUP"], 2) {
        let trial = start(&["nodelay", "--port", &port]);
        until("both ends are changed", || both() == [true, true]);
        trial.signal(signal);
        until("both ends are as before", || both() == [false, false]);
        drop(trial);
    }
    // At different times, so that each phase is interrupted: the search for places, a window, the change, the reversal.
    for &ms in common::some_of(&[600, 20, 250, 1300], 2) {
        let trial = start(&["nodelay", "--port", &port]);
        thread::sleep(Duration::from_millis(ms));
        trial.signal("-KILL");
        drop(trial);
        // The guardian holds a lock for the process until it has reverted everything.
        until("the guardian has ended", || {
            let path = format!("/proc/{client}/stat");
            parshall_sys::file_lock::FileLock::take_existing(path.as_ref()).unwrap().is_some()
        });
        assert_eq!(both(), [false, false], "killed after {ms} ms");
    }
}

#[test]
fn affinity_and_nice_of_threads_are_restored() {
    if !ready("try affinity and nice") {
        return;
    }
    let pair = Pair::start(&["--nodelay", "--pause-ms", "1"]);
    let (port, pid) = (pair.port.to_string(), pair.server.pid());
    let threads = || proc_fs::threads(pid);
    let cpus = || threads().into_iter().filter_map(|tid| thread_setting::cpus(tid).ok()).collect::<Vec<_>>();
    let nice = || threads().into_iter().filter_map(|tid| thread_setting::nice(tid).ok()).collect::<Vec<_>>();
    let (cpus_before, nice_before) = (cpus(), nice());
    if cpus_before[0].len() > 1 {
        let trial = start(&["affinity=0", "--port", &port]);
        until("the affinity is set", || cpus().iter().all(|cpus| cpus == &[0]));
        let guardians = trial.children();
        trial.signal("-KILL");
        until("the affinity is restored", || cpus() == cpus_before);
        // Until then, another trial is refused. What has ended and was not waited for has no command line.
        let runs = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
        until("its guardian has ended", || !guardians.iter().any(runs));
    }
    let trial = start(&["nice=5", "--port", &port]);
    until("the nice value is set", || nice().iter().all(|&nice| nice == 5));
    // A thread that a changed thread starts inherits the value, which must be reverted too.
    let (late, _) = service(&["call", "--port", &port, "--nodelay", "--pause-ms", "1"]);
    until("a thread serves it", || nice().len() > nice_before.len() && nice().iter().all(|&nice| nice == 5));
    trial.signal("-INT");
    let done = trial.finish();
    assert_eq!(done.orderly().code, Some(0), "{done:?}");
    assert!(nice().iter().all(|nice| *nice == nice_before[0]), "{:?}", nice());
    drop(late);
}

/// A server of one connection that confines itself after it has started a child, which ends with it.
const PINNED_SERVER: &str = "
import os, socket, subprocess, sys
child = subprocess.Popen(['sh', '-c', 'read line'], stdin=subprocess.PIPE)
os.sched_setaffinity(0, {0})
os.setpriority(os.PRIO_PROCESS, 0, 5)
listener = socket.create_server(('127.0.0.1', 0))
print('ready', listener.getsockname()[1], child.pid, flush=True)
connection, _ = listener.accept()
while data := connection.recv(100):
    connection.sendall(data)
";

#[test]
fn children_that_already_had_the_value_keep_it() {
    if !ready("try affinity and nice beside a child") || !has(&["python3"], "try beside a child") {
        return;
    }
    let (server, lines) = common::start_lines(Command::new("python3").args(["-c", PINNED_SERVER]), 1);
    let numbers: Vec<u32> = lines[0].split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect();
    let (port, child) = (numbers[0] as u16, numbers[1]);
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    thread::spawn(move || {
        while client.write_all(b"x").is_ok() && client.read_exact(&mut [0]).is_ok() {
            thread::sleep(Duration::from_millis(2));
        }
    });
    let state = |pid| (thread_setting::cpus(pid).unwrap(), thread_setting::nice(pid).unwrap());
    let before = (state(server.pid()), state(child));
    let cpus = before.1.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    for change in common::some_of(&["nice=0".to_owned(), format!("affinity={cpus}")], 1) {
        let port = port.to_string();
        let quick = ["try", change, "--port", &port, "--yes", "--pairs", "3", "--window", "200ms", "--format", "json"];
        let report = result(&parshall(&quick));
        assert!(report.places.changed > 0 || cpus == "0", "{change}: {report:#?}");
        assert_eq!((state(server.pid()), state(child)), before, "{change}: {report:#?}");
    }
}

#[test]
fn socket_settings_are_restored_and_buffers_unlocked() {
    if !ready("try rcvbuf") {
        return;
    }
    let pair = Pair::start(&["--nodelay", "--pause-ms", "1"]);
    let buffer = |pid| connections(pid, |fd| socket_option::buffer(fd, socket_option::Buffer::Receive).unwrap());
    let before = buffer(pair.client.pid());
    let changes =
        ["rcvbuf=64KiB", "congestion=reno", "sndbuf=64KiB", "notsent-lowat=16KiB", "pacing=100MB/s", "quickack"];
    for change in common::some_of(&changes, 2) {
        // The effect of the change is not asked here.
        let pid = pair.client.pid().to_string();
        let quick = ["try", change, "--pid", &pid, "--yes", "--pairs", "3", "--window", "200ms", "--format", "json"];
        let report = result(&parshall(&quick));
        assert_eq!((report.places.changed, report.reverted.restored), (1, 1), "{change}: {report:#?}");
    }
    let after = buffer(pair.client.pid());
    // The size is not compared, because the kernel tunes an unlocked buffer.
    assert!(!before[0].locked && !after[0].locked, "{before:?} {after:?}");
    let client = pair.client.pid();
    assert_eq!(connections(client, |fd| socket_option::max_pacing_rate(fd).unwrap()), [u64::MAX]);
    assert_ne!(connections(client, |fd| socket_option::congestion(fd).unwrap()), ["reno"]);
}

#[test]
fn a_sysctl_is_changed_only_in_the_namespace_of_the_service() {
    let what = "try with a sysctl";
    if !ready(what) || !has(&["unshare", "ip", "nsenter"], what) {
        return;
    }
    let script = format!("ip link set lo up; exec python3 {} fork", common::service_py());
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child", "sh", "-c", &script]);
    let (inside, port) = common::serve_with(&mut command);
    let parent = inside.children()[0];
    let sysctl = |enter: bool| {
        let mut command = Command::new(if enter { "nsenter" } else { "cat" });
        if enter {
            command.args(["-t", &parent.to_string(), "-n", "cat"]);
        }
        finish(command.arg("/proc/sys/net/ipv4/tcp_retries2")).stdout.trim().to_owned()
    };
    let (before, own) = (sysctl(true), sysctl(false));
    let trial = start(&["net.ipv4.tcp_retries2=7", "--port", &port.to_string(), "--netns", "all"]);
    until("the sysctl is set", || sysctl(true) == "7");
    assert_eq!(sysctl(false), own, "the sysctl of this namespace is unchanged");
    trial.signal("-KILL");
    until("the sysctl is restored", || sysctl(true) == before);
    // A sysctl that does not exist, and one that cannot be read.
    for name in ["net.ipv4.no_such_sysctl=1", "net.ipv4.route.flush=1"] {
        let done = parshall(&[&["try", name, "--port", &port.to_string(), "--netns", "all"], &SHORT[..]].concat());
        assert_eq!(done.code, Some(1), "{done:?}");
        done.error_and_hint();
    }
}

#[test]
fn connections_that_are_opened_during_the_trial_are_changed_and_restored() {
    if !ready("try: new connections") {
        return;
    }
    let pair = Pair::start(&["--pause-ms", "1"]);
    let port = pair.port.to_string();
    let mut command = Command::new(PARSHALL);
    command.args(["try", "nodelay", "--port", &port, "--yes", "--pairs", "3", "--window", "400ms", "--format", "json"]);
    let trial = begin(&mut command);
    until("the change is made", || nodelay(pair.client.pid()) == [true]);
    let (late, _) = service(&["call", "--port", &port, "--pause-ms", "1"]);
    until("the new connection is changed", || nodelay(late.pid()) == [true]);
    let report = result(&trial.finish());
    assert_eq!((report.places.seen, report.places.changed, report.places.late), (4, 4, 2), "{report:#?}");
    assert_eq!((nodelay(late.pid()), nodelay(pair.server.pid())), (vec![false], vec![false, false]));
}

#[test]
fn connections_for_one_request_inherit_the_setting_of_their_listener() {
    if !ready("try: a connection for each request") {
        return;
    }
    let (server, port) = service(&["serve"]);
    let (churn, _) = service(&["churn", "--port", &port.to_string()]);
    let on = |fd: BorrowedFd<'_>| socket_option::number(fd, socket_option::Number::NoDelay).unwrap() != 0;
    let listener = || sockets(server.pid(), false, on);
    let trial = start(&["nodelay", "--port", &port.to_string()]);
    until("the listener is changed", || listener() == [true]);
    until("accepted connections have the setting", || sockets(server.pid(), true, on).contains(&true));
    trial.signal("-KILL");
    until("the listener is restored", || listener() == [false]);
    until("accepted connections are restored", || sockets(server.pid(), true, on).iter().all(|on| !on));
    drop(churn);
}

#[test]
fn one_trial_at_a_time() {
    if !ready("try: a second trial") {
        return;
    }
    let pair = Pair::start(&["--pause-ms", "1"]);
    let first = start(&["nodelay", "--port", &pair.port.to_string()]);
    until("the first trial has made its change", || nodelay(pair.client.pid()) == [true]);
    let second = parshall(&[&["try", "quickack", "--pid", &pair.server.pid().to_string()], &SHORT[..]].concat());
    assert_eq!(second.code, Some(1));
    let (error, _) = error_after_the_plan(&second);
    assert!(error.contains("another trial"), "{error}");
    drop(first);
}

/// The error and the hint, which are the last two lines after the plan of the trial.
fn error_after_the_plan(done: &Done) -> (String, String) {
    let lines: Vec<&str> = done.orderly().stderr.lines().collect();
    let [.., error, hint] = lines[..] else { panic!("{done:?}") };
    assert!(error.starts_with("error: ") && hint.starts_with("hint: ") && done.stdout.is_empty(), "{done:?}");
    (error.to_owned(), hint.to_owned())
}

#[test]
fn a_process_that_ends_during_the_trial_is_an_error() {
    if !ready("try: a process that ends") {
        return;
    }
    let mut pair = Pair::start(&["--pause-ms", "1"]);
    let trial = start(&["nodelay", "--pid", &pair.server.pid().to_string()]);
    until("the change is made", || nodelay(pair.server.pid()) == [true]);
    pair.server.end();
    let done = trial.finish();
    assert_eq!(done.code, Some(1), "{done:?}");
    let (error, _) = error_after_the_plan(&done);
    assert!(error.contains("ended"), "{error}");
}

#[test]
fn invalid_arguments_and_subjects_are_errors() {
    let without_terminal = finish(Command::new(PARSHALL).args(["try", "nodelay", "--pid", "1"]));
    assert_eq!(without_terminal.code, Some(2));
    assert!(without_terminal.error_and_hint().1.contains("--yes"), "{without_terminal:?}");
    for arguments in [
        &["try"][..],
        &["try", "nodelay", "--yes"],
        &["try", "--port", "7000", "--yes"],
        &["try", "nodelay", "--port", "7000", "--pid", "1", "--yes"],
        &["try", "nodelya", "--pid", "1", "--yes"],
        &["try", "rcvbuf", "--pid", "1", "--yes"],
        &["try", "nodelay", "--pid", "1", "--yes", "--pairs", "2"],
        &["try", "nodelay", "--pid", "1", "--yes", "--window", "1"],
    ] {
        let done = parshall(arguments);
        assert_eq!(done.code, Some(2), "{arguments:?}: {done:?}");
        done.error_and_hint();
    }
    for arguments in [["nodelay", "--pid", "4000000"], ["nodelay", "--port", "1"], ["congestion=no-such", "--pid", "1"]]
    {
        let done = parshall(&[&["try"], &arguments[..], &["--yes"]].concat());
        assert_eq!(done.code, Some(1), "{arguments:?}: {done:?}");
        done.error_and_hint();
    }
    // A process without a TCP connection.
    let sleeper = begin(Command::new("sleep").arg("30"));
    let done = parshall(&["try", "nodelay", "--pid", &sleeper.pid().to_string(), "--yes"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.error_and_hint().0.contains("no open TCP connection"), "{done:?}");
}

#[test]
fn an_unprivileged_user_gets_an_error() {
    let what = "try without privileges";
    if !has(&["python3"], what) || !common::root(what) {
        return;
    }
    let pair = Pair::start(&["--pause-ms", "1"]);
    let scratch = Scratch::shared();
    let copy = scratch.parshall();
    for subject in [["--port", &pair.port.to_string()], ["--pid", &pair.client.pid().to_string()]] {
        let mut command = Command::new(&copy);
        command.args(["try", "nodelay", "--yes"]).args(subject).uid(NOBODY).gid(NOBODY);
        let done = finish(&mut command);
        assert_eq!(done.code, Some(1), "{done:?}");
        assert!(done.error_and_hint().1.contains("root"), "{done:?}");
    }
    assert_eq!(nodelay(pair.client.pid()), [false]);
}
