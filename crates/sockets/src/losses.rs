//! Log messages about rows that were lost and disks that failed: what is new in the accounts of the sinks, at a limited rate,
//! and what is left at the end. The metrics always have all of it.
use std::collections::BTreeMap;
use std::time::Duration;

use crate::sink::account::Account;
use crate::sink::stdout::READER_LEFT;

/// The interval at which a sink that keeps failing is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The last report about each sink.
#[derive(Debug, Default)]
pub struct Losses {
    sinks: BTreeMap<String, Reported>,
}

#[derive(Debug, Default)]
struct Reported {
    account: Account,
    at: Option<Duration>,
}

impl Losses {
    /// One line for each sink that lost something or failed since the last line about it. `now` is a monotonic time.
    pub fn new_lines(&mut self, now: Duration, accounts: &[(String, Account)]) -> Vec<String> {
        accounts.iter().filter_map(|(name, account)| self.of(now, name, account)).collect()
    }

    fn of(&mut self, now: Duration, name: &str, account: &Account) -> Option<String> {
        let reported = self.sinks.entry(name.to_owned()).or_default();
        let before = &reported.account;
        // A further failure of a known kind that lost nothing is a retry, which only the metrics count.
        let is_new = account.rows_dropped > before.rows_dropped
            || account.bytes_lost > before.bytes_lost
            || account.errors.keys().any(|kind| !before.errors.contains_key(kind));
        if !is_new || reported.at.is_some_and(|at| now < at + REPORT_INTERVAL) {
            return None;
        }
        let errors = &before.errors;
        let kinds = account.errors.iter().filter(|(kind, n)| errors.get(*kind).is_none_or(|before| *n > before));
        let kinds: Vec<String> = kinds.map(|(kind, n)| format!("{kind} {n}")).collect();
        let mut text = format!("{name}: {}", kinds.join(", "));
        if account.rows_dropped > 0 {
            text.push_str(&format!("; {} of {} rows lost", account.rows_dropped, account.rows_in));
        }
        if account.bytes_lost > 0 {
            text.push_str(&format!("; {} bytes of damaged files skipped", account.bytes_lost));
        }
        if let Some(error) = &account.last_error {
            text.push_str(&format!("; last error: {error}"));
        }
        *reported = Reported { account: account.clone(), at: Some(now) };
        Some(text)
    }
}

/// Rows that closed sinks did not deliver.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Undelivered {
    /// A line for each sink whose rows wait for the next start.
    pub waiting: Vec<String>,
    /// A line for each sink that lost rows, or may have.
    pub lost: Vec<String>,
    /// A hint for the first of these.
    pub hint: &'static str,
}

/// Names the rows that closed sinks did not deliver, and why.
pub fn undelivered(accounts: &[(String, Account)]) -> Undelivered {
    let mut found = Undelivered::default();
    for (name, account) in accounts {
        let spooled = account.spool_bytes > 0;
        if account.rows_waiting > 0 && spooled {
            found
                .waiting
                .push(format!("{name}: {} rows are in the spool and wait for the next start", account.rows_waiting));
        }
        // A reader that has closed the pipe wanted no more rows.
        if account.errors.contains_key(READER_LEFT) {
            continue;
        }
        let missing = account.rows_dropped + if spooled { 0 } else { account.rows_waiting };
        let line = match (missing, &account.loss) {
            (0, None) => continue,
            (0, Some(why)) => format!("{name}: not all rows are safe: {why}"),
            (_, why) => {
                let why = why.as_deref().unwrap_or("the receiver was too slow");
                format!("{name}: {missing} of {} rows were not delivered: {why}", account.rows_in)
            }
        };
        if found.lost.is_empty() {
            found.hint = hint(account);
        }
        found.lost.push(line);
    }
    found
}

fn hint(account: &Account) -> &'static str {
    let kinds = |kinds: &[&str]| kinds.iter().any(|kind| account.errors.contains_key(kind));
    if kinds(&["disk-full", "spool-full"]) {
        "free some space or allow less of it (`keep`, `size`); rows that fit are in the files"
    } else if kinds(&["incomplete", "sync", "write"]) {
        "`df` and the kernel's log say what the file system lacks; the next start completes what can be saved"
    } else if kinds(&["ended", "abandoned", "queue-full"]) {
        "a `spool` in the table of the sink keeps rows on disk while the receiver is away: docs/sockets.md, Sinks"
    } else {
        "docs/sockets.md, Sinks, has the settings of the sink"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::account::Fault;

    fn account(dropped: u64, errors: &[(&'static str, u64)], last: &str) -> (String, Account) {
        let errors = errors.iter().copied().collect();
        let last_error = Some(last.to_owned());
        ("files".to_owned(), Account { rows_in: 100, rows_dropped: dropped, errors, last_error, ..Account::default() })
    }

    #[test]
    fn losses_are_reported_once_and_at_a_limited_rate() {
        let (mut losses, second) = (Losses::default(), Duration::from_secs(1));
        assert!(losses.new_lines(second, &[("files".to_owned(), Account::default())]).is_empty());
        let full = [account(0, &[("disk-full", 2)], "no space")];
        assert_eq!(losses.new_lines(second * 2, &full), ["files: disk-full 2; last error: no space"]);
        assert!(losses.new_lines(second * 3, &full).is_empty(), "it was reported");
        let lost = [account(7, &[("disk-full", 9), ("queue-full", 1)], "queue full")];
        assert!(losses.new_lines(second * 61, &lost).is_empty(), "the interval has not passed");
        let text = "files: disk-full 9, queue-full 1; 7 of 100 rows lost; last error: queue full";
        assert_eq!(losses.new_lines(second * 62, &lost), [text]);
        assert!(losses.new_lines(second * 999, &[account(7, &[("disk-full", 99), ("queue-full", 1)], "x")]).is_empty());
    }

    #[test]
    fn undelivered_rows_have_the_reason_of_their_loss() {
        let waits = Account { rows_in: 9, rows_waiting: 4, spool_bytes: 1, ..Account::default() };
        let mut late = account(3, &[("disk-full", 1)], "no space").1;
        late.loss = Some("no space".to_owned());
        late.failed("sync", "a later failure that lost nothing".to_owned());
        let found = undelivered(&[("kafka".to_owned(), waits), ("files".to_owned(), late)]);
        assert_eq!(found.waiting, ["kafka: 4 rows are in the spool and wait for the next start"]);
        assert_eq!(found.lost, ["files: 3 of 100 rows were not delivered: no space"]);
        assert!(found.hint.contains("space"), "{found:?}");
    }

    #[test]
    fn a_disk_that_failed_may_have_lost_rows_and_a_retry_has_not() {
        let mut unsure = account(0, &[], "").1;
        unsure.fault(Fault::new("sync", "EIO".to_owned()));
        unsure.failed("unfinished", "of an earlier process".to_owned());
        let found = undelivered(&[("files".to_owned(), unsure)]);
        assert_eq!(found.lost, ["files: not all rows are safe: EIO"]);
        assert_eq!(undelivered(&[account(0, &[("refused", 1)], "refused")]), Undelivered::default());
    }

    #[test]
    fn a_reader_that_has_left_lost_nothing() {
        let mut left = Account { rows_in: 5, ..Account::default() };
        left.lost(2, READER_LEFT, "Broken pipe".to_owned());
        assert_eq!(undelivered(&[("stdout".to_owned(), left)]), Undelivered::default());
    }
}
