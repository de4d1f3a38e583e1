//! Finds out which signals were sent to the whole process group, and not only to this process.
//!
//! kill(2) of a process and of its group give the same siginfo. So a second process of the group (the witness) is forked,
//! which blocks the signals, waits for them and reports them through a pipe: it receives only what the group was sent.
use std::ffi::CStr;
use std::io::{self, PipeReader, Read};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, getpgid, getpgrp, getpid, kill_process, waitpid};

/// The process name of a witness, at most 15 bytes.
const WITNESS_NAME: &CStr = c"parshall-group";

/// A signal that the group was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct GroupSignal {
    /// When the witness received it: CLOCK_MONOTONIC, ns.
    pub at_ns: u64,
    /// As in signal(7).
    pub number: i32,
    pad: i32,
}

/// The witness of this process's group. It dies with the thread that forked it, and when this is dropped.
#[derive(Debug)]
pub struct GroupSignals {
    witness: Pid,
    received: PipeReader,
}

impl GroupSignals {
    /// Forks a witness for these signals. Call this from a thread that lives as long as the witness is needed.
    pub fn watch(signals: &[i32]) -> io::Result<Self> {
        let (received, report) = io::pipe()?;
        let parent = getpid().as_raw_pid();
        // SAFETY: the set is plain data for which zeroes are valid, and the calls only fail for wrong signal numbers.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for &signal in signals.iter().chain(&[libc::SIGRTMIN()]) {
                libc::sigaddset(&raw mut set, signal);
            }
            set
        };
        let mut before = set;
        // Blocked here already: between fork and its own first instruction the witness would run our signal handlers.
        // SAFETY: both sets are valid, and stay so.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        // SAFETY: the child calls only what is safe after fork() in a process with threads, and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: we are the child, `report` is open in it, and the signals of `set` are blocked.
            unsafe { witness(parent, report.as_raw_fd(), &set) };
        }
        let failed = io::Error::last_os_error();
        // SAFETY: the set is the one that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
        let witness = Pid::from_raw(pid.max(0)).ok_or(failed)?;
        Ok(Self { witness, received })
    }

    /// The next signal that the group was sent; None if there is none `within` that time.
    pub fn next(&mut self, within: Duration) -> Option<GroupSignal> {
        self.read(within).filter(|signal| signal.number != libc::SIGRTMIN())
    }

    /// Returns the signals that the group was sent before this call. The witness may have had no CPU since: it is waited for, at most `within`.
    pub fn sent_before(&mut self, within: Duration) -> Vec<GroupSignal> {
        // Of the signals that are pending, real-time ones are taken last (signal(7)).
        // SAFETY: the witness is our child, which is not waited for before this is dropped.
        let asked = unsafe { libc::kill(self.witness.as_raw_pid(), libc::SIGRTMIN()) } == 0;
        let mut sent = Vec::new();
        while asked
            && let Some(signal) = self.read(within)
            && signal.number != libc::SIGRTMIN()
        {
            sent.push(signal);
        }
        sent
    }

    fn read(&mut self, within: Duration) -> Option<GroupSignal> {
        let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(&self.received, PollFlags::IN)], Some(&within));
        let mut bytes = [0; size_of::<GroupSignal>()];
        if ready != Ok(1) || self.received.read_exact(&mut bytes).is_err() {
            return None;
        }
        let at = |offset: usize| bytes.get(offset..).unwrap_or_default();
        let at_ns = u64::from_ne_bytes(*at(offset_of!(GroupSignal, at_ns)).first_chunk()?);
        let number = i32::from_ne_bytes(*at(offset_of!(GroupSignal, number)).first_chunk()?);
        Some(GroupSignal { at_ns, number, pad: 0 })
    }
}

impl Drop for GroupSignals {
    fn drop(&mut self) {
        // It is our child and has not been waited for, so the pid is still its own.
        kill_process(self.witness, Signal::KILL).ok();
        waitpid(Some(self.witness), WaitOptions::empty()).ok();
    }
}

/// Whether a process is in the group of this one.
pub fn shares_group(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| getpgid(Some(pid)) == Ok(getpgrp()))
}

/// The witness: writes a [`GroupSignal`] for each signal, until it is killed or the pipe has no reader.
///
/// # Safety
/// To be called in a child after fork() only. `report` is open, and the signals of `set` are blocked.
unsafe fn witness(parent: i32, report: i32, set: &libc::sigset_t) -> ! {
    // SAFETY: only async-signal-safe system calls on valid memory. Nothing in the child uses the descriptors that are
    // closed; kept open, they would delay the end of file of pipes that parshall closes.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, WITNESS_NAME.as_ptr());
        let ready = libc::getppid() == parent && libc::dup2(report, 0) == 0;
        if !ready || libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) < 0 {
            libc::_exit(1);
        }
        loop {
            let number = libc::sigwaitinfo(set, std::ptr::null_mut());
            let mut now: libc::timespec = std::mem::zeroed();
            libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
            let signal = GroupSignal { at_ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64, number, pad: 0 };
            // A write of less than PIPE_BUF is whole or fails.
            if number > 0 && libc::write(0, (&raw const signal).cast(), size_of::<GroupSignal>()) < 0 {
                libc::_exit(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic_ns;

    const SOON: Duration = Duration::from_millis(200);
    /// Its default action is to do nothing, and no test uses it.
    const SIGNAL: i32 = libc::SIGURG;

    #[test]
    fn a_witness_receives_what_the_group_is_sent() {
        let mut group = GroupSignals::watch(&[SIGNAL]).expect("a witness");
        kill_process(getpid(), Signal::URG).expect("ourselves");
        assert_eq!(group.next(SOON), None, "it was sent to this process alone");
        // Sent to the witness alone: the tests share their process group with the program that started them.
        let before = monotonic_ns();
        kill_process(group.witness, Signal::URG).expect("our own child");
        let signal = group.next(Duration::from_secs(10)).expect("the witness reports it");
        assert!(signal.number == SIGNAL && signal.at_ns >= before, "{signal:?}");
        assert_eq!(group.next(Duration::ZERO), None);
    }

    #[test]
    fn what_a_witness_without_a_cpu_has_not_yet_reported_is_waited_for() {
        let mut group = GroupSignals::watch(&[SIGNAL]).expect("a witness");
        assert_eq!(group.sent_before(Duration::from_secs(10)), []);
        kill_process(group.witness, Signal::STOP).expect("our own child");
        kill_process(group.witness, Signal::URG).expect("our own child");
        let witness = group.witness;
        let cpu = std::thread::spawn(move || {
            std::thread::sleep(SOON);
            kill_process(witness, Signal::CONT).expect("our own child");
        });
        let numbers: Vec<i32> = group.sent_before(Duration::from_secs(10)).iter().map(|sent| sent.number).collect();
        assert_eq!(numbers, [SIGNAL]);
        assert_eq!(group.sent_before(Duration::from_secs(10)), []);
        cpu.join().expect("no panic");
    }

    #[test]
    fn a_child_shares_our_group_until_it_leaves_it() {
        use std::os::unix::process::CommandExt;
        let start = |command: &mut std::process::Command| command.arg("30").spawn().expect("sleep runs");
        let mut inside = start(&mut std::process::Command::new("sleep"));
        let mut outside = start(std::process::Command::new("sleep").process_group(0));
        assert_eq!((shares_group(inside.id()), shares_group(outside.id())), (true, false));
        for child in [&mut inside, &mut outside] {
            child.kill().expect("our own child");
            child.wait().expect("our own child");
        }
    }
}
