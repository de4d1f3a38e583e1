//! The RPC echo benchmark: each request is a 40-byte `finish` (never answered) and a 136-byte `ping` (answered by 96
//! bytes). Written apart with Nagle's algorithm on, every request waits for a delayed ACK.
mod args;
mod client;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;

use super::super::common::{Clock, print_ready};
use super::super::outcome::{Generated, Outcome};
pub use args::Args;

/// Runs the ends that the arguments select.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    const KIND: &str = "rpc-echo";
    let role = args.ends.role();
    let server = match args.ends.listen_address() {
        Some(address) => Some(server::Server::bind(args, address)?),
        None => None,
    };
    let target: SocketAddr = match (&server, args.ends.connect) {
        (_, Some(address)) => address,
        (Some(server), _) => server.address(),
        (None, None) => unreachable!("without --connect there is a server"),
    };
    // The calibration of --burn-ms is over: the time starts now.
    let clock = Clock::start(&args.common)?;
    let stats = Arc::new(server::Stats::default());
    let server = server.map(|server| server.start(clock.late(), Arc::clone(&stats))).transpose()?;
    let outcome = |requests, bytes| Outcome::new(KIND, role, Some(target.port()), &clock, requests, bytes);
    if role == "serve" {
        print_ready(KIND, role, Some(target.port()));
        clock.sleep_until_over(|| server.as_ref().is_some_and(std::thread::JoinHandle::is_finished));
        let (requests, bytes) = stats.read();
        return Ok(outcome(requests, bytes));
    }
    let mut clients = client::Clients::connect(args, target, &clock)?;
    print_ready(KIND, role, Some(target.port()));
    let mut done = clients.run(&clock)?;
    let outcome = outcome(done.requests, done.bytes);
    clients.settle(&mut done)?;
    let unanswered = Some(done.unanswered).filter(|count| *count > 0 || args.rate.is_some());
    let generated = Generated { offered_per_s: args.rate, unanswered, ..Generated::default() };
    Ok(Outcome { errors: done.lost, generated, ..outcome.with_latency(&done.latencies) })
}
