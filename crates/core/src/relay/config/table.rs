//! The table of settings: one row each, from which the model's structs, their defaults, the parsers, the flags, the output of
//! `relay check` and the reference in docs/relay.md are made. A new setting is a row here and the code that uses its field.
//!
//! A row has: key, field, type and default; an example in TOML; what it does; how it is read; and properties that few settings
//! have ([`More`]). A field of the type Option is None where the key is not given or off.
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::address;
use super::check::{self, Check};
use super::model::{AccessRule, Balance, Endpoint, EngineChoice, LogTo, Protocol, ProxyVersion, Target};
use super::row::{More, Read, Row, Section, Typed, flag, flag_default};
use super::settings_macro::{place, settings};
use super::value::{self, BALANCES, ENGINES, PROXY_VERSIONS, name_of};
use crate::values::{bandwidth, bytes_text, count, duration, duration_or_off, duration_text, positive_duration, rate};

/// The hint for timeouts of TCP connections in a UDP listener.
const NO_CONNECTIONS: &str = "leave it out: UDP has no connections; timeouts.idle ends a session";
/// The hint for settings of PROXY headers in a UDP listener.
const NO_PROXY_HEADERS: &str = "leave it out: PROXY headers are for TCP only";
/// The hint for options of TCP sockets in a UDP listener.
const TCP_OPTION: &str = "leave it out: it is a TCP option";

/// A whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The settings of the process.
    pub global: Global,
    /// The listeners, at least one.
    pub listeners: Vec<Listener>,
}

settings! {
    /// The settings of the process.
    #[derive(Debug, Clone, PartialEq)]
    Global () {}
    GLOBAL of Global [], Process {
        "threads" threads: Option<u16> = None, "4", "worker threads", Read::Text(|t| value::threads(t).map(Some)),
            default: "one per CPU the process may use", flag: flag_default("threads", "N", "one per CPU"), at_start: true,
            describe: Some(|g, _| Some(match g.threads {
                Some(1) => "one thread".to_owned(),
                Some(threads) => format!("{threads} threads"),
                None => "one thread per CPU".to_owned(),
            }));
        "max-connections" max_connections: Option<u32> = None, "20000",
            "TCP connections open at once, of all listeners and threads", Read::Text(|t| count(t).map(Some)),
            default: "as many as the limit on descriptors allows", at_start: true,
            flag: flag_default("max-connections", "N", "as many as the limit on descriptors allows"),
            describe: Some(|g, _| g.max_connections.map(|n| format!("at most {n} connections")));
        "max-sessions" max_sessions: Option<u32> = None, "20000",
            "UDP sessions open at once, of all listeners and threads", Read::Text(|t| count(t).map(Some)),
            default: "as many as the limit on descriptors allows", at_start: true,
            flag: flag_default("max-sessions", "N", "as many as the limit on descriptors allows"),
            describe: Some(|g, _| g.max_sessions.map(|n| format!("at most {n} sessions")));
        "metrics" metrics: Option<SocketAddr> = None, "\"127.0.0.1:9100\"", "serve Prometheus metrics here, at /metrics",
            Read::Text(|t| address::socket_address(t).map(Some)), default: "none", flag: flag("metrics", "ADDRESS"),
            describe: Some(|g, _| g.metrics.map(|address| format!("metrics at {address}")));
        "control" control: Option<String> = None, "\"/run/parshall/relay.sock\"", "the control socket, to which `parshall relay top` connects",
            Read::Text(|t| value::control(t).map(Some)), default: "see `relay top`", flag: flag("control", "PATH"),
            describe: Some(|g, _| g.control.as_ref().map(|path| format!("control at {path}")));
        "log" log: LogTo = LogTo::Nowhere, "\"/var/log/parshall/relay.json\"",
            "write a JSON line per closed connection to \"stdout\" or to a file", Read::Text(value::log),
            default: "\"off\"", flag: flag("log", "stdout|PATH"),
            describe: Some(|g, _| Some(match &g.log {
                LogTo::Nowhere => "no log".to_owned(),
                LogTo::Stdout => "log to stdout".to_owned(),
                LogTo::File(path) => format!("log to {path}"),
            }));
        "user" user: Option<String> = None, "\"nobody:nogroup\"",
            "become this user (and group) once the listeners are open", Read::Text(|t| value::user(t).map(Some)),
            default: "none", flag: flag("user", "USER"), at_start: true,
            describe: Some(|g, _| g.user.as_ref().map(|user| format!("as {user}")));
        "drain" drain: Duration = Duration::from_secs(30), "\"30s\"",
            "how long connections may finish after a stop, or when their listener is removed", Read::Text(duration),
            unit: "_s", flag: flag_default("drain", "TIME", "30s"),
            describe: Some(|g, _| Some(format!("drain {}", duration_text(g.drain))));
    }
}

settings! {
    /// One address to listen on and its targets. A range of ports is one listener per port.
    #[derive(Debug, Clone, PartialEq)]
    Listener (protocol: Protocol, listen: Endpoint, targets: Vec<Target>) {
        /// Its unique name in logs and metrics.
        name: String = format!("{listen}{}", if protocol == Protocol::Udp { "/udp" } else { "" }),
        /// TCP (also over Unix sockets) or UDP.
        protocol: Protocol = protocol,
        /// The address that it listens on.
        listen: Endpoint = listen,
        /// Its targets, at least one.
        targets: Vec<Target> = targets,
        /// Limits on connections and rates.
        limits: Limits = Limits::new(),
        /// Timeouts.
        timeouts: Timeouts = Timeouts::new(protocol),
        /// Options of the sockets of clients and targets.
        sockets: SocketOptions = SocketOptions::new(),
        /// When a target gets no new connections.
        health: Health = Health::new(),
    }
    LISTENER of Listener [], Forwarding {
        "engine" engine: EngineChoice = EngineChoice::Auto, "\"auto\"",
            "what moves the bytes; auto copies first and splices what streams",
            Read::Names(&ENGINES), flag: flag("engine", "ENGINE"),
            tcp_only: Some("leave it out: datagrams are moved in batches by recvmmsg and sendmmsg"),
            is_off: |l| matches!(l.engine, EngineChoice::Auto | EngineChoice::Copy),
            describe: Some(|l, _| (l.protocol == Protocol::Tcp).then(|| format!("engine {}", name_of(&ENGINES, &l.engine))));
        "buffer" buffer: usize = 64 << 10, "\"64KiB\"", "how far a copy buffer may grow, 1KiB to 16MiB", Read::Text(value::buffer),
            unit: "_bytes", flag: flag_default("buffer", "SIZE", "64KiB"), tcp_only: Some("leave it out: a datagram is always read whole"),
            describe: Some(|l, defaults| (l.buffer != defaults.buffer).then(|| format!("buffer {}", bytes_text(l.buffer as u64))));
        "balance" balance: Balance = Balance::RoundRobin, "\"least-connections\"",
            "how a target is chosen; source-hash keeps a client with its target", Read::Names(&BALANCES),
            default: "\"round-robin\"", flag: flag("balance", "HOW"), by_client: |l| l.balance == Balance::SourceHash,
            describe: Some(|l, defaults| (l.targets.len() > 1 || l.balance != defaults.balance)
                .then(|| name_of(&BALANCES, &l.balance).to_owned()));
        "responses" responses: Option<u32> = None, "1",
            "UDP: datagrams with which a target answers one of a client's; the session ends with the last of them",
            Read::Text(|t| count(t).map(Some)), default: "any number", flag: flag("responses", "N"), is_off: |l| l.responses.is_none(),
            udp_only: Some("leave it out: a connection ends when its peers close it"),
            describe: Some(|l, _| l.responses.map(|n| format!("{n} {} for each datagram", if n == 1 { "answer" } else { "answers" })));
        "proxy-in" proxy_in: bool = false, "true", "clients must send a PROXY header (v1 or v2) first; needs proxy-from",
            Read::Flag(|on| on), default: "false", flag: flag("proxy-in", ""), section: Section::Addresses,
            tcp_only: Some(NO_PROXY_HEADERS), is_off: |l| !l.proxy_in,
            describe: Some(|l, _| l.proxy_in.then(|| {
                let from: Vec<String> = l.proxy_from.iter().map(|network| format!(" {network}")).collect();
                format!("PROXY header in{}{}", if from.is_empty() { "" } else { " from" }, from.join(","))
            }));
        "proxy-from" proxy_from: Vec<IpNet> = Vec::new(), "[\"10.0.0.5\", \"10.1.0.0/16\"]",
            "accept PROXY headers from these addresses or networks, and refuse others; \"all\" for every address",
            Read::Networks(|networks| networks), default: "none", flag: flag("proxy-from", "NETWORK"), section: Section::Addresses,
            tcp_only: Some(NO_PROXY_HEADERS), describe: Some(|_, _| None);
        "proxy-out" proxy_out: Option<ProxyVersion> = None, "\"v2\"",
            "the PROXY header that connections to targets begin with", Read::Names(&PROXY_VERSIONS),
            default: "\"off\"", flag: flag("proxy-out", "VERSION"), section: Section::Addresses,
            tcp_only: Some(NO_PROXY_HEADERS), is_off: |l| l.proxy_out.is_none(),
            describe: Some(|l, _| l.proxy_out.map(|v| format!("PROXY header out {}", name_of(&PROXY_VERSIONS, &Some(v)))));
        "transparent" transparent: bool = false, "false",
            "connect to targets from the client's address (needs CAP_NET_ADMIN and routes)", Read::Flag(|on| on),
            flag: flag("transparent", ""), section: Section::Addresses, is_off: |l| !l.transparent, by_client: |_| true,
            describe: Some(|l, _| l.transparent.then(|| "from the client's address".to_owned()));
        "source" source: Option<IpAddr> = None, "\"192.0.2.1\"", "connect to targets from this address of the host",
            Read::Text(|t| value::source(t).map(Some)), default: "the kernel's choice", flag: flag("source", "ADDRESS"),
            section: Section::Addresses,
            describe: Some(|l, _| l.source.map(|source| format!("from {source}")));
        "access" access: Vec<AccessRule> = Vec::new(), "[\"allow 10.0.0.0/8\", \"allow 2001:db8::/32\", \"deny all\"]",
            "who may connect: the first rule that matches decides", Read::Elsewhere, default: "everyone", section: Section::Access,
            by_client: |_| true,
            describe: Some(|l, _| {
                let rules: Vec<String> = l.access.iter().map(ToString::to_string).collect();
                (!rules.is_empty()).then(|| rules.join(" · "))
            });
    }
}

settings! {
    /// Limits on connections and rates of a listener.
    #[derive(Debug, Clone, Copy, PartialEq)]
    Limits () {}
    LIMITS of Listener [limits], Limits {
        "limits.connections" connections: Option<u32> = None, "10000",
            "connections, or UDP sessions, open at once; for UDP the session that is idle longest makes room",
            Read::Text(|t| count(t).map(Some)), default: "no limit",
            describe: Some(|l, _| l.limits.connections.map(|n| format!("at most {n} {}", open(l))));
        "limits.per-source" per_source: Option<u32> = None, "100",
            "connections, or sessions, of one source open at once: an IPv4 address, or the /64 of an IPv6 address", Read::Text(|t| count(t).map(Some)),
            default: "no limit", flag: flag("per-source", "N"), by_client: |_| true,
            describe: Some(|l, _| l.limits.per_source.map(|n| format!("{n} {} per source", open(l))));
        "limits.rate" rate: Option<u32> = None, "500", "new connections a second; for UDP, datagrams a second from one source",
            Read::Text(|t| rate(t).map(Some)), unit: "_per_s", default: "no limit", flag: flag("rate", "N"),
            describe: Some(|l, _| l.limits.rate.map(|n| match l.protocol {
                Protocol::Udp => format!("{n} datagrams/s per source"),
                Protocol::Tcp => format!("{n} new connections/s"),
            }));
        "limits.bandwidth" bandwidth: Option<u64> = None, "\"10MiB/s\"",
            "bytes a second of each direction of each connection; or bits, \"100Mbit/s\"", Read::Text(|t| bandwidth(t).map(Some)),
            unit: "_bytes_per_s", default: "no limit", flag: flag("bandwidth", "RATE"),
            tcp_only: Some("leave it out: limits.rate bounds the datagrams a second of a source"),
            describe: Some(|l, _| l.limits.bandwidth.map(|n| format!("{}/s each way", bytes_text(n))));
    }
}

settings! {
    /// Timeouts of a listener's connections or sessions.
    #[derive(Debug, Clone, Copy, PartialEq)]
    Timeouts (protocol: Protocol) {}
    TIMEOUTS of Listener [timeouts], Timeouts {
        "timeouts.connect" connect: Duration = Duration::from_secs(5), "\"5s\"", "how long the connection to a target may take",
            Read::Text(positive_duration), unit: "_s", flag: flag_default("connect-timeout", "TIME", "5s"), tcp_only: Some(NO_CONNECTIONS),
            describe: Some(|l, defaults| timeout("connect", l.timeouts.connect, defaults.timeouts.connect));
        /// Zero is no timeout.
        "timeouts.idle" idle: Duration = Duration::from_secs(if protocol == Protocol::Udp { 60 } else { 3600 }), "\"1h\"",
            "how long both directions may be idle; for UDP 60s; \"off\" for no timeout",
            Read::Text(|t| Ok(duration_or_off(t)?.unwrap_or_default())), unit: "_s", zero_is_off: true,
            flag: flag_default("idle-timeout", "TIME", "1h; 60s with --udp"),
            describe: Some(|l, defaults| timeout("idle", l.timeouts.idle, defaults.timeouts.idle));
        "timeouts.linger" linger: Duration = Duration::from_secs(60), "\"60s\"",
            "time without progress after one direction has ended, or before a reset", Read::Text(positive_duration),
            unit: "_s", tcp_only: Some(NO_CONNECTIONS),
            describe: Some(|l, defaults| timeout("linger", l.timeouts.linger, defaults.timeouts.linger));
        "timeouts.header" header: Duration = Duration::from_secs(3), "\"3s\"", "how long the client's PROXY header may take",
            Read::Text(positive_duration), unit: "_s", tcp_only: Some(NO_PROXY_HEADERS),
            describe: Some(|l, defaults| timeout("header", l.timeouts.header, defaults.timeouts.header));
    }
}

settings! {
    /// Options of the sockets of clients and targets.
    #[derive(Debug, Clone, Copy, PartialEq)]
    SocketOptions () {}
    SOCKETS of Listener [sockets], Sockets {
        "sockets.nodelay" nodelay: bool = true, "true", "TCP_NODELAY", Read::Flag(|on| on), tcp_only: Some(TCP_OPTION),
            describe: Some(|l, _| (!l.sockets.nodelay).then(|| "without TCP_NODELAY".to_owned()));
        "sockets.keepalive" keepalive: Option<Duration> = Some(Duration::from_secs(60)), "\"60s\"", "idle time before the first probe, or \"off\"",
            Read::TextOrFalse(value::keepalive), unit: "_s", tcp_only: Some(TCP_OPTION), is_off: |l| l.sockets.keepalive.is_none(),
            describe: Some(|l, defaults| (l.sockets.keepalive != defaults.sockets.keepalive).then(|| {
                l.sockets.keepalive.map_or("no keepalive".to_owned(), |t| format!("keepalive after {}", duration_text(t)))
            }));
        "sockets.keepalive-interval" keepalive_interval: Duration = Duration::from_secs(15), "\"15s\"", "time between further probes",
            Read::Text(value::keepalive_interval), unit: "_s", tcp_only: Some(TCP_OPTION),
            describe: Some(|l, defaults| (l.sockets.keepalive_interval != defaults.sockets.keepalive_interval)
                .then(|| format!("probes every {}", duration_text(l.sockets.keepalive_interval))));
        "sockets.keepalive-count" keepalive_count: u32 = 4, "4", "unanswered probes after which a peer is lost",
            Read::Text(value::keepalive_count), tcp_only: Some(TCP_OPTION),
            describe: Some(|l, defaults| (l.sockets.keepalive_count != defaults.sockets.keepalive_count)
                .then(|| format!("lost after {} probes", l.sockets.keepalive_count)));
        "sockets.receive-buffer" receive_buffer: Option<u32> = None, "\"4MiB\"", "SO_RCVBUF",
            Read::Text(|t| value::socket_buffer(t).map(Some)), unit: "_bytes", default: "the kernel's tuning",
            describe: Some(|l, _| l.sockets.receive_buffer.map(|n| format!("SO_RCVBUF {}", bytes_text(n.into()))));
        "sockets.send-buffer" send_buffer: Option<u32> = None, "\"4MiB\"", "SO_SNDBUF",
            Read::Text(|t| value::socket_buffer(t).map(Some)), unit: "_bytes", default: "the kernel's tuning",
            describe: Some(|l, _| l.sockets.send_buffer.map(|n| format!("SO_SNDBUF {}", bytes_text(n.into()))));
        "sockets.user-timeout" user_timeout: Option<Duration> = None, "\"off\"",
            "TCP_USER_TIMEOUT: how long sent data may go unacknowledged", Read::TextOrFalse(value::user_timeout), unit: "_s",
            tcp_only: Some(TCP_OPTION), is_off: |l| l.sockets.user_timeout.is_none(),
            describe: Some(|l, _| l.sockets.user_timeout.map(|t| format!("TCP_USER_TIMEOUT {}", duration_text(t))));
        "sockets.mptcp" mptcp: bool = false, "false", "listen and connect with MPTCP", Read::Flag(|on| on),
            tcp_only: Some(TCP_OPTION), is_off: |l| !l.sockets.mptcp,
            describe: Some(|l, _| l.sockets.mptcp.then(|| "MPTCP".to_owned()));
        "sockets.fast-open" fast_open: bool = false, "false", "TCP_FASTOPEN for clients and to targets", Read::Flag(|on| on),
            tcp_only: Some(TCP_OPTION), is_off: |l| !l.sockets.fast_open,
            describe: Some(|l, _| l.sockets.fast_open.then(|| "TCP Fast Open".to_owned()));
        "sockets.backlog" backlog: u32 = 4096, "4096", "length of the accept queue", Read::Text(value::backlog),
            tcp_only: Some(TCP_OPTION),
            describe: Some(|l, defaults| (l.sockets.backlog != defaults.sockets.backlog).then(|| format!("backlog {}", l.sockets.backlog)));
    }
}

settings! {
    /// When a target gets no new connections.
    #[derive(Debug, Clone, Copy, PartialEq)]
    Health () {}
    HEALTH of Listener [health], Health {
        "health.fails" fails: u32 = 3, "3", "failed connections in a row after which a target is paused; 0 for never",
            Read::Text(value::fails),
            describe: Some(|l, defaults| (l.health.fails != defaults.health.fails || l.health.pause != defaults.health.pause).then(|| match l.health.fails {
                0 => "no target is left alone".to_owned(),
                fails => format!("{fails} failures pause a target {}", duration_text(l.health.pause)),
            }));
        "health.pause" pause: Duration = Duration::from_secs(10), "\"10s\"", "how long a paused target gets no connections", Read::Text(positive_duration), unit: "_s",
            describe: Some(|_, _| None);
        "health.check" check: Option<Check> = None, "{ interval = \"5s\", timeout = \"2s\", rise = 2, fall = 3 }",
            "connect to each target at intervals; true for these values", Read::Table(check::read), default: "none",
            tcp_only: Some("leave it out: a check connects by TCP; failed datagrams count for health.fails"),
            is_off: |l| l.health.check.is_none(),
            describe: Some(|l, _| l.health.check.map(|c| {
                format!("checked every {} for {}", duration_text(c.interval), duration_text(c.timeout))
            }));
    }
}

impl Global {
    /// The settings in the order of the reference.
    pub const ROWS: &'static [Row<Self>] = GLOBAL;
}

impl Listener {
    /// All rows, table by table.
    pub fn rows() -> impl Iterator<Item = &'static Row<Self>> {
        [LISTENER, LIMITS, TIMEOUTS, SOCKETS, HEALTH].into_iter().flatten()
    }
}

impl Default for Global {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self::new()
    }
}

fn open(listener: &Listener) -> &'static str {
    if listener.protocol == Protocol::Udp { "sessions" } else { "connections" }
}

fn timeout(name: &str, own: Duration, default: Duration) -> Option<String> {
    (own != default).then(|| match own {
        Duration::ZERO => format!("no {name} timeout"),
        own => format!("{name} timeout {}", duration_text(own)),
    })
}
