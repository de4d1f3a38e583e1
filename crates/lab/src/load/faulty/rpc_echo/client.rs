//! The client end of `rpc-echo`: all connections on one epoll thread, each with one request at a time.
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::bail;
use parshall_core::load::Latencies;
use parshall_sys::epoll::{Epoll, Events, READABLE};

use super::super::super::common::Clock;
use super::args::{Args, FINISH, REPLY, REQUEST};

/// Connected clients.
pub struct Clients {
    epoll: Epoll,
    list: Vec<Client>,
    pace: Pace,
    together: bool,
}

struct Client {
    /// None once the connection has ended.
    stream: Option<TcpStream>,
    got: usize,
    /// When the request was due that has no reply yet.
    due: Option<Instant>,
}

/// The clients' totals.
pub struct Done {
    /// Requests answered.
    pub requests: u64,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Connections that ended early.
    pub lost: u64,
    /// Requests that were due and got no reply, not even in the second after the end.
    pub unanswered: u64,
    /// From when a request was due until its reply was complete, or until there was no hope for one.
    pub latencies: Latencies,
}

/// How long replies are waited for after the end.
const GRACE: Duration = Duration::from_secs(1);

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
            list.push(Client { stream: Some(stream), got: 0, due: None });
        }
        let pace = Pace::new(args.rate, list.len());
        Ok(Self { epoll, list, pace, together: args.together })
    }

    /// Sends requests until it is time to end.
    pub fn run(&mut self, clock: &Clock) -> anyhow::Result<Done> {
        let mut done = Done { requests: 0, bytes: 0, lost: 0, unanswered: 0, latencies: Latencies::default() };
        while !clock.over() {
            self.send_due(Instant::now(), &mut done);
            let answered = self.receive(self.pace.wait(), &mut done)?;
            done.requests += answered.len() as u64;
            done.bytes += answered.len() as u64 * (REQUEST + REPLY) as u64;
            for index in answered {
                if self.pace.interval.is_some() {
                    self.pace.idle.push_back(index);
                } else {
                    self.send(index, Instant::now(), &mut done);
                }
            }
            if done.lost as usize == self.list.len() {
                bail!("the server closed all {} connections", self.list.len());
            }
        }
        Ok(done)
    }

    /// Takes the replies to what was due until now. A server that stands still at the end has left out as many requests as at any
    /// other time: those without a reply count, too, with the time until then.
    pub fn settle(&mut self, done: &mut Done) -> anyhow::Result<()> {
        let (end, lost) = (Instant::now(), done.lost);
        loop {
            self.send_due(end, done);
            let left = GRACE.saturating_sub(end.elapsed());
            if left.is_zero() || !self.list.iter().any(|client| client.due.is_some() && client.stream.is_some()) {
                break;
            }
            let answered = self.receive(left.min(CHECK_CLOCK), done)?;
            self.pace.idle.extend(answered.iter().filter(|_| self.pace.interval.is_some()));
        }
        // After the end a connection may be closed.
        done.lost = lost;
        let waiting = self.list.iter_mut().filter_map(|client| client.due.take());
        for due in waiting.chain(std::iter::from_fn(|| self.pace.next_due(end))) {
            done.unanswered += 1;
            done.latencies.record(due.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    /// Reads what has come, and returns the connections that have their replies.
    fn receive(&mut self, wait: Duration, done: &mut Done) -> io::Result<Vec<usize>> {
        let mut events = Events::with_capacity(256);
        self.epoll.wait(&mut events, wait)?;
        let mut answered = Vec::new();
        for (token, _) in events.iter() {
            let index = token as usize;
            let client = &mut self.list[index];
            match client.receive() {
                Ok(true) => {
                    if let Some(due) = client.due.take() {
                        done.latencies.record(due.elapsed().as_nanos() as u64);
                        answered.push(index);
                    }
                }
                Ok(false) => {}
                Err(_) => self.lose(index, done),
            }
        }
        Ok(answered)
    }

    fn send_due(&mut self, now: Instant, done: &mut Done) {
        while let Some((index, due)) = self.pace.take(now) {
            self.send(index, due, done);
        }
    }

    fn send(&mut self, index: usize, due: Instant, done: &mut Done) {
        let together = self.together;
        let client = &mut self.list[index];
        client.due = Some(due);
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

    /// A connection on which a request is due by `now`, and since when.
    fn take(&mut self, now: Instant) -> Option<(usize, Instant)> {
        if self.interval.is_none() {
            return Some((self.idle.pop_front()?, now)); // The first request of each connection.
        }
        if self.idle.is_empty() {
            return None;
        }
        let due = self.next_due(now)?;
        Some((self.idle.pop_front()?, due))
    }

    /// Takes the next request of the schedule if it is due by `now`, and returns since when.
    fn next_due(&mut self, now: Instant) -> Option<Instant> {
        let due = self.next;
        self.next += self.interval.filter(|_| due <= now)?;
        Some(due)
    }

    fn wait(&self) -> Duration {
        match self.interval {
            Some(_) if !self.idle.is_empty() => self.next.saturating_duration_since(Instant::now()).min(CHECK_CLOCK),
            _ => CHECK_CLOCK,
        }
    }
}

const CHECK_CLOCK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// Runs clients for a time against a server that answers so many requests of each connection, and then no more.
    fn run(arguments: &[&str], answers: usize, time: Duration) -> (Done, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let target = listener.local_addr().expect("an address");
        // Its threads end with the process of the tests, or with the clients.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    for _ in 0..answers {
                        stream.read_exact(&mut [0; REQUEST]).and_then(|()| stream.write_all(&[0; REPLY])).ok();
                    }
                    stream.read_to_end(&mut Vec::new()).ok();
                });
            }
        });
        let args = Line::parse_from([&["rpc-echo", "--nodelay"], arguments].concat()).args;
        let clock = Clock::for_test(time);
        let mut clients = Clients::connect(&args, target, &clock).expect("a connection");
        let begun = Instant::now();
        let mut done = clients.run(&clock).expect("replies");
        clients.settle(&mut done).expect("no error");
        (done, begun.elapsed())
    }

    #[test]
    fn what_was_due_counts_although_the_server_stands_still() {
        let time = Duration::from_millis(800);
        let (done, _) = run(&["--rate", "500", "--clients", "4"], 3, time);
        assert_eq!(done.requests, 12);
        let due = done.latencies.count();
        assert_eq!(due, done.requests + done.unanswered);
        // The schedule does not depend on when this process had a CPU.
        assert!((390..=2000).contains(&due), "{due}");
        assert!(done.latencies.summary().expect("latencies").p50_us > 1e6 - 1.0, "the second after the end");
    }

    #[test]
    fn without_a_schedule_each_connection_waits_for_one() {
        let (done, _) = run(&["--clients", "4"], 3, Duration::from_millis(100));
        assert_eq!((done.requests, done.unanswered, done.latencies.count()), (12, 4, 16));
        let (done, took) = run(&["--clients", "2"], usize::MAX, Duration::from_millis(100));
        assert!(done.unanswered == 0 && done.requests > 0 && took < GRACE, "{} {took:?}", done.unanswered);
    }
}
