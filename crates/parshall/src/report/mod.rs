//! How a report is printed: one file per format, and the one way to stdout.
mod json;
mod number;
mod terminal;
mod text;
mod wrap;

use std::io::{self, Write};

use parshall_evidence::Report;

pub use json::json;
pub use terminal::style;
pub use text::text;
pub use wrap::{clean, items, words};

use crate::cli::{Format, Output};

/// How text is drawn.
#[derive(Debug, Clone, Copy)]
pub struct TextStyle {
    /// Colours and bold by ANSI escapes.
    pub color: bool,
    /// Columns of the terminal.
    pub width: usize,
}

/// Prints a report on stdout in the format that was asked for.
pub fn emit(report: &Report, output: &Output) -> anyhow::Result<()> {
    match output.format {
        Format::Text => print(&text(report, output.style)),
        Format::Json => print(&json(report)?),
    }
}

/// Writes to stdout. `println!` would panic when the reader has left; here that is an error like any other, which
/// `main` passes over in silence.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(())
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod samples;
