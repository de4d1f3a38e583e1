//! The server of all generators: the first bytes of a connection say what the client wants ([`Hello`]).
//!
//! Connections are accepted and served by a few threads with epoll. A client with few connections asks for a thread of its own for
//! each: blocking calls save the call to epoll for every request. Bulk transfers always have one.
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parshall_core::load::{Hello, Mode};
use parshall_sys::epoll::{Epoll, Events, READABLE, WRITABLE};
use parshall_sys::{stream_io, stream_socket};

use super::super::common::Clock;
use super::super::socket::SocketArgs;
use super::bulk::{self, BulkCalls};
use super::packets;
use super::phase::{Counter, Counters, Counts};
use super::report;

const LISTENER: u64 = u64::MAX;
/// Bytes that one call moves at most; requests and replies may be larger.
const CHUNK: usize = 65_536;
/// The contents of replies and bulk data, which no program reads. They are made when they are needed, and no part of the program's file.
static PAYLOAD: LazyLock<Vec<u8>> = LazyLock::new(|| vec![b'r'; CHUNK]);

/// The state that connections on threads of their own share.
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

/// The next step with a connection.
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
                .and_then(|()| report::send_window(&stream, &shared.counters)),
            Mode::Report => report::send_each(&stream, &shared.counters),
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
