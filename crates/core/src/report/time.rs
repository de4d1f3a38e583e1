//! The accounts of the time, as bars.
use parshall_evidence::{Account, Finding, Report, Rung, Status, TimeShare};

use super::head;
use super::page::{Bars, Basis, Detail, TimeRow, Title, top_finding};
use crate::sorting::StableSort as _;
use crate::units::{decimal, figures, percent_fixed, plural, time_ms};

/// Rows of the account of a short page, the one that sums up the rest included.
const SHORT_ROWS: usize = 5;

/// The accounts: a short page has the one that tells most, with its largest rows; a full one has all.
pub(super) fn bars(report: &Report, detail: Detail) -> Vec<Bars> {
    let requests = requests(report);
    let flows = account(report, &report.time.flows, ("flow", Basis::Flows), report.rung == Rung::Btf);
    let threads =
        account(report, &report.time.threads, ("thread", Basis::Threads), true).filter(|_| threads_matter(report));
    // Where the chain shows where the time went, flows and threads would only repeat it.
    let by_chain = top_finding(report).is_some_and(|top| !top.chain.is_empty()) && requests.is_some();
    let at_thread = report.verdict.status == Status::Cause && threads.is_some();
    let mut bars: Vec<Bars> = match detail {
        Detail::Full if by_chain => requests.into_iter().collect(),
        Detail::Full => requests.into_iter().chain(flows).chain(threads).collect(),
        Detail::Short if at_thread => requests.or(threads).into_iter().collect(),
        Detail::Short => requests.or(flows).or(threads).into_iter().collect(),
    };
    if detail == Detail::Short {
        bars.iter_mut().for_each(|bars| shorten(&mut bars.rows));
    }
    if let Some(first) = bars.first_mut() {
        first.title = Some(Title("TIME"));
    }
    bars
}

fn row(label: impl Into<String>, share: f64, basis: Basis) -> TimeRow {
    TimeRow { label: label.into(), share, figure: percent_fixed(share), basis }
}

/// The time of the service's requests by state, in the order in which they pass.
fn requests(report: &Report) -> Option<Bars> {
    let service = report.service.as_ref()?;
    let time = &service.time;
    let of = |label: &str, share: f64, state: &str| row(label, share, Basis::Requests(state.to_owned()));
    let mut rows = vec![
        of("in the accept queue", time.accept_queue, Basis::ACCEPT_QUEUE),
        of("unread in the socket", time.unread, Basis::UNREAD),
        of("rest of it not sent by the client yet", time.incomplete, Basis::INCOMPLETE),
    ];
    if time.work.is_empty() {
        rows.push(of("worked on", time.working, Basis::WORKING));
    }
    rows.extend(time.work.iter().map(|w| of(&format!("worked on: {}", w.label), w.share, &w.state)));
    rows.push(of("reply not sent yet", time.reply_unsent, Basis::REPLY_UNSENT));
    rows.retain(|row| row.share > 0.0);
    let of = format!("of the requests, {}", outstanding(service.outstanding, time.reply_unsent));
    (!rows.is_empty()).then_some(Bars { title: None, of, rows })
}

/// `2.7 outstanding on average`. The number is of the time until the reply is written; where replies are held in the socket afterwards, the
/// account goes on until they are sent, and so does the number.
fn outstanding(number: f64, unsent: f64) -> String {
    let until = if unsent > 0.0 { ", until the reply is sent" } else { "" };
    match number / (1.0 - unsent.clamp(0.0, 0.999)) {
        none if none < 0.005 => format!("under 0.01 outstanding on average{until}"),
        few if few < 0.95 => format!("{} outstanding on average{until}", figures(few)),
        number => format!("{} outstanding on average{until}", decimal(number)),
    }
}

/// The account of the flows or threads. `sliced`: what slices did not see is not in it.
fn account(
    report: &Report,
    account: &Account,
    (one, basis): (&str, fn(String) -> Basis),
    sliced: bool,
) -> Option<Bars> {
    let row_of = |state: &TimeShare| row(state.label.clone(), state.share, basis(state.state.clone()));
    let rows: Vec<TimeRow> = account.states.iter().map(row_of).filter(|row| row.share > 0.0).collect();
    let slices = if sliced && head::is_sliced(report) { "; shares ≈, from slices" } else { "" };
    let whose = plural(account.n, one, &format!("{one}s"));
    let of = format!("of {whose}, {} in all{slices}", time_ms(account.wall_ms));
    (!rows.is_empty()).then_some(Bars { title: None, of, rows })
}

/// Whether the account of the threads adds something to that of the flows.
fn threads_matter(report: &Report) -> bool {
    let at_thread = |f: &Finding| f.place.tid.is_some() || f.place.cgroup.is_some() || f.place.flow.is_none();
    report.verdict.status != Status::Cause
        || report.time.flows.states.is_empty()
        || report.findings.first().is_none_or(at_thread)
}

/// Leaves the largest rows where they are, and sums up the others at the end.
fn shorten(rows: &mut Vec<TimeRow>) {
    if rows.len() <= SHORT_ROWS {
        return;
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.stable_sort_by(|a, b| rows[*b].share.total_cmp(&rows[*a].share).then(a.cmp(b)));
    let mut rest = order.split_off(SHORT_ROWS - 1);
    rest.sort_unstable();
    let sum = rest.iter().map(|&at| rows[at].share).sum();
    let label = plural(rest.len() as u64, "other state", "other states");
    for &at in rest.iter().rev() {
        rows.remove(at);
    }
    rows.push(row(label, sum, Basis::None));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_0_is_not_called_0() {
        assert_eq!(outstanding(2.71, 0.0), "2.7 outstanding on average");
        assert_eq!(outstanding(0.024, 0.0), "0.02 outstanding on average");
        assert_eq!(outstanding(0.001, 0.0), "under 0.01 outstanding on average");
        // Replies that Nagle's algorithm holds for 40 ms each, 50 a second.
        assert_eq!(outstanding(0.01, 0.995), "2 outstanding on average, until the reply is sent");
    }
}
