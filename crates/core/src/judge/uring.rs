//! The service's requests to io_uring, and the waits of its threads in io_uring_enter().
use std::cmp::Reverse;
use std::collections::BTreeMap;

use parshall_evidence::{Capture, Uring, UringCell, UringCounts, UringErrors, UringReport, UringRow, UringWaitRow};

use crate::sorting::StableSort as _;
use crate::stats::ratio;
use crate::text::without_numbers;

/// Rows of each kind in a report.
const ROWS_MAX: usize = 200;

/// Threads of one name in a process.
type Threads = (u32, String);

/// None where nobody was seen to use it.
pub fn uring(capture: &Capture) -> Option<UringReport> {
    let uring = capture.uring.as_ref()?;
    let window_s = capture.window_ns as f64 / 1e9;
    Some(UringReport {
        requests: requests(uring, window_s),
        waits: waits(uring, window_s),
        left_out: uring.left_out,
        lost: uring.lost,
        not_followed: uring.not_followed,
        absent: uring.absent.clone(),
    })
}

fn requests(uring: &Uring, window_s: f64) -> Vec<UringRow> {
    let mut sums: BTreeMap<(Threads, &str), UringCell> = BTreeMap::new();
    for cell in &uring.cells {
        let key = ((cell.pid, without_numbers(&cell.thread)), cell.opcode.as_str());
        let sum =
            sums.entry(key).or_insert_with(|| UringCell { process: cell.process.clone(), ..UringCell::default() });
        add(sum, cell);
    }
    let mut rows: Vec<UringRow> = sums
        .into_iter()
        .map(|(((pid, thread), opcode), sum)| {
            let ended = (sum.timed > 0).then_some(sum.timed as f64);
            UringRow {
                pid,
                process: sum.process,
                thread,
                opcode: opcode.to_owned(),
                per_s: ratio(sum.counts.completed as f64, window_s),
                mean_us: ended.map(|ended| sum.ns as f64 / ended / 1e3),
                longest_us: ended.map(|_| sum.longest_ns as f64 / 1e3),
                counts: sum.counts,
            }
        })
        .collect();
    rows.stable_sort_by_key(|row| Reverse(row.counts.completed.max(row.counts.submitted)));
    rows.truncate(ROWS_MAX);
    rows
}

fn add(sum: &mut UringCell, cell: &UringCell) {
    let plus = |a: &mut u64, b: u64| *a = a.saturating_add(b);
    let UringCounts {
        submitted,
        completed,
        outstanding,
        polls,
        to_workers,
        overflowed,
        failed_links,
        rejected,
        errors,
    } = &cell.counts;
    plus(&mut sum.counts.submitted, *submitted);
    plus(&mut sum.counts.completed, *completed);
    plus(&mut sum.counts.outstanding, *outstanding);
    plus(&mut sum.counts.polls, *polls);
    plus(&mut sum.counts.to_workers, *to_workers);
    plus(&mut sum.counts.overflowed, *overflowed);
    plus(&mut sum.counts.failed_links, *failed_links);
    plus(&mut sum.counts.rejected, *rejected);
    plus(&mut sum.timed, cell.timed);
    plus(&mut sum.ns, cell.ns);
    sum.longest_ns = sum.longest_ns.max(cell.longest_ns);
    let known = &mut sum.counts.errors;
    for UringErrors { error, count } in errors {
        match known.iter_mut().find(|known| known.error == *error) {
            Some(known) => plus(&mut known.count, *count),
            None => known.push(UringErrors { error: error.clone(), count: *count }),
        }
    }
    known.stable_sort_by(|a, b| (Reverse(a.count), &a.error).cmp(&(Reverse(b.count), &b.error)));
}

fn waits(uring: &Uring, window_s: f64) -> Vec<UringWaitRow> {
    let mut sums: BTreeMap<(Threads, &[String]), (&str, u64)> = BTreeMap::new();
    let mut of_process: BTreeMap<u32, u64> = BTreeMap::new();
    for waits in &uring.waits {
        let key = ((waits.pid, without_numbers(&waits.thread)), waits.outstanding.as_slice());
        let sum = sums.entry(key).or_insert((&waits.process, 0));
        sum.1 = sum.1.saturating_add(waits.count);
        let all = of_process.entry(waits.pid).or_default();
        *all = all.saturating_add(waits.count);
    }
    let mut rows: Vec<UringWaitRow> = sums
        .into_iter()
        .map(|(((pid, thread), outstanding), (process, count))| UringWaitRow {
            pid,
            process: process.to_owned(),
            thread,
            outstanding: outstanding.to_vec(),
            count,
            per_s: ratio(count as f64, window_s),
            share: ratio(count as f64, of_process.get(&pid).copied().unwrap_or(0) as f64),
        })
        .collect();
    rows.stable_sort_by_key(|row| Reverse(row.count));
    rows.truncate(ROWS_MAX);
    rows
}

#[cfg(test)]
mod tests {
    use parshall_evidence::UringWaits;

    use super::*;
    use crate::testkit::empty_capture;

    fn cell(tid: u32, opcode: &str, completed: u64, errors: &[(&str, u64)]) -> UringCell {
        let errors = errors.iter().map(|(error, count)| UringErrors { error: (*error).to_owned(), count: *count });
        UringCell {
            pid: 7,
            tid,
            process: "relay".to_owned(),
            thread: format!("relay-{tid}"),
            opcode: opcode.to_owned(),
            counts: UringCounts { submitted: 1, completed, errors: errors.collect(), ..UringCounts::default() },
            timed: completed,
            ns: completed * 2_000,
            longest_ns: u64::from(tid) * 1_000,
        }
    }

    #[test]
    fn threads_of_one_name_are_one_row_for_each_opcode() {
        let cells = vec![
            cell(8, "recv", 100, &[("ENOBUFS", 2)]),
            cell(9, "recv", 300, &[("ECANCELED", 1), ("ENOBUFS", 3)]),
            cell(9, "send", 900, &[]),
        ];
        let wait = |tid: u32, outstanding: &[&str], count| UringWaits {
            pid: 7,
            tid,
            thread: format!("relay-{tid}"),
            outstanding: outstanding.iter().map(|opcode| (*opcode).to_owned()).collect(),
            count,
            ..UringWaits::default()
        };
        let waits = vec![wait(8, &["recv"], 10), wait(9, &["recv", "send"], 20), wait(9, &["recv"], 50)];
        let capture = parshall_evidence::Capture {
            uring: Some(Uring { cells, waits, left_out: 4, ..Uring::default() }),
            ..empty_capture()
        };
        let report = uring(&capture).expect("there is some");
        let rows: Vec<_> =
            report.requests.iter().map(|r| (r.opcode.as_str(), r.counts.completed, r.mean_us, r.longest_us)).collect();
        assert_eq!(rows, [("send", 900, Some(2.0), Some(9.0)), ("recv", 400, Some(2.0), Some(9.0))]);
        assert_eq!(report.requests[1].thread, "relay-#");
        let errors: Vec<_> = report.requests[1].counts.errors.iter().map(|e| (e.error.as_str(), e.count)).collect();
        assert_eq!(errors, [("ENOBUFS", 5), ("ECANCELED", 1)]);
        let waits: Vec<_> = report.waits.iter().map(|w| (w.outstanding.len(), w.count, w.share)).collect();
        assert_eq!(waits, [(1, 60, 0.75), (2, 20, 0.25)]);
        assert_eq!(report.left_out, 4);
        assert_eq!(uring(&empty_capture()), None);
    }

    #[test]
    fn numbers_of_any_size_do_not_overflow() {
        let mut huge = cell(8, "recv", u64::MAX / 2_000, &[("EIO", u64::MAX)]);
        huge.ns = u64::MAX;
        let capture = parshall_evidence::Capture {
            uring: Some(Uring { cells: vec![huge.clone(), huge], ..Uring::default() }),
            window_ns: 0,
            ..empty_capture()
        };
        let report = uring(&capture).expect("there is some");
        assert_eq!(report.requests[0].counts.errors[0].count, u64::MAX);
    }
}
