//! The CPUs and the nice value of any thread, by its id.
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that a thread may use, ascending.
///
/// # Errors
/// ESRCH: there is no such thread.
pub fn cpus(tid: u32) -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(Some(thread(tid)?))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Confines a thread to some CPUs.
///
/// # Errors
/// EINVAL: none of them is online and allowed by its cpuset; EPERM: it is another user's.
pub fn set_cpus(tid: u32, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    Ok(sched_setaffinity(Some(thread(tid)?), &set)?)
}

/// The nice value of a thread.
///
/// # Errors
/// ESRCH: there is no such thread.
pub fn nice(tid: u32) -> io::Result<i32> {
    // To the kernel a process of this call is a thread.
    Ok(getpriority_process(Some(thread(tid)?))?)
}

/// Sets the nice value of a thread. A lower one than it has takes CAP_SYS_NICE.
///
/// # Errors
/// EACCES or EPERM: that is not permitted; ESRCH: there is no such thread.
pub fn set_nice(tid: u32, nice: i32) -> io::Result<()> {
    Ok(setpriority_process(Some(thread(tid)?), nice)?)
}

fn thread(tid: u32) -> io::Result<Pid> {
    // 0 would be the calling thread.
    i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or_else(|| Errno::SRCH.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_confined_and_made_nicer() {
        let work = || {
            let tid = crate::thread_id();
            let before = cpus(tid).expect("we run");
            set_cpus(tid, &before[..1]).expect("one of ours");
            let confined = cpus(tid).expect("we run");
            set_cpus(tid, &before).expect("as before");
            let nicer = (nice(tid).expect("we run") + 1).min(19);
            set_nice(tid, nicer).expect("nobody needs rights to be nicer");
            (before.len(), confined.len(), nice(tid).expect("we run") == nicer)
        };
        let (before, confined, made_nicer) = std::thread::spawn(work).join().expect("no panic");
        assert!(before >= 1 && confined == 1 && made_nicer);
        assert_eq!(cpus(0).map_err(|error| error.raw_os_error()), Err(Some(libc::ESRCH)));
    }
}
