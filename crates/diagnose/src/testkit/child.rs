//! A child process for tests: this test binary again, in one of several roles. parshall refuses to observe itself.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use parshall_sys::uring::{Ring, Sizes};

const ROLE: &str = "PARSHALL_TEST_ROLE";

/// A running child; killed when dropped.
pub struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The TCP port on which it listens.
    pub port: u16,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has a child of the role `obeys` do something, and waits until it is done.
    pub fn tell(&mut self, order: &str) {
        let mut input = self.child.stdin.as_ref().expect("piped");
        input.write_all(format!("{order}\n").as_bytes()).expect("it lives");
        assert_eq!(self.line().as_deref(), Some("done"), "{order}");
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).ok().filter(|bytes| *bytes > 0);
        read.map(|_| line.trim().to_owned())
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
    let mut running = Running { child, output, port: 0 };
    let ready = |line: &String| line.split("ready ").nth(1)?.trim().parse().ok();
    while running.port == 0 {
        let line = running.line().expect("the child says when it is ready");
        running.port = ready(&line).unwrap_or(0);
    }
    running
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
        "obeys" => obeys(&listener, pair),
        "rings" => rings(port),
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

/// Bytes of a request and of its reply in the role `obeys`.
pub const REQUEST_BYTES: usize = 64;
pub const REPLY_BYTES: usize = 200;

/// A service and its client, which asks what it is told to: `open` opens a further connection, `ask C N` makes N requests on the
/// connection C, `connect PORT` opens one to another process, `fork` starts a process that sleeps. Each connection is served by a thread
/// of its own.
fn obeys(listener: &TcpListener, first: (TcpStream, TcpStream)) {
    let address = listener.local_addr().expect("bound");
    let serve = |mut server: TcpStream| {
        let body = move || {
            while server.read_exact(&mut [0; REQUEST_BYTES]).is_ok() && server.write_all(&[1; REPLY_BYTES]).is_ok() {}
        };
        thread::Builder::new().name("serves".into()).spawn(body).expect("threads start");
    };
    let (client, server) = first;
    serve(server);
    let (mut clients, mut children) = (vec![client], Vec::<Child>::new());
    println!("ready {}", address.port());
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match *line.split(' ').collect::<Vec<_>>() {
            ["open"] => {
                clients.push(TcpStream::connect(address).expect("loopback"));
                serve(listener.accept().expect("a connection waits").0);
            }
            ["ask", connection, count] => {
                let client = &mut clients[connection.parse::<usize>().expect("a number")];
                for _ in 0..count.parse::<u32>().expect("a number") {
                    client.write_all(&[2; REQUEST_BYTES]).expect("it is served");
                    client.read_exact(&mut [0; REPLY_BYTES]).expect("it is served");
                }
            }
            ["connect", port] => {
                let port: u16 = port.parse().expect("a number");
                clients.push(TcpStream::connect(("127.0.0.1", port)).expect("loopback"));
            }
            ["fork"] => children.push(Command::new("sleep").arg("60").spawn().expect("sleep runs")),
            _ => panic!("no such order: {line}"),
        }
        println!("done");
    }
}

/// Receives as many messages by io_uring as it is told to, and waits a while for one that does not come.
fn rings(port: u16) {
    let sizes = Sizes { requests: 8, completions: 64, groups: 1, buffers: 4, buffer_bytes: 4096 };
    let Ok(mut ring) = Ring::open(sizes) else {
        println!("ready {port}");
        return;
    };
    let (sender, receiver) = UnixDatagram::pair().expect("a pair");
    let wait = |ring: &mut Ring| {
        let mut done = Vec::new();
        ring.enter(Some(Duration::from_millis(30))).expect("the ring");
        ring.reap(&mut done);
        let chunks: Vec<_> = done.into_iter().filter_map(|completion| completion.chunk).collect();
        ring.recycle(chunks);
        ring.publish();
    };
    println!("ready {port}");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let request = ring.recv_messages(receiver.as_raw_fd(), 0, 1);
        wait(&mut ring);
        for _ in 0..line.parse::<u32>().expect("a number") {
            sender.send(&[1; 10]).expect("there is space");
            wait(&mut ring);
        }
        ring.cancel(request);
        wait(&mut ring);
        println!("done");
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
