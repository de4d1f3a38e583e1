//! Loads: small programs over real sockets that behave well or badly on purpose. All of them end after a bounded time.
//!
//! A load prints `ready ...` on stderr once it is ready, and one result on stdout at its end.
mod burn;
mod delay_line;
mod relay_copy;
mod row_lock;
mod rpc_client;
mod rpc_echo;
mod rpc_server;
mod socket;
mod stream;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parshall_core::units::{bit_rate, decimal, time_us};
use serde::{Deserialize, Serialize};

use super::terminal;
use super::units::{self, Format};

pub use delay_line::DEVICE as DELAY_DEVICE;

/// The format of a load's result.
pub const LOAD_SCHEMA: &str = "parshall.load/1";

/// `parshall lab load`
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    #[command(subcommand)]
    kind: Kind,
}

/// Names and descriptions for `lab list`.
pub const KINDS: [(&str, &str); 4] = [
    ("rpc-echo", "RPC echo: each request is a 40 B message and a 136 B message, written apart or together"),
    ("stream", "bulk transfer with slow readers, pausing writers, corks, buffer sizes; or request and reply"),
    ("relay-copy", "a naive TCP forwarder: read into a buffer, write it out, one thread per direction"),
    ("row-lock", "a database row under a lock, an application that updates it, and a client that holds it while idle"),
];

#[derive(Debug, clap::Subcommand)]
enum Kind {
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
    /// A database whose row is locked, an application server that updates it, and clients
    #[command(after_help = "Examples:
  parshall lab load row-lock --serve 127.0.0.1:5432
  parshall lab load row-lock --serve 127.0.0.1:8000 --ask 127.0.0.1:5432
  parshall lab load row-lock --connect 127.0.0.1:5432 --hold-ms 200
  parshall lab load row-lock --connect 127.0.0.1:8000 --clients 4")]
    RowLock(row_lock::Args),
    /// Delay (and loss) between two namespaces, in user space over TUN
    #[command(hide = true)]
    DelayLine(delay_line::Args),
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
        Kind::RpcEcho(args) => (&args.common, rpc_echo::run(args)?),
        Kind::Stream(args) => (&args.common, stream::run(args)?),
        Kind::RelayCopy(args) => (&args.common, relay_copy::run(args)?),
        Kind::RowLock(args) => (&args.common, row_lock::run(args)?),
        Kind::DelayLine(args) => (&args.common, delay_line::run(args)?),
    };
    match common.format {
        Format::Text => terminal::line(&outcome.line())?,
        Format::Json => terminal::line(&serde_json::to_string(&outcome)?)?,
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
    /// Starts now and ends after the time the user gave, or at SIGINT or SIGTERM.
    pub fn start(common: &Common) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
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

/// The result of a load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// [`LOAD_SCHEMA`].
    pub schema: String,
    /// Kind of load.
    pub kind: String,
    /// `serve`, `connect`, `both` or `relay`.
    pub role: String,
    /// Its process id.
    pub pid: u32,
    /// Its server's TCP port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// How long it ran.
    pub seconds: f64,
    /// Answered requests, or writes.
    pub requests: u64,
    /// The same per second.
    pub rate_per_s: f64,
    /// Bytes moved, both directions.
    pub bytes: u64,
    /// The same per second.
    pub bytes_per_s: f64,
    /// Connections that ended before the load did.
    pub errors: u64,
    /// From when a request was due until its reply was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// Percentiles in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Longest.
    pub max_us: f64,
}

impl Outcome {
    /// The result of a load that began with `clock` and ends now.
    pub fn new(kind: &str, role: &str, port: Option<u16>, clock: &Clock, requests: u64, bytes: u64) -> Self {
        let seconds = clock.begin.elapsed().as_secs_f64();
        Self {
            schema: LOAD_SCHEMA.into(),
            kind: kind.into(),
            role: role.into(),
            pid: std::process::id(),
            port,
            seconds,
            requests,
            rate_per_s: requests as f64 / seconds.max(1e-9),
            bytes,
            bytes_per_s: bytes as f64 / seconds.max(1e-9),
            errors: 0,
            latency: None,
        }
    }

    /// With the latencies of a histogram in nanoseconds, unless it is empty.
    pub fn with_latency(mut self, ns: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        self.latency = (!ns.is_empty()).then(|| Latency {
            p50_us: us(ns.value_at_quantile(0.5)),
            p99_us: us(ns.value_at_quantile(0.99)),
            max_us: us(ns.max()),
        });
        self
    }

    /// One line of text.
    pub fn line(&self) -> String {
        let mut line = format!(
            "{}  {}/s  {} in {:.2} s  {}",
            self.kind,
            decimal(self.rate_per_s),
            decimal(self.requests as f64),
            self.seconds,
            bit_rate(self.bytes_per_s),
        );
        if let Some(latency) = &self.latency {
            let [p50, p99, max] = [latency.p50_us, latency.p99_us, latency.max_us].map(time_us);
            line += &format!("  latency p50 {p50}, p99 {p99}, max {max}");
        }
        if self.errors > 0 {
            line += &format!("  {} connections lost", self.errors);
        }
        line
    }
}

/// A histogram of nanoseconds up to a minute with three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid")
}
