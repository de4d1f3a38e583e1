//! An attribute of a thread: the CPUs that it may use, its nice value.
use std::io;

use parshall_core::values::cpus_text;
use parshall_host::proc_fs;
use parshall_sys::thread_setting;
use serde::{Deserialize, Serialize};

use super::error::{ended, gone, malformed};

/// An attribute of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub pid: u32,
    pub tid: u32,
    /// When it began, in ticks since boot.
    pub start_ticks: u64,
    pub setting: ThreadSetting,
}

/// Which attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadSetting {
    Affinity,
    Nice,
}

/// Threads of some processes that have the new value and are not known yet.
pub fn started(
    like: &Thread,
    new: &str,
    pids: impl Iterator<Item = u32>,
    known: &dyn Fn(&Thread) -> bool,
) -> Vec<Thread> {
    let threads = pids.flat_map(|pid| proc_fs::threads(pid).into_iter().map(move |tid| (pid, tid)));
    let found = threads.filter_map(|(pid, tid)| {
        let thread = Thread { pid, tid, start_ticks: proc_fs::stat(tid)?.start_ticks, setting: like.setting };
        (!known(&thread) && thread.read().is_ok_and(|value| value == new)).then_some(thread)
    });
    found.collect()
}

impl Thread {
    /// Its key among all places.
    pub fn key(&self) -> String {
        format!("thread {} {}", self.tid, self.start_ticks)
    }

    pub fn read(&self) -> io::Result<String> {
        self.check()?;
        let read = match self.setting {
            ThreadSetting::Affinity => thread_setting::cpus(self.tid).map(|cpus| cpus_text(&cpus)),
            ThreadSetting::Nice => thread_setting::nice(self.tid).map(|nice| nice.to_string()),
        };
        read.map_err(|error| ended(error, "the thread"))
    }

    pub fn write(&self, value: &str) -> io::Result<()> {
        self.check()?;
        let written = match self.setting {
            ThreadSetting::Affinity => {
                let cpus = parshall_core::values::cpus(value).map_err(|_| malformed(value))?;
                thread_setting::set_cpus(self.tid, &cpus)
            }
            ThreadSetting::Nice => thread_setting::set_nice(self.tid, value.parse().map_err(|_| malformed(value))?),
        };
        written.map_err(|error| ended(error, "the thread"))
    }

    /// An error if the thread id no longer belongs to the same thread.
    fn check(&self) -> io::Result<()> {
        match proc_fs::stat(self.tid) {
            Some(stat) if stat.start_ticks == self.start_ticks => Ok(()),
            _ => Err(gone("the thread")),
        }
    }
}
