//! Log messages about rows that were lost and disks that failed: what is new in the accounts of the sinks, at a limited rate,
//! and what is left at the end. The metrics always have all of it.
use std::collections::BTreeMap;
use std::time::Duration;

use crate::sink::Account;

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

/// One line for each closed sink that did not deliver all rows.
pub fn final_lines(accounts: &[(String, Account)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, account) in accounts {
        if account.rows_waiting > 0 && account.spool_bytes > 0 {
            lines.push(format!("{name}: {} rows are in the spool and wait for the next start", account.rows_waiting));
        }
        let missing = account.rows_dropped + if account.spool_bytes > 0 { 0 } else { account.rows_waiting };
        let why = account.last_error.as_deref();
        if missing > 0 {
            let why = why.unwrap_or("the receiver was too slow");
            lines.push(format!("{name}: {missing} of {} rows were not delivered: {why}", account.rows_in));
        } else if let Some(why) =
            why.filter(|_| ["sync", "incomplete"].iter().any(|kind| account.errors.contains_key(kind)))
        {
            lines.push(format!("{name}: not all rows are safe on disk: {why}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn final_lines_name_waiting_and_lost_rows() {
        let waits = Account { rows_in: 9, rows_waiting: 4, spool_bytes: 1, ..Account::default() };
        let texts = final_lines(&[("kafka".to_owned(), waits), account(3, &[("ended", 1)], "late")]);
        assert_eq!(
            texts,
            [
                "kafka: 4 rows are in the spool and wait for the next start",
                "files: 3 of 100 rows were not delivered: late"
            ]
        );
        let unsure = final_lines(&[account(0, &[("sync", 1)], "EIO")]);
        assert_eq!(unsure, ["files: not all rows are safe on disk: EIO"]);
        assert!(final_lines(&[account(0, &[("refused", 1)], "refused")]).is_empty());
    }
}
