//! The commands, as clap sees them. Their flags are declared by the product that each belongs to.
use clap::{ArgAction, Parser, Subcommand};

use super::parts;

/// Finds out why traffic on this host is slow, and proves it with evidence from the kernel.
#[derive(Debug, Parser)]
#[command(
    name = "parshall",
    version = parts::version(),
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "Examples:
  parshall attach --port 7000       why is the service on port 7000 slow?
  parshall run -- ./echo_bench      diagnose a command from its start to its end
  parshall try nodelay --port 7000  measure with and without a change
  parshall doctor                   what this host allows
  parshall lab run nagle-stall      see a diagnosis of a known fault

-v logs more on stderr and -q less, each repeatable; PARSHALL_LOG=LEVEL or TARGET=LEVEL,... sets levels, from error, warn, info, debug to trace.

Exit codes: 0 done, 1 it failed, 2 wrong usage."
)]
pub struct Cli {
    /// Log more
    #[arg(short, long, global = true, hide = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Log less
    #[arg(short, long, global = true, hide = true, action = ArgAction::Count)]
    pub quiet: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Diagnose running processes, a port, a control group, a network namespace or the whole host
    #[command(after_help = "Examples:
  parshall attach --port 7000
  parshall attach --pid 4120 --for 10s     the process and its children
  parshall attach --pid 4120 --only        without its children
  parshall attach --pid 4120 --pid 4121 --format json
  parshall attach --cgroup /system.slice/nginx.service --save slow.json
  parshall attach --port 7000 -o report.txt
  parshall attach --port 80 --netns blue   the port in another network namespace
  parshall attach --netns blue
  parshall attach --all --for 1m

Exit codes: 0 done (whatever the verdict), 1 it failed, 2 wrong usage.")]
    Attach(parshall_diagnose::cli::AttachArgs),
    /// Diagnose a command from its start to its end
    #[command(after_help = "Examples:
  parshall run -- ./echo_bench
  parshall run --save slow.json -- curl -s http://127.0.0.1:8080/report
  parshall run --for 30s -- ./server --port 7000
  parshall run --format json -o report.json --exit-code -- make integration-test

The command keeps its stdin, stdout and stderr. The report goes to stderr when the command has ended, or after --for.
Signals sent to parshall are passed on to the command; Ctrl-C twice within a second ends the observation alone.
Exit codes: 0 done (whatever the verdict and the command's own status), 1 it failed, 2 wrong usage; with --exit-code that of the command, unless parshall failed.")]
    Run(parshall_diagnose::cli::RunArgs),
    /// Show a saved case again, without root and on any machine
    #[command(after_help = "Examples:
  parshall show slow.json
  parshall show slow.json --format json
  parshall show slow.json -o report.txt

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Show(parshall_diagnose::cli::ShowArgs),
    /// Make one change to a live service, measure whether it helps, and revert it
    #[command(after_help = format!("Changes:
{}
Examples:
  parshall try nodelay --port 7000
  parshall try congestion=bbr --pid 4120 --pairs 16 --window 5s
  parshall try quota=max --port 7000 --yes --format json

It says what it is about to change, asks, and measures in alternating windows. Everything is reverted at the end, also when parshall is interrupted or killed.
Exit codes: 0 done (whatever came of it), 1 it failed, 2 wrong usage.", parshall_diagnose::trial::change::help()))]
    Try(parshall_diagnose::cli::TryArgs),
    /// Say what this host allows, and what is lost without the rest
    #[command(after_help = "Examples:
  parshall doctor
  parshall doctor --format json

Exit codes: 0 done (whatever was found), 1 it failed, 2 wrong usage.")]
    Doctor(parshall_diagnose::cli::DoctorArgs),
    #[cfg(feature = "relay")]
    /// Forward TCP and UDP
    #[command(after_help = "Examples:
  parshall relay 127.0.0.1:9000 10.0.0.2:9001
  parshall relay :80 10.0.0.2:8080 10.0.0.3:8080 --balance least-connections
  parshall relay --udp 127.0.0.1:53 10.0.0.2:53
  parshall relay unix:/run/app.sock 10.0.0.2:9001 --engine copy --buffer 256KiB
  parshall relay -c relay.toml
  parshall relay check relay.toml

Exit codes: 0 done, 1 it failed, 2 wrong usage or errors in the file.")]
    Relay(parshall_relay::cli::RelayArgs),
    #[cfg(feature = "sockets")]
    /// The state of every socket of every network namespace
    #[command(after_help = "Examples:
  parshall sockets once --state established --sort retrans --limit 20
  parshall sockets stream --every 5s --format json

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Sockets(Box<parshall_sockets::cli::SocketsArgs>),
    #[cfg(feature = "tunnel")]
    /// Carry packets to WireGuard peers
    #[command(after_help = "Examples:
  parshall tunnel up wg0.conf

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Tunnel(parshall_tunnel::cli::TunnelArgs),
    #[cfg(feature = "lab")]
    /// Testbeds with known faults, loads, and experiments with commands of your own
    #[command(after_help = "Examples:
  parshall lab list
  parshall lab run nagle-stall
  parshall lab ab writes.toml

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Lab(parshall_lab::cli::LabArgs),
}
