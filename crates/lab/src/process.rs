//! The processes of a testbed: started in their namespace and control group, waited for until ready, ended by their pid.
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use parshall_sys::child::{self, Confine};
use parshall_sys::measured_child::{MeasuredChild, Usage};

use super::load::Outcome;
use super::recipe::Ready;

const READY_MAX: Duration = Duration::from_secs(15);
const END_MAX: Duration = Duration::from_secs(2);
/// How long the rest of an ended process's stderr is waited for. It can stay open: processes that it left behind hold it.
const STDERR_END_MAX: Duration = Duration::from_millis(500);
const KEPT_LINES: usize = 20;
const KEPT_OUTPUT: u64 = 1 << 20;

/// A running process. Dropping it kills it and waits for it.
pub struct Process {
    name: String,
    child: MeasuredChild,
    stderr: Arc<Stderr>,
    /// Disconnected once stderr was read to its end.
    stderr_end: Receiver<Infallible>,
    stdout: Option<JoinHandle<String>>,
}

/// The exit status, resources and output of a process that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    pub status: ExitStatus,
    pub usage: Usage,
    /// The first MiB of its stdout.
    pub stdout: String,
    /// The last lines that it wrote to stderr, each after a line feed and two spaces.
    pub stderr_tail: String,
}

#[derive(Default)]
struct Stderr {
    ready: AtomicBool,
    last: Mutex<VecDeque<String>>,
}

impl Process {
    /// Starts a program. Call it from a thread that lives as long as the process may: it dies with that thread.
    pub fn start(name: &str, command: &[String], confine: &Confine<'_>) -> anyhow::Result<Self> {
        Self::start_in_group(name, command, &BTreeMap::new(), confine, false)
    }

    /// As [`Self::start`], with more variables in its environment, and if wanted as the leader of a process group of its own: then
    /// what it leaves behind ends with it, and Ctrl-C at the terminal does not reach it.
    pub fn start_in_group(
        name: &str,
        command: &[String],
        environment: &BTreeMap<String, String>,
        confine: &Confine<'_>,
        own_group: bool,
    ) -> anyhow::Result<Self> {
        let (program, args) = command.split_first().context("an empty command")?;
        let mut command = Command::new(program);
        command.args(args).envs(environment).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if own_group {
            command.process_group(0);
        }
        let child = child::spawn(&mut command, confine).with_context(|| format!("starting {name} ({program})"))?;
        let (child, stdout, stderr_pipe) = MeasuredChild::new(child, own_group);
        let stderr = Arc::new(Stderr::default());
        let (reading, stderr_end) = mpsc::channel();
        if let Some(pipe) = stderr_pipe {
            let stderr = Arc::clone(&stderr);
            std::thread::spawn(move || {
                stderr.read(pipe);
                drop(reading);
            });
        }
        let stdout = stdout.map(|mut pipe| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                pipe.by_ref().take(KEPT_OUTPUT).read_to_end(&mut bytes).ok();
                std::io::copy(&mut pipe, &mut std::io::sink()).ok();
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        Ok(Self { name: name.into(), child, stderr, stderr_end, stdout })
    }

    /// Its name in the recipe.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is ready as the recipe defines it.
    pub fn wait_ready(
        &mut self,
        ready: Ready,
        port: u16,
        interrupt: &super::interrupt::Interrupt,
    ) -> anyhow::Result<()> {
        let give_up = Instant::now() + READY_MAX;
        loop {
            let usable = match ready {
                Ready::Line => self.stderr.ready.load(Ordering::Acquire),
                Ready::Listen => listens(self.pid(), port),
                Ready::Started => true,
            };
            self.check_alive()?;
            if usable {
                return Ok(());
            }
            interrupt.check()?;
            if Instant::now() > give_up {
                bail!("{} was not ready within {} s{}", self.name, READY_MAX.as_secs(), self.stderr.tail());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// An error with the end of its stderr if it has ended.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        if let Some((status, _)) = self.child.try_wait()? {
            bail!("{} ended too early ({status}){}", self.name, self.last_words());
        }
        Ok(())
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Waits until it ends by itself, at most for this time. Returns whether it has.
    pub fn wait_for(&mut self, time: Duration) -> anyhow::Result<bool> {
        Ok(self.child.wait_for(time)?)
    }

    /// Sends SIGTERM, after a while SIGKILL, and returns the result that loads print.
    pub fn end(self) -> Option<Outcome> {
        self.finish().ok()?.outcome()
    }

    /// As [`Self::end`], with everything that it left. A process that has ended by itself gets no signal.
    pub fn finish(mut self) -> anyhow::Result<Ended> {
        self.child.terminate().ok();
        let give_up = Instant::now() + END_MAX;
        while !self.has_ended() && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (status, usage) = self.child.kill()?;
        let stdout = self.stdout.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        Ok(Ended { status, usage, stdout, stderr_tail: self.last_words() })
    }

    /// The end of the stderr of a process that has ended.
    fn last_words(&self) -> String {
        self.stderr_end.recv_timeout(STDERR_END_MAX).ok();
        self.stderr.tail()
    }
}

impl Ended {
    /// The result that loads print as their last line.
    pub fn outcome(&self) -> Option<Outcome> {
        self.stdout.lines().rev().find_map(|line| serde_json::from_str(line).ok())
    }
}

impl Stderr {
    fn read(&self, pipe: impl Read) {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.starts_with("ready") {
                self.ready.store(true, Ordering::Release);
            }
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.len() == KEPT_LINES {
                last.pop_front();
            }
            last.push_back(line);
        }
    }

    fn tail(&self) -> String {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().filter(|line| !line.starts_with("ready")).map(|line| format!("\n  {line}")).collect()
    }
}

/// Whether the namespace of a process has a listener on this port, from /proc/PID/net: connecting would disturb the process.
fn listens(pid: u32, port: u16) -> bool {
    const TCP_LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some(TCP_LISTEN)
        })
    })
}

/// The file of a program, as execvp would find it.
pub fn program_path(program: &str) -> Option<PathBuf> {
    if program == "{parshall}" {
        return std::env::current_exe().ok();
    }
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(program_path("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(program_path("no-such-program-anywhere"), None);
    }
}
