//! Runs a relay, services as its targets, and clients that connect repeatedly.
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{PARSHALL, Scratch};

/// The longest wait, after which a test fails.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// An unused address: each has its own IP address in 127/8, so that neither other tests nor ephemeral ports use it.
pub fn unused_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    let ip = Ipv4Addr::new(127, 100 + (pid % 100) as u8, (pid / 100 % 250) as u8, last);
    SocketAddr::from((ip, 7000))
}

/// Waits until a condition is true. Fails after [`TIMEOUT`].
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < limit, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A service that replies to every line with its name and the line.
pub struct Service {
    pub address: SocketAddr,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    pub fn start(name: &'static str) -> Self {
        Self::at(name, unused_address())
    }

    pub fn at(name: &'static str, address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let over = ended.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(stream) = stream {
                    std::thread::spawn(move || answer(name, stream));
                }
            }
        });
        Self { address, ended, thread: Some(thread) }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        TcpStream::connect(self.address).ok();
        self.thread.take().unwrap().join().unwrap();
        // A process that another test starts at this moment has the listener, too, until it runs its program.
        if !std::thread::panicking() {
            until("nobody listens any more", || TcpStream::connect(self.address).is_err());
        }
    }
}

fn answer(name: &str, stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    let mut line = String::new();
    while matches!(lines.read_line(&mut line), Ok(n) if n > 0) {
        if stream.write_all(format!("{name} {line}").as_bytes()).is_err() {
            return;
        }
        line.clear();
    }
}

/// A connection through the relay.
pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn connect(to: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a line and returns the name of the service that answered.
    pub fn ask(&mut self, line: &str) -> std::io::Result<String> {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        self.0.read_line(&mut answer)?;
        match answer.trim_end().rsplit_once(' ') {
            Some((name, echoed)) if echoed == line => Ok(name.to_owned()),
            _ => Err(std::io::Error::new(ErrorKind::InvalidData, format!("{answer:?} to {line:?}"))),
        }
    }

    /// Half-closes and reads to the end.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.0.get_ref().shutdown(Shutdown::Write)?;
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest)?;
        if rest.is_empty() { Ok(()) } else { Err(std::io::Error::new(ErrorKind::InvalidData, "more than the answer")) }
    }

    /// Whether the relay has closed it.
    pub fn is_closed(&mut self) -> bool {
        !matches!(self.0.read(&mut [0; 16]), Ok(n) if n > 0)
    }
}

/// Makes a connection with one request; returns the name of the service that answered.
pub fn exchange(to: SocketAddr) -> std::io::Result<String> {
    let mut client = Client::connect(to)?;
    let name = client.ask("hello")?;
    client.finish()?;
    Ok(name)
}

/// Threads that repeatedly connect, send a request and close.
pub struct Load {
    ended: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    failures: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(to: SocketAddr, threads: usize) -> Self {
        let (ended, done, failures) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<Mutex<Vec<String>>>)>::default();
        let threads = (0..threads)
            .map(|_| {
                let (ended, done, failures) = (ended.clone(), done.clone(), failures.clone());
                std::thread::spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        match exchange(to) {
                            Ok(_) => drop(done.fetch_add(1, Ordering::Relaxed)),
                            Err(e) => failures.lock().unwrap().push(e.to_string()),
                        }
                        // A pause, so that sockets in TIME_WAIT do not use up the ports.
                        std::thread::sleep(Duration::from_millis(1));
                    }
                })
            })
            .collect();
        Self { ended, done, failures, threads }
    }

    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until this many more have succeeded.
    pub fn run(&self, more: u64) {
        let goal = self.done() + more;
        until("requests succeed", || self.done() >= goal);
    }

    /// Ends the threads; returns the number of successes and the errors.
    pub fn end(self) -> (u64, Vec<String>) {
        self.ended.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|t| t.join().unwrap());
        let failures = self.failures.lock().unwrap().clone();
        (self.done.load(Ordering::Relaxed), failures)
    }
}

/// A running relay. It is killed when dropped.
pub struct Relay {
    child: Child,
    stderr: Arc<Mutex<Vec<String>>>,
    /// Reads stderr until the relay and all its successors have closed it.
    reader: JoinHandle<()>,
    pub scratch: Scratch,
}

impl Relay {
    /// Starts a relay with this configuration and a control socket in its scratch directory.
    pub fn start(config: &str) -> Self {
        Self::start_with(config, |_| {})
    }

    pub fn start_with(config: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let relay = Self::begin(config, prepare);
        relay.wait_for("started", 1);
        relay
    }

    /// Starts a relay without waiting until it is ready.
    pub fn begin(config: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let scratch = Scratch::shared();
        std::fs::write(scratch.file("relay.toml"), whole(&scratch, config)).unwrap();
        let mut command = Command::new(PARSHALL);
        command.arg("relay").arg("-c").arg(scratch.file("relay.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let (lines, into) = (BufReader::new(child.stderr.take().unwrap()), stderr.clone());
        let reader = std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                into.lock().unwrap().push(line);
            }
        });
        Self { child, stderr, reader, scratch }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn control(&self) -> PathBuf {
        self.scratch.file("control")
    }

    /// Replaces the configuration file without a reload.
    pub fn write(&self, config: &str) {
        std::fs::write(self.scratch.file("relay.toml"), whole(&self.scratch, config)).unwrap();
    }

    /// Reloads with this configuration, and waits until it is active or rejected.
    pub fn reload(&self, config: &str) {
        let before = self.count("reloaded");
        self.write(config);
        self.signal("HUP");
        self.wait_for("reloaded", before + 1);
    }

    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// The number of lines on stderr with these words.
    pub fn count(&self, words: &str) -> usize {
        self.stderr.lock().unwrap().iter().filter(|line| line.contains(words)).count()
    }

    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().join("\n")
    }

    pub fn wait_for(&self, words: &str, times: usize) {
        let limit = Instant::now() + TIMEOUT;
        while self.count(words) < times {
            assert!(Instant::now() < limit, "`{words}` is not {times} times in\n{}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it has ended and all of its stderr was read; returns the exit code.
    pub fn end(&mut self) -> Option<i32> {
        let code = self.exit_code();
        // The exit can be seen before the last lines have been read from the pipe.
        until("stderr ends", || self.reader.is_finished());
        code
    }

    /// As [`Self::end`], but does not wait for stderr, to which a successor may still write.
    pub fn exit_code(&mut self) -> Option<i32> {
        let limit = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < limit, "it does not end:\n{}", self.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended already; the pid cannot be reused before it was waited for.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn whole(scratch: &Scratch, config: &str) -> String {
    format!("control = \"{}\"\nthreads = 2\n{config}", scratch.file("control").display())
}

pub fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap().success());
}

/// A listener in TOML.
pub fn listener(name: &str, listen: SocketAddr, targets: &[SocketAddr]) -> String {
    let targets: Vec<String> = targets.iter().map(|t| format!("\"{t}\"")).collect();
    format!("[[listener]]\nname = \"{name}\"\nlisten = \"{listen}\"\ntargets = [{}]\n", targets.join(", "))
}

/// A GET request; status and body.
pub fn get(from: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&from, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: relay\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let broken = || std::io::Error::new(ErrorKind::InvalidData, format!("{text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(broken)?;
    Ok((status, body.to_owned()))
}

/// The value of the first series that has all of these texts in its name and labels.
pub fn value(metrics: &str, texts: &[&str]) -> f64 {
    let found = metrics.lines().find(|l| !l.starts_with('#') && texts.iter().all(|t| l.contains(t)));
    let line = found.unwrap_or_else(|| panic!("{texts:?} is not in\n{metrics}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}
