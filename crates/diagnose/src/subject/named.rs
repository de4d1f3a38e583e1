//! Processes by their name.
use std::collections::BTreeSet;
use std::fs;

use parshall_core::sorting::IntoOrdered as _;
use parshall_core::text::{quote, suggest};
use parshall_core::units;
use parshall_host::error::UserError;
use parshall_host::proc_fs;

/// Bytes of a process's name that the kernel keeps (TASK_COMM_LEN without the final zero).
const COMM_MAX: usize = 15;
/// Processes that a note lists.
const LISTED_MAX: usize = 16;
/// Names that a hint lists.
const NEAR_MAX: usize = 4;

/// A process, with the names by which a user can select it.
struct Candidate {
    pid: u32,
    comm: String,
    /// The base name of its program's file; empty when we may not see it.
    program: String,
}

/// The processes that have one of these names, as their command or as the file of their program. A note lists them where they are
/// several.
///
/// # Errors
/// No process has one of the names.
pub fn pids(names: &[String], notes: &mut Vec<String>) -> Result<Vec<u32>, UserError> {
    let running = candidates();
    let mut found = BTreeSet::new();
    for name in names {
        let pids: Vec<u32> = running.iter().filter(|process| process.is(name)).map(|process| process.pid).collect();
        if pids.is_empty() {
            return Err(nobody(name, &running));
        }
        notes.extend(several(name, &pids));
        found.extend(pids);
    }
    Ok(found.into_iter().collect())
}

impl Candidate {
    fn is(&self, name: &str) -> bool {
        let cut = self.program.is_empty() && self.comm.len() == COMM_MAX && name.starts_with(&self.comm);
        self.comm == name || self.program == name || cut
    }

    fn is_near(&self, name: &str) -> bool {
        let (name, comm) = (name.to_lowercase(), self.comm.to_lowercase());
        let within = name.len() >= 3 && comm.contains(&name) || comm.len() >= 3 && name.contains(&comm);
        within || suggest(&name, &[&comm]).starts_with("did you mean")
    }
}

/// All processes that can be observed but ourselves.
fn candidates() -> Vec<Candidate> {
    let own = proc_fs::own_pid();
    let candidate = |pid: u32| {
        let stat = proc_fs::stat(pid).filter(|stat| !stat.kernel_thread && !matches!(stat.state, 'Z' | 'X'))?;
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
        let name = program.as_deref().and_then(|path| path.file_name()?.to_str()).unwrap_or_default();
        let program = name.strip_suffix(" (deleted)").unwrap_or(name).to_owned();
        Some(Candidate { pid, comm: stat.comm, program })
    };
    proc_fs::pids().into_iter().filter(|&pid| pid != own).filter_map(candidate).collect()
}

fn several(name: &str, pids: &[u32]) -> Option<String> {
    if pids.len() < 2 {
        return None;
    }
    let listed: Vec<String> = pids.iter().take(LISTED_MAX).map(u32::to_string).collect();
    let more = pids.len() - listed.len();
    let rest = if more > 0 { format!(" and {}", units::plural(more as u64, "other", "others")) } else { String::new() };
    Some(format!(
        "{} are {}, which were observed together: {}{rest}",
        quote(name),
        units::plural(pids.len() as u64, "process", "processes"),
        listed.join(", ")
    ))
}

fn nobody(name: &str, running: &[Candidate]) -> UserError {
    let near: BTreeSet<&str> =
        running.iter().filter(|process| process.is_near(name)).map(|process| process.comm.as_str()).into_set();
    let near: Vec<String> = near.into_iter().take(NEAR_MAX).map(quote).collect();
    let hint = match near.is_empty() {
        true => "`ps -e` lists the names of processes; for a script, name it by its port or by --pid".to_owned(),
        false => format!("did you mean {}? `ps -e` lists all names", near.join(" or ")),
    };
    UserError::new(format!("no process has the name {}", quote(name)), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, comm: &str, program: &str) -> Candidate {
        Candidate { pid, comm: comm.to_owned(), program: program.to_owned() }
    }

    #[test]
    fn a_name_is_that_of_the_command_or_of_the_program() {
        let gunicorn = process(7, "gunicorn", "python3.11");
        assert!(gunicorn.is("gunicorn") && gunicorn.is("python3.11") && !gunicorn.is("python3"));
        // The kernel keeps 15 bytes, and others may not see the program.
        let long = process(8, "systemd-socket-", "");
        assert!(long.is("systemd-socket-proxyd") && !long.is("systemd-socket"));
        assert!(!process(9, "systemd-socket-", "another").is("systemd-socket-proxyd"));
    }

    #[test]
    fn all_processes_of_a_name_are_found_and_listed() {
        let sleep = || std::process::Command::new("sleep").arg("30").spawn().expect("sleep runs");
        let mut children = [sleep(), sleep()];
        let mut notes = Vec::new();
        let begun = std::time::Instant::now();
        let found = loop {
            notes.clear();
            let found = pids(&["sleep".to_owned()], &mut notes).unwrap_or_default();
            // Between fork and exec a child has the name of its parent.
            if children.iter().all(|child| found.contains(&child.id())) || begun.elapsed().as_secs() > 20 {
                break found;
            }
        };
        for child in &mut children {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
            assert!(found.contains(&child.id()), "{found:?}");
        }
        assert!(notes.len() == 1 && notes[0].starts_with("`sleep` are "), "{notes:?}");
    }

    #[test]
    fn an_unknown_name_gets_those_that_are_near() {
        let running = [process(1, "nginx", "nginx"), process(2, "redis-server", "redis-server")];
        let hint = |name: &str| nobody(name, &running).hint;
        assert!(hint("ngnix").starts_with("did you mean `nginx`?"), "{}", hint("ngnix"));
        assert!(hint("redis").contains("`redis-server`"));
        assert!(hint("postgres").contains("`ps -e`") && !hint("postgres").contains("did you mean"));
        assert_eq!(nobody("x", &running).what, "no process has the name `x`");
    }

    #[test]
    fn a_note_does_not_grow_without_end() {
        assert_eq!(several("a", &[5]), None);
        let note = several("a", &(1..=20).collect::<Vec<u32>>()).expect("a note");
        assert!(note.ends_with("15, 16 and 4 others"), "{note}");
    }
}
