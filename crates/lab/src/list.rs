//! `lab list`: the cases, faults, controls and loads.
use std::time::Duration;

use serde::Serialize;

use super::catalog::{Content, ENTRIES, Kind};
use super::units::Format;
use super::{load, terminal};

#[derive(Serialize)]
struct Line {
    name: String,
    kind: &'static str,
    title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<String>,
}

pub fn run(format: Format) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for entry in ENTRIES {
        let (title, expected) = match entry.read(Duration::from_secs(5), None)? {
            Content::Recipe(recipe) => (recipe.title, Some(recipe.expect.to_string())),
            Content::Study(study) => (study.title, None),
        };
        let kind = match entry.kind {
            Kind::Case => "case",
            Kind::Fault => "fault",
            Kind::Control => "control",
        };
        lines.push(Line { name: entry.name.into(), kind, title, expected });
    }
    let load = |(name, title)| Line { name: format!("load {name}"), kind: "load", title, expected: None };
    lines.extend(load::kinds().into_iter().map(load));
    match format {
        Format::Json => terminal::line(&serde_json::to_string_pretty(&lines)?)?,
        Format::Text => {
            for line in &lines {
                terminal::line(&format!("{:<8} {:<24} {}", line.kind, line.name, line.title))?;
            }
        }
    }
    Ok(())
}
