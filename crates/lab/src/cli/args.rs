//! The flags of `parshall lab`. Those of a load are declared in the load's own file.
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use parshall_diagnose::cli::BesideArgs;
use parshall_evidence::Rung;

use crate::load::LoadArgs;
use crate::recipe::WireKind;
use crate::units::{self, Format, ReportFormat};

/// Testbeds with known faults, loads, and experiments with commands of your own
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  parshall lab list
  parshall lab run nagle-stall
  parshall lab ab writes.toml

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
pub struct LabArgs {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List cases, faults, controls and loads
    #[command(after_help = "Examples:
  parshall lab list
  parshall lab list --format json

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    List(ListArgs),
    /// Run a case, or check that a fault or control gets the right verdict
    #[command(after_help = "Examples:
  parshall lab run nagle-stall
  parshall lab run packet-loss slow-reader --for 3s
  parshall lab run faults --runs 5 --format json
  parshall lab run nagle-stall --save nagle.json --html nagle.html
  parshall lab run uring-tunnel --blocks 8

Exit codes: 0 every verdict was the right one, 1 one was not or it failed, 2 wrong usage, 130 interrupted.")]
    Run(RunArgs),
    /// Compare two variants of a command, with as many trials as the answer needs
    #[command(after_help = "Examples:
  parshall lab ab -- 'gzip -1 <big >/dev/null' 'gzip -6 <big >/dev/null'
  parshall lab ab buffer.toml --check
  parshall lab ab buffer.toml
  parshall lab ab buffer.toml --html buffer.html
  parshall lab ab buffer.toml --format markdown --pictures plots
  parshall lab ab buffer.toml --duet
  parshall lab ab buffer.toml --resume

Exit codes: 0 not worse, 1 it failed, 2 wrong usage, 3 B is worse, 4 no answer, 130 interrupted.")]
    Ab(AbArgs),
    /// Measure a command over the values of a variable: where it stops to gain, where it falls off
    #[command(after_help = "Examples:
  parshall lab sweep rcvbuf.toml --check
  parshall lab sweep rcvbuf.toml --passes 12 --pictures plots

Exit codes: 0 done, 1 it failed, 2 wrong usage, 4 no answer, 130 interrupted.")]
    Sweep(SweepArgs),
    /// Compare two runs of an experiment, on like hosts
    #[command(after_help = "Examples:
  parshall lab compare buffer.results.jsonl
  parshall lab compare main.results.jsonl branch.results.jsonl --format markdown

Exit codes: 0 not worse, 1 it failed, 2 wrong usage, 3 the later run is worse, 4 no answer.")]
    Compare(CompareArgs),
    /// Run a load over real sockets, for a bounded time
    #[command(after_help = "Examples:
  parshall lab load rpc-echo
  parshall lab load stream --for 30s

Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
    Load(LoadArgs),
    /// Make the network namespaces and links of a file, for a bounded time
    #[command(after_help = "Examples:
  parshall lab testbed router.toml --for 5m
  parshall lab testbed router.toml --show-as-shell > router.sh

Exit codes: 0 done, also when interrupted, 1 it failed, 2 wrong usage.")]
    Testbed(TestbedArgs),
    /// Make two network namespaces with a wire between them, for a bounded time
    #[command(after_help = "Examples:
  parshall lab wire veth --for 5m
  parshall lab wire delay --delay-ms 20 --loss-percent 1

Exit codes: 0 done, also when interrupted, 1 it failed, 2 wrong usage.")]
    Wire(WireArgs),
}

/// `parshall lab list`
#[derive(Debug, Clone, clap::Args)]
pub struct ListArgs {
    /// How the list is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// `parshall lab run`
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// Cases, faults or controls; or `faults`, `controls`, `cases` for all of them
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Length of the observation
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = parshall_diagnose::cli::window)]
    pub window: Duration,
    /// How often
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// How results are printed; json is one document per run, a line each
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Print all of a report as text, as `parshall attach --full` does
    #[arg(long)]
    pub full: bool,
    /// Save what was collected, as JSON; cases that compare save the results of each comparison in FILE-N
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    // Several runs get names and numbers in their file names. Cases that compare have a page only.
    #[command(flatten)]
    pub beside: BesideArgs,
    /// Replace addresses, paths and names of hosts, processes and control groups by pseudonyms, in all that is written
    #[arg(long)]
    pub mask: bool,
    /// The best rung of evidence to use (default: the best the host offers)
    #[arg(long, value_parser = rung())]
    pub rung: Option<Rung>,
    /// Blocks or passes at most in cases that compare (default: those of the case)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(8..=256))]
    pub blocks: Option<u32>,
    /// Start everything once for a moment, and measure and observe nothing
    #[arg(long, conflicts_with_all = ["save", "html", "perfetto", "folded", "flamegraph", "summary", "mask", "blocks", "runs"])]
    pub check: bool,
}

fn rung() -> impl TypedValueParser<Value = Rung> {
    const RUNGS: [Rung; 3] = [Rung::Btf, Rung::Tracepoint, Rung::Procfs];
    PossibleValuesParser::new(RUNGS.map(Rung::as_str)).map(|name: String| {
        let found = RUNGS.into_iter().find(|rung| rung.as_str() == name);
        found.expect("clap admits only these names")
    })
}

/// `parshall lab testbed`
#[derive(Debug, Clone, clap::Args)]
pub struct TestbedArgs {
    /// The testbed (docs/lab.md describes the file)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Check the file and make nothing
    #[arg(long)]
    pub check: bool,
    /// Print the commands that make the same with ip and tc, and make nothing
    #[arg(long, conflicts_with = "check")]
    pub show_as_shell: bool,
    /// Remove it after this time
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub time: Duration,
}

/// `parshall lab wire`
#[derive(Debug, Clone, clap::Args)]
pub struct WireArgs {
    /// The connection between the namespaces
    #[arg(value_enum, default_value_t = WireKind::Veth)]
    pub kind: WireKind,
    /// Packets lost on their way to the server (`delay`: both ways), in per cent
    #[arg(long, default_value_t = 0.0)]
    pub loss_percent: f64,
    /// Delay each way, with `delay`
    #[arg(long, default_value_t = 0.0)]
    pub delay_ms: f64,
    /// Remove it after this time
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub time: Duration,
}

/// Flags that `lab ab` and `lab sweep` share.
#[derive(Debug, Clone, clap::Args)]
pub struct ExperimentArgs {
    /// The experiment (docs/lab.md describes the file)
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Check the file and say what would be done
    #[arg(long, conflicts_with_all = ["resume", "pictures", "html"])]
    pub check: bool,
    /// Append results here (default: FILE with .results.jsonl; without a FILE they are not kept)
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Go on with the last run of the results, which was interrupted
    #[arg(long)]
    pub resume: bool,
    /// How the report is printed
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    /// Write SVG pictures into this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub pictures: Option<PathBuf>,
    /// Also write the report as a page for a browser, with the pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `parshall lab ab`
#[derive(Debug, Clone, clap::Args)]
pub struct AbArgs {
    #[command(flatten)]
    pub experiment: ExperimentArgs,
    /// Blocks at most, each a trial of A, of B and of A again (default: those of the file, or 32)
    #[arg(long, value_parser = clap::value_parser!(u32).range(8..=256), conflicts_with = "resume")]
    pub blocks: Option<u32>,
    /// Run B beside A at the same time, and A beside A as the control: what others do on the host slows both down alike
    #[arg(long, conflicts_with = "resume")]
    pub duet: bool,
    /// Instead of FILE: two command lines for `sh -c`, of which the time that they take is compared
    #[arg(value_name = "A B", last = true, conflicts_with_all = ["file", "resume"])]
    pub commands: Vec<String>,
}

/// `parshall lab sweep`
#[derive(Debug, Clone, clap::Args)]
pub struct SweepArgs {
    #[command(flatten)]
    pub experiment: ExperimentArgs,
    /// How often each value is measured (default: as in the file, or 8)
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..=1000), conflicts_with = "resume")]
    pub passes: Option<u32>,
}

/// `parshall lab compare`
#[derive(Debug, Clone, clap::Args)]
pub struct CompareArgs {
    /// Results of the earlier run; of both, if it is the only one
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,
    /// Results of the later run
    #[arg(value_name = "AFTER")]
    pub after: Option<PathBuf>,
    /// How the comparison is printed
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
}
