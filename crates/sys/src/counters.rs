//! Performance counters of threads: what the processor (or, in tests, the kernel) counted while they ran.
use std::fs::File;
use std::io::{self, Read};

use crate::perf_event::{self, Attr};

/// An event to count: the kernel's type and number (uapi/linux/perf_event.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    kind: u32,
    config: u64,
}

/// CPU cycles.
pub const CYCLES: Event = Event { kind: 0, config: 0 };
/// Instructions retired.
pub const INSTRUCTIONS: Event = Event { kind: 0, config: 1 };
/// Misses of the last-level cache.
pub const CACHE_MISSES: Event = Event { kind: 0, config: 3 };
/// Mispredicted branches.
pub const BRANCH_MISSES: Event = Event { kind: 0, config: 5 };
/// Nanoseconds on a CPU, by the kernel's clock; there on every host.
pub const TASK_CLOCK: Event = Event { kind: 1, config: 1 };

/// Counters of one event over a set of threads.
#[derive(Debug)]
pub struct Counter {
    threads: Vec<File>,
}

/// PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING: counters that share the hardware run part-time.
const READ_FORMAT: u64 = 3;
/// `inherit`, bit 1: threads born later count too.
const FLAG_INHERIT: u64 = 1 << 1;

impl Counter {
    /// Begins to count on the given threads and those they start. Threads that are gone are left out; the error is that
    /// of the first thread when none could be counted.
    pub fn open(event: Event, threads: impl Iterator<Item = u32>) -> io::Result<Self> {
        let mut opened = Vec::new();
        let mut refused = None;
        for tid in threads {
            match open_one(event, tid) {
                Ok(file) => opened.push(file),
                // An event that cannot be counted for one thread cannot be counted for any.
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(error) if opened.is_empty() => Err(error),
            _ => Ok(Self { threads: opened }),
        }
    }

    /// The count so far, scaled up where the counter did not run all of the time.
    pub fn read(&mut self) -> u64 {
        self.threads.iter_mut().map(|file| read_one(file).unwrap_or(0)).sum()
    }
}

fn open_one(event: Event, tid: u32) -> io::Result<File> {
    let Event { kind, config } = event;
    let attr = Attr { kind, config, read_format: READ_FORMAT, flags: FLAG_INHERIT, ..Attr::default() };
    perf_event::open(attr, perf_event::Of::Thread(tid))
}

fn read_one(file: &mut File) -> io::Result<u64> {
    let mut words = [0u8; 24];
    file.read_exact(&mut words)?;
    let word = |i: usize| u64::from_ne_bytes(words[i * 8..(i + 1) * 8].try_into().expect("eight bytes"));
    let (count, enabled, running) = (word(0), word(1), word(2));
    Ok(if running == 0 { 0 } else { (u128::from(count) * u128::from(enabled) / u128::from(running)) as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_this_thread_runs() {
        let tid = crate::thread_id();
        let mut counter = match Counter::open(TASK_CLOCK, std::iter::once(tid)) {
            Ok(counter) => counter,
            Err(e) => return parshall_testkit::skip("a counter of this thread", &format!("perf_event_open: {e}")),
        };
        let before = counter.read();
        let mut x = 1u64;
        for i in 0..20_000_000u64 {
            x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i));
        }
        assert!(counter.read() > before + 1_000_000, "{} {x}", counter.read());
    }

    #[test]
    fn a_thread_that_is_gone_is_an_error() {
        assert!(Counter::open(TASK_CLOCK, std::iter::once(u32::MAX >> 2)).is_err());
    }
}
