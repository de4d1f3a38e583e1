//! How a worker is told to drain or end. Each worker has its own: it is woken through a pipe that only it reads.
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use parshall_core::relay::Ns;

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
#[derive(Debug)]
pub struct Stop {
    order: AtomicU8,
    deadline: AtomicU64,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Stop {
    /// To serve.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { order: AtomicU8::new(0), deadline: AtomicU64::new(0), reader, writer })
    }

    /// Gives an order. A few of them fit into the pipe; that is more than there are steps to the end.
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
