//! Output: formats, the style of text, and functions that write to stdout and stderr.
mod args;
mod charset;
mod terminal;
mod wrap;

use std::io::{self, Write};

pub use args::{ColorArg, FormatArg, PrintArgs};
pub use charset::Charset;
use parshall_core::text;
use serde::Serialize;
pub use terminal::{Destination, TextStyle, style, style_for};
pub use wrap::{clean, columns, items, words};

/// Format and style of a report.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// The format.
    pub format: Format,
    /// The style of text.
    pub style: TextStyle,
}

/// The formats of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

/// A JSON document on several lines. It may go to a terminal, so what may not be printed is escaped.
///
/// # Errors
/// Those of serde.
pub fn json(document: &impl Serialize) -> anyhow::Result<String> {
    Ok(text::printable_json(serde_json::to_string_pretty(document)?) + "\n")
}

/// As [`json`], on one line and without a line break.
///
/// # Errors
/// Those of serde.
pub fn json_line(document: &impl Serialize) -> anyhow::Result<String> {
    Ok(text::printable_json(serde_json::to_string(document)?))
}

/// Writes to stdout. `println!` would panic if the reader has closed the pipe. Here that is an error, which `main` ignores.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_to(io::stdout().lock(), text)
}

/// As [`print`], to another stream.
pub fn print_to(mut stream: impl Write, text: &str) -> anyhow::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()?;
    Ok(())
}
