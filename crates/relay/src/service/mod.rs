//! A listener's configuration with what is derived from it, shared by all threads.
pub mod balancing;
pub mod target;

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use parshall_core::relay::Ns;
use parshall_core::relay::access::Access;
use parshall_core::relay::bucket::Bucket;
use parshall_core::relay::config::{AccessRule, Endpoint, Limits, Listener};
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::sources::{Admission, OpenPerSource};
use parshall_sys::stream_socket::Options;

use self::balancing::{Balancing, report_down, report_up};
use self::target::TargetState;
use crate::connection_limit::ConnectionLimit;

/// Sources whose connections are counted at a time. It bounds memory, far above what one host serves.
const SOURCES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub struct Service {
    pub config: Listener,
    pub access: Access,
    /// The proxies whose headers are trusted.
    proxies: Access,
    pub limiter: Arc<Limiter>,
    /// In the order of the configuration.
    pub targets: Vec<Arc<TargetState>>,
    pub balancing: Arc<Balancing>,
    /// The address that it is bound to, once it is open; None for a Unix socket.
    pub bound: Option<SocketAddr>,
    /// Socket options of connections to targets.
    pub options: Options,
}

/// The limits of a listener, which all threads share. They are asked when a connection begins and ends, never while bytes
/// move.
#[derive(Debug)]
pub struct Limiter {
    /// `limits.connections`, for UDP of sessions.
    pub connections: Arc<ConnectionLimit>,
    /// None without such a limit.
    per_source_and_rate: Option<Mutex<PerSourceAndRate>>,
}

#[derive(Debug)]
struct PerSourceAndRate {
    sources: Option<OpenPerSource>,
    rate: Option<Bucket>,
}

impl Limiter {
    pub fn new(limits: &Limits, now: Ns) -> Self {
        let rate = limits.rate.map(|rate| Bucket::new(u64::from(rate), u64::from(rate), now));
        let sources = limits.per_source.map(|limit| OpenPerSource::new(limit, SOURCES_MAX));
        let any = rate.is_some() || sources.is_some();
        Self {
            connections: ConnectionLimit::new(limits.connections),
            per_source_and_rate: any.then(|| Mutex::new(PerSourceAndRate { sources, rate })),
        }
    }

    /// A connection has ended; `source_counted` if [`Self::count_source`] had counted it.
    pub fn release(&self, client: Option<SocketAddr>, source_counted: bool) {
        self.connections.release();
        if source_counted {
            self.release_source(client);
        }
    }

    /// Counts a connection of this source; false at `limits.per-source`.
    pub fn count_source(&self, client: Option<SocketAddr>) -> bool {
        let Some(mut limits) = self.per_source_and_rate() else { return true };
        match (&mut limits.sources, client) {
            (Some(sources), Some(client)) => sources.open(client.ip()) == Admission::Admitted,
            _ => true,
        }
    }

    /// Takes back what [`Self::count_source`] has counted.
    pub fn release_source(&self, client: Option<SocketAddr>) {
        let (Some(mut limits), Some(client)) = (self.per_source_and_rate(), client) else { return };
        if let Some(sources) = &mut limits.sources {
            sources.close(client.ip());
        }
    }

    /// Counts a new connection against `limits.rate`; false above the rate.
    fn count_rate(&self, now: Ns) -> bool {
        let Some(mut limits) = self.per_source_and_rate() else { return true };
        limits.rate.as_mut().is_none_or(|rate| rate.take(now, 1).is_ok())
    }

    fn per_source_and_rate(&self) -> Option<MutexGuard<'_, PerSourceAndRate>> {
        self.per_source_and_rate.as_ref().map(|limits| limits.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Service {
    /// A listener with the state of its targets. `limiter` is that of the listener before a reload that left its limits.
    pub fn new(config: Listener, targets: Vec<Arc<TargetState>>, limiter: Option<Arc<Limiter>>, now: Ns) -> Self {
        let limiter = limiter.unwrap_or_else(|| Arc::new(Limiter::new(&config.limits, now)));
        let balancing = Arc::new(Balancing::new(&config));
        let network = |&network: &IpNet| AccessRule { allow: true, network };
        let proxies = Access::new(&config.proxy_from.iter().map(network).collect::<Vec<_>>());
        Self {
            access: Access::new(&config.access),
            proxies,
            options: options(&config),
            config,
            targets,
            balancing,
            bound: None,
            limiter,
        }
    }

    /// Applies access rules and limits to an accepted connection, and counts it. With `proxy-in` the source is checked and
    /// counted by [`Self::admits`] once the header names it.
    ///
    /// A TCP client whose address the kernel does not give has reset the connection. It is refused, because no rule could be
    /// applied, while data that it sent before could still be read.
    pub fn receives(&self, client: Option<SocketAddr>, now: Ns) -> Result<(), CloseReason> {
        match client {
            None if !matches!(self.config.listen, Endpoint::Unix(_)) => return Err(CloseReason::ClientGone),
            Some(proxy) if self.config.proxy_in && !self.trusts(proxy.ip()) => {
                return Err(CloseReason::UntrustedProxy);
            }
            Some(client) if !self.config.proxy_in && !self.access.admits(client.ip()) => {
                return Err(CloseReason::Denied);
            }
            _ => {}
        }
        let limited = !self.limiter.count_rate(now) || !self.config.proxy_in && !self.limiter.count_source(client);
        if limited { Err(CloseReason::Limited) } else { Ok(()) }
    }

    /// Replaces `out` with the targets to try for a new connection or session of this client, in order.
    pub fn order_targets(&self, client: IpAddr, now: Ns, out: &mut Vec<usize>) {
        self.balancing.order(&self.targets, client, now, out);
    }

    /// A connection to a target was established, or it has answered in a session. Logs it if the target was reported down.
    pub fn target_succeeded(&self, target: usize, now: Ns) {
        self.balancing.succeeded(target);
        if let Some(state) = self.targets.get(target).filter(|t| t.is_failing() && !t.is_down()) {
            report_up(&self.config.name, &self.config.targets[target].endpoint, state, now);
        }
    }

    /// A connection or session could not be established with a target, or it refuses datagrams. Logs it if the target was
    /// reported up.
    pub fn target_failed(&self, target: usize, now: Ns, why: &dyn Display) {
        self.balancing.failed(target, now);
        if let Some(state) = self.targets.get(target) {
            report_down(&self.config.name, &self.config.targets[target].endpoint, state, now, why);
        }
    }

    /// Whether PROXY headers from this address are trusted.
    fn trusts(&self, proxy: IpAddr) -> bool {
        // An empty list admits every address.
        !self.config.proxy_from.is_empty() && self.proxies.admits(proxy)
    }

    /// Whether an access rule or a limit needs the client's address.
    pub fn needs_client_address(&self) -> bool {
        !self.config.access.is_empty() || self.config.limits.per_source.is_some()
    }

    /// Applies access rules and the limit per source to the client in a PROXY header, and counts it. None if it has no
    /// address.
    pub fn admits(&self, client: Option<SocketAddr>) -> Result<(), CloseReason> {
        if client.is_some_and(|c| !self.access.admits(c.ip())) {
            return Err(CloseReason::Denied);
        }
        if self.limiter.count_source(client) { Ok(()) } else { Err(CloseReason::Limited) }
    }
}

/// The configured socket options.
pub fn options(config: &Listener) -> Options {
    let asked = &config.sockets;
    Options {
        nodelay: asked.nodelay,
        receive_buffer: asked.receive_buffer,
        send_buffer: asked.send_buffer,
        user_timeout: asked.user_timeout,
        mptcp: asked.mptcp,
        fast_open: asked.fast_open,
        transparent: config.transparent,
    }
}

#[cfg(test)]
mod tests {
    use parshall_core::relay::config::{Protocol, Target};

    use super::*;

    #[test]
    fn headers_are_trusted_from_the_configured_proxies_only() {
        let receives = |proxy_from: &[&str], from: &str| {
            let at = Endpoint::Ip("127.0.0.1:2".parse().expect("an address"));
            let targets = vec![Target { endpoint: at.clone(), weight: 1 }];
            let mut listener = Listener { proxy_in: true, ..Listener::new(Protocol::Tcp, at, targets) };
            listener.proxy_from = proxy_from.iter().map(|network| network.parse().expect("a network")).collect();
            Service::new(listener, Vec::new(), None, 0).receives(Some(from.parse().expect("an address")), 0)
        };
        let named = ["10.0.0.0/8", "2001:db8::/32"];
        for (from, expected) in [
            ("10.9.9.9:1", Ok(())),
            ("[2001:db8::5]:1", Ok(())),
            ("[::ffff:10.1.2.3]:1", Ok(())),
            ("11.0.0.1:1", Err(CloseReason::UntrustedProxy)),
            ("[2001:db9::5]:1", Err(CloseReason::UntrustedProxy)),
        ] {
            assert_eq!(receives(&named, from), expected, "{from}");
        }
        assert_eq!(receives(&[], "10.0.0.1:1"), Err(CloseReason::UntrustedProxy), "without a list no proxy is trusted");
    }

    #[test]
    fn only_clients_of_unix_sockets_may_have_no_address() {
        let at = |text: &str| Endpoint::Ip(text.parse().expect("an address"));
        let target = || vec![Target { endpoint: at("127.0.0.1:1"), weight: 1 }];
        let receives = |listen: Endpoint, proxy_in| {
            let listener = Listener { proxy_in, ..Listener::new(Protocol::Tcp, listen, target()) };
            Service::new(listener, Vec::new(), None, 0).receives(None, 0)
        };
        for proxy_in in [false, true] {
            assert_eq!(receives(at("127.0.0.1:2"), proxy_in), Err(CloseReason::ClientGone));
            assert_eq!(receives(Endpoint::Name("localhost".into(), 2), proxy_in), Err(CloseReason::ClientGone));
            assert_eq!(receives(Endpoint::Unix("/run/s".into()), proxy_in), Ok(()));
        }
    }
}
