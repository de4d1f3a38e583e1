//! Announces the planned change, and asks for confirmation.
use std::io::{self, BufRead, Write};

use parshall_core::units;
use parshall_core::values::duration_text;
use parshall_host::output::clean;

use super::changer::Changer;
use super::request::TryRequest;
use crate::subject::Resolved;

/// The most processes that are named.
const NAMED_MAX: usize = 4;

/// Prints the plan on stderr, and asks for confirmation if the request says so. False if the user declines.
pub fn agreed(
    request: &TryRequest,
    subject: &Resolved,
    changer: &Changer<'_>,
    warnings: &[String],
) -> anyhow::Result<bool> {
    let mut err = io::stderr().lock();
    for line in plan(request, subject, changer, warnings) {
        writeln!(err, "{}", clean(&line))?;
    }
    if !request.ask {
        return Ok(true);
    }
    write!(err, "Go on? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}

fn plan(request: &TryRequest, subject: &Resolved, changer: &Changer<'_>, warnings: &[String]) -> Vec<String> {
    let change = &request.change;
    let named = subject.processes.iter().take(NAMED_MAX).map(|process| format!("{} {}", process.pid, process.comm));
    let more = subject.processes.len().saturating_sub(NAMED_MAX);
    let more = (more > 0).then(|| format!("{} more", units::count(more as u64)));
    let window = duration_text(request.observe.window);
    let mut lines = vec![
        format!("sets      {} for {}", change.sets, named.chain(more).collect::<Vec<_>>().join(", ")),
        format!("now       {}", changer.describe().join("; ")),
        format!(
            "measures  {} pairs of windows of {window}, with the change and without, about {} in all",
            request.pairs,
            units::duration(request.takes().as_nanos() as f64)
        ),
        "reverts   everything at the end, also when parshall is interrupted or killed".to_owned(),
    ];
    lines.extend(warnings.iter().map(|warning| format!("note      {warning}")));
    lines
}
