//! The other end of a [control socket](crate::control_socket): one request and its reply, bounded in bytes and in time.
//!
//! A path in a directory of another user is served by whatever that user runs. So every limit holds for the exchange as a whole:
//! a reply that never ends and one that arrives a byte at a time are both given up.
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

/// Bytes that one read asks for.
const READ_BYTES: usize = 64 * 1024;

/// The limits of an exchange.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From the first byte of the request to the last one of the reply; connecting has the same time again.
    pub time: Duration,
    /// Of the reply.
    pub bytes: usize,
}

/// A connection to a control socket.
#[derive(Debug)]
pub struct ControlClient {
    stream: UnixStream,
    limits: Limits,
}

impl ControlClient {
    /// Connects. A process that listens and accepts nothing is waited for no longer than `limits.time`.
    ///
    /// # Errors
    /// Those of connect(2); `WouldBlock` if the accept queue stays full.
    pub fn connect(path: &Path, limits: Limits) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Connecting waits while the accept queue is full, as long as sending may (unix_stream_connect in net/unix/af_unix.c).
        socket.set_write_timeout(Some(limits.time))?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(Self { stream: UnixStream::from(OwnedFd::from(socket)), limits })
    }

    /// Sends a request and returns the line that answers it, without its line feed. Empty if the server has closed instead.
    ///
    /// # Errors
    /// `TimedOut` after `limits.time`, `InvalidData` for a reply that is longer than `limits.bytes` or no UTF-8, and those of the
    /// system calls.
    pub fn ask(&mut self, request: &[u8]) -> io::Result<String> {
        let mut exchange = Exchange::new(&self.stream, self.limits);
        exchange.send(request)?;
        let reply = exchange.receive(|chunk| chunk.contains(&b'\n'))?;
        let end = reply.iter().position(|byte| *byte == b'\n').unwrap_or(reply.len());
        text(reply[..end].to_vec())
    }

    /// Sends the only request of this connection and returns everything until the server closes it.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_once(self, request: &[u8]) -> io::Result<String> {
        let mut exchange = Exchange::new(&self.stream, self.limits);
        exchange.send(request)?;
        self.stream.shutdown(Shutdown::Write)?;
        text(exchange.receive(|_| false)?)
    }
}

struct Exchange<'a> {
    stream: &'a UnixStream,
    limits: Limits,
    began: Instant,
}

impl<'a> Exchange<'a> {
    fn new(stream: &'a UnixStream, limits: Limits) -> Self {
        Self { stream, limits, began: Instant::now() }
    }

    /// The time that is left.
    fn left(&self) -> io::Result<Duration> {
        let left = self.limits.time.saturating_sub(self.began.elapsed());
        if left.is_zero() { Err(late()) } else { Ok(left) }
    }

    fn send(&mut self, mut request: &[u8]) -> io::Result<()> {
        while !request.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            match self.stream.write(request) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => request = &request[sent..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(late()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads until the server closes, or until `done` says so of the bytes that were read last.
    fn receive(&mut self, done: impl Fn(&[u8]) -> bool) -> io::Result<Vec<u8>> {
        let mut reply = Vec::new();
        let mut chunk = vec![0; READ_BYTES];
        loop {
            self.stream.set_read_timeout(Some(self.left()?))?;
            let read = match self.stream.read(&mut chunk) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(late()),
                Err(error) => return Err(error),
            };
            if reply.len() + read > self.limits.bytes {
                let what = format!("the reply is longer than {} bytes", self.limits.bytes);
                return Err(io::Error::new(ErrorKind::InvalidData, what));
            }
            reply.extend_from_slice(&chunk[..read]);
            if read == 0 || done(&chunk[..read]) {
                return Ok(reply);
            }
        }
    }
}

/// The error for an exchange that takes too long.
fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "no complete reply in time")
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A client of a server that runs in a thread until it fails to write.
    fn client(limits: Limits, serve: impl FnOnce(UnixStream) -> io::Result<()> + Send + 'static) -> ControlClient {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c");
        let listener = UnixListener::bind(&path).expect("bound");
        let client = ControlClient::connect(&path, limits).expect("it listens");
        std::thread::spawn(move || serve(listener.accept().expect("a client").0));
        client
    }

    #[test]
    fn each_request_gets_its_line() {
        let mut client = client(Limits { time: LONG, bytes: 100 }, |mut stream| {
            let mut request = [0; 2];
            loop {
                stream.read_exact(&mut request)?;
                stream.write_all(b"to ")?;
                stream.write_all(&request)?;
            }
        });
        assert_eq!((client.ask(b"a\n").expect("a"), client.ask(b"b\n").expect("b")), ("to a".into(), "to b".into()));
    }

    #[test]
    fn the_whole_reply_ends_with_the_connection() {
        let client = client(Limits { time: LONG, bytes: 100 }, |mut stream| {
            stream.read_to_end(&mut Vec::new())?;
            stream.write_all(b"one\n")?;
            stream.write_all(b"two\n")
        });
        assert_eq!(client.ask_once(b"all\n").expect("two lines"), "one\ntwo\n");
    }

    #[test]
    fn a_reply_without_an_end_is_given_up_at_the_limit() {
        let endless = |mut stream: UnixStream| -> io::Result<()> {
            loop {
                stream.write_all(&[b' '; 4096])?;
            }
        };
        let limits = Limits { time: LONG, bytes: 1 << 20 };
        assert_eq!(client(limits, endless).ask(b"?\n").expect_err("too long").kind(), ErrorKind::InvalidData);
        assert_eq!(client(limits, endless).ask_once(b"?\n").expect_err("too long").kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_reply_that_trickles_is_given_up_in_time() {
        let trickle = |mut stream: UnixStream| -> io::Result<()> {
            loop {
                stream.write_all(b" ")?;
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let limits = Limits { time: Duration::from_millis(200), bytes: 1 << 20 };
        assert_eq!(client(limits, trickle).ask(b"?\n").expect_err("too late").kind(), ErrorKind::TimedOut);
        assert_eq!(client(limits, trickle).ask_once(b"?\n").expect_err("too late").kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_full_accept_queue_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c");
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        socket.bind(&SockAddr::unix(&path).expect("short")).expect("bound");
        socket.listen(0).expect("it listens");
        let limits = Limits { time: Duration::from_millis(50), bytes: 100 };
        let mut queued = Vec::new();
        let error = (0..10).find_map(|_| ControlClient::connect(&path, limits).map(|one| queued.push(one)).err());
        assert_eq!(error.expect("the queue is full").kind(), ErrorKind::WouldBlock);
    }
}
