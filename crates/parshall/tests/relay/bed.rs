//! Runs relays as processes, and reads their state from /proc.
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use parshall_evidence::socket::selection::state;
use parshall_evidence::socket::{Groups, Selection, Side};
use parshall_host::tcp_diag::{TcpDiag, TcpSocket, states};

use super::net::{Conn, TIMEOUT, Target, soon};
use crate::common::{PARSHALL, Scratch};

/// Two worker threads, so that errors in state that the threads do not share are found.
pub const THREADS: usize = 2;

/// The environment of a case: an engine, and relays that are killed at its end.
pub struct Bed {
    pub engine: &'static str,
    pub scratch: Scratch,
    pids: Arc<Mutex<Vec<u32>>>,
}

/// How a relay is started.
#[derive(Default)]
pub struct Plan {
    /// Keys at the top of the file.
    pub global: String,
    /// The listen address; [`unused_address`] if empty.
    pub listen: String,
    pub targets: Vec<String>,
    /// Keys of the listener.
    pub keys: String,
    /// RLIMIT_NOFILE.
    pub descriptors: Option<u32>,
}

/// A running relay.
pub struct Relay {
    child: Child,
    /// The listen address.
    pub address: String,
    /// Its configuration file.
    pub file: PathBuf,
    stderr_file: PathBuf,
    pids: Arc<Mutex<Vec<u32>>>,
}

/// A relay did not start: the first line of its stderr.
#[derive(Debug)]
pub struct Refused(pub String);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// An unused address: each has its own IP address in 127/8, and the port is below the ephemeral range.
pub fn unused_address() -> String {
    let pid = std::process::id();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let host = |n: u32| 1 + n % 254;
    format!("127.{}.{}.{}:{}", host(pid >> 8), host(pid), host(number), 20_000 + number % 10_000)
}

impl Bed {
    pub fn new(engine: &'static str) -> Self {
        Self { engine, scratch: Scratch::new(), pids: Arc::default() }
    }

    /// The pids of the relays, for [`end_all`] in another thread.
    pub fn pids(&self) -> Arc<Mutex<Vec<u32>>> {
        self.pids.clone()
    }

    /// Starts a relay to this target. `keys` are lines of the listener's table.
    pub fn relay(&self, target: &Target, keys: &str) -> Relay {
        self.start(Plan { targets: vec![target.address.clone()], keys: keys.to_owned(), ..Plan::default() })
    }

    pub fn start(&self, plan: Plan) -> Relay {
        self.try_start(plan).unwrap_or_else(|Refused(why)| panic!("the relay does not start: {why}"))
    }

    /// Starts a relay and waits until it listens.
    pub fn try_start(&self, plan: Plan) -> Result<Relay, Refused> {
        let address = if plan.listen.is_empty() { unused_address() } else { plan.listen.clone() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = self.scratch.file(&format!("{number}.toml"));
        let stderr_file = self.scratch.file(&format!("{number}.err"));
        std::fs::write(&file, self.text(&plan, &address)).expect("a file in /tmp");
        let limit = plan.descriptors.map_or(String::new(), |n| format!("ulimit -n {n}; "));
        let child = Command::new("sh")
            .args(["-c", &format!("{limit}exec \"$0\" relay -c \"$1\""), PARSHALL])
            .arg(&file)
            .stdin(std::process::Stdio::null())
            .stdout(File::create(self.scratch.file(&format!("{number}.out"))).expect("a file in /tmp"))
            .stderr(File::create(&stderr_file).expect("a file in /tmp"))
            .spawn()
            .expect("sh runs");
        self.pids.lock().unwrap_or_else(PoisonError::into_inner).push(child.id());
        let mut relay = Relay { child, address, file, stderr_file, pids: self.pids.clone() };
        relay.until_it_listens()?;
        Ok(relay)
    }

    /// The text of the configuration file.
    pub fn text(&self, plan: &Plan, address: &str) -> String {
        let targets: Vec<String> = plan.targets.iter().map(|t| format!("{t:?}")).collect();
        format!(
            "threads = {THREADS}\n{}\n[[listener]]\nlisten = {address:?}\ntargets = [{}]\nengine = {:?}\n{}\n",
            plan.global,
            targets.join(", "),
            self.engine,
            plan.keys
        )
    }
}

/// Kills the relays of a case that hangs. Its connections then fail, so that it ends.
pub fn end_all(pids: &Mutex<Vec<u32>>) {
    for pid in pids.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    }
}

impl Relay {
    fn until_it_listens(&mut self) -> Result<(), Refused> {
        let wanted = if self.address.starts_with("unix:") { 1 } else { THREADS };
        let give_up = Instant::now() + TIMEOUT;
        // Waits for its log line, and then until it is idle with a constant number of descriptors. Otherwise descriptors that it
        // opens later would be counted as those of a connection.
        let (mut samples, mut open) = (0, 0);
        while samples < 3 {
            if let Some(status) = self.ended() {
                return Err(Refused(format!("{status}: {}", self.stderr().lines().next().unwrap_or_default())));
            }
            assert!(Instant::now() < give_up, "the relay does not listen on {}", self.address);
            let now = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count);
            let ready = self.stderr().contains("relay: started") && self.listeners() >= wanted;
            samples = if ready && self.sleeps() && now == open { samples + 1 } else { 0 };
            open = now;
            std::thread::sleep(Duration::from_millis(4));
        }
        Ok(())
    }

    /// Whether all of its threads sleep.
    fn sleeps(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let sleeps = |task: std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") S "))
        };
        tasks.map(sleeps).reduce(|a, b| a && b).unwrap_or(false)
    }

    /// The number of sockets that listen on its address.
    pub fn listeners(&self) -> usize {
        if let Some(path) = self.address.strip_prefix("unix:") {
            // Flags 00010000: SO_ACCEPTCON.
            let table = std::fs::read_to_string("/proc/net/unix").expect("/proc");
            return table.lines().filter(|l| l.ends_with(path) && l.contains(" 00010000 ")).count();
        }
        let address: SocketAddr = self.address.parse().expect("an address");
        tcp_sockets(states::LISTEN, Some(address.port())).iter().filter(|s| s.local() == address).count()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, once it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our child")
    }

    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut status = None;
        soon("the relay ends", || {
            status = self.ended();
            status.is_some()
        });
        status.expect("it has ended")
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.pid().to_string()]).status().expect("kill runs");
        assert!(status.success());
    }

    /// Its stderr so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stderr_file).unwrap_or_default()).into_owned()
    }

    /// A connection through the relay: the client's end and the target's.
    pub fn pair(&self, target: &Target) -> (Conn, Conn) {
        let client = Conn::to(&self.address);
        (client, target.accept())
    }

    /// The links of its descriptors in /proc.
    pub fn descriptors(&self) -> Vec<String> {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the relay lives").flatten();
        entries.filter_map(|e| std::fs::read_link(e.path()).ok()?.to_str().map(str::to_owned)).collect()
    }

    fn count(&self, kind: &str) -> usize {
        self.descriptors().iter().filter(|d| d.starts_with(kind)).count()
    }

    pub fn sockets(&self) -> usize {
        self.count("socket:")
    }

    /// Ends of pipes; stdin, stdout and stderr are no pipes.
    pub fn pipes(&self) -> usize {
        self.count("pipe:")
    }

    /// Its sockets in CLOSE_WAIT.
    pub fn close_wait(&self) -> usize {
        let sockets = tcp_sockets(1 << state::CLOSE_WAIT, None);
        if sockets.is_empty() {
            return 0;
        }
        let descriptors = self.descriptors();
        sockets.iter().filter(|s| descriptors.contains(&format!("socket:[{}]", s.record.inode))).count()
    }

    /// Resident memory, KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the relay lives");
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// CPU time it has used, in hundredths of a second.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the relay lives");
        let fields: Vec<&str> = stat[stat.rfind(')').expect("a name") + 2..].split(' ').collect();
        fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
    }

    /// Whether it has a handler for this signal.
    pub fn catches(&self, signal: u32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the relay lives");
        let line = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).expect("a line");
        u64::from_str_radix(line.trim(), 16).expect("a mask") & (1 << (signal - 1)) != 0
    }

    /// Waits until it has no more sockets than before, and none in CLOSE_WAIT.
    pub fn settles_to(&self, sockets: usize) {
        let give_up = Instant::now() + TIMEOUT;
        while self.sockets() > sockets || self.close_wait() > 0 {
            let (now, waiting) = (self.sockets(), self.close_wait());
            assert!(Instant::now() < give_up, "{now} sockets left of {sockets} before, {waiting} in CLOSE_WAIT");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let pid = self.pid();
        let mut pids = self.pids.lock().unwrap_or_else(PoisonError::into_inner);
        // Shows the message of a panic.
        let stderr = self.stderr();
        if stderr.contains("panicked") {
            eprintln!("{stderr}");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        pids.retain(|p| *p != pid);
    }
}

/// The TCP sockets in these states. Uses SOCK_DIAG, because /proc/net/tcp also lists thousands of sockets in TIME_WAIT.
fn tcp_sockets(states: u32, port: Option<u16>) -> Vec<TcpSocket> {
    let mut diag = TcpDiag::open().expect("a netlink socket");
    let mut found = Vec::new();
    let ports = port.map(|port| (Side::Either, port)).into_iter().collect();
    let selection = Selection { groups: Groups::IDENTITY, states, ports, ..Selection::default() };
    diag.dump(&selection, &mut found).expect("the kernel answers");
    found
}
