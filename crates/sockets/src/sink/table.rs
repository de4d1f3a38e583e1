//! What the tables of several sinks have in common: how their texts are read, and secrets in files.
use std::path::Path;
use std::time::Duration;

use parshall_core::values::{self, ValueError};
use parshall_host::error::UserError;
use serde::{Deserialize, Deserializer};

/// A text read by one of the parsers of `core`; its hint follows behind a line feed.
pub fn text<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl Fn(&str) -> Result<T, ValueError>,
) -> Result<T, <D as Deserializer<'de>>::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|wrong| serde::de::Error::custom(format!("{}\n{}", wrong.what, wrong.hint)))
}

/// One of a few names.
pub fn one_of<'de, D: Deserializer<'de>, T: Copy>(from: D, what: &str, names: &[(&str, T)]) -> Result<T, D::Error> {
    text(from, |given| {
        names.iter().find(|(name, _)| *name == given).map(|(_, it)| *it).ok_or_else(|| {
            let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            ValueError::new(format!("there is no {what} `{given}`"), format!("choose from {}", all.join(", ")))
        })
    })
}

pub fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    text(from, |given| values::size_within(given, 1 << 10, 1 << 50))
}

pub fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    text(from, values::duration)
}

/// The first lines of a file that holds nothing else, without the end of the last.
pub fn secret(what: &str, path: &Path) -> Result<String, UserError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let what = format!("cannot read the {what} in {}: {error}", path.display());
        UserError::new(what, "give a file that this user may read")
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// How long one attempt of a sink may take if its table does not say.
pub fn timeout() -> Duration {
    Duration::from_secs(10)
}
