//! The one that stops a process: the sender of a signal, as the probe saw it, a debugger, or the freezer of a control group.
use std::collections::{HashMap, HashSet};

use parshall_bpf::diagnose::signal::StopSignalWire;
use parshall_evidence::Stopper;
use parshall_evidence::timeline::{Timeline, Why};
use parshall_host::bounded_file;
use parshall_host::cgroup::Mounts;
use parshall_host::proc_fs;

use super::names::comm;
use parshall_core::sorting::IntoOrdered as _;

/// Processes of which it is kept who stopped them.
const PROCESSES_MAX: usize = 1_024;
/// Processes that are looked at again soon.
const SOUGHT_MAX: usize = 16;

/// Stopped processes, with the one that was seen to stop them.
#[derive(Debug, Default)]
pub struct Stopped {
    by: HashMap<u32, Stopper>,
    /// Processes that were stopped by something that was not seen.
    sought: HashSet<u32>,
}

impl Stopped {
    /// Prepares the next window. The one that has stopped a process that lives still may hold it.
    pub fn renew(&mut self) {
        self.sought.clear();
        self.by.retain(|&pid, _| proc_fs::stat(pid).is_some());
    }

    /// A signal was sent that stops a process; the last one counts.
    pub fn see(&mut self, signal: &StopSignalWire) {
        let name = match signal.signal {
            19 => "SIGSTOP",
            20 => "SIGTSTP",
            21 => "SIGTTIN",
            _ => "SIGTTOU",
        };
        let comm = parshall_bpf::comm(&signal.sender_comm);
        self.note(signal.tgid, Stopper::Sender { signal: name.to_owned(), comm, pid: signal.sender_tgid });
    }

    /// A process was stopped: what stops it is looked for until it is found, as it may stop it again.
    pub fn see_stop(&mut self, pid: u32) {
        if !self.by.contains_key(&pid) && self.sought.len() < SOUGHT_MAX {
            self.sought.insert(pid);
        }
    }

    /// Looks at the processes that were stopped by something that is not known. Meant for each drain of the ring.
    pub fn look(&mut self) {
        for pid in std::mem::take(&mut self.sought) {
            self.read(pid);
            self.see_stop(pid);
        }
    }

    /// Notes the debugger of a process that is stopped now, or that its control group is frozen. Meant for a few times a second:
    /// it reads one or two files.
    pub fn read(&mut self, pid: u32) {
        if let Some(by) = stopped_by(pid) {
            self.note(pid, by);
        }
    }

    fn note(&mut self, pid: u32, by: Stopper) {
        if self.by.len() < PROCESSES_MAX || self.by.contains_key(&pid) {
            self.by.insert(pid, by);
        }
    }

    /// Adds them to the timeline, for the processes that were stopped in it. One whose stop was not seen is read now: it may still
    /// be stopped.
    pub fn complete(&mut self, timeline: &mut Timeline) {
        let stopped = |tid: &u32| timeline.off_cpu[tid].iter().any(|off| off.why == Why::Stopped);
        let tids = timeline.off_cpu.keys().filter(|tid| stopped(tid));
        let pids: HashSet<u32> = tids.filter_map(|tid| Some(timeline.names.get(tid)?.pid)).collect();
        for &pid in pids.iter().take(PROCESSES_MAX) {
            if !self.by.contains_key(&pid) {
                self.read(pid);
            }
        }
        timeline.stopped_by =
            self.by.iter().filter(|(pid, _)| pids.contains(pid)).map(|(&pid, by)| (pid, by.clone())).into_map();
    }
}

/// The debugger of a process, or the freezer of its control group if that is frozen.
pub fn stopped_by(pid: u32) -> Option<Stopper> {
    let status = bounded_file::text(format!("/proc/{pid}/status")).ok()?;
    let tracer = proc_fs::status_field(&status, "TracerPid").and_then(|field| field.parse::<u32>().ok());
    match tracer.filter(|&tracer| tracer != 0) {
        Some(tracer) => Some(Stopper::Debugger { comm: comm(tracer), pid: tracer }),
        None => frozen_group(pid).map(|group| Stopper::Freezer { group }),
    }
}

/// The path of the process' control group, if that is frozen. Only version 2 has `cgroup.events`.
fn frozen_group(pid: u32) -> Option<String> {
    let groups = bounded_file::text(format!("/proc/{pid}/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::")).filter(|path| *path != "/")?;
    let directories = Mounts::read().directories_named(group.as_ref());
    let frozen = |events: String| events.lines().any(|line| line == "frozen 1");
    let mut events = directories.iter().filter_map(|path| bounded_file::text(path.join("cgroup.events")).ok());
    events.any(frozen).then(|| group.to_owned())
}

#[cfg(test)]
mod tests {
    use parshall_bpf::diagnose::record_head::RecordHead;
    use parshall_evidence::FdKind;
    use parshall_evidence::timeline::{Names, OffCpu, Waker};

    use super::*;

    fn sent(tgid: u32, signal: u32) -> StopSignalWire {
        let head = RecordHead { kind: 11, tid: tgid, at: 1 };
        let mut sender_comm = [0; 16];
        sender_comm[..4].copy_from_slice(b"kill");
        StopSignalWire { head, tgid, signal, sender_tgid: 812, pad: 0, sender_comm }
    }

    fn off(tid: u32, why: Why) -> OffCpu {
        OffCpu {
            tid,
            begin_ns: 0,
            wake_ns: 5,
            end_ns: 5,
            why,
            syscall: -1,
            fd: FdKind::None,
            fd_number: -1,
            target: 0,
            waker: Waker::Unknown,
            ran_instead_tid: 0,
            stack: None,
        }
    }

    #[test]
    fn of_processes_that_were_stopped_the_sender_is_kept() {
        let mut stopped = Stopped::default();
        stopped.see(&sent(100, 19));
        stopped.see(&sent(200, 20));
        let mut timeline = Timeline::default();
        for (tid, pid, why) in [(101, 100, Why::Stopped), (200, 200, Why::Slept)] {
            timeline.off_cpu.insert(tid, vec![off(tid, why)]);
            timeline.names.insert(tid, Names { pid, ..Names::default() });
        }
        stopped.complete(&mut timeline);
        let kill = Stopper::Sender { signal: "SIGSTOP".into(), comm: "kill".into(), pid: 812 };
        assert_eq!(timeline.stopped_by.into_iter().collect::<Vec<_>>(), [(100, kill)]);
    }

    #[test]
    fn what_was_not_seen_is_sought_until_it_is_found() {
        let mut stopped = Stopped::default();
        stopped.see(&sent(100, 19));
        let own = std::process::id();
        [100, own].into_iter().for_each(|pid| stopped.see_stop(pid));
        stopped.look();
        assert_eq!(stopped.sought, HashSet::from([own]));
    }

    #[test]
    fn this_process_is_neither_traced_nor_frozen() {
        let mut stopped = Stopped::default();
        stopped.read(std::process::id());
        assert!(stopped.by.is_empty(), "{stopped:?}");
    }
}
