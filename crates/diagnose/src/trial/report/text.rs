//! The result for a terminal: whether it helped, the figures, and what was changed and reverted.
use std::fmt::Write;

use parshall_core::trial::{Figure, signed, value_text};
use parshall_core::units::{count, plural};
use parshall_evidence::{ComparedFigure, TrialReport, TrialStatus};
use parshall_host::output::{TextStyle, clean, items, words};

/// Columns left of the body of every section.
const GUTTER: usize = 10;

/// The result for a terminal.
pub fn text(report: &TrialReport, style: TextStyle) -> String {
    let mut page = Page { out: String::new(), style };
    page.header(report);
    let head = match report.outcome.status {
        TrialStatus::Helped => "HELPED",
        TrialStatus::Worse => "WORSE",
        TrialStatus::NoDifference => "NO DIFFERENCE",
        TrialStatus::InPlace => "IN PLACE",
        TrialStatus::InsufficientEvidence => "NOT KNOWN",
    };
    page.section(head, &report.outcome.summary);
    page.figures(&report.figures);
    if report.outcome.status != TrialStatus::InPlace {
        page.section("CHANGED", &changed(report));
        page.section("REVERTED", &reverted(report));
    }
    if report.outcome.status == TrialStatus::Helped {
        page.section("KEEP IT", &report.change.keep);
    }
    if !report.notes.is_empty() {
        page.section("NOTES", &report.notes.join("; "));
    }
    page.out
}

fn changed(report: &TrialReport) -> String {
    let (places, change) = (&report.places, &report.change);
    let words = (change.on.as_str(), format!("{}s", change.on));
    if places.changed == 0 {
        return "Nothing.".to_owned();
    }
    let mut text = format!("{} on {}", change.sets, plural(places.changed, words.0, &words.1));
    if places.late > 0 {
        let _ = write!(text, ", {} of them opened or started during the trial", count(places.late));
    }
    if places.in_place > 0 {
        let _ = write!(text, "; {} had that value before", count(places.in_place));
    }
    if places.refused > 0 {
        let _ = write!(text, "; {} could not be changed", count(places.refused));
    }
    text + "."
}

fn reverted(report: &TrialReport) -> String {
    let reverted = &report.reverted;
    if report.places.changed == 0 {
        return "Nothing to revert.".to_owned();
    }
    let mut text = format!("{} as before", count(reverted.restored));
    if reverted.gone > 0 {
        let _ = write!(text, ", {} no longer there", count(reverted.gone));
    }
    if !reverted.failed.is_empty() {
        let _ = write!(text, "; NOT reverted: {}", reverted.failed.join("; "));
    }
    for sentence in &report.change.not_undone {
        let _ = write!(text, "; {sentence}");
    }
    text + "."
}

struct Page {
    out: String,
    style: TextStyle,
}

impl Page {
    fn header(&mut self, report: &TrialReport) {
        let mut parts = vec!["parshall try".to_owned(), report.change.name.clone()];
        if !report.subject.ports.is_empty() {
            let ports: Vec<String> = report.subject.ports.iter().map(u16::to_string).collect();
            parts.push(format!("{} {}", if ports.len() == 1 { "port" } else { "ports" }, ports.join(", ")));
        }
        let processes = report.subject.pids.iter().zip(&report.subject.comms);
        parts.extend(processes.take(4).map(|(pid, comm)| format!("pid {pid} {comm}")));
        let pairs = report.windows.iter().map(|window| window.pair).max().unwrap_or(0);
        if pairs > 0 {
            parts.push(plural(u64::from(pairs), "pair of windows", "pairs of windows"));
        }
        parts.extend(report.rung.map(|rung| format!("rung {}", rung.as_str())));
        for (i, line) in items(&parts, " · ", self.style.width.saturating_sub(2)).into_iter().enumerate() {
            let _ = writeln!(self.out, "{}{}", if i == 0 { "" } else { "  " }, clean(&line));
        }
    }

    /// A heading with a paragraph beside it, or below it if the heading is wider than the gutter.
    fn section(&mut self, head: &str, body: &str) {
        let painted = if self.style.color { format!("\x1b[1m{head}\x1b[0m") } else { head.to_owned() };
        let width = self.style.width.saturating_sub(GUTTER);
        let _ = write!(self.out, "\n{painted}");
        let wide = head.len() + 1 >= GUTTER;
        if wide {
            self.out.push('\n');
        }
        for (i, line) in words(&clean(body), width, width).into_iter().enumerate() {
            let pad = if i == 0 && !wide { GUTTER - head.len() } else { GUTTER };
            let _ = writeln!(self.out, "{}{line}", " ".repeat(pad));
        }
    }

    fn figures(&mut self, figures: &[ComparedFigure]) {
        if figures.is_empty() {
            return;
        }
        let pad = " ".repeat(GUTTER);
        let _ =
            writeln!(self.out, "\n{pad}{:<22} {:>11} {:>11} {:>10}   99 % interval", "", "without", "with", "change");
        for figure in figures {
            let label = Figure::of_id(&figure.figure).map_or("", Figure::label);
            let (without, with) = (value_text(figure, figure.without), value_text(figure, figure.with));
            let (low, high) = (signed(figure.interval.0), signed(figure.interval.1));
            let change = signed(figure.change);
            let _ = writeln!(self.out, "{pad}{label:<22} {without:>11} {with:>11} {change:>10}   {low} to {high}");
        }
        let _ = writeln!(self.out, "{pad}The first one decides.");
    }
}
