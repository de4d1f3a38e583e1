//! Functions that the tables of several sinks share: parsers of values, and secrets in files.
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use parshall_core::values::{self, ValueError};
use parshall_host::error::UserError;
use serde::{Deserialize, Deserializer};

use crate::format::SocketFormat;

/// Reads a value with one of the parsers of `core`. The hint of an error follows its text after a line feed.
pub fn text<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl Fn(&str) -> Result<T, ValueError>,
) -> Result<T, <D as Deserializer<'de>>::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|wrong| serde::de::Error::custom(format!("{}\n{}", wrong.what, wrong.hint)))
}

/// Reads one of `names`; `what` is what they name.
pub fn one_of<'de, D: Deserializer<'de>, T: Copy>(from: D, what: &str, names: &[(&str, T)]) -> Result<T, D::Error> {
    text(from, |given| {
        names.iter().find(|(name, _)| *name == given).map(|(_, value)| *value).ok_or_else(|| {
            let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            ValueError::new(format!("there is no {what} `{given}`"), format!("choose from {}", all.join(", ")))
        })
    })
}

/// Reads the format of a sink.
pub fn format<'de, D: Deserializer<'de>>(from: D) -> Result<SocketFormat, D::Error> {
    let names: Vec<(String, SocketFormat)> =
        SocketFormat::value_variants().iter().map(|format| (format.to_string(), *format)).collect();
    let names: Vec<(&str, SocketFormat)> = names.iter().map(|(name, format)| (name.as_str(), *format)).collect();
    one_of(from, "format", &names)
}

/// Reads a number of bytes, at least 1 KiB.
pub fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    text(from, |given| values::size_within(given, 1 << 10, 1 << 50))
}

pub fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    text(from, values::duration)
}

/// As [`size`], for a value that is optional.
pub fn some_size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    size(from).map(Some)
}

/// As [`duration`], for a value that is optional.
pub fn some_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from).map(Some)
}

/// Reads a secret: the content of a file without the line feed at its end.
pub fn secret(what: &str, path: &Path) -> Result<String, UserError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let what = format!("cannot read the {what} in {}: {error}", path.display());
        UserError::new(what, "give a file that this user may read")
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// The default timeout of one attempt to deliver.
pub fn timeout() -> Duration {
    Duration::from_secs(10)
}
