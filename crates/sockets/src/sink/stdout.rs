//! Standard output, or one file in its place: rows are encoded and written at once. A slow reader blocks the collector, and a reader that closed the
//! pipe ends it without an error message.
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;
use parshall_host::error::UserError;
use serde::Deserialize;

use super::account::{Account, Sink, disk_error_kind};
use super::request::{Shared, SinkRequest, SinkTable};
use super::table::format;
use crate::format::{Encoder, SocketFormat, encoder};

/// The kind of the error when the reader of standard output has closed it: it wanted no more rows.
pub const READER_LEFT: &str = "reader-left";
/// Bytes that are written together: larger writes are not cheaper per byte, and this many fit the CPU cache.
const PORTION: usize = 128 << 10;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    #[serde(deserialize_with = "format")]
    format: SocketFormat,
}

#[derive(Debug)]
pub struct StdoutRequest(pub SocketFormat);

impl SinkTable for Table {
    fn validate(self) -> Result<Box<dyn SinkRequest>, UserError> {
        Ok(Box::new(StdoutRequest(self.format)))
    }
}

impl SinkRequest for StdoutRequest {
    fn kind(&self) -> &'static str {
        "stdout"
    }

    fn open(self: Box<Self>, shared: &mut Shared) -> anyhow::Result<Box<dyn Sink>> {
        Ok(Box::new(Stdout::new(encoder(self.0, shared.style), std::io::stdout())))
    }
}

/// `--output FILE`.
#[derive(Debug)]
pub struct OneFileRequest {
    path: PathBuf,
    format: SocketFormat,
}

impl OneFileRequest {
    /// The format is the given one, or that which the name of the file says.
    ///
    /// # Errors
    /// The name says none, and none is given.
    pub fn new(path: &Path, given: Option<SocketFormat>) -> Result<Self, UserError> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let named = ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| *format);
        let Some(format) = given.or(named) else {
            return Err(UserError::new(
                format!("--output: the name {} says no format", path.display()),
                "add --format, or end the name in .txt, .json, .pb, .pb.zst or .parquet",
            ));
        };
        Ok(Self { path: path.to_owned(), format })
    }
}

/// Formats by the end of a file's name.
const ENDINGS: [(&str, SocketFormat); 7] = [
    (".txt", SocketFormat::Text),
    (".json", SocketFormat::Json),
    (".jsonl", SocketFormat::Json),
    (".ndjson", SocketFormat::Json),
    (".pb", SocketFormat::Protobuf),
    (".pb.zst", SocketFormat::ProtobufZstd),
    (".parquet", SocketFormat::Parquet),
];

impl SinkRequest for OneFileRequest {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn open(self: Box<Self>, shared: &mut Shared) -> anyhow::Result<Box<dyn Sink>> {
        let mut options = OpenOptions::new();
        // The sockets that users have open are nobody else's business.
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&self.path);
        let file = file.map_err(|error| {
            let what = format!("{} cannot be written: {error}", self.path.display());
            UserError::new(what, "give --output a path in a directory that exists and that you may write to")
        })?;
        Ok(Box::new(Stdout { name: "file", ..Stdout::new(encoder(self.format, shared.style), file) }))
    }
}

/// Writes to `out`, which is a buffer in tests.
pub struct Stdout<W> {
    /// Of the sink in messages.
    name: &'static str,
    encoder: Box<dyn Encoder>,
    out: W,
    buffer: Vec<u8>,
    buffered_rows: u64,
    begin_written: bool,
    account: Account,
}

impl<W: Write> Stdout<W> {
    pub fn new(encoder: Box<dyn Encoder>, out: W) -> Self {
        Self {
            name: "stdout",
            encoder,
            out,
            buffer: Vec::new(),
            buffered_rows: 0,
            begin_written: false,
            account: Account::default(),
        }
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begin_written, true) {
            self.encoder.begin(&mut self.buffer);
        }
    }

    /// Writes the end of the format: a Parquet file has all of its rows there.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        self.begin();
        self.encoder.finish(&mut self.buffer);
        self.write()
    }

    fn write(&mut self) -> anyhow::Result<()> {
        let rows = std::mem::take(&mut self.buffered_rows);
        let written = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.buffer.clear();
        if let Err(error) = written {
            let kind = match error.kind() {
                std::io::ErrorKind::BrokenPipe => READER_LEFT,
                _ => disk_error_kind(&error, "write"),
            };
            self.account.lost(rows, kind, error.to_string());
            let place = if self.name == "stdout" { "standard output" } else { "the file of --output" };
            return Err(anyhow::Error::new(error).context(format!("cannot write to {place}")));
        }
        self.account.rows_out += rows;
        Ok(())
    }
}

impl<W: Write> Sink for Stdout<W> {
    fn name(&self) -> &str {
        self.name
    }

    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>]) -> anyhow::Result<()> {
        self.begin();
        // A caller may pass all rows of a dump, and the buffer must stay small.
        for part in rows.chunks(ROWS_AT_ONCE) {
            self.encoder.rows(dump, part, &mut self.buffer);
            self.account.rows_in += part.len() as u64;
            self.buffered_rows += part.len() as u64;
            if self.buffer.len() >= PORTION {
                self.write()?;
            }
        }
        Ok(())
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness) -> anyhow::Result<()> {
        self.begin();
        while self.encoder.drain(&mut self.buffer) {
            self.write()?;
        }
        self.encoder.end(dump, completeness, &mut self.buffer);
        self.write()
    }

    fn account(&self) -> Account {
        Account { rows_waiting: self.buffered_rows, ..self.account.clone() }
    }

    fn close(mut self: Box<Self>, _: Duration) -> Account {
        // The account has the failure.
        let _ = self.finish();
        self.account()
    }
}

/// Rows that are encoded between two checks of the buffer's size.
const ROWS_AT_ONCE: usize = 256;

#[cfg(test)]
mod tests {
    use parshall_evidence::socket::SocketRecord;

    use super::*;
    use crate::format::text::TableStyle;

    /// The bytes written by the end of each of two dumps, and at the end.
    fn written(format: SocketFormat) -> [Vec<u8>; 3] {
        let mut out = Vec::new();
        let mut steps = Vec::new();
        for dumps in 1..=2u64 {
            out.clear();
            let mut sink = Stdout::new(encoder(format, TableStyle::default()), &mut out);
            give(&mut sink, dumps);
            drop(sink);
            steps.push(out.clone());
        }
        out.clear();
        let mut sink = Stdout::new(encoder(format, TableStyle::default()), &mut out);
        give(&mut sink, 2);
        let account = Box::new(sink).close(Duration::ZERO);
        assert_eq!((account.rows_in, account.rows_out, account.rows_waiting), (2000, 2000, 0));
        let [first, second] = steps.try_into().expect("two dumps");
        [first, second, out]
    }

    fn give(sink: &mut impl Sink, dumps: u64) {
        for sequence in 1..=dumps {
            let dump = Dump { at_unix_ns: sequence, sequence, host: "h".into(), backend: "walk" };
            let records: Vec<SocketRecord> =
                (0..1000).map(|inode| SocketRecord { family: 2, inode, ..Default::default() }).collect();
            let rows: Vec<Row<'_>> = records.iter().map(Row::bare).collect();
            sink.rows(&dump, &rows).expect("memory");
            sink.end(&dump, &Completeness { expected: 1000, emitted: 1000, ..Default::default() }).expect("memory");
        }
    }

    #[test]
    fn compressed_protobuf_can_be_read_after_each_dump() {
        let compressed = written(SocketFormat::ProtobufZstd);
        let plain = written(SocketFormat::Protobuf);
        for (compressed, plain) in compressed.iter().zip(&plain) {
            assert!(compressed.len() < plain.len() / 4, "{} of {} bytes", compressed.len(), plain.len());
            assert_eq!(&zstd::decode_all(&compressed[..]).expect("complete frames"), plain);
        }
    }
}
