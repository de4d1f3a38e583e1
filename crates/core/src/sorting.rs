//! Stable sorts of which the program contains one, whatever is sorted, and ordered maps and sets that are made without one.
//!
//! The standard library compiles each sort of a type by an order again, 4 KB a time, and there are some hundred. These sort the places of
//! the elements, by one copy of that code, and then move the elements. The result is that of the standard library. Sorts of numbers and
//! strings by their own order share their code anyway, and those in a path of packets or of rows use the standard library.
//!
//! `collect` sorts what it makes a `BTreeMap` or a `BTreeSet` of, too. Here each element is inserted, by code that the program has anyway.
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Ordered maps and sets of what an iterator has; of equal keys the last value counts.
pub trait IntoOrdered: Iterator + Sized {
    /// As [`Iterator::collect`] makes a map.
    fn into_map<K: Ord, V>(self) -> BTreeMap<K, V>
    where
        Self: Iterator<Item = (K, V)>,
    {
        let mut map = BTreeMap::new();
        map.extend(self);
        map
    }

    /// As [`Iterator::collect`] makes a set.
    fn into_set<T: Ord>(self) -> BTreeSet<T>
    where
        Self: Iterator<Item = T>,
    {
        let mut set = BTreeSet::new();
        set.extend(self);
        set
    }
}

impl<I: Iterator> IntoOrdered for I {}

/// Stable sorts of a slice. Each takes memory for the places, unless the slice is sorted already.
pub trait StableSort<T> {
    /// Sorts as [`slice::sort_by`] does.
    fn stable_sort_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// Sorts as [`slice::sort_by_key`] does. The key is computed for each comparison.
    fn stable_sort_by_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K);
}

impl<T> StableSort<T> for [T] {
    fn stable_sort_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let places = sorted_places(self.len(), &mut |one, other| compare(&self[one], &self[other]));
        arrange(places, &mut |one, other| self.swap(one, other));
    }

    fn stable_sort_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.stable_sort_by(|one, other| key(one).cmp(&key(other)));
    }
}

/// The places of `len` elements in their order; none if they are in order.
fn sorted_places(len: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    if (1..len).all(|at| compare(at - 1, at).is_le()) {
        return Vec::new();
    }
    let mut places: Vec<usize> = (0..len).collect();
    places.sort_by(|one, other| compare(*one, *other));
    places
}

/// Moves to each place the element from the place that is named there, along the cycles of which a permutation consists.
fn arrange(mut places: Vec<usize>, swap: &mut dyn FnMut(usize, usize)) {
    for first in 0..places.len() {
        let mut at = first;
        loop {
            let from = std::mem::replace(&mut places[at], at);
            if from == first {
                break;
            }
            swap(at, from);
            at = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_result_is_that_of_the_standard_library(values in proptest::collection::vec(0_u8..20, 0..200)) {
            // The place of an element before tells equal ones apart.
            let before: Vec<(u8, usize)> = values.into_iter().enumerate().map(|(at, value)| (value, at)).collect();
            let [mut own, mut standard] = [before.clone(), before.clone()];
            let falling = |one: &(u8, usize), other: &(u8, usize)| other.0.cmp(&one.0);
            own.stable_sort_by(falling);
            standard.sort_by(falling);
            prop_assert_eq!(&own, &standard);
            let [mut own, mut standard] = [before.clone(), before];
            own.stable_sort_by_key(|one| one.0 / 3);
            standard.sort_by_key(|one| one.0 / 3);
            prop_assert_eq!(own, standard);
        }
    }

    #[test]
    fn what_is_sorted_is_compared_once_and_stays() {
        let mut values = [1, 2, 2, 3];
        let mut compared = 0;
        values.stable_sort_by(|one, other| {
            compared += 1;
            one.cmp(other)
        });
        assert_eq!((values, compared), ([1, 2, 2, 3], 3));
        let mut none: [u8; 0] = [];
        none.stable_sort_by_key(|value| *value);
    }
}
