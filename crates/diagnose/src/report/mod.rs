//! How a report is printed: one file per format, and this list. The contents are decided in [`parshall_core::report`].
mod flamegraph;
mod folded;
mod html;
mod json;
mod markdown;
mod perfetto;
mod summary;
mod text;

use clap::ValueEnum;
use parshall_core::judge::Judged;
use parshall_core::report::Detail;
use parshall_evidence::{Capture, Report};
use parshall_host::output::TextStyle;

pub use flamegraph::flamegraph;
pub use folded::folded;
pub use html::html;
pub use json::json;
pub use markdown::markdown;
pub use perfetto::perfetto;
pub use summary::summary;
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
    /// Folded stacks.
    Folded,
    /// Flame graphs.
    Flamegraph,
    /// The events in the order of time.
    Summary,
}

impl Beside {
    /// The option that names its file.
    pub fn option(self) -> &'static str {
        match self {
            Beside::Html => "--html",
            Beside::Perfetto => "--perfetto",
            Beside::Folded => "--folded",
            Beside::Flamegraph => "--flamegraph",
            Beside::Summary => "--summary",
        }
    }

    /// The content of its file.
    pub fn content(self, judged: &Judged<'_>, capture: &Capture) -> anyhow::Result<Vec<u8>> {
        Ok(match self {
            Beside::Html => html(judged, capture)?.into_bytes(),
            Beside::Perfetto => perfetto(judged, capture),
            Beside::Folded => folded(capture).into_bytes(),
            Beside::Flamegraph => flamegraph(capture).into_bytes(),
            Beside::Summary => summary(judged, capture).into_bytes(),
        })
    }
}

#[cfg(test)]
mod beside_tests;
#[cfg(test)]
mod tests;
