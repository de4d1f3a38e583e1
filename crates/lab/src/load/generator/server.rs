//! The server of all generators: the first bytes of a connection say what the client wants ([`Hello`]).
//!
//! Connections are accepted and served by a few threads with epoll. A client with few connections asks for a thread of its own for
//! each: blocking calls save the call to epoll for every request. Bulk transfers always have one.
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use parshall_core::load::{Hello, Mode};
use parshall_sys::epoll::{Epoll, Events, READABLE, WRITABLE};
use parshall_sys::{stream_io, stream_socket};

use super::super::{Clock, socket::SocketArgs};
use super::bulk::{self, BulkCalls};
use super::packets;
use super::phase::{Counter, Counts, CpuUse};

const LISTENER: u64 = u64::MAX;
/// Bytes that one call moves at most; requests and replies may be larger.
const CHUNK: usize = 65_536;
/// What is sent: nobody reads it.
static PAYLOAD: [u8; CHUNK] = [b'r'; CHUNK];

/// The counters of all threads that there have been.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Vec<Arc<Counter>>>);

impl Counters {
    /// A counter for a new thread.
    pub fn register(&self) -> Arc<Counter> {
        let counter = Arc::new(Counter::default());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counter));
        counter
    }

    pub fn read(&self) -> Counts {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().fold(Counts::default(), |sum, counter| sum + counter.read())
    }
}

/// What connections on threads of their own need.
#[derive(Debug, Clone)]
struct Shared {
    counters: Arc<Counters>,
    clock: Clock,
    calls: BulkCalls,
}

/// Listens on an address with this number of threads. Returns the address; the threads end with the process.
pub fn start(
    address: SocketAddr,
    threads: u16,
    socket: &SocketArgs,
    calls: BulkCalls,
    clock: &Clock,
    counters: &Arc<Counters>,
) -> anyhow::Result<SocketAddr> {
    let listener = Arc::new(socket.listen(address)?);
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    for _ in 0..threads {
        let shared = Shared { counters: Arc::clone(counters), clock: clock.clone(), calls };
        let worker = Worker::new(Arc::clone(&listener), shared)?;
        std::thread::Builder::new().name("load-server".into()).spawn(move || worker.run())?;
    }
    Ok(address)
}

/// A thread with epoll.
struct Worker {
    listener: Arc<TcpListener>,
    epoll: Epoll,
    peers: Vec<Option<Peer>>,
    free: Vec<usize>,
    counter: Arc<Counter>,
    shared: Shared,
    buf: Box<[u8]>,
}

/// A connection of a worker.
struct Peer {
    fd: OwnedFd,
    state: State,
    /// The socket's send buffer was full: epoll waits until it is not.
    blocked: bool,
}

enum State {
    /// The first bytes are not complete.
    Hello {
        bytes: [u8; Hello::BYTES],
        got: usize,
    },
    Requests(Requests),
}

/// A connection with requests. Of what is sent and received only the amount counts.
#[derive(Debug, Clone, Copy)]
struct Requests {
    request: u64,
    reply: u64,
    once: bool,
    /// Bytes of a request that is not complete.
    got: u64,
    /// Bytes of replies that are not sent.
    owed: u64,
}

/// What is to be done with a connection.
enum Next {
    Keep,
    Close,
    /// It gets a thread. So many bytes behind its hello were received.
    Alone(Hello, usize),
}

impl Worker {
    fn new(listener: Arc<TcpListener>, shared: Shared) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER, READABLE)?;
        let counter = shared.counters.register();
        let buf = vec![0; CHUNK].into();
        Ok(Self { listener, epoll, peers: Vec::new(), free: Vec::new(), counter, shared, buf })
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while !self.shared.clock.over() {
            if let Err(error) = self.epoll.wait(&mut events, Duration::from_millis(100)) {
                tracing::warn!("the load's server: {error}");
                return self.shared.clock.stop();
            }
            for (token, _) in events.iter() {
                match token {
                    LISTENER => self.accept(),
                    token => self.ready(token as usize),
                }
            }
        }
    }

    /// Another thread may have taken the connection: then there is nothing to accept.
    fn accept(&mut self) {
        while let Ok((fd, _)) = stream_socket::accept(self.listener.as_raw_fd()) {
            let state = State::Hello { bytes: [0; Hello::BYTES], got: 0 };
            let mut peer = Peer { fd, state, blocked: false };
            // The first bytes are often there already; a connection for one request is then never watched.
            match peer.read(&mut self.buf, &self.counter) {
                Next::Keep => self.watch(peer),
                Next::Close => {}
                Next::Alone(hello, more) => alone(peer.fd, hello, more, &self.shared),
            }
        }
    }

    fn watch(&mut self, peer: Peer) {
        let index = self.free.pop().unwrap_or(self.peers.len());
        let interest = if peer.blocked { READABLE | WRITABLE } else { READABLE };
        if self.epoll.add(&peer.fd, index as u64, interest).is_ok() {
            if index == self.peers.len() {
                self.peers.push(None);
            }
            self.peers[index] = Some(peer);
        } else {
            self.free.push(index);
        }
    }

    fn ready(&mut self, index: usize) {
        let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) else { return };
        let was_blocked = peer.blocked;
        let next = peer.read(&mut self.buf, &self.counter);
        if peer.blocked != was_blocked {
            let interest = if peer.blocked { READABLE | WRITABLE } else { READABLE };
            self.epoll.modify(&peer.fd, index as u64, interest).ok();
        }
        if matches!(next, Next::Keep) {
            return;
        }
        if let Some(peer) = self.peers[index].take() {
            self.free.push(index);
            if let Next::Alone(hello, more) = next {
                self.epoll.remove(&peer.fd).ok();
                alone(peer.fd, hello, more, &self.shared);
            }
        }
    }
}

impl Peer {
    /// Sends what is owed, receives once, and answers.
    fn read(&mut self, buf: &mut [u8], counter: &Counter) -> Next {
        if let State::Requests(requests) = &mut self.state
            && requests.owed > 0
        {
            match requests.answer(self.fd.as_raw_fd(), counter) {
                Ok(()) => self.blocked = requests.owed > 0,
                Err(_) => return Next::Close,
            }
            if self.blocked {
                return Next::Keep; // A client that does not read its replies gets no further ones.
            }
        }
        let received = match stream_io::recv(self.fd.as_raw_fd(), buf) {
            Ok(0) => return Next::Close,
            Ok(received) => received,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Next::Keep;
            }
            Err(_) => return Next::Close,
        };
        let next = self.received(&buf[..received], counter);
        if let State::Requests(requests) = &self.state {
            self.blocked = requests.owed > 0;
        }
        next
    }

    fn received(&mut self, data: &[u8], counter: &Counter) -> Next {
        let fresh = match &mut self.state {
            State::Requests(requests) => return requests.received(data.len(), self.fd.as_raw_fd(), counter),
            State::Hello { bytes, got } => {
                let take = data.len().min(Hello::BYTES - *got);
                bytes[*got..*got + take].copy_from_slice(&data[..take]);
                *got += take;
                if *got < Hello::BYTES {
                    return Next::Keep;
                }
                let Some(hello) = Hello::decode(bytes) else { return Next::Close };
                let more = data.len() - take;
                if hello.alone || !matches!(hello.mode, Mode::Requests | Mode::Once) {
                    return Next::Alone(hello, more);
                }
                (Requests::new(&hello), more)
            }
        };
        let (mut requests, more) = fresh;
        let next = requests.received(more, self.fd.as_raw_fd(), counter);
        self.state = State::Requests(requests);
        next
    }
}

impl Requests {
    fn new(hello: &Hello) -> Self {
        let once = hello.mode == Mode::Once;
        Self { request: hello.request.into(), reply: hello.reply.into(), once, got: 0, owed: 0 }
    }

    /// Counts received bytes and answers the requests that are complete.
    fn received(&mut self, bytes: usize, fd: i32, counter: &Counter) -> Next {
        self.got += bytes as u64;
        let complete = self.got / self.request;
        self.got %= self.request;
        self.owed += complete * self.reply;
        counter.add(Counts { operations: complete, received: bytes as u64, sent: 0 });
        if complete == 0 {
            return Next::Keep;
        }
        match self.answer(fd, counter) {
            // The server closes first: TIME_WAIT then holds no port of the client.
            Ok(()) if self.once && self.owed == 0 => Next::Close,
            Ok(()) => Next::Keep,
            Err(_) => Next::Close,
        }
    }

    /// Sends until nothing is owed or the socket is full.
    fn answer(&mut self, fd: i32, counter: &Counter) -> io::Result<()> {
        while self.owed > 0 {
            let chunk = self.owed.min(CHUNK as u64) as usize;
            match stream_io::send(fd, &PAYLOAD[..chunk]) {
                Ok(sent) => {
                    self.owed -= sent as u64;
                    counter.add(Counts { sent: sent as u64, ..Counts::default() });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Serves a connection on a thread of its own. The thread ends with the connection.
fn alone(fd: OwnedFd, hello: Hello, more: usize, shared: &Shared) {
    let shared = shared.clone();
    let serve = move || {
        let stream = TcpStream::from(fd);
        // An error ends the connection, and the client notices.
        let served = stream.set_nonblocking(false).and_then(|()| match hello.mode {
            Mode::Requests | Mode::Once => lockstep(&stream, &hello, more, &shared.counters.register()),
            Mode::Upload | Mode::Download | Mode::Both => {
                bulk::serve(&stream, hello.mode, shared.calls, &shared.counters, &shared.clock)
            }
            Mode::Packets => packets::serve(&stream, &shared.counters, &shared.clock)
                .and_then(|()| report_window(&stream, &shared.counters)),
            Mode::Report => report(&stream, &shared.counters),
        });
        if let Err(error) = served {
            tracing::debug!("a connection of the load's server: {error}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("load-alone".into()).spawn(serve) {
        tracing::warn!("the load's server: starting a thread: {error}");
    }
}

/// Answers requests with blocking calls.
fn lockstep(mut stream: &TcpStream, hello: &Hello, more: usize, counter: &Counter) -> io::Result<()> {
    let (request, reply) = (hello.request as usize, hello.reply as usize);
    let mut buf = vec![0; CHUNK];
    let mut got = more;
    loop {
        let complete = got / request;
        got %= request;
        let mut owed = complete * reply;
        counter.add(Counts { operations: complete as u64, received: 0, sent: owed as u64 });
        while owed > 0 {
            let chunk = owed.min(CHUNK);
            stream.write_all(&PAYLOAD[..chunk])?;
            owed -= chunk;
        }
        match stream.read(&mut buf) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                got += n;
                counter.add(Counts { received: n as u64, ..Counts::default() });
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// What the server reports: its use of the CPU since the last report, and what all its connections moved since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    pub cpu_ns: u64,
    /// Of the thread that used most of it.
    pub busiest_ns: u64,
    pub counts: Counts,
}

impl Report {
    pub const BYTES: usize = 40;

    fn encode(&self) -> [u8; Self::BYTES] {
        let numbers = [self.cpu_ns, self.busiest_ns, self.counts.operations, self.counts.received, self.counts.sent];
        let mut bytes = [0; Self::BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let number = |i| number(bytes, i);
        let counts = Counts { operations: number(2), received: number(3), sent: number(4) };
        Self { cpu_ns: number(0), busiest_ns: number(1), counts }
    }
}

/// The `i`th number of eight bytes, in network byte order.
fn number(bytes: &[u8], i: usize) -> u64 {
    bytes[8 * i..8 * (i + 1)].iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Sends a report for each byte that the client sends.
fn report(mut stream: &TcpStream, counters: &Counters) -> io::Result<()> {
    let mut before = CpuUse::now();
    let mut asked = [0];
    while stream.read(&mut asked)? > 0 {
        let now = CpuUse::now();
        let (cpu_ns, busiest_ns) = now.since(&before);
        stream.write_all(&Report { cpu_ns, busiest_ns, counts: counters.read() }.encode())?;
        before = now;
    }
    Ok(())
}

/// When the measured window of packets begins after the announcement, and how long it is. The server takes the time itself: a
/// question would wait behind the packets, for as long as they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    pub warm_up: Duration,
    pub time: Duration,
}

impl Announcement {
    const BYTES: usize = 16;

    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, time) in bytes.chunks_exact_mut(8).zip([self.warm_up, self.time]) {
            place.copy_from_slice(&(time.as_nanos() as u64).to_be_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let ns = |i| Duration::from_nanos(number(bytes, i));
        Self { warm_up: ns(0), time: ns(1) }
    }
}

/// Reads an announcement, and sends one report of that window when the client asks for it. A client that asks before its end gets it
/// then.
fn report_window(mut stream: &TcpStream, counters: &Counters) -> io::Result<()> {
    let mut bytes = [0; Announcement::BYTES];
    stream.read_exact(&mut bytes)?;
    let Announcement { warm_up, time } = Announcement::decode(&bytes);
    let mut asked = is_asked_within(stream, warm_up)?;
    let (cpu, counts) = (CpuUse::now(), counters.read());
    asked = asked || is_asked_within(stream, time)?;
    let ((cpu_ns, busiest_ns), counts) = (CpuUse::now().since(&cpu), counters.read().since(counts));
    if !asked {
        stream.set_read_timeout(None)?;
        stream.read_exact(&mut [0])?;
    }
    stream.write_all(&Report { cpu_ns, busiest_ns, counts }.encode())
}

/// Whether the client sends a byte within this time.
fn is_asked_within(mut stream: &TcpStream, time: Duration) -> io::Result<bool> {
    // A timeout of zero would be none.
    stream.set_read_timeout(Some(time.max(Duration::from_millis(1))))?;
    match stream.read_exact(&mut [0]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        read => read.map(|()| true),
    }
}

/// The local address of a connection, with another port.
pub fn beside(stream: &TcpStream, port: u16) -> io::Result<SocketAddr> {
    let mut address = stream.local_addr()?;
    address.set_port(port);
    Ok(address)
}

/// A duplicate of a socket, for another thread.
pub fn duplicate(stream: &TcpStream) -> io::Result<TcpStream> {
    stream.as_fd().try_clone_to_owned().map(TcpStream::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_back() {
        let counts = Counts { operations: 3, received: u64::MAX, sent: 5 };
        let report = Report { cpu_ns: 1 << 40, busiest_ns: 7, counts };
        assert_eq!(Report::decode(&report.encode()), report);
        let announcement = Announcement { warm_up: Duration::from_millis(3), time: Duration::from_secs(86_400) };
        assert_eq!(Announcement::decode(&announcement.encode()), announcement);
    }
}
