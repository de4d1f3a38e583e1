//! The flags, as clap sees them. Help texts live here; meaning is given in `validate.rs`.
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use parshall_evidence::Rung;
use parshall_host::flags;
use parshall_host::netns::Netns;
use parshall_host::output::{ColorArg, PrintArgs};

use super::value;
use crate::log;
use crate::report::Format;
use crate::trial::change::Change;

/// Diagnose running processes, a port, a control group, a network namespace or the whole host
#[derive(Debug, Args)]
#[command(after_help = r#"Examples:
  parshall attach --port 7000
  parshall attach --pid 4120 --for 10s     the process and its children
  parshall attach --pid 4120 --only        without its children
  parshall attach --pid "$(pgrep -d, gunicorn)" --format json
  parshall attach --process nginx          all processes of that name
  parshall attach --port 80,443            what serves any of the ports
  parshall attach --cgroup /system.slice/nginx.service --save slow.json
  parshall attach --port 7000 -o report.txt
  parshall attach --port 7000 --event skb:kfree_skb --event page-faults
  parshall attach --port 7000 --log --html report.html
  parshall attach --port 80 --log /var/log/nginx/error.log --full
  parshall attach --port 7000 --html report.html --perfetto trace.pftrace
  parshall attach --port 80 --netns blue   the port in another network namespace
  parshall attach --netns blue
  parshall attach --all --for 1m

Exit codes: 0 done (whatever the verdict), 1 it failed, 2 wrong usage."#)]
pub struct AttachArgs {
    #[command(flatten)]
    pub(super) subject: SubjectArgs,
    /// With --pid or --process: just the processes, without their children
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

/// The process ids of one `--pid`. An alias, because clap takes a `Vec` field for a repeated flag.
pub(super) type Pids = Vec<u32>;
/// The ports of one `--port`.
pub(super) type Ports = Vec<u16>;

/// The subject.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SubjectArgs {
    /// A process, its threads and its children (and theirs); several with commas or blanks between them, or repeated
    #[arg(long, value_name = "PID,...", value_parser = flags::pids, conflicts_with_all = ["port", "cgroup", "netns", "all"])]
    pub(super) pid: Vec<Pids>,
    /// Every process of this name (`ps -e`) or of a program of this name, and their children; may be given several times
    #[arg(long, value_name = "NAME", value_parser = flags::process, conflicts_with_all = ["pid", "port", "cgroup", "netns", "all"])]
    pub(super) process: Vec<String>,
    /// Every socket of this network namespace with this TCP or UDP port at either end, and the processes that hold them; several with
    /// commas between them, or repeated
    #[arg(long, value_name = "PORT,...", value_parser = flags::ports, conflicts_with_all = ["cgroup", "all"])]
    pub(super) port: Vec<Ports>,
    /// Every process of this control group and of those below it
    #[arg(long, value_name = "PATH", value_parser = flags::cgroup, conflicts_with_all = ["netns", "all"])]
    pub(super) cgroup: Option<PathBuf>,
    /// Every process and socket of another network namespace, by name (`ip netns list`), inode or path; with --port that port there
    #[arg(long, value_name = "NAME|INODE|PATH|all", value_parser = flags::netns, conflicts_with = "all")]
    pub(super) netns: Option<Netns>,
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
    /// Also count an event of the kernel, on the whole host, by who calls it with which stack: a tracepoint (`skb:kfree_skb`, with the
    /// reason of each drop) or one of perf's software events (`page-faults`); may be given up to eight times. An event that is
    /// frequent slows the host down: the report says what it took
    #[arg(long, value_name = "NAME")]
    pub(super) event: Vec<String>,
    /// Also keep the lines that the service writes to its stdout and stderr, or to FILE: at most 200 bytes of each and 200 a second. They
    /// are content, which goes into the report and all its forms; without this option none is looked at. May be given several times
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = log::STREAMS)]
    pub(super) log: Vec<PathBuf>,
    /// Also name the functions that Python programs run (CPython 3.8 to 3.13), with file and line, in the place of those of their
    /// interpreter. They are read from the memory of the programs
    #[arg(long)]
    pub(super) interpreters: bool,
    #[command(flatten)]
    pub(super) peek: PeekArgs,
    /// Also write the evidence to FILE, which only you may read; `parshall show FILE` shows it again
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
}

/// The limits on looking at data; shared by `run`, `attach` and `try`.
#[derive(Debug, Args)]
pub struct PeekArgs {
    /// Do not look at the first 16 bytes of what sockets send and receive. They are compared in the kernel with the forms of messages of
    /// known protocols, and not kept; without, several requests at a time on one connection are told apart less often
    #[arg(long)]
    pub(super) no_peek: bool,
}

/// The destination of a report; shared by `run`, `attach` and `show`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Write the report to FILE, which only you may read; - is stdout
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) beside: BesideArgs,
    /// How to print the report
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(super) format: Format,
    /// When to colour it
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(super) color: ColorArg,
    /// Print all of it as text: the numbers, every cause that was ruled out or not tested, all of the time, all notes
    #[arg(long)]
    pub(super) full: bool,
    /// Replace addresses, paths and names of hosts, processes and control groups by pseudonyms, in all that is written
    #[arg(long)]
    pub(super) mask: bool,
}

/// Further forms of a report, each in a file that only the user may read.
#[derive(Debug, Clone, Args)]
pub struct BesideArgs {
    /// Also write the report as one web page to FILE, with a timeline of what was seen; nothing in it is fetched from elsewhere
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Also write a trace for https://ui.perfetto.dev to FILE: threads and who woke them, requests and sockets
    #[arg(long, value_name = "FILE")]
    pub(super) perfetto: Option<PathBuf>,
    /// Also write folded stacks to FILE: CPU samples, and microseconds off the CPU with the wakers' stacks above the sleepers'
    #[arg(long, value_name = "FILE")]
    pub(super) folded: Option<PathBuf>,
    /// Also write these stacks to FILE as flame graphs, in one SVG
    #[arg(long, value_name = "FILE")]
    pub(super) flamegraph: Option<PathBuf>,
    /// Also write the events to FILE as a list in the order of time, with the longest waits marked; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(super) summary: Option<PathBuf>,
}

/// Diagnose a command from its start to its end
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  parshall run -- ./echo_bench
  parshall run --save slow.json -- curl -s http://127.0.0.1:8080/report
  parshall run --for 30s -- ./server --port 7000
  parshall run --format json -o report.json --exit-code -- make integration-test

The command keeps its stdin, stdout and stderr. The report goes to stderr when the command has ended, or after --for.
Signals sent to parshall are passed on to the command; Ctrl-C twice within a second ends the observation alone.
Exit codes: 0 done (whatever the verdict and the command's own status), 1 it failed, 2 wrong usage; with --exit-code that of the command, unless parshall failed.")]
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

/// Show a saved case again, without root and on any machine
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  parshall show slow.json
  parshall show slow.json --format json
  parshall show slow.json --format markdown --full
  parshall show slow.json -o report.txt
  parshall show slow.json --html report.html
  parshall show slow.json --flamegraph flames.svg --summary -
  parshall show slow.json --mask --save public.case --html public.html

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
pub struct ShowArgs {
    /// The file that `--save` wrote
    #[arg(value_name = "CASE")]
    pub(super) case: PathBuf,
    /// Also write the case to FILE again, which only you may read; with --mask under pseudonyms
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
    #[command(flatten)]
    pub(super) report: ReportArgs,
}

/// Make one change to a live service, measure whether it helps, and revert it
#[derive(Debug, Args)]
#[command(after_help = format!("Changes:
{}
Examples:
  parshall try nodelay --port 7000
  parshall try congestion=bbr --pid 4120 --pairs 16 --window 5s
  parshall try quota=max --port 7000 --yes --format json

It says what it is about to change, asks, and measures in alternating windows. Everything is reverted at the end, also when parshall is interrupted or killed.
Exit codes: 0 done (whatever came of it), 1 it failed, 2 wrong usage.", crate::trial::change::help()))]
pub struct TryArgs {
    /// The change to make: one of those below
    #[arg(value_name = "CHANGE", value_parser = crate::trial::change::parse)]
    pub(super) change: Change,
    #[command(flatten)]
    pub(super) subject: TrySubjectArgs,
    #[command(flatten)]
    pub(super) within: TryNetnsArgs,
    /// How many pairs of windows to measure, with the change and without (from 3 to 100)
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(3..=100))]
    pub(super) pairs: u32,
    /// How long a window is: 500ms, 1s, 1m (from 200ms to 1h)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = value::window)]
    pub(super) window: Duration,
    #[command(flatten)]
    pub(super) peek: PeekArgs,
    /// Do not ask before the change is made
    #[arg(short, long)]
    pub(super) yes: bool,
    #[command(flatten)]
    pub(super) print: PrintArgs,
}

/// The service on which a change is tried.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TrySubjectArgs {
    /// A process, its threads and its children; several with commas or blanks between them, or repeated
    #[arg(long, value_name = "PID,...", value_parser = flags::pids)]
    pub(super) pid: Vec<Pids>,
    /// Every process of this name or of a program of this name, and their children; may be given several times
    #[arg(long, value_name = "NAME", value_parser = flags::process)]
    pub(super) process: Vec<String>,
    /// The service on this TCP port: its connections, at both ends if both are here, and the processes that serve it; several with commas
    /// between them, or repeated
    #[arg(long, value_name = "PORT,...", value_parser = flags::ports)]
    pub(super) port: Vec<Ports>,
}

/// In which network namespaces `parshall try --port` looks.
#[derive(Debug, Args)]
pub struct TryNetnsArgs {
    /// With --port: that port in another network namespace, by name (`ip netns list`), inode or path, or in all
    #[arg(long, value_name = "NAME|INODE|PATH|all", value_parser = flags::netns, requires = "port")]
    pub(super) netns: Option<Netns>,
}

/// Say what this host allows, and what is lost without the rest
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  parshall doctor
  parshall doctor --format json

Exit codes: 0 done (whatever was found), 1 it failed, 2 wrong usage.")]
pub struct DoctorArgs {
    /// Also write what a report of a bug in the probes needs: the findings, every program with the kernel's reason, the verifier's logs.
    /// No addresses, and nothing of processes
    #[arg(long, value_name = "FILE")]
    pub(super) bundle: Option<PathBuf>,
    #[command(flatten)]
    pub(super) print: PrintArgs,
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
