//! The flags of `parshall sockets`, as clap sees them.
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use parshall_core::networks::networks;
use parshall_core::values;

use crate::format::SocketFormat;
use crate::request::BackendChoice;
use crate::sink::prometheus::table::LISTEN;
use parshall_host::flags::{self, read};
use parshall_host::netns::Netns;

/// Arguments of `parshall sockets`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  parshall sockets once --state established --sort retrans --limit 20
  parshall sockets stream --every 5s --format json

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
pub struct SocketsArgs {
    #[command(subcommand)]
    pub(super) command: SocketsCommand,
}

#[derive(Debug, Subcommand)]
pub enum SocketsCommand {
    /// Print all sockets once, without those in TIME-WAIT, which no process has
    #[command(after_help = "Examples:
  parshall sockets once
  parshall sockets once --all                 those in TIME-WAIT too
  parshall sockets once --state established --sort retrans --limit 20
  parshall sockets once --process nginx state established
  parshall sockets once dst 10.0.0.0/8 dport = :443
  parshall sockets once '( sport = :ssh or dport = :ssh ) and not src 127.0.0.1'
  parshall sockets once --port 443 --netns blue --fields default,owner
  parshall sockets once --kind tcp,udp,unix --format parquet > sockets.parquet

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Once(OnceArgs),
    /// Read all sockets periodically
    #[command(after_help = "Examples:
  parshall sockets stream --every 5s --changed
  parshall sockets stream --every 1s --pid 4120 state connected
  parshall sockets stream --every 10s --format protobuf --to /var/lib/parshall
  parshall sockets stream --every 1s --count 60 -o minute.parquet
  parshall sockets stream --every 15s --prometheus 127.0.0.1:9474
  parshall sockets stream --every 15s -c sinks.toml

Exit codes: 0 done, 1 it failed or rows were lost, 2 wrong usage.")]
    Stream(StreamArgs),
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Which sockets")]
pub struct SelectArgs {
    /// Kinds: tcp, udp, mptcp, unix, all
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "tcp")]
    pub(super) kind: Vec<String>,
    /// States: established, listen, time-wait, ..., connected (all but listen and closed), all
    #[arg(long, value_name = "STATES", value_delimiter = ',')]
    pub(super) state: Vec<String>,
    /// Network namespaces, by name (`ip netns list`), inode or path; all is the default; may be given several times
    #[arg(long, value_name = "NAME|INODE|PATH|all", value_parser = flags::netns)]
    pub(super) netns: Vec<Netns>,
    /// Control groups (v2), exactly; may be given several times
    #[arg(long, value_name = "PATH", value_parser = flags::cgroup)]
    pub(super) cgroup: Vec<PathBuf>,
    /// A local or remote port; several with commas between them, or repeated
    #[arg(long, value_name = "PORT,...", value_parser = flags::ports)]
    pub(super) port: Vec<Ports>,
    /// A local port
    #[arg(long, value_name = "PORT", value_parser = flags::port)]
    pub(super) local_port: Vec<u16>,
    /// A remote port
    #[arg(long, value_name = "PORT", value_parser = flags::port)]
    pub(super) remote_port: Vec<u16>,
    /// A local or remote address or network, such as 10.0.0.0/8; may be given several times
    #[arg(long, value_name = "NETWORK", value_parser = read(networks))]
    pub(super) prefix: Vec<Networks>,
    /// A local address or network
    #[arg(long, value_name = "NETWORK", value_parser = read(networks))]
    pub(super) local_prefix: Vec<Networks>,
    /// A remote address or network
    #[arg(long, value_name = "NETWORK", value_parser = read(networks))]
    pub(super) remote_prefix: Vec<Networks>,
    /// Sockets that this process has open; several with commas or blanks between them, or repeated
    #[arg(long, value_name = "PID,...", value_parser = flags::pids)]
    pub(super) pid: Vec<Pids>,
    /// Sockets that processes with this command have open, such as nginx; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(super) process: Vec<String>,
    /// Groups of fields: default, all, or a list such as rtt,loss,traffic,owner; only these are read from the kernel
    #[arg(long, value_name = "GROUPS", value_delimiter = ',')]
    pub(super) fields: Vec<String>,
    /// A filter in the language of ss: state NAME, exclude NAME, src|dst ADDRESS[/LENGTH][:PORT], sport|dport OP :PORT, and, or, not, ( )
    #[arg(value_name = "FILTER")]
    pub(super) filter: Vec<String>,
}

/// The networks of one `--prefix`. An alias, because clap treats a `Vec` field as a repeated flag.
pub(super) type Networks = Vec<ipnet::IpNet>;
/// The ports of one `--port`.
pub(super) type Ports = Vec<u16>;
/// The process ids of one `--pid`.
pub(super) type Pids = Vec<u32>;

#[derive(Debug, Args)]
#[command(next_help_heading = "How they are read")]
pub struct ReadArgs {
    /// How the sockets are read; auto chooses the best that works here
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    pub(super) backend: BackendChoice,
    /// Threads that read netlink sockets
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) readers: u16,
}

/// Arguments of `parshall sockets once`.
#[derive(Debug, Args)]
pub struct OnceArgs {
    #[command(flatten)]
    pub(super) select: SelectArgs,
    /// Sockets in all states, as `ss -a`; without, and without --state or a filter by state, those in TIME-WAIT are left out
    #[arg(short, long, conflicts_with = "state", help_heading = "Which sockets")]
    pub(super) all: bool,
    #[command(flatten)]
    pub(super) read: ReadArgs,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(super) format: SocketFormat,
    /// Order of the table, largest first: a list such as retrans,wqueue
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    pub(super) sort: Vec<String>,
    /// At most this many sockets, after sorting
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<usize>,
    /// Print a second line with further fields of each socket
    #[arg(long)]
    pub(super) wide: bool,
}

/// Arguments of `parshall sockets stream`.
#[derive(Debug, Args)]
pub struct StreamArgs {
    #[command(flatten)]
    pub(super) select: SelectArgs,
    #[command(flatten)]
    pub(super) read: ReadArgs,
    /// Time from the beginning of one dump to that of the next, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = read(values::duration))]
    pub(super) every: Duration,
    /// End after this many dumps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    /// Only sockets that are new or have changed since the last dump
    #[arg(long)]
    pub(super) changed: bool,
    /// Leave out the traffic per second since the last dump
    #[arg(long)]
    pub(super) no_rates: bool,
    /// Leave out sockets that closed between two dumps
    #[arg(long)]
    pub(super) no_closes: bool,
    /// Write in this format: to stdout, or to the file of --output or the files of --to
    #[arg(long, value_name = "FORMAT")]
    pub(super) format: Option<SocketFormat>,
    /// Write to the sinks in this TOML file: files, Kafka, OTLP, Prometheus
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Write to this file instead of stdout; its name says the format, as .json, .pb, .pb.zst or .parquet, unless --format does
    #[arg(short, long, value_name = "FILE", conflicts_with = "to")]
    pub(super) output: Option<PathBuf>,
    /// Serve aggregates and the collector's own metrics and CPU profile over HTTP (127.0.0.1:9474 if no address is given)
    #[arg(long, visible_alias = "prometheus", value_name = "ADDRESS", num_args = 0..=1, default_missing_value = LISTEN)]
    pub(super) listen: Option<std::net::SocketAddr>,
    /// Write to rotating files in this directory instead of stdout
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) to: Option<PathBuf>,
    /// Begin a new file at this size
    #[arg(long, value_name = "SIZE", default_value = "128MiB", requires = "to", value_parser = read(values::size))]
    pub(super) rotate_size: u64,
    /// Begin a new file after this time
    #[arg(long, value_name = "TIME", default_value = "1h", requires = "to", value_parser = read(values::duration))]
    pub(super) rotate_every: Duration,
    /// Keep at most this much in the directory; the oldest files are removed first
    #[arg(long, value_name = "SIZE", default_value = "4GiB", requires = "to", value_parser = read(values::size))]
    pub(super) keep: u64,
}
