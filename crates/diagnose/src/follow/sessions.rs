//! Which session of a database holds the lock that others wait for, where no wake-up shows it: they have waited for the whole window.
use std::collections::HashMap;

use parshall_core::observe::follow::title::{Activity, activity, title};
use parshall_evidence::timeline::{Names, Timeline};
use parshall_host::proc_fs;

use super::names::comm;

/// Sessions of one database server whose titles are read.
const SESSIONS_MAX: usize = 1024;

/// Adds the holders to a timeline. `seen` are titles that processes had within the window. A session that waits for a lock names
/// no holder in its title; where exactly one session of its database is idle in a transaction, it is that one.
pub fn complete<'a>(timeline: &mut Timeline, seen: impl Iterator<Item = (u32, &'a str)>) {
    let mut idle_of: HashMap<u32, Vec<(u32, String)>> = HashMap::new();
    let mut found = Vec::new();
    for (pid, title) in seen {
        let Some(Activity::WaitsForLock { database }) = activity(title) else { continue };
        let Some(server) = proc_fs::stat(pid).map(|stat| stat.parent) else { continue };
        let sessions = idle_of.entry(server).or_insert_with(|| idle_sessions(server));
        let same = |other: &&(u32, String)| activity(&other.1) == Some(Activity::IdleInTransaction { database });
        let mut holders = sessions.iter().filter(same);
        if let (Some(holder), None) = (holders.next(), holders.next()) {
            found.push((pid, holder.clone()));
        }
    }
    for (pid, (holder, title)) in found {
        let process = comm(holder);
        timeline.names.entry(holder).or_insert_with(|| Names { pid: holder, thread: process.clone(), process });
        timeline.titles.insert(holder, title);
        timeline.lock_holders.insert(pid, holder);
    }
}

/// The session that holds the lock for which a session with this title waits, where exactly one can be it.
pub fn holder(pid: u32, title: &str) -> Option<u32> {
    let Some(Activity::WaitsForLock { database }) = activity(title) else { return None };
    let sessions = idle_sessions(proc_fs::stat(pid)?.parent);
    let same = |other: &&(u32, String)| activity(&other.1) == Some(Activity::IdleInTransaction { database });
    let mut holders = sessions.iter().filter(same);
    match (holders.next(), holders.next()) {
        (Some((holder, _)), None) => Some(*holder),
        _ => None,
    }
}

fn idle_sessions(server: u32) -> Vec<(u32, String)> {
    let read = |pid: u32| Some((pid, title(&proc_fs::command_line(pid))?));
    let idle = |(_, title): &(u32, String)| matches!(activity(title), Some(Activity::IdleInTransaction { .. }));
    let sessions = proc_fs::children(server, server).into_iter().take(SESSIONS_MAX);
    sessions.filter_map(read).filter(idle).collect()
}
