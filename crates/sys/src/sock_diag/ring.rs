//! Reading a SOCK_DIAG socket by io_uring: a request that goes on receiving into buffers that the kernel picks.
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::{DiagSocket, MESSAGE_BYTES, REPLY_TIMEOUT, Reader, no_socket};
use crate::uring::{Completion, Request, Ring, Sizes};

/// Messages that can wait to be read: 512 KiB of buffers. In the kernel's loop each receive prepares the next message, so
/// all of them may be filled by one call.
const BUFFERS: u16 = 16;
const SIZES: Sizes =
    Sizes { requests: 8, completions: 64, groups: 1, buffers: BUFFERS, buffer_bytes: MESSAGE_BYTES as u32 };

const GROUP: u16 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// Looks for the end of a cancelled receive: it comes at once.
const CANCEL_LOOKS: u32 = 100;

/// Reads by io_uring. It belongs to the thread that opened it.
#[derive(Debug)]
pub struct Ringed {
    ring: Ring,
    socket: Option<DiagSocket>,
    /// The receive, while it is in flight.
    receive: Option<Request>,
    seen: Vec<Completion>,
    /// The next request; comes back from the ring with its memory.
    request: Vec<u8>,
}

impl Ringed {
    /// Opens a ring for the calling thread. EPERM: not permitted; ENOSYS, EINVAL: the kernel is too old.
    pub fn open() -> io::Result<Self> {
        let ring = Ring::open(SIZES)?;
        Ok(Self { ring, socket: None, receive: None, seen: Vec::new(), request: Vec::new() })
    }

    fn arm(&mut self) -> io::Result<()> {
        if self.receive.is_none() {
            let fd = self.socket.as_ref().ok_or_else(no_socket)?.0.as_raw_fd();
            self.receive = Some(self.ring.recv_messages(fd, GROUP, RECEIVE));
        }
        Ok(())
    }

    /// Gives the messages among the completions; how many, and the first error of the socket.
    fn hand_out(&mut self, take: &mut dyn FnMut(&[u8])) -> (usize, io::Result<()>) {
        let (mut messages, mut outcome) = (0, Ok(()));
        let mut seen = std::mem::take(&mut self.seen);
        for completion in seen.drain(..) {
            if let Some(buffer) = completion.buffer {
                self.request = buffer;
            }
            for chunk in &completion.chunks {
                take(self.ring.bytes(chunk));
                messages += 1;
            }
            self.ring.recycle(completion.chunks);
            if completion.tag == RECEIVE && !completion.more {
                self.receive = None;
            }
            // Out of buffers is ENOBUFS too; but then all of them were filled since the last look.
            let out_of_buffers = completion.result == -libc::ENOBUFS && messages >= usize::from(BUFFERS);
            if completion.result < 0 && !out_of_buffers && outcome.is_ok() {
                outcome = Err(io::Error::from_raw_os_error(-completion.result));
            }
        }
        self.ring.publish();
        self.seen = seen;
        (messages, outcome)
    }
}

impl Reader for Ringed {
    fn attach(&mut self, socket: DiagSocket) {
        self.detach();
        self.socket = Some(socket);
    }

    fn detach(&mut self) -> Option<DiagSocket> {
        if let Some(receive) = self.receive {
            self.ring.cancel(receive);
        }
        for _ in 0..CANCEL_LOOKS {
            if self.receive.is_none() && !self.ring.unsubmitted() {
                break;
            }
            if self.ring.enter(Some(Duration::from_millis(20))).is_err() {
                break;
            }
            self.ring.reap(&mut self.seen);
            // What was left of an answer is of no use to anybody.
            let _ = self.hand_out(&mut |_| {});
        }
        self.socket.take()
    }

    fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        self.arm()?;
        let fd = self.socket.as_ref().ok_or_else(no_socket)?.0.as_raw_fd();
        let mut buffer = std::mem::take(&mut self.request);
        buffer.clear();
        buffer.extend_from_slice(request);
        // Taken in with the wait for the answer: one call for both.
        self.ring.send_buffer(fd, buffer, 0, SEND);
        Ok(())
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let since = Instant::now();
        loop {
            self.arm()?;
            self.ring.enter(Some(REPLY_TIMEOUT))?;
            self.ring.reap(&mut self.seen);
            let (messages, outcome) = self.hand_out(take);
            outcome?;
            if messages > 0 {
                return Ok(());
            }
            if since.elapsed() >= REPLY_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}
