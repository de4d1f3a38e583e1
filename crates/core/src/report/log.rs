//! The table of log lines.
use parshall_evidence::{Log, LogLine};

use super::page::{Detail, Table, Title};
use crate::units::{or, plural};

/// Lines of a full page.
const LINES_MAX: usize = 200;

/// A short page says only that there are some.
pub(super) fn table(log: &Log, detail: Detail) -> Table {
    let shown = if detail == Detail::Full { log.lines.len().min(LINES_MAX) } else { 0 };
    let more = match log.lines.len() - shown {
        0 => None,
        n if detail == Detail::Full => {
            Some(format!("{} in JSON and on the timeline", plural(n as u64, "more is", "more are")))
        }
        _ => Some("--full lists them".to_owned()),
    };
    let left_out = (log.left_out > 0).then(|| format!("{} left out", plural(log.left_out, "was", "were")));
    let found = match log.lines.len() {
        0 => "The service wrote no line in the window".to_owned(),
        n => format!("{} that the service wrote in the window", plural(n as u64, "line", "lines")),
    };
    Table {
        title: Title("LOG"),
        of: [Some(found), more, left_out].into_iter().flatten().collect::<Vec<_>>().join("; "),
        head: vec!["at (ms)", "by", "to", "line"],
        names: 4,
        rows: log.lines.iter().take(shown).map(row).collect(),
        stacks: Vec::new(),
    }
}

fn row(line: &LogLine) -> Vec<String> {
    let at = format!("{}.{:03}", line.at_ns / 1_000_000, line.at_ns / 1_000 % 1_000);
    let by = format!("{} {}", or(&line.process, "process"), line.pid);
    vec![at, by, line.to.clone(), format!("{}{}", line.text, if line.cut { "…" } else { "" })]
}
