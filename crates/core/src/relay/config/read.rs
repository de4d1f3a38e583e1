//! Reads single values of a TOML document. A value of another kind than expected becomes an error at its position.
use std::borrow::Cow;

use ::toml::Spanned;
use ::toml::de::{DeTable, DeValue};
use ipnet::IpNet;

use super::at::{At, Places};
use super::error::ConfigErrors;
use crate::networks;
use crate::sorting::StableSort as _;
use crate::text::quote;
use crate::values::ValueError;

/// A key with its value.
pub struct Entry<'d, 'i> {
    /// The key.
    pub key: &'d str,
    /// The byte offset of the key.
    pub at: usize,
    /// The table that it is in, for messages; empty for a listener and the top of the file.
    pub above: &'static str,
    /// Its value.
    pub value: &'d Spanned<DeValue<'i>>,
}

impl Entry<'_, '_> {
    /// The whole key.
    pub fn path(&self) -> String {
        if self.above.is_empty() { self.key.to_owned() } else { format!("{}.{}", self.above, self.key) }
    }
}

/// The entries of a table in the order of the file.
pub fn entries<'d, 'i>(table: &'d DeTable<'i>, above: &'static str) -> Vec<Entry<'d, 'i>> {
    let mut entries: Vec<_> =
        table.iter().map(|(key, value)| Entry { key: key.get_ref(), at: key.span().start, above, value }).collect();
    entries.stable_sort_by_key(|entry| entry.at);
    entries
}

/// The kind of a value, for messages.
pub fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The text of a string or a number: the parsers of values take either.
pub fn scalar<'d>(value: &'d DeValue<'_>) -> Option<Cow<'d, str>> {
    match value {
        DeValue::String(text) => Some(Cow::Borrowed(text)),
        DeValue::Integer(number) if number.radix() == 10 => Some(Cow::Borrowed(number.as_str())),
        DeValue::Integer(number) => Some(Cow::Owned(match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => number.to_string(),
        })),
        DeValue::Float(number) => Some(Cow::Borrowed(number.as_str())),
        _ => None,
    }
}

/// Reads values and collects errors.
pub struct Reader<'m, 't> {
    /// The errors so far.
    pub errors: &'m mut ConfigErrors<'t>,
    /// The hint for an unknown key, from the entry and the keys that are known there.
    pub hint_for_unknown: fn(&Entry<'_, '_>, &[&str]) -> String,
}

impl Reader<'_, '_> {
    /// Reads a value with a parser of texts.
    pub fn parsed<T>(
        &mut self,
        entry: &Entry<'_, '_>,
        example: &str,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Option<T> {
        let at = entry.value.span().start;
        let Some(text) = scalar(entry.value.get_ref()) else {
            self.wrong_kind(entry, example);
            return None;
        };
        self.errors.keep(at, parse(&text).map_err(|wrong| named(entry, wrong)))
    }

    /// Whether the value is `false`.
    pub fn is_false(&self, entry: &Entry<'_, '_>) -> bool {
        matches!(entry.value.get_ref(), DeValue::Boolean(false))
    }

    /// Reads a list of networks, which must not be empty.
    pub fn networks(&mut self, entry: &Entry<'_, '_>, example: &str) -> Vec<IpNet> {
        if matches!(entry.value.get_ref(), DeValue::Array(items) if items.is_empty()) {
            let what = format!("`{}` is empty", entry.path());
            let wrong = ValueError::new(what, format!("name at least one, as in {example}"));
            self.errors.add(entry.value.span().start, wrong);
        }
        let mut networks = Vec::new();
        for At { value: text, at } in self.strings(entry, example) {
            let network = networks::networks(&text).map_err(|wrong| named(entry, wrong));
            networks.extend(self.errors.keep(at, network).into_iter().flatten());
        }
        networks
    }

    /// Reads `true` or `false`.
    pub fn flag(&mut self, entry: &Entry<'_, '_>) -> Option<bool> {
        match entry.value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            _ => {
                self.wrong_kind(entry, &format!("{} = true", entry.key));
                None
            }
        }
    }

    /// Reads a string or a list of strings, each with its byte offset.
    pub fn strings(&mut self, entry: &Entry<'_, '_>, example: &str) -> Places<String> {
        let mut strings = Vec::new();
        for item in self.items(entry) {
            match item.get_ref() {
                DeValue::String(text) => strings.push(At::new(text.to_string(), item.span().start)),
                other => {
                    let what = format!("`{}` holds strings, but this is {}", entry.path(), kind(other));
                    self.errors.add(item.span().start, ValueError::new(what, format!("write it as {example}")));
                }
            }
        }
        strings
    }

    /// The items of a list; another value is the only item.
    pub fn items<'d, 'i>(&self, entry: &Entry<'d, 'i>) -> Vec<&'d Spanned<DeValue<'i>>> {
        match entry.value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![entry.value],
        }
    }

    /// Reads the entries of a table.
    pub fn table<'d, 'i>(&mut self, entry: &Entry<'d, 'i>, above: &'static str, example: &str) -> Vec<Entry<'d, 'i>> {
        match entry.value.get_ref() {
            DeValue::Table(table) => entries(table, above),
            _ => {
                self.wrong_kind(entry, example);
                Vec::new()
            }
        }
    }

    /// Adds the error for a value of the wrong kind.
    pub fn wrong_kind(&mut self, entry: &Entry<'_, '_>, example: &str) {
        let what = format!("`{}` cannot be {}", entry.path(), kind(entry.value.get_ref()));
        self.errors.add(entry.value.span().start, ValueError::new(what, format!("write {example}")));
    }

    /// Adds the error for an unknown key.
    pub fn unknown(&mut self, entry: &Entry<'_, '_>, known: &[&str]) {
        let what = format!("unknown key {}", quote(&entry.path()));
        let hint = (self.hint_for_unknown)(entry, known);
        self.errors.add(entry.at, ValueError::new(what, hint));
    }
}

/// The error of a value, prefixed with its key.
pub fn named(entry: &Entry<'_, '_>, wrong: ValueError) -> ValueError {
    ValueError::new(format!("{}: {}", entry.path(), wrong.what), wrong.hint)
}
