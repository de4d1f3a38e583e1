//! A child that waits, stopped, before its first instruction of interest until its parent lets it go.
use std::io;
use std::time::{Duration, Instant};

/// Stops the calling process until somebody sends it SIGCONT.
pub fn stop_self() {
    // SAFETY: raise takes a plain number; SIGSTOP has no handler and changes no memory of ours.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Waits until a child of ours has stopped itself; false when it exited instead or `within` has passed.
pub fn wait_stopped(child: u32, within: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + within;
    loop {
        // SAFETY: an all-zero siginfo_t is valid, and waitid only writes to it.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
        // SAFETY: `info` is valid for writes; WNOWAIT leaves the child's status to its owner.
        if unsafe { libc::waitid(libc::P_PID, child, &mut info, flags) } != 0 {
            return Err(io::Error::last_os_error());
        }
        match info.si_code {
            libc::CLD_STOPPED => return Ok(true),
            libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED => return Ok(false),
            _ if Instant::now() >= deadline => return Ok(false),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Lets a stopped child of ours go on.
pub fn resume(child: &std::process::Child) -> io::Result<()> {
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    // SAFETY: kill takes plain numbers; the pid is that of a child we have not waited for, so it cannot be another's.
    if unsafe { libc::kill(pid, libc::SIGCONT) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
