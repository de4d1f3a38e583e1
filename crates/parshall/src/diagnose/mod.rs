//! `run`, `attach` and `show`: collect a capture, have it judged, print the report.
mod asker;
mod background;
mod btf;
mod cells;
pub mod cgroup;
pub mod command;
mod hardware;
mod host;
mod meter;
pub mod observe;
mod origin;
mod procfs;
mod records;
pub mod subject;
mod symbolize;
pub use symbolize::Stacks;
mod syscall_name;
#[cfg(test)]
mod test_child;
mod tracepoint;

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
    check_save(config.save.as_deref())?;
    let capture = observe::observe(&config.select, &config.observe)?;
    conclude(&capture, config.save.as_deref(), &config.output)
}

/// `parshall run`.
pub fn run(config: &RunConfig) -> anyhow::Result<ExitCode> {
    check_save(config.save.as_deref())?;
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
    // The report first: a full disk must not cost the observation.
    report::emit(&parshall_core::judge(capture), output)?;
    if let Some(path) = save {
        write_case(capture, path)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A mistake in --save is found before the observation, not after it.
fn check_save(save: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = save else { return Ok(()) };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if directory.is_dir() && !path.is_dir() {
        return Ok(());
    }
    let what = if path.is_dir() { "it is a directory" } else { "its directory does not exist" };
    Err(UserError::new(
        format!("the capture cannot be written to {}: {what}", path.display()),
        "give --save a path in a directory that exists and that you may write to",
    )
    .into())
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
