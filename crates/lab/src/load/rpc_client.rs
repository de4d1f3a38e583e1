//! The client end of `rpc-echo`: all connections on one epoll thread, each with one request at a time.
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::bail;
use parshall_core::load::Latencies;
use parshall_sys::epoll::{Epoll, Events, READABLE};

use super::Clock;
use super::rpc_echo::{Args, FINISH, REPLY, REQUEST};

/// Connected clients.
pub struct Clients {
    epoll: Epoll,
    list: Vec<Client>,
    together: bool,
}

struct Client {
    /// None once the connection has ended.
    stream: Option<TcpStream>,
    got: usize,
    due: Instant,
}

/// The clients' totals.
pub struct Done {
    /// Requests answered.
    pub requests: u64,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Connections that ended early.
    pub lost: u64,
    /// From when a request was due until its reply was complete.
    pub latencies: Latencies,
}

/// When requests are due: at once, or on a fixed schedule that does not slow down with the server.
struct Pace {
    interval: Option<Duration>,
    next: Instant,
    idle: VecDeque<usize>,
}

impl Clients {
    /// Opens all connections.
    pub fn connect(args: &Args, target: SocketAddr, clock: &Clock) -> anyhow::Result<Self> {
        let epoll = Epoll::new()?;
        let mut list = Vec::with_capacity(args.clients.into());
        for token in 0..u64::from(args.clients) {
            let stream = TcpStream::from(args.socket.connect(target, clock)?);
            stream.set_nonblocking(true)?;
            epoll.add(&stream, token, READABLE)?;
            list.push(Client { stream: Some(stream), got: 0, due: Instant::now() });
        }
        Ok(Self { epoll, list, together: args.together })
    }

    /// Sends requests until it is time to end.
    pub fn run(mut self, args: &Args, clock: &Clock) -> anyhow::Result<Done> {
        let mut done = Done { requests: 0, bytes: 0, lost: 0, latencies: Latencies::default() };
        let mut pace = Pace::new(args.rate, self.list.len());
        let mut events = Events::with_capacity(256);
        while !clock.over() {
            self.send_due(&mut pace, &mut done);
            self.epoll.wait(&mut events, pace.wait())?;
            for (token, _) in events.iter() {
                let index = token as usize;
                match self.list[index].receive() {
                    Ok(true) => {
                        let client = &mut self.list[index];
                        let now = Instant::now();
                        done.requests += 1;
                        done.bytes += (REQUEST + REPLY) as u64;
                        done.latencies.record(now.duration_since(client.due).as_nanos() as u64);
                        if pace.interval.is_some() {
                            pace.idle.push_back(index);
                        } else {
                            self.send(index, now, &mut done);
                        }
                    }
                    Ok(false) => {}
                    Err(_) => self.lose(index, &mut done),
                }
            }
            if done.lost as usize == self.list.len() {
                bail!("the server closed all {} connections", self.list.len());
            }
        }
        Ok(done)
    }

    fn send_due(&mut self, pace: &mut Pace, done: &mut Done) {
        while let Some((index, due)) = pace.take() {
            self.send(index, due, done);
        }
    }

    fn send(&mut self, index: usize, due: Instant, done: &mut Done) {
        let together = self.together;
        let client = &mut self.list[index];
        client.due = due;
        if client.send_request(together).is_err() {
            self.lose(index, done);
        }
    }

    fn lose(&mut self, index: usize, done: &mut Done) {
        if self.list[index].stream.take().is_some() {
            done.lost += 1;
        }
    }
}

impl Client {
    /// 176 bytes always fit in the send buffer of a connection with one request at a time.
    fn send_request(&mut self, together: bool) -> io::Result<()> {
        const MESSAGES: [u8; REQUEST] = [b'q'; REQUEST];
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let (finish, ping) = MESSAGES.split_at(FINISH);
        if together {
            let n = stream.write_vectored(&[IoSlice::new(finish), IoSlice::new(ping)])?;
            return stream.write_all(&MESSAGES[n..]);
        }
        stream.write_all(finish)?;
        stream.write_all(ping)
    }

    /// Reads the available bytes; true when a reply is complete.
    fn receive(&mut self) -> io::Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let mut buf = [0u8; REPLY];
        match stream.read(&mut buf[self.got..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.got += n;
                let complete = self.got == REPLY;
                if complete {
                    self.got = 0;
                }
                Ok(complete)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Pace {
    fn new(rate: Option<f64>, clients: usize) -> Self {
        let interval = rate.filter(|rate| *rate > 0.0).map(|rate| Duration::from_secs_f64(1.0 / rate.max(1e-3)));
        Self { interval, next: Instant::now(), idle: (0..clients).collect() }
    }

    /// A connection on which a request is due, and since when.
    fn take(&mut self) -> Option<(usize, Instant)> {
        let Some(interval) = self.interval else {
            return Some((self.idle.pop_front()?, Instant::now())); // The first request of each connection.
        };
        if self.idle.is_empty() || Instant::now() < self.next {
            return None;
        }
        let due = self.next;
        self.next += interval;
        Some((self.idle.pop_front()?, due))
    }

    fn wait(&self) -> Duration {
        const CHECK_CLOCK: Duration = Duration::from_millis(100);
        match self.interval {
            Some(_) if !self.idle.is_empty() => self.next.saturating_duration_since(Instant::now()).min(CHECK_CLOCK),
            _ => CHECK_CLOCK,
        }
    }
}
