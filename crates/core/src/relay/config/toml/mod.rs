//! Reads the configuration in TOML: the top of the file, `[defaults]` and the `[[listener]]` tables.
//!
//! `docs/relay.md` describes the keys. The document is not read with serde, because serde stops at the first error, and all
//! errors are reported with their positions.
mod access;
mod listener;
mod settings;
mod unknown;

use ::toml::de::{DeTable, DeValue, Error};

use super::draft::{Draft, assemble};
use super::error::{ConfigError, ConfigErrors};
use super::read::{self, Entry, Reader};
use super::table::{Config, Global};
use crate::text::quote;
use crate::values::ValueError;
use settings::Settings;
use unknown::top_keys;

/// Reads a configuration.
pub fn parse(text: &str) -> Result<Config, Vec<ConfigError>> {
    let mut errors = ConfigErrors::new(text);
    let (document, syntax_errors) = DeTable::parse_recoverable(text);
    if !syntax_errors.is_empty() {
        // After a syntax error the parser guesses the rest of the document, so its errors are not reported.
        for error in &syntax_errors {
            let at = error.span().map_or(text.len(), |span| span.start);
            match unquoted(text, at) {
                Some((start, wrong)) => errors.add(start, wrong),
                None => errors.add(at, syntax(error)),
            }
        }
        return Err(errors.finish());
    }
    let mut reader = Reader { errors: &mut errors, hint_for_unknown: unknown::hint };
    let file = top(&mut reader, document.get_ref());
    if file.drafts.is_empty() && errors.is_empty() {
        let hint = "begin one with [[listener]], and give it `listen` and `target`";
        errors.add(0, ValueError::new("there is no listener", hint));
    }
    let config = assemble(file.global, &file.defaults.settings, &file.drafts, &mut errors);
    if errors.is_empty() { Ok(config) } else { Err(errors.finish()) }
}

#[derive(Default)]
struct File {
    global: Global,
    defaults: Settings,
    drafts: Vec<Draft>,
}

fn top(reader: &mut Reader<'_, '_>, document: &DeTable<'_>) -> File {
    let mut file = File::default();
    let entries = read::entries(document, "");
    // Defaults apply wherever they are in the file.
    if let Some(entry) = entries.iter().find(|e| e.key == "defaults") {
        file.defaults = defaults(reader, entry);
    }
    for entry in &entries {
        match entry.key {
            "defaults" => {}
            "listener" => file.drafts = drafts(reader, entry, &file.defaults),
            _ => global(reader, entry, &mut file.global),
        }
    }
    file
}

fn global(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, global: &mut Global) {
    let Some(row) = Global::ROWS.iter().find(|row| row.key == entry.key) else {
        return reader.unknown(entry, &top_keys());
    };
    if let Some(set) = row.field.read(reader, entry, &row.line()) {
        set(global);
    }
}

/// Reads `[defaults]`.
fn defaults(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Settings {
    let entries = reader.table(entry, "", "[defaults] on a line of its own");
    settings::read(reader, &entries, &settings::keys(), |_, _| false)
}

fn drafts(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, defaults: &Settings) -> Vec<Draft> {
    let tables = match entry.value.get_ref() {
        DeValue::Array(items) => items.iter().collect(),
        DeValue::Table(_) => vec![entry.value],
        _ => {
            let what = format!("`listener` is {}, not a table", read::kind(entry.value.get_ref()));
            reader.errors.add(entry.value.span().start, ValueError::new(what, "begin each listener with [[listener]]"));
            return Vec::new();
        }
    };
    if let DeValue::Table(_) = entry.value.get_ref() {
        let wrong =
            ValueError::new("`listener` is a single table", "begin each listener with [[listener]], in two brackets");
        reader.errors.add(entry.at, wrong);
    }
    tables.into_iter().filter_map(|table| listener::draft(reader, table, defaults)).collect()
}

/// The error for a string without quotes, such as `listen = 127.0.0.1:9000`, of which the parser says that it is no number.
fn unquoted(text: &str, at: usize) -> Option<(usize, ValueError)> {
    let begin = text.get(..at)?.rfind('\n').map_or(0, |i| i + 1);
    let line = text[begin..].lines().next()?;
    let (key, behind) = line.split_once('=')?;
    let value = behind.split('#').next()?.trim();
    let start = begin + line.len() - behind.trim_start().len();
    let bare = value.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | ':' | '-'));
    let inside = (start..=start + value.len()).contains(&at);
    (bare && inside && !value.contains(['"', '\'', ' ', ','])).then(|| {
        let what = format!("{} is neither a number nor in quotes", quote(value));
        (start, ValueError::new(what, format!("write {} = \"{value}\"", key.trim())))
    })
}

/// A syntax error with a hint. The message of the parser, which says what it expected, is kept.
fn syntax(error: &Error) -> ValueError {
    let message = error.message().lines().next().unwrap_or("it cannot be read");
    let hint = if message.contains("duplicate key") {
        "write each key once; several listeners begin with [[listener]] each"
    } else if message.contains("string") || message.contains("quoted") {
        "strings stand in quotes, as in listen = \"127.0.0.1:9000\""
    } else {
        "a line is `key = value`, `[defaults]` or `[[listener]]`; strings stand in quotes"
    };
    ValueError::new(format!("this is not TOML: {message}"), hint)
}
