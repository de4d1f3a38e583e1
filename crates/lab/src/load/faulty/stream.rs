//! Bulk transfer with flags for slow readers, pausing writers, corks and fixed buffers; and requests and replies over the same
//! sockets.
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use parshall_core::load::Latencies;
use socket2::Socket;

use super::super::common::{Clock, Common, print_ready};
use super::super::generator::bulk::Receiver;
use super::super::outcome::Outcome;
use super::super::socket::{Ends, SocketArgs};
use crate::units;
use parshall_host::error::UserError;

const KIND: &str = "stream";
/// Bytes of a reply with `--request-reply`.
const REPLY: usize = 64;
/// `MSG_MORE` of the kernel's `linux/socket.h`: the same number on every architecture.
const MSG_MORE: i32 = 0x8000;

/// `parshall lab load stream`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub ends: Ends,
    #[command(flatten)]
    pub socket: SocketArgs,
    #[command(flatten)]
    pub common: Common,
    /// Connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub streams: u16,
    /// Bytes per write; with --request-reply also the size of a request, at both ends
    #[arg(long, value_name = "BYTES", default_value_t = 131_072, value_parser = buffer_size)]
    pub write_bytes: usize,
    /// Bytes per read
    #[arg(long, value_name = "BYTES", default_value_t = 131_072, value_parser = buffer_size)]
    pub read_bytes: usize,
    /// The sender sleeps this long after each write
    #[arg(long, value_name = "MS", default_value = "0", value_parser = units::milliseconds)]
    pub write_pause_ms: Duration,
    /// The receiver sleeps this long after each read
    #[arg(long, value_name = "MS", default_value = "0", value_parser = units::milliseconds)]
    pub read_pause_ms: Duration,
    /// The sender leaves TCP_CORK on
    #[arg(long)]
    pub cork: bool,
    /// The sender marks every write MSG_MORE
    #[arg(long)]
    pub msg_more: bool,
    /// The receiver throws data away in the kernel (MSG_TRUNC): the cheapest possible reader
    #[arg(long)]
    pub discard: bool,
    /// Wait for a 64-byte reply after each write
    #[arg(long)]
    pub request_reply: bool,
    /// With --request-reply, at both ends: do not wait for replies; one reply answers all that one read returned
    #[arg(long, requires = "request_reply")]
    pub pipeline: bool,
}

fn buffer_size(text: &str) -> Result<usize, UserError> {
    match text.parse() {
        Ok(bytes @ 1..=16_777_216) => Ok(bytes),
        _ => Err(UserError::new(format!("`{text}` is not a number of bytes"), "write a number from 1 to 16777216")),
    }
}

#[derive(Debug)]
struct Stats {
    operations: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    senders: AtomicUsize,
    latencies: Mutex<Latencies>,
    /// When each sender began what it has not done yet.
    pending: Mutex<Vec<Option<Instant>>>,
    /// No more is begun.
    over: AtomicBool,
}

impl Stats {
    fn new(senders: usize) -> Self {
        Self {
            operations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            senders: AtomicUsize::new(senders),
            latencies: Mutex::default(),
            pending: Mutex::new(vec![None; senders]),
            over: AtomicBool::new(false),
        }
    }

    fn set_pending(&self, sender: usize, since: Option<Instant>) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)[sender] = since;
    }

    /// Waits a second at most for requests under way. Those not done then count with the time until then; returns how many those
    /// are.
    fn settle(&self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        let end = Instant::now();
        let pending = || self.pending.lock().unwrap_or_else(PoisonError::into_inner).clone();
        while end.elapsed() < Duration::from_secs(1) && pending().iter().any(Option::is_some) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left: Vec<Instant> = pending().into_iter().flatten().collect();
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        left.iter().for_each(|since| latencies.record(since.elapsed().as_nanos() as u64));
        left.len() as u64
    }
}

/// Runs the ends that the arguments select.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let role = args.ends.role();
    let clock = Clock::start(&args.common)?;
    let stats = || Arc::new(Stats::new(usize::from(args.streams)));
    let (received, sent) = (stats(), stats());
    let mut target: Option<SocketAddr> = args.ends.connect;
    if let Some(address) = args.ends.listen_address() {
        let listener = args.socket.listen(address)?;
        target = Some(listener.local_addr()?);
        let (args, stats) = (args.clone(), Arc::clone(&received));
        std::thread::Builder::new().name("stream-accept".into()).spawn(move || accept(&listener, &args, &stats))?;
    }
    let target = target.unwrap_or_else(|| unreachable!("there is --connect, or a listener"));
    if role != "serve" {
        for sender in 0..usize::from(args.streams) {
            let socket = args.socket.connect(target, &clock)?;
            socket.set_tcp_cork(args.cork)?;
            let (args, stats) = (args.clone(), Arc::clone(&sent));
            std::thread::Builder::new().name("stream-send".into()).spawn(move || {
                if send(&socket, &args, sender, &stats).is_err() {
                    stats.lost.fetch_add(1, Ordering::Relaxed);
                }
                stats.senders.fetch_sub(1, Ordering::Relaxed);
            })?;
        }
    }
    print_ready(KIND, role, Some(target.port()));
    // The threads block in system calls; they end with the process, right after the result is printed.
    clock.sleep_until_over(|| sent.senders.load(Ordering::Relaxed) == 0);
    let stats = if role == "serve" { received } else { sent };
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut outcome =
        Outcome::new(KIND, role, Some(target.port()), &clock, load(&stats.operations), load(&stats.bytes));
    outcome.generated.unanswered = Some(stats.settle()).filter(|count| *count > 0 && args.request_reply);
    outcome.errors = load(&stats.lost);
    Ok(outcome.with_latency(&stats.latencies.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn send(socket: &Socket, args: &Args, sender: usize, stats: &Stats) -> io::Result<()> {
    let buf = vec![b's'; args.write_bytes];
    let flags = if args.msg_more { MSG_MORE } else { 0 };
    let mut reply = [0u8; REPLY];
    let mut reader: &Socket = socket;
    if args.pipeline {
        let mut replies = socket.try_clone()?;
        std::thread::Builder::new()
            .name("stream-replies".into())
            .spawn(move || while replies.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {})?;
    }
    while !stats.over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        stats.set_pending(sender, Some(begin));
        let mut rest = &buf[..];
        while !rest.is_empty() {
            let n = socket.send_with_flags(rest, flags)?;
            stats.bytes.fetch_add(n as u64, Ordering::Relaxed);
            rest = &rest[n..];
        }
        if args.request_reply && !args.pipeline {
            reader.read_exact(&mut reply)?;
            stats.bytes.fetch_add(REPLY as u64, Ordering::Relaxed);
        }
        stats.operations.fetch_add(1, Ordering::Relaxed);
        let ns = begin.elapsed().as_nanos() as u64;
        stats.latencies.lock().unwrap_or_else(PoisonError::into_inner).record(ns);
        stats.set_pending(sender, None);
        if !args.write_pause_ms.is_zero() {
            std::thread::sleep(args.write_pause_ms);
        }
    }
    Ok(())
}

fn accept(listener: &TcpListener, args: &Args, stats: &Arc<Stats>) {
    for socket in listener.incoming().flatten() {
        let (args, stats) = (args.clone(), Arc::clone(stats));
        let receiver = std::thread::Builder::new().name("stream-recv".into());
        // A receiver ends when its connection does; the error is ignored.
        receiver.spawn(move || receive(&socket, &args, &stats).ok()).ok();
    }
}

fn receive(mut socket: &std::net::TcpStream, args: &Args, stats: &Stats) -> io::Result<()> {
    let mut receiver = Receiver::new(args.read_bytes, args.discard);
    let mut got = 0;
    loop {
        let n = receiver.receive(socket)?;
        if n == 0 {
            return Ok(());
        }
        stats.operations.fetch_add(1, Ordering::Relaxed);
        stats.bytes.fetch_add(n as u64, Ordering::Relaxed);
        got += n;
        while args.request_reply && got >= args.write_bytes {
            got = if args.pipeline { 0 } else { got - args.write_bytes };
            socket.write_all(&[b'r'; REPLY])?;
        }
        if !args.read_pause_ms.is_zero() {
            std::thread::sleep(args.read_pause_ms);
        }
    }
}
