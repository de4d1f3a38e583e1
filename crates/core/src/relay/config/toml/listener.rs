//! Reads a `[[listener]]` table.
use ::toml::Spanned;
use ::toml::de::DeValue;

use super::super::address::{self, Spec};
use super::super::at::{At, Places};
use super::super::draft::{Draft, TargetSpec};
use super::super::model::Protocol;
use super::super::read::{self, Entry, Reader, named};
use super::settings::{self, Settings};
use crate::text::quote;
use crate::values::ValueError;

/// Reads a listener.
pub fn draft(reader: &mut Reader<'_, '_>, table: &Spanned<DeValue<'_>>, defaults: &Settings) -> Option<Draft> {
    let at = table.span().start;
    let DeValue::Table(keys) = table.get_ref() else {
        let what = format!("a listener is a table, but this is {}", read::kind(table.get_ref()));
        reader.errors.add(at, ValueError::new(what, "begin each listener with [[listener]]"));
        return None;
    };
    let entries = read::entries(keys, "");
    let (mut name, mut listen, mut targets) = (None, Vec::new(), Vec::new());
    let known = [&settings::OWN, &settings::keys()[..]].concat();
    let own = settings::read(reader, &entries, &known, |reader, entry| {
        match entry.key {
            "name" => {
                name = reader.parsed(entry, "name = \"web\"", self::name).map(|n| At::new(n, entry.value.span().start));
            }
            "listen" => listen = self::listen(reader, entry),
            "target" | "targets" => targets = self::targets(reader, entry),
            _ => return false,
        }
        true
    });
    let find = |key: &str| entries.iter().find(|e| e.key == key);
    if find("listen").is_none() {
        let wrong =
            ValueError::new("the listener has no `listen`", "say where it listens, as in listen = \"127.0.0.1:9000\"");
        reader.errors.add(at, wrong);
    }
    match (find("target"), find("targets")) {
        (None, None) => {
            let wrong = ValueError::new(
                "the listener has no `target`",
                "say where its traffic goes, as in target = \"10.0.0.2:9001\"",
            );
            reader.errors.add(at, wrong);
        }
        (Some(one), Some(many)) => {
            let wrong = ValueError::new("the listener has `target` and `targets`", "list all targets in `targets`");
            reader.errors.add(one.at.max(many.at), wrong);
        }
        _ => {}
    }
    let protocol = own.protocol.or(defaults.protocol).unwrap_or(Protocol::Tcp);
    Some(Draft { name, protocol, listen, targets, settings: own.settings })
}

fn name(text: &str) -> Result<String, ValueError> {
    let fits = (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':' | b'/'));
    if fits {
        return Ok(text.to_owned());
    }
    Err(ValueError::new(
        format!("{} is not a name", quote(text)),
        "names have 1 to 64 letters, digits, `-`, `_`, `.`, `:` or `/`",
    ))
}

fn listen(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Places<Spec> {
    if is_empty_list(entry) {
        let wrong = ValueError::new("`listen` is empty", "say where it listens, as in listen = \"127.0.0.1:9000\"");
        reader.errors.add(entry.value.span().start, wrong);
    }
    let mut specs = Vec::new();
    for item in reader.items(entry) {
        let at = item.span().start;
        let Some(text) = read::scalar(item.get_ref()) else {
            let what = format!("`listen` cannot be {}", read::kind(item.get_ref()));
            reader
                .errors
                .add(at, ValueError::new(what, "write listen = \"127.0.0.1:9000\", or a list of such strings"));
            continue;
        };
        let spec = address::listen(&text).map_err(|wrong| named(entry, wrong));
        specs.extend(reader.errors.keep(at, spec).into_iter().flatten().map(|spec| At::new(spec, at)));
    }
    specs
}

fn targets(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Places<TargetSpec> {
    if is_empty_list(entry) {
        let wrong = ValueError::new(
            format!("`{}` is empty", entry.key),
            "name at least one, as in targets = [\"10.0.0.2:9001\"]",
        );
        reader.errors.add(entry.value.span().start, wrong);
    }
    reader.items(entry).into_iter().filter_map(|item| target(reader, entry, item)).collect()
}

fn is_empty_list(entry: &Entry<'_, '_>) -> bool {
    matches!(entry.value.get_ref(), DeValue::Array(items) if items.is_empty())
}

fn target(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, item: &Spanned<DeValue<'_>>) -> Option<At<TargetSpec>> {
    let at = item.span().start;
    if let Some(text) = read::scalar(item.get_ref()) {
        let spec = address::target(&text).map_err(|wrong| named(entry, wrong));
        return reader.errors.keep(at, spec).map(|spec| At::new(TargetSpec { spec, weight: 1 }, at));
    }
    let DeValue::Table(table) = item.get_ref() else {
        let what = format!("`{}` cannot hold {}", entry.key, read::kind(item.get_ref()));
        let hint = "write each target as \"10.0.0.2:9001\" or { address = \"10.0.0.2:9001\", weight = 3 }";
        reader.errors.add(at, ValueError::new(what, hint));
        return None;
    };
    let (mut spec, mut weight, mut named_address) = (None, 1, false);
    for entry in &read::entries(table, "") {
        match entry.key {
            "address" => {
                named_address = true;
                let found = reader.parsed(entry, "address = \"10.0.0.2:9001\"", address::target);
                spec = found.map(|spec| At::new(spec, entry.value.span().start));
            }
            "weight" => weight = reader.parsed(entry, "weight = 3", self::weight).unwrap_or(1),
            _ => reader.unknown(entry, &["address", "weight"]),
        }
    }
    if !named_address {
        reader.errors.add(at, ValueError::new("the target has no `address`", "write { address = \"10.0.0.2:9001\" }"));
    }
    spec.map(|spec| At::new(TargetSpec { spec: spec.value, weight }, spec.at))
}

fn weight(text: &str) -> Result<u32, ValueError> {
    match text.parse::<u32>() {
        Ok(weight) if (1..=1000).contains(&weight) => Ok(weight),
        _ => {
            Err(ValueError::new(format!("{} is not a weight", quote(text)), "weights are whole numbers from 1 to 1000"))
        }
    }
}
