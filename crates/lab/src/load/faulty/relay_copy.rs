//! A naive TCP forwarder, as many are first written: a thread per direction that reads into a buffer and writes it out.
//! With a small buffer its throughput is bytes per pair of system calls times pairs per second.
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::common::{Clock, Common, print_ready};
use super::super::outcome::Outcome;
use super::super::socket::SocketArgs;

const KIND: &str = "relay-copy";

/// `parshall lab load relay-copy`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Where to forward to
    #[arg(long, value_name = "ADDR")]
    pub target: SocketAddr,
    /// Bytes of the copy buffer
    #[arg(long, value_name = "BYTES", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub buffer: u32,
    #[command(flatten)]
    pub socket: SocketArgs,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Default)]
struct Stats {
    copies: AtomicU64,
    bytes: AtomicU64,
}

/// Forwards until the time is over.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let clock = Clock::start(&args.common)?;
    let listener = args.socket.listen(args.listen)?;
    let port = Some(listener.local_addr()?.port());
    let stats = Arc::new(Stats::default());
    {
        let (args, clock, stats) = (args.clone(), clock.clone(), Arc::clone(&stats));
        std::thread::Builder::new().name("relay-accept".into()).spawn(move || {
            for client in listener.incoming().flatten() {
                if let Err(error) = forward(client, &args, &clock, &stats) {
                    tracing::warn!("relay-copy: {error:#}");
                }
            }
        })?;
    }
    print_ready(KIND, "relay", port);
    clock.sleep_until_over(|| false);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(Outcome::new(KIND, "relay", port, &clock, load(&stats.copies), load(&stats.bytes)))
}

fn forward(client: TcpStream, args: &Args, clock: &Clock, stats: &Arc<Stats>) -> anyhow::Result<()> {
    let target = TcpStream::from(args.socket.connect(args.target, clock)?);
    for (from, to) in [(client.try_clone()?, target.try_clone()?), (target, client)] {
        let (size, stats) = (args.buffer as usize, Arc::clone(stats));
        std::thread::Builder::new().name("relay-copy".into()).spawn(move || copy(from, to, size, &stats))?;
    }
    Ok(())
}

/// Copies one direction until its end, and passes the end on.
fn copy(mut from: TcpStream, mut to: TcpStream, size: usize, stats: &Stats) {
    let mut buf = vec![0u8; size];
    while let Ok(n @ 1..) = from.read(&mut buf) {
        if to.write_all(&buf[..n]).is_err() {
            break;
        }
        stats.copies.fetch_add(1, Ordering::Relaxed);
        stats.bytes.fetch_add(n as u64, Ordering::Relaxed);
    }
    to.shutdown(Shutdown::Write).ok();
    from.shutdown(Shutdown::Read).ok();
}
