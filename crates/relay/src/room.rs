//! A number of places that all threads share: taken when a connection or session begins and given back when it ends, never
//! asked for while bytes move.
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use parshall_sys::eventfd;

/// Places.
#[derive(Debug)]
pub struct Room {
    max: u32,
    taken: AtomicU32,
    /// Threads that have stopped accepting because it is full, to be woken when it is not.
    waiting: Mutex<Vec<Arc<OwnedFd>>>,
    any_waiting: AtomicBool,
}

impl Room {
    /// So many; None is no bound.
    pub fn new(max: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            max: max.unwrap_or(u32::MAX),
            taken: AtomicU32::new(0),
            waiting: Mutex::default(),
            any_waiting: AtomicBool::new(false),
        })
    }

    /// Takes a place, to be given back. When there is none, `wake` is signalled once there may be.
    pub fn enter(&self, wake: &Arc<OwnedFd>) -> bool {
        if self.take() {
            return true;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|w| Arc::ptr_eq(w, wake)) {
            waiting.push(wake.clone());
        }
        drop(waiting);
        self.any_waiting.store(true, Ordering::SeqCst);
        // One that was given back before anyone waited has woken nobody.
        self.take()
    }

    /// Takes a place if there is one, for who does not wait.
    pub fn take(&self) -> bool {
        let one_more = |taken: u32| (taken < self.max).then(|| taken + 1);
        self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
    }

    /// Takes a place even if there is none: what has it already moves here from another room.
    pub fn move_in(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    /// How many there are in all.
    pub fn places(&self) -> u32 {
        self.max
    }

    /// Whether there is a place.
    pub fn has_place(&self) -> bool {
        self.taken.load(Ordering::SeqCst) < self.max
    }

    /// Gives a place back.
    pub fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
        if self.any_waiting.swap(false, Ordering::SeqCst) {
            for wake in self.waiting.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                eventfd::signal(&wake);
            }
        }
    }

    /// Places taken now.
    #[cfg(test)]
    pub fn taken(&self) -> u32 {
        self.taken.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_found_it_full_is_woken_once_there_is_a_place() {
        let (room, wake) = (Room::new(Some(1)), Arc::new(eventfd::new().expect("a descriptor")));
        assert!(room.enter(&wake) && !room.enter(&wake) && !room.has_place());
        let epoll = parshall_sys::epoll::Epoll::new().expect("a descriptor");
        epoll.add(&wake, 1, parshall_sys::epoll::READABLE).expect("watched");
        let mut events = parshall_sys::epoll::Events::with_capacity(1);
        let mut woken = || {
            epoll.wait(&mut events, std::time::Duration::ZERO).expect("epoll");
            !events.is_empty()
        };
        assert!(!woken());
        room.give_back();
        assert!(woken() && room.take() && !room.take());
    }

    #[test]
    fn threads_never_take_more_than_there_are() {
        let room = Room::new(Some(3));
        let most = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if room.take() {
                            most.fetch_max(room.taken(), Ordering::SeqCst);
                            room.give_back();
                        }
                    }
                });
            }
        });
        assert_eq!(room.taken(), 0);
        assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
    }
}
