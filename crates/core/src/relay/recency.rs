//! Lists of slots in the order of their last use, the longest unused first. All operations take constant time, so that a datagram
//! can move its session to the end of a list.

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
}

/// The first and the last slot of a list whose links are in a [`Recency`].
#[derive(Debug, Clone, Copy)]
pub struct List {
    first: u32,
    last: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

impl List {
    /// The slot that is unused for longest.
    pub fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }
}

/// The links of any number of lists. A slot is in at most one of them.
#[derive(Debug, Default)]
pub struct Recency {
    links: Vec<Link>,
}

impl Recency {
    /// Adds a slot, which is in no list, as the one used last.
    pub fn push(&mut self, list: &mut List, slot: u32) {
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, Link { before: NONE, after: NONE });
        }
        self.links[slot as usize] = Link { before: list.last, after: NONE };
        match self.links.get_mut(list.last as usize) {
            Some(last) => last.after = slot,
            None => list.first = slot,
        }
        list.last = slot;
    }

    /// Removes a slot that is in this list.
    pub fn remove(&mut self, list: &mut List, slot: u32) {
        let Link { before, after } = self.links[slot as usize];
        match self.links.get_mut(before as usize) {
            Some(link) => link.after = after,
            None => list.first = after,
        }
        match self.links.get_mut(after as usize) {
            Some(link) => link.before = before,
            None => list.last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(recency: &Recency, list: &List) -> Vec<u32> {
        let after = |slot: &u32| Some(recency.links[*slot as usize].after).filter(|slot| *slot != NONE);
        std::iter::successors(list.first(), after).collect()
    }

    proptest! {
        #[test]
        fn two_lists_agree_with_vectors(steps in prop::collection::vec((0_u32..8, 0_usize..2), 1..200)) {
            let (mut recency, mut lists, mut model) = (Recency::default(), [List::default(); 2], [vec![], vec![]]);
            for (slot, to) in steps {
                for from in 0..2 {
                    if let Some(at) = model[from].iter().position(|s| *s == slot) {
                        model[from].remove(at);
                        recency.remove(&mut lists[from], slot);
                    }
                }
                recency.push(&mut lists[to], slot);
                model[to].push(slot);
                prop_assert_eq!([all(&recency, &lists[0]), all(&recency, &lists[1])], model.clone());
            }
        }
    }
}
