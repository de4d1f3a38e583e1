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
    // A document of several lines is made one, as code that writes a type in both forms is twice as large.
    Ok(text::printable_json(without_spaces(&serde_json::to_string_pretty(document)?)))
}

/// JSON without the spaces and line breaks between its tokens.
fn without_spaces(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let mut between = |c: char| {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            return false;
        }
        in_string = c == '"';
        c.is_ascii_whitespace()
    };
    json.chars().filter(|c| !between(*c)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_is_what_serde_writes() {
        let value =
            serde_json::json!({ "a b": ["\" , \\", " : {\n\t}\\", "", {}, []], "\\\"": { "c": [1.5, null, " x "] } });
        let line = json_line(&value).expect("JSON");
        assert_eq!(line, serde_json::to_string(&value).expect("JSON"));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).expect("JSON"), value);
    }
}
