//! The RPC echo benchmark: each request is a 40-byte `finish` (never answered) and a 136-byte `ping` (answered by 96
//! bytes). Written apart with Nagle's algorithm on, every request waits for a delayed ACK.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::outcome::Generated;
use super::socket::{Ends, SocketArgs};
use super::{Clock, Common, Outcome, print_ready, rpc_client, rpc_server};
use crate::units;

/// Bytes of the first message of a request, which has no answer.
pub const FINISH: usize = 40;
/// Bytes of the second message, which has one.
pub const PING: usize = 136;
/// Bytes of a request.
pub const REQUEST: usize = FINISH + PING;
/// Bytes of a reply.
pub const REPLY: usize = 96;
/// Bytes of the first write of a reply in two parts.
pub const REPLY_HEAD: usize = 16;

/// `parshall lab load rpc-echo`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub ends: Ends,
    #[command(flatten)]
    pub socket: SocketArgs,
    #[command(flatten)]
    pub common: Common,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=5000))]
    pub clients: u16,
    /// Write both messages of a request with one call
    #[arg(long)]
    pub together: bool,
    /// Requests per second over all connections (default: as fast as replies come)
    #[arg(long, value_name = "PER_SECOND")]
    pub rate: Option<f64>,
    /// The server sleeps this long before each reply, in a thread per connection
    #[arg(long, value_name = "MS", default_value = "0", value_parser = units::milliseconds)]
    pub think_ms: Duration,
    /// The server computes this long before each reply
    #[arg(long, value_name = "MS", default_value = "0", value_parser = units::milliseconds)]
    pub burn_ms: Duration,
    /// The server writes head and body of a reply apart
    #[arg(long)]
    pub reply_in_two: bool,
}

/// Runs the ends that the arguments select.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    const KIND: &str = "rpc-echo";
    let role = args.ends.role();
    let server = match args.ends.listen_address() {
        Some(address) => Some(rpc_server::Server::bind(args, address)?),
        None => None,
    };
    let target: SocketAddr = match (&server, args.ends.connect) {
        (_, Some(address)) => address,
        (Some(server), _) => server.address(),
        (None, None) => unreachable!("without --connect there is a server"),
    };
    // The calibration of --burn-ms is over: the time starts now.
    let clock = Clock::start(&args.common)?;
    let stats = Arc::new(rpc_server::Stats::default());
    let server = server.map(|server| server.start(clock.late(), Arc::clone(&stats))).transpose()?;
    let outcome = |requests, bytes| Outcome::new(KIND, role, Some(target.port()), &clock, requests, bytes);
    if role == "serve" {
        print_ready(KIND, role, Some(target.port()));
        clock.sleep_until_over(|| server.as_ref().is_some_and(std::thread::JoinHandle::is_finished));
        let (requests, bytes) = stats.read();
        return Ok(outcome(requests, bytes));
    }
    let mut clients = rpc_client::Clients::connect(args, target, &clock)?;
    print_ready(KIND, role, Some(target.port()));
    let mut done = clients.run(&clock)?;
    let outcome = outcome(done.requests, done.bytes);
    clients.settle(&mut done)?;
    let unanswered = Some(done.unanswered).filter(|count| *count > 0 || args.rate.is_some());
    let generated = Generated { offered_per_s: args.rate, unanswered, ..Generated::default() };
    Ok(Outcome { errors: done.lost, generated, ..outcome.with_latency(&done.latencies) })
}
