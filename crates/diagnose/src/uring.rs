//! Requests of the subject to io_uring: finds out whether it uses it, and reads what was seen of them in a window.
use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;

use parshall_bpf::diagnose::uring::{self, Request, Seen, opcode_name};
use parshall_evidence::{Uring, UringCell, UringCounts, UringErrors, UringRequest, UringWaits};
use parshall_host::bounded_file;

use crate::observed::{Names, observed};
use crate::subject::Resolved;

/// Processes whose mappings are looked at. Of more some may use it: the programs cost the others nothing.
const LOOKED_AT_MAX: usize = 64;
/// Bytes of mappings that are read of a process.
const MAPS_MAX: u64 = 4 << 20;
/// Of a line, whose path stands at its end.
const LINE_MAX: u64 = 512;

/// Whether a process of the subject has a ring mapped. Its descriptor may be closed, and finding it among a hundred thousand sockets would
/// take longer than reading the mappings. A program that gave the kernel memory of its own for its rings (Linux 6.5) is not seen.
pub fn is_used(resolved: &Resolved) -> bool {
    let pids = || resolved.processes.iter().map(|process| process.pid);
    resolved.processes.len() > LOOKED_AT_MAX || pids().any(has_ring)
}

fn has_ring(pid: u32) -> bool {
    let Ok(file) = File::open(format!("/proc/{pid}/maps")) else { return false };
    let (mut found, mut left) = (false, MAPS_MAX);
    let _ = bounded_file::lines(BufReader::new(file), LINE_MAX, &mut left, |line, _| {
        found = line.ends_with(b"anon_inode:[io_uring]");
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

/// Programs that follow requests. They are attached within windows only.
pub struct UringWatch(uring::Uring);

impl UringWatch {
    /// Loads the programs.
    pub fn load(resolved: &Resolved) -> Result<Self, uring::Error> {
        uring::Uring::load(resolved.select.follows_children()).map(Self)
    }

    /// A window of about this length begins.
    pub fn begin(&mut self, resolved: &Resolved, window_ns: u64) -> Result<(), uring::Error> {
        self.0.begin(&observed(resolved), window_ns)
    }

    /// The window is over.
    pub fn stop(&mut self) {
        self.0.stop();
    }

    /// The requests since `begin_ns` of the monotonic clock, None if there were none; and the nanoseconds that it took.
    pub fn seen(&mut self, begin_ns: u64) -> (Option<Uring>, u64) {
        let (seen, took_ns) = self.0.end();
        let something = !seen.cells.is_empty() || !seen.waits.is_empty();
        (something.then(|| evidence(seen, begin_ns, &mut Names::default())), took_ns)
    }
}

fn evidence(seen: Seen, begin_ns: u64, names: &mut Names) -> Uring {
    let cells = seen.cells.into_iter().map(|cell| {
        let uring::Counts { submitted, completed, polls, workers, overflowed, links, rejected, timed, ns, longest_ns } =
            cell.counts;
        let errors = cell.errors.into_iter().map(|(error, count)| UringErrors { error: error_name(error), count });
        UringCell {
            pid: cell.tgid,
            tid: cell.tid,
            process: names.of(cell.tgid),
            thread: names.of(cell.tid),
            opcode: opcode_name(cell.opcode),
            counts: UringCounts {
                submitted,
                completed,
                outstanding: cell.outstanding,
                polls,
                to_workers: workers,
                overflowed,
                failed_links: links,
                rejected,
                errors: errors.collect(),
            },
            timed,
            ns,
            longest_ns,
        }
    });
    let cells = cells.collect();
    let waits = seen.waits.into_iter().map(|waits| UringWaits {
        pid: waits.tgid,
        tid: waits.tid,
        process: names.of(waits.tgid),
        thread: names.of(waits.tid),
        outstanding: waits.opcodes.into_iter().map(opcode_name).collect(),
        count: waits.count,
    });
    Uring {
        waits: waits.collect(),
        cells,
        requests: seen.requests.into_iter().map(|seen| request(seen, begin_ns)).collect(),
        left_out: seen.left_out,
        lost: seen.lost,
        not_followed: seen.not_followed,
        absent: seen.absent,
    }
}

fn request(seen: Request, begin_ns: u64) -> UringRequest {
    UringRequest {
        begin_ns: seen.begin.saturating_sub(begin_ns),
        end_ns: seen.end.map(|end| end.saturating_sub(begin_ns)),
        tid: seen.tid,
        opcode: opcode_name(seen.opcode),
        result: seen.res,
        error: if seen.res < 0 { error_name(seen.res.saturating_neg()) } else { String::new() },
        polled: seen.polled,
        worker: seen.worker,
        failed_link: seen.link_failed,
    }
}

/// Errors that completions have, by the numbers that x86-64 and arm64 share (asm-generic/errno.h).
const ERRORS: [(i32, &str); 37] = [
    (1, "EPERM"),
    (2, "ENOENT"),
    (4, "EINTR"),
    (5, "EIO"),
    (7, "E2BIG"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (16, "EBUSY"),
    (17, "EEXIST"),
    (20, "ENOTDIR"),
    (21, "EISDIR"),
    (22, "EINVAL"),
    (23, "ENFILE"),
    (24, "EMFILE"),
    (28, "ENOSPC"),
    (32, "EPIPE"),
    (62, "ETIME"),
    (71, "EPROTO"),
    (75, "EOVERFLOW"),
    (88, "ENOTSOCK"),
    (90, "EMSGSIZE"),
    (95, "EOPNOTSUPP"),
    (98, "EADDRINUSE"),
    (101, "ENETUNREACH"),
    (103, "ECONNABORTED"),
    (104, "ECONNRESET"),
    (105, "ENOBUFS"),
    (107, "ENOTCONN"),
    (110, "ETIMEDOUT"),
    (111, "ECONNREFUSED"),
    (113, "EHOSTUNREACH"),
    (114, "EALREADY"),
    (115, "EINPROGRESS"),
    (125, "ECANCELED"),
];

fn error_name(error: i32) -> String {
    let known = ERRORS.iter().find(|(number, _)| *number == error);
    known.map_or_else(|| format!("error {error}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use parshall_host::proc_fs;

    use super::*;

    #[test]
    fn times_are_since_the_begin_of_the_window_and_errors_have_names() {
        let of = |res, end| {
            let seen = Request {
                begin: 1_500,
                end,
                tgid: 7,
                tid: 8,
                opcode: 27,
                res,
                polled: true,
                worker: false,
                link_failed: false,
            };
            request(seen, 1_000)
        };
        let failed = of(-105, Some(2_000));
        assert_eq!((failed.begin_ns, failed.end_ns, failed.opcode.as_str()), (500, Some(1_000), "recv"));
        assert_eq!((failed.error.as_str(), failed.polled, failed.worker), ("ENOBUFS", true, false));
        assert_eq!((of(-4095, None).error.as_str(), of(3, None).error.as_str()), ("error 4095", ""));
        assert_eq!(of(i32::MIN, None).result, i32::MIN);
    }

    #[test]
    fn a_ring_is_found_by_its_mapping() {
        assert!(!has_ring(proc_fs::own_pid()), "tests of this crate use none");
        assert!(!has_ring(u32::MAX));
    }
}
