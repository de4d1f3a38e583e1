//! Turns: what several threads have taken one after the other is done side by side, and ends in the order in which it was taken.
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Gives out turns, to whoever has `T`: it is what turns are taken by.
#[derive(Debug, Default)]
pub struct Turns<T> {
    next: Mutex<Next<T>>,
    order: Order,
}

#[derive(Debug, Default)]
struct Next<T> {
    /// The next turn to be given out.
    number: u64,
    by: T,
}

/// In which turns end.
#[derive(Debug, Default)]
struct Order {
    /// The turn that is due.
    due: Mutex<u64>,
    moved: Condvar,
}

impl<T> Turns<T> {
    /// Holds others back until [`Taking::take`].
    pub fn taking(&self) -> Taking<'_, T> {
        Taking { order: &self.order, next: lock(&self.next) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to take the next turn.
pub struct Taking<'a, T> {
    order: &'a Order,
    next: MutexGuard<'a, Next<T>>,
}

impl<'a, T> Taking<'a, T> {
    /// Takes it, and lets others take theirs.
    pub fn take(mut self) -> Turn<'a> {
        let number = self.next.number;
        self.next.number += 1;
        Turn { order: self.order, number }
    }
}

impl<T> Deref for Taking<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.next.by
    }
}

impl<T> DerefMut for Taking<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.next.by
    }
}

/// A turn, which ends when it is dropped. That waits for all earlier ones.
#[derive(Debug)]
pub struct Turn<'a> {
    order: &'a Order,
    number: u64,
}

impl Turn<'_> {
    /// Waits until all earlier ones have ended.
    pub fn wait(&self) {
        drop(self.due());
    }

    fn due(&self) -> MutexGuard<'_, u64> {
        let due = lock(&self.order.due);
        self.order.moved.wait_while(due, |due| *due != self.number).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.due() += 1;
        self.order.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_taken_first_ends_first() {
        let (turns, ended) = (Turns::<()>::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (turns, ended) = (&turns, &ended);
                scope.spawn(move || {
                    for n in 0..50 {
                        let turn = turns.taking().take();
                        if (n + thread) % 7 == 0 {
                            std::thread::sleep(Duration::from_micros(300));
                        }
                        // Some have nothing to do.
                        if n % 3 != 0 {
                            turn.wait();
                            lock(ended).push(turn.number);
                        }
                    }
                });
            }
        });
        let ended = ended.into_inner().unwrap();
        assert!(ended.is_sorted() && ended.len() > 100, "{ended:?}");
    }
}
