//! Does work that may never end on a separate thread, and waits for it a bounded time.
//!
//! A file that an observed process has mapped may be on a file system that does not answer, or may keep a parser busy for
//! ever. Its symbols then stay unknown, and the observation goes on.
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The time that all slow replies of one worker may take together.
const SLOW_TOTAL_MAX: Duration = Duration::from_secs(10);
/// A reply within this time is not slow.
const SLOW: Duration = Duration::from_millis(10);

/// Makes the function that answers requests. It is called on the worker's thread, so the function need not be `Send`.
pub type Make<Q, A> = fn() -> Box<dyn FnMut(Q) -> A>;

/// A thread that answers one request at a time. It starts with the first request and ends when this is dropped, unless it
/// is stuck then: it is never joined.
pub struct TimedWorker<Q, A> {
    make: Make<Q, A>,
    channels: Option<Channels<Q, A>>,
    /// The rest of `SLOW_TOTAL_MAX`.
    left: Duration,
}

struct Channels<Q, A> {
    requests: Sender<Q>,
    replies: Receiver<A>,
}

impl<Q: Send + 'static, A: Send + 'static> TimedWorker<Q, A> {
    /// Starts no thread yet.
    pub const fn new(make: Make<Q, A>) -> Self {
        Self { make, channels: None, left: SLOW_TOTAL_MAX }
    }

    /// The reply to a request. None after a timeout, and then for every later request; None also if the function panicked, but
    /// then a later request starts a new thread.
    pub fn call(&mut self, request: Q) -> Option<A> {
        if self.left.is_zero() {
            return None;
        }
        if self.channels.is_none() {
            self.channels = start(self.make);
        }
        let channels = self.channels.as_ref()?;
        channels.requests.send(request).ok()?;
        let sent = Instant::now();
        let reply = channels.replies.recv_timeout(self.left);
        if sent.elapsed() > SLOW {
            self.left = self.left.saturating_sub(sent.elapsed());
        }
        match reply {
            Ok(reply) => return Some(reply),
            Err(RecvTimeoutError::Timeout) => self.left = Duration::ZERO,
            Err(RecvTimeoutError::Disconnected) => {}
        }
        self.channels = None;
        None
    }
}

fn start<Q: Send + 'static, A: Send + 'static>(make: Make<Q, A>) -> Option<Channels<Q, A>> {
    let (requests, received) = channel();
    let (reply, replies) = channel();
    let work = move || {
        let mut answer = make();
        while let Ok(request) = received.recv() {
            if reply.send(answer(request)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("timed".into()).spawn(work).ok()?;
    Some(Channels { requests, replies })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doubles a number; for 1 it never replies, for 2 it panics.
    fn doubling(left: Duration) -> TimedWorker<u32, u32> {
        let make: Make<u32, u32> = || {
            Box::new(|number| match number {
                1 => loop {
                    thread::park();
                },
                2 => panic!("a parser's bug"),
                _ => 2 * number,
            })
        };
        TimedWorker { left, ..TimedWorker::new(make) }
    }

    #[test]
    fn a_stuck_worker_is_abandoned() {
        let mut worker = doubling(Duration::from_millis(50));
        assert_eq!((worker.call(1), worker.call(3)), (None, None), "the time is used up");
    }

    #[test]
    fn a_panic_costs_that_request_only() {
        let mut worker = doubling(Duration::from_secs(60));
        assert_eq!((worker.call(2), worker.call(4)), (None, Some(8)));
    }

    #[test]
    fn quick_replies_use_none_of_the_time() {
        let mut worker = doubling(Duration::from_secs(60));
        // Some may be slow on a busy host.
        assert!((0..1_000).all(|_| worker.call(4) == Some(8)));
        assert!(worker.left > Duration::from_secs(30), "{:?}", worker.left);
    }
}
