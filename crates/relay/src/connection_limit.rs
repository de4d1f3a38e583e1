//! A limit on open connections or UDP sessions that all threads share. It is asked when one begins and when one ends, never
//! while bytes move.
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use parshall_core::relay::{Ns, episode};
use parshall_sys::eventfd;

/// Reports in the log what happens again and again once an episode, whichever threads it happens in.
#[derive(Debug, Default)]
pub struct Episodes {
    /// When it happened last; 0 for never.
    last: AtomicU64,
}

impl Episodes {
    /// It happens. Whether that begins an episode.
    pub fn begins(&self, now: Ns) -> bool {
        let before = self.last.swap(now.max(1), Ordering::Relaxed);
        episode::begins((before > 0).then_some(before), now)
    }
}

/// No thread.
const NOBODY: u32 = u32::MAX;

#[derive(Debug)]
pub struct ConnectionLimit {
    max: AtomicU32,
    open: AtomicU32,
    /// Connections or sessions that came at the limit.
    pub at_limit: Episodes,
    /// Those for which descriptors, memory or local ports were lacking.
    pub shortages: Episodes,
    /// The number of a thread that is at the limit, while the others may have sessions that are easier to do without; or
    /// [`NOBODY`].
    wanted_by: AtomicU32,
    /// The eventfds of threads that stopped accepting at the limit; they are signalled once a connection ends.
    waiting: Mutex<Vec<Arc<OwnedFd>>>,
    any_waiting: AtomicBool,
}

impl ConnectionLimit {
    /// At most `max` connections at a time; None is no limit.
    pub fn new(max: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicU32::new(max.unwrap_or(u32::MAX)),
            open: AtomicU32::new(0),
            at_limit: Episodes::default(),
            shortages: Episodes::default(),
            wanted_by: AtomicU32::new(NOBODY),
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
        let max = self.max();
        let one_more = |open: u32| (open < max).then(|| open + 1);
        self.open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
    }

    /// Counts a session that is open already and was counted by another limit, even above this one.
    pub fn transfer_in(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    pub fn max(&self) -> u32 {
        self.max.load(Ordering::SeqCst)
    }

    /// Changes the limit. Connections above it stay open.
    pub fn set_max(&self, max: u32) {
        if self.max.swap(max, Ordering::SeqCst) < max {
            self.wake_waiting();
        }
    }

    /// Whether another connection may open.
    pub fn has_free(&self) -> bool {
        self.open.load(Ordering::SeqCst) < self.max()
    }

    /// A thread asks the others to end a session. Whether it has not asked already, so that they have to be woken: what another
    /// thread had asked for is replaced, and this one may have nothing to do for it.
    pub fn want_one(&self, thread: u32) -> bool {
        self.wanted_by.swap(thread, Ordering::SeqCst) != thread
    }

    /// Whether another thread asks this one to end a session. One thread gets true.
    pub fn take_wanted(&self, thread: u32) -> bool {
        let asks = |by: u32| (by != NOBODY && by != thread).then_some(NOBODY);
        asks(self.wanted_by.load(Ordering::Relaxed)).is_some()
            && self.wanted_by.fetch_update(Ordering::SeqCst, Ordering::SeqCst, asks).is_ok()
    }

    /// A connection has ended: wakes the threads that wait for that.
    pub fn release(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.wake_waiting();
    }

    fn wake_waiting(&self) {
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
        parshall_sys::eventfd::reset(&wake);
        assert!(!limit.acquire(&wake));
        limit.set_max(1);
        let mut woken = || {
            epoll.wait(&mut events, std::time::Duration::ZERO).expect("epoll");
            !events.is_empty()
        };
        assert!(!woken());
        limit.set_max(2);
        assert!(woken() && limit.try_acquire() && !limit.try_acquire());
    }

    #[test]
    fn one_other_thread_is_asked_to_end_a_session() {
        let limit = ConnectionLimit::new(Some(1));
        assert!(!limit.take_wanted(1));
        assert!(limit.want_one(1) && limit.want_one(0) && !limit.want_one(0), "one wake-up is enough");
        assert!(!limit.take_wanted(0) && limit.take_wanted(1) && !limit.take_wanted(2));
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
