//! A child process for tests: this test binary again, in one of several roles. parshall refuses to observe itself.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

const ROLE: &str = "PARSHALL_TEST_ROLE";

/// A running child; killed when dropped.
pub struct Running {
    child: Child,
    /// The TCP port on which it listens.
    pub port: u16,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a child and waits until its traffic runs.
pub fn start(role: &str) -> Running {
    let mut child = Command::new(std::env::current_exe().expect("we run"))
        .args(["--exact", "testkit::child::run_role", "--ignored", "--nocapture", "--quiet"])
        .env(ROLE, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this binary runs");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let port = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split("ready ").nth(1)?.trim().parse().ok())
        .expect("the child says when it is ready");
    Running { child, port }
}

#[test]
#[ignore = "not a test: the body of the child process"]
fn run_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    let client = TcpStream::connect(("127.0.0.1", port)).expect("loopback");
    let (server, _) = listener.accept().expect("a connection waits");
    let pair = (client, server);
    match role.as_str() {
        "idle" => {
            println!("ready {port}");
            // Until the parent ends or closes our stdin.
            let _ = std::io::stdin().read(&mut [0]);
            drop(pair);
        }
        "full-queues" => {
            let _datagrams = std::net::UdpSocket::bind(("127.0.0.1", port)).expect("loopback");
            println!("ready {port}");
            let _ = std::io::stdin().read(&mut [0]);
        }
        "nagle" => nagle(pair, port),
        "slow-reader" => slow_reader(pair, port),
        "threads" => threads(port),
        other => panic!("no role {other}"),
    }
}

/// The client writes a request in two parts; the server answers when it has both.
fn nagle((mut client, mut server): (TcpStream, TcpStream), port: u16) {
    thread::spawn(move || {
        let mut request = [0; 176];
        while server.read_exact(&mut request).is_ok() && server.write_all(&[1; 100]).is_ok() {}
    });
    let mut reply = [0; 100];
    for round in 0_u64.. {
        client.write_all(&[2; 40]).expect("the server lives");
        client.write_all(&[3; 136]).expect("the server lives");
        client.read_exact(&mut reply).expect("the server lives");
        if round == 20 {
            println!("ready {port}");
        }
    }
}

/// The client writes as fast as it can; the server reads little.
fn slow_reader((mut client, mut server): (TcpStream, TcpStream), port: u16) {
    thread::spawn(move || {
        let block = vec![5; 64 * 1024];
        while client.write_all(&block).is_ok() {}
    });
    let mut block = [0; 4096];
    for round in 0_u64.. {
        thread::sleep(Duration::from_millis(20));
        let _ = server.read(&mut block).expect("the client lives");
        if round == 20 {
            println!("ready {port}");
        }
    }
}

/// One thread computes, one sleeps in short turns, one waits for a pipe, the main thread for a UDP socket in poll().
fn threads(port: u16) {
    let named = |name: &str, body: fn()| {
        thread::Builder::new().name(name.into()).spawn(body).expect("threads start");
    };
    named("spins", || {
        let mut sum = 0_u64;
        loop {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    });
    named("naps", || {
        loop {
            thread::sleep(Duration::from_millis(3));
        }
    });
    named("pipes", || {
        let _ = std::io::stdin().lock().read(&mut [0]);
    });
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
    println!("ready {port}");
    let _ = socket.recv(&mut [0]);
    let _ = std::io::stdout().flush();
}
