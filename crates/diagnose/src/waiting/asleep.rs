//! The functions in which threads sleep when a window ends.
use std::time::{Duration, Instant};

use parshall_core::sorting::StableSort as _;
use parshall_evidence::WaitingThread;
use parshall_host::symbols::Stacks;

/// Threads whose stack is read at most, those that slept during the whole window first.
const STACKS_MAX: usize = 64;
/// No further stack is read after this time: for the first of a program, its call frame information is read.
const TIME_MAX: Duration = Duration::from_millis(500);

/// Reads the stacks of threads that sleep. `stacks` are asked for only where somebody does. `interpreters`: with the functions that an
/// interpreter runs.
pub fn add_stacks<'s>(threads: &mut [WaitingThread], interpreters: bool, stacks: impl FnOnce() -> &'s mut Stacks) {
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
        thread.stack = stacks.asleep(thread.pid, thread.tid, thread.syscall, interpreters);
    }
}

fn sleeps(thread: &WaitingThread) -> bool {
    thread.seen && matches!(thread.state, 'S' | 'D')
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use parshall_host::{bounded_file, proc_fs};
    use parshall_testkit::{root, skip};

    use super::*;
    use crate::procfs::blocked_in::{SyscallFile, parse_syscall};
    use crate::records;

    /// A program that sleeps; killed when dropped.
    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    impl Sleeper {
        fn start(command: &mut Command) -> Self {
            Self(command.stdin(Stdio::null()).spawn().expect("it runs"))
        }

        /// One of its threads in a call in which it sleeps. Programs begin to sleep when they have started.
        fn thread(&self, tid: impl Fn() -> Option<u32>, calls: &[libc::c_long]) -> WaitingThread {
            let pid = self.0.id();
            let call = || {
                let tid = tid()?;
                let text = bounded_file::text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
                match parse_syscall(&text) {
                    Some(SyscallFile::In { nr, .. }) if calls.contains(&nr.into()) => Some((tid, nr)),
                    _ => None,
                }
            };
            let again = || call().or_else(|| (None, std::thread::sleep(Duration::from_millis(20))).0);
            let (tid, syscall) = (0..1000).find_map(|_| again()).expect("it sleeps");
            WaitingThread { pid, tid, state: 'S', seen: true, syscall, ..WaitingThread::default() }
        }
    }

    /// `sleep` waits in libc, which its own code called.
    #[test]
    fn a_program_that_sleeps_has_the_functions_in_which_it_does() {
        let sleeper = Sleeper::start(Command::new("sleep").arg("60"));
        let asleep = sleeper.thread(|| Some(sleeper.0.id()), &[libc::SYS_clock_nanosleep]);
        let elsewhere = WaitingThread { syscall: i32::MAX, ..asleep.clone() };
        let runs = WaitingThread { state: 'R', ..asleep.clone() };
        let (mut threads, mut stacks) = ([asleep, elsewhere, runs], records::stacks(false));
        add_stacks(&mut threads, false, || &mut stacks);
        let stacks = stacks.named();
        let [asleep, elsewhere, runs] = threads.map(|thread| thread.stack);
        assert_eq!((elsewhere, runs), (None, None));
        let frames = &stacks[asleep.expect("a stack") as usize].frames;
        assert!(frames[0].name.contains("nanosleep"), "{frames:?}");
        assert!(frames.iter().any(|f| f.module == "sleep" || f.module == "coreutils"), "{frames:?}");
    }

    const SCRIPT: &str = "
import threading, time
def hold_up():
    time.sleep(600)
def wait_for_all():
    threading.Event().wait()
threading.Thread(target=hold_up).start()
wait_for_all()
";

    /// The functions of Python in the stack of a thread, as one text.
    fn functions(thread: WaitingThread, interpreters: bool) -> String {
        let (mut threads, mut stacks) = ([thread], records::stacks(false));
        add_stacks(&mut threads, interpreters, || &mut stacks);
        let stacks = stacks.named();
        let frames = &stacks[threads[0].stack.expect("a stack") as usize].frames;
        let functions = frames.iter().filter(|frame| frame.interpreted().is_some());
        functions.map(|frame| frame.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn threads_of_a_python_have_its_functions_where_they_are_asked_for() {
        let what = "functions of Python threads that sleep";
        if !root(what) {
            return;
        }
        if Command::new("python3").arg("-V").output().is_err() {
            return skip(what, "there is no Python here");
        }
        let sleeper = Sleeper::start(Command::new("python3").args(["-c", SCRIPT]));
        let pid = sleeper.0.id();
        let second = || proc_fs::threads(pid).into_iter().find(|tid| *tid != pid);
        // Up to 3.10 Python sleeps in select(), which glibc makes of pselect6.
        let timers = [libc::SYS_clock_nanosleep, libc::SYS_pselect6, libc::SYS_nanosleep];
        let other = sleeper.thread(second, &timers);
        let main = sleeper.thread(|| Some(pid), &[libc::SYS_futex]);
        assert_eq!(functions(other.clone(), false), "");
        let (other, main) = (functions(other, true), functions(main, true));
        assert!(other.starts_with("hold_up (<string>:4)") && other.contains("_bootstrap"), "{other}");
        assert!(main.contains("wait_for_all (<string>:6)") && !main.contains("hold_up"), "{main}");
    }

    #[test]
    fn where_nobody_sleeps_nothing_is_read() {
        let runs = WaitingThread { state: 'R', seen: true, ..WaitingThread::default() };
        add_stacks(&mut [runs], true, || unreachable!("no stacks are needed"));
    }
}
