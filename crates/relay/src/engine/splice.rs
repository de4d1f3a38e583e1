//! splice from socket to pipe to socket: no byte is copied to user space.
//!
//! Pipes are pooled per thread and belong to a direction only while they hold bytes, so a few serve many connections. A pipe
//! that still holds bytes of a closed connection is closed.
use std::io;

use parshall_core::relay::connection::Ended;
use parshall_sys::stream_io::{Pipe, peek};

use super::{Engine, Job, Outcome, Piped, Store, failure, would_block};
use crate::stats::Fallback;

/// The size set with F_SETPIPE_SZ: 256 segments, which a stream fills in a few wake-ups.
const PIPE_BYTES: usize = 1 << 20;
/// Free pipes that a thread keeps.
const SPARE_MAX: usize = 16;

#[derive(Debug)]
pub struct SpliceEngine {
    #[expect(clippy::vec_box, reason = "they travel between here and the stores of directions as they are")]
    spare: Vec<Box<Piped>>,
    /// All pipes: free ones and those that hold bytes.
    open: usize,
    /// The thread's share of the descriptors for pipes.
    limit: usize,
}

/// The result of a splice into the pipe.
enum Filled {
    /// Bytes, the end of the source, or a full pipe: something is to be delivered.
    Some,
    /// Neither the socket nor the pipe holds bytes.
    Nothing,
    /// The socket cannot be spliced from.
    Refused(Fallback),
}

impl SpliceEngine {
    /// An engine with at most `limit` pipes.
    pub fn new(limit: usize) -> Self {
        Self { spare: Vec::new(), open: 0, limit }
    }

    fn take_pipe(&mut self) -> Result<Box<Piped>, Fallback> {
        if let Some(piped) = self.spare.pop() {
            return Ok(piped);
        }
        if self.open >= self.limit {
            return Err(Fallback::NoPipes);
        }
        let pipe = Pipe::new(PIPE_BYTES).map_err(|e| fallback(&e))?;
        self.open += 1;
        Ok(Box::new(Piped { pipe, bytes: 0, end: None }))
    }

    fn put_pipe(&mut self, piped: Box<Piped>) {
        if piped.bytes == 0 && piped.end.is_none() && self.spare.len() < SPARE_MAX {
            self.spare.push(piped);
        } else {
            self.open -= 1;
        }
    }

    fn turn(&mut self, job: &mut Job) -> Outcome {
        let mut piped = match std::mem::take(&mut job.store) {
            Store::Pipe(piped) => piped,
            other => {
                debug_assert!(other.is_empty(), "a buffer belongs to the copy engine");
                match self.take_pipe() {
                    Ok(piped) => piped,
                    Err(why) => return Outcome::Refused(why),
                }
            }
        };
        let outcome = Self::flow(job, &mut piped);
        if outcome == Outcome::SinkFull {
            job.store = Store::Pipe(piped);
        } else {
            self.put_pipe(piped);
        }
        if outcome == Outcome::SourceEmpty {
            job.rhythm.spliced(job.moved);
        }
        outcome
    }

    /// Fills and empties the pipe until one of the sockets would have to wait or the allowance is used up.
    fn flow(job: &mut Job, piped: &mut Piped) -> Outcome {
        loop {
            let filled = if piped.end.is_none() { Self::fill(job, piped) } else { Filled::Some };
            match filled {
                Filled::Some => {}
                Filled::Nothing => return Outcome::SourceEmpty,
                Filled::Refused(why) => return Outcome::Refused(why),
            }
            if let Some(outcome) = Self::empty(job, piped) {
                return outcome;
            }
            // The end is reported after the bytes before it. It was kept because the kernel reports an error only once.
            if let Some(end) = piped.end.take() {
                return Outcome::Ended(end);
            }
            if job.allowance == 0 {
                return Outcome::Again;
            }
        }
    }

    /// One splice into the pipe.
    fn fill(job: &mut Job, piped: &mut Piped) -> Filled {
        // A pipe is limited by segments, of up to 32 KiB each over loopback, and so can hold more than its size in bytes. But
        // bytes in it no longer count in the source's receive buffer: with a slow sink they are limited here.
        let max = usize::try_from(job.allowance).unwrap_or(usize::MAX);
        if max == 0 || piped.bytes >= PIPE_BYTES {
            return Filled::Some;
        }
        match piped.pipe.fill(job.source, max) {
            // The bytes in the pipe are delivered first.
            Ok(0) if piped.bytes > 0 => {}
            Ok(0) => return Self::peek_source(job, piped, max),
            Ok(n) => {
                piped.bytes += n;
                job.allowance -= n as u64;
            }
            // EAGAIN: the socket is empty or the pipe has no free segment. With an empty pipe it is the socket.
            Err(e) if would_block(&e) && piped.bytes == 0 => {
                return if job.source_ended { Self::peek_source(job, piped, max) } else { Filled::Nothing };
            }
            Err(e) if would_block(&e) || e.kind() == io::ErrorKind::Interrupted => {}
            Err(e)
                if piped.bytes == 0 && matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EPERM | libc::ENOMEM)) =>
            {
                return Filled::Refused(fallback(&e));
            }
            Err(e) => piped.end = Some(Ended::SourceFailed(failure(&e))),
        }
        Filled::Some
    }

    /// Uses recv with MSG_PEEK when splice gets nothing more. splice does not go beyond an urgent byte (tcp_read_sock stops in
    /// front of it): it returns EAGAIN there, and 0 once the peer has closed, as at the end. recv goes beyond it.
    fn peek_source(job: &mut Job, piped: &mut Piped, max: usize) -> Filled {
        match peek(job.source, &mut [0]) {
            Ok(0) => piped.end = Some(Ended::Eof),
            // Bytes may also have arrived between the two calls.
            Ok(_) => match piped.pipe.fill(job.source, max) {
                Ok(n) if n > 0 => {
                    piped.bytes += n;
                    job.allowance -= n as u64;
                }
                _ => return Filled::Refused(Fallback::Unsupported),
            },
            Err(e) if would_block(&e) => return Filled::Nothing,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // The kernel reports an error only once.
            Err(e) => piped.end = Some(Ended::SourceFailed(failure(&e))),
        }
        Filled::Some
    }

    /// Empties the pipe. None: nothing is left in it.
    fn empty(job: &mut Job, piped: &mut Piped) -> Option<Outcome> {
        while piped.bytes > 0 {
            match piped.pipe.empty(job.sink, piped.bytes, false) {
                Ok(n) => {
                    piped.bytes -= n.min(piped.bytes);
                    job.moved += n as u64;
                }
                Err(e) if would_block(&e) => return Some(Outcome::SinkFull),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Some(Outcome::Ended(Ended::SinkFailed(failure(&e)))),
            }
        }
        None
    }
}

fn fallback(error: &io::Error) -> Fallback {
    match error.raw_os_error() {
        Some(libc::EINVAL) => Fallback::Unsupported,
        Some(libc::EPERM) => Fallback::NotPermitted,
        Some(libc::EMFILE | libc::ENFILE) => Fallback::NoDescriptors,
        _ => Fallback::Other,
    }
}

impl Engine for SpliceEngine {
    fn pump(&mut self, jobs: &mut [Job]) {
        for job in jobs {
            job.outcome = self.turn(job);
        }
    }

    fn discard(&mut self, store: Store) {
        if let Store::Pipe(piped) = store {
            self.put_pipe(piped);
        }
    }
}
