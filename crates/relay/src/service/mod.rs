//! A listener as the workers see it: its configuration and what was made of it once, shared by all threads.
pub mod balancing;
pub mod target;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

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
use crate::room::Room;

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
    /// Caps that hold over all threads.
    pub gate: Arc<Gate>,
    /// In the order of the configuration.
    pub targets: Vec<Arc<TargetState>>,
    /// Which of them is next.
    pub balancing: Arc<Balancing>,
    /// Options of the sockets to targets.
    pub options: Options,
}

/// Caps of a listener that hold over all threads. Asked when a connection begins and ends, never while bytes move.
#[derive(Debug)]
pub struct Gate {
    /// Its open connections, or sessions.
    pub room: Arc<Room>,
    caps: Option<Mutex<Caps>>,
}

#[derive(Debug)]
struct Caps {
    sources: Option<OpenPerSource>,
    rate: Option<Bucket>,
}

impl Gate {
    /// The caps of a configuration.
    pub fn new(limits: &Limits, now: Ns) -> Self {
        let rate = limits.rate.map(|rate| Bucket::new(u64::from(rate), u64::from(rate), now));
        let sources = limits.per_source.map(|limit| OpenPerSource::new(limit, SOURCES_MAX));
        let any = rate.is_some() || sources.is_some();
        Self { room: Room::new(limits.connections), caps: any.then(|| Mutex::new(Caps { sources, rate })) }
    }

    /// A connection has ended; `admitted` if its client had passed [`Service::admits`].
    pub fn leave(&self, client: Option<SocketAddr>, admitted: bool) {
        self.room.give_back();
        if admitted {
            self.discount(client);
        }
    }

    /// Counts a connection of this source, or answers that it has as many as it may.
    pub fn count(&self, client: Option<SocketAddr>) -> bool {
        let Some(caps) = &self.caps else { return true };
        let mut caps = caps.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut caps.sources, client) {
            (Some(sources), Some(client)) => sources.open(client.ip()) == Admission::Admitted,
            _ => true,
        }
    }

    /// Undoes [`Self::count`].
    pub fn discount(&self, client: Option<SocketAddr>) {
        let (Some(caps), Some(client)) = (&self.caps, client) else { return };
        let mut caps = caps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sources) = &mut caps.sources {
            sources.close(client.ip());
        }
    }

    /// Whether the rate of new connections has room for one.
    fn keeps_rate(&self, now: Ns) -> bool {
        let Some(caps) = &self.caps else { return true };
        let mut caps = caps.lock().unwrap_or_else(PoisonError::into_inner);
        caps.rate.as_mut().is_none_or(|rate| rate.take(now, 1).is_ok())
    }
}

impl Service {
    /// A listener with the state of its targets. `gate` is that of the same listener before a reload.
    pub fn new(config: Listener, targets: Vec<Arc<TargetState>>, gate: Option<Arc<Gate>>, now: Ns) -> Self {
        let gate = gate.unwrap_or_else(|| Arc::new(Gate::new(&config.limits, now)));
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
            gate,
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
        let limited = !self.gate.keeps_rate(now) || !self.config.proxy_in && !self.gate.count(client);
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
        if self.gate.count(client) { Ok(()) } else { Err(CloseReason::Limited) }
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
