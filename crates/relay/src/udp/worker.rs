//! The loop of a worker, and the beginning and end of sessions.
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use parshall_core::relay::Ns;
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::PerDirection;
use parshall_core::relay::slots::SlotId;
use parshall_core::relay::udp_sessions::{Key, Refusal, UdpSessions};
use parshall_sys::clock::monotonic_ns;
use parshall_sys::epoll::{Epoll, Events, READABLE};
use parshall_sys::limits::exhausted;
use parshall_sys::stream_socket::StreamAddr;
use parshall_sys::udp_batch::DatagramBatch;

use super::plan::{UdpCounts, UdpListener, UdpPlan};
use super::sockets::{self, From};
use super::stop::{Order, Stop};
use super::up::Groups;
use crate::connection_limit::ConnectionLimit;

/// Datagrams, or super-datagrams, taken in one call.
const BATCH: usize = 64;
/// Batches taken from one socket before the others have their turn.
pub(super) const TURNS: usize = 4;
/// After descriptors or memory ran out, how long no new session is tried.
const PAUSE: Ns = 100_000_000;
/// The longest wait without a deadline.
const WAIT_MAX: Ns = 3_600_000_000_000;

const LISTENER: u64 = 1 << 63;
const WAKE: u64 = u64::MAX;

/// One client's traffic.
pub(super) struct Session {
    pub(super) id: SlotId,
    pub(super) socket: UdpSocket,
    pub(super) listener: usize,
    pub(super) client: SocketAddr,
    pub(super) local: Option<IpAddr>,
    /// Its place in the listener's list; None when a new configuration has it no more.
    pub(super) target: Option<usize>,
    pub(super) answered: bool,
    /// The largest datagrams, in bytes, that are sent in one message.
    pub(super) segment_max: PerDirection<usize>,
    /// Its group in the batch with this number.
    pub(super) group: (u64, usize),
}

pub(super) struct Port {
    pub(super) plan: UdpListener,
    paused_until: Ns,
    /// Once it is removed: when its sessions are ended.
    drain_until: Option<Ns>,
}

impl Port {
    fn new(plan: UdpListener) -> Self {
        Self { plan, paused_until: 0, drain_until: None }
    }
}

/// Serves UDP listeners in one thread.
pub struct UdpWorker {
    epoll: Epoll,
    stop: Arc<Stop>,
    pub(super) ports: Vec<Port>,
    pub(super) table: UdpSessions,
    pub(super) sessions: Vec<Option<Session>>,
    pub(super) batch: DatagramBatch,
    pub(super) groups: Groups,
    /// The listener whose answers wait in the batch.
    pub(super) answers_of: usize,
    pub(super) counts: Arc<UdpCounts>,
    session_limit: Arc<ConnectionLimit>,
    handed_over: bool,
}

fn token(id: SlotId) -> u64 {
    // The highest bit marks listeners.
    u64::from(id.generation & 0x7fff_ffff) << 32 | u64::from(id.slot)
}

/// Counts a session against the limits of the process and of its listener; false at either limit.
fn acquire(process: &ConnectionLimit, listener: &ConnectionLimit) -> bool {
    let acquired = process.try_acquire();
    if acquired && !listener.try_acquire() {
        process.release();
        return false;
    }
    acquired
}

fn release(process: &ConnectionLimit, listener: &ConnectionLimit) {
    listener.release();
    process.release();
}

impl UdpWorker {
    /// A worker for a plan; it serves once it runs.
    pub fn new(plan: UdpPlan, stop: Arc<Stop>) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(stop.reader(), WAKE, READABLE)?;
        for (index, listener) in plan.listeners.iter().enumerate() {
            if let Some(socket) = &listener.socket {
                epoll.add(socket, LISTENER | index as u64, READABLE)?;
            }
        }
        let rules = plan.listeners.iter().map(UdpListener::rules).collect();
        Ok(Self {
            epoll,
            stop,
            ports: plan.listeners.into_iter().map(Port::new).collect(),
            table: UdpSessions::new(rules, plan.session_limit.max()),
            sessions: Vec::new(),
            batch: DatagramBatch::new(BATCH),
            groups: Groups::new(BATCH),
            answers_of: 0,
            counts: plan.counts,
            session_limit: plan.session_limit,
            handed_over: false,
        })
    }

    /// Serves until it is told to stop and has drained.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        loop {
            let now = monotonic_ns();
            let Some(deadline) = self.obey(now)? else { break };
            let drained = self.ports.iter().filter_map(|port| port.drain_until).min();
            let wake = self.table.next_look().into_iter().chain(drained).fold(deadline, Ns::min);
            self.epoll.wait(&mut events, Duration::from_nanos(wake.saturating_sub(now).min(WAIT_MAX)))?;
            let now = monotonic_ns();
            for (token, _) in events.iter() {
                match token {
                    WAKE => self.change(now)?,
                    token if token & LISTENER != 0 => self.forward_up((token & !LISTENER) as usize, now),
                    token => self.forward_down(token, now),
                }
            }
            self.flush_answers();
            while let Some(id) = self.table.expired(now) {
                self.end(id, CloseReason::IdleTimeout);
            }
            self.close_drained(now);
        }
        while let Some(id) = self.table.any() {
            self.end(id, CloseReason::Drained);
        }
        Ok(())
    }

    /// The time at which to end, as ordered; None is now.
    fn obey(&mut self, now: Ns) -> io::Result<Option<Ns>> {
        let deadline = match self.stop.order() {
            Order::Serve => return Ok(Some(Ns::MAX)),
            Order::End => return Ok(None),
            Order::Drain(deadline) => deadline,
            Order::HandOver(deadline) => {
                if !self.handed_over {
                    self.handed_over = true;
                    let sockets = self.ports.iter().enumerate().filter_map(|(i, p)| Some((i, p.plan.socket.as_ref()?)));
                    for (index, socket) in sockets {
                        self.epoll.modify(socket, LISTENER | index as u64, 0)?;
                    }
                }
                deadline
            }
        };
        self.table.drain();
        Ok((now < deadline && !self.table.is_empty()).then_some(deadline))
    }

    /// Takes up what was ordered: other listeners.
    fn change(&mut self, now: Ns) -> io::Result<()> {
        self.stop.woken();
        for change in self.stop.changes() {
            self.flush_answers();
            let mut kept = Vec::new();
            for new in change.listeners {
                let same = |(index, port): (usize, &Port)| {
                    (port.plan.socket.is_some() && port.plan.bound == new.bound && !kept.contains(&index))
                        .then_some(index)
                };
                match self.ports.iter().enumerate().find_map(same) {
                    Some(index) => {
                        self.replace(index, new);
                        kept.push(index);
                    }
                    None if new.socket.is_some() => kept.push(self.add(new)?),
                    // It has never reached this worker, for want of a descriptor.
                    None => {}
                }
            }
            for (index, port) in self.ports.iter_mut().enumerate().filter(|(index, _)| !kept.contains(index)) {
                if port.plan.socket.is_some() && port.drain_until.is_none() {
                    port.drain_until = Some(change.drain_until);
                    self.table.shut(index as u32);
                }
            }
            self.close_drained(now);
            drop(change.applied);
        }
        Ok(())
    }

    /// Opens a listener, in the place of one that is closed if there is one.
    fn add(&mut self, new: UdpListener) -> io::Result<usize> {
        let closed = self.ports.iter().position(|port| port.plan.socket.is_none());
        let index = closed.unwrap_or(self.ports.len());
        if let Some(socket) = &new.socket {
            self.epoll.add(socket, LISTENER | index as u64, READABLE)?;
        }
        self.table.set(index as u32, new.rules());
        match self.ports.get_mut(index) {
            Some(port) => *port = Port::new(new),
            None => self.ports.push(Port::new(new)),
        }
        Ok(index)
    }

    /// Gives a listener new settings. Its socket stays, and its sessions go on through their sockets to their targets.
    fn replace(&mut self, index: usize, new: UdpListener) {
        self.table.set(index as u32, new.rules());
        let mut old = std::mem::replace(&mut self.ports[index], Port::new(new)).plan;
        let plan = &mut self.ports[index].plan;
        plan.socket = old.socket.take();
        for session in self.sessions.iter_mut().flatten().filter(|session| session.listener == index) {
            session.target.inspect(|&target| old.chooser.ended(target));
            let before = session.target.map(|target| &old.targets[target]);
            session.target = before.and_then(|before| plan.targets.iter().position(|t| Arc::ptr_eq(t, before)));
            session.target.inspect(|&target| plan.chooser.began(target));
            plan.session_limit.transfer_in();
            old.session_limit.release();
            old.stats.active.sub(1);
            plan.stats.active.add(1);
        }
    }

    /// Closes removed listeners whose sessions have ended or whose time is over.
    fn close_drained(&mut self, now: Ns) {
        for index in 0..self.ports.len() {
            let Some(until) = self.ports[index].drain_until else { continue };
            while let Some(id) = self.table.any_of(index as u32).filter(|_| until <= now) {
                self.end(id, CloseReason::Drained);
            }
            if self.table.any_of(index as u32).is_none() {
                self.flush_answers();
                let port = &mut self.ports[index];
                port.drain_until = None;
                if let Some(socket) = port.plan.socket.take() {
                    // Another process may have it too; then closing it does not end the watch.
                    let _gone = self.epoll.remove(&socket);
                }
            }
        }
    }

    /// The session that an event is for, unless it has ended meanwhile.
    pub(super) fn session(&mut self, event: u64) -> Option<&mut Session> {
        let slot = (event & 0xffff_ffff) as usize;
        self.sessions.get_mut(slot)?.as_mut().filter(|session| token(session.id) == event)
    }

    /// Whether a client may have a session; one that may not is counted.
    pub(super) fn allowed(&self, key: &Key) -> bool {
        let plan = &self.ports[key.listener as usize].plan;
        let allowed = (plan.access)(key.client.ip().to_canonical());
        if !allowed {
            plan.stats.closed(CloseReason::Denied).add(1);
        }
        allowed
    }

    /// Begins a session for a client that has none, or counts why not.
    pub(super) fn begin(&mut self, key: Key, now: Ns) -> Option<SlotId> {
        let index = key.listener as usize;
        let port = &mut self.ports[index];
        if now < port.paused_until {
            return None;
        }
        let id = match self.table.open(key, now) {
            Ok(id) if acquire(&self.session_limit, &port.plan.session_limit) => id,
            Err(Refusal::Draining) => return None,
            refused => {
                port.plan.stats.closed(CloseReason::Limited).add(1);
                refused.ok().and_then(|id| self.table.close(id));
                return None;
            }
        };
        let connected = port.dial(&key, now).and_then(|(socket, target)| {
            self.epoll
                .add(&socket, token(id), READABLE)
                .map(|()| (socket, target))
                .map_err(|_| CloseReason::RelayFailed)
        });
        let stats = &port.plan.stats;
        match connected {
            Ok((socket, target)) => {
                stats.accepted.add(1);
                stats.active.add(1);
                port.plan.chooser.began(target);
                let slot = id.slot as usize;
                if self.sessions.len() <= slot {
                    self.sessions.resize_with(slot + 1, || None);
                }
                self.sessions[slot] = Some(Session {
                    id,
                    socket,
                    listener: index,
                    client: key.client,
                    local: key.local,
                    target: Some(target),
                    answered: false,
                    segment_max: PerDirection::from([usize::MAX; 2]),
                    group: (0, 0),
                });
                Some(id)
            }
            Err(reason) => {
                stats.closed(reason).add(1);
                if reason == CloseReason::RelayFailed {
                    stats.accept_pauses.add(1);
                    port.paused_until = now.saturating_add(PAUSE);
                }
                release(&self.session_limit, &port.plan.session_limit);
                self.table.close(id);
                None
            }
        }
    }

    fn end(&mut self, id: SlotId, reason: CloseReason) {
        self.table.close(id);
        let Some(session) = self.sessions.get_mut(id.slot as usize).and_then(Option::take) else { return };
        let plan = &mut self.ports[session.listener].plan;
        session.target.inspect(|&target| plan.chooser.ended(target));
        release(&self.session_limit, &plan.session_limit);
        plan.stats.active.sub(1);
        plan.stats.closed(reason).add(1);
    }
}

impl Port {
    /// A socket to the target that is chosen for a client; other targets are tried while it cannot be had.
    fn dial(&mut self, key: &Key, now: Ns) -> Result<(UdpSocket, usize), CloseReason> {
        let plan = &mut self.plan;
        let from = match (plan.transparent, plan.source) {
            (true, _) => From::Client(key.client),
            (false, Some(ip)) => From::Address(ip),
            (false, None) => From::Anywhere,
        };
        for _ in 0..plan.targets.len() {
            let mut why = io::Error::other("its name has no address");
            let chosen = plan.chooser.choose(key.client.ip().to_canonical(), &plan.targets, now);
            let Some(target) = chosen.filter(|&target| target < plan.targets.len()) else { break };
            for address in plan.targets[target].addresses().iter() {
                let StreamAddr::Ip(to) = address else { continue };
                plan.stats.dials.add(1);
                match sockets::connect(*to, from, &plan.sockets) {
                    Ok(socket) => return Ok((socket, target)),
                    Err(error) => {
                        plan.stats.dial_failures.add(1);
                        // No other address would do better.
                        if exhausted(&error) {
                            return Err(CloseReason::RelayFailed);
                        }
                        why = error;
                    }
                }
            }
            plan.chooser.failed(target, now, false, &why);
        }
        Err(CloseReason::ConnectRefused)
    }
}
