//! A process of the subject, read from /proc.
use std::fs;
use std::path::{Path, PathBuf};

use parshall_host::bounded_file;
use parshall_host::cgroup::Mounts;
use parshall_host::proc_fs::{arguments, netns_ino, stat, threads, whole_name};

use crate::origin::own_part;

/// A process of the subject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Its id in our pid namespace.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Its program, as /proc/PID/exe names it; None when we may not see it.
    pub exe: Option<PathBuf>,
    /// When it started, in ticks since boot: with the pid, this tells it from a later process of the same number.
    pub start_ticks: u64,
    /// Inode of its network namespace, 0 when we may not see it.
    pub netns_ino: u64,
    /// Ids of its threads.
    pub threads: Vec<u32>,
    /// Directory of the control group that controls its CPU time.
    pub cpu_cgroup: Option<PathBuf>,
}

/// The arguments of a process that is parshall itself, by its program; those of others may hold secrets, and so may those
/// of the command behind `run ... --`.
pub fn own_arguments(pid: u32) -> Option<Vec<String>> {
    // Read before its program is: a process that becomes another one in between is not taken for ours.
    let words = arguments(pid);
    let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    // An upgrade leaves the old process with a program that is gone from its path.
    let name = exe.file_name()?.to_str()?;
    let ours = name.strip_suffix(" (deleted)").unwrap_or(name) == "parshall" || std::env::current_exe().ok()? == exe;
    if ours && !words.is_empty() { own_part(words) } else { None }
}

/// Everything about a process that the subject needs.
pub fn process(pid: u32, mounts: &Mounts) -> Option<Process> {
    let stat = stat(pid)?;
    let cgroup = bounded_file::text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    Some(Process {
        pid,
        comm: whole_name(pid, &stat.comm),
        exe: fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe")).ok(),
        start_ticks: stat.start_ticks,
        netns_ino: netns_ino(pid).unwrap_or(0),
        threads: threads(pid),
        cpu_cgroup: mounts.cpu_directory(&cgroup),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_a_process() {
        assert!(process(std::process::id(), &Mounts::read()).is_some_and(|process| process.start_ticks > 0));
    }

    #[test]
    fn only_our_own_arguments_are_read() {
        let own = own_arguments(std::process::id()).expect("this program");
        assert_eq!(own, std::env::args().collect::<Vec<_>>());
        let mut other = std::process::Command::new("sleep").args(["5", "0"]).spawn().expect("sleep runs");
        // Between fork and exec it has none.
        let begun = std::time::Instant::now();
        while arguments(other.id()).len() != 3 && begun.elapsed().as_secs() < 5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let (seen, own) = (arguments(other.id()), own_arguments(other.id()));
        other.kill().expect("our child");
        other.wait().expect("our child");
        assert_eq!((seen, own), (vec!["sleep".into(), "5".into(), "0".into()], None));
    }
}
