//! The PROXY protocol, both versions: how a relay in front tells the address of the client behind it.
//!
//! [`parse`] is given all bytes that have arrived so far, from the first one on, and says whether the header is complete.
//! It keeps no state, so a header may come in any pieces. [`encode_v1`] and [`encode_v2`] write one. What a header means
//! for a connection (whom to believe, which address to log) is the caller's to decide.
//!
//! Source: "The PROXY protocol, Versions 1 & 2", proxy-protocol.txt of haproxy; sections are cited beside the code.
mod tlv;
mod v1;
mod v2;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

pub use tlv::{Kind, Ssl, SslKind, Tlv, TlvRefused, Tlvs};
pub use v1::{MAX_BYTES as V1_MAX_BYTES, encode as encode_v1};
pub use v2::{HeaderTooLong, MAX_BYTES as V2_MAX_BYTES, encode as encode_v2};

use super::config::ProxyVersion;

/// A complete header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// How it was written.
    pub version: ProxyVersion,
    /// On whose behalf the connection was made.
    pub command: Command,
    /// Its ends as the sender saw them; [`Addresses::Unknown`] for [`Command::Local`].
    pub addresses: Addresses,
    /// Whether version 2 carries a CRC32C: parsed, it was there and right; encoded, it is added.
    pub checksum: bool,
    /// What version 2 says besides, in its order and without the CRC32C.
    pub tlvs: Tlvs,
}

/// On whose behalf a connection was made (section 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The sender's own, such as a health check: the real addresses hold.
    Local,
    /// A client's.
    Proxy,
}

/// The kind of socket behind the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP, or a Unix stream socket.
    Stream,
    /// UDP, or a Unix datagram socket.
    Datagram,
}

/// Both ends of the connection behind the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addresses {
    /// Not told, or of a kind that has no address: the real addresses hold.
    Unknown,
    /// Internet addresses and ports.
    Ip {
        /// The kind of socket.
        transport: Transport,
        /// The client.
        source: SocketAddr,
        /// What the client connected to.
        destination: SocketAddr,
    },
    /// Unix sockets.
    Unix {
        /// The kind of socket.
        transport: Transport,
        /// Behind a pointer: rare, and 216 bytes long.
        paths: Box<UnixPaths>,
    },
}

impl Addresses {
    /// Two ends of a connection. IPv4 addresses in their IPv6 form, as a dual-stack listener sees them, become IPv4.
    pub fn between(transport: Transport, source: SocketAddr, destination: SocketAddr) -> Self {
        let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        Self::Ip { transport, source: canonical(source), destination: canonical(destination) }
    }

    /// The client's address, in its IPv4 form if it has one.
    pub fn source(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip { source, .. } => Some(SocketAddr::new(source.ip().to_canonical(), source.port())),
            Self::Unknown | Self::Unix { .. } => None,
        }
    }
}

/// Paths of Unix sockets as in `sun_path`: padded with zeros, abstract ones begin with a zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixPaths {
    /// The client's.
    pub source: [u8; 108],
    /// The one it connected to.
    pub destination: [u8; 108],
}

/// What is known after some bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// So far it is the beginning of a header.
    NeedMore,
    /// The header is complete.
    Done {
        /// What it says.
        header: Header,
        /// Its length in bytes; what follows is the client's data.
        consumed: usize,
    },
    /// No bytes that follow can make this a header: the connection is to be closed.
    Malformed {
        /// In words for a log.
        why: Malformed,
    },
}

/// Why bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Neither "PROXY " nor the signature of version 2.
    #[error("no PROXY header: the client began with something else")]
    NotProxy,
    /// Version 1: no CRLF within 107 bytes.
    #[error("the PROXY line does not end within 107 bytes")]
    LineTooLong,
    /// Version 1: not as section 2.1 has it.
    #[error("the PROXY line is not `TCP4|TCP6 SOURCE DESTINATION PORT PORT` or `UNKNOWN`")]
    BadLine,
    /// The signature of version 2 is followed by another version.
    #[error("the PROXY header has version {0}, not 2")]
    BadVersion(u8),
    /// Neither LOCAL nor PROXY.
    #[error("the PROXY header has the unassigned command {0}")]
    BadCommand(u8),
    /// An address family or a transport without a meaning.
    #[error("the PROXY header has the unassigned family or transport {0:#04x}")]
    BadFamily(u8),
    /// Version 2 longer than [`V2_MAX_BYTES`].
    #[error("the PROXY header has {0} bytes, more than the 4096 that are taken")]
    HeaderTooLong(u32),
    /// The header ends within its addresses.
    #[error("the PROXY header is too short for its addresses")]
    AddressesCut,
    /// A TLV reaches beyond the header.
    #[error("a TLV of the PROXY header reaches beyond its end")]
    TlvCut,
    /// A TLV has a length its type cannot have, or stands twice where only one has a meaning.
    #[error("a TLV of type {0:#04x} in the PROXY header has the wrong length or stands twice")]
    BadTlv(u8),
    /// The CRC32C is not that of the header.
    #[error("the CRC32C of the PROXY header is wrong: it was altered on its way")]
    BadChecksum,
}

/// What the bytes that have arrived since the connection began say.
pub fn parse(bytes: &[u8]) -> Progress {
    let result = match bytes.first() {
        None => Ok(None),
        Some(b'P') => v1::parse(bytes),
        Some(_) => v2::parse(bytes),
    };
    match result {
        Ok(None) => Progress::NeedMore,
        Ok(Some((header, consumed))) => Progress::Done { header, consumed },
        Err(why) => Progress::Malformed { why },
    }
}

/// A complete header and its length, or None while it is incomplete.
type Parsed = Result<Option<(Header, usize)>, Malformed>;

/// Whether `bytes` begins with `word`, as far as it goes.
fn agrees(bytes: &[u8], word: &[u8]) -> bool {
    bytes.iter().zip(word).all(|(a, b)| a == b)
}
