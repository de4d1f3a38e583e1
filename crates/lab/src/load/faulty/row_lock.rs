//! A database with one row: its connections lock the row for each update. Also an application server that sends it one request per
//! request of its own, clients, and a client that holds the lock while it is idle.
//!
//! A message is one byte: `u` updates the row, `b` begins a transaction that locks it, `c` commits. The reply is always `k`.
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use parshall_core::load::Latencies;

use super::super::common::{Clock, Common, print_ready};
use super::super::outcome::{Generated, Outcome};
use super::super::socket::SocketArgs;
use crate::units;

const KIND: &str = "row-lock";

/// `parshall lab load row-lock`
#[derive(Debug, Clone, clap::Args)]
#[group(id = "end", required = true)]
pub struct Args {
    /// Run the database on this address; with --ask, the application server
    #[arg(long, value_name = "ADDR", group = "end")]
    pub serve: Option<SocketAddr>,
    /// Send the database at this address one request for each request
    #[arg(long, value_name = "ADDR", requires = "serve")]
    pub ask: Option<SocketAddr>,
    /// Run the clients of the server at this address
    #[arg(long, value_name = "ADDR", group = "end")]
    pub connect: Option<SocketAddr>,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Run one client that locks the row for this long in each transaction, idle meanwhile
    #[arg(long, value_name = "MS", value_parser = units::milliseconds, requires = "connect")]
    pub hold_ms: Option<Duration>,
    /// Commit each transaction at once
    #[arg(long, requires = "hold_ms")]
    pub commit_at_once: bool,
    #[command(flatten)]
    pub socket: SocketArgs,
    #[command(flatten)]
    pub common: Common,
}

/// The row.
#[derive(Debug, Default)]
struct Row {
    held: Mutex<bool>,
    freed: Condvar,
}

impl Row {
    fn lock(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        while *held {
            held = self.freed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        *held = true;
    }

    fn unlock(&self) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.freed.notify_one();
    }
}

/// Runs the selected role until the time is over.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let clock = Clock::start(&args.common)?;
    match (args.serve, args.ask, args.connect) {
        (Some(address), None, _) => serve(args, address, &clock, database),
        (Some(address), Some(target), _) => {
            let own = (args.clone(), clock.clone());
            serve(args, address, &clock, move |client, _| application(client, target, &own.0, &own.1))
        }
        (None, _, Some(target)) => clients(args, target, &clock),
        (None, _, None) => unreachable!("clap asks for one end"),
    }
}

/// Serves each connection on its own thread.
fn serve(
    args: &Args,
    address: SocketAddr,
    clock: &Clock,
    connection: impl Fn(TcpStream, &Shared) + Clone + Send + 'static,
) -> anyhow::Result<Outcome> {
    let listener: TcpListener = args.socket.listen(address)?;
    let port = Some(listener.local_addr()?.port());
    let shared = Arc::new(Shared::default());
    let own = Arc::clone(&shared);
    std::thread::Builder::new().name("accept".into()).spawn(move || {
        for (n, client) in listener.incoming().flatten().enumerate() {
            let (connection, shared) = (connection.clone(), Arc::clone(&own));
            let started =
                std::thread::Builder::new().name(format!("session-{n}")).spawn(move || connection(client, &shared));
            if let Err(error) = started {
                tracing::warn!("row-lock: {error}");
            }
        }
    })?;
    print_ready(KIND, "serve", port);
    clock.late().sleep_until_over(|| false);
    let requests = shared.requests.load(Ordering::Relaxed);
    Ok(Outcome::new(KIND, "serve", port, clock, requests, 2 * requests))
}

/// The state that the connections of a server share.
#[derive(Debug, Default)]
struct Shared {
    row: Row,
    requests: AtomicU64,
}

fn database(mut client: TcpStream, shared: &Shared) {
    let mut message = [0];
    while client.read_exact(&mut message).is_ok() {
        match message[0] {
            b'b' => shared.row.lock(),
            b'c' => shared.row.unlock(),
            _ => {
                shared.row.lock();
                shared.row.unlock();
            }
        }
        shared.requests.fetch_add(1, Ordering::Relaxed);
        if client.write_all(b"k").is_err() {
            break;
        }
    }
}

fn application(mut client: TcpStream, target: SocketAddr, args: &Args, clock: &Clock) {
    let mut database = match args.socket.connect(target, clock) {
        Ok(socket) => TcpStream::from(socket),
        Err(error) => return tracing::warn!("row-lock: {error:#}"),
    };
    let mut message = [0];
    while client.read_exact(&mut message).is_ok() {
        if request(&mut database, message[0]).is_err() || client.write_all(b"k").is_err() {
            break;
        }
    }
}

/// Sends one request and reads its reply.
fn request(server: &mut TcpStream, message: u8) -> std::io::Result<()> {
    server.write_all(&[message])?;
    server.read_exact(&mut [0])
}

fn clients(args: &Args, target: SocketAddr, clock: &Clock) -> anyhow::Result<Outcome> {
    let count = if args.hold_ms.is_some() { 1 } else { args.clients };
    let connect = || Ok(TcpStream::from(args.socket.connect(target, clock)?));
    let streams: Vec<TcpStream> = (0..count).map(|_| connect()).collect::<anyhow::Result<_>>()?;
    print_ready(KIND, "connect", Some(target.port()));
    let threads: Vec<_> = streams
        .into_iter()
        .map(|stream| {
            let (args, clock) = (args.clone(), clock.clone());
            std::thread::spawn(move || client(stream, &args, &clock))
        })
        .collect();
    let mut all = Done::default();
    for thread in threads {
        match thread.join() {
            Ok(own) => {
                all.latencies.add(&own.latencies);
                (all.lost, all.unanswered) = (all.lost + own.lost, all.unanswered + own.unanswered);
            }
            Err(_) => all.lost += 1,
        }
    }
    let requests = all.latencies.count() - all.unanswered;
    let outcome = Outcome::new(KIND, "connect", Some(target.port()), clock, requests, 2 * requests);
    let unanswered = Some(all.unanswered).filter(|count| *count > 0);
    let generated = Generated { unanswered, ..Generated::default() };
    Ok(Outcome { errors: all.lost, generated, ..outcome.with_latency(&all.latencies) })
}

/// Counts of a client.
#[derive(Debug, Default)]
struct Done {
    /// Of all requests, those without a reply included.
    latencies: Latencies,
    unanswered: u64,
    /// 1 if the server closed the connection before the end, or did not answer for so long.
    lost: u64,
}

/// Sends requests until the time is over.
fn client(mut stream: TcpStream, args: &Args, clock: &Clock) -> Done {
    let mut done = Done::default();
    // The load must end even if the row is never unlocked.
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok();
    while !clock.over() {
        let begin = Instant::now();
        let asked = match args.hold_ms {
            Some(idle) => transaction(&mut stream, if args.commit_at_once { Duration::ZERO } else { idle }),
            None => request(&mut stream, b'u'),
        };
        done.latencies.record(begin.elapsed().as_nanos() as u64);
        if asked.is_err() {
            (done.unanswered, done.lost) = (1, u64::from(!clock.over()));
            break;
        }
        if let Some(idle) = args.hold_ms {
            std::thread::sleep(idle / 100);
        }
    }
    done
}

fn transaction(stream: &mut TcpStream, idle: Duration) -> std::io::Result<()> {
    request(stream, b'b')?;
    std::thread::sleep(idle);
    request(stream, b'c')
}
