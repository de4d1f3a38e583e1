//! Child processes that cannot outlive their parent, started inside a namespace, a control group or on chosen CPUs.
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The namespace, control group and CPUs of a child.
#[derive(Debug, Default)]
pub struct Confine<'a> {
    /// Network namespace; None for the parent's.
    pub netns: Option<BorrowedFd<'a>>,
    /// The open `cgroup.procs` of a control group.
    pub cgroup_procs: Option<&'a File>,
    /// CPUs it may use; empty for all.
    pub cpus: &'a [usize],
}

/// Starts a child that is killed when the calling *thread* ends (`PR_SET_PDEATHSIG` watches the thread that forked, so
/// call this from a thread that lives as long as the child may).
pub fn spawn(command: &mut Command, confine: &Confine<'_>) -> io::Result<Child> {
    let netns = confine.netns.map(|fd| fd.try_clone_to_owned()).transpose()?;
    let cgroup = confine.cgroup_procs.map(|file| file.as_fd().try_clone_to_owned()).transpose()?;
    let cpus = (!confine.cpus.is_empty()).then(|| cpu_set(confine.cpus));
    let parent = rustix::process::getpid();
    let work = move || in_child(parent, netns.as_ref(), cgroup.as_ref(), cpus.as_ref());
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls, on values it owns.
    unsafe { command.pre_exec(work) };
    command.spawn()
}

fn in_child(parent: Pid, netns: Option<&OwnedFd>, cgroup: Option<&OwnedFd>, cpus: Option<&CpuSet>) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(parent) {
        // The parent died before the prctl: the signal will not come.
        return Err(Errno::SRCH.into());
    }
    if let Some(file) = cgroup {
        // "0" means the writer itself.
        rustix::io::write(file, b"0")?;
    }
    if let Some(netns) = netns {
        crate::netns::enter(netns.as_fd())?;
    }
    if let Some(set) = cpus {
        sched_setaffinity(None, set)?;
    }
    Ok(())
}

fn cpu_set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    set
}

/// Asks a child to end (SIGTERM). The pid cannot have been reused: `Child` has not been waited for while it is borrowed
/// mutably and unreaped.
pub fn terminate(child: &mut Child) -> io::Result<()> {
    if child.try_wait()?.is_some() {
        return Ok(());
    }
    Ok(kill_process(Pid::from_child(child), Signal::TERM)?)
}

/// Lets timers of the calling thread fire on time instead of up to 50 µs late. Failure means later timers.
pub fn set_timer_slack_ns(ns: u64) {
    rustix::thread::set_current_timer_slack(NonZeroU64::new(ns)).ok();
}

/// Whether the process has the rights of root, which namespaces, veth pairs and control groups need.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
