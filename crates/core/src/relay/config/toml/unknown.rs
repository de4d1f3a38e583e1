//! Hints for keys that are unknown where they stand.
use super::super::check::Check;
use super::super::read::Entry;
use super::super::table::{Global, Listener};
use super::settings;
use crate::text::suggest;

/// The keys at the top of the file.
pub fn top_keys() -> Vec<&'static str> {
    Global::ROWS.iter().map(|row| row.key).chain(["defaults", "listener"]).collect()
}

/// The hint for an unknown key. If the key exists in another table, the hint says so.
pub fn hint(entry: &Entry<'_, '_>, known: &[&str]) -> String {
    let key = entry.key;
    let own = settings::OWN.contains(&key);
    let shared = settings::keys().contains(&key);
    let at_top = known.contains(&"listener");
    let table = Listener::rows().find(|row| !row.table().is_empty() && row.name() == key).map(|row| row.table());
    let table = table.or_else(|| Check::ROWS.iter().any(|row| row.name() == key).then_some("check"));
    if at_top && (own || shared) {
        format!("`{key}` belongs into a [[listener]], or into [defaults]")
    } else if top_keys().contains(&key) && entry.above != "health" {
        format!("`{key}` belongs to the top of the file, above the first table")
    } else if own && known == settings::keys() {
        format!("`{key}` belongs into a [[listener]]")
    } else if let Some(table) = table {
        format!("it belongs into `{table}`: {table} = {{ {key} = ... }}")
    } else if shared && key != "protocol" {
        format!("`{key}` belongs directly into the listener, above its tables")
    } else {
        suggest(key, known)
    }
}
