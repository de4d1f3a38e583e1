//! The flags of `parshall tunnel`, as clap sees them.
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use parshall_host::output::PrintArgs;

use super::engine::EngineArgs;

/// Carry packets to WireGuard peers
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  parshall tunnel up wg0           /etc/wireguard/wg0.conf
  parshall tunnel show

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
pub struct TunnelArgs {
    #[command(subcommand)]
    pub(super) command: TunnelCommand,
}

#[derive(Debug, Subcommand)]
pub enum TunnelCommand {
    /// Set up an interface from a file of wg-quick and carry its packets, until Ctrl-C or SIGTERM
    #[command(after_help = "Examples:
  parshall tunnel up wg0                      /etc/wireguard/wg0.conf
  parshall tunnel up ./wg0.conf
  parshall tunnel up /etc/wireguard/office.conf --interface wg1 --daemon
  parshall tunnel up wg0.conf --listen 127.0.0.1:9586

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Up(UpArgs),
    /// Make an interface without a file, which `wg`, `ip` and wg-quick configure, until it is removed, Ctrl-C or SIGTERM
    #[command(after_help = "Examples:
  parshall tunnel run wg0 --daemon && wg setconf wg0 wg0.conf
  WG_QUICK_USERSPACE_IMPLEMENTATION=parshall-wireguard wg-quick up wg0

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Run(RunArgs),
    /// End a tunnel and undo all that it has set up
    #[command(after_help = "Examples:
  parshall tunnel down wg0

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Down(DownArgs),
    /// Show the tunnels that are up: peers, handshakes, traffic, batches, and what was dropped
    #[command(after_help = "Examples:
  parshall tunnel show
  parshall tunnel show wg0 --format json

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Show(ShowArgs),
    /// Started by `up` and `run`: moves packets.
    #[command(hide = true)]
    Work(WorkArgs),
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// The configuration; its name without .conf is that of the interface. A word without / and .conf is a name in /etc/wireguard
    #[arg(value_name = "FILE|NAME")]
    pub(super) file: PathBuf,
    /// Another name for the interface
    #[arg(long, value_name = "NAME")]
    pub(super) interface: Option<String>,
    /// Let packets leave by other interfaces when the tunnel has died, instead of dropping what is routed into it until `tunnel down`
    #[arg(long)]
    pub(super) fail_open: bool,
    #[command(flatten)]
    pub(super) process: ProcessArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The name of the interface
    #[arg(value_name = "NAME")]
    pub(super) interface: String,
    #[command(flatten)]
    pub(super) process: ProcessArgs,
}

/// How the processes of a tunnel run.
#[derive(Debug, Args)]
pub struct ProcessArgs {
    /// Go on in the background once the tunnel is up
    #[arg(long)]
    pub(super) daemon: bool,
    /// Replaces `--daemon` in the command line of the daemon.
    #[arg(long, hide = true, conflicts_with = "daemon")]
    pub(super) detached: bool,
    /// Where a daemon writes its log, instead of /run/parshall/tunnel/NAME.log
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics
    #[arg(long, visible_alias = "prometheus", value_name = "ADDRESS")]
    pub(super) listen: Option<SocketAddr>,
    /// The user that the process which moves packets becomes, instead of one that no other process runs as
    #[arg(long, value_name = "NAME")]
    pub(super) user: Option<String>,
}

#[derive(Debug, Args)]
pub struct DownArgs {
    /// The name of the interface
    #[arg(value_name = "NAME")]
    pub(super) interface: String,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The name of the interface; without one, all tunnels are shown
    #[arg(value_name = "NAME")]
    pub(super) interface: Option<String>,
    #[command(flatten)]
    pub(super) print: PrintArgs,
}

#[derive(Debug, Args)]
pub struct WorkArgs {
    pub(super) interface: String,
    #[arg(long)]
    pub(super) mtu: usize,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[arg(long, requires = "gid")]
    pub(super) uid: Option<u32>,
    #[arg(long, requires = "uid")]
    pub(super) gid: Option<u32>,
}
