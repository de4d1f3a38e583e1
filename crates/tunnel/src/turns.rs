//! Turns: what several threads have taken one after the other is done side by side, and ends in the order in which it was taken.
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Gives out turns.
#[derive(Debug, Default)]
pub struct Turns {
    /// The next one to be given out.
    next: Mutex<u64>,
    /// The one that is due.
    due: Mutex<u64>,
    moved: Condvar,
}

impl Turns {
    /// Holds others back until [`Taking::take`].
    pub fn taking(&self) -> Taking<'_> {
        Taking { turns: self, next: lock(&self.next) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to take the next turn.
pub struct Taking<'a> {
    turns: &'a Turns,
    next: MutexGuard<'a, u64>,
}

impl<'a> Taking<'a> {
    /// Takes it, and lets others take theirs.
    pub fn take(mut self) -> Turn<'a> {
        let number = *self.next;
        *self.next += 1;
        Turn { turns: self.turns, number }
    }
}

/// A turn, which ends when it is dropped. That waits for all earlier ones.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turn<'_> {
    /// Waits until all earlier ones have ended.
    pub fn wait(&self) {
        drop(self.due());
    }

    fn due(&self) -> MutexGuard<'_, u64> {
        let due = lock(&self.turns.due);
        self.turns.moved.wait_while(due, |due| *due != self.number).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.due() += 1;
        self.turns.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_taken_first_ends_first() {
        let (turns, ended) = (Turns::default(), Mutex::new(Vec::new()));
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
