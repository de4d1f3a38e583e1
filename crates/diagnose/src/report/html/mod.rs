//! The report as one HTML file: lays out a page, and draws a trace. Nothing is fetched, and everything but the timeline can be read
//! without scripts.
mod clean;
mod data;
mod figures;
mod section;
mod sections;
#[cfg(test)]
mod tests;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use parshall_core::judge::Judged;
use parshall_core::report::{Detail, Page};
use parshall_core::trace::Trace;
use parshall_evidence::Capture;
use sha2::{Digest, Sha256};

use clean::clean;
use figures::Figures;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The file.
pub fn html(judged: &Judged<'_>, capture: &Capture) -> anyhow::Result<String> {
    let page = Page::new(&judged.report, Detail::Full);
    let trace = Trace::new(capture, judged.index.as_ref());
    let figures = Figures::new(&page, judged, capture, &trace);
    let data = data::packed(&trace, &figures, capture)?;
    Ok(document(&page, &trace, &figures, &data).into_string())
}

fn document(page: &Page, trace: &Trace, figures: &Figures<'_>, data: &str) -> Markup {
    let title = clean(&format!("parshall: {}", title(page)));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#verdict" { "To the verdict" }
                (sections::head(page))
                main {
                    (sections::verdict(&page.verdict, figures))
                    @if let Some(chain) = &page.chain { (sections::chain(chain)) }
                    @if let Some(fix) = &page.fix { (sections::fix(fix)) }
                    @if let Some(services) = &page.services { (sections::services(services)) }
                    (sections::time(&page.time, figures))
                    @if let Some((title, line)) = &page.tail { (sections::tail(*title, line)) }
                    (sections::timeline(trace))
                    @if let Some((title, rows)) = &page.evidence { (sections::evidence(*title, rows, &page.verdict.basis, figures)) }
                    @for table in &page.tables { (sections::table(table)) }
                    @if let Some(others) = &page.others { (sections::others(others, figures)) }
                    @for listed in &page.listed { (sections::listed(listed, figures)) }
                    @if let Some((title, notes)) = &page.notes { (sections::notes(*title, notes, page.more_notes.as_deref())) }
                    (figures.events(trace))
                    (figures.rules())
                }
                script #data type="text/plain" { (PreEscaped(data)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// `port 7000: Small writes wait for a delayed ACK`.
fn title(page: &Page) -> String {
    let subject = page.head.first().map_or("", String::as_str);
    format!(
        "{subject}: {}",
        if page.verdict.headline.is_empty() { page.verdict.title.0 } else { &page.verdict.headline }
    )
}

/// Only the style and the script of this file, by their hashes; nothing from anywhere else.
fn policy() -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}
