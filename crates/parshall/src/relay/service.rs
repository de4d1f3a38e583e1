//! A listener as the workers see it: its configuration and what was made of it once, shared by all threads.
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use parshall_core::relay::Ns;
use parshall_core::relay::access::Access;
use parshall_core::relay::bucket::Bucket;
use parshall_core::relay::closing::CloseReason;
use parshall_core::relay::config::{Endpoint, Limits, Listener};
use parshall_core::relay::sources::{Admission, OpenPerSource};
use parshall_sys::stream_socket::Options;

use super::balancing::Balancing;
use super::directory::TargetState;
use super::room::Room;

/// Sources whose connections are counted: a bound on memory, far above what one host serves at a time.
const SOURCES_MAX: usize = 1 << 20;

/// A listener and its targets.
#[derive(Debug)]
pub struct Service {
    /// What the user wrote.
    pub config: Listener,
    /// Who may connect.
    pub access: Access,
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
        if let (Some(caps), Some(client), true) = (&self.caps, client, admitted) {
            let mut caps = caps.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(sources) = &mut caps.sources {
                sources.close(client.ip());
            }
        }
    }

    fn take(&self, client: Option<SocketAddr>, now: Ns) -> bool {
        let Some(caps) = &self.caps else { return true };
        let mut caps = caps.lock().unwrap_or_else(PoisonError::into_inner);
        if caps.rate.as_mut().is_some_and(|rate| rate.take(now, 1).is_err()) {
            return false;
        }
        match (&mut caps.sources, client) {
            (Some(sources), Some(client)) => sources.open(client.ip()) == Admission::Admitted,
            _ => true,
        }
    }
}

impl Service {
    /// A listener with the state of its targets. `gate` is that of the same listener before a reload.
    pub fn new(config: Listener, targets: Vec<Arc<TargetState>>, gate: Option<Arc<Gate>>, now: Ns) -> Self {
        let gate = gate.unwrap_or_else(|| Arc::new(Gate::new(&config.limits, now)));
        let balancing = Arc::new(Balancing::new(&config));
        Self { access: Access::new(&config.access), options: options(&config), config, targets, balancing, gate }
    }

    /// Whether an accepted connection may go on, whichever engine accepted it. Behind a proxy this is asked again with what
    /// the header says ([`Self::admits`]).
    ///
    /// A TCP client whose address the kernel does not give has left already. It could be held to no rule, while what it sent
    /// before its reset could still be read.
    pub fn receives(&self, client: Option<SocketAddr>, now: Ns) -> Result<(), CloseReason> {
        match client {
            None if !matches!(self.config.listen, Endpoint::Unix(_)) => Err(CloseReason::ClientGone),
            _ if self.config.proxy_in => Ok(()),
            _ => self.admits(client, now),
        }
    }

    /// Whether there are rules by which clients are told apart.
    pub fn judges_by_address(&self) -> bool {
        !self.config.access.is_empty() || self.config.limits.per_source.is_some()
    }

    /// Whether a client may connect, and if so counts it. None: it came over a Unix socket and has no address.
    pub fn admits(&self, client: Option<SocketAddr>, now: Ns) -> Result<(), CloseReason> {
        if client.is_some_and(|c| !self.access.admits(c.ip())) {
            return Err(CloseReason::Denied);
        }
        if self.gate.take(client, now) { Ok(()) } else { Err(CloseReason::Limited) }
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
