//! The doctor's findings as one JSON document, documented in `docs/json.md`.
use parshall_evidence::Origin;
use parshall_host::output;
use serde::Serialize;

use super::rules::Findings;

/// The format of the document.
pub const DOCTOR_SCHEMA: &str = "parshall.doctor/1";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    origin: &'a Origin,
    kernel: &'a str,
    rung: &'static str,
    meaning: &'a str,
    why_not_higher: &'a [String],
    checks: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Item<'a> {
    id: &'static str,
    name: &'static str,
    state: &'static str,
    seen: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'a str>,
}

/// The document, with a newline at its end. `origin` says when and where the host was examined.
pub fn json(findings: &Findings, origin: &Origin) -> anyhow::Result<String> {
    let checks = findings.checks.iter().map(|c| Item {
        id: c.id,
        name: c.name,
        state: c.state.as_str(),
        seen: &c.seen,
        cost: c.cost.as_deref(),
        remedy: c.remedy.as_deref(),
    });
    let document = Document {
        schema: DOCTOR_SCHEMA,
        origin,
        kernel: &findings.kernel,
        rung: findings.rung.as_str(),
        meaning: &findings.meaning,
        why_not_higher: &findings.why_not_higher,
        checks: checks.collect(),
    };
    output::json(&document)
}
