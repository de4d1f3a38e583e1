//! The arguments of a worker.
use std::fmt::Display;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use parshall_core::relay::config::{Limits, Listener, SocketOptions};
use parshall_core::relay::udp_sessions::Rules;
use parshall_core::relay::{Ns, ns};

use crate::connection_limit::ConnectionLimit;
use crate::service::target::TargetState;
use crate::stats::{Count, ListenerStats};

/// Chooses targets for new sessions. Each worker has its own.
pub trait Chooser: Send {
    /// The index of the target for a new session of a client; None if there is none.
    fn choose(&mut self, client: IpAddr, targets: &[Arc<TargetState>], now: Ns) -> Option<usize>;
    /// A session with this target has begun.
    fn began(&mut self, _target: usize) {}
    /// A session with this target has ended.
    fn ended(&mut self, _target: usize) {}
    /// This target has sent a datagram; `first` if it is the first of its session.
    fn answered(&mut self, _target: usize, _now: Ns, _first: bool) {}
    /// This target could not be reached, or refused a datagram (ICMP).
    fn failed(&mut self, _target: usize, _now: Ns, _why: &dyn Display) {}
}

impl<F: FnMut(IpAddr, &[Arc<TargetState>], Ns) -> Option<usize> + Send> Chooser for F {
    fn choose(&mut self, client: IpAddr, targets: &[Arc<TargetState>], now: Ns) -> Option<usize> {
        self(client, targets, now)
    }
}

/// A listener of a worker.
pub struct UdpListener {
    /// For messages.
    pub name: String,
    /// Its address, by which a worker matches it with a listener of a new configuration.
    pub bound: String,
    /// This worker's sockets, of [`super::sockets::listen`] or [`super::sockets::adopt`]. Empty where the worker has them
    /// already, has closed them, or has none because other workers read them all.
    pub sockets: Vec<Arc<OwnedFd>>,
    /// Indexed by the chooser's results.
    pub targets: Vec<Arc<TargetState>>,
    pub chooser: Box<dyn Chooser>,
    /// Whether a client may have a session.
    pub access: Box<dyn Fn(IpAddr) -> bool + Send>,
    /// The counters of this worker.
    pub stats: Arc<ListenerStats>,
    /// Counts its sessions in all workers.
    pub session_limit: Arc<ConnectionLimit>,
    pub(super) limits: Limits,
    pub(super) idle: Ns,
    pub(super) options: SocketOptions,
    pub(super) source: Option<IpAddr>,
    pub(super) transparent: bool,
    /// Answers to a datagram, with the last of which a session ends.
    pub(super) responses: Option<u32>,
}

impl UdpListener {
    pub fn new(
        config: &Listener,
        bound: String,
        sockets: Vec<Arc<OwnedFd>>,
        targets: Vec<Arc<TargetState>>,
        chooser: Box<dyn Chooser>,
        access: Box<dyn Fn(IpAddr) -> bool + Send>,
        session_limit: Arc<ConnectionLimit>,
    ) -> Self {
        Self {
            name: config.name.clone(),
            bound,
            sockets,
            targets,
            chooser,
            access,
            stats: Arc::default(),
            session_limit,
            limits: config.limits,
            idle: ns(config.timeouts.idle),
            options: config.sockets,
            source: config.source,
            transparent: config.transparent,
            responses: config.responses,
        }
    }

    pub(super) fn rules(&self) -> Rules {
        Rules {
            idle: self.idle,
            per_source: self.limits.per_source,
            rate: self.limits.rate,
            limited: self.limits.connections.is_some(),
        }
    }
}

/// Counters of a worker beside those of its listeners.
#[derive(Debug, Default)]
pub struct UdpCounts {
    /// Calls of recvmmsg.
    pub receives: Count,
    /// Calls of sendmmsg and sendmsg.
    pub sends: Count,
    /// ICMP errors of targets: port, host or network unreachable.
    pub refused: Count,
    /// GSO messages that the kernel refused, whose datagrams were sent one by one.
    pub unsegmented: Count,
}

/// A new configuration for a running worker.
pub struct Change {
    /// All listeners. One on the address of a present one keeps its socket and its sessions.
    pub listeners: Vec<UdpListener>,
    /// When sessions of removed listeners are ended.
    pub drain_until: Ns,
    /// Dropped once it is in force.
    pub applied: Sender<()>,
}
