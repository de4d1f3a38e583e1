//! A testbed: the wire between two ends, the processes on it, and the removal of everything it made.
mod command;
mod delay_line;
mod network;
mod self_check;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use parshall_sys::child::{Confine, is_root};
use parshall_sys::netns::{self, NetNs};
use parshall_sys::owner::{self, Owner};
use parshall_sys::thread_setting;

use crate::cgroup::{self, CpuQuota};
use crate::interrupt::Interrupt;
use crate::load::Outcome;
use crate::process::{Ended, Process};
use crate::recipe::{CLIENT, SERVER, Stage, fill};
use parshall_core::sorting::IntoOrdered as _;
use parshall_host::error::UserError;

pub use command::{hold, run};
pub use network::Network;
pub use self_check::check;

fn own_program() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("finding this program")?;
    Ok(path.to_string_lossy().into_owned())
}

fn need_root(what: &str) -> Result<(), UserError> {
    if is_root() { Ok(()) } else { Err(UserError::new(format!("{what} need root"), "run it with sudo")) }
}

/// Where the user is not root, makes this process root in a user namespace of its own, if the host allows that. Returns whether it
/// did. Call it before the first thread is started.
pub fn enter_user_namespace() -> anyhow::Result<bool> {
    if is_root() {
        return Ok(false);
    }
    parshall_sys::user_namespace::become_root().map(|()| true).map_err(|error| {
        let what = format!("network namespaces need root, and a user namespace cannot be made: {error}");
        UserError::new(what, "run it with sudo").into()
    })
}

/// A recipe set up and running. Fields are dropped in order: processes before what they run in.
pub struct Testbed {
    processes: Vec<Process>,
    quotas: Vec<CpuQuota>,
    /// None for the host's loopback interface.
    network: Option<Network>,
    _dir: Directory,
    values: BTreeMap<&'static str, String>,
    port: u16,
}

impl Testbed {
    /// Makes the network and writes the files; starts nothing yet. Processes get `time` as the `{for}` placeholder and end after it.
    pub fn make(stage: &Stage, time: Duration) -> anyhow::Result<Self> {
        if stage.needs_root() {
            need_root("the namespaces and control groups of the testbed")?;
        }
        let network = stage.network.as_ref().map(Network::make).transpose()?;
        let dir = Directory::make()?;
        // In a new namespace every port is free.
        let ports = if network.is_some() { [7000, 7001, 7002] } else { free_ports()? };
        let values = BTreeMap::from([
            ("parshall", own_program()?),
            ("addr", address(network.as_ref()).to_string()),
            ("port", ports[0].to_string()),
            ("port2", ports[1].to_string()),
            ("port3", ports[2].to_string()),
            ("dir", dir.path.to_string_lossy().into_owned()),
            ("for", format!("{}s", time.as_secs())),
            ("seconds", time.as_secs().to_string()),
        ]);
        for file in &stage.files {
            let path = dir.path.join(&file.name);
            std::fs::write(&path, fill(&file.text, &values)).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(Self { processes: Vec::new(), quotas: Vec::new(), network, _dir: dir, values, port: ports[0] })
    }

    /// Starts a process of the stage, with extra arguments, and waits until it can be used.
    pub fn start(&mut self, stage: &Stage, name: &str, extra: &[String], interrupt: &Interrupt) -> anyhow::Result<()> {
        let spec = stage.processes.iter().find(|spec| spec.name == name).context("a process of another recipe")?;
        let cgroup = match spec.cpu_quota_percent {
            Some(percent) => {
                self.quotas.push(CpuQuota::create(&spec.name, percent)?);
                self.quotas.last().map(CpuQuota::procs).transpose()?
            }
            None => None,
        };
        let command: Vec<String> = spec.command.iter().chain(extra).cloned().collect();
        let cpus = usable(&spec.cpus);
        let confine = Confine { cgroup_procs: cgroup.as_ref(), ..self.confine(&spec.side, &cpus) };
        let mut process = Process::start(&spec.name, &self.fill(&command), &confine)?;
        process.wait_ready(spec.ready, self.port, interrupt)?;
        self.processes.push(process);
        Ok(())
    }

    /// Starts all processes of the stage in their order.
    pub fn start_all(&mut self, stage: &Stage, interrupt: &Interrupt) -> anyhow::Result<()> {
        stage.processes.iter().try_for_each(|spec| self.start(stage, &spec.name, &[], interrupt))
    }

    /// Starts a command at the client's end, in a process group of its own. It belongs to the caller.
    pub fn start_command(
        &self,
        command: &[String],
        environment: &BTreeMap<String, String>,
        cpus: &[usize],
    ) -> anyhow::Result<Process> {
        let environment = environment.iter().map(|(name, value)| (name.clone(), fill(value, &self.values))).into_map();
        let cpus = usable(cpus);
        let confine = self.confine(CLIENT, &cpus);
        Process::start_in_group("the command", &self.fill(command), &environment, &confine, true)
    }

    /// A command with the values of its placeholders.
    fn fill(&self, command: &[String]) -> Vec<String> {
        command.iter().map(|part| fill(part, &self.values)).collect()
    }

    fn confine<'a>(&'a self, side: &str, cpus: &'a [usize]) -> Confine<'a> {
        let netns = self.network.as_ref().and_then(|network| network.namespace(side)).map(NetNs::as_fd);
        Confine { netns, cgroup_procs: None, cpus }
    }

    /// Checks that the network does what its file says. Call it before the first process is started.
    pub fn check(&self, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.network.as_ref().map_or(Ok(()), |network| check(network, interrupt).map(drop))
    }

    /// The texts of a file of /proc/net in each namespace of the testbed.
    pub fn proc_net(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let Some(network) = &self.network else { return Ok(vec![read()?]) };
        Ok(network.namespaces().iter().map(|namespace| namespace.run(read)).collect::<Result<_, _>>()?)
    }

    /// An error if any process has ended.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(Process::check_alive)
    }

    /// CPU time that the delay line has used, in s; None where no link needs one.
    pub fn delay_line_cpu_s(&self) -> Option<f64> {
        self.network.as_ref()?.delay_line_cpu_s()
    }

    /// The pid of a running process.
    pub fn pid(&self, name: &str) -> Option<u32> {
        self.processes.iter().find(|process| process.name() == name).map(Process::pid)
    }

    /// The service's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends one process and returns its result.
    pub fn end(&mut self, name: &str) -> Option<Outcome> {
        let index = self.processes.iter().position(|process| process.name() == name)?;
        self.processes.remove(index).end()
    }

    /// Ends all processes, clients first, and returns what they left, by name.
    pub fn finish_all(&mut self) -> anyhow::Result<BTreeMap<String, Ended>> {
        let mut all = BTreeMap::new();
        while let Some(process) = self.processes.pop() {
            all.insert(process.name().to_owned(), process.finish()?);
        }
        Ok(all)
    }

    /// Ends all processes, clients first, and returns the results of those that are loads.
    pub fn end_all(&mut self) -> BTreeMap<String, Outcome> {
        let mut outcomes = BTreeMap::new();
        while let Some(process) = self.processes.pop() {
            let name = process.name().to_owned();
            if let Some(outcome) = process.end() {
                outcomes.insert(name, outcome);
            }
        }
        outcomes
    }
}

/// Makes the network of a stage, checks it and removes it.
pub fn try_out(stage: &Stage, interrupt: &Interrupt) -> anyhow::Result<()> {
    let Some(testbed) = &stage.network else { return Ok(()) };
    need_root("network namespaces")?;
    check(&Network::make(testbed)?, interrupt).map(drop)
}

/// The server's address.
fn address(network: Option<&Network>) -> IpAddr {
    let found = network.and_then(|network| {
        let testbed = network.testbed();
        testbed.address(testbed.namespace(SERVER)?)
    });
    found.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Those CPUs that the host has and that this process may use.
fn usable(cpus: &[usize]) -> Vec<usize> {
    let usable = thread_setting::cpus(std::process::id()).unwrap_or_default();
    cpus.iter().copied().filter(|cpu| usable.contains(cpu)).collect()
}

/// Three ports without a listener.
fn free_ports() -> anyhow::Result<[u16; 3]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    // All are bound before the first is free again, so they differ.
    let all = [bind()?, bind()?, bind()?];
    Ok([all[0].local_addr()?.port(), all[1].local_addr()?.port(), all[2].local_addr()?.port()])
}

/// A directory for the files of a recipe.
struct Directory {
    path: PathBuf,
}

impl Directory {
    fn make() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(Owner::this()?.unique_name("files"));
        let mut private = std::fs::DirBuilder::new();
        private.mode(0o700).create(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.path).ok();
    }
}

/// Removes what killed runs left behind, and logs it.
pub fn sweep() {
    let mut removed = if is_root() { netns::sweep().unwrap_or_default() } else { Vec::new() };
    removed.extend(cgroup::sweep());
    removed.extend(sweep_directories(&std::env::temp_dir()));
    if !removed.is_empty() {
        tracing::info!("removed what an earlier run left behind: {}", removed.join(", "));
    }
}

/// Any user may create a directory of such a name in /tmp, with any content: only those of our user are removed.
fn sweep_directories(parent: &Path) -> Vec<String> {
    let uid = parshall_sys::privileges::current().uid;
    let is_ours = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == uid);
    let mut dead = owner::leftovers(parent).unwrap_or_default();
    dead.retain(|name| is_ours(&parent.join(name)) && std::fs::remove_dir_all(parent.join(name)).is_ok());
    dead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_leftovers_are_removed() {
        let parent = tempfile::tempdir().expect("a directory");
        // No process has this pid: the owner is dead.
        for tag in ["ours", "theirs"] {
            std::fs::create_dir_all(parent.path().join(format!("parshall-{}-1-{tag}/below", u32::MAX))).expect("ours");
        }
        let theirs = parent.path().join(format!("parshall-{}-1-theirs", u32::MAX));
        let linked = parent.path().join(format!("parshall-{}-1-link", u32::MAX));
        std::os::unix::fs::symlink(parent.path(), linked).expect("a link");
        if parshall_testkit::root("leftovers of another user") {
            std::os::unix::fs::chown(&theirs, Some(1234), None).expect("root may");
            assert_eq!(sweep_directories(parent.path()), [format!("parshall-{}-1-ours", u32::MAX)]);
            assert!(theirs.exists());
        }
    }
}
