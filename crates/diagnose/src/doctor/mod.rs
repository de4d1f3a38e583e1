//! `doctor`: what this host allows, the rung of evidence that follows, and what parshall cannot do without each missing feature.
//!
//! `gather.rs` gathers facts, `rules.rs` turns facts into checks and a rung without touching the host, `text.rs` and
//! `json.rs` print them, `bundle.rs` writes what a report of a bug needs.
mod bundle;
mod facts;
mod gather;
mod json;
mod rules;
mod text;

use std::process::ExitCode;
use std::time::SystemTime;

use parshall_evidence::Rung;

use parshall_host::output::{self, Format};
use parshall_host::private_file::PrivateFile;

use crate::origin::origin;
use crate::request::DoctorRequest;

/// `parshall doctor`.
pub fn doctor(config: &DoctorRequest) -> anyhow::Result<ExitCode> {
    let begun = SystemTime::now();
    let file = config.bundle.as_deref().map(|path| PrivateFile::create(path, "--bundle")).transpose()?;
    let facts = gather::gather_with_trial();
    let findings = rules::examine(&facts);
    if let Some(file) = file {
        file.write(bundle::bundle(&findings, &facts).as_bytes())?;
    }
    let page = match config.output.format {
        Format::Text => {
            let style = config.output.style;
            style.charset.text(&text::text(&findings, style)).into_owned()
        }
        Format::Json => json::json(&findings, &origin(begun, findings.kernel.clone()))?,
    };
    output::print(&page)?;
    Ok(ExitCode::SUCCESS)
}

/// The highest rung available to this process on this host, and why no higher one is (empty on the highest).
pub fn best_rung() -> (Rung, Vec<String>) {
    let findings = rules::examine(&gather::gather());
    (findings.rung, findings.why_not_higher)
}
