//! What `parshall sockets` is asked for: the command line, lowered and checked, before anything is looked at.
use std::time::Duration;

use clap::ValueEnum;

use parshall_core::sockets::sort::SortKey;
use parshall_evidence::socket::Selection;

pub use super::format::SocketFormat;
use super::sink::SinkRequest;

/// `parshall sockets`.
#[derive(Debug)]
pub enum SocketsRequest {
    /// `parshall sockets once`.
    Once(OnceRequest),
    /// `parshall sockets stream`.
    Stream(StreamRequest),
}

/// A backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// The first of the others that works; for one dump of few sockets iter, which is sooner done
    Auto,
    /// One pass over the kernel's tables, all namespaces at once (BPF)
    Walk,
    /// BPF iterators, one namespace after the other
    Iter,
    /// SOCK_DIAG, one namespace after the other
    Netlink,
}

/// How the kernel is read.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// The backend.
    pub backend: BackendChoice,
    /// netlink by io_uring.
    pub uring: bool,
    /// Threads that read netlink sockets.
    pub readers: usize,
}

/// `parshall sockets once`.
#[derive(Debug)]
pub struct OnceRequest {
    /// Which sockets.
    pub selection: Selection,
    /// How they are read.
    pub reading: Reading,
    /// How they are printed.
    pub format: SocketFormat,
    /// Order of the rows; none: as they are met.
    pub sort: Vec<SortKey>,
    /// At most so many rows.
    pub limit: Option<usize>,
    /// A second line of each socket.
    pub wide: bool,
}

/// `parshall sockets stream`.
#[derive(Debug)]
pub struct StreamRequest {
    /// Which sockets.
    pub selection: Selection,
    /// How they are read.
    pub reading: Reading,
    /// From the beginning of one dump to that of the next.
    pub every: Duration,
    /// So many dumps.
    pub count: Option<u64>,
    /// What moved since the last dump.
    pub rates: bool,
    /// Sockets that closed.
    pub closes: bool,
    /// Where the rows go.
    pub to: Vec<Box<dyn SinkRequest>>,
}
