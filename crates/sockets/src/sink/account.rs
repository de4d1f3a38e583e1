//! The interface of all sinks, and the account that each keeps of its rows.
use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;

/// Receives the rows of each dump. No method but `close` may block on a network or a slow disk: sinks do that in a thread of
/// their own, behind a bounded queue.
pub trait Sink {
    /// The name in messages and metrics.
    fn name(&self) -> &str;

    /// Receives rows of a dump.
    ///
    /// # Errors
    /// Only those that must end the stream (the reader of standard output has closed it). The account counts all others.
    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>]) -> anyhow::Result<()>;

    /// Receives the end of a dump, and how complete it is.
    fn end(&mut self, dump: &Dump, completeness: &Completeness) -> anyhow::Result<()>;

    /// The account of the rows so far.
    fn account(&self) -> Account;

    /// Delivers waiting rows for at most `timeout`, and ends.
    fn close(self: Box<Self>, timeout: std::time::Duration) -> Account;
}

/// Counts of the rows that a sink received, by their fate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// Rows that it received.
    pub rows_in: u64,
    /// Rows that were delivered (written, acknowledged).
    pub rows_out: u64,
    /// Rows that wait in memory or in the spool.
    pub rows_waiting: u64,
    /// Rows dropped because memory and spool were full, or the receiver refused them for good.
    pub rows_dropped: u64,
    /// Bytes on disk that were incomplete after a crash or damaged, and were removed or skipped.
    pub bytes_lost: u64,
    pub spool_bytes: u64,
    /// Age of the oldest waiting row, in milliseconds.
    pub lag_ms: u64,
    /// How long the collector was blocked by a full queue, in milliseconds.
    pub held_up_ms: u64,
    /// Failures by kind (`refused`, `timeout`, `disk-full`, ...).
    pub errors: std::collections::BTreeMap<&'static str, u64>,
    /// The text of the last failure.
    pub last_error: Option<String>,
    /// Why rows were lost, or may be: the failure behind the last loss. Later failures that lost nothing do not replace it.
    pub loss: Option<String>,
}

impl Account {
    /// Counts a failure that lost no row.
    pub fn failed(&mut self, kind: &'static str, text: String) {
        *self.errors.entry(kind).or_default() += 1;
        self.last_error = Some(text);
    }

    /// Counts a failure that lost `rows` rows.
    pub fn lost(&mut self, rows: u64, kind: &'static str, text: String) {
        self.rows_dropped += rows;
        self.loss = Some(text.clone());
        self.failed(kind, text);
    }

    /// Adds a failure of a disk. Rows of an earlier process that were lost count as received too.
    pub fn fault(&mut self, fault: Fault) {
        self.rows_in += fault.rows;
        self.bytes_lost += fault.bytes;
        // Rows that a disk did not confirm were delivered, and may be lost after a crash.
        if fault.rows > 0 || matches!(fault.kind, "sync" | "incomplete") {
            self.lost(fault.rows, fault.kind, fault.text);
        } else {
            self.failed(fault.kind, fault.text);
        }
    }
}

/// A failure of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The label of its metric: `unfinished`, `incomplete`, `sync`, `remove`, `spool-full`, `disk-full`, `spool-io`, `spool-torn`, `spool-damaged`.
    pub kind: &'static str,
    /// The text for people.
    pub text: String,
    /// Rows of an earlier process that it lost.
    pub rows: u64,
    /// Bytes that it lost.
    pub bytes: u64,
}

impl Fault {
    /// A failure that lost nothing.
    pub fn new(kind: &'static str, text: String) -> Self {
        Self { kind, text, rows: 0, bytes: 0 }
    }
}

/// The kind of a write error: `disk-full` if no space or quota is left, else `other`.
pub fn disk_error_kind(error: &std::io::Error, other: &'static str) -> &'static str {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    if matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge) { "disk-full" } else { other }
}
