//! How a report is printed: one file per format, and the one way to stdout and stderr.
mod json;
mod number;
mod terminal;
mod text;
mod wrap;

use std::io::{self, Write};

use parshall_evidence::Report;

pub use json::json;
pub use terminal::{style, style_for};
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

/// A report in the format that was asked for.
pub fn render(report: &Report, output: &Output) -> anyhow::Result<String> {
    match output.format {
        Format::Text => Ok(text(report, output.style)),
        Format::Json => json(report),
    }
}

/// Writes to stdout. `println!` would panic when the reader has left; here that is an error like any other, which
/// `main` passes over in silence.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_to(io::stdout().lock(), text)
}

/// As [`print`], to another stream.
pub fn print_to(mut stream: impl Write, text: &str) -> anyhow::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()?;
    Ok(())
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod samples;
