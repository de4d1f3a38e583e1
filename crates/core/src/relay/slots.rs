//! A table whose slots are reused, and ids of its entries that are not.
//!
//! An epoll event, a completion or a timer may have the id of an entry that was removed. An id includes the generation of the
//! slot, so it does not find a later entry of the same slot.

/// The most slots of a table: what a [token](SlotId::token) can name.
pub const SLOTS_MAX: u32 = 1 << SLOT_BITS;

const SLOT_BITS: u32 = 24;

/// The id of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    /// Below [`SLOTS_MAX`].
    pub slot: u32,
    /// How many entries the slot has had before. It wraps.
    pub generation: u32,
}

impl SlotId {
    /// The id as a number, with 8 bits for the kind of event.
    pub fn token(self, kind: u8) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot) << 8 | u64::from(kind)
    }

    /// The id and the kind of event in a [token](Self::token).
    pub fn from_token(token: u64) -> (Self, u8) {
        (Self { slot: (token >> 8) as u32 & (SLOTS_MAX - 1), generation: (token >> 32) as u32 }, token as u8)
    }
}

/// A table of at most [`SLOTS_MAX`] entries.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry; None when the table is full.
    pub fn insert(&mut self, entry: T) -> Option<SlotId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < SLOTS_MAX as usize => {
                self.slots.push(Slot { generation: 0, entry: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let place = &mut self.slots[slot as usize];
        place.entry = Some(entry);
        Some(SlotId { slot, generation: place.generation })
    }

    /// The entry with this id, unless it was removed.
    pub fn get(&self, id: SlotId) -> Option<&T> {
        let slot = self.slots.get(id.slot as usize)?;
        if slot.generation == id.generation { slot.entry.as_ref() } else { None }
    }

    /// The entry with this id, unless it was removed.
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation == id.generation { slot.entry.as_mut() } else { None }
    }

    /// The entry in this slot, with its id.
    pub fn at(&self, slot: u32) -> Option<(SlotId, &T)> {
        let place = self.slots.get(slot as usize)?;
        Some((SlotId { slot, generation: place.generation }, place.entry.as_ref()?))
    }

    /// Removes the entry with this id.
    pub fn remove(&mut self, id: SlotId) -> Option<T> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        let entry = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(entry)
    }

    /// All entries and their ids, in the order of slots.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &T)> {
        self.slots.iter().enumerate().filter_map(|(slot, place)| {
            let id = SlotId { slot: slot as u32, generation: place.generation };
            place.entry.as_ref().map(|entry| (id, entry))
        })
    }

    /// The ids of all entries. It is a copy, so that entries can be changed in a loop over it.
    pub fn ids(&self) -> Vec<SlotId> {
        self.iter().map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_read_back() {
        let id = SlotId { slot: 0xab_cdef, generation: 0xfedc_ba98 };
        assert_eq!(SlotId::from_token(id.token(7)), (id, 7));
    }

    #[test]
    fn a_slot_that_is_used_again_has_another_name() {
        let mut slots = Slots::default();
        let first = slots.insert(1).expect("below the limit");
        assert_eq!((slots.remove(first), slots.remove(first), slots.len()), (Some(1), None, 0));
        let second = slots.insert(2).expect("below the limit");
        assert_eq!((first.slot, slots.len(), slots.ids()), (second.slot, 1, vec![second]));
        assert!(slots.get(first).is_none() && slots.get_mut(first).is_none() && slots.remove(first).is_none());
        assert_eq!(slots.get(second), Some(&2));
    }
}
