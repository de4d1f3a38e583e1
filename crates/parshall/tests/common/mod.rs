//! Support for the test suites: runs the binary, services to observe and control groups, and reports skips. It has no tests.
//!
//! Nothing outlives a test. A [`Running`] is killed when it is dropped. A service exits when its stdin is closed, which also
//! happens when the test is killed. Scratch files are in `/tmp/it-*` and are removed with their [`Scratch`].
#![allow(dead_code, unused_imports, clippy::unwrap_used)] // Each suite uses a part of this; a panic in a test is its report.

pub mod thin;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parshall_evidence::{Capture, Report};
pub use parshall_testkit::{is_root, root, skip};

pub const PARSHALL: &str = env!("CARGO_BIN_EXE_parshall");
/// The most time of an invocation beyond its window; it is then killed and the test fails.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// Whether these programs are installed. Reports a skip if not.
pub fn has(programs: &[&str], what: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = programs.iter().find(|program| !std::env::split_paths(&path).any(|dir| dir.join(program).is_file()));
    if let Some(program) = missing {
        skip(what, &format!("needs {program}"));
    }
    missing.is_none()
}

/// The cases of a test that repeats itself for each: all of them in `make test-all`, and the first `few` in `make test`.
pub fn some_of<T>(cases: &[T], few: usize) -> &[T] {
    if std::env::var_os("SUITES_ALL").is_some() { cases } else { &cases[..few] }
}

/// Whether the btf rung can be used on this host. Reports a skip if not.
pub fn btf(what: &str) -> bool {
    static BEST: LazyLock<String> = LazyLock::new(|| {
        let doctor: serde_json::Value =
            serde_json::from_str(&parshall(&["doctor", "--format", "json"]).stdout).expect("a document");
        doctor["rung"].as_str().unwrap_or_default().to_owned()
    });
    if !root(what) {
        return false;
    }
    if *BEST != "btf" {
        skip(what, &format!("the best rung here is {}", *BEST));
    }
    *BEST == "btf"
}

/// The uid of the user nobody.
pub const NOBODY: u32 = 65534;

/// A directory under /tmp that is removed on drop.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        Self(tempfile::Builder::new().prefix("it-").tempdir_in("/tmp").expect("a directory in /tmp"))
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A directory that other users may enter.
    pub fn shared() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Self::new();
        std::fs::set_permissions(scratch.0.path(), std::fs::Permissions::from_mode(0o755)).expect("ours");
        scratch
    }

    /// A copy of the binary, for users who may not enter the directory where it was built.
    pub fn parshall(&self) -> PathBuf {
        let copy = self.file("parshall");
        // Not by this process: a child of another test would hold the descriptor for writing until it calls exec, and meanwhile
        // the copy could not be run (ETXTBSY).
        assert!(Command::new("cp").arg(PARSHALL).arg(&copy).status().expect("cp runs").success());
        copy
    }
}

/// The result of an invocation.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Done {
    /// Asserts exit code 0 and a stdout of exactly one JSON document, which it returns.
    pub fn report(&self) -> Report {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("one report on stdout: {e}: {self:?}"))
    }

    /// Asserts one line `error:`, one line `hint:` and an empty stdout. Returns both lines.
    pub fn error_and_hint(&self) -> (&str, &str) {
        assert!(matches!(self.code, Some(1 | 2)) && self.stdout.is_empty(), "{self:?}");
        // The remains of a test that was killed are removed by the next one.
        let leftovers = |line: &&str| line.contains(" note: lab: removed what an earlier run left behind");
        let lines: Vec<&str> = self.stderr.lines().filter(|line| !leftovers(line)).collect();
        match lines[..] {
            [error, hint] if error.starts_with("error: ") && hint.starts_with("hint: ") => (error, hint),
            _ => panic!("an error and a hint: {self:?}"),
        }
    }

    /// Asserts that there was neither a panic nor a signal.
    pub fn orderly(&self) -> &Self {
        assert!(self.code.is_some() && !self.stderr.contains("panicked"), "{self:?}");
        self
    }
}

/// Runs the binary and waits for its exit. Its text has all characters, whatever the locale of the tests is.
pub fn parshall(arguments: &[&str]) -> Done {
    finish(Command::new(PARSHALL).args(arguments).env("LC_ALL", "C.UTF-8"))
}

/// The share of the CPUs above which other programs spoil a measurement.
pub const OTHERS_MAX: f64 = 0.1;

/// CPU time in clock ticks of a process and of the children for which it has waited.
fn ticks_of(pid: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The third field, the state, is the first here; the fields 14 to 17 are utime, stime, cutime and cstime.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// CPU time in seconds that others have had so far: a hypervisor, and processes that are neither this one nor its children.
/// Interrupts belong to nobody and are left out.
fn cpu_of_others_s() -> f64 {
    let all = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    // cpu user nice system idle iowait irq softirq steal
    let all: Vec<u64> = all.split_whitespace().take(9).filter_map(|field| field.parse().ok()).collect();
    let children = children(std::process::id()).iter().map(|child| ticks_of(&child.to_string())).sum::<u64>();
    let others = (all[0] + all[1] + all[2] + all[7]).saturating_sub(ticks_of("self") + children);
    others as f64 / parshall_sys::clock::ticks_per_second() as f64
}

/// Calls `work`, and returns its result with the share of the CPUs' time that others had meanwhile.
pub fn cpu_of_others_during<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let cpus = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    let (before_s, begun) = (cpu_of_others_s(), Instant::now());
    let result = work();
    (result, (cpu_of_others_s() - before_s) / (cpus * begun.elapsed().as_secs_f64()))
}

/// Calls `work` until other programs do not spoil what it measures. None, with a reported skip, if they do each time.
pub fn undisturbed<T>(what: &str, mut work: impl FnMut() -> T) -> Option<T> {
    for _ in 0..3 {
        let (result, others) = cpu_of_others_during(&mut work);
        if others <= OTHERS_MAX {
            return Some(result);
        }
    }
    skip(what, "other programs use the CPUs");
    None
}

/// Runs a command and waits for its exit.
pub fn finish(command: &mut Command) -> Done {
    begin(command).finish()
}

/// Starts a command whose output is collected.
pub fn begin(command: &mut Command) -> Running {
    let (child, stdout, stderr) = spawn(command);
    Running { child, since: Instant::now(), output: Some((collect(stdout), collect(stderr))), lines: None }
}

/// The same for an observation; returns when its window has begun.
pub fn begin_window(command: &mut Command) -> Running {
    let (child, stdout, stderr) = spawn(command.env("PARSHALL_LOG", "diagnose=debug"));
    let (stdout, mut log, mut line) = (collect(stdout), BufReader::new(stderr), String::new());
    while !line.contains("the window begins") {
        line.clear();
        assert_ne!(log.read_line(&mut line).expect("a line"), 0, "{command:?}: it ended before its window began");
    }
    Running { child, since: Instant::now(), output: Some((stdout, collect(log))), lines: None }
}

fn spawn(command: &mut Command) -> (Child, ChildStdout, ChildStderr) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    (child, stdout, stderr)
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A child process, killed on drop.
pub struct Running {
    child: Child,
    since: Instant,
    output: Option<(JoinHandle<String>, JoinHandle<String>)>,
    /// Stays open, so that the service can go on writing.
    lines: Option<BufReader<ChildStdout>>,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.pid().to_string()]).status().expect("kill runs");
        assert!(status.success());
    }

    /// Its children, in the order in which they were started.
    pub fn children(&self) -> Vec<u32> {
        children(self.pid())
    }

    /// Waits until it has exited by itself, and reaps it.
    pub fn wait_for_end(&mut self) {
        // Child::wait() would close its stdin, and services exit when their stdin is closed.
        while let Ok(None) = self.child.try_wait() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its exit, and returns its output.
    pub fn finish(mut self) -> Done {
        let give_up = self.since + TIMEOUT;
        let status = loop {
            match self.child.try_wait().expect("our child") {
                Some(status) => break status,
                None if Instant::now() > give_up => {
                    self.end();
                    let (stdout, stderr) = self.output.take().expect("collected");
                    panic!("timeout: {}\n{}", stdout.join().unwrap(), stderr.join().unwrap());
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let took = self.since.elapsed();
        let (stdout, stderr) = self.output.take().expect("collected");
        Done { code: status.code(), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap(), took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Builds a program of this directory with `build`, which ends before the options that name the output and the source. Returns its path; it
/// has the name of the source.
pub fn built(scratch: &Scratch, build: &[&str], source: &str) -> String {
    let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let program = scratch.file(name).to_str().unwrap().to_owned();
    let source = format!("{}/tests/common/{source}", env!("CARGO_MANIFEST_DIR"));
    let status = Command::new(build[0]).args(&build[1..]).args(["-o", &program, &source]).status().unwrap();
    assert!(status.success(), "{build:?} {source}");
    program
}

/// The path of the script behind [`service`].
pub fn service_py() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/service.py").to_owned()
}

/// Starts `common/service.py`. Returns it with its port once it has traffic.
pub fn service(arguments: &[&str]) -> (Running, u16) {
    serve_with(Command::new("python3").arg(service_py()).args(arguments))
}

/// Starts any command that prints `ready PORT`.
pub fn serve_with(command: &mut Command) -> (Running, u16) {
    let (running, lines) = start_lines(command, 1);
    let port = lines[0].strip_prefix("ready ").and_then(|port| port.trim().parse().ok());
    (running, port.unwrap_or_else(|| panic!("the first line is not `ready PORT`: {lines:?}")))
}

/// Starts a command and waits for its first lines.
pub fn start_lines(command: &mut Command, count: usize) -> (Running, Vec<String>) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let lines = (0..count).map(|_| {
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        line
    });
    let lines = lines.collect();
    (Running { child, since: Instant::now(), output: None, lines: Some(output) }, lines)
}

/// A server and its client, each a process. The client ends before the server.
pub struct Pair {
    pub client: Running,
    pub server: Running,
    pub port: u16,
}

impl Pair {
    pub fn start(client_options: &[&str]) -> Self {
        Self::start_with(&[], client_options)
    }

    pub fn start_with(server_options: &[&str], client_options: &[&str]) -> Self {
        let (server, port) = service(&[&["serve"], server_options].concat());
        let number = port.to_string();
        let (client, _) = service(&[&["call", "--port", &number], client_options].concat());
        Self { client, server, port }
    }
}

/// The children of a process in the order in which they were started, without `parshall-group`, which reports the signals of a process group
/// to `parshall run`. A later process may have a lower number: the numbers begin again from the bottom.
pub fn children(pid: u32) -> Vec<u32> {
    // When it was started, if it is a child.
    let started = |child: u32| -> Option<(u64, u32)> {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        if stat.contains("(parshall-group)") {
            return None;
        }
        let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ').skip(1);
        let parent: u32 = fields.next()?.parse().ok()?;
        let started_ticks = fields.nth(17)?.parse().ok()?;
        (parent == pid).then_some((started_ticks, child))
    };
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut children: Vec<(u64, u32)> = pids.filter_map(started).collect();
    children.sort_unstable();
    children.into_iter().map(|(_, pid)| pid).collect()
}

/// A new control group. It is removed on drop.
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Creates a control group, in any hierarchy of v1 or v2. `None` if that is not possible here.
    pub fn create() -> Option<Self> {
        let roots = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/systemd"];
        roots.into_iter().find_map(Self::create_in)
    }

    /// Creates a control group with a CPU quota, in the hierarchy that controls CPU time. `None` if that is not possible here.
    pub fn with_cpu_quota(cpus: f64) -> Option<Self> {
        let (root, file, text) = match Path::new("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists() {
            true => ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", format!("{:.0}", cpus * 1e5)),
            false => ("/sys/fs/cgroup", "cpu.max", format!("{:.0} 100000", cpus * 1e5)),
        };
        let group = Self::create_in(root)?;
        std::fs::write(group.0.join(file), text).ok()?;
        Some(group)
    }

    /// Creates a control group that [`Self::freeze`] works on. `None` if that is not possible here.
    pub fn with_freezer() -> Option<Self> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].into_iter();
        roots.filter_map(Self::create_in).find(|group| group.0.join("cgroup.freeze").exists())
    }

    fn create_in(root: &str) -> Option<Self> {
        let root = Path::new(root);
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let group = root.join(format!("it-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        (root.join("cgroup.procs").exists() && std::fs::create_dir(&group).is_ok()).then_some(Self(group))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn add(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Stops its processes, or lets them go on.
    pub fn freeze(&self, stopped: bool) {
        std::fs::write(self.0.join("cgroup.freeze"), if stopped { "1" } else { "0" }).unwrap();
    }

    /// The text of the file with the CPU quota.
    pub fn cpu_quota(&self) -> String {
        let read = |file: &str| std::fs::read_to_string(self.0.join(file));
        read("cpu.max").or_else(|_| read("cpu.cfs_quota_us")).unwrap().trim().to_owned()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for pid in std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            std::fs::write(self.0.with_file_name("cgroup.procs"), pid).ok();
        }
        // It can be removed only after the kernel has released its last process.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Reads a saved capture.
pub fn capture(path: &Path) -> Capture {
    parshall_diagnose::case::read(path).expect("a capture was saved")
}

/// The cause of a verdict, or its status if it has none.
pub fn verdict(report: &Report) -> String {
    let status = serde_json::to_value(report.verdict.status).expect("a word");
    report.verdict.cause.clone().unwrap_or_else(|| status.as_str().unwrap_or_default().to_owned())
}

/// What `observe` gives, again while what others on the host do shows in it, and six times at most: the last one.
pub fn again_while<T>(mut observe: impl FnMut() -> T, disturbed: impl Fn(&T) -> bool) -> T {
    let mut seen = observe();
    for _ in 1..6 {
        if !disturbed(&seen) {
            break;
        }
        seen = observe();
    }
    seen
}

/// Waits until a condition is true. Fails after a minute.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < give_up, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A recipe of the lab: its name and the cause that it expects (`None`: a verdict without a cause).
pub struct Recipe {
    pub name: String,
    pub cause: Option<String>,
}

/// The recipes in a directory of the repository, sorted by name.
pub fn recipes(directory: &str) -> Vec<Recipe> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(directory);
    let mut found: Vec<Recipe> = std::fs::read_dir(&directory)
        .expect("the directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| {
            let table: toml::Table = toml::from_str(&std::fs::read_to_string(&path).unwrap()).expect("TOML");
            let cause = table["expect"].get("cause").and_then(|cause| cause.as_str()).map(str::to_owned);
            Recipe { name: path.file_stem().unwrap().to_string_lossy().into_owned(), cause }
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!found.is_empty());
    found
}
