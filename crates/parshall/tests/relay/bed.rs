//! A relay in its own process, and its state in /proc.
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use parshall_evidence::socket::{Groups, Selection, Side};
use parshall_host::tcp_diag::{TcpDiag, TcpSocket, states};

use super::net::{Conn, TIMEOUT, Target, soon};
use crate::common::{PARSHALL, Scratch};

/// Worker threads: two, so that state that the threads do not share is found.
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
    /// The listen address; [`own_place`] if empty.
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
    pub place: String,
    /// Its configuration file.
    pub file: PathBuf,
    stderr: PathBuf,
    pids: Arc<Mutex<Vec<u32>>>,
}

/// A relay did not start: the first line of its stderr.
#[derive(Debug)]
pub struct Refused(pub String);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// An unused address: each has its own IP address in 127/8, and the port is below the ephemeral range.
pub fn own_place() -> String {
    let pid = std::process::id();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let host = |n: u32| 1 + n % 254;
    format!("127.{}.{}.{}:{}", host(pid >> 8), host(pid), host(number), 20_000 + number % 10_000)
}

impl Bed {
    pub fn new(engine: &'static str) -> Self {
        Self { engine, scratch: Scratch::new(), pids: Arc::default() }
    }

    /// The pids for [`end_all`], which another thread calls.
    pub fn pids(&self) -> Arc<Mutex<Vec<u32>>> {
        self.pids.clone()
    }

    /// A relay to this target; `keys` are lines of the listener's table.
    pub fn relay(&self, target: &Target, keys: &str) -> Relay {
        self.start(Plan { targets: vec![target.place.clone()], keys: keys.to_owned(), ..Plan::default() })
    }

    pub fn start(&self, plan: Plan) -> Relay {
        self.try_start(plan).unwrap_or_else(|Refused(why)| panic!("the relay does not start: {why}"))
    }

    /// Starts a relay and waits until it listens.
    pub fn try_start(&self, plan: Plan) -> Result<Relay, Refused> {
        let place = if plan.listen.is_empty() { own_place() } else { plan.listen.clone() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = self.scratch.file(&format!("{number}.toml"));
        let stderr = self.scratch.file(&format!("{number}.err"));
        std::fs::write(&file, self.text(&plan, &place)).expect("a file in /tmp");
        let limit = plan.descriptors.map_or(String::new(), |n| format!("ulimit -n {n}; "));
        let child = Command::new("sh")
            .args(["-c", &format!("{limit}exec \"$0\" relay -c \"$1\""), PARSHALL])
            .arg(&file)
            .stdin(std::process::Stdio::null())
            .stdout(File::create(self.scratch.file(&format!("{number}.out"))).expect("a file in /tmp"))
            .stderr(File::create(&stderr).expect("a file in /tmp"))
            .spawn()
            .expect("sh runs");
        self.pids.lock().unwrap_or_else(PoisonError::into_inner).push(child.id());
        let mut relay = Relay { child, place, file, stderr, pids: self.pids.clone() };
        relay.until_it_listens()?;
        Ok(relay)
    }

    /// A configuration file.
    pub fn text(&self, plan: &Plan, place: &str) -> String {
        let targets: Vec<String> = plan.targets.iter().map(|t| format!("{t:?}")).collect();
        format!(
            "threads = {THREADS}\n{}\n[[listener]]\nlisten = {place:?}\ntargets = [{}]\nengine = {:?}\n{}\n",
            plan.global,
            targets.join(", "),
            self.engine,
            plan.keys
        )
    }
}

/// Kills the relays of a stuck case, whose sockets then fail, so that it ends.
pub fn end_all(pids: &Mutex<Vec<u32>>) {
    for pid in pids.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    }
}

impl Relay {
    fn until_it_listens(&mut self) -> Result<(), Refused> {
        let wanted = if self.place.starts_with("unix:") { 1 } else { THREADS };
        let give_up = Instant::now() + TIMEOUT;
        // It has started when it logs so and has slept with the same descriptors for some samples: descriptors that it opens
        // later would be counted as those of a connection.
        let (mut samples, mut held) = (0, 0);
        while samples < 3 {
            if let Some(status) = self.ended() {
                return Err(Refused(format!("{status}: {}", self.said().lines().next().unwrap_or_default())));
            }
            assert!(Instant::now() < give_up, "the relay does not listen on {}", self.place);
            let now = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count);
            let ready = self.said().contains("relay: started") && self.listeners() >= wanted;
            samples = if ready && self.sleeps() && now == held { samples + 1 } else { 0 };
            held = now;
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
        if let Some(path) = self.place.strip_prefix("unix:") {
            // Flags 00010000: SO_ACCEPTCON.
            let table = std::fs::read_to_string("/proc/net/unix").expect("/proc");
            return table.lines().filter(|l| l.ends_with(path) && l.contains(" 00010000 ")).count();
        }
        let place: SocketAddr = self.place.parse().expect("an address");
        tcp_sockets(states::LISTEN, Some(place.port())).iter().filter(|s| s.local() == place).count()
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
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// A connection through the relay: the client's end and the target's.
    pub fn pair(&self, target: &Target) -> (Conn, Conn) {
        let client = Conn::to(&self.place);
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
        let theirs = tcp_sockets(1 << TCP_CLOSE_WAIT, None);
        if theirs.is_empty() {
            return 0;
        }
        let ours = self.descriptors();
        theirs.iter().filter(|s| ours.contains(&format!("socket:[{}]", s.record.inode))).count()
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

    /// Whether it has a handler for this signal, which would kill it otherwise.
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
        // The reason of a panic is on its stderr.
        let said = self.said();
        if said.contains("panicked") {
            eprintln!("{said}");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        pids.retain(|p| *p != pid);
    }
}

const TCP_CLOSE_WAIT: u32 = 8;

/// The TCP sockets in these states, by SOCK_DIAG: /proc/net/tcp also lists thousands in TIME_WAIT.
fn tcp_sockets(states: u32, port: Option<u16>) -> Vec<TcpSocket> {
    let mut diag = TcpDiag::open().expect("a netlink socket");
    let mut found = Vec::new();
    let ports = port.map(|port| (Side::Either, port)).into_iter().collect();
    let selection = Selection { groups: Groups::IDENTITY, states, ports, ..Selection::default() };
    diag.dump(&selection, &mut found).expect("the kernel answers");
    found
}
