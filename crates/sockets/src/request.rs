//! The request of `parshall sockets`: its command line, parsed and checked.
use std::time::Duration;

use clap::ValueEnum;

use parshall_core::sockets::sort::SortKey;
use parshall_evidence::socket::Selection;

pub use crate::format::SocketFormat;
use crate::sink::request::SinkRequest;

#[derive(Debug)]
pub enum SocketsRequest {
    Once(OnceRequest),
    Stream(StreamRequest),
}

/// The value of `--backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// walk where it works, otherwise netlink; for the table of few sockets netlink, which starts faster
    Auto,
    /// One pass over the kernel's tables, all namespaces at once (BPF)
    Walk,
    /// SOCK_DIAG, one namespace after the other
    Netlink,
}

/// How the kernel is read.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    pub backend: BackendChoice,
    /// Threads that read netlink sockets.
    pub readers: usize,
}

#[derive(Debug)]
pub struct OnceRequest {
    pub selection: Selection,
    pub reading: Reading,
    pub format: SocketFormat,
    /// Order of the rows. Empty: only a table is sorted, by address, with listeners last.
    pub sort: Vec<SortKey>,
    /// The maximum number of rows.
    pub limit: Option<usize>,
    /// Prints a second line for each socket.
    pub wide: bool,
}

#[derive(Debug)]
pub struct StreamRequest {
    pub selection: Selection,
    pub reading: Reading,
    /// Time from the beginning of one dump to that of the next.
    pub every: Duration,
    /// The stream ends after this many dumps.
    pub count: Option<u64>,
    /// Rows have the traffic per second since the last dump.
    pub rates: bool,
    /// Sockets that close between two dumps are reported.
    pub closes: bool,
    pub sinks: Vec<Box<dyn SinkRequest>>,
}
