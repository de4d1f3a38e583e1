//! `attach --port`: in which network namespaces the port is looked up, and services on UDP or that splice. Needs root and Python.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{self, PARSHALL, Running, Scratch, has, parshall, verdict};
use parshall_evidence::timeline::Op;
use parshall_evidence::{Capture, Report, Service, Status, Transport};
use socket2::{Domain, Protocol, Socket, Type};

pub fn ready(what: &str) -> bool {
    has(&["python3", "ip"], what) && common::btf(what)
}

/// `common/echo.py`, behind the command that starts it.
pub fn echo(before: &[&str], arguments: &[&str]) -> (Running, u16) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/echo.py");
    let words = [before, &["python3", script], arguments].concat();
    common::serve_with(Command::new(words[0]).args(&words[1..]))
}

/// Asks a UDP service over one socket until the process ends: `burst` datagrams, then a pause. A reply may be missing.
pub fn ask(port: u16, burst: usize, pause: Duration) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    thread::spawn(move || {
        let mut reply = [0; 512];
        for _ in 0..100_000 {
            for _ in 0..burst {
                let _ = socket.send(&[1; 200]);
            }
            if burst == 1 {
                let _ = socket.recv(&mut reply);
            }
            thread::sleep(pause);
        }
    });
}

/// The report on a port, and the capture that it was made from.
pub fn attach(port: u16) -> (Report, Capture) {
    let (scratch, number) = (Scratch::new(), port.to_string());
    let file = scratch.file("case");
    let words = ["attach", "--port", &number, "--for", "1s", "--format", "json", "--save", file.to_str().unwrap()];
    let report = parshall(&words).report();
    (report, common::capture(&file))
}

pub fn udp_service(capture: &Capture, port: u16) -> Service {
    let services = parshall_core::judge::services(capture);
    let found = services.iter().find(|s| s.transport == Transport::Udp && s.address.port() == port).cloned();
    found.unwrap_or_else(|| panic!("{services:#?} {:?}", capture.blind))
}

/// The service that is served at a port.
fn served(capture: &Capture, port: u16) -> Option<Service> {
    let mut services = parshall_core::judge::services(capture).into_iter();
    services.find(|service| !service.outbound && service.address.port() == port)
}

/// Asks a service until it ends, with so many requests on each connection.
fn ask_over(port: u16, protocol: Protocol, requests: usize) {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    thread::spawn(move || {
        loop {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).unwrap();
            if socket.connect(&address.into()).is_err() {
                break;
            }
            let mut client = TcpStream::from(socket);
            for _ in 0..requests {
                if client.write_all(&[1; 100]).and_then(|()| client.read_exact(&mut [0; 100])).is_err() {
                    break;
                }
            }
        }
    });
}

/// Go's default since 1.24.
#[test]
fn a_listener_of_mptcp_is_observed_as_one_of_tcp_is() {
    let what = "attach --port: a listener of MPTCP";
    if !ready(what) {
        return;
    }
    if Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).is_err() {
        return parshall_testkit::skip(what, "this kernel has no MPTCP");
    }
    for protocol in [Protocol::TCP, Protocol::MPTCP] {
        let (server, port) = echo(&[], &["mptcp", "127.0.0.1", "0", "20"]);
        ask_over(port, protocol, 1);
        let (report, capture) = attach(port);
        if protocol == Protocol::MPTCP {
            // The probes do not see who reads and writes, and say so.
            assert!(report.blind.iter().any(|note| note.contains("of MPTCP moved data")), "{report:#?}");
        } else {
            let served = served(&capture, port);
            let served = served.unwrap_or_else(|| panic!("{protocol:?}: {report:#?}"));
            assert_eq!(served.pids, [server.pid()], "{protocol:?}: {served:#?}");
            assert!(served.requests >= 5 && served.p50_ns >= Some(15_000_000), "{protocol:?}: {served:#?}");
            assert_eq!(verdict(&report), "timer-wait", "{protocol:?}: {report:#?}");
        }
        // It samples, and sees little of connections that live for 20 ms.
        let (server, port) = echo(&[], &["mptcp", "127.0.0.1", "0", "20"]);
        ask_over(port, protocol, usize::MAX);
        let port = port.to_string();
        let words = ["attach", "--port", &port, "--for", "1s", "--rung", "procfs", "--format", "json"];
        let report = parshall(&words).report();
        assert!(report.subject.pids.contains(&server.pid()), "{protocol:?}: {report:#?}");
        assert_eq!(report.verdict.status, Status::Cause, "{protocol:?}: {report:#?}");
    }
}

#[test]
#[ignore = "make test-all"]
fn a_service_in_go_listens_by_mptcp() {
    let what = "attach --port: a service in Go";
    if !ready(what) || !has(&["go", "curl"], what) {
        return;
    }
    let (scratch, source) = (Scratch::new(), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/go/sleeps.go"));
    let program = scratch.file("sleeps");
    assert!(Command::new("go").args(["build", "-o"]).arg(&program).arg(source).status().unwrap().success());
    let (server, port) = common::serve_with(&mut Command::new(&program));
    let url = format!("http://127.0.0.1:{port}/");
    let ask = format!("while curl -s -o /dev/null {url}; do :; done");
    let asking = common::begin(Command::new("sh").args(["-c", &ask]));
    let (report, capture) = attach(port);
    drop(server);
    drop(asking);
    let served = served(&capture, port);
    assert!(served.is_some_and(|service| service.requests >= 5 && service.p50_ns >= Some(15_000_000)), "{report:#?}");
    assert_eq!(verdict(&report), "timer-wait", "{report:#?}");
}

#[test]
fn a_udp_service_that_sleeps_in_each_request() {
    if !ready("attach --port: a slow UDP service") {
        return;
    }
    let (server, port) = echo(&[], &["udp", "127.0.0.1", "0", "20"]);
    ask(port, 1, Duration::from_millis(1));
    let (report, capture) = attach(port);
    let service = udp_service(&capture, port);
    assert_eq!((service.pids.as_slice(), service.outbound), (&[server.pid()][..], false), "{service:#?}");
    assert!(service.requests >= 5 && service.p50_ns >= Some(15_000_000), "{service:#?}");
    assert!(report.subject.pids.contains(&server.pid()) && report.subject.ports == [port], "{:?}", report.subject);
    assert_eq!(verdict(&report), "timer-wait", "{report:#?}");
    assert_eq!(report.findings[0].place.pid, Some(server.pid()), "{report:#?}");
}

#[test]
fn a_udp_service_whose_receive_buffer_overflows() {
    if !ready("attach --port: a UDP service that drops") {
        return;
    }
    let (server, port) = echo(&[], &["udp", "127.0.0.1", "0", "1", "2304"]);
    ask(port, 20, Duration::from_millis(10));
    let (report, capture) = attach(port);
    let counters = capture.counters.as_ref().unwrap();
    assert!(
        counters.udp.iter().any(|u| u.local.port() == port && u.pid == server.pid() && u.drops > 0),
        "{counters:#?}"
    );
    assert_eq!(verdict(&report), "udp-rcvbuf-overflow", "{report:#?}");
}

#[test]
fn datagrams_that_a_client_loses_are_none_of_the_service() {
    if !ready("attach --port: a client that loses datagrams") {
        return;
    }
    // Long enough to be most of a request's time beside other tests.
    let (_server, port) = echo(&[], &["tcp", "127.0.0.1", "0", "30"]);
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    thread::spawn(move || while client.write_all(&[1; 200]).is_ok() && client.read_exact(&mut [0; 200]).is_ok() {});
    // This process is the client. Nobody reads the socket.
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, sender) = (receiver.local_addr().unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let ended = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&ended);
    let sends = thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            sender.send_to(&[0; 1000], address).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    });
    let (report, capture) = attach(port);
    ended.store(true, Ordering::Relaxed);
    sends.join().unwrap();
    let counters = capture.counters.unwrap();
    assert!(!counters.udp.iter().any(|udp| udp.local == address), "{:?}", counters.udp);
    assert_eq!(verdict(&report), "timer-wait", "{report:#?}");
}

#[test]
fn requests_that_are_read_with_splice() {
    let what = "attach --port: a service that splices";
    if !ready(what) {
        return;
    }
    let (server, port) = echo(&[], &["splice", "127.0.0.1", "0", "30"]);
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_nodelay(true).unwrap();
    thread::spawn(move || while client.write_all(&[1; 200]).is_ok() && client.read_exact(&mut [0; 200]).is_ok() {});
    thread::sleep(Duration::from_millis(300));
    let (report, capture) = attach(port);
    let service = served(&capture, port).unwrap_or_else(|| panic!("{report:#?}"));
    assert_eq!(service.pids, [server.pid()]);
    // The probe that follows splice() is attached once it is seen, and the window begins anew: no reply is without its request, but for the
    // first one of a slice.
    let timeline = capture.timeline.as_ref().unwrap();
    let count = |op| {
        let calls = timeline.calls.iter().filter(|(id, _)| timeline.sockets[*id].serves).flat_map(|(_, calls)| calls);
        calls.filter(|call| call.op == op).count()
    };
    let (read, sent) = (count(Op::Receive), count(Op::Send));
    assert!(sent <= read + timeline.slices.len(), "{sent} replies to {read} requests");
    assert!(service.requests >= 5 && service.p50_ns >= Some(25_000_000), "{service:#?}");
    // On a busy host its requests wait for a CPU, too.
    assert!(report.findings.iter().any(|finding| finding.cause == "timer-wait"), "{report:#?}");
}

#[test]
fn a_port_is_that_of_the_namespace_in_which_it_is_typed() {
    let what = "attach --port: network namespaces";
    if !ready(what) {
        return;
    }
    let mut wire = Command::new(PARSHALL);
    // It prints `server NAME ADDRESS` and `client NAME ADDRESS`.
    let (mut wire, lines) = common::start_lines(wire.args(["lab", "wire", "veth", "--for", "600s"]), 2);
    let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
    let ([_, first, address], [_, second, _]) = (&words[0][..], &words[1][..]) else { panic!("{lines:?}") };
    let inside = |namespace| ["ip", "netns", "exec", namespace];
    let (there, port) = echo(&inside(first), &["tcp", "0.0.0.0", "0"]);
    let number = port.to_string();
    let attach = |before: &[&str], more: &[&str]| {
        let own = [PARSHALL, "attach", "--port", &number, "--for", "300ms", "--format", "json"];
        let words = [before, &own, more].concat();
        common::finish(Command::new(words[0]).args(&words[1..]))
    };
    // Nobody serves it here: the error says where it is served, and the command.
    let refused = attach(&[], &[]);
    let (error, hint) = refused.error_and_hint();
    assert!(error.contains("in this network namespace"), "{refused:?}");
    let (named, who) = (format!("--netns {first}"), format!("pid {}", there.pid()));
    assert!(hint.contains(&named) && hint.contains(&who), "{refused:?}");

    let (here, _) = echo(&[], &["tcp", "127.0.0.1", &number]);
    let pids = |report: Report| report.subject.pids;
    let report = attach(&[], &[]).report();
    let note = report.blind.iter().find(|note| note.contains("is also served"));
    assert!(note.is_some_and(|note| note.contains(&named) && note.contains(&who)), "{:?}", report.blind);
    assert_eq!(pids(report), [here.pid()]);
    assert_eq!(pids(attach(&inside(first), &[]).report()), [there.pid()]);
    let path = format!("/proc/{}/ns/net", there.pid());
    let inode = std::fs::metadata(&path).map(|m| std::os::unix::fs::MetadataExt::ino(&m)).unwrap().to_string();
    for netns in [*first, &path, &inode] {
        assert_eq!(pids(attach(&[], &["--netns", netns]).report()), [there.pid()], "{netns}");
    }
    let mut all = pids(attach(&[], &["--netns", "all"]).report());
    all.sort_unstable();
    let mut both = [here.pid(), there.pid()];
    both.sort_unstable();
    assert_eq!(all, both);
    let refused = attach(&[], &["--netns", second]);
    assert!(refused.error_and_hint().0.contains(&format!("in network namespace {second}")), "{refused:?}");

    // The other end of a connection belongs to it, wherever it is.
    let call = "import socket, sys; c = socket.create_connection((sys.argv[1], int(sys.argv[2]))); print('ready 1', flush=True); sys.stdin.read()";
    let client = [&inside(second)[..], &["python3", "-c", call, address, &number]].concat();
    let (client, _) = common::serve_with(Command::new(client[0]).args(&client[1..]));
    let mut found = pids(attach(&inside(first), &[]).report());
    found.sort_unstable();
    let mut ends = [there.pid(), client.pid()];
    ends.sort_unstable();
    assert_eq!(found, ends);
    drop((client, here, there));
    // It removes its namespaces. If it were killed, the next one would.
    wire.signal("-INT");
    wire.wait_for_end();
}

#[test]
fn a_name_and_several_ports_are_observed_together() {
    if !ready("a name and several ports") {
        return;
    }
    let (first, first_port) = common::service(&["serve"]);
    let (second, second_port) = common::service(&["serve"]);
    let number = [first_port, second_port].map(|port| port.to_string());
    let (_clients, _) = common::service(&["call", "--port", &number[0]]);
    let (_others, _) = common::service(&["call", "--port", &number[1]]);
    let pids = [first.pid(), second.pid()];
    let has_both = |report: &Report| pids.iter().all(|pid| report.subject.pids.contains(pid));
    let observe =
        |flag: &str, value: &str| parshall(&["attach", flag, value, "--for", "500ms", "--format", "json"]).report();
    let by_ports = observe("--port", &number.join(","));
    assert!(has_both(&by_ports), "{by_ports:#?}");
    assert!(
        [first_port, second_port].iter().all(|port| by_ports.services.iter().any(|s| s.port == *port)),
        "{by_ports:#?}"
    );
    assert!(has_both(&observe("--pid", &format!("{}\n{}", pids[0], pids[1]))));
    let by_name = observe("--process", "python3");
    assert!(has_both(&by_name), "{by_name:#?}");
    assert!(by_name.blind.iter().any(|note| note.starts_with("`python3` are ")), "{:#?}", by_name.blind);
}
