//! `parshall lab`: testbeds, loads and faults with known causes. What is broken is data, in `cases/` and `faults/`.
#![forbid(unsafe_code)]
// Not a library for others: a comment stands where it says more than the name.
#![allow(missing_docs)]

mod case;
mod catalog;
mod cgroup;
mod list;
mod load;
mod process;
mod recipe;
mod run;
mod terminal;
mod testbed;
mod units;
mod wire;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A shell's exit status for a process that a signal has ended: this and the signal's number.
const KILLED: u8 = 128;

/// `parshall lab`
#[derive(Debug, clap::Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List cases, faults, controls and loads
    #[command(after_help = "Examples:
  parshall lab list
  parshall lab list --format json

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    List(list::ListArgs),
    /// Run a case, or check that a fault or control gets the right verdict
    #[command(after_help = "Examples:
  parshall lab run nagle-stall
  parshall lab run packet-loss slow-reader --for 3s
  parshall lab run faults --runs 5 --format json
  parshall lab run nagle-stall --save nagle.json

Exit codes: 0 every verdict was the right one, 1 one was not or it failed, 2 wrong usage, 130 interrupted.")]
    Run(run::RunArgs),
    /// Run a load over real sockets, for a bounded time
    #[command(after_help = "Examples:
  parshall lab load rpc-echo
  parshall lab load stream --for 30s

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Load(load::LoadArgs),
    /// Make two network namespaces with a wire between them, for a bounded time
    #[command(after_help = "Examples:
  parshall lab wire veth --for 5m
  parshall lab wire delay --delay-ms 20 --loss-percent 1

Exit codes: 0 done, also when interrupted, 1 it failed, 2 wrong usage.")]
    Wire(wire::WireArgs),
}

/// Runs a lab command.
pub fn run(args: &LabArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::List(args) => list::run(args).map(|()| ExitCode::SUCCESS),
        Command::Load(args) => load::run(args),
        Command::Run(args) => {
            let interrupt = Interrupt::register()?;
            match (run::run(args, &interrupt), interrupt.signal()) {
                // Loads that a Ctrl-C has ended too are no failure of theirs.
                (Err(_), Some(signal)) => Ok(ExitCode::from(KILLED + signal)),
                (result, _) => result.map(|right| if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
            }
        }
        Command::Wire(args) => {
            let interrupt = Interrupt::register()?;
            match wire::run(args, &interrupt) {
                Err(error) if interrupt.signal().is_none() => Err(error),
                _ => Ok(ExitCode::SUCCESS),
            }
        }
    }
}

/// Whether the user asked to stop (SIGINT, SIGTERM, SIGHUP). Everything that waits looks here, so that the guards of
/// testbeds are dropped in order.
#[derive(Debug, Clone)]
pub struct Interrupt {
    /// The signal, 0 until one has come.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Listens for the signals from now on.
    pub fn register() -> anyhow::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let arrived = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(signal, Arc::clone(&arrived), signal.unsigned_abs() as usize)?;
        }
        Ok(Self { signal: arrived })
    }

    /// The signal that has come, if one has.
    pub fn signal(&self) -> Option<u8> {
        u8::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }

    /// An error once it happened.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.signal().is_some() { Err(anyhow::anyhow!("interrupted")) } else { Ok(()) }
    }

    /// Sleeps, unless it happens.
    pub fn sleep(&self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }
}
