//! Hands work from thread to thread: threads take it one after the other, do it side by side, and end it in the order in which they took it.
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Passes `T`, from which work is taken, from thread to thread.
#[derive(Debug, Default)]
pub struct HandOver<T> {
    next: Mutex<Next<T>>,
    order: Order,
}

#[derive(Debug, Default)]
struct Next<T> {
    /// Of the next ticket.
    number: u64,
    source: T,
}

/// The order in which tickets end.
#[derive(Debug, Default)]
struct Order {
    /// The number of the ticket that may end.
    due: Mutex<u64>,
    moved: Condvar,
}

impl<T> HandOver<T> {
    /// Other threads wait until [`Held::pass_on`].
    pub fn acquire(&self) -> Held<'_, T> {
        Held { order: &self.order, next: lock(&self.next) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The source of work, held by one thread.
pub struct Held<'a, T> {
    order: &'a Order,
    next: MutexGuard<'a, Next<T>>,
}

impl<'a, T> Held<'a, T> {
    /// Lets the next thread have the source. The ticket stands for what this one has taken.
    pub fn pass_on(mut self) -> Ticket<'a> {
        let number = self.next.number;
        self.next.number += 1;
        Ticket { order: self.order, number }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.next.source
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.next.source
    }
}

/// Work that a thread has taken. It ends when the ticket is dropped, which waits for all earlier ones.
#[derive(Debug)]
pub struct Ticket<'a> {
    order: &'a Order,
    number: u64,
}

impl Ticket<'_> {
    /// Waits until all earlier ones have ended.
    pub fn wait(&self) {
        drop(self.due());
    }

    fn due(&self) -> MutexGuard<'_, u64> {
        let due = lock(&self.order.due);
        self.order.moved.wait_while(due, |due| *due != self.number).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket<'_> {
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
        let (hand_over, ended) = (HandOver::<()>::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (hand_over, ended) = (&hand_over, &ended);
                scope.spawn(move || {
                    for n in 0..50 {
                        let ticket = hand_over.acquire().pass_on();
                        if (n + thread) % 7 == 0 {
                            std::thread::sleep(Duration::from_micros(300));
                        }
                        // Some have nothing to do.
                        if n % 3 != 0 {
                            ticket.wait();
                            lock(ended).push(ticket.number);
                        }
                    }
                });
            }
        });
        let ended = ended.into_inner().unwrap();
        assert!(ended.is_sorted() && ended.len() > 100, "{ended:?}");
    }
}
