//! The sessions by the index that their packets carry, for all threads.
//!
//! It is split by the low byte of the index, so that a change copies a small part. A reader takes no lock and waits for nobody.
use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use super::link::Link;
use super::session::Session;

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
