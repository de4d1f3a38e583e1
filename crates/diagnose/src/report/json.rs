//! The verdict contract: one JSON document, documented in `docs/json.md`.
use parshall_evidence::Report;
use parshall_host::output;

/// The document, with a newline at its end. The order of the fields is that of the types, so it is stable.
pub fn json(report: &Report) -> anyhow::Result<String> {
    output::json(report)
}
