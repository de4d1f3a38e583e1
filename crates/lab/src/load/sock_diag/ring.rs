//! Reads a SOCK_DIAG socket by io_uring: one request goes on receiving into buffers that the kernel picks.
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use parshall_sys::sock_diag::{DiagSocket, MESSAGE_BYTES, REPLY_TIMEOUT, Reader};
use parshall_sys::uring::{Completion, Request, Ring, Sizes};
use rustix::io::Errno;

/// Messages that can wait to be read: 512 KiB of buffers. In the kernel each receive prepares the next message, so one call may
/// fill all of them.
const BUFFERS: u16 = 16;
const SIZES: Sizes =
    Sizes { requests: 8, completions: 64, groups: 1, buffers: BUFFERS, buffer_bytes: MESSAGE_BYTES as u32 };

const GROUP: u16 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// The most waits for the end of a cancelled receive, 20 ms each. It ends at once.
const CANCEL_WAITS: u32 = 100;

/// Reads by io_uring. It belongs to the thread that opened it.
#[derive(Debug)]
pub struct Ringed {
    ring: Ring,
    socket: Option<DiagSocket>,
    /// The receive, while it is in flight.
    receive: Option<Request>,
    seen: Vec<Completion>,
    /// The memory of the next request, which comes back from the ring.
    request: Vec<u8>,
}

impl Ringed {
    /// Opens a ring for the calling thread. EPERM: not permitted; ENOSYS, EINVAL: the kernel is too old.
    pub fn open() -> io::Result<Self> {
        let ring = Ring::open(SIZES)?;
        Ok(Self { ring, socket: None, receive: None, seen: Vec::new(), request: Vec::new() })
    }

    fn fd(&self) -> io::Result<RawFd> {
        let socket = self.socket.as_ref().map(|socket| socket.as_fd().as_raw_fd());
        socket.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "no socket is attached"))
    }

    fn arm(&mut self) -> io::Result<()> {
        if self.receive.is_none() {
            let fd = self.fd()?;
            self.receive = Some(self.ring.recv_messages(fd, GROUP, RECEIVE));
        }
        Ok(())
    }

    /// Passes the messages among the completions on. Returns their number, and the first error of the socket.
    fn hand_out(&mut self, take: &mut dyn FnMut(&[u8])) -> (usize, io::Result<()>) {
        let (mut messages, mut outcome) = (0, Ok(()));
        let mut seen = std::mem::take(&mut self.seen);
        for completion in seen.drain(..) {
            if let Some(buffer) = completion.buffer {
                self.request = buffer;
            }
            if let Some(chunk) = &completion.chunk {
                take(self.ring.bytes(chunk));
                messages += 1;
            }
            self.ring.recycle(completion.chunk);
            if completion.tag == RECEIVE && !completion.more {
                self.receive = None;
            }
            // ENOBUFS also says that no buffer is left; then all of them were filled since the last call.
            let out_of_buffers = completion.result == -Errno::NOBUFS.raw_os_error() && messages >= usize::from(BUFFERS);
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
        for _ in 0..CANCEL_WAITS {
            if self.receive.is_none() && !self.ring.unsubmitted() {
                break;
            }
            if self.ring.enter(Some(Duration::from_millis(20))).is_err() {
                break;
            }
            self.ring.reap(&mut self.seen);
            // The rest of an answer is not needed.
            let _ = self.hand_out(&mut |_| {});
        }
        self.socket.take()
    }

    fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        self.arm()?;
        let fd = self.fd()?;
        let mut buffer = std::mem::take(&mut self.request);
        buffer.clear();
        buffer.extend_from_slice(request);
        // It is submitted by the call that waits for the answer.
        self.ring.send_buffer(fd, buffer, SEND);
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixDatagram;

    use parshall_testkit::skip;

    use super::*;

    /// A reader; None where the kernel has no io_uring for it.
    fn reader(what: &str) -> Option<Ringed> {
        Ringed::open().map_err(|error| skip(what, &format!("no io_uring: {error}"))).ok()
    }

    #[test]
    fn more_messages_than_buffers_come_in_order_and_then_silence_times_out() {
        let Some(mut reader) = reader("messages by io_uring") else { return };
        let (kernel, ours) = UnixDatagram::pair().expect("a pair");
        reader.attach(DiagSocket::from_fd(ours.into()).expect("a socket"));
        reader.ask(b"request").expect("sent");
        let sending = std::thread::spawn(move || {
            for number in 0..200u32 {
                kernel.send(&number.to_ne_bytes().repeat(2000)).expect("space sooner or later");
            }
            kernel
        });
        let mut got = Vec::new();
        while got.len() < 200 {
            let mut take = |part: &[u8]| {
                assert_eq!(part.len(), 8000);
                got.push(u32::from_ne_bytes(part[..4].try_into().expect("4 bytes")));
            };
            reader.receive(&mut take).expect("messages");
        }
        assert_eq!(got, (0..200).collect::<Vec<_>>());
        let kernel = sending.join().expect("sent");
        assert_eq!(kernel.recv(&mut [0; 16]).expect("the request"), 7);
        let silence = reader.receive(&mut |_| panic!("nothing was sent"));
        assert_eq!(silence.expect_err("nothing comes").kind(), io::ErrorKind::TimedOut);
        assert!(reader.detach().is_some());
        assert!(reader.ask(b"request").is_err(), "nothing is attached");
    }

    #[test]
    fn dumps_are_read_from_one_socket_after_the_other() {
        let Some(mut reader) = reader("dumps by io_uring") else { return };
        let own = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let port = own.local_addr().expect("bound").port().to_be_bytes();
        for sequence in 1..20 {
            reader.attach(DiagSocket::open().expect("needs no privilege"));
            let mut found = false;
            super::super::dump(&mut reader, sequence, &mut |part| {
                found |= part.windows(2).any(|bytes| bytes == port);
            })
            .expect("a dump");
            assert!(found, "the listener is in dump {sequence}");
        }
    }
}
