//! Loads: small programs over real sockets. Those of `generator` behave well and measure; those of `faulty` are applications that behave
//! badly on purpose. All of them end after a bounded time.
//!
//! A load prints `ready ...` on stderr once it is ready, and one result on stdout at its end.
mod common;
mod faulty;
mod generator;
mod outcome;
mod sock_diag;
mod socket;

use std::process::ExitCode;

use clap::Args;
use parshall_host::output;

use super::terminal;
use super::units::Format;
use common::Clock;
pub use outcome::Outcome;

/// `parshall lab load`
#[derive(Debug, Args)]
pub struct LoadArgs {
    #[command(subcommand)]
    kind: Kind,
}

/// The kinds of loads with their descriptions, for `lab list`.
pub fn kinds() -> Vec<(String, String)> {
    let command = LoadArgs::augment_args(clap::Command::new("load"));
    let about = |kind: &clap::Command| kind.get_about().map(ToString::to_string).unwrap_or_default();
    command.get_subcommands().map(|kind| (kind.get_name().to_owned(), about(kind))).collect()
}

#[derive(Debug, clap::Subcommand)]
enum Kind {
    #[command(flatten)]
    Generator(generator::Kind),
    #[command(flatten)]
    Faulty(faulty::Kind),
    /// A collector that reads all TCP sockets of its namespace
    #[command(after_help = "Examples:
  parshall lab load sock-diag
  parshall lab load sock-diag --with io-uring --dumps 100")]
    SockDiag(sock_diag::Args),
}

/// Runs the load that the arguments select, until its time is over or a signal ends it.
pub fn run(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    let (common, outcome) = match &args.kind {
        Kind::Generator(kind) => (kind.common(), generator::run(&kind.load(), &Clock::start(kind.common())?)?),
        Kind::Faulty(kind) => (kind.common(), kind.run()?),
        Kind::SockDiag(args) => (&args.common, sock_diag::run(args)?),
    };
    match common.format {
        Format::Text => terminal::line(&outcome.text())?,
        Format::Json => terminal::line(&output::json_line(&outcome)?)?,
    }
    Ok(ExitCode::SUCCESS)
}
