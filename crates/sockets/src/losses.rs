//! What a person should know of rows that did not arrive and of disks that fail: what is new in the accounts of the sinks, not
//! too often, and what is left at the end. The metrics have all of it at any time.
use std::collections::BTreeMap;
use std::time::Duration;

use super::sink::Account;

/// A sink that goes on failing is reported so often.
const PAUSE: Duration = Duration::from_secs(60);

/// What was reported.
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
    /// One line for each sink that lost something or failed since the last line about it. `now` counts from any beginning.
    pub fn news(&mut self, now: Duration, accounts: &[(String, Account)]) -> Vec<String> {
        accounts.iter().filter_map(|(name, account)| self.of(now, name, account)).collect()
    }

    fn of(&mut self, now: Duration, name: &str, account: &Account) -> Option<String> {
        let reported = self.sinks.entry(name.to_owned()).or_default();
        let before = &reported.account;
        // Failures of a kind that is known and cost nothing are retries: the metrics count them.
        let is_new = account.rows_dropped > before.rows_dropped
            || account.bytes_lost > before.bytes_lost
            || account.errors.keys().any(|kind| !before.errors.contains_key(kind));
        if !is_new || reported.at.is_some_and(|at| now < at + PAUSE) {
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
            text.push_str(&format!("; {} bytes of damaged files left out", account.bytes_lost));
        }
        if let Some(error) = &account.last_error {
            text.push_str(&format!("; the last: {error}"));
        }
        *reported = Reported { account: account.clone(), at: Some(now) };
        Some(text)
    }
}

/// What did not arrive, when sinks have ended.
pub fn at_the_end(accounts: &[(String, Account)]) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, account) in accounts {
        if account.rows_waiting > 0 && account.spool_bytes > 0 {
            notes.push(format!("{name}: {} rows wait in the spool for the next start", account.rows_waiting));
        }
        let missing = account.rows_dropped + if account.spool_bytes > 0 { 0 } else { account.rows_waiting };
        let why = account.last_error.as_deref();
        if missing > 0 {
            let why = why.unwrap_or("it was too slow");
            notes.push(format!("{name}: {missing} of {} rows did not arrive: {why}", account.rows_in));
        } else if let Some(why) =
            why.filter(|_| ["sync", "incomplete"].iter().any(|kind| account.errors.contains_key(kind)))
        {
            notes.push(format!("{name}: not everything is safe on the disk: {why}"));
        }
    }
    notes
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
    fn news_are_said_once_and_not_too_often() {
        let (mut losses, second) = (Losses::default(), Duration::from_secs(1));
        assert!(losses.news(second, &[("files".to_owned(), Account::default())]).is_empty());
        let full = [account(0, &[("disk-full", 2)], "no space")];
        assert_eq!(losses.news(second * 2, &full), ["files: disk-full 2; the last: no space"]);
        assert!(losses.news(second * 3, &full).is_empty(), "it was said");
        let lost = [account(7, &[("disk-full", 9), ("queue-full", 1)], "no room")];
        assert!(losses.news(second * 61, &lost).is_empty(), "not yet");
        let text = "files: disk-full 9, queue-full 1; 7 of 100 rows lost; the last: no room";
        assert_eq!(losses.news(second * 62, &lost), [text]);
        assert!(losses.news(second * 999, &[account(7, &[("disk-full", 99), ("queue-full", 1)], "x")]).is_empty());
    }

    #[test]
    fn the_end_says_what_waits_and_what_is_missing() {
        let waits = Account { rows_in: 9, rows_waiting: 4, spool_bytes: 1, ..Account::default() };
        let texts = at_the_end(&[("kafka".to_owned(), waits), account(3, &[("ended", 1)], "late")]);
        assert_eq!(
            texts,
            ["kafka: 4 rows wait in the spool for the next start", "files: 3 of 100 rows did not arrive: late"]
        );
        let unsure = at_the_end(&[account(0, &[("sync", 1)], "EIO")]);
        assert_eq!(unsure, ["files: not everything is safe on the disk: EIO"]);
        assert!(at_the_end(&[account(0, &[("refused", 1)], "refused")]).is_empty());
    }
}
