//! `run`, `attach`, `show` and `doctor`: collect a capture, have it judged, print the report; say what the host allows.
#![forbid(unsafe_code)]
// Not a library for others: a comment stands where it says more than the name.
#![allow(missing_docs)]

pub mod background;
mod btf;
mod cells;
mod cgroup;
pub mod cli;
pub mod command;
pub mod doctor;
mod forward;
mod hardware;
mod host;
mod meter;
pub mod observe;
mod origin;
mod procfs;
mod records;
pub mod report;
pub mod request;
mod results;
pub mod subject;
mod syscall_name;
#[cfg(test)]
mod test_child;
mod tracepoint;

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use parshall_evidence::{CAPTURE_SCHEMA, Capture};

use background::Background;
use command::Started;
use results::Results;

use crate::request::{AttachRequest, RunRequest, ShowRequest};
use parshall_host::error::UserError;
use parshall_host::private_file::PrivateFile;

/// `parshall attach`.
pub fn attach(config: &AttachRequest) -> anyhow::Result<ExitCode> {
    let results = Results::open(&config.results)?;
    // Where CPU time is left over we take only that, from the search for the subject to the report.
    let mut background = Background::enter();
    let capture = observe::observe(&config.select, &config.observe, &mut background)?;
    results.write(&capture)?;
    Ok(ExitCode::SUCCESS)
}

/// `parshall run`.
pub fn run(config: &RunRequest) -> anyhow::Result<ExitCode> {
    command::find_program(&config.program)?;
    let results = Results::open(&config.results)?;
    let mut command = Started::start(&config.program, &config.arguments)?;
    let written = command.observe(&config.observe).and_then(|capture| results.write(&capture));
    // A command that has begun is the user's, and runs to its end whatever has become of the observation.
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
    results.write(&read_case(&config.case)?)?;
    Ok(ExitCode::SUCCESS)
}

/// A case file that is written once, at the end.
pub fn create_case(path: &Path) -> Result<PrivateFile, UserError> {
    PrivateFile::create(path, "--save")
}

/// Writes a capture as a case.
pub fn write_case(capture: &Capture, file: PrivateFile) -> anyhow::Result<()> {
    let json = serde_json::to_vec(capture).context("the capture as JSON")?;
    Ok(file.write(&json)?)
}

fn read_case(path: &Path) -> anyhow::Result<Capture> {
    let hint = "give a file that `parshall attach --save FILE` or `parshall run --save FILE` has written";
    let bytes = fs::read(path).map_err(|e| {
        let what = format!("{} could not be read: {e}", path.display());
        match e.kind() {
            io::ErrorKind::PermissionDenied => {
                let own =
                    format!("only its owner may read it: `sudo chown \"$USER\" {}` makes it yours", path.display());
                UserError::new(what, own)
            }
            _ => UserError::new(what, hint),
        }
    })?;
    #[derive(serde::Deserialize)]
    struct Head {
        schema: String,
    }
    let head: Head = serde_json::from_slice(&bytes)
        .map_err(|e| UserError::new(format!("{} is not a saved case: {e}", path.display()), hint))?;
    if head.schema != CAPTURE_SCHEMA {
        return Err(UserError::new(
            format!("{} has the format {:?}; this parshall reads {CAPTURE_SCHEMA:?}", path.display(), head.schema),
            "use the parshall version that wrote it, or observe again",
        )
        .into());
    }
    let capture = serde_json::from_slice(&bytes)
        .map_err(|e| UserError::new(format!("{} is damaged: {e}", path.display()), hint))?;
    Ok(capture)
}
