//! Timers of very many connections, one for each.
//!
//! A connection's deadline moves with every byte, nearly always to a later time, and rarely expires. So moving it to later is
//! one store: the queue keeps the earlier time, and when that has come, the entry is put back with the later one. Only moving
//! it to earlier (a linger timeout after an idle one) touches the queue. An entry takes 24 bytes: 16 by slot, 8 in the queue.
//!
//! The queue is a binary heap, and each slot knows the position of its entry. The keys are times in ticks of about a
//! millisecond (2^20 ns), rounded up: a deadline expires up to 1.05 ms late and never early.
use super::Ns;
use super::slots::{SLOTS_MAX, SlotId};

const SLOT_BITS: u32 = SLOTS_MAX.ilog2();
const TICK_BITS: u32 = 20;
/// The last tick that fits, after 36 years: it stands for never.
const NEVER: u64 = (1 << (64 - SLOT_BITS)) - 1;
/// The position in a slot that has no entry.
const NOT_QUEUED: u32 = u32::MAX;
/// The position in a slot that has had no user yet, so any generation is its first.
const UNUSED: u32 = u32::MAX - 1;

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The deadline of its user; [`Ns::MAX`] for none.
    deadline: Ns,
    generation: u32,
    /// The index of its entry in the heap.
    position: u32,
}

/// A time in ticks in the upper bits and a slot in the lower ones: ordered by time, eight bytes for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    fn new(at: Ns, slot: u32) -> Self {
        let tick = at.div_ceil(1 << TICK_BITS).min(NEVER);
        Self(tick << SLOT_BITS | u64::from(slot))
    }

    fn tick(self) -> u64 {
        self.0 >> SLOT_BITS
    }

    fn slot(self) -> usize {
        (self.0 & u64::from(SLOTS_MAX - 1)) as usize
    }

    /// When it expires; None for never.
    fn at(self) -> Option<Ns> {
        (self.tick() != NEVER).then(|| self.tick() << TICK_BITS)
    }
}

/// The deadlines of all connections of a worker.
#[derive(Debug, Default)]
pub struct Deadlines {
    slots: Vec<Slot>,
    heap: Vec<Key>,
}

impl Deadlines {
    /// Sets or moves the deadline of a connection. Ignored if the slot has a newer user.
    ///
    /// # Panics
    /// If the slot is not below [`SLOTS_MAX`].
    pub fn arm(&mut self, id: SlotId, at: Ns) {
        assert!(id.slot < SLOTS_MAX, "the limit on connections is far below the slots that a heap key can hold");
        let index = id.slot as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Slot { deadline: Ns::MAX, generation: 0, position: UNUSED });
        }
        let slot = &mut self.slots[index];
        if slot.position != UNUSED && is_older(id.generation, slot.generation) {
            return;
        }
        (slot.generation, slot.deadline) = (id.generation, at);
        let (position, key) = (slot.position, Key::new(at, id.slot));
        if position == NOT_QUEUED || position == UNUSED {
            self.heap.push(key);
            self.up(self.heap.len() - 1);
        } else if key < self.heap[position as usize] {
            self.heap[position as usize] = key;
            self.up(position as usize);
        }
    }

    /// Removes the deadline of a connection. Its entry stays in the queue for the slot's next user.
    pub fn disarm(&mut self, id: SlotId) {
        if let Some(slot) = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation) {
            slot.deadline = Ns::MAX;
        }
    }

    /// Appends the connections whose deadline has expired, each once, and disarms them.
    pub fn expired(&mut self, now: Ns, out: &mut Vec<SlotId>) {
        while let Some(&key) = self.heap.first()
            && key.at().is_some_and(|at| at <= now)
        {
            let slot = &mut self.slots[key.slot()];
            let id = SlotId { slot: key.slot() as u32, generation: slot.generation };
            if slot.deadline != Ns::MAX && slot.deadline > now {
                // It was moved to later. The new key is greater, because the old one has expired.
                self.heap[0] = Key::new(slot.deadline, id.slot);
                self.down(0);
                continue;
            }
            if slot.deadline != Ns::MAX {
                out.push(id);
            }
            slot.deadline = Ns::MAX;
            slot.position = NOT_QUEUED;
            let last = self.heap.pop().expect("it has a first entry");
            if !self.heap.is_empty() {
                self.heap[0] = last;
                self.down(0);
            }
        }
    }

    /// When to call [`Self::expired`] next: not later than the first deadline, rounded up. It may be earlier if that
    /// deadline was moved to later or disarmed.
    pub fn next(&self) -> Option<Ns> {
        self.heap.first().and_then(|key| key.at())
    }

    /// Moves an entry towards the root until its parent is no later.
    fn up(&mut self, mut position: usize) {
        let key = self.heap[position];
        while position > 0 && key < self.heap[(position - 1) / 2] {
            let parent = (position - 1) / 2;
            self.put(self.heap[parent], position);
            position = parent;
        }
        self.put(key, position);
    }

    /// Moves an entry away from the root until its children are no earlier.
    fn down(&mut self, mut position: usize) {
        let key = self.heap[position];
        loop {
            let left = 2 * position + 1;
            let child = match (self.heap.get(left), self.heap.get(left + 1)) {
                (Some(a), Some(b)) if b < a => left + 1,
                (Some(_), _) => left,
                (None, _) => break,
            };
            if key <= self.heap[child] {
                break;
            }
            self.put(self.heap[child], position);
            position = child;
        }
        self.put(key, position);
    }

    fn put(&mut self, key: Key, position: usize) {
        self.heap[position] = key;
        self.slots[key.slot()].position = position as u32;
    }
}

/// Whether generation `a` came before `b`, across a wrap.
fn is_older(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const TICK: Ns = 1 << TICK_BITS;

    fn id(slot: u32, generation: u32) -> SlotId {
        SlotId { slot, generation }
    }

    fn expired(deadlines: &mut Deadlines, now: Ns) -> Vec<SlotId> {
        let mut out = Vec::new();
        deadlines.expired(now, &mut out);
        out
    }

    #[test]
    fn a_connection_costs_24_bytes() {
        assert_eq!(size_of::<Slot>() + size_of::<Key>(), 24);
        let mut deadlines = Deadlines::default();
        for at in 0..1000 {
            deadlines.arm(id(0, 0), at * TICK);
            deadlines.arm(id(1, 0), (2000 - at) * TICK);
        }
        assert_eq!((deadlines.heap.len(), deadlines.slots.len()), (2, 2), "one entry each");
    }

    #[test]
    fn a_deadline_moves_to_later_and_to_earlier() {
        let mut deadlines = Deadlines::default();
        deadlines.arm(id(0, 0), 10 * TICK);
        deadlines.arm(id(0, 0), 30 * TICK);
        assert_eq!(deadlines.next(), Some(10 * TICK), "nothing was moved in the queue");
        assert_eq!((expired(&mut deadlines, 10 * TICK), deadlines.next()), (vec![], Some(30 * TICK)));
        deadlines.arm(id(0, 0), 20 * TICK - 1);
        assert_eq!(deadlines.next(), Some(20 * TICK));
        assert_eq!(expired(&mut deadlines, 20 * TICK - 1), [], "rounded up, never early");
        assert_eq!(expired(&mut deadlines, 20 * TICK), [id(0, 0)]);
        assert_eq!((expired(&mut deadlines, 99 * TICK), deadlines.next()), (vec![], None));
    }

    #[test]
    fn a_reused_slot_belongs_to_its_new_user() {
        let mut deadlines = Deadlines::default();
        deadlines.arm(id(3, u32::MAX), 10 * TICK);
        deadlines.arm(id(3, 0), 20 * TICK);
        deadlines.arm(id(3, u32::MAX), 5 * TICK);
        deadlines.disarm(id(3, u32::MAX));
        assert_eq!(expired(&mut deadlines, 15 * TICK), []);
        assert_eq!(expired(&mut deadlines, 20 * TICK), [id(3, 0)]);
        deadlines.arm(id(3, 0), 30 * TICK);
        deadlines.disarm(id(3, 0));
        deadlines.arm(id(3, u32::MAX), 35 * TICK);
        // Slot 1 exists because slot 3 does, but had no user: any generation is its first.
        deadlines.arm(id(1, 1 << 31), 50 * TICK);
        assert_eq!((expired(&mut deadlines, 40 * TICK), deadlines.next()), (vec![], Some(50 * TICK)));
        assert_eq!(expired(&mut deadlines, 50 * TICK), [id(1, 1 << 31)]);
    }

    #[test]
    fn a_deadline_beyond_the_last_tick_never_expires() {
        let mut deadlines = Deadlines::default();
        for (slot, at) in [Ns::MAX, Ns::MAX - 1, 1 << 61].into_iter().enumerate() {
            deadlines.arm(id(slot as u32, 0), at);
        }
        assert_eq!((expired(&mut deadlines, Ns::MAX), deadlines.next()), (vec![], None));
        deadlines.arm(id(0, 0), TICK);
        assert_eq!(expired(&mut deadlines, TICK), [id(0, 0)]);
    }

    #[derive(Debug, Clone)]
    enum Do {
        Arm(u32, Ns),
        Disarm(u32),
        Reuse(u32),
        Pass(Ns),
    }

    fn steps() -> impl Strategy<Value = Do> {
        prop_oneof![
            4 => (0u32..20, 0u64..100 * TICK).prop_map(|(slot, after)| Do::Arm(slot, after)),
            1 => (0u32..20).prop_map(Do::Disarm),
            1 => (0u32..20).prop_map(Do::Reuse),
            2 => (0u64..30 * TICK).prop_map(Do::Pass),
        ]
    }

    proptest! {
        #[test]
        fn it_expires_what_a_plain_map_expires(steps in prop::collection::vec(steps(), 1..300)) {
            let mut deadlines = Deadlines::default();
            let (mut now, mut generations, mut model) = (0, [0u32; 20], BTreeMap::<u32, Ns>::new());
            for step in steps {
                match step {
                    Do::Arm(slot, after) => {
                        deadlines.arm(id(slot, generations[slot as usize]), now + after);
                        model.insert(slot, now + after);
                    }
                    Do::Disarm(slot) => {
                        deadlines.disarm(id(slot, generations[slot as usize]));
                        model.remove(&slot);
                    }
                    // The old user is disarmed, and the new one is not armed yet.
                    Do::Reuse(slot) => {
                        deadlines.disarm(id(slot, generations[slot as usize]));
                        generations[slot as usize] += 1;
                        model.remove(&slot);
                    }
                    Do::Pass(ns) => now += ns,
                }
                for id in expired(&mut deadlines, now) {
                    let at = model.remove(&id.slot);
                    prop_assert!(at.is_some_and(|at| at <= now), "{:?} expired at {}, due {:?}", id, now, at);
                    prop_assert_eq!(id.generation, generations[id.slot as usize]);
                }
                if let Some((slot, at)) = model.iter().min_by_key(|(_, at)| **at) {
                    prop_assert!(*at + TICK > now, "slot {} was due at {}, now {}", slot, at, now);
                    prop_assert!(deadlines.next().is_some_and(|next| next < *at + TICK));
                }
                prop_assert!(deadlines.heap.len() <= deadlines.slots.len());
                for (position, key) in deadlines.heap.iter().enumerate() {
                    prop_assert_eq!(deadlines.slots[key.slot()].position as usize, position);
                }
            }
        }
    }
}
