//! A child process that is probed, for tests that load the probes. Needs root.
use std::io::Read;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use parshall_bpf::diagnose::features::{DUMP_FLOWS, Missing};
use parshall_bpf::diagnose::{Config, Probes, Scope};
use parshall_testkit::{root, skip};

/// Counts of programs and probes of each other's events would get mixed up.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether probes can be loaded here; if not, says so.
pub fn ready(what: &str) -> bool {
    let btf = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    if !btf {
        skip(what, "this kernel has no BTF");
    }
    btf && root(what)
}

/// A child that talks to itself: probes leave their own process alone.
pub struct Talker(std::process::Child);

impl Talker {
    /// Runs the body `talk` of load.rs.
    pub fn talk(connections: usize) -> Self {
        Self::start_as("load::talk", &connections.to_string())
    }

    /// Runs the body `role` of this binary with `value` in the environment, until it says that it talks.
    pub fn start_as(role: &str, value: &str) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()).env("TALK", value), role)
    }

    /// The same by a command that runs the program which its last arguments name.
    pub fn start_in(command: impl Fn(&[&str]) -> Command, role: &str) -> Self {
        Self::start_by(&mut command(&[std::env::current_exe().unwrap().to_str().unwrap()]), role)
    }

    fn start_by(command: &mut Command, role: &str) -> Self {
        let mut child = command
            .args(["--exact", role, "--ignored", "--nocapture", "--quiet"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (mut told, mut byte) = (Vec::new(), [0]);
        while !told.ends_with(b"talking") {
            child.stdout.as_mut().unwrap().read_exact(&mut byte).expect("it says when it talks");
            told.push(byte[0]);
        }
        Self(child)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Probes of this child.
    pub fn config(&self, max_flows: u32) -> Config {
        Config { tgids: vec![(self.0.id(), Scope::All)], max_flows, ..Config::default() }
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is lost with programs beside those that iterate over the elements of maps, which the policy of some kernels refuses.
pub fn lost_beside_map_iterators(probes: &Probes) -> Vec<Missing> {
    let mut lost = probes.lost();
    lost.retain(|missing| missing.refused.iter().any(|one| one.program != DUMP_FLOWS.name));
    lost
}

/// Ends the child with its parent, which holds the other end of stdin.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}
