//! The settings of active checks, and how `health.check` is read.
use std::time::Duration;

use ::toml::de::DeValue;

use super::at::At;
use super::read::{Entry, Reader};
use super::row::{More, Read, Row, Section, Show, Shown, Typed};
use super::settings_macro::{place, settings};
use super::value;
use crate::values::{ValueError, count, positive_duration};

settings! {
    /// Connections to a target that check it at intervals.
    #[derive(Debug, Clone, Copy, PartialEq)]
    Check () {}
    CHECK of Check [], Health {
        "health.check.interval" interval: Duration = Duration::from_secs(5), "\"5s\"", "between two attempts", Read::Text(value::interval), unit: "_s";
        "health.check.timeout" timeout: Duration = Duration::from_secs(2), "\"2s\"", "for one attempt", Read::Text(positive_duration), unit: "_s";
        "health.check.rise" rise: u32 = 2, "2", "successes in a row after which the target is used again", Read::Text(count);
        "health.check.fall" fall: u32 = 3, "3", "failures in a row after which it is not", Read::Text(count);
    }
}

impl Check {
    /// The settings in the order of the reference.
    pub const ROWS: &'static [Row<Self>] = CHECK;
}

impl Default for Check {
    fn default() -> Self {
        Self::new()
    }
}

impl Show for Check {
    fn show(&self) -> Shown {
        Shown::Table(Self::ROWS.iter().map(|row| (row.json_key(), row.field.shown(self))).collect())
    }
}

/// Reads `health.check`, which is a boolean or a table. A timeout that is not given is at most the interval.
pub fn read(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Option<Option<Check>> {
    if let DeValue::Boolean(on) = entry.value.get_ref() {
        return Some(on.then(Check::new));
    }
    let mut check = Check::new();
    let mut timeout = None;
    let example = "check = { interval = \"5s\", timeout = \"2s\" }";
    for entry in &reader.table(entry, "health.check", example) {
        let Some(row) = Check::ROWS.iter().find(|row| row.name() == entry.key) else {
            let known: Vec<&str> = Check::ROWS.iter().map(|row| row.name()).collect();
            reader.unknown(entry, &known);
            continue;
        };
        if let Some(set) = row.field.read(reader, entry, &row.line()) {
            set(&mut check);
            timeout = (entry.key == "timeout").then(|| At::new(check.timeout, entry.at)).or(timeout);
        }
    }
    match timeout {
        None => check.timeout = check.timeout.min(check.interval),
        Some(timeout) if timeout.value > check.interval => {
            let what = "the check's timeout is longer than its interval";
            reader.errors.add(timeout.at, ValueError::new(what, "make the timeout the shorter one"));
        }
        Some(_) => {}
    }
    Some(Some(check))
}
