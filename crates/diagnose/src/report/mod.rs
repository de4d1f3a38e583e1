//! How a report is printed: one file per format.
mod json;
mod text;

use parshall_evidence::Report;
use parshall_host::output::{Format, Output};

pub use json::json;
pub use text::text;

/// A report in the requested format.
pub fn render(report: &Report, output: &Output) -> anyhow::Result<String> {
    match output.format {
        Format::Text => Ok(text(report, output.style)),
        Format::Json => json(report),
    }
}

#[cfg(test)]
mod tests;
