//! What `parshall sockets` is asked for: the command line, lowered and checked, before anything is looked at.
use std::net::SocketAddr;
use std::time::Duration;

use parshall_core::sockets::aggregate::Settings;
use parshall_core::sockets::sort::SortKey;
use parshall_evidence::socket::Selection;

use super::endpoint::Token;
use super::sink::files::FilesConfig;
use super::sink::kafka::KafkaConfig;
use super::sink::otlp::OtlpConfig;
use super::sink::outlet::OutletConfig;

/// `parshall sockets`.
#[derive(Debug)]
pub enum SocketsRequest {
    /// `parshall sockets once`.
    Once(OnceRequest),
    /// `parshall sockets stream`.
    Stream(StreamRequest),
}

/// A backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendChoice {
    /// The first that works.
    Auto,
    /// [`super::backend::walk`].
    Walk,
    /// [`super::backend::iter`].
    Iter,
    /// [`super::backend::netlink`].
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

/// What is written to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketFormat {
    /// A table.
    Text,
    /// JSON lines.
    Json,
    /// Length-delimited messages.
    Protobuf,
    /// A Parquet file.
    Parquet,
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
    pub to: Vec<SinkRequest>,
}

/// Where rows go.
#[derive(Debug)]
pub enum SinkRequest {
    /// Standard output.
    Stdout(SocketFormat),
    /// Rotating files.
    Files(FilesConfig),
    /// A topic of Kafka.
    Kafka(KafkaConfig, OutletConfig),
    /// Aggregates to a receiver of OpenTelemetry.
    Otlp(OtlpConfig, Settings, OutletConfig),
    /// Aggregates, and the collector's own metrics, over HTTP.
    Prometheus {
        /// Where it is asked.
        listen: SocketAddr,
        /// What is aggregated.
        settings: Settings,
        /// What clients from elsewhere must show to be given a profile; none: they are given none.
        profile_token: Option<Token>,
    },
}

impl SinkRequest {
    /// Whether it adds rows up, and so needs all of every dump.
    pub fn aggregates(&self) -> bool {
        matches!(self, Self::Otlp(..) | Self::Prometheus { .. })
    }
}
