//! The table `[[files]]`.
use std::path::PathBuf;
use std::time::Duration;

use parshall_host::error::UserError;
use serde::Deserialize;

use super::{Files, FilesConfig};
use crate::format::SocketFormat;
use crate::sink::account::Sink;
use crate::sink::request::{Shared, SinkRequest, SinkTable};
use crate::sink::table::{format, some_duration, some_size};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    directory: PathBuf,
    #[serde(deserialize_with = "format")]
    format: SocketFormat,
    #[serde(default, deserialize_with = "some_size")]
    rotate_size: Option<u64>,
    #[serde(default, deserialize_with = "some_duration")]
    rotate_every: Option<Duration>,
    #[serde(default, deserialize_with = "some_size")]
    keep: Option<u64>,
}

impl SinkTable for Table {
    fn validate(self) -> Result<Box<dyn SinkRequest>, UserError> {
        let default = FilesConfig::new(self.directory, self.format)?;
        Ok(Box::new(FilesConfig {
            rotate_bytes: self.rotate_size.unwrap_or(default.rotate_bytes),
            rotate_every: self.rotate_every.unwrap_or(default.rotate_every),
            keep_bytes: self.keep.unwrap_or(default.keep_bytes),
            ..default
        }))
    }
}

impl SinkRequest for FilesConfig {
    fn kind(&self) -> &'static str {
        "files"
    }

    fn open(self: Box<Self>, _: &mut Shared) -> anyhow::Result<Box<dyn Sink>> {
        Ok(Box::new(Files::start(*self)?))
    }
}
