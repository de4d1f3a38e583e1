//! Requests and replies: a thread's connections with epoll, one connection with blocking calls, or a connection for each request.
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::time::Duration;

use parshall_core::load::{Arrivals, Dispatch, Hello, Mode, Pattern};
use parshall_sys::epoll::{Epoll, Events, READABLE, WRITABLE};
use parshall_sys::stream_io;

use super::super::socket::SocketArgs;
use super::phase::{Phase, Tally};

/// Bytes that one call moves at most; requests and replies may be larger.
const CHUNK: usize = 65_536;
/// The contents of requests, made when they are needed: in the program they would be as much of its file.
static PAYLOAD: LazyLock<Vec<u8>> = LazyLock::new(|| vec![b'q'; CHUNK]);
/// How often a signal is looked for while nothing happens.
const CHECK: Duration = Duration::from_millis(50);

/// The requests to make.
#[derive(Debug, Clone, Copy)]
pub struct Requests {
    /// Over all threads.
    pub connections: u32,
    /// Requests outstanding on each connection.
    pub depth: u32,
    /// Requests outstanding on all connections of all threads.
    pub most: u32,
    /// Bytes.
    pub request: u32,
    pub reply: u32,
    /// Bytes of a request that are written by themselves, before the others; only with one request outstanding on a connection.
    pub apart: Option<u32>,
    /// None in a closed loop.
    pub schedule: Option<(Pattern, f64)>,
    /// Each request has a connection of its own.
    pub connect_each: bool,
}

impl Requests {
    /// One request of these bytes at a time on each connection, in a closed loop.
    pub fn new(connections: u32, request: u32, reply: u32) -> Self {
        let (depth, most) = (1, connections);
        Self { connections, depth, most, request, reply, apart: None, schedule: None, connect_each: false }
    }

    /// Whether each connection gets a thread at the server: few connections with little in flight, so that blocking calls at both
    /// ends cannot wait for each other.
    pub fn alone(&self, buffers_set: bool) -> bool {
        const CONNECTIONS: u32 = 32;
        let in_flight = u64::from(self.depth) * (u64::from(self.request) + u64::from(self.reply));
        !self.connect_each && self.connections <= CONNECTIONS && in_flight <= CHUNK as u64 && !buffers_set
    }

    pub fn hello(&self, alone: bool) -> Hello {
        let mode = if self.connect_each { Mode::Once } else { Mode::Requests };
        Hello { mode, alone, request: self.request, reply: self.reply }
    }

    fn arrivals(&self, thread: u32, threads: u32) -> Option<Arrivals> {
        let (pattern, per_s) = self.schedule?;
        Some(Arrivals::share(pattern, per_s, u64::from(std::process::id()), thread, threads))
    }

    /// Bytes of a request and its reply.
    fn bytes(&self) -> u64 {
        u64::from(self.request) + u64::from(self.reply)
    }
}

/// One thread of `threads`, with its connections. They have sent their hello, if the server wants one.
pub fn run(
    requests: &Requests,
    streams: Vec<TcpStream>,
    (thread, threads): (u32, u32),
    alone: bool,
    phase: &Phase,
) -> io::Result<Tally> {
    match <[TcpStream; 1]>::try_from(streams) {
        Ok([stream]) if alone && requests.schedule.is_none() => Ok(lockstep(requests, &stream, phase)),
        Ok([stream]) => Engine::new(requests, vec![stream], requests.arrivals(thread, threads), threads)?.run(phase),
        Err(streams) => Engine::new(requests, streams, requests.arrivals(thread, threads), threads)?.run(phase),
    }
}

/// A closed loop on one connection with two calls for each request.
fn lockstep(requests: &Requests, mut stream: &TcpStream, phase: &Phase) -> Tally {
    let (depth, request, reply) = (requests.depth as usize, requests.request as usize, requests.reply as usize);
    let payload = vec![b'q'; depth * request];
    let mut buf = vec![0; CHUNK.max(depth * reply)];
    let mut due: VecDeque<u64> = std::iter::repeat_n(phase.now_ns(), depth).collect();
    let mut tally = Tally::default();
    let (mut got, mut to_send) = (0, depth);
    while !due.is_empty() {
        let read = match stream.write_all(&payload[..to_send * request]).and_then(|()| stream.read(&mut buf)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            // Behind the end of the load the connection is shut down.
            Ok(0) | Err(_) => {
                let now = phase.now_ns();
                due.drain(..).for_each(|due| tally.no_reply(phase, due, now));
                tally.lost = u64::from(!phase.drained(now));
                break;
            }
            Ok(n) => n,
        };
        let now = phase.now_ns();
        got += read;
        to_send = 0;
        let answered = (got / reply).min(due.len());
        got -= answered * reply;
        for due in due.drain(..answered) {
            tally.reply(phase, due, now, requests.bytes());
        }
        if !phase.over(now) {
            due.extend(std::iter::repeat_n(now, answered));
            to_send = answered;
        }
    }
    tally
}

/// The connections of a thread.
struct Engine {
    epoll: Epoll,
    connections: Vec<Connection>,
    dispatch: Dispatch,
    /// Connections with something to send.
    dirty: Vec<u32>,
    request: usize,
    reply: usize,
    /// Bytes of the first write of a request.
    first: usize,
    bytes: u64,
    open_loop: bool,
    /// Since when some connection has had space; None if none has.
    space_since_ns: Option<u64>,
    buf: Box<[u8]>,
}

struct Connection {
    /// None once it has ended.
    stream: Option<TcpStream>,
    /// Since when each outstanding request was due, the oldest first.
    due: VecDeque<u64>,
    /// Bytes of a reply that is not complete.
    got: usize,
    unsent: usize,
    /// The send buffer was full, and epoll waits until it is not.
    blocked: bool,
}

impl Engine {
    fn new(requests: &Requests, streams: Vec<TcpStream>, arrivals: Option<Arrivals>, threads: u32) -> io::Result<Self> {
        let count = streams.len() as u32;
        let most = requests.most.div_ceil(threads.max(1)) as usize;
        let open_loop = arrivals.is_some();
        let dispatch = Dispatch::new(count, requests.depth, most, arrivals);
        let epoll = Epoll::new()?;
        let mut connections = Vec::with_capacity(streams.len());
        for (token, stream) in (0..).zip(streams) {
            epoll.add(&stream, token, READABLE)?;
            let due = VecDeque::with_capacity(requests.depth as usize);
            connections.push(Connection { stream: Some(stream), due, got: 0, unsent: 0, blocked: false });
        }
        Ok(Self {
            epoll,
            connections,
            dispatch,
            dirty: Vec::with_capacity(count as usize),
            request: requests.request as usize,
            reply: requests.reply as usize,
            first: requests.apart.map_or(CHUNK, |bytes| bytes as usize),
            bytes: requests.bytes(),
            open_loop,
            space_since_ns: Some(0),
            buf: vec![0; CHUNK].into(),
        })
    }

    fn run(mut self, phase: &Phase) -> io::Result<Tally> {
        parshall_sys::child::set_timer_slack_ns(1);
        let mut tally = Tally::default();
        let mut events = Events::with_capacity(256);
        let all = self.connections.len() as u64;
        let mut now = phase.now_ns();
        while tally.lost < all && !phase.drained(now) {
            let over = phase.over(now);
            if !over {
                self.send_due(now, phase, &mut tally);
            } else if self.connections.iter().all(|connection| connection.due.is_empty()) {
                break;
            }
            let due = if over { None } else { self.dispatch.wait_ns(now) };
            self.epoll.wait(&mut events, due.map_or(CHECK, |ns| CHECK.min(Duration::from_nanos(ns))))?;
            for (token, _) in events.iter() {
                self.ready(token as u32, phase, &mut tally);
            }
            now = phase.now_ns();
        }
        for connection in &mut self.connections {
            connection.due.drain(..).for_each(|due| tally.no_reply(phase, due, now));
        }
        self.dispatch.unsent(phase.to_ns.min(now)).for_each(|due| tally.no_reply(phase, due, now));
        Ok(tally)
    }

    /// Sends all requests that are due and that a connection has space for; those of one connection with one call.
    fn send_due(&mut self, now: u64, phase: &Phase, tally: &mut Tally) {
        while let Some(due) = self.dispatch.next(now) {
            let connection = &mut self.connections[due.connection as usize];
            connection.due.push_back(due.due_ns);
            if connection.unsent == 0 {
                self.dirty.push(due.connection);
            }
            connection.unsent += self.request;
            if let Some(since) = self.space_since_ns.filter(|_| self.open_loop) {
                tally.sent(phase, due.due_ns.max(since), now);
            }
        }
        if self.dispatch.wait_ns(now).is_none() {
            self.space_since_ns = None;
        }
        while let Some(index) = self.dirty.pop() {
            self.flush(index, phase, tally);
        }
    }

    fn flush(&mut self, index: u32, phase: &Phase, tally: &mut Tally) {
        let connection = &mut self.connections[index as usize];
        let Some(stream) = &connection.stream else { return };
        let mut blocked = false;
        while connection.unsent > 0 {
            let most = if connection.unsent == self.request { self.first } else { CHUNK };
            match stream_io::send(stream.as_raw_fd(), &PAYLOAD[..connection.unsent.min(most)]) {
                Ok(sent) => connection.unsent -= sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    blocked = true;
                    break;
                }
                Err(_) => return self.lose(index, phase, tally),
            }
        }
        if blocked != connection.blocked {
            connection.blocked = blocked;
            let interest = if blocked { READABLE | WRITABLE } else { READABLE };
            self.epoll.modify(stream, u64::from(index), interest).ok();
        }
    }

    fn ready(&mut self, index: u32, phase: &Phase, tally: &mut Tally) {
        let connection = &mut self.connections[index as usize];
        let Some(stream) = &connection.stream else { return };
        match stream_io::recv(stream.as_raw_fd(), &mut self.buf) {
            Ok(n) if n > 0 => {
                let now = phase.now_ns();
                connection.got += n;
                let answered = (connection.got / self.reply).min(connection.due.len());
                connection.got -= answered * self.reply;
                for due in connection.due.drain(..answered) {
                    tally.reply(phase, due, now, self.bytes);
                    self.dispatch.answered(index);
                }
                self.space_since_ns.get_or_insert(now);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            _ => return self.lose(index, phase, tally),
        }
        if self.connections[index as usize].blocked {
            self.flush(index, phase, tally);
        }
    }

    /// The connection has ended: its requests have no reply.
    fn lose(&mut self, index: u32, phase: &Phase, tally: &mut Tally) {
        let connection = &mut self.connections[index as usize];
        if connection.stream.take().is_some() {
            let (now, outstanding) = (phase.now_ns(), connection.due.len());
            // Behind the end of the load a server may close.
            tally.lost += u64::from(!phase.over(now));
            connection.due.drain(..).for_each(|due| tally.no_reply(phase, due, now));
            connection.unsent = 0;
            self.dispatch.lost(index, outstanding);
        }
    }
}

/// A thread that opens a connection for each request. The server closes it behind the reply.
pub fn connect_each(
    requests: &Requests,
    target: SocketAddr,
    socket: &SocketArgs,
    (thread, threads): (u32, u32),
    phase: &Phase,
) -> anyhow::Result<Tally> {
    parshall_sys::child::set_timer_slack_ns(1);
    let mut dispatch = Dispatch::new(1, 1, 1, requests.arrivals(thread, threads));
    let mut first = requests.hello(false).encode().to_vec();
    first.resize(Hello::BYTES + requests.request as usize, b'q');
    let mut buf = vec![0; CHUNK];
    let mut tally = Tally::default();
    loop {
        let now = phase.now_ns();
        if phase.over(now) {
            break;
        }
        let Some(due) = dispatch.next(now) else {
            let wait = dispatch.wait_ns(now).map_or(CHECK, Duration::from_nanos);
            std::thread::sleep(wait.min(CHECK));
            continue;
        };
        tally.sent(phase, due.due_ns, now);
        let done = one_request(target, socket, &first, requests.reply as usize, &mut buf);
        let now = phase.now_ns();
        match done {
            Ok(()) => tally.reply(phase, due.due_ns, now, requests.bytes()),
            // Nothing of it can be resumed, and the next request has its own connection.
            Err(error) if tally.requests == 0 && tally.lost > 10 => return Err(error),
            Err(_) => {
                tally.lost += 1;
                tally.no_reply(phase, due.due_ns, now);
            }
        }
        dispatch.answered(due.connection);
    }
    let now = phase.now_ns();
    dispatch.unsent(phase.to_ns.min(now)).for_each(|due| tally.no_reply(phase, due, now));
    Ok(tally)
}

/// Connects, sends, and receives the reply and the end of the connection.
fn one_request(
    target: SocketAddr,
    socket: &SocketArgs,
    first: &[u8],
    reply: usize,
    buf: &mut [u8],
) -> anyhow::Result<()> {
    let mut stream = socket.connect_once(target)?;
    stream.write_all(first)?;
    let mut left = reply;
    while left > 0 {
        match stream.read(buf) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(n) => left = left.saturating_sub(n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    // A client that closed first would keep its port in TIME_WAIT for a minute.
    while stream.read(buf)? > 0 {}
    Ok(())
}
