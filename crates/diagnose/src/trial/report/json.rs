//! One JSON document, documented in `docs/json.md`.
use parshall_evidence::TrialReport;

/// The document, with a newline at its end.
pub fn json(report: &TrialReport) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    Ok(text)
}
