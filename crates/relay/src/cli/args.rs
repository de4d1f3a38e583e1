//! The flags of `parshall relay`, as clap sees them. Values are read by the parsers of the configuration file, so that a
//! flag and a key mean the same.
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use ipnet::IpNet;
use parshall_core::networks::networks;
use parshall_core::relay::config::value::{self, BALANCES, ENGINES, PROXY_VERSIONS};
use parshall_core::relay::config::{Balance, EngineChoice, LogTo, ProxyVersion, address};
use parshall_core::values;

use parshall_host::flags::read;
use parshall_host::output::PrintArgs;

/// Arguments of `parshall relay`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RelayArgs {
    #[command(subcommand)]
    pub(super) command: Option<RelayCommand>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// What else can be done with a relay.
#[derive(Debug, Subcommand)]
pub enum RelayCommand {
    /// Say whether a configuration file is right, and what it would do
    #[command(after_help = "Examples:
  parshall relay check relay.toml
  parshall relay check /etc/rinetd.conf --format json

Exit codes: 0 no mistakes, 1 it cannot be read, 2 mistakes.")]
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

/// Arguments of a relay that is to run.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where to listen: 127.0.0.1:9000, `[::1]:9000`, :9000, 127.0.0.1:9000-9010, unix:/run/x.sock
    #[arg(value_name = "LISTEN")]
    pub(super) listen: Option<String>,
    /// Where the traffic goes; several share it
    #[arg(value_name = "TARGET")]
    pub(super) targets: Vec<String>,
    /// Read everything from FILE instead, in TOML or in rinetd's lines; again on SIGHUP
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["listen", "targets", "ForwardArgs", "ProcessArgs"])]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) forward: ForwardArgs,
    #[command(flatten)]
    pub(super) process: ProcessArgs,
}

/// How one listener forwards.
#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// Forward datagrams
    #[arg(long)]
    pub(super) udp: bool,
    /// What moves the bytes; auto copies first and splices what streams
    #[arg(long, value_name = "ENGINE", value_parser = one_of(&ENGINES))]
    pub(super) engine: Option<EngineChoice>,
    /// How far a copy buffer may grow, 1KiB to 16MiB [default: 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = read(value::buffer))]
    pub(super) buffer: Option<usize>,
    /// How a target is chosen
    #[arg(long, value_name = "HOW", value_parser = one_of(&BALANCES))]
    pub(super) balance: Option<Balance>,
    /// Admit only these addresses or networks, such as 10.0.0.0/8; may be given several times
    #[arg(long, value_name = "NETWORK", value_parser = read(networks))]
    pub(super) allow: Vec<Networks>,
    /// Refuse these addresses or networks, before any --allow; may be given several times
    #[arg(long, value_name = "NETWORK", value_parser = read(networks))]
    pub(super) deny: Vec<Networks>,
    /// Connections of one source address open at once
    #[arg(long, value_name = "N", value_parser = read(values::count))]
    pub(super) per_source: Option<u32>,
    /// New connections a second; with --udp, datagrams a second of one source address
    #[arg(long, value_name = "N", value_parser = read(values::rate))]
    pub(super) rate: Option<u32>,
    /// Bytes a second of each direction of each connection: 10MiB/s, 100Mbit/s
    #[arg(long, value_name = "RATE", value_parser = read(values::bandwidth))]
    pub(super) bandwidth: Option<u64>,
    /// How long the connection to a target may take [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = read(values::positive_duration))]
    pub(super) connect_timeout: Option<Duration>,
    /// How long a connection may be idle, or off [default: 1h; 60s with --udp]
    #[arg(long, value_name = "TIME", value_parser = read(values::duration_or_off).map(IdleTimeout))]
    pub(super) idle_timeout: Option<IdleTimeout>,
    /// Clients begin with a PROXY header (v1 or v2), and must; needs --proxy-from
    #[arg(long)]
    pub(super) proxy_in: bool,
    /// Believe PROXY headers of these addresses or networks, and refuse others; may be given several times
    #[arg(long, value_name = "NETWORK", value_parser = read(networks))]
    pub(super) proxy_from: Vec<Networks>,
    /// Begin with a PROXY header to targets
    #[arg(long, value_name = "VERSION", value_parser = one_of(&PROXY_VERSIONS[..2]).map(|v| v.unwrap_or(ProxyVersion::V2)))]
    pub(super) proxy_out: Option<ProxyVersion>,
    /// Connect to targets from the client's address (needs CAP_NET_ADMIN and routes)
    #[arg(long)]
    pub(super) transparent: bool,
    /// Connect to targets from this address of the host
    #[arg(long, value_name = "ADDRESS")]
    pub(super) source: Option<IpAddr>,
}

/// How the process runs.
#[derive(Debug, Args)]
pub struct ProcessArgs {
    /// Worker threads [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = read(value::threads))]
    pub(super) threads: Option<u16>,
    /// Connections open at once [default: as many as the limit on descriptors allows]
    #[arg(long, value_name = "N", value_parser = read(values::count))]
    pub(super) max_connections: Option<u32>,
    /// Serve Prometheus metrics here, at /metrics
    #[arg(long, value_name = "ADDRESS", value_parser = read(address::socket_address))]
    pub(super) metrics: Option<SocketAddr>,
    /// The socket that `parshall relay top` asks
    #[arg(long, value_name = "PATH", value_parser = read(value::control))]
    pub(super) control: Option<String>,
    /// Write a JSON line per closed connection to stdout or to a file
    #[arg(long, value_name = "stdout|PATH", value_parser = read(value::log))]
    pub(super) log: Option<LogTo>,
    /// Become this user (and group) once the listeners are open: nobody, nobody:nogroup
    #[arg(long, value_name = "USER", value_parser = read(value::user))]
    pub(super) user: Option<String>,
    /// How long connections may finish after a stop [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = read(values::duration))]
    pub(super) drain: Option<Duration>,
}

/// What one `--allow` names: `all` is two networks. A name of its own, for clap takes a list for several values.
pub(super) type Networks = Vec<IpNet>;

/// `--idle-timeout`; None is off.
#[derive(Debug, Clone, Copy)]
pub struct IdleTimeout(pub(super) Option<Duration>);

/// One of the names of the configuration file.
fn one_of<T: Copy + Send + Sync + 'static>(names: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names.iter().map(|(name, _)| *name)).map(move |text: String| {
        let found = names.iter().find(|(name, _)| *name == text);
        found.expect("clap admits only these names").1
    })
}
