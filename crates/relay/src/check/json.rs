//! Prints the result of `relay check` as a JSON document, `parshall.relay-check/1`.
use std::path::Path;
use std::time::Duration;

use parshall_core::relay::config::row::{Row, Shown};
use parshall_core::relay::config::{ConfigError, Global, Language, Listener, Protocol, Target};
use parshall_host::output;
use serde_json::{Map, Value, json};

use crate::load::Loaded;

const SCHEMA: &str = "parshall.relay-check/1";

/// The document, with a line break at its end.
pub fn json(path: &Path, loaded: &Loaded) -> anyhow::Result<String> {
    let mut document = json!({
        "schema": SCHEMA,
        "file": path.display().to_string(),
        "language": match loaded.language { Language::Toml => "toml", Language::Rinetd => "rinetd" },
        "ok": loaded.config.is_ok(),
        "errors": match &loaded.config {
            Ok(_) => Vec::new(),
            Err(errors) => errors.iter().map(error).collect(),
        },
    });
    if let Ok(config) = &loaded.config {
        document["global"] = Value::Object(settings(Global::ROWS.iter(), &config.global));
        document["listeners"] = config.listeners.iter().map(listener).collect();
    }
    output::json(&document)
}

fn error(error: &ConfigError) -> Value {
    json!({"line": error.line, "column": error.column, "what": error.what, "hint": error.hint})
}

fn listener(l: &Listener) -> Value {
    let mut object = settings(Listener::rows(), l);
    object.insert("name".to_owned(), json!(l.name));
    object.insert("protocol".to_owned(), json!(if l.protocol == Protocol::Udp { "udp" } else { "tcp" }));
    object.insert("listen".to_owned(), json!(l.listen.to_string()));
    object.insert("targets".to_owned(), l.targets.iter().map(target).collect());
    Value::Object(object)
}

/// Every setting under its key; the settings of a table are in an object.
fn settings<S: 'static>(rows: impl Iterator<Item = &'static Row<S>>, subject: &S) -> Map<String, Value> {
    let mut object = Map::new();
    for row in rows {
        let value = match row.field.shown(subject) {
            Shown::Time(Duration::ZERO) if row.more.zero_is_off => Value::Null,
            shown => value(shown),
        };
        if row.table().is_empty() {
            object.insert(row.json_key(), value);
        } else {
            object.entry(row.table()).or_insert_with(|| json!({}))[row.json_key()] = value;
        }
    }
    object
}

fn value(shown: Shown) -> Value {
    match shown {
        Shown::Nothing => Value::Null,
        Shown::Flag(flag) => json!(flag),
        Shown::Number(number) => json!(number),
        Shown::Time(time) => json!(time.as_secs_f64()),
        Shown::Text(text) => json!(text),
        Shown::List(items) => items.into_iter().map(value).collect(),
        Shown::Table(entries) => Value::Object(entries.into_iter().map(|(key, shown)| (key, value(shown))).collect()),
    }
}

fn target(target: &Target) -> Value {
    json!({"address": target.endpoint.to_string(), "weight": target.weight})
}
