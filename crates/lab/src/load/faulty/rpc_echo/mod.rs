//! The RPC echo benchmark: each request is a 40-byte `finish` (never answered) and a 136-byte `ping` (answered by 96
//! bytes). Written apart with Nagle's algorithm on, every request waits for a delayed ACK.
mod args;
mod server;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;

use super::super::common::{Clock, print_ready};
use super::super::generator::phase::{Phase, Tally};
use super::super::generator::requests;
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
    let (tally, seconds) = ask(args, target, &clock, || print_ready(KIND, role, Some(target.port())))?;
    let unanswered = Some(tally.unanswered).filter(|count| *count > 0 || args.rate.is_some());
    let generated = Generated { offered_per_s: args.rate, unanswered, ..Generated::default() };
    let outcome = Outcome::of_window(KIND, role, Some(target.port()), seconds, tally.requests, tally.bytes);
    Ok(Outcome { errors: tally.lost, generated, ..outcome.with_own_cpu().with_latency(&tally.latencies) })
}

/// Connects, calls `ready`, and sends requests until it is time to end. Returns the counts, and the seconds that they are of.
fn ask(args: &Args, target: SocketAddr, clock: &Clock, ready: impl FnOnce()) -> anyhow::Result<(Tally, f64)> {
    let connect = |_| args.socket.connect(target, clock).map(TcpStream::from);
    let streams = (0..args.clients).map(connect).collect::<anyhow::Result<Vec<_>>>()?;
    ready();
    let phase = Phase::begin(clock, Duration::ZERO, clock.left());
    let tally = requests::run(&args.requests(), streams, (0, 1), false, &phase)?;
    if tally.lost == u64::from(args.clients) {
        bail!("the server closed all {} connections", args.clients);
    }
    Ok((tally, phase.to_ns.min(phase.now_ns()) as f64 / 1e9))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use clap::Parser;

    use super::args::{REPLY, REQUEST};
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// Runs clients for a time against a server that stops answering after a number of requests on each connection. Returns the counts, and
    /// the seconds that they are of: what is left of the time when all are connected.
    fn run(arguments: &[&str], answers: usize, time: Duration) -> (Tally, f64) {
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
        ask(&args, target, &clock, || ()).expect("replies")
    }

    /// The same, for longer where the host is too busy for `requests_min`.
    fn run_for_requests(arguments: &[&str], answers: usize, requests_min: u64) -> Tally {
        let run_for = |seconds| run(arguments, answers, Duration::from_secs(seconds)).0;
        let done = run_for(1);
        if done.requests >= requests_min { done } else { run_for(30) }
    }

    #[test]
    fn what_was_due_counts_although_the_server_stands_still() {
        let (done, seconds) = run(&["--rate", "500", "--clients", "4"], 3, Duration::from_millis(800));
        assert_eq!(done.requests, 12);
        let due = done.latencies.count();
        assert_eq!(due, done.requests + done.unanswered);
        // The schedule does not depend on when this process had a CPU.
        let scheduled = 500.0 * seconds;
        assert!((due as f64 - scheduled).abs() <= 8.0, "{due} of {scheduled}: at most two more or less of each client");
        assert!(done.latencies.summary().expect("latencies").p50_us > 1e6 - 1.0, "the second after the end");
    }

    #[test]
    fn without_a_schedule_each_connection_waits_for_one() {
        let done = run_for_requests(&["--clients", "4"], 3, 12);
        assert_eq!((done.requests, done.unanswered, done.latencies.count()), (12, 4, 16));
        let done = run_for_requests(&["--clients", "2"], usize::MAX, 1);
        assert!(done.unanswered == 0 && done.requests > 0, "{} of {}", done.unanswered, done.requests);
    }
}
