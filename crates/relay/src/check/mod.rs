//! `parshall relay check`: whether a file is right, and what it would do.
//!
//! `text.rs` and `json.rs` print it.
mod json;
mod text;

#[cfg(test)]
mod golden;

use std::path::Path;
use std::process::ExitCode;

use super::load::{load, tell};
use parshall_host::output;
use parshall_host::output::{Format, Output};

/// Checks a file: 0 if it is right, 2 if there are mistakes in it.
pub fn check(path: &Path, output: &Output) -> anyhow::Result<ExitCode> {
    let loaded = load(path)?;
    match (output.format, &loaded.config) {
        (Format::Json, _) => output::print(&json::json(path, &loaded)?)?,
        (Format::Text, Ok(config)) => output::print(&text::text(path, config, output.style))?,
        (Format::Text, Err(mistakes)) => return Ok(tell(path, mistakes)),
    }
    Ok(if loaded.config.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}
