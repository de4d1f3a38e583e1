//! The table `[[files]]`.
use std::path::PathBuf;
use std::time::Duration;

use parshall_host::error::UserError;
use serde::{Deserialize, Deserializer};

use super::{FileFormat, Files, FilesConfig};
use crate::sink::table::{duration, one_of, size};
use crate::sink::{Shared, Sink, SinkRequest, SinkTable};

/// Complete files kept in a directory at most, however small they are.
pub const KEEP_FILES: usize = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    directory: PathBuf,
    #[serde(deserialize_with = "format")]
    format: FileFormat,
    #[serde(default = "rotate_size", deserialize_with = "size")]
    rotate_size: u64,
    #[serde(default = "rotate_every", deserialize_with = "duration")]
    rotate_every: Duration,
    #[serde(default = "keep", deserialize_with = "size")]
    keep: u64,
}

impl SinkTable for Table {
    fn validate(self) -> Result<Box<dyn SinkRequest>, UserError> {
        Ok(Box::new(FilesConfig {
            directory: self.directory,
            format: self.format,
            rotate_bytes: self.rotate_size,
            rotate_every: self.rotate_every,
            keep_bytes: self.keep,
            keep_files: KEEP_FILES,
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

fn format<'de, D: Deserializer<'de>>(from: D) -> Result<FileFormat, D::Error> {
    let names = [
        ("json", FileFormat::Json),
        ("protobuf", FileFormat::Protobuf),
        ("protobuf-zstd", FileFormat::ProtobufZstd),
        ("parquet", FileFormat::Parquet),
    ];
    one_of(from, "format of files", &names)
}

fn rotate_size() -> u64 {
    128 << 20
}
fn rotate_every() -> Duration {
    Duration::from_secs(3600)
}
fn keep() -> u64 {
    4 << 30
}
