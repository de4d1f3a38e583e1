//! Puts a page together from a report.
use parshall_evidence::{Report, Status};

use super::page::{Detail, Listed, Page, Services, Title, first_of, more, top_finding};
use super::{finding, head, table, tail, time};
use crate::units;

impl Page {
    /// The page of a report.
    pub fn new(report: &Report, detail: Detail) -> Page {
        let top = top_finding(report);
        let (notes, more_notes) = notes(report, detail);
        Page {
            detail,
            head: head::parts(report, detail),
            origin: report.origin.as_ref().map_or_else(Vec::new, |origin| head::origin(origin, detail)),
            verdict: finding::verdict(report, detail),
            chain: top.and_then(|top| finding::chain(report, top, detail)),
            fix: top.and_then(finding::fix),
            services: services(report, detail),
            time: time::bars(report, detail),
            tail: tail::line(report, detail),
            evidence: top.and_then(|top| finding::evidence(top, detail)),
            tables: table::tables(report, detail),
            others: finding::others(report, detail),
            listed: listed(report, detail),
            notes: (!notes.is_empty()).then_some((Title("NOTES"), notes)),
            more_notes,
        }
    }
}

fn services(report: &Report, detail: Detail) -> Option<Services> {
    let asked: Vec<_> = report.services.iter().filter(|s| !s.followed).collect();
    if asked.len() < 2 {
        return None;
    }
    let (shown, left) = first_of(asked, detail);
    Some(Services { title: Title("SERVICES"), rows: shown.into_iter().map(head::service).collect(), more: more(left) })
}

/// Causes that do not hold. A short page says how many; a full one lists those of which something was seen with their figures, and
/// names the others.
fn listed(report: &Report, detail: Detail) -> Vec<Listed> {
    let (ruled_out, not_tested) = (&report.ruled_out, &report.not_tested);
    if ruled_out.is_empty() && not_tested.is_empty() {
        return Vec::new();
    }
    if detail == Detail::Short {
        let tested = units::plural(ruled_out.len() as u64, "cause", "causes");
        let untested = match not_tested.len() as u64 {
            0 => String::new(),
            n => format!("; {} could not be tested", units::count(n)),
        };
        let summary = Some(format!("{tested}{untested} (--full lists them)"));
        return vec![Listed { title: Title("RULED OUT"), items: Vec::new(), causes: Vec::new(), summary }];
    }
    let mut lists = Vec::new();
    if !ruled_out.is_empty() {
        let (seen, unseen): (Vec<_>, Vec<_>) = ruled_out.iter().partition(|entry| entry.seen);
        let names: Vec<String> = unseen.iter().map(|entry| name(&entry.cause)).collect();
        let (items, causes) = grouped(seen.into_iter().map(|entry| (entry.cause.as_str(), super::why(entry))));
        lists.push(Listed {
            title: Title("RULED OUT"),
            items,
            causes,
            summary: (!names.is_empty()).then(|| format!("Nothing was seen of {}.", names.join(", "))),
        });
    }
    if !not_tested.is_empty() {
        let (items, causes) = grouped(not_tested.iter().map(|entry| (entry.cause.as_str(), entry.why.clone())));
        lists.push(Listed { title: Title("NOT TESTED"), items, causes, summary: None });
    }
    lists
}

fn name(cause: &str) -> String {
    cause.replace('-', " ")
}

/// Causes with their reasons, and their ids; those with the same reason share one item, at the position of the first.
fn grouped<'r>(list: impl Iterator<Item = (&'r str, String)>) -> (Vec<String>, Vec<Vec<String>>) {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for (cause, why) in list {
        match groups.iter_mut().find(|(known, _)| *known == why) {
            Some((_, causes)) => causes.push(cause.to_owned()),
            None => groups.push((why, vec![cause.to_owned()])),
        }
    }
    let item = |(why, causes): (String, Vec<String>)| {
        let names: Vec<String> = causes.iter().map(|cause| name(cause)).collect();
        (format!("{} ({why})", names.join(", ")), causes)
    };
    groups.into_iter().map(item).unzip()
}

/// A note as a sentence of its own. A first word that may be a name stays as it is.
fn sentence(note: &str) -> String {
    const WORDS: [&str; 6] = ["the", "a", "of", "port", "network", "no"];
    let first = note.split(' ').next().unwrap_or_default();
    let mut chars = note.chars();
    let begun = match chars.next().filter(|_| WORDS.contains(&first)) {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => note.to_owned(),
    };
    if begun.ends_with(['.', '!', '?']) { begun } else { format!("{begun}.") }
}

/// Probes that run in tasks and in interrupts miss a few events of many. From this share on it is said.
const MISSED_MIN: f64 = 0.001;

/// Limits of the trust in the verdict: losses come first.
fn notes(report: &Report, detail: Detail) -> (Vec<String>, Option<String>) {
    let probe = &report.probe;
    let mut notes = Vec::new();
    if probe.lost_events > 0 {
        notes.push(format!(
            "{} of {} lost because the buffer was full.",
            units::count(probe.lost_events),
            units::plural(probe.events.saturating_add(probe.lost_events), "event was", "events were")
        ));
    }
    if probe.missed_share >= MISSED_MIN {
        notes.push(format!(
            "{} missed because the probe was at work on the same CPU.",
            units::plural(probe.missed_events, "event was", "events were")
        ));
    }
    if probe.untracked > 0 {
        let n = units::plural(probe.untracked, "more flow or thread was", "more flows or threads were");
        notes.push(format!("{n} beyond the limits and not seen."));
    }
    if head::is_sliced(report) {
        notes.push(format!(
            "Probes ran in slices of {} of the time; figures marked ≈ are scaled.",
            units::percent_fixed(probe.observed_share)
        ));
    }
    notes.extend(report.blind.iter().map(|note| sentence(note)));
    // Where the evidence is not enough, the notes are what the user can change.
    let all = report.verdict.status == Status::InsufficientEvidence;
    let (notes, left) = first_of(notes, if all { Detail::Full } else { detail });
    (notes, more(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_a_sentence() {
        assert_eq!(
            sentence("the owners of 2 of 8 sockets could not be seen"),
            "The owners of 2 of 8 sockets could not be seen."
        );
        assert_eq!(
            sentence("port 53 is also served: `--netns all` does"),
            "Port 53 is also served: `--netns all` does."
        );
        assert_eq!(sentence("nginx 812 could not be read."), "nginx 812 could not be read.");
    }
}
