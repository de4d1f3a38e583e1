//! How the result of a trial is printed: one file per format.
mod json;
mod text;

use parshall_evidence::TrialReport;
use parshall_host::output::{Format, Output};

/// A result in the requested format.
pub fn render(report: &TrialReport, output: &Output) -> anyhow::Result<String> {
    match output.format {
        Format::Text => Ok(output.style.charset.text(&text::text(report, output.style)).into_owned()),
        Format::Json => json::json(report),
    }
}
