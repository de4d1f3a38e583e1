//! The sessions by the index that their packets carry, for all threads, and how sessions of a peer get there and leave it.
//!
//! It is split by the low byte of the index, so that a change copies a small part. A reader takes no lock and waits for nobody.
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::{ArcSwap, Guard};

use super::link::Link;
use super::session::Session;
use super::{KEEPALIVE_TIMEOUT, Ns, REJECT_AFTER_TIME, REKEY_TIMEOUT};

const SHARDS: usize = 256;

/// A session and the peer that has it.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) session: Arc<Session>,
    pub(super) link: Arc<Link>,
}

type Shard = HashMap<u32, Entry>;

pub(super) struct Sessions {
    shards: Box<[ArcSwap<Shard>]>,
}

impl Sessions {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| ArcSwap::default()).collect() }
    }

    fn shard(&self, index: u32) -> &ArcSwap<Shard> {
        &self.shards[index as usize % SHARDS]
    }

    /// The part that has this index if any has it.
    pub(super) fn load(&self, index: u32) -> Guard<Arc<Shard>> {
        self.shard(index).load()
    }

    pub(super) fn contains(&self, index: u32) -> bool {
        self.load(index).contains_key(&index)
    }

    pub(super) fn insert(&self, entry: &Entry) {
        let index = entry.session.local_index;
        self.change(index, |shard| drop(shard.insert(index, entry.clone())));
    }

    pub(super) fn remove(&self, index: u32) {
        self.change(index, |shard| drop(shard.remove(&index)));
    }

    fn change(&self, index: u32, change: impl Fn(&mut Shard)) {
        self.shard(index).rcu(|shard| {
            let mut shard = Shard::clone(shard);
            change(&mut shard);
            shard
        });
    }
}

impl Link {
    /// Packets of a session have been received: it may be the one that this host responded with, or near its end. Returns
    /// whether the device is to be called.
    pub(super) fn received_in(&self, now: Ns, session: &Arc<Session>, sessions: &Sessions) -> bool {
        let mut attend = false;
        if !session.confirmed.load(Relaxed) && self.confirm_session(session, sessions) {
            self.notice_confirmed();
            attend = true;
        }
        // The peer has only this session left and may have nothing to send soon: renew it before it ends.
        let late = REJECT_AFTER_TIME - KEEPALIVE_TIMEOUT - REKEY_TIMEOUT;
        if session.initiator && session.age(now) >= late && !session.renewed.swap(true, Relaxed) {
            attend |= self.ask_for_handshake();
        }
        attend
    }

    fn confirm_session(&self, session: &Arc<Session>, sessions: &Sessions) -> bool {
        let mut keypairs = self.keypairs();
        let (confirmed, replaced) = keypairs.confirm(session);
        session.confirmed.store(true, Relaxed);
        self.send_in(keypairs.current.clone());
        if let Some(replaced) = replaced {
            sessions.remove(replaced.local_index);
        }
        confirmed
    }

    /// Adds a session after a handshake.
    pub(super) fn install(self: &Arc<Self>, session: Arc<Session>, sessions: &Sessions) {
        let mut keypairs = self.keypairs();
        sessions.insert(&Entry { session: Arc::clone(&session), link: Arc::clone(self) });
        for replaced in keypairs.add(session).into_iter().flatten() {
            sessions.remove(replaced.local_index);
        }
        self.send_in(keypairs.current.clone());
    }

    /// Removes the sessions that are too old.
    pub(super) fn expire(&self, now: Ns, sessions: &Sessions) {
        self.remove_sessions(sessions, |session| session.is_expired(now));
    }

    /// Removes all sessions.
    pub(super) fn clear(&self, sessions: &Sessions) {
        self.remove_sessions(sessions, |_| true);
    }

    fn remove_sessions(&self, sessions: &Sessions, remove: impl Fn(&Session) -> bool) {
        let mut keypairs = self.keypairs();
        let removed = keypairs.take_if(remove);
        if removed.iter().any(Option::is_some) {
            self.send_in(keypairs.current.clone());
            for session in removed.into_iter().flatten() {
                sessions.remove(session.local_index);
            }
        }
    }
}
