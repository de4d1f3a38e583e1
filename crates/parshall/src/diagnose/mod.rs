//! `run`, `attach` and `show`: collect a capture, have it judged, print the report.
mod btf;
pub mod cgroup;
pub mod command;
mod hardware;
mod host;
pub mod observe;
mod procfs;
pub mod subject;
mod syscall_name;
#[cfg(test)]
mod test_child;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use parshall_evidence::{CAPTURE_SCHEMA, Capture};

use crate::cli::{AttachConfig, Output, RunConfig, ShowConfig};
use crate::error::UserError;
use crate::report;

/// `parshall attach`.
pub fn attach(config: &AttachConfig) -> anyhow::Result<ExitCode> {
    let capture = observe::observe(&config.select, &config.observe)?;
    conclude(&capture, config.save.as_deref(), &config.output)
}

/// `parshall run`.
pub fn run(config: &RunConfig) -> anyhow::Result<ExitCode> {
    let (capture, mut child) = command::observe(config)?;
    let code = conclude(&capture, config.save.as_deref(), &config.output)?;
    // With --for the window may end before the command; it stays in the foreground like any other.
    child.wait().context("waiting for the command")?;
    Ok(code)
}

/// `parshall show`.
pub fn show(config: &ShowConfig) -> anyhow::Result<ExitCode> {
    let capture = read_case(&config.case)?;
    conclude(&capture, None, &config.output)
}

fn conclude(capture: &Capture, save: Option<&Path>, output: &Output) -> anyhow::Result<ExitCode> {
    if let Some(path) = save {
        write_case(capture, path)?;
    }
    report::emit(&parshall_core::judge(capture), output)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a capture as a case file.
pub fn write_case(capture: &Capture, path: &Path) -> anyhow::Result<()> {
    let json = serde_json::to_vec(capture).context("the capture as JSON")?;
    fs::write(path, json).map_err(|e| {
        UserError::new(
            format!("the capture could not be written to {}: {e}", path.display()),
            "give --save a path in a directory that exists and that you may write to",
        )
    })?;
    Ok(())
}

fn read_case(path: &Path) -> anyhow::Result<Capture> {
    let hint = "give a file that `parshall attach --save FILE` or `parshall run --save FILE` has written";
    let bytes =
        fs::read(path).map_err(|e| UserError::new(format!("{} could not be read: {e}", path.display()), hint))?;
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
