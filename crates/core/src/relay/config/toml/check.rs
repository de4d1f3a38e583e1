//! Reads `health.check`, which is a boolean or a table.
use ::toml::de::DeValue;

use super::super::draft::At;
use super::super::table::Check;
use super::read::{Entry, Reader};
use crate::values::ValueError;

/// Reads the value. A timeout that is not given is at most the interval.
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
