//! A limit on open connections and UDP sessions that all threads share. It is asked when one begins and when one ends, never
//! while bytes move.
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use parshall_sys::eventfd;

#[derive(Debug)]
pub struct ConnectionLimit {
    max: u32,
    open: AtomicU32,
    /// The eventfds of threads that stopped accepting at the limit; they are signalled once a connection ends.
    waiting: Mutex<Vec<Arc<OwnedFd>>>,
    any_waiting: AtomicBool,
}

impl ConnectionLimit {
    /// At most `max` connections at a time; None is no limit.
    pub fn new(max: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            max: max.unwrap_or(u32::MAX),
            open: AtomicU32::new(0),
            waiting: Mutex::default(),
            any_waiting: AtomicBool::new(false),
        })
    }

    /// Counts a connection, which [`Self::release`] ends. At the limit it returns false, and signals `wake` once a connection
    /// has ended.
    pub fn acquire(&self, wake: &Arc<OwnedFd>) -> bool {
        if self.try_acquire() {
            return true;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|w| Arc::ptr_eq(w, wake)) {
            waiting.push(wake.clone());
        }
        drop(waiting);
        self.any_waiting.store(true, Ordering::SeqCst);
        // A connection that ended before the flag was set has signalled no one.
        self.try_acquire()
    }

    /// Counts a connection; false at the limit.
    pub fn try_acquire(&self) -> bool {
        let one_more = |open: u32| (open < self.max).then(|| open + 1);
        self.open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
    }

    /// Counts a session that is open already and was counted by another limit, even above this one.
    pub fn transfer_in(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    pub fn max(&self) -> u32 {
        self.max
    }

    /// Whether one more connection may open.
    pub fn has_free(&self) -> bool {
        self.open.load(Ordering::SeqCst) < self.max
    }

    /// A connection has ended: wakes the threads that wait for that.
    pub fn release(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        if self.any_waiting.swap(false, Ordering::SeqCst) {
            for wake in self.waiting.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                eventfd::signal(&wake);
            }
        }
    }

    #[cfg(test)]
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_at_the_limit_is_woken_when_a_connection_ends() {
        let (limit, wake) = (ConnectionLimit::new(Some(1)), Arc::new(eventfd::new().expect("a descriptor")));
        assert!(limit.acquire(&wake) && !limit.acquire(&wake) && !limit.has_free());
        let epoll = parshall_sys::epoll::Epoll::new().expect("a descriptor");
        epoll.add(&wake, 1, parshall_sys::epoll::READABLE).expect("watched");
        let mut events = parshall_sys::epoll::Events::with_capacity(1);
        let mut woken = || {
            epoll.wait(&mut events, std::time::Duration::ZERO).expect("epoll");
            !events.is_empty()
        };
        assert!(!woken());
        limit.release();
        assert!(woken() && limit.try_acquire() && !limit.try_acquire());
    }

    #[test]
    fn threads_never_exceed_the_limit() {
        let limit = ConnectionLimit::new(Some(3));
        let most = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if limit.try_acquire() {
                            most.fetch_max(limit.open(), Ordering::SeqCst);
                            limit.release();
                        }
                    }
                });
            }
        });
        assert_eq!(limit.open(), 0);
        assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
    }
}
