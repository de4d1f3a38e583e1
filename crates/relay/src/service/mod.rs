//! A listener as the workers see it: its configuration and what was made of it once, shared by all threads.
pub mod balancing;
pub mod target;

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

use self::balancing::Balancing;
use self::target::TargetState;
use crate::connection_limit::ConnectionLimit;

/// Sources whose connections are counted: a bound on memory, far above what one host serves at a time.
const SOURCES_MAX: usize = 1 << 20;

/// A listener and its targets.
#[derive(Debug)]
pub struct Service {
    /// What the user wrote.
    pub config: Listener,
    /// Who may connect.
    pub access: Access,
    /// Whose PROXY headers are believed.
    proxies: Access,
    pub limiter: Arc<Limiter>,
    /// In the order of the configuration.
    pub targets: Vec<Arc<TargetState>>,
    /// Which of them is next.
    pub balancing: Arc<Balancing>,
    /// Options of the sockets to targets.
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
            limiter,
        }
    }

    /// Whether an accepted connection may go on, whichever engine accepted it, and if so counts it. Behind a proxy its source
    /// is judged and counted once the header says who that is ([`Self::admits`]); until then it is the proxy's.
    ///
    /// A TCP client whose address the kernel does not give has left already. It could be held to no rule, while what it sent
    /// before its reset could still be read.
    pub fn receives(&self, client: Option<SocketAddr>, now: Ns) -> Result<(), CloseReason> {
        match client {
            None if !matches!(self.config.listen, Endpoint::Unix(_)) => return Err(CloseReason::ClientGone),
            Some(proxy) if self.config.proxy_in && !self.believes(proxy.ip()) => {
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

    /// Whether PROXY headers from this address are believed.
    fn believes(&self, proxy: IpAddr) -> bool {
        // An empty list compiles to one that admits everybody.
        !self.config.proxy_from.is_empty() && self.proxies.admits(proxy)
    }

    /// Whether there are rules by which clients are told apart.
    pub fn judges_by_address(&self) -> bool {
        !self.config.access.is_empty() || self.config.limits.per_source.is_some()
    }

    /// Whether the client of whom a PROXY header tells may connect, and if so counts it. None: it came over a Unix socket and
    /// has no address.
    pub fn admits(&self, client: Option<SocketAddr>) -> Result<(), CloseReason> {
        if client.is_some_and(|c| !self.access.admits(c.ip())) {
            return Err(CloseReason::Denied);
        }
        if self.limiter.count_source(client) { Ok(()) } else { Err(CloseReason::Limited) }
    }
}

/// The socket options that a configuration asks for.
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
    fn headers_are_believed_of_the_proxies_that_were_named() {
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
        assert_eq!(receives(&[], "10.0.0.1:1"), Err(CloseReason::UntrustedProxy), "without a list nobody is believed");
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
