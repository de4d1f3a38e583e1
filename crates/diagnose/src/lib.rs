//! `run`, `attach`, `show`, `try` and `doctor`: collect a capture, have it judged, print the report; try a change; say what the
//! host allows.
#![forbid(unsafe_code)]
// Not a library for others: a comment stands where it says more than the name.
#![allow(missing_docs)]
// Tests read files of their own.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod around;
pub mod background;
mod btf;
pub mod case;
mod cells;
mod cgroup;
pub mod cli;
pub mod command;
mod counters;
pub mod doctor;
mod event;
mod follow;
mod forward;
mod further;
mod hardware;
mod host;
mod log;
mod meter;
mod mutex;
pub mod observe;
mod observed;
mod origin;
mod procfs;
mod records;
pub mod report;
pub mod request;
mod results;
mod seen;
pub mod subject;
mod syscall_name;
#[cfg(test)]
mod testkit;
mod timeline;
mod tracepoint;
pub mod trial;
mod uring;
mod waiting;
mod window;

use std::process::ExitCode;

use background::Background;
use command::Started;
use parshall_host::proc_fs;
use request::{AttachRequest, RunRequest, ShowRequest};
use results::Results;

/// `parshall attach`.
pub fn attach(config: &AttachRequest) -> anyhow::Result<ExitCode> {
    let results = Results::open(&config.results)?;
    // Where possible we use only idle CPU time, from the search for the subject to the report.
    let (capture, _background) = observe::observe(&config.select, &config.observe, Background::enter())?;
    results.write(capture)?;
    Ok(ExitCode::SUCCESS)
}

/// `parshall run`.
pub fn run(config: &RunRequest) -> anyhow::Result<ExitCode> {
    command::find_program(&config.program)?;
    proc_fs::needs_our_numbers("start the command by itself, and use `attach`")?;
    let results = Results::open(&config.results)?;
    let mut command = Started::start(&config.program, &config.arguments)?;
    let written = command.observe(&config.observe).and_then(|capture| results.write(capture));
    // A command that has begun runs to its end, even if the observation has failed.
    let status = if command.has_begun() { Some(command.wait()?) } else { None };
    written?;
    Ok(match status {
        Some(status) if config.exit_code => command::exit_code(status),
        _ => ExitCode::SUCCESS,
    })
}

/// `parshall show`.
pub fn show(config: &ShowRequest) -> anyhow::Result<ExitCode> {
    let results = Results::open(&config.results)?;
    results.write(case::read(&config.case)?)?;
    Ok(ExitCode::SUCCESS)
}
