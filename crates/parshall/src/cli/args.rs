//! The flags, as clap sees them. Help texts live here; meaning is given in `config.rs`.
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use parshall_evidence::Rung;

use super::value;

/// Finds out why traffic on this host is slow, and proves it with evidence from the kernel.
#[derive(Debug, Parser)]
#[command(
    name = "parshall",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "Examples:
  parshall attach --port 7000    why is the service on port 7000 slow?
  parshall run -- ./echo_bench   diagnose a command from its start to its end
  parshall doctor                what this host allows
  parshall lab run nagle-stall   see a diagnosis of a known fault

Exit codes: 0 done, 1 it failed, 2 wrong usage."
)]
pub struct Cli {
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
  parshall attach --netns blue
  parshall attach --all --for 1m

Exit codes: 0 done (whatever the verdict), 1 it failed, 2 wrong usage.")]
    Attach(AttachArgs),
    /// Diagnose a command from its start to its end
    #[command(after_help = "Examples:
  parshall run -- ./echo_bench
  parshall run --save slow.json -- curl -s http://127.0.0.1:8080/report
  parshall run --for 30s -- ./server --port 7000
  parshall run --format json -o report.json --exit-code -- make integration-test

The command keeps its stdin, stdout and stderr. The report goes to stderr when the command has ended, or after --for.
Signals sent to parshall are passed on to the command; Ctrl-C twice within a second ends the observation alone.
Exit codes: 0 done (whatever the verdict and the command's own status), 1 it failed, 2 wrong usage; with --exit-code that of the command, unless parshall failed.")]
    Run(RunArgs),
    /// Show a saved case again, without root and on any machine
    #[command(after_help = "Examples:
  parshall show slow.json
  parshall show slow.json --format json
  parshall show slow.json -o report.txt

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Show(ShowArgs),
    /// Say what this host allows, and what is lost without the rest
    #[command(after_help = "Examples:
  parshall doctor
  parshall doctor --format json

Exit codes: 0 done (whatever was found), 1 it failed, 2 wrong usage.")]
    Doctor(DoctorArgs),
    /// Forward TCP and UDP
    #[command(after_help = "Examples:
  parshall relay 127.0.0.1:9000 10.0.0.2:9001
  parshall relay :80 10.0.0.2:8080 10.0.0.3:8080 --balance least-connections
  parshall relay --udp 127.0.0.1:53 10.0.0.2:53
  parshall relay unix:/run/app.sock 10.0.0.2:9001 --engine copy --buffer 256KiB
  parshall relay -c relay.toml
  parshall relay check relay.toml

Exit codes: 0 done, 1 it failed, 2 wrong usage or mistakes in the file.")]
    Relay(super::relay::RelayArgs),
    /// The state of every socket of every network namespace
    #[command(after_help = "Examples:
  parshall sockets once --state established --sort retrans --limit 20
  parshall sockets stream --every 5s --format json

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Sockets(super::sockets::SocketsArgs),
    /// Testbeds with known faults: see them diagnosed
    #[command(after_help = "Examples:
  parshall lab list
  parshall lab run nagle-stall

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Lab(crate::lab::LabArgs),
}

/// Arguments of `parshall attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    #[command(flatten)]
    pub(super) subject: SubjectArgs,
    /// With --pid: just this process, without its children
    #[arg(long)]
    pub(super) only: bool,
    /// How long to observe: 500ms, 5s, 1m (from 200ms to 1h)
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = value::window)]
    pub(super) window: Duration,
    #[command(flatten)]
    pub(super) observe: ObserveArgs,
    #[command(flatten)]
    pub(super) report: ReportArgs,
}

/// Whom to observe.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct SubjectArgs {
    /// A process, its threads and its children (and theirs); may be given several times
    #[arg(long, value_name = "PID", value_parser = value::pid)]
    pub(super) pid: Vec<u32>,
    /// Every local socket with this TCP port at either end, and the processes that hold them
    #[arg(long, value_name = "PORT", value_parser = value::port)]
    pub(super) port: Option<u16>,
    /// Every process of this control group and of those below it
    #[arg(long, value_name = "PATH", value_parser = value::cgroup)]
    pub(super) cgroup: Option<PathBuf>,
    /// Every process and socket of this network namespace, as `ip netns list` names it
    #[arg(long, value_name = "NAME", value_parser = value::netns)]
    pub(super) netns: Option<String>,
    /// Everything on the host
    #[arg(long)]
    pub(super) all: bool,
}

/// How to collect evidence; shared by `run` and `attach`.
#[derive(Debug, Args)]
pub struct ObserveArgs {
    /// Use no better rung of evidence than this one (`parshall doctor` says which the host offers)
    #[arg(long, value_name = "RUNG")]
    pub(super) rung: Option<RungArg>,
    /// Also write the evidence to FILE, which only you may read; `parshall show FILE` shows it again
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
}

/// How to print; shared by all commands that print a report.
#[derive(Debug, Args)]
pub struct PrintArgs {
    /// How to print the report
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(super) format: FormatArg,
    /// When to colour it
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(super) color: ColorArg,
}

/// Where a report goes; shared by `run`, `attach` and `show`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Write the report to FILE, which only you may read; - is stdout
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) print: PrintArgs,
}

/// Arguments of `parshall run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Stop observing after this time, even if the command still runs (from 200ms to 1h)
    #[arg(long = "for", value_name = "TIME", value_parser = value::window)]
    pub(super) window: Option<Duration>,
    #[command(flatten)]
    pub(super) observe: ObserveArgs,
    #[command(flatten)]
    pub(super) report: ReportArgs,
    /// Exit with the command's status: 128 + N if signal N killed it
    #[arg(long)]
    pub(super) exit_code: bool,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    pub(super) command: Vec<OsString>,
}

/// Arguments of `parshall show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The file that `--save` wrote
    #[arg(value_name = "CASE")]
    pub(super) case: PathBuf,
    #[command(flatten)]
    pub(super) report: ReportArgs,
}

/// Arguments of `parshall doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub(super) print: PrintArgs,
}

/// `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// For people
    Text,
    /// One JSON document
    Json,
}

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorArg {
    /// When stdout is a terminal and NO_COLOR is not set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// `--rung`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RungArg {
    /// Typed tracepoints and BPF iterators
    Btf,
    /// Classic tracepoints
    Tracepoint,
    /// SOCK_DIAG and /proc, sampled; no BPF
    Procfs,
}

impl From<RungArg> for Rung {
    fn from(rung: RungArg) -> Self {
        match rung {
            RungArg::Btf => Rung::Btf,
            RungArg::Tracepoint => Rung::Tracepoint,
            RungArg::Procfs => Rung::Procfs,
        }
    }
}
