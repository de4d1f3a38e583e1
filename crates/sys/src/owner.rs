//! Names of objects that outlive the process that made them (namespaces, control groups, directories). A name holds the
//! owner's pid and start time, so that a later run can find those whose owners are dead.
use std::fs;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// Every name begins with this.
pub const PREFIX: &str = "parshall-";

/// A process, identified by its pid and its start time: a later process may have the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}

impl Owner {
    /// The calling process.
    pub fn this() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// The process that has this pid now.
    pub fn of(pid: u32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let start_ticks = start_ticks(&stat)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has no start time")))?;
        Ok(Self { pid, start_ticks })
    }

    /// Whether the process still runs. False for a zombie.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).is_ok_and(|now| now == *self)
    }

    /// The name of an object of this owner: `parshall-PID-START-TAG`.
    pub fn name(&self, tag: &str) -> String {
        format!("{PREFIX}{}-{}-{tag}", self.pid, self.start_ticks)
    }

    /// A name that no other call of this process returns: `parshall-PID-START-N-TAG`.
    pub fn unique_name(&self, tag: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        self.name(&format!("{}-{tag}", COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Parses the owner out of such a name. None for any other name.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.splitn(3, '-');
        let pid = parts.next()?.parse().ok()?;
        let start_ticks = parts.next()?.parse().ok()?;
        parts.next()?;
        Some(Self { pid, start_ticks })
    }
}

/// Parses the start time out of `/proc/PID/stat`; None for a dead process. The command name is in parentheses and may hold
/// any character, so fields are counted from the last `)`.
fn start_ticks(stat: &str) -> Option<u64> {
    let state = stat.get(stat.rfind(')')? + 2..)?;
    if state.starts_with('Z') || state.starts_with('X') {
        return None; // Dead and not yet reaped: it holds no resources.
    }
    state.split(' ').nth(19)?.parse().ok()
}

/// The names in `dir` whose owners are dead.
pub fn leftovers(dir: &std::path::Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut dead = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if Owner::parse(&name).is_some_and(|owner| !owner.is_alive()) {
            dead.push(name);
        }
    }
    Ok(dead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let owner = Owner { pid: 7, start_ticks: 99 };
        assert_eq!(owner.name("a-b"), "parshall-7-99-a-b");
        assert_eq!(Owner::parse("parshall-7-99-a-b"), Some(owner));
        for other in ["parshall-7-99", "parshall-x-99-a", "web", "parshall-"] {
            assert_eq!(Owner::parse(other), None, "{other}");
        }
    }

    #[test]
    fn this_process_lives_and_an_earlier_one_with_its_pid_does_not() {
        let this = Owner::this().expect("own /proc entry");
        assert!(this.is_alive());
        assert!(!Owner { start_ticks: this.start_ticks + 1, ..this }.is_alive());
    }

    #[test]
    fn start_time_survives_odd_command_names() {
        let tail: String = (4..=21).map(|n| format!("{n} ")).collect();
        assert_eq!(start_ticks(&format!("1 (a) b) S {tail}4242 23")), Some(4242));
        assert_eq!(start_ticks(&format!("1 (a) Z {tail}4242 23")), None);
    }
}
