//! Reads files of /proc. For a process that has ended meanwhile every function returns None or an empty list.
//!
//! How long they are is the choice of the processes' users: each reading has a limit, and says what it left out (`left_out`).
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use crate::bounded_file;
use crate::error::UserError;
use crate::left_out;
use crate::timed_worker::TimedWorker;

/// Descriptors of one process that are looked at: more than the kernel lets it have (`fs.nr_open`) unless root has changed that.
const DESCRIPTORS_MAX: usize = 1 << 20;
/// Descriptors of one process among which [`sockets`] looks for its sockets: 1.5 s.
const SOCKETS_MAX: usize = 1 << 18;
/// Bytes of a command line that are read. A process can make its own as long as its memory (prctl(2), PR_SET_MM_MAP).
const COMMAND_LINE_MAX: u64 = 64 << 10;

/// PF_KTHREAD (linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// Fields of /proc/PID/stat (man 5 proc_pid_stat).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stat {
    /// The name of the process, which may contain spaces and parentheses.
    pub comm: String,
    /// `R`, `S`, `D`, `Z`, ...
    pub state: char,
    /// Parent process.
    pub parent: u32,
    /// Whether it is a kernel thread.
    pub kernel_thread: bool,
    /// CPU time in user mode, in ticks.
    pub user_ticks: u64,
    /// CPU time in the kernel, in ticks.
    pub system_ticks: u64,
    /// Start, in ticks since boot.
    pub start_ticks: u64,
}

/// Reads the text of a `stat` file.
pub fn parse_stat(text: &str) -> Option<Stat> {
    let open = text.find('(')?;
    let close = text.rfind(')')?;
    let comm = text.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = text.get(close + 1..)?.split_whitespace().collect();
    // fields[0] is field 3 of the manual page.
    let number = |field: usize| fields.get(field - 3).and_then(|value| value.parse::<u64>().ok());
    Some(Stat {
        comm,
        state: fields.first()?.chars().next()?,
        parent: number(4)? as u32,
        kernel_thread: number(9)? & PF_KTHREAD != 0,
        user_ticks: number(14)?,
        system_ticks: number(15)?,
        start_ticks: number(22)?,
    })
}

/// `stat` of a process, or of the thread with this id.
pub fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&bounded_file::text(format!("/proc/{pid}/stat")).ok()?)
}

/// A value of a `status` file.
pub fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Our own process in /proc.
pub fn own_pid() -> u32 {
    own_numbers().first().copied().unwrap_or_else(std::process::id)
}

/// Whether system calls take the numbers that /proc shows. They take others where that is the /proc of an outer PID namespace, as in
/// containers that observe their host.
pub fn has_our_numbers() -> bool {
    own_numbers().len() <= 1
}

/// Refuses what takes numbers of processes where system calls take others than /proc shows. `instead` is the hint.
pub fn needs_our_numbers(instead: &str) -> Result<(), UserError> {
    let what = "processes have other numbers in this /proc than in the pid namespace of parshall";
    if has_our_numbers() { Ok(()) } else { Err(UserError::new(what, instead)) }
}

/// Those that our process has, from the PID namespace of /proc inwards.
fn own_numbers() -> &'static [u32] {
    static NUMBERS: OnceLock<Vec<u32>> = OnceLock::new();
    NUMBERS.get_or_init(|| {
        let status = bounded_file::text("/proc/self/status").unwrap_or_default();
        let numbers = status_field(&status, "NSpid").unwrap_or_default();
        numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    })
}

/// The process that a thread belongs to.
pub fn thread_group(tid: u32) -> Option<u32> {
    status_field(&bounded_file::text(format!("/proc/{tid}/status")).ok()?, "Tgid")?.parse().ok()
}

/// Numbers in the names of a directory, ascending.
fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    found
}

/// All processes.
pub fn pids() -> Vec<u32> {
    numbers("/proc")
}

/// The threads of a process.
pub fn threads(pid: u32) -> Vec<u32> {
    numbers(&format!("/proc/{pid}/task"))
}

/// Whether [`children`] works: the kernel was built with CONFIG_PROC_CHILDREN.
pub fn lists_children() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

/// The children of some processes, their children and so on, the nearest first. Reads the parent of every process on the
/// host (some 20 us each), because the kernel's lists of children may miss one while another exits (man 5
/// proc_tid_children).
pub fn descendants(roots: &[u32]) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in pids() {
        if let Some(stat) = stat(pid).filter(|stat| !stat.kernel_thread && !matches!(stat.state, 'Z' | 'X')) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = roots.to_vec();
    while !next.is_empty() {
        next = next.iter().flat_map(|parent| children.remove(parent).unwrap_or_default()).collect();
        next.retain(|pid| !roots.contains(pid));
        found.extend(&next);
    }
    found
}

/// The children of a process that its thread `tid` made (needs CONFIG_PROC_CHILDREN).
pub fn children(pid: u32, tid: u32) -> Vec<u32> {
    let text = bounded_file::text(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// The name of a process or thread, by [`whole_name`]; bytes that are not UTF-8 are replaced.
pub fn comm(pid: u32) -> io::Result<String> {
    let (bytes, _) = bounded_file::bytes(format!("/proc/{pid}/comm"), 256)?;
    Ok(whole_name(pid, &String::from_utf8_lossy(&bytes)))
}

/// The name that the kernel has of a process or thread, without blanks at its end. A program that has its path for a name (Perl's `$0`) is
/// named by its file, as far as its arguments tell: of the path the kernel keeps 15 bytes.
pub fn whole_name(pid: u32, name: &str) -> String {
    let name = name.trim_end();
    let file = name.starts_with('/').then(|| file_name(name, &arguments(pid))).flatten();
    file.unwrap_or_else(|| name.to_owned())
}

/// The name of the file whose path begins with `cut`.
fn file_name(cut: &str, arguments: &[String]) -> Option<String> {
    let path =
        arguments.iter().find_map(|argument| argument.starts_with(cut).then(|| argument.split(' ').next()))??;
    let name = path.rsplit('/').next().filter(|name| !name.is_empty())?;
    Some(name.to_owned())
}

/// Inode of the network namespace of a process. None if it is not permitted to read it.
pub fn netns_ino(pid: u32) -> Option<u64> {
    inode_in(fs::read_link(format!("/proc/{pid}/ns/net")).ok()?.to_str()?, "net")
}

/// The number in `KIND:[NUMBER]`.
pub fn inode_in(link: &str, kind: &str) -> Option<u64> {
    link.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}

/// Whether it is permitted to list the descriptors of a process.
pub fn shows_descriptors(pid: u32) -> bool {
    fs::read_dir(format!("/proc/{pid}/fd")).is_ok()
}

/// Descriptors of a process that are sockets: (descriptor, inode).
pub fn sockets(pid: u32) -> Vec<(i32, u64)> {
    let (sockets, more) = first_sockets(pid, SOCKETS_MAX);
    if more {
        left_out::add(format!(
            "process {pid} has more than {SOCKETS_MAX} descriptors: sockets behind the others were not seen"
        ));
    }
    sockets
}

/// Sockets among the first `limit` descriptors of a process (descriptor, inode), and whether it has more descriptors: reading one
/// takes 6 us, and a process may have a million.
pub fn first_sockets(pid: u32, limit: usize) -> (Vec<(i32, u64)>, bool) {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return (Vec::new(), false) };
    let mut entries = entries.map_while(Result::ok);
    let sockets = entries.by_ref().take(limit).filter_map(|entry| socket(&entry)).collect();
    (sockets, entries.next().is_some())
}

/// Descriptors of a process that are sockets (descriptor, inode), with the reason why they cannot be listed.
///
/// # Errors
/// `NotFound` if the process has ended; `PermissionDenied` if it is not permitted.
pub fn try_sockets(pid: u32) -> io::Result<Vec<(i32, u64)>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?.map_while(Result::ok).take(DESCRIPTORS_MAX);
    Ok(entries.filter_map(|entry| socket(&entry)).collect())
}

fn socket(entry: &fs::DirEntry) -> Option<(i32, u64)> {
    let inode = inode_in(fs::read_link(entry.path()).ok()?.to_str()?, "socket")?;
    Some((entry.file_name().to_str()?.parse().ok()?, inode))
}

thread_local! {
    static COMMAND_LINES: RefCell<TimedWorker<u32, Vec<u8>>> =
        const { RefCell::new(TimedWorker::new(|| Box::new(read_command_line))) };
}

fn read_command_line(pid: u32) -> Vec<u8> {
    bounded_file::bytes(format!("/proc/{pid}/cmdline"), COMMAND_LINE_MAX).map(|(bytes, _)| bytes).unwrap_or_default()
}

/// The first 64 KiB of the arguments of a process as the kernel gives them: each ends with a zero byte. They are in the memory of the
/// process, which cannot be read while it changes its mappings: no answer in time is empty.
pub fn command_line(pid: u32) -> Vec<u8> {
    let answer = COMMAND_LINES.with_borrow_mut(|worker| worker.call(pid));
    answer.unwrap_or_else(|| {
        left_out::add("the arguments of some processes could not be read within 10 s".to_owned());
        Vec::new()
    })
}

/// The arguments of a process, its program first; empty when it has none, or is gone.
pub fn arguments(pid: u32) -> Vec<String> {
    let bytes = command_line(pid);
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if words.is_empty() {
        return Vec::new();
    }
    words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_was_cut_is_named_by_its_file() {
        let of = |cut: &str, arguments: &[&str]| {
            file_name(cut, &arguments.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of("/srv/shop/bin/s", &["/srv/shop/bin/shop.pl"]).as_deref(), Some("shop.pl"));
        assert_eq!(of("/srv/shop/bin/s", &["/usr/bin/perl", "/srv/shop/bin/shop.pl -v"]).as_deref(), Some("shop.pl"));
        assert_eq!(of("/srv/shop/bin/s", &["perl", "/srv/other"]), None);
        assert_eq!(of("/srv/", &["/srv/"]), None);
    }

    #[test]
    fn children_and_theirs_are_found() {
        // A shell, a shell below it, and a program that ends with its input; `true` keeps each from becoming the next.
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sh -c 'cat; true'; true"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("sh runs");
        let named = |pid: &u32| stat(*pid).map(|stat| stat.comm).unwrap_or_default();
        let begun = std::time::Instant::now();
        let mut below = Vec::new();
        while below.last().map(named).as_deref() != Some("cat") && begun.elapsed().as_secs() < 5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            below = descendants(&[shell.id()]);
        }
        let by_both = below.first().map(|child| descendants(&[shell.id(), *child]));
        drop(shell.stdin.take());
        shell.wait().expect("our child");
        assert_eq!(below.iter().map(named).collect::<String>(), "", "they have ended: {below:?}");
        assert_eq!((below.len(), by_both.as_deref()), (2, Some(&below[1..])), "{below:?}");
    }

    #[test]
    fn a_name_may_hold_anything() {
        let text = "4120 (a b) S (c) R 17 4120 4120 0 -1 4194304 2845 0 0 0 13 2 37 1 20 0 3 0 115132 16961536 3357\n";
        let stat = parse_stat(text).expect("a stat line");
        assert_eq!(stat.comm, "a b) S (c");
        assert_eq!((stat.state, stat.parent, stat.kernel_thread), ('R', 17, false));
        assert_eq!((stat.user_ticks, stat.system_ticks, stat.start_ticks), (13, 2, 115_132));
    }

    #[test]
    fn an_incomplete_line_is_none() {
        for text in ["", "1 (x", "1 (x) S", ")(", "1 (x) S 1 2 3"] {
            assert_eq!(parse_stat(text), None, "{text:?}");
        }
    }

    #[test]
    fn reads_links_and_status() {
        assert_eq!(inode_in("socket:[4711]", "socket"), Some(4711));
        assert_eq!(inode_in("pipe:[4711]", "socket"), None);
        assert_eq!(inode_in("socket:[x]", "socket"), None);
        let status = "Name:\tx\nTgid:\t12\nNSpid:\t12\t7\n";
        assert_eq!(status_field(status, "Tgid"), Some("12"));
        assert_eq!(status_field(status, "NSpid"), Some("12\t7"));
        assert_eq!(status_field(status, "Pid"), None);
    }

    #[test]
    fn a_long_command_line_is_read_to_the_limit() {
        // `true` keeps the shell from becoming `sleep`.
        let mut long = std::process::Command::new("sh")
            .args(["-c", "read line; true", &"x".repeat(100_000)])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("sh runs");
        let begun = std::time::Instant::now();
        let mut seen = Vec::new();
        while !seen.starts_with(b"sh\0-c\0") && begun.elapsed().as_secs() < 5 {
            seen = command_line(long.id());
        }
        drop(long.stdin.take());
        long.wait().expect("our child");
        assert_eq!(seen.len() as u64, COMMAND_LINE_MAX);
    }

    #[test]
    fn reads_this_process() {
        let own = std::process::id();
        assert!(pids().contains(&own));
        assert!(!threads(own).is_empty());
        assert!(netns_ino(own).is_some());
        assert!(shows_descriptors(own));
        assert_eq!(thread_group(own), Some(own));
    }
}
