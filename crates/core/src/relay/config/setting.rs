//! One thing that can be set for a listener: how it is applied, and where it cannot work.
//!
//! Defaults and a listener's own settings are lists of these. A default that cannot work with a listener is left out
//! there (TCP timeouts do not trouble a UDP listener); a listener's own setting that cannot work is a mistake.
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::model::{AccessRule, Balance, Check, Endpoint, EngineChoice, Listener, Protocol, ProxyVersion};
use crate::values::ValueError;

/// A setting of a listener, as in [`Listener`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // Each is the field of the model with the same name.
pub enum Setting {
    Balance(Balance),
    Engine(EngineChoice),
    Buffer(usize),
    Access(Vec<AccessRule>),
    Connections(u32),
    PerSource(u32),
    Rate(u32),
    Bandwidth(u64),
    Connect(Duration),
    Idle(Option<Duration>),
    Linger(Duration),
    Header(Duration),
    Nodelay(bool),
    ReceiveBuffer(u32),
    SendBuffer(u32),
    Keepalive(Option<Duration>),
    UserTimeout(Option<Duration>),
    Mptcp(bool),
    FastOpen(bool),
    Backlog(u32),
    ProxyIn(bool),
    ProxyFrom(Vec<IpNet>),
    ProxyOut(Option<ProxyVersion>),
    Transparent(bool),
    Source(IpAddr),
    Fails(u32),
    Pause(Duration),
    Check(Option<Check>),
}

impl Setting {
    /// Its key in a file.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Balance(_) => "balance",
            Self::Engine(_) => "engine",
            Self::Buffer(_) => "buffer",
            Self::Access(_) => "access",
            Self::Connections(_) => "limits.connections",
            Self::PerSource(_) => "limits.per-source",
            Self::Rate(_) => "limits.rate",
            Self::Bandwidth(_) => "limits.bandwidth",
            Self::Connect(_) => "timeouts.connect",
            Self::Idle(_) => "timeouts.idle",
            Self::Linger(_) => "timeouts.linger",
            Self::Header(_) => "timeouts.header",
            Self::Nodelay(_) => "sockets.nodelay",
            Self::ReceiveBuffer(_) => "sockets.receive-buffer",
            Self::SendBuffer(_) => "sockets.send-buffer",
            Self::Keepalive(_) => "sockets.keepalive",
            Self::UserTimeout(_) => "sockets.user-timeout",
            Self::Mptcp(_) => "sockets.mptcp",
            Self::FastOpen(_) => "sockets.fast-open",
            Self::Backlog(_) => "sockets.backlog",
            Self::ProxyIn(_) => "proxy-in",
            Self::ProxyFrom(_) => "proxy-from",
            Self::ProxyOut(_) => "proxy-out",
            Self::Transparent(_) => "transparent",
            Self::Source(_) => "source",
            Self::Fails(_) => "health.fails",
            Self::Pause(_) => "health.pause",
            Self::Check(_) => "health.check",
        }
    }

    /// Sets it.
    pub fn apply(&self, listener: &mut Listener) {
        let l = listener;
        match self {
            Self::Balance(v) => l.balance = *v,
            Self::Engine(v) => l.engine = *v,
            Self::Buffer(v) => l.buffer = *v,
            Self::Access(v) => l.access.clone_from(v),
            Self::Connections(v) => l.limits.connections = Some(*v),
            Self::PerSource(v) => l.limits.per_source = Some(*v),
            Self::Rate(v) => l.limits.rate = Some(*v),
            Self::Bandwidth(v) => l.limits.bandwidth = Some(*v),
            Self::Connect(v) => l.timeouts.connect = *v,
            Self::Idle(v) => l.timeouts.idle = v.unwrap_or_default(),
            Self::Linger(v) => l.timeouts.linger = *v,
            Self::Header(v) => l.timeouts.header = *v,
            Self::Nodelay(v) => l.sockets.nodelay = *v,
            Self::ReceiveBuffer(v) => l.sockets.receive_buffer = Some(*v),
            Self::SendBuffer(v) => l.sockets.send_buffer = Some(*v),
            Self::Keepalive(v) => l.sockets.keepalive = *v,
            Self::UserTimeout(v) => l.sockets.user_timeout = *v,
            Self::Mptcp(v) => l.sockets.mptcp = *v,
            Self::FastOpen(v) => l.sockets.fast_open = *v,
            Self::Backlog(v) => l.sockets.backlog = *v,
            Self::ProxyIn(v) => l.proxy_in = *v,
            Self::ProxyFrom(v) => l.proxy_from.clone_from(v),
            Self::ProxyOut(v) => l.proxy_out = *v,
            Self::Transparent(v) => l.transparent = *v,
            Self::Source(v) => l.source = Some(*v),
            Self::Fails(v) => l.health.fails = *v,
            Self::Pause(v) => l.health.pause = *v,
            Self::Check(v) => l.health.check = *v,
        }
    }

    /// Whether it says that something is not to be done. That works everywhere.
    fn is_off(&self) -> bool {
        matches!(
            self,
            Self::Mptcp(false)
                | Self::FastOpen(false)
                | Self::ProxyIn(false)
                | Self::Transparent(false)
                | Self::ProxyOut(None)
                | Self::Keepalive(None)
                | Self::UserTimeout(None)
                | Self::Check(None)
                | Self::Engine(EngineChoice::Auto | EngineChoice::Copy)
        )
    }

    /// Why it cannot work with what the listener forwards.
    pub fn misfit(&self, listener: &Listener) -> Option<ValueError> {
        if self.is_off() {
            return None;
        }
        match listener.protocol {
            Protocol::Udp => self.udp_misfit(),
            Protocol::Tcp => self.unix_misfit(listener),
        }
        .or_else(|| self.source_misfit(listener))
        .or_else(|| self.proxies_misfit(listener))
    }

    /// Whether it needs another setting, which the listener lacks. A default that does is a mistake too: left out it would
    /// leave the listener without the care that was asked for.
    pub fn lacks(&self, listener: &Listener) -> Option<ValueError> {
        let takes = *self == Self::ProxyIn(true) && listener.proxy_in && listener.protocol == Protocol::Tcp;
        let has_address = !matches!(listener.listen, Endpoint::Unix(_));
        (takes && has_address && listener.proxy_from.is_empty()).then(|| {
            ValueError::new(
                "`proxy-in` needs `proxy-from`: without it, every client could say that it is another one",
                "name the proxies that clients come through, as in proxy-from = [\"10.0.0.5\", \"10.1.0.0/16\"]",
            )
        })
    }

    fn proxies_misfit(&self, listener: &Listener) -> Option<ValueError> {
        if !matches!(self, Self::ProxyFrom(_)) {
            return None;
        }
        if !listener.proxy_in {
            let hint = "set proxy-in if clients come through proxies that send PROXY headers, or leave it out";
            return Some(ValueError::new("`proxy-from` cannot be used without `proxy-in`", hint));
        }
        matches!(listener.listen, Endpoint::Unix(_)).then(|| {
            ValueError::new(
                "`proxy-from` cannot be used with a Unix listener: its clients have no address",
                "leave it out: who may connect is a matter of the rights of the socket and its directory",
            )
        })
    }

    fn udp_misfit(&self) -> Option<ValueError> {
        let hint = match self {
            Self::Engine(_) => "leave it out: datagrams are moved in batches by recvmmsg and sendmmsg",
            Self::Connect(_) | Self::Linger(_) => "leave it out: UDP has no connections; timeouts.idle ends a session",
            Self::Header(_) | Self::ProxyIn(_) | Self::ProxyFrom(_) | Self::ProxyOut(_) => {
                "leave it out: PROXY headers are for TCP only"
            }
            Self::Check(_) => "leave it out: a check connects by TCP; failed datagrams count for health.fails",
            Self::Buffer(_) => "leave it out: a datagram is always read whole",
            Self::Bandwidth(_) => "leave it out: limits.rate bounds the datagrams a second of a source",
            Self::Nodelay(_) | Self::Keepalive(_) | Self::UserTimeout(_) | Self::Mptcp(_) => {
                "leave it out: it is a TCP option"
            }
            Self::FastOpen(_) | Self::Backlog(_) => "leave it out: it is a TCP option",
            _ => return None,
        };
        Some(ValueError::new(format!("`{}` cannot be used with UDP", self.key()), hint))
    }

    fn unix_misfit(&self, listener: &Listener) -> Option<ValueError> {
        // Behind a PROXY header there is an address again.
        let nameless = matches!(listener.listen, Endpoint::Unix(_)) && !listener.proxy_in;
        let mut targets = listener.targets.iter().map(|t| matches!(t.endpoint, Endpoint::Unix(_)));
        let to_unix = !listener.targets.is_empty()
            && match self {
                Self::Transparent(_) => targets.any(|unix| unix),
                Self::Source(_) => targets.all(|unix| unix),
                _ => false,
            };
        if to_unix {
            return Some(ValueError::new(
                format!("`{}` cannot be used with a Unix target", self.key()),
                "leave it out: a Unix socket has no address",
            ));
        }
        let by_client = matches!(self, Self::Access(_) | Self::PerSource(_) | Self::Transparent(_))
            || *self == Self::Balance(Balance::SourceHash);
        (nameless && by_client).then(|| {
            ValueError::new(
                format!("`{}` cannot be used with a Unix listener: its clients have no address", self.key()),
                "leave it out, or set proxy-in if the clients send PROXY headers",
            )
        })
    }

    fn source_misfit(&self, listener: &Listener) -> Option<ValueError> {
        let Self::Source(source) = self else { return None };
        let families: Vec<bool> = listener
            .targets
            .iter()
            .filter_map(|t| match &t.endpoint {
                Endpoint::Ip(address) => Some(address.is_ipv4()),
                // A name may have addresses of both families.
                Endpoint::Name(..) => Some(source.is_ipv4()),
                Endpoint::Unix(_) => None,
            })
            .collect();
        let reaches_none = !families.is_empty() && !families.contains(&source.is_ipv4());
        reaches_none.then(|| {
            let (own, other) = if source.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
            ValueError::new(
                format!("`source` is an {own} address, but all targets are {other}"),
                format!("write an {other} address of this host"),
            )
        })
    }

    /// The key of another setting with which it cannot work, and why. Symmetric.
    pub fn clash(&self, listener: &Listener) -> Option<(&'static str, ValueError)> {
        let both = |other: &'static str, hint: &str| {
            let (a, b) = if self.key() < other { (self.key(), other) } else { (other, self.key()) };
            Some((other, ValueError::new(format!("`{a}` and `{b}` cannot be used together"), hint)))
        };
        let source_hint = "leave one out: transparent connects from the client's address, source from a fixed one";
        let sockmap_hint = "choose another engine: what the kernel redirects cannot be slowed down";
        match self {
            Self::Transparent(true) if listener.source.is_some() => both("source", source_hint),
            Self::Source(_) if listener.transparent => both("transparent", source_hint),
            Self::Engine(EngineChoice::Sockmap) if listener.limits.bandwidth.is_some() => {
                both("limits.bandwidth", sockmap_hint)
            }
            Self::Bandwidth(_) if listener.engine == EngineChoice::Sockmap => both("engine", sockmap_hint),
            _ => None,
        }
    }
}
