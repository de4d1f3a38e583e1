//! The functions in which threads sleep when a window ends.
use std::time::{Duration, Instant};

use parshall_core::sorting::StableSort as _;
use parshall_evidence::WaitingThread;
use parshall_host::symbols::Stacks;

/// Threads whose stack is read at most, those that slept during the whole window first.
const STACKS_MAX: usize = 64;
/// No further stack is read after this time: for the first of a program, its call frame information is read.
const TIME_MAX: Duration = Duration::from_millis(500);

/// Reads the stacks of threads that sleep. `stacks` are asked for only where somebody does.
pub fn add_stacks<'s>(threads: &mut [WaitingThread], stacks: impl FnOnce() -> &'s mut Stacks) {
    let mut asleep: Vec<&mut WaitingThread> = threads.iter_mut().filter(|thread| sleeps(thread)).collect();
    if asleep.is_empty() {
        return;
    }
    asleep.stable_sort_by_key(|thread| (thread.still == Some(false), thread.pid, thread.tid));
    let (stacks, begun) = (stacks(), Instant::now());
    for thread in asleep.into_iter().take(STACKS_MAX) {
        if begun.elapsed() >= TIME_MAX {
            break;
        }
        thread.stack = stacks.asleep(thread.pid, thread.tid, thread.syscall);
    }
}

fn sleeps(thread: &WaitingThread) -> bool {
    thread.seen && matches!(thread.state, 'S' | 'D')
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use parshall_host::bounded_file;

    use super::*;
    use crate::procfs::blocked_in::{SyscallFile, parse_syscall};
    use crate::records;

    /// `sleep` waits in libc, which its own code called.
    #[test]
    fn a_program_that_sleeps_has_the_functions_in_which_it_does() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep runs");
        let pid = child.id();
        let call = || match bounded_file::text(format!("/proc/{pid}/syscall")).ok().as_deref().and_then(parse_syscall) {
            Some(SyscallFile::In { nr, .. }) if i64::from(nr) == libc::SYS_clock_nanosleep => Some(nr),
            _ => (None, std::thread::sleep(Duration::from_millis(20))).0,
        };
        let syscall = (0..500).find_map(|_| call());
        let asleep = WaitingThread {
            pid,
            tid: pid,
            state: 'S',
            seen: true,
            syscall: syscall.unwrap_or(0),
            ..WaitingThread::default()
        };
        let elsewhere = WaitingThread { syscall: i32::MAX, ..asleep.clone() };
        let runs = WaitingThread { state: 'R', ..asleep.clone() };
        let (mut threads, mut stacks) = ([asleep, elsewhere, runs], records::stacks(false));
        add_stacks(&mut threads, || &mut stacks);
        let stacks = stacks.named();
        child.kill().and_then(|()| child.wait()).expect("our own child");
        let [asleep, elsewhere, runs] = threads.map(|thread| thread.stack);
        assert_eq!((elsewhere, runs), (None, None));
        let frames = &stacks[asleep.expect("a stack") as usize].frames;
        assert!(frames[0].name.contains("nanosleep"), "{frames:?}");
        assert!(frames.iter().any(|f| f.module == "sleep" || f.module == "coreutils"), "{frames:?}");
    }

    #[test]
    fn where_nobody_sleeps_nothing_is_read() {
        let runs = WaitingThread { state: 'R', seen: true, ..WaitingThread::default() };
        add_stacks(&mut [runs], || unreachable!("no stacks are needed"));
    }
}
