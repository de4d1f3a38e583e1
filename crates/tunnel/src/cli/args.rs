//! The flags of `parshall tunnel`, as clap sees them.
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `parshall tunnel`.
#[derive(Debug, Args)]
pub struct TunnelArgs {
    #[command(subcommand)]
    pub(super) command: TunnelCommand,
}

#[derive(Debug, Subcommand)]
pub enum TunnelCommand {
    /// Set up an interface from a file of wg-quick and carry its packets, until Ctrl-C or SIGTERM
    #[command(after_help = "Examples:
  parshall tunnel up wg0.conf
  parshall tunnel up /etc/wireguard/office.conf --interface wg1

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Up(UpArgs),
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// The configuration; its name without .conf is that of the interface
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Another name for the interface
    #[arg(long, value_name = "NAME")]
    pub(super) interface: Option<String>,
    /// Lower the MSS of TCP connections to what the path to the peer takes, for hosts behind that block ICMP
    #[arg(long)]
    pub(super) clamp_mss: bool,
}
