//! The types of validated values. Every value is in range, so that no other code checks them.
use std::net::SocketAddr;

use ipnet::IpNet;

/// The destination of the log lines of closed connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTo {
    /// No lines.
    Nowhere,
    /// Standard output.
    Stdout,
    /// Appended to a file, which is opened anew on SIGHUP.
    File(String),
}

/// The kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

/// An address as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// An address and port.
    Ip(SocketAddr),
    /// A name to resolve, and a port.
    Name(String, u16),
    /// A Unix stream socket: a path, or an abstract name after `@`.
    Unix(String),
}

/// A target of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Its address.
    pub endpoint: Endpoint,
    /// Its weight among the targets, 1 to 1000.
    pub weight: u32,
}

/// How one of the healthy targets is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balance {
    /// In turn, by weight.
    RoundRobin,
    /// The one with the fewest open connections per weight.
    LeastConnections,
    /// By the client's address, so that a client stays with its target.
    SourceHash,
}

/// The engine that the user has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineChoice {
    /// Copy first, splice while a direction streams.
    Auto,
    /// recv and send through a buffer.
    Copy,
    /// splice through a pipe.
    Splice,
}

/// A rule of an access list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessRule {
    /// Whether it allows or denies.
    pub allow: bool,
    /// The network, whose host bits are zero.
    pub network: IpNet,
}

impl std::fmt::Display for AccessRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", if self.allow { "allow" } else { "deny" }, self.network)
    }
}

/// A version of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyVersion {
    /// The line of text.
    V1,
    /// The binary header.
    V2,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}
