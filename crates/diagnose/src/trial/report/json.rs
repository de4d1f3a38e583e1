//! One JSON document, documented in `docs/json.md`.
use parshall_evidence::TrialReport;
use parshall_host::output;

/// The document, with a newline at its end.
pub fn json(report: &TrialReport) -> anyhow::Result<String> {
    output::json(report)
}
