//! On which descriptors a thread waits for data: the one that it reads, or those of an epoll, a poll or a select.
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;

use crate::procfs::blocked_in::memory;

/// Bytes of an epoll's description that are read: some 60 for each descriptor.
const EPOLL_BYTES: u64 = 1 << 20;
/// Descriptors of a poll or select that are read.
const POLLED_MAX: usize = 8_192;
/// `struct pollfd`.
const POLLFD_BYTES: usize = 8;
/// `EPOLLIN` and `POLLIN`.
const IN: u32 = 1;

/// The objects that a thread waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// Data on these descriptors.
    Descriptors(HashSet<i32>),
    /// It cannot be told.
    Unknown,
    /// No data.
    Nothing,
}

/// The objects that a thread of `pid` in this call, with its first two arguments, waits for.
pub fn awaited(pid: u32, call: &str, [first, second]: [u64; 2]) -> Awaited {
    let known = |found: Option<HashSet<i32>>| found.map_or(Awaited::Unknown, Awaited::Descriptors);
    match call {
        "epoll_wait" | "epoll_pwait" | "epoll_pwait2" => known(of_epoll(pid, first as i32)),
        "poll" | "ppoll" => known(of_poll(pid, first, second as usize)),
        "select" | "pselect6" => known(of_select(pid, first as usize, second)),
        "io_uring_enter" => Awaited::Unknown,
        "read" | "readv" | "recvfrom" | "recvmsg" | "recvmmsg" | "accept" | "accept4" | "splice" => {
            Awaited::Descriptors(HashSet::from([first as i32]))
        }
        _ => Awaited::Nothing,
    }
}

fn of_epoll(pid: u32, epoll: i32) -> Option<HashSet<i32>> {
    let mut text = String::new();
    let file = File::open(format!("/proc/{pid}/fdinfo/{epoll}")).ok()?;
    let read = file.take(EPOLL_BYTES).read_to_string(&mut text).ok()?;
    (read < EPOLL_BYTES as usize).then(|| watched(&text))
}

/// The descriptors whose data an epoll reports now. One that was reported and is to be armed again (EPOLLONESHOT) is none.
fn watched(text: &str) -> HashSet<i32> {
    let armed = |line: &str| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let fd = words.next()?.parse().ok()?;
        let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
        (events & IN != 0).then_some(fd)
    };
    text.lines().filter_map(armed).collect()
}

fn of_poll(pid: u32, address: u64, count: usize) -> Option<HashSet<i32>> {
    if count == 0 {
        return Some(HashSet::new());
    }
    let bytes = memory(pid, address, count.min(POLLED_MAX) * POLLFD_BYTES).filter(|_| count <= POLLED_MAX)?;
    let armed = |pollfd: &[u8]| {
        let fd = i32::from_ne_bytes(pollfd.get(..4)?.try_into().ok()?);
        (u32::from(pollfd[4]) & IN != 0).then_some(fd)
    };
    Some(bytes.chunks_exact(POLLFD_BYTES).filter_map(armed).collect())
}

fn of_select(pid: u32, count: usize, address: u64) -> Option<HashSet<i32>> {
    if address == 0 || count == 0 {
        return Some(HashSet::new());
    }
    // The kernel copied the set when the call began, and writes its answer over it only when it returns.
    let bytes = memory(pid, address, count.min(POLLED_MAX).div_ceil(64) * 8).filter(|_| count <= POLLED_MAX)?;
    let is_set = |fd: &usize| bytes.get(fd / 8).is_some_and(|byte| byte & 1 << (fd % 8) != 0);
    Some((0..count).filter(is_set).map(|fd| fd as i32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoll_names_what_it_watches() {
        let text = "pos:\t0\nflags:\t02\ntfd:        5 events:       19 data:  5  pos:0 ino:61af sdev:7\n\
                    tfd:        6 events: 40000000 data:  6  pos:0 ino:61af sdev:7\ntfd: x\n";
        assert_eq!(watched(text), HashSet::from([5]));
    }

    #[test]
    fn polled_and_selected_descriptors_are_read_from_memory() {
        let own = std::process::id();
        let pollfds: [i32; 4] = [3, 1, 4, 4];
        assert_eq!(of_poll(own, pollfds.as_ptr() as u64, 2), Some(HashSet::from([3])));
        let set: [u64; 2] = [1 << 5, 1];
        assert_eq!(of_select(own, 66, set.as_ptr() as u64), Some(HashSet::from([5, 64])));
        assert_eq!(of_poll(own, 0, 3), None);
        assert_eq!(awaited(own, "select", [0, 0]), Awaited::Descriptors(HashSet::new()));
        assert_eq!(awaited(own, "nanosleep", [0, 0]), Awaited::Nothing);
    }
}
