//! Standard output: encoded and written at once. A reader that is slow holds up the collector, which is what a pipe is
//! for; a reader that has left ends it quietly.
use std::io::Write;
use std::time::Duration;

use clap::ValueEnum;
use parshall_core::sockets::{Dump, Row};
use parshall_core::values::ValueError;
use parshall_evidence::socket::Completeness;
use parshall_host::error::UserError;
use serde::{Deserialize, Deserializer};

use super::table;
use super::{Account, Shared, Sink, SinkRequest, SinkTable};
use crate::format::{Encoder, SocketFormat, encoder};

/// Bytes that are written together: more do not get cheaper, and they stay in the processor's cache.
const PORTION: usize = 128 << 10;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    #[serde(deserialize_with = "format")]
    format: SocketFormat,
}

/// Rows to standard output.
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
        Ok(Box::new(Stdout::new(encoder(self.0, shared.look), std::io::stdout())))
    }
}

fn format<'de, D: Deserializer<'de>>(from: D) -> Result<SocketFormat, D::Error> {
    table::text(from, |name| {
        SocketFormat::from_str(name, false).map_err(|_| {
            let all: Vec<String> = SocketFormat::value_variants().iter().map(SocketFormat::to_string).collect();
            ValueError::new(format!("there is no format `{name}`"), format!("choose from {}", all.join(", ")))
        })
    })
}

/// Writes to a stream; in the product that is standard output.
pub struct Stdout<W> {
    encoder: Box<dyn Encoder>,
    out: W,
    buffer: Vec<u8>,
    buffered_rows: u64,
    begun: bool,
    account: Account,
}

impl<W: Write> Stdout<W> {
    /// Writes what the encoder makes of rows.
    pub fn new(encoder: Box<dyn Encoder>, out: W) -> Self {
        Self { encoder, out, buffer: Vec::new(), buffered_rows: 0, begun: false, account: Account::default() }
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
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
        // A portion of a dump may be all of it: memory stays bounded.
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
        while self.encoder.rest(&mut self.buffer) {
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
        // What failed is in the account.
        let _ = self.write();
        self.account()
    }
}

/// Rows that are encoded before it is looked whether they are enough to write.
const ROWS_AT_ONCE: usize = 256;
