//! How a report is printed: one file per format, and this list. The contents are decided in [`parshall_core::report`].
mod html;
mod json;
mod markdown;
mod text;

use clap::ValueEnum;
use parshall_core::report::Detail;
use parshall_evidence::Report;
use parshall_host::output::TextStyle;

pub use html::html;
pub use json::json;
pub use markdown::markdown;
pub use text::text;

/// `--format` of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// One JSON document
    Json,
    /// For an issue tracker
    Markdown,
}

/// How a report is printed.
#[derive(Debug, Clone, Copy)]
pub struct Print {
    /// The format.
    pub format: Format,
    /// The style of text.
    pub style: TextStyle,
    /// How much of it, in formats for people.
    pub detail: Detail,
}

/// A report as the user asked for it.
pub fn render(report: &Report, print: &Print) -> anyhow::Result<String> {
    match print.format {
        Format::Text => Ok(text(report, print.style, print.detail)),
        Format::Json => json(report),
        Format::Markdown => Ok(markdown(report, print.detail)),
    }
}

#[cfg(test)]
mod tests;
