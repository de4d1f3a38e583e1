//! Following: processes that the subject may wait for are found by what connects them, and observed with it. Needs root and Python.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;
use std::time::Duration;

use crate::common::{self, ControlGroup, PARSHALL, Running, Scratch, btf, has};
use parshall_evidence::{Capture, FollowReason, Followed, HopKind};

/// The processes of a chain, in their order.
pub struct Chain {
    /// Ends the others when dropped.
    _first: Running,
    pub port: u16,
    pids: Vec<u32>,
}

impl Chain {
    fn start(arguments: &[&str], processes: usize) -> Self {
        Self::start_in(&["python3"], arguments, processes)
    }

    /// `python` is the interpreter, with what it is started by.
    pub fn start_in(python: &[&str], arguments: &[&str], processes: usize) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/chain.py");
        let mut command = Command::new(python[0]);
        command.args(&python[1..]).arg(script).args(arguments);
        // `ready`, a `hop` of each, and a `left` of each but the first.
        let (first, lines) = common::start_lines(&mut command, 2 * processes);
        let of = |word| lines.iter().filter_map(move |line| line.strip_prefix(word)?.trim().parse::<u32>().ok());
        let port = of("ready ").next().unwrap_or_else(|| panic!("{lines:?}")) as u16;
        Self { _first: first, port, pids: of("hop ").collect() }
    }

    /// Asks it until the chain ends; from this very process, which is so a client of it. When it returns, each process of the chain has
    /// answered once, and so accepted its connection: one that nobody has accepted yet leads to no process.
    pub fn load(&self) {
        let mut client = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut ask = move || client.write_all(&[1; 16]).and_then(|()| client.read_exact(&mut [0; 16]));
        ask().unwrap();
        thread::spawn(move || while ask().is_ok() {});
    }
}

pub fn observe(arguments: &[&str]) -> Capture {
    observe_with(Command::new(PARSHALL), arguments)
}

fn observe_with(mut command: Command, arguments: &[&str]) -> Capture {
    let scratch = Scratch::new();
    let file = scratch.file("case");
    command.args(["attach", "--for", "2s", "--format", "json", "--save"]).arg(&file).args(arguments);
    common::finish(&mut command).report();
    common::capture(&file)
}

fn of(capture: &Capture, pid: u32) -> &Followed {
    let found = capture.followed.iter().find(|followed| followed.pid == pid);
    found.unwrap_or_else(|| panic!("{pid} is not followed: {:#?} {:?}", capture.followed, capture.blind))
}

pub fn ready(what: &str) -> bool {
    has(&["python3"], what) && btf(what)
}

#[test]
fn a_chain_over_tcp_a_unix_socket_and_a_pipe() {
    if !ready("following a chain of processes") {
        return;
    }
    let chain = Chain::start(&["tcp", "unix", "pipe"], 4);
    chain.load();
    for subject in [["--port", &chain.port.to_string()], ["--pid", &chain.pids[0].to_string()]] {
        let capture = observe(&subject);
        let wanted = [FollowReason::TcpServer, FollowReason::UnixSocket, FollowReason::Pipe];
        for (hop, reason) in wanted.into_iter().enumerate() {
            let found = of(&capture, chain.pids[hop + 1]);
            assert_eq!((found.depth, found.from, found.reason), (hop as u32 + 1, chain.pids[hop], reason), "{found:?}");
            assert_eq!((found.since_ns, found.comm.as_str()), (0, "python3"), "{found:?}");
        }
        let flows: Vec<u32> = capture.flows.iter().map(|flow| flow.pid).collect();
        let others = |pid: &u32| chain.pids[1..].contains(pid);
        assert!(!flows.is_empty() && !flows.iter().any(others), "{flows:?}");
        assert!(!capture.subject.pids.iter().any(others), "{:?}", capture.subject);
        assert!(!capture.threads.iter().any(|thread| others(&thread.pid)));
        let foreign = |tid: u32| !capture.threads.iter().any(|thread| thread.tid == tid);
        assert!(!capture.thread_stalls.iter().any(|stall| foreign(stall.tid)));
    }
}

#[test]
fn a_connection_that_is_opened_within_the_window() {
    if !ready("following a connection that is opened late") {
        return;
    }
    let chain = Chain::start(&["late"], 61);
    chain.load();
    let pid = chain.pids[0].to_string();
    let is_late = |one: &Followed| one.since_ns > 0 && one.reason == FollowReason::TcpServer && one.depth == 1;
    // It opens one each second, unless others have the CPUs.
    let found = (0..5).any(|_| observe(&["--pid", &pid]).followed.iter().any(is_late));
    assert!(found, "none was opened late");
}

#[test]
fn two_processes_that_ask_each_other() {
    if !ready("following a cycle") {
        return;
    }
    let chain = Chain::start(&["pair"], 2);
    let capture = observe(&["--pid", &chain.pids[0].to_string()]);
    assert_eq!((of(&capture, chain.pids[1]).depth, capture.subject.pids), (1, vec![chain.pids[0]]));
    assert!(!capture.followed.iter().any(|followed| followed.pid == chain.pids[0]), "{:?}", capture.followed);
}

#[test]
fn clients_are_not_followed() {
    if !ready("following with many clients") {
        return;
    }
    let chain = Chain::start(&[], 1);
    let clients = r#"import os, socket, sys
for _ in range(100):
    if os.fork() == 0:
        c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        os.write(1, b"client %d\n" % os.getpid())
        for fd in range(3): os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        while True:
            c.sendall(b"x" * 16)
            if not c.recv(16): os._exit(0)
sys.stdin.read()
os.killpg(0, 9)"#;
    let port = chain.port.to_string();
    let mut command = Command::new("setsid");
    let (_clients, lines) = common::start_lines(command.args(["python3", "-c", clients, &port]), 100);
    let pids: Vec<u32> = lines.iter().filter_map(|line| line.strip_prefix("client ")?.trim().parse().ok()).collect();
    assert_eq!(pids.len(), 100, "{lines:?}");
    for subject in common::some_of(&[["--port", &port], ["--pid", &chain.pids[0].to_string()]], 1) {
        let capture = observe(subject);
        assert!(!capture.followed.iter().any(|followed| pids.contains(&followed.pid)), "{:#?}", capture.followed);
    }
}

#[test]
fn short_children_of_a_followed_process_are_none_of_the_subject() {
    if !ready("following a process that starts others") {
        return;
    }
    let server = Chain::start(&["forks", "127.0.0.1"], 1);
    let asks = Chain::start(&["ask", "127.0.0.1", &server.port.to_string()], 1);
    asks.load();
    let capture = observe(&["--pid", &asks.pids[0].to_string()]);
    assert_eq!(of(&capture, server.pids[0]).reason, FollowReason::TcpServer);
    assert_eq!(capture.subject.pids, asks.pids);
    let strangers: Vec<_> = capture.threads.iter().filter(|thread| thread.pid != asks.pids[0]).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    assert_eq!((capture.net.opened, capture.net.accepted.len()), (0, 0), "{:?}", capture.net);
}

/// Asks a port of its own network namespace, for at most a minute.
const LOAD: &str = "
import socket, sys, time
client, end = socket.create_connection(('127.0.0.1', int(sys.argv[1]))), time.time() + 60
while time.time() < end:
    client.sendall(b'x' * 16)
    client.recv(16)
";

#[test]
fn a_server_in_another_network_namespace() {
    let what = "following into another network namespace";
    if !ready(what) || !has(&["ip"], what) {
        return;
    }
    let mut wire = Command::new(PARSHALL);
    // It says `server NAME ADDRESS` and `client NAME ADDRESS`.
    let (mut wire, lines) = common::start_lines(wire.args(["lab", "wire", "veth", "--for", "600s"]), 2);
    let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
    let ([_, server_ns, address], [_, client_ns, _]) = (&words[0][..], &words[1][..]) else { panic!("{lines:?}") };
    let inside =
        |namespace, arguments: &[&str]| Chain::start_in(&["ip", "netns", "exec", namespace, "python3"], arguments, 1);
    let server = inside(server_ns, &["serve", address]);
    let asks = inside(client_ns, &["ask", address, &server.port.to_string()]);
    let capture = observe(&["--pid", &asks.pids[0].to_string()]);
    let found = of(&capture, server.pids[0]);
    assert_eq!((found.reason, found.depth, found.since_ns), (FollowReason::TcpServer, 1, 0));
    // With a connection for each question, none is open when it is searched for.
    let each = inside(client_ns, &["each", address, &server.port.to_string()]);
    let load = Command::new("ip")
        .args(["netns", "exec", client_ns, "python3", "-c", LOAD, &each.port.to_string()])
        .stdin(std::process::Stdio::piped())
        .spawn();
    let capture = observe(&["--pid", &each.pids[0].to_string()]);
    assert_eq!(of(&capture, server.pids[0]).reason, FollowReason::TcpServer);
    load.unwrap().kill().unwrap();
    drop((server, asks, each));
    // It removes its namespaces; after a kill the next one would.
    wire.signal("-INT");
    wire.wait_for_end();
}

#[test]
fn who_may_not_be_seen_is_reported() {
    let what = "a process on the way that may not be seen";
    if !ready(what) || !has(&["setpriv"], what) {
        return;
    }
    // Without this capability, the descriptors of processes that have it may not be read.
    let humble = ["setpriv", "--bounding-set", "-sys_ptrace"];
    let server = Chain::start(&["serve", "127.0.0.1"], 1);
    let python = [&humble[..], &["python3"]].concat();
    let asks = Chain::start_in(&python, &["ask", "127.0.0.1", &server.port.to_string()], 1);
    let mut command = Command::new(humble[0]);
    command.args(&humble[1..]).arg(PARSHALL);
    let capture = observe_with(command, &["--pid", &asks.pids[0].to_string()]);
    assert!(!capture.followed.iter().any(|followed| followed.pid == server.pids[0]), "{:?}", capture.followed);
    let address = format!("who answers at 127.0.0.1:{} could not be seen", server.port);
    let note = capture.blind.iter().find(|note| note.contains(&address));
    assert!(note.is_some_and(|note| note.contains("may not be read")), "{:?}", capture.blind);
}

#[test]
fn what_happens_to_followed_processes_is_not_counted_as_the_subjects() {
    if !ready("counts of the subject beside those of a followed process") {
        return;
    }
    let server = Chain::start(&["serve", "127.0.0.1"], 1);
    let asks = Chain::start(&["ask", "127.0.0.1", &server.port.to_string()], 1);
    asks.load();
    // Closed with a reply unread, a connection is reset.
    let (ends, ended) = channel::<()>();
    let port = server.port;
    let checking = thread::spawn(move || {
        let mut checks = 0;
        while ended.try_recv() == Err(TryRecvError::Empty) {
            let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            client.write_all(&[1; 16]).unwrap();
            client.peek(&mut [0]).unwrap();
            checks += 1;
        }
        checks
    });
    let capture = observe(&["--pid", &asks.pids[0].to_string()]);
    let all = observe(&["--pid", &server.pids[0].to_string()]);
    drop(ends);
    assert!(checking.join().unwrap() > 20);
    of(&capture, server.pids[0]);
    let net = &capture.net;
    let counts = (net.resets_sent, net.resets_received, net.opened, net.closed, net.accepted.len());
    assert_eq!(counts, (0, 0, 0, 0, 0), "{net:?}");
    // Asked about itself, they are its own.
    let accepted: Vec<_> = all.net.accepted.iter().map(|accepted| accepted.port).collect();
    assert!(all.net.resets_received > 10 && all.net.closed > 10 && accepted == [port], "{:?}", all.net);
}

/// The targets of a kind of wait in the services of a capture.
pub fn targets(capture: &Capture, kind: HopKind) -> Vec<String> {
    let services = parshall_core::judge::services(capture);
    let hops = services.into_iter().flat_map(|service| service.path).flat_map(|part| part.hops);
    hops.filter(|hop| hop.kind == kind).map(|hop| hop.target).collect()
}

/// A process that always serves a request, or would if it were not stopped.
fn loaded() -> (Chain, String) {
    let chain = Chain::start(&["serve", "127.0.0.1"], 1);
    chain.load();
    let pid = chain.pids[0].to_string();
    (chain, pid)
}

/// On a busy host the slices may miss every request that was stopped, so it may observe again.
fn assert_stopped_by(by: &str, chain: &Chain) {
    for _ in 0..10 {
        let capture = observe(&["--port", &chain.port.to_string()]);
        let found = targets(&capture, HopKind::Stopped);
        assert!(found.iter().all(|target| *target == by), "{found:?}, not {by}");
        if !found.is_empty() {
            return;
        }
    }
    panic!("no request was stopped");
}

#[test]
fn who_stops_a_process_is_named() {
    if !ready("who stops a process") {
        return;
    }
    let (chain, pid) = loaded();
    let stops = r#"echo "stopper $$"; while :; do kill -STOP "$0"; sleep 0.1; kill -CONT "$0"; sleep 0.1; done"#;
    let (stopper, _) = common::start_lines(Command::new("bash").args(["-c", stops, &pid]), 1);
    assert_stopped_by(&format!("bash {} (SIGSTOP)", stopper.pid()), &chain);
    drop(stopper);
    Command::new("kill").args(["-CONT", &pid]).status().unwrap();
}

/// Stops a process for 0.1 s, five times a second, as a debugger does.
const DEBUGGER: &str = "
import ctypes, os, sys, time
SEIZE, INTERRUPT, CONT, WALL = 0x4206, 0x4207, 7, 0x40000000
libc, threads = ctypes.CDLL(None, use_errno=True), [int(tid) for tid in os.listdir(f'/proc/{sys.argv[1]}/task')]
def ptrace(request):
    for tid in threads:
        if libc.ptrace(request, tid, None, None) < 0:
            sys.exit(os.strerror(ctypes.get_errno()))
ptrace(SEIZE)
print('debugger', os.getpid(), flush=True)
while True:
    ptrace(INTERRUPT)
    for tid in threads:
        os.waitpid(tid, WALL)
    time.sleep(0.1)
    ptrace(CONT)
    time.sleep(0.1)
";

#[test]
fn a_debugger_that_stops_a_process_is_named() {
    if !ready("a debugger that stops a process") {
        return;
    }
    let (chain, pid) = loaded();
    let (debugger, _) = common::start_lines(Command::new("python3").args(["-c", DEBUGGER, &pid]), 1);
    assert_stopped_by(&format!("python3 {} (ptrace)", debugger.pid()), &chain);
}

#[test]
fn the_freezer_that_stops_a_process_is_named() {
    let what = "the freezer that stops a process";
    if !ready(what) {
        return;
    }
    let Some(group) = ControlGroup::with_freezer() else {
        return parshall_testkit::skip(what, "no control group of version 2 can be made");
    };
    let (chain, _) = loaded();
    group.add(chain.pids[0]);
    let by = format!("the freezer of /{}", group.path().file_name().unwrap().display());
    let (ends, ended) = channel::<()>();
    let freezing = thread::spawn(move || {
        while ended.try_recv() == Err(TryRecvError::Empty) {
            for stopped in [true, false] {
                group.freeze(stopped);
                thread::sleep(Duration::from_millis(100));
            }
        }
    });
    assert_stopped_by(&by, &chain);
    drop(ends);
    freezing.join().unwrap();
}
