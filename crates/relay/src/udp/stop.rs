//! How a worker is told to drain or end. Each worker has its own: it is woken through a pipe that only it reads.
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use parshall_core::relay::Ns;

use super::plan::Change;

/// What a worker is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Serve.
    Serve,
    /// Take no new sessions; end when none is left, or at this time of the monotonic clock.
    Drain(Ns),
    /// As [`Order::Drain`], and leave the listening sockets to others: only answers to sessions still pass.
    HandOver(Ns),
    /// End now.
    End,
}

/// A worker's orders.
pub struct Stop {
    changes: Mutex<Vec<Change>>,
    order: AtomicU8,
    deadline: AtomicU64,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Stop {
    /// To serve.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { changes: Mutex::default(), order: AtomicU8::new(0), deadline: AtomicU64::new(0), reader, writer })
    }

    /// Gives an order. The worker is woken through a pipe, which holds thousands of orders.
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

    /// Gives the worker other listeners.
    pub fn change(&self, change: Change) -> io::Result<()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        (&self.writer).write_all(&[1])
    }

    /// What was given and not yet taken.
    pub(super) fn changes(&self) -> Vec<Change> {
        std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The order that holds.
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

    /// Takes what woke the worker; call it only when the reader is readable.
    pub(super) fn woken(&self) {
        // One byte per order: with more of them the worker wakes once more, no worse.
        (&self.reader).read_exact(&mut [0]).ok();
    }
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stop").field("order", &self.order()).finish_non_exhaustive()
    }
}
