//! Loads: small programs over real sockets that behave well or badly on purpose. All of them end after a bounded time.
//!
//! A load prints `ready ...` on stderr once it is ready, and one result on stdout at its end.
mod burn;
mod generator;
mod outcome;
mod relay_copy;
mod row_lock;
mod rpc_client;
mod rpc_echo;
mod rpc_server;
mod sock_diag;
mod socket;
mod stream;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parshall_host::end_signals::end_signals;
use parshall_host::output;

use super::terminal;
use super::units::{self, Format};

pub use outcome::Outcome;

/// `parshall lab load`
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    #[command(subcommand)]
    kind: Kind,
}

/// Names and descriptions for `lab list`.
pub const KINDS: [(&str, &str); 15] = [
    ("upload", "bulk transfer from the client to the server"),
    ("download", "bulk transfer from the server to the client"),
    ("bidirectional", "bulk transfer in both directions of each connection at once"),
    ("request-response", "requests and replies on open connections, in a closed or open loop"),
    ("connect-request-response", "a connection for each request"),
    ("burst", "bursts of requests at regular intervals"),
    ("rpc", "requests that do not wait for earlier replies"),
    ("many-connections", "requests that visit many connections in turn"),
    ("mixed", "requests beside bulk transfers: latency under load"),
    ("udp-packets", "UDP packets in one direction"),
    ("rpc-echo", "RPC echo: each request is a 40 B message and a 136 B message, written apart or together"),
    ("stream", "bulk transfer with slow readers, pausing writers, corks, buffer sizes; or request and reply"),
    ("relay-copy", "a naive TCP forwarder: read into a buffer, write it out, one thread per direction"),
    ("sock-diag", "a collector that reads all TCP sockets again and again, by recv or by io_uring"),
    ("row-lock", "a database row under a lock, an application that updates it, and a client that holds it while idle"),
];

#[derive(Debug, clap::Subcommand)]
enum Kind {
    #[command(flatten)]
    Generator(generator::Kind),
    /// RPC echo: a 40-byte `finish` and a 136-byte `ping` per request, a 96-byte reply
    #[command(after_help = "Examples:
  parshall lab load rpc-echo
  parshall lab load rpc-echo --nodelay --clients 4 --for 30s
  parshall lab load rpc-echo --serve 127.0.0.1:7000 --for 1m
  parshall lab load rpc-echo --connect 127.0.0.1:7000")]
    RpcEcho(rpc_echo::Args),
    /// Bulk transfer, or request and reply, over TCP
    #[command(after_help = "Examples:
  parshall lab load stream
  parshall lab load stream --read-pause-ms 20 --for 30s
  parshall lab load stream --request-reply --write-bytes 100")]
    Stream(stream::Args),
    /// A naive TCP forwarder with a small copy buffer
    #[command(after_help = "Examples:
  parshall lab load relay-copy --listen 127.0.0.1:9000 --target 127.0.0.1:9001
  parshall lab load relay-copy --target 127.0.0.1:9001 --buffer 65536")]
    RelayCopy(relay_copy::Args),
    /// A collector that reads all TCP sockets of its namespace
    #[command(after_help = "Examples:
  parshall lab load sock-diag
  parshall lab load sock-diag --with io-uring --dumps 100")]
    SockDiag(sock_diag::Args),
    /// A database whose row is locked, an application server that updates it, and clients
    #[command(after_help = "Examples:
  parshall lab load row-lock --serve 127.0.0.1:5432
  parshall lab load row-lock --serve 127.0.0.1:8000 --ask 127.0.0.1:5432
  parshall lab load row-lock --connect 127.0.0.1:5432 --hold-ms 200
  parshall lab load row-lock --connect 127.0.0.1:8000 --clients 4")]
    RowLock(row_lock::Args),
}

/// The options of every load.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// End after this time
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    time: Duration,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Runs the load that the arguments select, until its time is over or a signal ends it.
pub fn run(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    let (common, outcome) = match &args.kind {
        Kind::Generator(kind) => (kind.common(), generator::run(&kind.load(), &Clock::start(kind.common())?)?),
        Kind::RpcEcho(args) => (&args.common, rpc_echo::run(args)?),
        Kind::Stream(args) => (&args.common, stream::run(args)?),
        Kind::RelayCopy(args) => (&args.common, relay_copy::run(args)?),
        Kind::SockDiag(args) => (&args.common, sock_diag::run(args)?),
        Kind::RowLock(args) => (&args.common, row_lock::run(args)?),
    };
    match common.format {
        Format::Text => terminal::line(&outcome.text())?,
        Format::Json => terminal::line(&output::json_line(&outcome)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// When a load has to end.
#[derive(Debug, Clone)]
pub struct Clock {
    begin: Instant,
    end: Instant,
    stop: Arc<AtomicBool>,
}

impl Clock {
    /// Starts now and ends after the time the user gave, or at SIGINT, SIGTERM or SIGHUP.
    pub fn start(common: &Common) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in end_signals() {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let begin = Instant::now();
        Ok(Self { begin, end: begin + common.time, stop })
    }

    pub fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || Instant::now() >= self.end
    }

    /// The same clock with a later end, for servers: they must not close before the clients have ended.
    pub fn late(&self) -> Self {
        Self { end: self.end + Duration::from_millis(500), ..self.clone() }
    }

    /// Waits until it is time to end, or `done` returns true.
    pub fn sleep_until_over(&self, done: impl Fn() -> bool) {
        while !self.over() && !done() {
            std::thread::sleep(Duration::from_millis(20).min(self.end.saturating_duration_since(Instant::now())));
        }
    }

    /// Whether a signal or an error has ended the load.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A clock that no signal stops.
    #[cfg(test)]
    pub fn for_test(time: Duration) -> Self {
        let begin = Instant::now();
        Self { begin, end: begin + time, stop: Arc::default() }
    }

    /// Ends the load early, for example because its only connection was closed.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Prints that the load is ready. Scripts and the lab wait for this line.
pub fn print_ready(kind: &str, role: &str, port: Option<u16>) {
    let port = port.map(|port| format!(" port={port}")).unwrap_or_default();
    eprintln!("ready {kind} role={role} pid={}{port}", std::process::id());
}
