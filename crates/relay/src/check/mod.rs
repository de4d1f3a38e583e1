//! `parshall relay check`: prints the errors of a configuration file, or its settings, as text (`text`) or JSON (`json`).
mod json;
mod text;

#[cfg(test)]
mod golden;

use std::path::Path;
use std::process::ExitCode;

use super::load::{load, print_errors};
use parshall_host::output;
use parshall_host::output::{Format, Output};

/// The exit code is 0 if the file has no errors, and 2 if it has.
pub fn check(path: &Path, output: &Output) -> anyhow::Result<ExitCode> {
    let loaded = load(path)?;
    match (output.format, &loaded.config) {
        (Format::Json, _) => output::print(&json::json(path, &loaded)?)?,
        (Format::Text, Ok(config)) => {
            output::print(&output.style.charset.text(&text::text(path, config, output.style)))?;
        }
        (Format::Text, Err(errors)) => return Ok(print_errors(path, errors)),
    }
    Ok(if loaded.config.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}
