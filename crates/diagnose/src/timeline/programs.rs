//! Requests of real programs, by what the probes see of their messages. Each is skipped where its program is missing.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parshall_evidence::{Capture, Rung, Service};
use parshall_testkit::skip;

use crate::subject::Select;
use crate::testkit::session::{self, Loaded};

/// A program that serves, killed when dropped.
struct Serving(Child);

impl Serving {
    /// Starts it and waits until it accepts; None, and a note, if it is missing.
    fn start(what: &str, command: &mut Command, port: u16) -> Option<Self> {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = quiet.spawn() else {
            skip(what, "the program is missing");
            return None;
        };
        let serving = Self(child);
        for _ in 0..200 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(serving);
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        skip(what, "the program does not serve");
        None
    }

    /// Observes it while `load` runs; None, and a note, if not on the rung that sees messages. On a busy host the probes may run in slices,
    /// which cut requests; then it observes again.
    fn observed(&self, what: &str, load: impl Fn() + Sync) -> Option<Capture> {
        for _ in 0..10 {
            let capture = self.observed_once(what, &load)?;
            if capture.slices.count == 1 {
                return Some(capture);
            }
        }
        panic!("{what}: no window in one slice");
    }

    fn observed_once(&self, what: &str, load: &(impl Fn() + Sync)) -> Option<Capture> {
        let mut session = session::open(&Select::Pids(vec![self.0.id()]), Some(Rung::Btf));
        let done = AtomicBool::new(false);
        let done = &done;
        let capture = std::thread::scope(|scope| {
            let (begun, begins) = std::sync::mpsc::channel();
            scope.spawn(move || {
                begins.recv().expect("the window begins");
                std::thread::sleep(Duration::from_millis(100));
                load();
                std::thread::sleep(Duration::from_millis(200));
                done.store(true, Ordering::Release);
            });
            let on_begin = || begun.send(()).map_err(anyhow::Error::from);
            session.window(Duration::from_secs(60), &Loaded(done), on_begin).expect("a capture")
        });
        if capture.rung != Rung::Btf {
            skip(what, &format!("not on the btf rung: {:?}", capture.blind));
            return None;
        }
        Some(capture)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Not SIGKILL: nginx would leave its workers behind.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound").port()
}

/// The service on a port.
fn service(capture: &Capture, port: u16) -> Service {
    let services = parshall_core::judge::services(capture);
    let found = services.iter().find(|service| !service.outbound && service.address.port() == port);
    found.unwrap_or_else(|| panic!("no service on {port}: {services:#?}")).clone()
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    let quiet = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn certificate(directory: &Path) -> Option<[String; 2]> {
    let [key, certificate] = ["key.pem", "cert.pem"].map(|name| directory.join(name).display().to_string());
    let made = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-keyout",
        &key,
        "-out",
        &certificate,
    ];
    run("openssl", &made).then_some([key, certificate])
}

#[test]
fn a_connection_with_tls_has_one_request_and_nobody_gives_up() {
    let _turn = session::turn();
    let what = "requests with TLS";
    let directory = tempfile::tempdir().expect("a directory");
    let Some([key, certificate]) = certificate(directory.path()) else { return skip(what, "no openssl") };
    for version in [["--tls-max", "1.2"], ["--tlsv1.3", "-k"]] {
        let port = free_port();
        let accept = format!("127.0.0.1:{port}");
        let mut command = Command::new("openssl");
        command.args(["s_server", "-www", "-quiet", "-accept", &accept, "-key", &key, "-cert", &certificate]);
        let Some(server) = Serving::start(what, &mut command, port) else { return };
        let url = format!("https://127.0.0.1:{port}/");
        let ask = || (0..5).for_each(|_| assert!(run("curl", &["-sk", version[0], version[1], &url])));
        let Some(capture) = server.observed(what, ask) else { return };
        let service = service(&capture, port);
        assert_eq!((service.requests, service.unanswered, service.abandoned), (5, 0, 0), "{version:?}: {service:#?}");
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// `GET path`, as a request on a stream.
fn get(stream: u32, path: &str) -> Vec<u8> {
    let literal = |name: u8, value: &str| [&[name, value.len() as u8], value.as_bytes()].concat();
    frame(1, 5, stream, &[vec![0x82, 0x86], literal(0x04, path), literal(0x41, "localhost")].concat())
}

#[test]
fn a_slow_stream_beside_fast_ones_has_its_own_time() {
    let _turn = session::turn();
    let what = "requests of HTTP/2";
    let directory = tempfile::tempdir().expect("a directory");
    let port = free_port();
    let slow = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let backend = slow.local_addr().expect("bound");
    let path = directory.path().display().to_string();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|of| format!("{of}_temp_path {path}/{of};\n"))
        .collect();
    let configuration = format!(
        "worker_processes 1; daemon off; pid {path}/pid; error_log {path}/error;\nevents {{ worker_connections 64; }}\n\
         http {{ access_log off; {temporary} server {{ listen 127.0.0.1:{port} http2;\n\
         location /fast {{ return 200 fast; }} location /slow {{ proxy_pass http://{backend}; }} }} }}\n"
    );
    std::fs::write(directory.path().join("nginx.conf"), configuration).expect("written");
    let mut command = Command::new("nginx");
    command.args(["-c", &format!("{path}/nginx.conf")]);
    let Some(nginx) = Serving::start(what, &mut command, port) else { return };
    const SLOW: Duration = Duration::from_millis(150);
    std::thread::spawn(move || {
        for stream in slow.incoming() {
            let mut stream = stream.expect("nginx connects");
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4_096]);
                std::thread::sleep(SLOW);
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nslow");
            });
        }
    });
    let ask = || {
        let mut client = TcpStream::connect(("127.0.0.1", port)).expect("nginx accepts");
        client.set_nodelay(true).expect("a socket");
        let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
        client.write_all(&preface).expect("sent");
        let mut reader = client.try_clone().expect("a descriptor");
        std::thread::spawn(move || while reader.read(&mut [0; 4_096]).is_ok_and(|n| n > 0) {});
        let mut streams = (1..).step_by(2);
        for _ in 0..6 {
            for path in ["/slow", "/fast", "/fast", "/fast"] {
                client.write_all(&get(streams.next().expect("endless"), path)).expect("sent");
                std::thread::sleep(Duration::from_millis(20));
            }
            client.write_all(&frame(6, 0, 0, &[7; 8])).expect("sent");
            std::thread::sleep(SLOW);
        }
    };
    let Some(capture) = nginx.observed(what, ask) else { return };
    let service = service(&capture, port);
    assert_eq!((service.requests, service.unanswered, service.overlapping), (24, 0, 0), "{service:#?}");
    let ms = |ns: Option<u64>| ns.map(|ns| ns / 1_000_000);
    assert!(ms(service.p99_ns).is_some_and(|p99| (150..1_000).contains(&p99)), "{service:#?}");
    assert!(ms(service.p50_ns).is_some_and(|p50| p50 < 100), "the fast ones wait for no slow one: {service:#?}");
}

#[test]
fn pings_and_pushes_are_no_requests() {
    let _turn = session::turn();
    let what = "pushes over a WebSocket";
    let port = free_port();
    let script = format!(
        "import socket,time\n\
         l=socket.create_server(('127.0.0.1',{port}))\n\
         while True:\n\
        \x20 c,_=l.accept()\n\
        \x20 if not c.recv(4096): continue\n\
        \x20 c.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n\\r\\n')\n\
        \x20 for n in range(20):\n\
        \x20  time.sleep(.1)\n\
        \x20  c.sendall(b'\\x89\\x00' if n%2 else b'\\x82\\x05hello')\n\
        \x20  if n%2: c.recv(64)\n\
        \x20 c.close()\n"
    );
    let mut command = Command::new("python3");
    command.args(["-c", &script]);
    let Some(server) = Serving::start(what, &mut command, port) else { return };
    let chat = || {
        let mut client = TcpStream::connect(("127.0.0.1", port)).expect("it accepts");
        client.write_all(b"GET /chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\r\n").expect("sent");
        let mut got = [0; 256];
        while let Ok(n) = client.read(&mut got)
            && n > 0
        {
            if got[0] == 0x89 {
                let _ = client.write_all(&[0x8a, 0x80, 1, 2, 3, 4]);
            }
        }
    };
    let Some(capture) = server.observed(what, chat) else { return };
    let service = service(&capture, port);
    assert_eq!((service.requests, service.unanswered), (1, 0), "only the upgrade is: {service:#?}");
}
