//! Orders to a worker: to drain, to end, or to apply a new configuration. A pipe that only this worker reads wakes it.
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use parshall_core::relay::Ns;

use super::plan::Change;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Serve,
    /// Begins no new sessions, and ends with the last one or at this time of the monotonic clock.
    Drain(Ns),
    /// As [`Order::Drain`], without reading the listening sockets, which another process reads: only answers are forwarded.
    HandOver(Ns),
    /// Ends at once.
    End,
}

/// The current order of a worker, and the configurations that it has yet to apply.
pub struct Stop {
    changes: Mutex<Vec<Change>>,
    order: AtomicU8,
    deadline: AtomicU64,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Stop {
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { changes: Mutex::default(), order: AtomicU8::new(0), deadline: AtomicU64::new(0), reader, writer })
    }

    /// Gives an order and wakes the worker. The pipe holds thousands of wake-ups.
    pub fn give(&self, order: Order) -> io::Result<()> {
        let (number, deadline) = match order {
            Order::Serve => (0, 0),
            Order::Drain(deadline) => (1, deadline),
            Order::HandOver(deadline) => (2, deadline),
            Order::End => (3, 0),
        };
        self.deadline.store(deadline, Ordering::Relaxed);
        self.order.store(number, Ordering::Release);
        (&self.writer).write_all(&[1])
    }

    /// Gives the worker a new configuration.
    pub fn change(&self, change: Change) -> io::Result<()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        (&self.writer).write_all(&[1])
    }

    /// Wakes the worker.
    pub(super) fn wake(&self) {
        // A worker that has ended needs no waking.
        (&self.writer).write_all(&[1]).ok();
    }

    /// Takes the configurations that were not yet applied.
    pub(super) fn changes(&self) -> Vec<Change> {
        std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn order(&self) -> Order {
        let number = self.order.load(Ordering::Acquire);
        let deadline = self.deadline.load(Ordering::Relaxed);
        match number {
            0 => Order::Serve,
            1 => Order::Drain(deadline),
            2 => Order::HandOver(deadline),
            _ => Order::End,
        }
    }

    pub(super) fn reader(&self) -> &PipeReader {
        &self.reader
    }

    /// Consumes one wake-up. Call it only when the reader is readable.
    pub(super) fn woken(&self) {
        // One byte per order; the worker wakes again for the others.
        (&self.reader).read_exact(&mut [0]).ok();
    }
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stop").field("order", &self.order()).finish_non_exhaustive()
    }
}
