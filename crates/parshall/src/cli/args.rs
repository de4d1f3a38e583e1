//! The commands, as clap sees them. Flags, help and examples are declared by the product that each belongs to.
use clap::{ArgAction, Parser, Subcommand};

use super::parts;

/// Finds out why traffic on this host is slow, and proves it with evidence from the kernel.
#[derive(Debug, Parser)]
#[command(
    name = "parshall",
    version = parts::version(),
    disable_help_subcommand = true,
    max_term_width = 100,
    help_template = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Commands:\n{subcommands}\n\nOptions:\n{options}{after-help}",
    before_help = "Examples:
  parshall attach --port 7000       why is the service on port 7000 slow?
  parshall run -- ./echo_bench      diagnose a command from its start to its end
  parshall try nodelay --port 7000  make one change, measure with it and without
  parshall show slow.json           show a case again that `--save` has kept
  parshall doctor                   what this host allows, and what is lost

`parshall COMMAND --help` shows the options of a command, with examples.",
    after_help = "-v logs more on stderr and -q less, each repeatable; PARSHALL_LOG=LEVEL or TARGET=LEVEL,... sets levels, from error, warn, info, debug to trace.

Exit codes: 0 done, 1 it failed, 2 wrong usage."
)]
pub struct Cli {
    /// Log more
    #[arg(short, long, global = true, hide = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Log less
    #[arg(short, long, global = true, hide = true, action = ArgAction::Count)]
    pub quiet: u8,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Attach(parshall_diagnose::cli::AttachArgs),
    Run(parshall_diagnose::cli::RunArgs),
    Show(parshall_diagnose::cli::ShowArgs),
    Try(parshall_diagnose::cli::TryArgs),
    Doctor(parshall_diagnose::cli::DoctorArgs),
    #[cfg(feature = "relay")]
    /// Forward TCP and UDP
    Relay(parshall_relay::cli::RelayArgs),
    #[cfg(feature = "sockets")]
    /// The state of every socket of every network namespace
    Sockets(Box<parshall_sockets::cli::SocketsArgs>),
    #[cfg(feature = "tunnel")]
    Tunnel(parshall_tunnel::cli::TunnelArgs),
    #[cfg(feature = "lab")]
    Lab(parshall_lab::cli::LabArgs),
}
