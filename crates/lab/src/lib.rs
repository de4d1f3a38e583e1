//! `parshall lab`: testbeds, loads and faults with known causes. The faults are data, in `cases/` and `faults/`.
#![forbid(unsafe_code)]
// Not a library for others: a comment is written only where it says more than the name.
#![allow(missing_docs)]

mod case;
mod catalog;
mod cgroup;
pub mod cli;
mod experiment;
mod interrupt;
mod kept;
mod list;
mod load;
mod observe;
mod process;
mod recipe;
pub mod request;
mod run;
mod study;
mod terminal;
mod testbed;
mod units;
mod wire;

use std::process::ExitCode;

use interrupt::Interrupt;
use request::LabRequest;

/// A shell's exit status for a process that a signal killed: this plus the number of the signal.
const KILLED: u8 = 128;

pub fn run(request: &LabRequest) -> anyhow::Result<ExitCode> {
    match request {
        LabRequest::List(request) => list::run(request.format).map(|()| ExitCode::SUCCESS),
        LabRequest::Load(args) => load::run(args),
        LabRequest::Run(request) => {
            let interrupt = Interrupt::register()?;
            match (run::run(request, &interrupt), interrupt.signal()) {
                // A Ctrl-C ends the loads too; that is not a failure.
                (Err(_), Some(signal)) => Ok(ExitCode::from(KILLED + signal)),
                (result, _) => result.map(|right| if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
            }
        }
        LabRequest::Ab(request) => run_experiment(experiment::Kind::Ab, request),
        LabRequest::Sweep(request) => run_experiment(experiment::Kind::Sweep, request),
        LabRequest::Compare(request) => experiment::compare(request),
        LabRequest::Testbed(request) => until_interrupted(|interrupt| testbed::run(request, interrupt)),
        LabRequest::Wire(request) => until_interrupted(|interrupt| wire::run(request, interrupt)),
    }
}

/// Runs what a signal ends as well as its time does.
fn until_interrupted(run: impl FnOnce(&Interrupt) -> anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::register()?;
    match run(&interrupt) {
        Err(error) if interrupt.signal().is_none() => Err(error),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn run_experiment(kind: experiment::Kind, request: &request::ExperimentRequest) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::register()?;
    match (experiment::experiment(kind, request, &interrupt), interrupt.signal()) {
        (Err(_), Some(signal)) => Ok(ExitCode::from(KILLED + signal)),
        (result, _) => result,
    }
}
