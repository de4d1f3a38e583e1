//! The doctor's findings for a terminal: what is missing first, the rung last.
use super::rules::{Check, Findings, State};
use parshall_host::output::{TextStyle, clean, words};

/// Columns of the state and of the name.
const STATE: usize = 9;
const NAME: usize = 22;

/// The page.
pub fn text(findings: &Findings, style: TextStyle) -> String {
    let mut out = format!("parshall doctor · kernel {}\n\n", clean(&findings.kernel));
    let width = style.width.saturating_sub(STATE + NAME).max(20);
    for state in [State::Missing, State::Limited, State::Ok] {
        for check in findings.checks.iter().filter(|c| c.state == state) {
            row(&mut out, check, width, style.color);
        }
    }
    out.push('\n');
    let head = format!("rung: {}", findings.rung.as_str());
    out.push_str(&paint(&head, "\x1b[1m", style.color));
    out.push('\n');
    let mut lines = vec![format!("With it, {}.", findings.meaning)];
    if !findings.why_not_higher.is_empty() {
        lines.push(format!("Not higher, because {}.", findings.why_not_higher.join("; ")));
    }
    for line in lines {
        for line in words(&clean(&line), style.width, style.width) {
            out.push_str(&line);
            out.push('\n');
        }
    }
    out
}

fn row(out: &mut String, check: &Check, width: usize, color: bool) {
    let code = match check.state {
        State::Ok => "\x1b[32m",
        State::Limited => "\x1b[33m",
        State::Missing => "\x1b[31m",
    };
    out.push_str(&paint(check.state.as_str(), code, color));
    out.push_str(&" ".repeat(STATE - check.state.as_str().len()));
    out.push_str(&format!("{:<NAME$}", check.name));
    let mut parts = vec![check.seen.clone()];
    parts.extend(check.cost.as_ref().map(|c| format!("costs: {c}")));
    parts.extend(check.remedy.as_ref().map(|r| format!("to get it: {r}")));
    let lines: Vec<String> = parts.iter().flat_map(|p| words(&clean(p), width, width)).collect();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push_str(&" ".repeat(STATE + NAME));
        }
        out.push_str(line);
        out.push('\n');
    }
}

fn paint(text: &str, code: &str, color: bool) -> String {
    if color { format!("{code}{text}\x1b[0m") } else { text.to_owned() }
}
