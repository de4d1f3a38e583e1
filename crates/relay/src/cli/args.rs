//! The flags of `parshall relay` for clap. Flags that are also keys of a configuration file are made from the table of settings
//! ([`super::setting_flags`]), so that a flag and a key mean the same.
use std::path::PathBuf;

use clap::{Args, Subcommand};
use ipnet::IpNet;
use parshall_core::networks::networks;
use parshall_core::relay::config::{Global, Listener};

use super::setting_flags::{SettingFlags, Subject};
use parshall_host::flags::read;
use parshall_host::output::PrintArgs;

/// Arguments of `parshall relay`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  parshall relay 127.0.0.1:9000 10.0.0.2:9001
  parshall relay :80 10.0.0.2:8080 10.0.0.3:8080 --balance least-connections
  parshall relay --udp 127.0.0.1:53 10.0.0.2:53
  parshall relay unix:/run/app.sock 10.0.0.2:9001 --engine copy --buffer 256KiB
  parshall relay -c relay.toml
  parshall relay check relay.toml

Exit codes: 0 done, 1 it failed, 2 wrong usage or errors in the file.")]
pub struct RelayArgs {
    #[command(subcommand)]
    pub(super) command: Option<RelayCommand>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// The subcommands of `parshall relay`.
#[derive(Debug, Subcommand)]
pub enum RelayCommand {
    /// Report the errors of a configuration file, or what it would do
    #[command(after_help = "Examples:
  parshall relay check relay.toml
  parshall relay check /etc/rinetd.conf --format json

Exit codes: 0 no errors, 1 the file cannot be read, 2 errors.")]
    Check(CheckArgs),
    /// A live view of a running relay
    #[command(after_help = "Examples:
  parshall relay top
  parshall relay top --control /run/parshall/relay.sock

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Top(TopArgs),
}

/// Arguments of `parshall relay check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration, in TOML or in rinetd's lines
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    #[command(flatten)]
    pub(super) print: PrintArgs,
}

/// Arguments of `parshall relay top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The relay's control socket
    #[arg(long, value_name = "PATH")]
    pub(super) control: Option<PathBuf>,
    #[command(flatten)]
    pub(super) print: PrintArgs,
}

/// Arguments with which a relay runs.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where to listen: 127.0.0.1:9000, `[::1]:9000`, :9000, 127.0.0.1:9000-9010, unix:/run/x.sock
    #[arg(value_name = "LISTEN")]
    pub(super) listen: Option<String>,
    /// Where the traffic goes; several share it
    #[arg(value_name = "TARGET")]
    pub(super) targets: Vec<String>,
    /// Read everything from FILE instead, in TOML or in rinetd's lines; again on SIGHUP
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["listen", "targets", "ListenerArgs", Listener::GROUP, Global::GROUP])]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) listener: ListenerArgs,
    #[command(flatten)]
    pub(super) listener_settings: SettingFlags<Listener>,
    #[command(flatten)]
    pub(super) process_settings: SettingFlags<Global>,
}

/// Flags for the keys of a listener that are not in the table of settings.
#[derive(Debug, Args)]
pub struct ListenerArgs {
    /// Forward datagrams
    #[arg(long)]
    pub(super) udp: bool,
    /// Admit only these addresses or networks, such as 10.0.0.0/8; may be given several times
    #[arg(long, value_name = "NETWORK", value_parser = read(networks))]
    pub(super) allow: Vec<Networks>,
    /// Refuse these addresses or networks, before any --allow; may be given several times
    #[arg(long, value_name = "NETWORK", value_parser = read(networks))]
    pub(super) deny: Vec<Networks>,
}

/// The networks of one `--allow`: `all` is two. An alias, because clap treats a Vec as several values.
pub(super) type Networks = Vec<IpNet>;
