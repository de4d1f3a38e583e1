//! The validated configuration. Every value is in range and every default is filled in: nothing downstream checks again.
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

/// A whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What holds for the process.
    pub global: Global,
    /// At least one.
    pub listeners: Vec<Listener>,
}

/// What holds for the process.
#[derive(Debug, Clone, PartialEq)]
pub struct Global {
    /// Worker threads; None is one per CPU the process may use.
    pub threads: Option<u16>,
    /// Connections of all listeners; None derives it from RLIMIT_NOFILE.
    pub max_connections: Option<u32>,
    /// Where /metrics is served over HTTP.
    pub metrics: Option<SocketAddr>,
    /// The socket that `relay top` and other local tools ask.
    pub control: Option<String>,
    /// Whether a JSON line is written for each closed connection.
    pub log: LogTo,
    /// The user, and optionally the group, to become once the listeners are open: `nobody` or `nobody:nogroup`.
    pub user: Option<String>,
    /// How long connections may finish after a stop or a reload that removed their listener.
    pub drain: Duration,
}

impl Default for Global {
    fn default() -> Self {
        Self {
            threads: None,
            max_connections: None,
            metrics: None,
            control: None,
            log: LogTo::Nowhere,
            user: None,
            drain: Duration::from_secs(30),
        }
    }
}

/// Where the line of a closed connection goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTo {
    /// No lines.
    Nowhere,
    /// Standard output.
    Stdout,
    /// Appended to a file, which is opened anew on SIGHUP.
    File(String),
}

/// One address to listen on and where its traffic goes. A range of ports is one listener per port.
#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    /// In logs and metrics; unique.
    pub name: String,
    /// TCP (also over Unix sockets) or UDP.
    pub protocol: Protocol,
    /// Where it listens.
    pub listen: Endpoint,
    /// At least one.
    pub targets: Vec<Target>,
    /// How a target is chosen.
    pub balance: Balance,
    /// What moves the bytes.
    pub engine: EngineChoice,
    /// Ceiling of a copy buffer in bytes, 1 KiB to 16 MiB.
    pub buffer: usize,
    /// Who may connect; the first rule that matches decides, and without a match: deny when there is an allow rule.
    pub access: Vec<AccessRule>,
    /// Caps.
    pub limits: Limits,
    /// Bounds on waiting.
    pub timeouts: Timeouts,
    /// Socket options.
    pub sockets: SocketOptions,
    /// Whether clients begin with a PROXY header (required when set).
    pub proxy_in: bool,
    /// Networks of the proxies whose PROXY headers are believed. Not empty with `proxy_in`, except for Unix sockets, whose
    /// clients have no address.
    pub proxy_from: Vec<IpNet>,
    /// The PROXY header sent to targets, if any.
    pub proxy_out: Option<ProxyVersion>,
    /// Connect to targets from the client's address (IP_TRANSPARENT; needs CAP_NET_ADMIN and routes).
    pub transparent: bool,
    /// Connect to targets from this address.
    pub source: Option<IpAddr>,
    /// When a target is left alone.
    pub health: Health,
}

/// The kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

/// An address as the user gave it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// An address and port.
    Ip(SocketAddr),
    /// A name to resolve, and a port.
    Name(String, u16),
    /// A Unix stream socket: a path, or an abstract name after `@`.
    Unix(String),
}

/// Where traffic goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Its address.
    pub endpoint: Endpoint,
    /// Its share beside the others, 1 to 1000.
    pub weight: u32,
}

/// How a target is chosen among those that are healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balance {
    /// In turn, by weight.
    RoundRobin,
    /// The one with the fewest open connections per weight.
    LeastConnections,
    /// By the client's address, so that a client stays with its target.
    SourceHash,
}

/// What the user wants the bytes moved by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineChoice {
    /// Copy first, splice while a direction streams.
    Auto,
    /// recv and send through a buffer.
    Copy,
    /// splice through a pipe.
    Splice,
    /// io_uring.
    Uring,
    /// Redirection in the kernel.
    Sockmap,
}

/// Who may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessRule {
    /// Whether it admits or refuses.
    pub allow: bool,
    /// The network; host bits are zero.
    pub network: IpNet,
}

impl std::fmt::Display for AccessRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", if self.allow { "allow" } else { "deny" }, self.network)
    }
}

/// Caps of a listener.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    /// Open connections, or UDP sessions.
    pub connections: Option<u32>,
    /// Open connections or sessions of one source address.
    pub per_source: Option<u32>,
    /// New connections a second (TCP), or datagrams a second of one source address (UDP).
    pub rate: Option<u32>,
    /// Bytes a second of each direction of each connection.
    pub bandwidth: Option<u64>,
}

/// Bounds on waiting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timeouts {
    /// For the connection to a target.
    pub connect: Duration,
    /// Without progress in either direction; zero is none.
    pub idle: Duration,
    /// Without progress after one direction has ended, or while the last bytes leave.
    pub linger: Duration,
    /// For the PROXY header of a client.
    pub header: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { connect: s(5), idle: s(3600), linger: s(60), header: s(3) }
    }
}

impl Timeouts {
    /// The defaults for datagrams: a session without traffic ends after a minute.
    pub fn for_udp() -> Self {
        Self { idle: Duration::from_secs(60), ..Self::default() }
    }
}

/// Socket options of both ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SocketOptions {
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// SO_RCVBUF in bytes; None leaves the kernel's tuning on.
    pub receive_buffer: Option<u32>,
    /// SO_SNDBUF in bytes; None leaves the kernel's tuning on.
    pub send_buffer: Option<u32>,
    /// Idle time before the first keepalive probe; None is off.
    pub keepalive: Option<Duration>,
    /// TCP_USER_TIMEOUT: how long sent data may go unacknowledged.
    pub user_timeout: Option<Duration>,
    /// Listen and connect with MPTCP.
    pub mptcp: bool,
    /// TCP_FASTOPEN on the listener and TCP_FASTOPEN_CONNECT to targets.
    pub fast_open: bool,
    /// Length of the accept queue.
    pub backlog: u32,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            nodelay: true,
            receive_buffer: None,
            send_buffer: None,
            keepalive: Some(Duration::from_secs(60)),
            user_timeout: None,
            mptcp: false,
            fast_open: false,
            backlog: 4096,
        }
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

/// When a target is left alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Health {
    /// Failed connections in a row after which it is; 0 is never.
    pub fails: u32,
    /// For how long, before it is tried again.
    pub pause: Duration,
    /// Whether it is also asked at intervals.
    pub check: Option<Check>,
}

impl Default for Health {
    fn default() -> Self {
        Self { fails: 3, pause: Duration::from_secs(10), check: None }
    }
}

/// A connection attempted at intervals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Check {
    /// Between two attempts.
    pub interval: Duration,
    /// For one attempt.
    pub timeout: Duration,
    /// Successes in a row after which the target is used again.
    pub rise: u32,
    /// Failures in a row after which it is not.
    pub fall: u32,
}

impl Default for Check {
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), timeout: Duration::from_secs(2), rise: 2, fall: 3 }
    }
}

/// The default ceiling of a copy buffer.
pub const BUFFER_DEFAULT: usize = 64 * 1024;

impl Listener {
    /// A listener with every default.
    pub fn new(protocol: Protocol, listen: Endpoint, targets: Vec<Target>) -> Self {
        let timeouts = match protocol {
            Protocol::Tcp => Timeouts::default(),
            Protocol::Udp => Timeouts::for_udp(),
        };
        Self {
            name: format!("{listen}{}", if protocol == Protocol::Udp { "/udp" } else { "" }),
            protocol,
            listen,
            targets,
            balance: Balance::RoundRobin,
            engine: EngineChoice::Auto,
            buffer: BUFFER_DEFAULT,
            access: Vec::new(),
            limits: Limits::default(),
            timeouts,
            sockets: SocketOptions::default(),
            proxy_in: false,
            proxy_from: Vec::new(),
            proxy_out: None,
            transparent: false,
            source: None,
            health: Health::default(),
        }
    }
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
