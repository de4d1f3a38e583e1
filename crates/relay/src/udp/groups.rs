//! The datagrams of a batch, sorted by session.
use parshall_core::relay::slots::SlotId;

/// The end of a group's list of slots.
pub(super) const LAST: usize = usize::MAX;

/// The slots of a batch grouped by session, in the order of arrival.
pub(super) struct Groups {
    /// The number of the batch, by which a session's group of an earlier batch is recognised.
    pub(super) batch: u64,
    pub(super) list: Vec<Group>,
    pub(super) next: Vec<usize>,
    /// The bytes of each slot to forward.
    pub(super) bytes: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) id: SlotId,
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Groups {
    pub(super) fn new(slots: usize) -> Self {
        Self { batch: 0, list: Vec::with_capacity(slots), next: vec![LAST; slots], bytes: vec![0; slots] }
    }

    pub(super) fn begin(&mut self) {
        self.batch += 1;
        self.list.clear();
    }

    /// Adds a slot to the group of a session. `at` is the session's field for the batch and the index of the group.
    pub(super) fn add(&mut self, id: SlotId, at: &mut (u64, usize), slot: usize, bytes: usize) {
        self.next[slot] = LAST;
        self.bytes[slot] = bytes;
        if at.0 == self.batch {
            let group = &mut self.list[at.1];
            self.next[group.last] = slot;
            group.last = slot;
        } else {
            *at = (self.batch, self.list.len());
            self.list.push(Group { id, first: slot, last: slot });
        }
    }
}
