//! Child processes that cannot outlive their parent, started inside a namespace, a control group or on chosen CPUs.
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use crate::call::check;

/// Where a child is to run.
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
    let netns = confine.netns.map(|fd| fd.as_raw_fd());
    let cgroup = confine.cgroup_procs.map(AsRawFd::as_raw_fd);
    let cpus = (!confine.cpus.is_empty()).then(|| cpu_set(confine.cpus));
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls on values it owns;
    // the descriptors stay open in the parent across the spawn, which `confine` outlives.
    unsafe { command.pre_exec(move || in_child(parent, netns, cgroup, cpus)) };
    command.spawn()
}

fn in_child(
    parent: libc::pid_t,
    netns: Option<RawFd>,
    cgroup: Option<RawFd>,
    cpus: Option<libc::cpu_set_t>,
) -> io::Result<()> {
    // SAFETY: prctl with PR_SET_PDEATHSIG and getppid take no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    // SAFETY: as above.
    if unsafe { libc::getppid() } != parent {
        // The parent died before the prctl: the signal will not come.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    if let Some(fd) = cgroup {
        // SAFETY: one byte of a static string; "0" means the writer itself.
        check(unsafe { libc::write(fd, c"0".as_ptr().cast(), 1) } as libc::c_long)?;
    }
    if let Some(fd) = netns {
        // SAFETY: setns() takes no pointers.
        check(unsafe { libc::setns(fd, libc::CLONE_NEWNET) })?;
    }
    if let Some(set) = cpus {
        // SAFETY: the set is a local value of the size that is passed.
        check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) })?;
    }
    Ok(())
}

fn cpu_set(cpus: &[usize]) -> libc::cpu_set_t {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index is within the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    set
}

/// Asks a child to end (SIGTERM). The pid cannot have been reused: `Child` has not been waited for while it is borrowed
/// mutably and unreaped.
pub fn terminate(child: &mut Child) -> io::Result<()> {
    if child.try_wait()?.is_some() {
        return Ok(());
    }
    // SAFETY: kill() takes no pointers; the child is unreaped, so the pid is still its own.
    if unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Lets timers of the calling thread fire on time instead of up to 50 µs late.
pub fn set_timer_slack_ns(ns: u64) {
    // SAFETY: prctl with PR_SET_TIMERSLACK takes no pointers; failure only means later timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns as libc::c_ulong, 0, 0, 0) };
}

/// Whether the process has the rights of root, which namespaces, veth pairs and control groups need.
pub fn is_root() -> bool {
    // SAFETY: geteuid() takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
