//! A PROXY header, and why bytes are none.
use std::net::SocketAddr;

use super::tlv::Tlvs;
use crate::relay::config::ProxyVersion;

/// A complete header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The version that it was read in.
    pub version: ProxyVersion,
    /// Whether the sender made the connection for a client.
    pub command: Command,
    /// The addresses of the connection that the sender accepted; [`Addresses::Unknown`] for [`Command::Local`].
    pub addresses: Addresses,
    /// Whether version 2 has a CRC32C. The parser has verified it; the encoder adds it.
    pub checksum: bool,
    /// The TLVs of version 2 in their order, without the CRC32C.
    pub tlvs: Tlvs,
}

/// The command of a header (section 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The sender made it for itself, such as a health check: the addresses of the socket apply.
    Local,
    /// The sender made it for a client.
    Proxy,
}

/// The kind of socket that the sender accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP, or a Unix stream socket.
    Stream,
    /// UDP, or a Unix datagram socket.
    Datagram,
}

/// Both addresses of the connection that the sender accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addresses {
    /// Not given, or of a family without addresses: the addresses of the socket apply.
    Unknown,
    /// IP addresses and ports.
    Ip {
        /// The kind of socket.
        transport: Transport,
        /// The client.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
    /// Unix sockets.
    Unix {
        /// The kind of socket.
        transport: Transport,
        /// Boxed, because they are rare and 216 bytes long.
        paths: Box<UnixPaths>,
    },
}

impl Addresses {
    /// The addresses of a connection. IPv4-mapped addresses, as a dual-stack listener sees them, become IPv4.
    pub fn between(transport: Transport, source: SocketAddr, destination: SocketAddr) -> Self {
        let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        Self::Ip { transport, source: canonical(source), destination: canonical(destination) }
    }

    /// The client's address; an IPv4-mapped one as IPv4.
    pub fn source(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip { source, .. } => Some(SocketAddr::new(source.ip().to_canonical(), source.port())),
            Self::Unknown | Self::Unix { .. } => None,
        }
    }
}

/// Paths of Unix sockets as in `sun_path`: padded with zeros; abstract names begin with a zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixPaths {
    /// The client's path.
    pub source: [u8; 108],
    /// The path that it connected to.
    pub destination: [u8; 108],
}

/// The result of parsing the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The bytes are the beginning of a header.
    NeedMore,
    /// The header is complete.
    Done {
        /// The header.
        header: Header,
        /// Its length in bytes; the client's data follows.
        consumed: usize,
    },
    /// No further bytes can make this a header: the connection must be closed.
    Malformed {
        /// The error, which can be printed.
        why: Malformed,
    },
}

/// The reason why bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Neither "PROXY " nor the signature of version 2.
    #[error("no PROXY header: the client began with something else")]
    NotProxy,
    /// Version 1: no CRLF within 107 bytes.
    #[error("the PROXY line does not end within 107 bytes")]
    LineTooLong,
    /// Version 1: not the syntax of section 2.1.
    #[error("the PROXY line is not `TCP4|TCP6 SOURCE DESTINATION PORT PORT` or `UNKNOWN`")]
    BadLine,
    /// The signature of version 2 is followed by another version.
    #[error("the PROXY header has version {0}, not 2")]
    BadVersion(u8),
    /// Neither LOCAL nor PROXY.
    #[error("the PROXY header has the unassigned command {0}")]
    BadCommand(u8),
    /// An unassigned address family or transport.
    #[error("the PROXY header has the unassigned family or transport {0:#04x}")]
    BadFamily(u8),
    /// Version 2 longer than [`V2_MAX_BYTES`](super::V2_MAX_BYTES).
    #[error("the PROXY header has {0} bytes, more than the 4096 that are taken")]
    HeaderTooLong(u32),
    /// The header ends within its addresses.
    #[error("the PROXY header is too short for its addresses")]
    AddressesCut,
    /// A TLV extends beyond the end of the header.
    #[error("a TLV of the PROXY header reaches beyond its end")]
    TlvCut,
    /// A TLV has a length that its type does not allow, or occurs twice where only one may.
    #[error("a TLV of type {0:#04x} in the PROXY header has the wrong length or stands twice")]
    BadTlv(u8),
    /// The CRC32C is not that of the header.
    #[error("the CRC32C of the PROXY header is wrong: it was altered on its way")]
    BadChecksum,
}

/// A complete header and its length, or None while it is incomplete.
pub(super) type Parsed = Result<Option<(Header, usize)>, Malformed>;

/// Whether `bytes` and `word` agree in their common length.
pub(super) fn agrees(bytes: &[u8], word: &[u8]) -> bool {
    bytes.iter().zip(word).all(|(a, b)| a == b)
}
