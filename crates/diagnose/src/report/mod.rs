//! How a report is printed: one file per format, and this list. The contents are decided in [`parshall_core::report`].
mod html;
mod json;
mod markdown;
mod perfetto;
mod text;

use clap::ValueEnum;
use parshall_core::report::Detail;
use parshall_evidence::{Capture, Report};
use parshall_host::output::TextStyle;

pub use html::html;
pub use json::json;
pub use markdown::markdown;
pub use perfetto::perfetto;
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

/// An output beside the report, in a file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// The report and a timeline as one page.
    Html,
    /// A trace for Perfetto.
    Perfetto,
}

impl Beside {
    /// The option that names its file.
    pub fn option(self) -> &'static str {
        match self {
            Beside::Html => "--html",
            Beside::Perfetto => "--perfetto",
        }
    }

    /// The content of its file.
    pub fn content(self, report: &Report, capture: &Capture) -> anyhow::Result<Vec<u8>> {
        Ok(match self {
            Beside::Html => html(report, capture)?.into_bytes(),
            Beside::Perfetto => perfetto(report, capture),
        })
    }
}

#[cfg(test)]
mod tests;
