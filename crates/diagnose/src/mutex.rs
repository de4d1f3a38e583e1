//! The owners of the mutexes that threads sleep for: for waits that have not ended, so that no wake-up explains them.
use std::collections::HashMap;

use parshall_host::bounded_file;
use parshall_host::proc_fs;

use super::procfs::blocked_in::{SyscallFile, memory, parse_syscall};

/// The most threads that are examined.
const THREADS_MAX: usize = 4096;
/// The begin of glibc's `struct __pthread_mutex_s`: `int __lock; unsigned __count; int __owner`.
const MUTEX_BYTES: usize = 12;
/// The value of `__lock` when others wait.
const LOCKED_WITH_WAITERS: u32 = 2;
/// linux/futex.h: without FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME.
const FUTEX_CMD_MASK: u64 = !(128 | 256);
/// `FUTEX_WAIT` and `FUTEX_WAIT_BITSET`.
const WAITS: [u64; 2] = [0, 9];
/// `FUTEX_LOCK_PI` and `FUTEX_LOCK_PI2`.
const LOCKS_PI: [u64; 2] = [6, 13];
const FUTEX_TID_MASK: u32 = 0x3fff_ffff;

/// Reads who holds mutexes.
#[derive(Debug, Default)]
pub struct Mutexes {
    /// The threads of processes by the numbers that they have in their own pid namespaces, which are what their memory holds.
    numbers: HashMap<u32, HashMap<u32, u32>>,
}

/// Threads of these processes that sleep for a mutex now, each with the thread of the same process that holds it. Other locks than
/// those of glibc and those with priority inheritance do not say who holds them.
pub fn owners(pids: impl IntoIterator<Item = u32>) -> HashMap<u32, u32> {
    let threads = pids.into_iter().flat_map(|pid| proc_fs::threads(pid).into_iter().map(move |tid| (pid, tid)));
    let mut mutexes = Mutexes::default();
    threads.take(THREADS_MAX).filter_map(|(pid, tid)| Some((tid, mutexes.owner(pid, tid)?))).collect()
}

impl Mutexes {
    /// The thread that holds the mutex for which this one sleeps.
    pub fn owner(&mut self, pid: u32, tid: u32) -> Option<u32> {
        let owner = self.thread_numbered(pid, number_of_owner(pid, tid)?)?;
        // Other futexes hold other numbers there.
        (owner != tid).then_some(owner)
    }

    /// The thread of a process that has this number in the process's own pid namespace.
    fn thread_numbered(&mut self, pid: u32, number: u32) -> Option<u32> {
        let numbers = self.numbers.entry(pid).or_insert_with(|| {
            let of_thread = |tid: u32| Some((innermost_number(tid)?, tid));
            proc_fs::threads(pid).into_iter().take(THREADS_MAX).filter_map(of_thread).collect()
        });
        numbers.get(&number).copied()
    }
}

/// The number of a thread in its own pid namespace: the last one of `NSpid`, which Linux has since 4.1.
fn innermost_number(tid: u32) -> Option<u32> {
    let status = bounded_file::text(format!("/proc/{tid}/status")).ok()?;
    proc_fs::status_field(&status, "NSpid")?.split_whitespace().next_back()?.parse().ok()
}

/// The owner by the word of the mutex for which a thread sleeps.
fn number_of_owner(pid: u32, tid: u32) -> Option<u32> {
    let text = bounded_file::text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let SyscallFile::In { nr, args: [address, op] } = parse_syscall(&text)? else { return None };
    if libc::c_long::from(nr) != libc::SYS_futex {
        return None;
    }
    let op = op & FUTEX_CMD_MASK;
    let owner = if WAITS.contains(&op) {
        owner_in_mutex(&memory(pid, address, MUTEX_BYTES)?)?
    } else if LOCKS_PI.contains(&op) {
        u32::from_ne_bytes(memory(pid, address, 4)?.try_into().ok()?) & FUTEX_TID_MASK
    } else {
        return None;
    };
    (owner != 0).then_some(owner)
}

fn owner_in_mutex(bytes: &[u8]) -> Option<u32> {
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    (word(0)? == LOCKED_WITH_WAITERS).then(|| word(8))?
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn only_a_locked_mutex_has_an_owner() {
        let mutex = |lock: u32, owner: u32| [lock, 0, owner].map(u32::to_ne_bytes).concat();
        assert_eq!(owner_in_mutex(&mutex(2, 77)), Some(77));
        assert_eq!(owner_in_mutex(&mutex(1, 77)), None);
        assert_eq!(owner_in_mutex(&[2, 0, 0, 0]), None);
    }

    /// Two threads that wait for each other's mutex of glibc; prints the thread ids.
    const DEADLOCK: &str = r"
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
a, b = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
both = threading.Barrier(2)
def lock(first, second):
    libc.pthread_mutex_lock(first)
    both.wait()
    os.write(1, b'%d\n' % threading.get_native_id())
    libc.pthread_mutex_lock(second)
for pair in ((a, b), (b, a)):
    threading.Thread(target=lock, args=pair, daemon=True).start()
time.sleep(20)
";

    /// The threads of the deadlock with their own numbers, and the owners that are found.
    fn deadlock(start: &[&str]) -> (Vec<u32>, HashMap<u32, u32>) {
        let mut child = Command::new(start[0])
            .args(&start[1..])
            .args(["python3", "-c", DEADLOCK])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed with the tests' needs");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut tid = || lines.next().expect("a line").expect("text").parse::<u32>().expect("a thread id");
        let own = vec![tid(), tid()];
        let processes = || [vec![child.id()], proc_fs::descendants(&[child.id()])].concat();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut found = HashMap::new();
        while found.len() < 2 && Instant::now() < deadline {
            found = owners(processes());
            std::thread::sleep(Duration::from_millis(10));
        }
        for pid in processes() {
            // Inside of its namespace the first process takes no other signal.
            Command::new("kill").args(["-KILL", &pid.to_string()]).status().expect("kill runs");
        }
        child.wait().expect("our own child");
        (own, found)
    }

    #[test]
    fn the_owners_of_a_deadlock_are_each_other() {
        let (own, found) = deadlock(&["env"]);
        assert_eq!(found, HashMap::from([(own[0], own[1]), (own[1], own[0])]));
    }

    #[test]
    fn threads_that_have_other_numbers_in_their_namespace_are_found() {
        if !parshall_testkit::root("a deadlock in a pid namespace") {
            return;
        }
        let (own, found) = deadlock(&["unshare", "--pid", "--fork", "--kill-child"]);
        assert_eq!(found.len(), 2);
        for (tid, owner) in &found {
            assert!(!own.contains(tid) && found.get(owner) == Some(tid), "{own:?} {found:?}");
        }
    }
}
