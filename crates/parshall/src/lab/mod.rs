//! `parshall lab`: testbeds, loads and faults with known causes. What is broken is data, in `cases/` and `faults/`.
mod case;
mod catalog;
mod cgroup;
mod list;
pub mod load;
mod process;
mod recipe;
mod run;
mod terminal;
mod testbed;
mod units;
mod wire;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// `parshall lab`
#[derive(Debug, clap::Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List cases, faults, controls and loads
    List(list::ListArgs),
    /// Run a case, or check that a fault or control gets the right verdict
    Run(run::RunArgs),
    /// Run a load over real sockets, for a bounded time
    Load(load::LoadArgs),
    /// Make two network namespaces with a wire between them, for a bounded time
    Wire(wire::WireArgs),
}

/// Runs a lab command.
pub fn run(args: &LabArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::List(args) => list::run(args).map(|()| ExitCode::SUCCESS),
        Command::Load(args) => load::run(args),
        Command::Run(args) => {
            let all_right = run::run(args, &Interrupt::register()?)?;
            Ok(if all_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Wire(args) => {
            let interrupt = Interrupt::register()?;
            match wire::run(args, &interrupt) {
                Err(error) if !interrupt.happened() => Err(error),
                _ => Ok(ExitCode::SUCCESS),
            }
        }
    }
}

/// Whether the user asked to stop (SIGINT, SIGTERM, SIGHUP). Everything that waits looks here, so that the guards of
/// testbeds are dropped in order.
#[derive(Debug, Clone)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens for the signals from now on.
    pub fn register() -> anyhow::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self { flag })
    }

    /// Whether it happened.
    pub fn happened(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// An error once it happened.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.happened() { Err(anyhow::anyhow!("interrupted")) } else { Ok(()) }
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
