//! Standard output: rows are encoded and written at once. A slow reader blocks the collector, and a reader that closed the
//! pipe ends it without an error message.
use std::io::Write;
use std::time::Duration;

use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;
use parshall_host::error::UserError;
use serde::Deserialize;

use super::table::format;
use super::{Account, Shared, Sink, SinkRequest, SinkTable};
use crate::format::{Encoder, SocketFormat, encoder};

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

/// Writes to `out`, which is a buffer in tests.
pub struct Stdout<W> {
    encoder: Box<dyn Encoder>,
    out: W,
    buffer: Vec<u8>,
    buffered_rows: u64,
    begin_written: bool,
    account: Account,
}

impl<W: Write> Stdout<W> {
    pub fn new(encoder: Box<dyn Encoder>, out: W) -> Self {
        Self { encoder, out, buffer: Vec::new(), buffered_rows: 0, begin_written: false, account: Account::default() }
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begin_written, true) {
            self.encoder.begin(&mut self.buffer);
        }
    }

    fn write(&mut self) -> anyhow::Result<()> {
        let rows = std::mem::take(&mut self.buffered_rows);
        let written = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.buffer.clear();
        if let Err(error) = written {
            self.account.rows_dropped += rows;
            let kind = match error.kind() {
                std::io::ErrorKind::BrokenPipe => "reader-left",
                _ => super::disk_error_kind(&error, "write"),
            };
            *self.account.errors.entry(kind).or_default() += 1;
            self.account.last_error = Some(error.to_string());
            return Err(error.into());
        }
        self.account.rows_out += rows;
        Ok(())
    }
}

impl<W: Write> Sink for Stdout<W> {
    fn name(&self) -> &str {
        "stdout"
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
        self.begin();
        self.encoder.finish(&mut self.buffer);
        // The account has the failure.
        let _ = self.write();
        self.account()
    }
}

/// Rows that are encoded between two checks of the buffer's size.
const ROWS_AT_ONCE: usize = 256;
