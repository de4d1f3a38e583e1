//! The verdict contract: one JSON document, documented in `docs/json.md`.
use parshall_evidence::Report;

/// The document, with a newline at its end. The order of the fields is that of the types, so it is stable.
pub fn json(report: &Report) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    Ok(text)
}
