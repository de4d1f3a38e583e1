//! The UDP sessions of one thread: who they belong to, when they end, and who may have another.
//!
//! A session is what joins a client's address and port, and the local address it wrote to, with one socket to a target.
//! Datagrams in either direction keep it. At a limit a new client takes the place of the session that needs its own least
//! ([`UdpSessions::dispensable`]): otherwise whoever sends from many addresses could keep all others out for an idle time. All
//! memory is bounded by the number of sessions that the table may hold.
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, SocketAddr};

use super::Ns;
use super::direction::Direction;
use super::recency::{List, Recency};
use super::slots::{SLOTS_MAX, SlotId, Slots};
use super::sources::Source;

const SECOND: Ns = 1_000_000_000;
/// A client that has waited this long is not expected to get an answer any more: resolvers ask again after at most 5 s
/// (resolv.conf(5)).
const ANSWER_MAX: Ns = 5 * SECOND;

/// The identity of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The listener: an index into the rules.
    pub listener: u32,
    /// The client.
    pub client: SocketAddr,
    /// The address that the client wrote to, where it is not the listener's only one.
    pub local: Option<IpAddr>,
}

/// Rules of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How long a session lives without a datagram; 0 is for ever.
    pub idle: Ns,
    /// Sessions of one source: an IPv4 address, or the first 64 bits of an IPv6 address.
    pub per_source: Option<u32>,
    /// Datagrams a second of one source. A second's worth may come at once.
    pub rate: Option<u32>,
    /// It has a limit on its sessions, at which one of its own makes room.
    pub limited: bool,
}

/// Why there is no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The table is full.
    Full,
    /// The source has all the sessions that it may have.
    PerSource,
    /// No new sessions are taken any more.
    Draining,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    last: Ns,
    /// Whether the last datagram was an answer: the index of its lists.
    answered: bool,
}

impl Entry {
    fn waits(&self, now: Ns) -> bool {
        !self.answered && now.saturating_sub(self.last) < ANSWER_MAX
    }
}

/// The use that a source makes of its limits.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    sessions: u32,
    /// When all its datagrams so far would have been due at the allowed rate.
    due: Ns,
}

#[derive(Debug, Clone, Copy)]
struct Listener {
    rules: Rules,
    /// It takes no new sessions.
    shut: bool,
    /// As [`UdpSessions::lists`], of its own sessions; empty if it is not `limited`.
    lists: [List; 2],
}

impl Listener {
    fn new(rules: Rules) -> Self {
        Self { rules, shut: false, lists: Default::default() }
    }
}

/// The sessions of one thread.
#[derive(Debug)]
pub struct UdpSessions {
    listeners: Vec<Listener>,
    sessions_max: usize,
    ids: HashMap<Key, SlotId>,
    entries: Slots<Entry>,
    /// When a session may have expired. Datagrams only write their time into the entry, so a check may find that the
    /// session lives on; it is then looked at again when it would end.
    expiries: BinaryHeap<Reverse<(Ns, SlotId)>>,
    sources: HashMap<(u32, Source), Used>,
    swept: Ns,
    draining: bool,
    /// Sessions whose client waits for an answer, and sessions whose last datagram was one.
    lists: [List; 2],
    links: Recency,
    /// The links of the listeners' lists.
    own_links: Recency,
}

impl UdpSessions {
    /// An empty table for listeners with these rules, and for at most this many sessions of all of them.
    pub fn new(rules: Vec<Rules>, sessions_max: u32) -> Self {
        Self {
            listeners: rules.into_iter().map(Listener::new).collect(),
            sessions_max: sessions_max.min(SLOTS_MAX) as usize,
            ids: HashMap::new(),
            entries: Slots::default(),
            expiries: BinaryHeap::new(),
            sources: HashMap::new(),
            swept: 0,
            draining: false,
            lists: Default::default(),
            links: Recency::default(),
            own_links: Recency::default(),
        }
    }

    /// Sessions now.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// New rules for a listener, which may be a new one, with the number of one that has no sessions or the next. Its
    /// sessions stay; their idle times begin with their last datagrams.
    pub fn set(&mut self, listener: u32, rules: Rules) {
        let place = listener as usize;
        let new = Listener::new(rules);
        match self.listeners.get_mut(place) {
            Some(old) => *old = new,
            None => self.listeners.push(new),
        }
        let entries = &self.entries;
        self.expiries.retain(|Reverse((_, id))| entries.get(*id).is_some_and(|entry| entry.key.listener != listener));
        self.sources.retain(|(of, _), _| *of != listener);
        let mut own: Vec<_> = self.entries.iter().filter(|(_, entry)| entry.key.listener == listener).collect();
        own.sort_unstable_by_key(|(id, entry)| (entry.last, *id));
        for (id, entry) in own {
            if rules.limited {
                self.own_links.push(&mut self.listeners[place].lists[usize::from(entry.answered)], id.slot);
            }
            if rules.idle > 0 {
                self.expiries.push(Reverse((entry.last.saturating_add(rules.idle), id)));
            }
            if rules.per_source.is_some() || rules.rate.is_some() {
                self.sources.entry(source_key(&entry.key)).or_default().sessions += 1;
            }
        }
    }

    /// A listener takes no new sessions.
    pub fn shut(&mut self, listener: u32) {
        if let Some(one) = self.listeners.get_mut(listener as usize) {
            one.shut = true;
        }
    }

    /// Whether new sessions of a listener may begin.
    pub fn begins(&self, listener: u32) -> bool {
        !self.draining && self.listeners.get(listener as usize).is_some_and(|one| !one.shut)
    }

    /// A session of a listener.
    pub fn any_of(&self, listener: u32) -> Option<SlotId> {
        self.ids.iter().find(|(key, _)| key.listener == listener).map(|(_, id)| *id)
    }

    /// The most sessions from now on; those that are open stay.
    pub fn set_max(&mut self, sessions_max: u32) {
        self.sessions_max = sessions_max.min(SLOTS_MAX) as usize;
    }

    /// No new session from now on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The session of this key.
    pub fn find(&self, key: &Key) -> Option<SlotId> {
        self.ids.get(key).copied()
    }

    /// The key of a session that still is.
    pub fn key(&self, id: SlotId) -> Option<&Key> {
        self.entries.get(id).map(|entry| &entry.key)
    }

    /// Begins a session. The key must have none.
    pub fn open(&mut self, key: Key, now: Ns) -> Result<SlotId, Refusal> {
        let Listener { rules, shut, .. } = self.listeners[key.listener as usize];
        if self.draining || shut {
            return Err(Refusal::Draining);
        }
        if self.ids.len() >= self.sessions_max {
            return Err(Refusal::Full);
        }
        if rules.per_source.is_some() || rules.rate.is_some() {
            let source = self.source(&key, now).ok_or(Refusal::Full)?;
            if rules.per_source.is_some_and(|most| source.sessions >= most) {
                return Err(Refusal::PerSource);
            }
            source.sessions += 1;
        }
        let entry = Entry { key, last: now, answered: false };
        let id = self.entries.insert(entry).expect("a table holds far fewer than it can name");
        self.link(id.slot, key.listener, false);
        let before = self.ids.insert(key, id);
        debug_assert!(before.is_none(), "the key has a session");
        if rules.idle > 0 {
            self.expiries.push(Reverse((now.saturating_add(rules.idle), id)));
        }
        Ok(id)
    }

    /// A datagram went through.
    pub fn touch(&mut self, id: SlotId, now: Ns, direction: Direction) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.last = entry.last.max(now);
        let answered = direction == Direction::TargetToClient;
        let before = std::mem::replace(&mut entry.answered, answered);
        let listener = entry.key.listener;
        self.unlink(id.slot, listener, before);
        self.link(id.slot, listener, answered);
    }

    /// The session to end for a new one of this listener, or of any listener: the one that is idle for longest. A client that
    /// has waited for an answer for less than 5 s keeps its session as long as there is another.
    pub fn dispensable(&self, listener: Option<u32>, now: Ns) -> Option<SlotId> {
        let lists = match listener {
            Some(listener) => &self.listeners.get(listener as usize)?.lists,
            None => &self.lists,
        };
        let [waiting, answered] = lists.each_ref().map(|list| self.entries.at(list.first()?));
        match (waiting, answered) {
            (Some((id, entry)), Some((other, idle))) => {
                Some(if entry.waits(now) || idle.last <= entry.last { other } else { id })
            }
            (one, other) => one.or(other).map(|(id, _)| id),
        }
    }

    /// Whether the client of a session waits for an answer that may still come.
    pub fn waits(&self, id: SlotId, now: Ns) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.waits(now))
    }

    fn link(&mut self, slot: u32, listener: u32, answered: bool) {
        self.links.push(&mut self.lists[usize::from(answered)], slot);
        let listener = &mut self.listeners[listener as usize];
        if listener.rules.limited {
            self.own_links.push(&mut listener.lists[usize::from(answered)], slot);
        }
    }

    fn unlink(&mut self, slot: u32, listener: u32, answered: bool) {
        self.links.remove(&mut self.lists[usize::from(answered)], slot);
        let listener = &mut self.listeners[listener as usize];
        if listener.rules.limited {
            self.own_links.remove(&mut listener.lists[usize::from(answered)], slot);
        }
    }

    /// Ends a session; nothing happens when it is no more.
    pub fn close(&mut self, id: SlotId) -> Option<Key> {
        let Entry { key, answered, .. } = self.entries.remove(id)?;
        self.unlink(id.slot, key.listener, answered);
        self.ids.remove(&key);
        if let Some(source) = self.sources.get_mut(&source_key(&key)) {
            source.sessions = source.sessions.saturating_sub(1);
            // One that still owes time to its rate is forgotten in a sweep.
            if source.sessions == 0 && source.due == 0 {
                self.sources.remove(&source_key(&key));
            }
        }
        // Sessions that were closed before they expired are still in the heap.
        if self.expiries.len() > 2 * self.ids.len() + 64 {
            let entries = &self.entries;
            self.expiries.retain(|Reverse((_, id))| entries.get(*id).is_some());
        }
        Some(key)
    }

    /// A session whose idle time is over; ask until there is none, and close each.
    pub fn expired(&mut self, now: Ns) -> Option<SlotId> {
        while let Some(&Reverse((when, id))) = self.expiries.peek() {
            if when > now {
                return None;
            }
            self.expiries.pop();
            let Some(entry) = self.entries.get(id) else { continue };
            let ends = entry.last.saturating_add(self.listeners[entry.key.listener as usize].rules.idle);
            if ends <= now {
                return Some(id);
            }
            self.expiries.push(Reverse((ends, id)));
        }
        None
    }

    /// When [`expired`](Self::expired) is to be asked next.
    pub fn next_expiry(&self) -> Option<Ns> {
        self.expiries.peek().map(|Reverse((when, _))| *when)
    }

    /// Any session that is left.
    pub fn any(&self) -> Option<SlotId> {
        self.ids.values().next().copied()
    }

    /// How many of `datagrams` that a source sends now may pass.
    pub fn pass(&mut self, key: &Key, datagrams: u32, now: Ns) -> u32 {
        let Some(rate) = self.listeners[key.listener as usize].rules.rate else { return datagrams };
        let each = (SECOND / Ns::from(rate.max(1))).max(1);
        let Some(source) = self.source(key, now) else { return 0 };
        let due = source.due.max(now);
        let within = (now.saturating_add(SECOND) - due.min(now.saturating_add(SECOND))) / each;
        let passed = within.min(Ns::from(datagrams)) as u32;
        source.due = due + Ns::from(passed) * each;
        passed
    }

    fn source(&mut self, key: &Key, now: Ns) -> Option<&mut Used> {
        let name = source_key(key);
        if !self.sources.contains_key(&name) && self.sources.len() >= 2 * self.sessions_max + 1024 {
            // Walking the table is bounded to once a second: strangers' addresses cost no more than that.
            if now < self.swept.saturating_add(SECOND) && self.swept > 0 {
                return None;
            }
            self.swept = now.max(1);
            self.sources.retain(|_, source| source.sessions > 0 || source.due > now);
            if self.sources.len() >= 2 * self.sessions_max + 1024 {
                return None;
            }
        }
        Some(self.sources.entry(name).or_default())
    }
}

/// The source whose limits a session counts against: as for connections, an IPv6 source is its /64.
fn source_key(key: &Key) -> (u32, Source) {
    (key.listener, Source::of(key.client.ip()))
}

#[cfg(test)]
#[path = "udp_sessions_tests.rs"]
mod tests;
