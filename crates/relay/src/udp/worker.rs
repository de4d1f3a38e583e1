//! The event loop of a UDP worker, and the beginning and end of its sessions.
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

/// Messages that one recvmmsg takes: datagrams, or several joined by GRO.
const BATCH: usize = 64;
/// Batches taken from one socket before others are read.
pub(super) const TURNS: usize = 4;
/// How long no session begins after descriptors or memory ran out.
const PAUSE: Ns = 100_000_000;
const WAIT_MAX: Ns = 3_600_000_000_000;

const LISTENER: u64 = 1 << 63;
const WAKE: u64 = u64::MAX;

pub(super) struct Session {
    pub(super) id: SlotId,
    pub(super) socket: UdpSocket,
    pub(super) listener: usize,
    pub(super) client: SocketAddr,
    pub(super) local: Option<IpAddr>,
    /// Its index in the listener's targets; None when a new configuration has removed the target.
    pub(super) target: Option<usize>,
    pub(super) answered: bool,
    /// The largest datagrams, in bytes, that are joined in one message (GSO).
    pub(super) segment_max: PerDirection<usize>,
    /// The number of the last batch with its datagrams, and its group there.
    pub(super) group: (u64, usize),
}

pub(super) struct ListenerState {
    pub(super) plan: UdpListener,
    paused_until: Ns,
    /// When its sessions are ended, once it is removed.
    drain_until: Option<Ns>,
}

impl ListenerState {
    fn new(plan: UdpListener) -> Self {
        Self { plan, paused_until: 0, drain_until: None }
    }
}

/// Serves the UDP listeners of one thread.
pub struct UdpWorker {
    epoll: Epoll,
    stop: Arc<Stop>,
    pub(super) listeners: Vec<ListenerState>,
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
            listeners: plan.listeners.into_iter().map(ListenerState::new).collect(),
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

    /// Runs in the calling thread until it was asked to stop and has drained.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        loop {
            let now = monotonic_ns();
            let Some(deadline) = self.deadline(now)? else { break };
            let drained = self.listeners.iter().filter_map(|listener| listener.drain_until).min();
            let wake = self.table.next_expiry().into_iter().chain(drained).fold(deadline, Ns::min);
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

    /// When to end by the current order; None to end now.
    fn deadline(&mut self, now: Ns) -> io::Result<Option<Ns>> {
        let deadline = match self.stop.order() {
            Order::Serve => return Ok(Some(Ns::MAX)),
            Order::End => return Ok(None),
            Order::Drain(deadline) => deadline,
            Order::HandOver(deadline) => {
                if !self.handed_over {
                    self.handed_over = true;
                    let sockets =
                        self.listeners.iter().enumerate().filter_map(|(i, p)| Some((i, p.plan.socket.as_ref()?)));
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

    /// Applies new configurations.
    fn change(&mut self, now: Ns) -> io::Result<()> {
        self.stop.woken();
        for change in self.stop.changes() {
            self.flush_answers();
            let mut kept = Vec::new();
            for new in change.listeners {
                let same = |(index, listener): (usize, &ListenerState)| {
                    (listener.plan.socket.is_some() && listener.plan.bound == new.bound && !kept.contains(&index))
                        .then_some(index)
                };
                match self.listeners.iter().enumerate().find_map(same) {
                    Some(index) => {
                        self.replace(index, new);
                        kept.push(index);
                    }
                    None if new.socket.is_some() => kept.push(self.add(new)?),
                    // Its socket never reached this worker, because descriptors ran out.
                    None => {}
                }
            }
            for (index, listener) in self.listeners.iter_mut().enumerate().filter(|(index, _)| !kept.contains(index)) {
                if listener.plan.socket.is_some() && listener.drain_until.is_none() {
                    listener.drain_until = Some(change.drain_until);
                    self.table.shut(index as u32);
                }
            }
            self.close_drained(now);
            drop(change.applied);
        }
        Ok(())
    }

    /// Adds a listener, at the index of a closed one if there is one.
    fn add(&mut self, new: UdpListener) -> io::Result<usize> {
        let closed = self.listeners.iter().position(|listener| listener.plan.socket.is_none());
        let index = closed.unwrap_or(self.listeners.len());
        if let Some(socket) = &new.socket {
            self.epoll.add(socket, LISTENER | index as u64, READABLE)?;
        }
        self.table.set(index as u32, new.rules());
        match self.listeners.get_mut(index) {
            Some(listener) => *listener = ListenerState::new(new),
            None => self.listeners.push(ListenerState::new(new)),
        }
        Ok(index)
    }

    /// Gives a listener new settings. Its socket and its sessions with their sockets stay.
    fn replace(&mut self, index: usize, new: UdpListener) {
        self.table.set(index as u32, new.rules());
        let mut old = std::mem::replace(&mut self.listeners[index], ListenerState::new(new)).plan;
        let plan = &mut self.listeners[index].plan;
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

    /// Closes removed listeners whose sessions have ended, or whose drain timeout is over.
    fn close_drained(&mut self, now: Ns) {
        for index in 0..self.listeners.len() {
            let Some(until) = self.listeners[index].drain_until else { continue };
            while let Some(id) = self.table.any_of(index as u32).filter(|_| until <= now) {
                self.end(id, CloseReason::Drained);
            }
            if self.table.any_of(index as u32).is_none() {
                self.flush_answers();
                let listener = &mut self.listeners[index];
                listener.drain_until = None;
                if let Some(socket) = listener.plan.socket.take() {
                    // While another process has the socket too, closing it here does not remove it from epoll.
                    let _gone = self.epoll.remove(&socket);
                }
            }
        }
    }

    /// The session of an epoll token, unless it has ended.
    pub(super) fn session(&mut self, event: u64) -> Option<&mut Session> {
        let slot = (event & 0xffff_ffff) as usize;
        self.sessions.get_mut(slot)?.as_mut().filter(|session| token(session.id) == event)
    }

    /// Whether access rules admit a client. A denied one is counted.
    pub(super) fn allowed(&self, key: &Key) -> bool {
        let plan = &self.listeners[key.listener as usize].plan;
        let allowed = (plan.access)(key.client.ip().to_canonical());
        if !allowed {
            plan.stats.closed(CloseReason::Denied).add(1);
        }
        allowed
    }

    /// Begins a session for a client, or counts why that is refused.
    pub(super) fn begin(&mut self, key: Key, now: Ns) -> Option<SlotId> {
        let index = key.listener as usize;
        let listener = &mut self.listeners[index];
        if now < listener.paused_until {
            return None;
        }
        let id = match self.table.open(key, now) {
            Ok(id) if acquire(&self.session_limit, &listener.plan.session_limit) => id,
            Err(Refusal::Draining) => return None,
            refused => {
                listener.plan.stats.closed(CloseReason::Limited).add(1);
                refused.ok().and_then(|id| self.table.close(id));
                return None;
            }
        };
        let connected = listener.dial(&key, now).and_then(|(socket, target)| {
            self.epoll
                .add(&socket, token(id), READABLE)
                .map(|()| (socket, target))
                .map_err(|_| CloseReason::RelayFailed)
        });
        let stats = &listener.plan.stats;
        match connected {
            Ok((socket, target)) => {
                stats.accepted.add(1);
                stats.active.add(1);
                listener.plan.chooser.began(target);
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
                    listener.paused_until = now.saturating_add(PAUSE);
                }
                release(&self.session_limit, &listener.plan.session_limit);
                self.table.close(id);
                None
            }
        }
    }

    fn end(&mut self, id: SlotId, reason: CloseReason) {
        self.table.close(id);
        let Some(session) = self.sessions.get_mut(id.slot as usize).and_then(Option::take) else { return };
        let plan = &mut self.listeners[session.listener].plan;
        session.target.inspect(|&target| plan.chooser.ended(target));
        release(&self.session_limit, &plan.session_limit);
        plan.stats.active.sub(1);
        plan.stats.closed(reason).add(1);
    }
}

impl ListenerState {
    /// Connects a socket to a target for a client. If that fails, other targets are tried.
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
                        // Without descriptors no other address can be tried.
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
