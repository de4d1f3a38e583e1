//! What a worker is given.
use std::fmt::Display;
use std::net::{IpAddr, UdpSocket};
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
    /// The target for a new session of a client; None when none is usable.
    fn choose(&mut self, client: IpAddr, targets: &[Arc<TargetState>], now: Ns) -> Option<usize>;
    /// A session with this target has begun.
    fn began(&mut self, _target: usize) {}
    /// A session with this target has ended.
    fn ended(&mut self, _target: usize) {}
    /// A datagram came back from this target, the first one of its session if so.
    fn answered(&mut self, _target: usize, _now: Ns, _first: bool) {}
    /// This target could not be reached or refused, `answered` if it had answered in this session before.
    fn failed(&mut self, _target: usize, _now: Ns, _answered: bool, _why: &dyn Display) {}
}

impl<F: FnMut(IpAddr, &[Arc<TargetState>], Ns) -> Option<usize> + Send> Chooser for F {
    fn choose(&mut self, client: IpAddr, targets: &[Arc<TargetState>], now: Ns) -> Option<usize> {
        self(client, targets, now)
    }
}

/// One listener of a worker.
pub struct UdpListener {
    /// What it is bound to: by this a worker knows it again in a new plan.
    pub bound: String,
    /// This worker's socket, of [`super::sockets::listen`]; None where it has it already, or no more.
    pub socket: Option<UdpSocket>,
    /// In the order that the chooser's answers count.
    pub targets: Vec<Arc<TargetState>>,
    /// Chooses among them.
    pub chooser: Box<dyn Chooser>,
    /// Whether a client may have a session; asked before anything of it is forwarded.
    pub access: Box<dyn Fn(IpAddr) -> bool + Send>,
    /// This worker's counters.
    pub stats: Arc<ListenerStats>,
    /// Counts its sessions in all workers.
    pub session_limit: Arc<ConnectionLimit>,
    pub(super) limits: Limits,
    pub(super) idle: Ns,
    pub(super) sockets: SocketOptions,
    pub(super) source: Option<IpAddr>,
    pub(super) transparent: bool,
}

impl UdpListener {
    /// A listener as configured, for one worker.
    pub fn new(
        config: &Listener,
        bound: String,
        socket: Option<UdpSocket>,
        targets: Vec<Arc<TargetState>>,
        chooser: Box<dyn Chooser>,
        access: Box<dyn Fn(IpAddr) -> bool + Send>,
        session_limit: Arc<ConnectionLimit>,
    ) -> Self {
        Self {
            bound,
            socket,
            targets,
            chooser,
            access,
            stats: Arc::default(),
            session_limit,
            limits: config.limits,
            idle: ns(config.timeouts.idle),
            sockets: config.sockets,
            source: config.source,
            transparent: config.transparent,
        }
    }

    pub(super) fn rules(&self) -> Rules {
        Rules { idle: self.idle, per_source: self.limits.per_source, rate: self.limits.rate }
    }
}

/// What a worker counts beside its listeners' counters.
#[derive(Debug, Default)]
pub struct UdpCounts {
    /// Receive calls of the kernel.
    pub receives: Count,
    /// Send calls of the kernel.
    pub sends: Count,
    /// ICMP errors that came back from targets: nobody listens there, or no way leads there.
    pub refused: Count,
    /// Messages of several datagrams that the kernel did not take whole; they were sent one by one.
    pub uncut: Count,
}

/// A worker's listeners.
pub struct UdpPlan {
    /// At most 65,535.
    pub listeners: Vec<UdpListener>,
    /// Counts the connections and sessions of all listeners in all threads.
    pub session_limit: Arc<ConnectionLimit>,
    /// Where the worker counts.
    pub counts: Arc<UdpCounts>,
}

/// Other listeners for a running worker.
pub struct Change {
    /// All of them. One that is bound as one before takes over its socket and its sessions.
    pub listeners: Vec<UdpListener>,
    /// Sessions of listeners that are no more may go on until then.
    pub drain_until: Ns,
    /// Dropped once it is in force.
    pub applied: Sender<()>,
}
