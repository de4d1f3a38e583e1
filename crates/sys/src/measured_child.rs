//! A child process whose use of the CPU and of memory is known once it has ended, with that of the descendants it waited for.
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdout, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

/// Resources that a process and the descendants that it waited for have used (`struct rusage`).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// CPU time outside of the kernel, in s.
    pub user_s: f64,
    /// CPU time in the kernel, in s. The work of interrupts for its packets is not in it.
    pub system_s: f64,
    /// The largest resident memory of any of them, in bytes.
    pub peak_rss_bytes: u64,
    /// Switches because it waited.
    pub voluntary_switches: u64,
    /// Switches because its time slice was over or something more urgent ran.
    pub involuntary_switches: u64,
}

/// A running child. Dropping it kills it and waits for it.
#[derive(Debug)]
pub struct MeasuredChild {
    pid: Pid,
    leads_group: bool,
    ended: Option<(ExitStatus, Usage)>,
}

impl MeasuredChild {
    /// Takes over a child, with its pipes. `leads_group` says that it was started as the leader of a process group of its own
    /// (`CommandExt::process_group(0)`): then the whole group ends with it.
    pub fn new(mut child: Child, leads_group: bool) -> (Self, Option<ChildStdout>, Option<ChildStderr>) {
        let pipes = (child.stdout.take(), child.stderr.take());
        // `Child` neither kills nor waits when it is dropped, so from here on the pid is ours alone.
        (Self { pid: Pid::from_child(&child), leads_group, ended: None }, pipes.0, pipes.1)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// How it ended and what it used; None while it runs.
    pub fn try_wait(&mut self) -> io::Result<Option<(ExitStatus, Usage)>> {
        if self.ended.is_none() && self.has_exited(WaitIdOptions::NOHANG)? {
            self.reap()?;
        }
        Ok(self.ended)
    }

    /// Waits until it ends, at most for this time. Returns whether it has ended.
    pub fn wait_for(&mut self, time: Duration) -> io::Result<bool> {
        if self.ended.is_some() {
            return Ok(true);
        }
        let fd = rustix::process::pidfd_open(self.pid, PidfdFlags::empty())?;
        let mut ready = [PollFd::new(&fd, PollFlags::IN)];
        let timeout = Timespec::try_from(time).map_err(|_| io::ErrorKind::InvalidInput)?;
        match rustix::event::poll(&mut ready, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return self.try_wait().map(|ended| ended.is_some()),
            Err(error) => return Err(error.into()),
        }
        Ok(false)
    }

    /// Kills it, with its group if it leads one, and waits for it.
    pub fn kill(&mut self) -> io::Result<(ExitStatus, Usage)> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        kill_process(self.pid, Signal::KILL).ok();
        self.has_exited(WaitIdOptions::empty())?;
        self.reap()
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&mut self) -> io::Result<()> {
        // The pid cannot belong to another process: it is not reaped yet.
        if self.ended.is_none() { Ok(kill_process(self.pid, Signal::TERM)?) } else { Ok(()) }
    }

    /// Whether it has exited. It stays a zombie, so that its pid and its group's id are not used again.
    fn has_exited(&self, more: WaitIdOptions) -> io::Result<bool> {
        loop {
            match waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | more) {
                Err(rustix::io::Errno::INTR) => {}
                found => return Ok(found?.is_some()),
            }
        }
    }

    fn reap(&mut self) -> io::Result<(ExitStatus, Usage)> {
        if self.leads_group {
            kill_process_group(self.pid, Signal::KILL).ok();
        }
        let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::uninit());
        // SAFETY: both pointers are valid for writes. It is our child and not yet reaped, and WNOHANG does not wait.
        let got = unsafe { libc::wait4(self.pid.as_raw_pid(), &raw mut status, libc::WNOHANG, usage.as_mut_ptr()) };
        if got != self.pid.as_raw_pid() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: wait4 has returned a child, so it has filled the structure.
        let usage = unsafe { usage.assume_init() };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        let usage = Usage {
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
            // In KiB on Linux (man 2 getrusage).
            peak_rss_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
            voluntary_switches: u64::try_from(usage.ru_nvcsw).unwrap_or(0),
            involuntary_switches: u64::try_from(usage.ru_nivcsw).unwrap_or(0),
        };
        Ok(*self.ended.insert((ExitStatus::from_raw(status), usage)))
    }
}

impl Drop for MeasuredChild {
    fn drop(&mut self) {
        self.kill().ok();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    fn shell(script: &str) -> (MeasuredChild, Option<ChildStdout>, Option<ChildStderr>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).process_group(0);
        MeasuredChild::new(command.spawn().expect("sh runs"), true)
    }

    fn wait(child: &mut MeasuredChild) -> (ExitStatus, Usage) {
        let begun = Instant::now();
        loop {
            if let Some(ended) = child.try_wait().expect("our child") {
                return ended;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "it goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn cpu_time_of_the_child_and_its_own_is_counted() {
        let (mut child, ..) = shell("sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; exit 3");
        let (status, usage) = wait(&mut child);
        assert_eq!(status.code(), Some(3));
        assert!(usage.user_s + usage.system_s > 0.005 && usage.peak_rss_bytes > 100_000, "{usage:?}");
        assert_eq!(child.kill().expect("ended").0, status);
    }

    #[test]
    fn what_it_left_behind_ends_with_it() {
        let (mut child, stdout, _) = shell("sleep 1000 & echo $!");
        wait(&mut child);
        // The sleep holds the other end of the pipe: its end is the end of the sleep.
        let mut text = String::new();
        stdout.expect("piped").read_to_string(&mut text).expect("text");
        assert!(text.trim().parse::<u32>().is_ok(), "{text}");
    }

    #[test]
    fn a_wait_ends_with_the_child_or_the_time() {
        let (mut child, ..) = shell("sleep 0.2");
        assert!(!child.wait_for(Duration::from_millis(5)).expect("our child"));
        let begun = Instant::now();
        while !child.wait_for(Duration::from_secs(20)).expect("our child") {}
        assert!(begun.elapsed() < Duration::from_secs(10) && child.wait_for(Duration::ZERO).expect("it has ended"));
    }

    #[test]
    fn dropped_it_is_gone() {
        let (child, ..) = shell("sleep 1000");
        let pid = child.id();
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
