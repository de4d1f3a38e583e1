//! Work at SCHED_IDLE: it runs only where a CPU is otherwise idle, for as long as it makes progress that way.
//!
//! A SCHED_OTHER thread keeps its slice of some milliseconds even when a service wakes up on its CPU, and requests wait for
//! that time. A SCHED_IDLE thread is preempted at once. On a host whose CPUs are all busy it would hardly run at all, so a
//! second thread watches it and restores the policy when the caller's rule asks for it. The watcher runs at SCHED_FIFO, so that it
//! gets its turns where the other hardly does.
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::clock::monotonic_ns;
use crate::scheduling::{ask, ordinary, set};

/// Length of its slices: the shortest that the kernel allows (Linux 6.12; older kernels ignore it). A thread of another control
/// group or session competes with our group, for which SCHED_IDLE does not count; it waits for the end of our slice.
const SLICE_NS: u64 = 100_000;
/// Stands for the kernel's default.
const DEFAULT_SLICE: u64 = 0;

/// Progress of a thread at SCHED_IDLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When this was: CLOCK_MONOTONIC, ns.
    pub at_ns: u64,
    /// Time that it has run, ns.
    pub ran_ns: u64,
    /// Time that it has waited for a CPU until it last ran, ns.
    waited_ns: u64,
    /// How often it has been given a CPU.
    timeslices: u64,
    /// It runs or waits for a CPU at this moment, and does not sleep.
    ready: bool,
}

impl Sample {
    /// Time that the thread waited for a CPU since an earlier sample, ns.
    pub fn waited_since_ns(&self, earlier: &Self) -> u64 {
        if self.ready && earlier.ready && self.timeslices == earlier.timeslices {
            // Either it has run all of the time or it still waits, which the kernel counts only at the end of the wait.
            return (self.at_ns - earlier.at_ns).saturating_sub(self.ran_ns.saturating_sub(earlier.ran_ns));
        }
        self.waited_ns.saturating_sub(earlier.waited_ns)
    }
}

/// The calling thread, and those it starts meanwhile, run at SCHED_IDLE until this is dropped.
#[derive(Debug)]
pub struct Background {
    watcher: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Background {
    /// Begins. `give_up` is called every `every` with a new sample, and returns true to end it early: then `given_up`
    /// is called, and after it the thread's policy is restored. Its slices stay short, so that others wait less for it.
    ///
    /// None, and nothing has changed, where the thread's policy is not SCHED_OTHER, where restoring it is not permitted
    /// (CAP_SYS_NICE), or where the kernel does not count how long a thread ran (CONFIG_SCHED_INFO). A process can have one at
    /// a time.
    pub fn enter(
        every: Duration,
        mut give_up: impl FnMut(Sample) -> bool + Send + 'static,
        given_up: impl FnOnce() + Send + 'static,
    ) -> Option<Self> {
        let before = ordinary()?;
        let tid = crate::thread_id();
        let sampler = Sampler::new(tid).ok()?;
        give_up(sampler.sample()?);
        let (stop, stopped) = channel();
        let (tried, may_return) = channel();
        let watch = move || {
            // Tried on this thread first, which may remain at SCHED_IDLE. This thread changes the other one too: if that did it
            // by itself, the rule could end the background before it has begun, and on a full host nothing would end it then.
            let permitted = idle(0, &before).and_then(|()| set(0, &before)).and_then(|()| idle(tid, &before)).is_ok();
            if tried.send(permitted).is_err() || !permitted {
                return;
            }
            // In a control group that hardly runs, it would wait for seconds with the thread that it watches.
            let _ = set(0, &libc::sched_attr { sched_policy: libc::SCHED_FIFO as u32, sched_priority: 1, ..before });
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                if sampler.sample().is_none_or(&mut give_up) {
                    given_up();
                    return restore_all(SLICE_NS);
                }
            }
            // This thread runs at once where the one at SCHED_IDLE might have to wait.
            restore_all(DEFAULT_SLICE);
        };
        let watcher = thread::Builder::new().name("background".into()).spawn(watch).ok()?;
        let background = Self { watcher: Some((stop, watcher)) };
        // If it did not begin, dropping it restores what was never changed.
        (may_return.recv() == Ok(true)).then_some(background)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some((stop, watcher)) = self.watcher.take() {
            drop(stop);
            let _ = watcher.join();
            // Of the short slices, if the rule had ended it.
            restore_all(DEFAULT_SLICE);
        }
    }
}

fn idle(tid: u32, before: &libc::sched_attr) -> io::Result<()> {
    set(tid, &libc::sched_attr { sched_policy: libc::SCHED_IDLE as u32, sched_runtime: SLICE_NS, ..*before })
}

/// Restores the policy of every thread of this process, with slices of this length: those that were started meanwhile inherited
/// SCHED_IDLE.
fn restore_all(slice_ns: u64) {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let tids = threads.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for tid in tids {
        match ask(tid) {
            // The thread may have ended. Its nice value stays what it is now.
            Ok(attr) if attr.sched_policy == libc::SCHED_IDLE as u32 || attr.sched_runtime == SLICE_NS => {
                drop(ordinary_again(tid, attr, slice_ns));
            }
            _ => {}
        }
    }
}

fn ordinary_again(tid: u32, attr: libc::sched_attr, slice_ns: u64) -> io::Result<()> {
    set(tid, &libc::sched_attr { sched_policy: libc::SCHED_OTHER as u32, sched_runtime: slice_ns, ..attr })
}

/// The files of a thread of this process that are sampled, open so that a sample costs little.
#[derive(Debug)]
struct Sampler {
    schedstat: File,
    stat: File,
}

impl Sampler {
    fn new(tid: u32) -> io::Result<Self> {
        let open = |name: &str| File::open(format!("/proc/self/task/{tid}/{name}"));
        Ok(Self { schedstat: open("schedstat")?, stat: open("stat")? })
    }

    /// The thread's schedstat (Documentation/scheduler/sched-stats.rst) and state. None if it has ended.
    fn sample(&self) -> Option<Sample> {
        let mut buf = [0; 512];
        let mut words = read(&self.schedstat, &mut buf)?.split_ascii_whitespace().map(|word| word.parse().ok());
        let (ran_ns, waited_ns, timeslices) = (words.next()??, words.next()??, words.next()??);
        // Its name, in parentheses, may hold anything.
        let ready = read(&self.stat, &mut buf)?.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'));
        Some(Sample { at_ns: monotonic_ns(), ran_ns, waited_ns, timeslices, ready })
    }
}

/// The contents of the file, as far as the buffer has space.
fn read<'b>(file: &File, buf: &'b mut [u8]) -> Option<&'b str> {
    let read = file.read_at(buf, 0).ok()?;
    std::str::from_utf8(&buf[..read]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice_ns() -> u64 {
        ask(0).expect("our own thread").sched_runtime
    }

    fn policy() -> i32 {
        ask(0).expect("our own thread").sched_policy as i32
    }

    /// One test, because there may be one background at a time.
    #[test]
    fn it_ends_when_it_is_dropped_and_when_the_rule_says_so() {
        let usual = slice_ns();
        let Some(background) = Background::enter(Duration::from_secs(60), |_| false, || ()) else {
            return parshall_testkit::skip(
                "work in the background",
                "this thread may not change its scheduling policy",
            );
        };
        assert_eq!(policy(), libc::SCHED_IDLE);
        let (go, wait) = channel::<()>();
        let started = thread::spawn(move || {
            let _ = wait.recv();
            policy()
        });
        assert!(Background::enter(Duration::from_secs(60), |_| false, || ()).is_none(), "it is entered once");
        drop(background);
        drop(go);
        assert_eq!((policy(), slice_ns()), (libc::SCHED_OTHER, usual));
        assert_eq!(started.join().expect("it ends"), libc::SCHED_OTHER, "started in the background");

        let (report, reported) = channel();
        let given_up = move || {
            let _ = report.send(());
        };
        let short = Background::enter(Duration::from_millis(1), |_| true, given_up);
        let begun = std::time::Instant::now();
        while policy() == libc::SCHED_IDLE && begun.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(short.is_some() && policy() == libc::SCHED_OTHER);
        assert_eq!(reported.try_recv(), Ok(()));
        drop(short);
        assert_eq!(slice_ns(), usual);
    }

    #[test]
    fn a_thread_that_wakes_up_for_every_sample_has_not_waited_in_between() {
        let first = Sample { at_ns: 0, ran_ns: 1_000, waited_ns: 500, timeslices: 3, ready: true };
        let slept = Sample { at_ns: 50_000, ran_ns: 2_000, waited_ns: 700, timeslices: 4, ready: true };
        assert_eq!(slept.waited_since_ns(&first), 200);
        // It was given no CPU since, or has not left it.
        assert_eq!(Sample { at_ns: 50_000, ..first }.waited_since_ns(&first), 50_000);
        assert_eq!(Sample { at_ns: 50_000, ran_ns: 51_000, ..first }.waited_since_ns(&first), 0);
    }

    #[test]
    fn a_thread_can_be_sampled() {
        let (ended, wait) = channel::<()>();
        let (tell, told) = channel();
        let other = thread::spawn(move || {
            let _ = tell.send(crate::thread_id());
            let _ = wait.recv();
        });
        let theirs = Sampler::new(told.recv().expect("it runs")).expect("its files");
        let ours = Sampler::new(crate::thread_id()).expect("our files");
        let first = ours.sample().expect("CONFIG_SCHED_INFO is in every distribution's kernel");
        assert!(first.ready && first.at_ns > 0, "we run");
        assert!(ours.sample().is_some_and(|then| then.ran_ns >= first.ran_ns));
        drop(ended);
        other.join().expect("it ends");
        // The kernel removes it a moment after it can be joined.
        let begun = std::time::Instant::now();
        while theirs.sample().is_some() && begun.elapsed() < Duration::from_secs(10) {
            thread::yield_now();
        }
        assert_eq!(theirs.sample(), None);
    }
}
