//! The seam of the sinks: one file or folder each, with its table, and one line in the list of [`sinks!`].
pub mod delivery;
pub mod delivery_queue;
pub mod disk;
pub mod files;
pub mod kafka;
pub mod otlp;
pub mod prometheus;
mod series;
pub mod spool;
pub mod stdout;
mod table;
pub mod tls;

use std::sync::Arc;

use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;
use parshall_host::error::UserError;
use serde::Deserialize;

use self::prometheus::endpoint::Endpoint;
use self::prometheus::self_metrics::Board;
use crate::format::text::Look;

/// A table of the sinks' file, as it is written.
trait SinkTable {
    /// Checks what the types do not.
    fn validate(self) -> Result<Box<dyn SinkRequest>, UserError>;
}

/// A sink that was asked for: checked, and not open yet.
pub trait SinkRequest: std::fmt::Debug + Send {
    /// The name of its table.
    fn kind(&self) -> &'static str;

    /// Whether it adds rows up, and so needs all of every dump.
    fn aggregates(&self) -> bool {
        false
    }

    /// Opens it.
    ///
    /// # Errors
    /// What it needs cannot be used.
    fn open(self: Box<Self>, shared: &mut Shared) -> anyhow::Result<Box<dyn Sink>>;
}

/// What sinks get from the stream that opens them.
#[derive(Debug)]
pub struct Shared {
    /// How the text format looks.
    pub look: Look,
    /// Where the collector's own metrics are.
    pub board: Arc<Board>,
    /// The HTTP endpoint, once a sink has started it. It ends when it is dropped.
    pub endpoint: Option<Endpoint>,
}

/// Makes the file of sinks: `Option` for a table that may stand there once, `Vec` for one that may be repeated.
macro_rules! sinks {
    ($($name:ident: $times:ident<$table:ty>,)+) => {
        /// The file of `parshall sockets stream -c`.
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub struct SinkTables {
            $(#[serde(default)] $name: $times<$table>,)+
        }

        impl SinkTables {
            /// The sinks in the order of this list.
            ///
            /// # Errors
            /// The first configuration error; no sink.
            pub fn validate(self) -> Result<Vec<Box<dyn SinkRequest>>, UserError> {
                let mut requests = Vec::new();
                $(for request in self.$name.into_iter().map(SinkTable::validate) {
                    requests.push(request?);
                })+
                if requests.is_empty() {
                    let tables = [$(if stringify!($times) == "Vec" {
                        concat!("[[", stringify!($name), "]]")
                    } else {
                        concat!("[", stringify!($name), "]")
                    }),+];
                    return Err(UserError::new("it names no sink", format!("write a table such as {}", tables.join(", "))));
                }
                Ok(requests)
            }
        }
    };
}

sinks! {
    stdout: Option<stdout::Table>,
    files: Vec<files::table::Table>,
    kafka: Vec<kafka::table::Table>,
    otlp: Vec<otlp::table::Table>,
    prometheus: Option<prometheus::table::Table>,
}

/// What became of the rows that a sink was given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// Rows given to it.
    pub rows_in: u64,
    /// Rows that are where they should be (written, acknowledged).
    pub rows_out: u64,
    /// Rows on their way, in memory or in the spool.
    pub rows_waiting: u64,
    /// Rows given up because nothing had room for them.
    pub rows_dropped: u64,
    /// Bytes on disk that a crash had cut short or that were damaged, and that were removed or left out.
    pub bytes_lost: u64,
    /// Bytes of the spool on disk.
    pub spool_bytes: u64,
    /// Age of the oldest row on its way, in milliseconds.
    pub lag_ms: u64,
    /// How long whoever gives rows was held up because nothing had room: back-pressure, in milliseconds.
    pub held_up_ms: u64,
    /// Failures by kind (`refused`, `timeout`, `disk-full`, ...).
    pub errors: std::collections::BTreeMap<&'static str, u64>,
    /// The last failure, as it may be shown.
    pub last_error: Option<String>,
}

/// Something that went wrong with a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// As metrics count it: `unfinished`, `incomplete`, `sync`, `remove`, `spool-full`, `disk-full`, `spool-io`, `spool-torn`, `spool-damaged`.
    pub kind: &'static str,
    /// As it may be shown.
    pub text: String,
    /// Rows of an earlier process that are lost by it.
    pub rows: u64,
    /// Bytes that are lost by it.
    pub bytes: u64,
}

impl Fault {
    /// One by which nothing is lost.
    pub fn new(kind: &'static str, text: String) -> Self {
        Self { kind, text, rows: 0, bytes: 0 }
    }
}

/// Takes the rows of each dump. Nothing here may wait for a network or a slow disk for longer than a moment: what is slow
/// happens in a thread of the sink's own behind a bounded queue.
pub trait Sink {
    /// Its name in messages and metrics.
    fn name(&self) -> &str;

    /// A portion of a dump.
    ///
    /// # Errors
    /// What makes going on senseless (the reader of standard output has gone); all else is counted in the account.
    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>]) -> anyhow::Result<()>;

    /// The end of a dump, with the account of it.
    fn end(&mut self, dump: &Dump, completeness: &Completeness) -> anyhow::Result<()>;

    /// What became of everything so far.
    fn account(&self) -> Account;

    /// Delivers what is on its way, for at most this long, and ends.
    fn close(self: Box<Self>, timeout: std::time::Duration) -> Account;
}

/// The kind of a failure to write: `disk-full` for want of room, quota included, else `other`.
pub fn disk_error_kind(error: &std::io::Error, other: &'static str) -> &'static str {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    if matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge) { "disk-full" } else { other }
}
