//! The event loop of a UDP worker, and the beginning and end of its sessions.
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parshall_core::relay::Ns;
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::PerDirection;
use parshall_core::relay::local_ports::Local;
use parshall_core::relay::slots::SlotId;
use parshall_core::relay::udp_sessions::{Key, Refusal, UdpSessions};
use parshall_sys::clock::monotonic_ns;
use parshall_sys::epoll::{Epoll, Events, READABLE};
use parshall_sys::limits::{exhausted, is_local};
use parshall_sys::stream_socket::StreamAddr;
use parshall_sys::udp_batch::DatagramBatch;

use super::groups::Groups;
use super::plan::{UdpCounts, UdpListener};
use super::sockets::{self, From, SharedPorts};
use super::stop::{Order, Stop};
use crate::connection_limit::ConnectionLimit;

/// Messages that one recvmmsg takes: datagrams, or several joined by GRO.
const BATCH: usize = 64;
/// Batches taken from one socket before others are read.
pub(super) const BATCHES_MAX: usize = 4;
/// How long no session begins after descriptors or memory ran out.
const PAUSE: Ns = 100_000_000;
const WAIT_MAX: Ns = 3_600_000_000_000;
/// Sessions that are ended for one.
const EVICTIONS_MAX: usize = 4;

/// Marks the token of a listener's socket; WAKE has all bits set.
const LISTENER: u64 = 1 << 63;
const WAKE: u64 = u64::MAX;

/// A worker's listeners.
pub struct UdpPlan {
    /// At most 65,535.
    pub listeners: Vec<UdpListener>,
    /// Counts the sessions of all listeners in all threads.
    pub session_limit: Arc<ConnectionLimit>,
    /// All workers, also this one: they are woken when one of them lacks a session that others can do without.
    pub workers: Arc<[Arc<Stop>]>,
    /// The local ports of the sessions of all threads.
    pub ports: Arc<SharedPorts>,
    /// The counters of the worker.
    pub counts: Arc<UdpCounts>,
}

pub(super) struct Session {
    pub(super) id: SlotId,
    pub(super) socket: UdpSocket,
    pub(super) listener: usize,
    pub(super) client: SocketAddr,
    pub(super) local: Option<IpAddr>,
    /// Its index in the listener's targets, and the address that it is connected to.
    pub(super) target: usize,
    address: SocketAddr,
    /// The local port to release.
    port: Option<Local>,
    /// The version of the target's state of which is known that the session may go on.
    version: u32,
    pub(super) answered: bool,
    /// The target has refused a datagram (ICMP) and answered none since.
    pub(super) refused: bool,
    /// Answers that the target still owes, with `responses`.
    pub(super) owed: u64,
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
    workers: Arc<[Arc<Stop>]>,
    /// Its place among them.
    number: u32,
    ports: Arc<SharedPorts>,
    /// The listeners that have a limit on their sessions.
    limited: Vec<usize>,
    handed_over: bool,
}

fn token(id: SlotId) -> u64 {
    // The highest bit marks listeners.
    u64::from(id.generation & 0x7fff_ffff) << 32 | u64::from(id.slot)
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
            watch(&epoll, index, &listener.sockets, READABLE)?;
        }
        let rules = plan.listeners.iter().map(UdpListener::rules).collect();
        let number = plan.workers.iter().position(|worker| Arc::ptr_eq(worker, &stop)).unwrap_or(0) as u32;
        let mut worker = Self {
            epoll,
            stop,
            listeners: plan.listeners.into_iter().map(ListenerState::new).collect(),
            table: UdpSessions::new(rules, table_max(&plan.session_limit)),
            sessions: Vec::new(),
            batch: DatagramBatch::new(BATCH),
            groups: Groups::new(BATCH),
            answers_of: 0,
            counts: plan.counts,
            session_limit: plan.session_limit,
            number,
            workers: plan.workers,
            ports: plan.ports,
            limited: Vec::new(),
            handed_over: false,
        };
        worker.find_limited();
        Ok(worker)
    }

    fn find_limited(&mut self) {
        let limited =
            |(index, listener): (usize, &ListenerState)| listener.plan.limits.connections.is_some().then_some(index);
        self.limited = self.listeners.iter().enumerate().filter_map(limited).collect();
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
                    token if token & LISTENER != 0 => {
                        self.forward_up((token & 0xffff_ffff) as usize, ((token & !LISTENER) >> 32) as usize, now);
                    }
                    token => self.forward_down(token, now),
                }
            }
            self.flush_answers();
            while let Some(id) = self.table.expired(now) {
                self.end(id, CloseReason::IdleTimeout);
            }
            self.end_wanted(now);
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
                    for (index, listener) in self.listeners.iter().enumerate() {
                        for (number, socket) in listener.plan.sockets.iter().enumerate() {
                            self.epoll.modify(socket, listener_token(index, number), 0)?;
                        }
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
            let mut open: HashMap<String, VecDeque<usize>> = HashMap::new();
            for (index, ListenerState { plan, .. }) in self.listeners.iter().enumerate() {
                if !plan.sockets.is_empty() {
                    open.entry(plan.bound.clone()).or_default().push_back(index);
                }
            }
            let mut kept = HashSet::new();
            for new in change.listeners {
                let index = match open.get_mut(&new.bound).and_then(VecDeque::pop_front) {
                    Some(index) => {
                        self.replace(index, new);
                        index
                    }
                    None if !new.sockets.is_empty() => self.add(new)?,
                    // Other workers have its sockets.
                    None => continue,
                };
                kept.insert(index);
            }
            for (index, listener) in self.listeners.iter_mut().enumerate().filter(|(index, _)| !kept.contains(index)) {
                if !listener.plan.sockets.is_empty() && listener.drain_until.is_none() {
                    listener.drain_until = Some(change.drain_until);
                    self.table.shut(index as u32);
                }
            }
            self.table.set_max(table_max(&self.session_limit));
            self.find_limited();
            self.close_drained(now);
            drop(change.applied);
        }
        Ok(())
    }

    /// Adds a listener, at the index of a closed one if there is one.
    fn add(&mut self, new: UdpListener) -> io::Result<usize> {
        let closed = self.listeners.iter().position(|listener| listener.plan.sockets.is_empty());
        let index = closed.unwrap_or(self.listeners.len());
        watch(&self.epoll, index, &new.sockets, READABLE)?;
        self.table.set(index as u32, new.rules());
        match self.listeners.get_mut(index) {
            Some(listener) => *listener = ListenerState::new(new),
            None => self.listeners.push(ListenerState::new(new)),
        }
        Ok(index)
    }

    /// Gives a listener new settings. Its socket and the sessions with targets that it still has stay.
    fn replace(&mut self, index: usize, new: UdpListener) {
        self.table.set(index as u32, new.rules());
        let mut old = std::mem::replace(&mut self.listeners[index], ListenerState::new(new)).plan;
        let plan = &mut self.listeners[index].plan;
        plan.sockets = std::mem::take(&mut old.sockets);
        let mut gone = Vec::new();
        for session in self.sessions.iter_mut().flatten().filter(|session| session.listener == index) {
            old.chooser.ended(session.target);
            let before = &old.targets[session.target];
            let now = plan.targets.iter().position(|target| Arc::ptr_eq(target, before));
            if now.is_none() {
                gone.push(session.id);
            }
            // One whose target is gone ends below, and is counted like the others until then.
            session.target = now.unwrap_or(0);
            plan.chooser.began(session.target);
            plan.session_limit.transfer_in();
            old.session_limit.release();
            old.stats.active.sub(1);
            plan.stats.active.add(1);
        }
        for id in gone {
            self.end(id, CloseReason::TargetGone);
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
                for socket in std::mem::take(&mut listener.plan.sockets) {
                    // While the main thread or another process has the socket too, dropping it does not remove it from epoll.
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

    /// Whether a session may go on with its target, at a datagram of its client. If not, it is ended: its target has other
    /// addresses by now, was found down, or has refused datagrams and another target is there.
    pub(super) fn keeps_target(&mut self, id: SlotId, now: Ns) -> bool {
        let Some(session) = self.sessions.get_mut(id.slot as usize).and_then(Option::as_mut) else { return false };
        if !self.table.begins(session.listener as u32) {
            // There would be no other session for the client.
            return true;
        }
        let plan = &mut self.listeners[session.listener].plan;
        let state = &plan.targets[session.target];
        let version = state.version();
        let mut keeps = true;
        if version != session.version {
            session.version = version;
            keeps = !state.is_down() && state.addresses().contains(&StreamAddr::Ip(session.address));
        }
        if keeps && std::mem::take(&mut session.refused) {
            let chosen = plan.chooser.choose(session.client.ip().to_canonical(), &plan.targets, now);
            keeps = chosen.is_none_or(|chosen| chosen == session.target);
        }
        if !keeps {
            self.end(id, CloseReason::TargetGone);
        }
        keeps
    }

    /// Begins a session for a client, or counts why that is refused.
    pub(super) fn begin(&mut self, key: Key, now: Ns) -> Option<SlotId> {
        let index = key.listener as usize;
        if now < self.listeners[index].paused_until {
            return None;
        }
        let id = match self.table.open(key, now) {
            Ok(id) if self.make_room(index, id, now) => id,
            Err(Refusal::Draining) => return None,
            refused => {
                self.listeners[index].plan.stats.closed(CloseReason::Limited).add(1);
                refused.ok().and_then(|id| self.table.close(id));
                return None;
            }
        };
        let connected = self.dial(&key, id, now).or_else(|failure| match failure {
            // A session less frees a descriptor and, where it had the same target, a local port.
            (CloseReason::RelayFailed, true) if self.evict(None, Some(id), now) => self.dial(&key, id, now),
            failure => Err(failure),
        });
        let listener = &mut self.listeners[index];
        let stats = &listener.plan.stats;
        match connected {
            Ok(session) => {
                stats.accepted.add(1);
                stats.active.add(1);
                listener.plan.chooser.began(session.target);
                let slot = id.slot as usize;
                if self.sessions.len() <= slot {
                    self.sessions.resize_with(slot + 1, || None);
                }
                self.sessions[slot] = Some(session);
                Some(id)
            }
            Err((reason, _)) => {
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

    /// Counts a session that was just opened against the limits of the process and of its listener. At a limit another session
    /// makes room; false if there is none.
    fn make_room(&mut self, index: usize, id: SlotId, now: Ns) -> bool {
        // Other threads may be faster to take the place of a session that was ended here.
        for _ in 0..EVICTIONS_MAX {
            let plan = &self.listeners[index].plan;
            let (limit, scope) = if !self.session_limit.try_acquire() {
                (&self.session_limit, None)
            } else if !plan.session_limit.try_acquire() {
                self.session_limit.release();
                (&plan.session_limit, Some(index as u32))
            } else {
                return true;
            };
            if limit.at_limit.begins(now) {
                let setting =
                    if scope.is_none() { "max-sessions or the limit of open files" } else { "limits.connections" };
                tracing::warn!(
                    "{}: {} sessions are open, as many as {setting} allows: new clients take the place of idle sessions",
                    plan.name,
                    limit.max()
                );
            }
            // The kernel does not distribute clients evenly. Where this thread has no session that it can do without, another one
            // may have.
            let own = self.table.dispensable(scope, now).filter(|own| *own != id);
            if own.is_none_or(|own| self.table.waits(own, now)) && limit.want_one(self.number) {
                self.workers.iter().filter(|other| !Arc::ptr_eq(other, &self.stop)).for_each(|other| other.wake());
            }
            match own {
                Some(own) => self.end(own, CloseReason::Evicted),
                None => return false,
            }
        }
        false
    }

    /// Ends the session that needs its place least, of a listener or of all, but not `except`. False if there is none.
    fn evict(&mut self, listener: Option<u32>, except: Option<SlotId>, now: Ns) -> bool {
        let Some(id) = self.table.dispensable(listener, now).filter(|id| Some(*id) != except) else { return false };
        self.end(id, CloseReason::Evicted);
        true
    }

    /// Ends sessions for threads that are at a limit. A thread that has none leaves that to others.
    fn end_wanted(&mut self, now: Ns) {
        let has = |table: &UdpSessions, listener| table.dispensable(listener, now).is_some();
        if has(&self.table, None) && self.session_limit.take_wanted(self.number) {
            self.evict(None, None, now);
        }
        for at in 0..self.limited.len() {
            let listener = Some(self.limited[at] as u32);
            if has(&self.table, listener)
                && self.listeners[self.limited[at]].plan.session_limit.take_wanted(self.number)
            {
                self.evict(listener, None, now);
            }
        }
    }

    pub(super) fn end(&mut self, id: SlotId, reason: CloseReason) {
        self.table.close(id);
        let Some(session) = self.sessions.get_mut(id.slot as usize).and_then(Option::take) else { return };
        let plan = &mut self.listeners[session.listener].plan;
        plan.chooser.ended(session.target);
        release(&self.session_limit, &plan.session_limit);
        plan.stats.active.sub(1);
        plan.stats.closed(reason).add(1);
        // Before the socket is closed: the kernel may give the port to another thread's at once.
        session.port.inspect(|&port| self.ports.release(port, session.address));
    }

    /// Connects a socket to a target for a client. If that fails, other targets are tried. The flag of a failure says whether
    /// there may be enough once another session has ended.
    fn dial(&mut self, key: &Key, id: SlotId, now: Ns) -> Result<Session, (CloseReason, bool)> {
        let plan = &mut self.listeners[key.listener as usize].plan;
        let from = match (plan.transparent, plan.source) {
            (true, _) => From::Client(key.client),
            (false, Some(ip)) => From::Address(ip),
            (false, None) => From::Anywhere,
        };
        let mut shortage = None;
        for _ in 0..plan.targets.len() {
            let mut why = Some(io::Error::other("its name has no address"));
            let chosen = plan.chooser.choose(key.client.ip().to_canonical(), &plan.targets, now);
            let Some(target) = chosen.filter(|&target| target < plan.targets.len()) else { break };
            let version = plan.targets[target].version();
            for address in plan.targets[target].addresses().iter() {
                let StreamAddr::Ip(to) = *address else { continue };
                plan.stats.dials.add(1);
                let connected = sockets::connect(to, from, &plan.options, &self.ports).and_then(|(socket, port)| {
                    let watched = self.epoll.add(&socket, token(id), READABLE);
                    watched.inspect_err(|_| port.into_iter().for_each(|port| self.ports.release(port, to)))?;
                    Ok((socket, port))
                });
                match connected {
                    Ok((socket, port)) => return Ok(Session::new(id, key, socket, (target, to, version), port)),
                    Err(error) => {
                        plan.stats.dial_failures.add(1);
                        if !is_local(&error) {
                            why = Some(error);
                            continue;
                        }
                        // It says nothing about the target. Without descriptors no other address can be tried.
                        why = None;
                        let exhausted = exhausted(&error);
                        shortage = Some((error, to));
                        if exhausted {
                            break;
                        }
                    }
                }
            }
            match (why, &shortage) {
                (Some(why), _) => plan.chooser.failed(target, now, &why),
                (None, Some((error, _))) if exhausted(error) => break,
                (None, _) => {}
            }
        }
        let Some((error, to)) = shortage else { return Err((CloseReason::ConnectRefused, false)) };
        if plan.session_limit.shortages.begins(now) {
            tracing::warn!("{}: this host has no port or memory for another session with {to}: {error}", plan.name);
        }
        // `source` is no address of this host.
        let lasting = error.raw_os_error() == Some(libc::EADDRNOTAVAIL);
        Err((CloseReason::RelayFailed, !lasting))
    }
}

impl Session {
    fn new(
        id: SlotId,
        key: &Key,
        socket: UdpSocket,
        (target, address, version): (usize, SocketAddr, u32),
        port: Option<Local>,
    ) -> Self {
        Self {
            id,
            socket,
            listener: key.listener as usize,
            client: key.client,
            local: key.local,
            target,
            address,
            port,
            version,
            answered: false,
            refused: false,
            owed: 0,
            segment_max: PerDirection::from([usize::MAX; 2]),
            group: (0, 0),
        }
    }
}

/// The size of a worker's table: one more than the limit, because a new session is in it before another one makes room.
fn table_max(limit: &ConnectionLimit) -> u32 {
    limit.max().saturating_add(1)
}

/// The epoll token of one of a listener's sockets.
fn listener_token(index: usize, number: usize) -> u64 {
    LISTENER | (number as u64) << 32 | index as u64
}

/// Adds the sockets of a listener to epoll.
fn watch(epoll: &Epoll, index: usize, sockets: &[Arc<OwnedFd>], events: u32) -> io::Result<()> {
    sockets.iter().enumerate().try_for_each(|(number, socket)| epoll.add(socket, listener_token(index, number), events))
}
