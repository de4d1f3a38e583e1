//! The formats, one file each. The output of an encoder between two calls is complete for its readers.
mod encoder;
pub mod json;
pub mod parquet;
pub mod protobuf;
pub mod text;

use clap::ValueEnum;

pub use encoder::{Encoder, ZSTD_LEVEL};

/// A format for standard output or for files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SocketFormat {
    /// A table for people; not for files
    Text,
    /// One object per socket per line; files are compressed with zstd
    Json,
    /// Length-delimited messages of proto/parshall/sockets/v1
    Protobuf,
    /// The same, compressed with zstd
    ProtobufZstd,
    /// Parquet
    Parquet,
}

impl std::fmt::Display for SocketFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// The encoder of a format for a stream; `style` is that of a table.
pub fn encoder(format: SocketFormat, style: text::TableStyle) -> Box<dyn Encoder> {
    match format {
        SocketFormat::Text => Box::new(text::Text::new(style)),
        SocketFormat::Json => Box::<json::Json>::default(),
        SocketFormat::Protobuf => Box::<protobuf::Protobuf>::default(),
        SocketFormat::ProtobufZstd => Box::<protobuf::ProtobufZstd>::default(),
        SocketFormat::Parquet => Box::<parquet::Parquet>::default(),
    }
}

#[cfg(test)]
mod tests;
