//! Tables of requests to io_uring, of what happened to them, and of what waits in io_uring_enter() are for.
use parshall_evidence::{UringReport, UringRow, UringWaitRow};

use super::page::{Table, Title};
use crate::stats::ratio;
use crate::units::{count, decimal, or, percent_fixed, plural, quantity};

/// Rows of each table.
const ROWS_MAX: usize = 24;
/// Errors of a row of requests.
const ERRORS_MAX: usize = 3;

/// All three; those without rows are left out.
pub(super) fn tables(report: &UringReport) -> Vec<Table> {
    let requests = Table {
        title: Title("IO_URING"),
        of: of_requests(report),
        head: vec!["by", "opcode", "completed/s", "each", "longest", "outstanding"],
        names: 2,
        rows: report.requests.iter().take(ROWS_MAX).map(request).collect(),
        stacks: Vec::new(),
    };
    let events = Table {
        title: Title("IO_URING EVENTS"),
        of: "What happened to these requests on their way, and their errors".to_owned(),
        head: vec!["by", "opcode", "what", "number", "of requests"],
        names: 3,
        rows: report.requests.iter().take(ROWS_MAX).flat_map(events).collect(),
        stacks: Vec::new(),
    };
    let waits = Table {
        title: Title("IO_URING WAITS"),
        of: "Waits in io_uring_enter, by what was outstanding of what the thread had submitted in the window"
            .to_owned(),
        head: vec!["by", "outstanding", "waits/s", "of its waits"],
        names: 2,
        rows: report.waits.iter().take(ROWS_MAX).map(wait).collect(),
        stacks: Vec::new(),
    };
    [requests, events, waits].into_iter().filter(|table| !table.rows.is_empty()).collect()
}

fn of_requests(report: &UringReport) -> String {
    let mut of = "Requests of the service to io_uring, from the submission to the last completion".to_owned();
    if report.requests.len() > ROWS_MAX {
        of.push_str(&format!(
            "; {} in JSON",
            plural((report.requests.len() - ROWS_MAX) as u64, "more row is", "more rows are")
        ));
    }
    if report.not_followed > 0 {
        of.push_str(&format!(
            "; {} too fast to be followed",
            plural(report.not_followed, "further one came", "further ones came")
        ));
    }
    if report.left_out > 0 {
        of.push_str(&format!("; the timeline does not have {} of them", count(report.left_out)));
    }
    if report.lost > 0 {
        of.push_str(&format!("; {} too many different kinds", plural(report.lost, "event had", "events had")));
    }
    if !report.absent.is_empty() {
        of.push_str(&format!("; this kernel does not show {}", report.absent.join(", ")));
    }
    of
}

fn request(row: &UringRow) -> Vec<String> {
    let time = |us: Option<f64>| us.map_or_else(String::new, |us| quantity(us, "us"));
    vec![
        by(row.pid, &row.process, &row.thread),
        opcode(row),
        decimal(row.per_s),
        time(row.mean_us),
        time(row.longest_us),
        if row.counts.outstanding > 0 { count(row.counts.outstanding) } else { String::new() },
    ]
}

fn opcode(row: &UringRow) -> String {
    or(&row.opcode, "unknown")
}

/// A row for each kind of event that a row of requests has.
fn events(row: &UringRow) -> Vec<Vec<String>> {
    let counts = &row.counts;
    let on_the_way = [
        (counts.polls, "polls armed"),
        (counts.to_workers, "taken by workers (io-wq)"),
        (counts.overflowed, "CQ overflows"),
        (counts.failed_links, "failed links"),
        (counts.rejected, "rejected"),
    ];
    let errors = counts.errors.iter().take(ERRORS_MAX).map(|error| (error.count, error.error.as_str()));
    let seen = on_the_way.into_iter().chain(errors).filter(|(n, _)| *n > 0);
    let requests = counts.submitted.max(counts.completed) as f64;
    seen.map(|(n, what)| {
        let share = percent_fixed(ratio(n as f64, requests));
        vec![by(row.pid, &row.process, &row.thread), opcode(row), what.to_owned(), count(n), share]
    })
    .collect()
}

fn wait(row: &UringWaitRow) -> Vec<String> {
    let outstanding = match row.outstanding.is_empty() {
        true => "only what was submitted before".to_owned(),
        false => row.outstanding.join(", "),
    };
    vec![by(row.pid, &row.process, &row.thread), outstanding, decimal(row.per_s), percent_fixed(row.share)]
}

fn by(pid: u32, process: &str, thread: &str) -> String {
    let thread = if thread.is_empty() || thread == process { String::new() } else { format!(" ({thread})") };
    format!("{} {pid}{thread}", or(process, "process"))
}
