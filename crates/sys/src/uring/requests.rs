//! Requests that the kernel has not completed, and the memory that each of them owns until then.
//!
//! A queue entry is made from an [`Operation`] that is already in the table ([`Operation::entry`]). So the table owns the
//! memory that the entry points to before the kernel can see the entry, and until the last completion.
use std::os::fd::RawFd;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use super::receive_memory::{ReadBuffer, Template};
use crate::udp_batch::DatagramBatch;

/// The identifier of a request, for its completions and [`Ring::cancel`](super::Ring::cancel). Once a request has ended, its
/// identifier is not used again: the generation of its slot is increased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    slot: u32,
    generation: u32,
}

impl Request {
    /// The value that the kernel returns with each completion.
    pub(super) fn user_data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    pub(super) fn of(user_data: u64) -> Self {
        Self { slot: user_data as u32, generation: (user_data >> 32) as u32 }
    }
}

/// The operation of a request, with the memory that it owns.
pub(super) enum Operation {
    /// Receives messages into buffers of a group.
    Receive { group: u16 },
    /// Reports whenever a descriptor becomes readable.
    Poll,
    /// Cancels another request.
    Cancel(Request),
    /// Sends a buffer.
    SendBuffer { buffer: Vec<u8> },
    /// Receives messages with their addresses into buffers of a group.
    ReceiveDatagrams { group: u16, template: Box<Template> },
    /// Sends the first message of a batch.
    SendMessage { batch: Box<DatagramBatch>, linked: bool, zero_copy: bool },
    /// Reads once.
    Read { buffer: ReadBuffer },
}

impl Operation {
    /// The entry for the submission queue. It points only to buffers of the ring and to heap memory that this value owns,
    /// which stays in place when the value is moved.
    fn entry(&self, fd: RawFd) -> squeue::Entry {
        let fd = Fd(fd);
        match self {
            Self::Receive { group } => opcode::RecvMulti::new(fd, *group).build(),
            Self::Poll => opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build(),
            Self::Cancel(request) => opcode::AsyncCancel::new(request.user_data()).build(),
            Self::SendBuffer { buffer } => {
                let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
                opcode::Send::new(fd, buffer.as_ptr(), len).flags(libc::MSG_NOSIGNAL).build()
            }
            Self::ReceiveDatagrams { group, template } => {
                opcode::RecvMsgMulti::new(fd, template.header(), *group).build()
            }
            Self::SendMessage { batch, linked, zero_copy } => {
                let (header, flags) = (batch.header(0), libc::MSG_NOSIGNAL as u32);
                let entry = match zero_copy {
                    true => opcode::SendMsgZc::new(fd, header).flags(flags).build(),
                    false => opcode::SendMsg::new(fd, header).flags(flags).build(),
                };
                entry.flags(if *linked { squeue::Flags::IO_HARDLINK } else { squeue::Flags::empty() })
            }
            Self::Read { buffer } => {
                let (start, len) = buffer.place();
                // The current position, of which files without positions take no notice.
                opcode::Read::new(fd, start, len).offset(u64::MAX).build()
            }
        }
    }
}

/// One request.
struct Slot {
    /// How often this slot was used before.
    generation: u32,
    tag: u64,
    /// None if the slot is free.
    operation: Option<Operation>,
}

/// The requests of a ring whose last completion has not been read.
#[derive(Default)]
pub(super) struct Requests {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a request and returns its identifier and its queue entry.
    pub(super) fn insert(&mut self, fd: RawFd, tag: u64, operation: Operation) -> (Request, squeue::Entry) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, tag: 0, operation: None });
            self.slots.len() as u32 - 1
        });
        let place = &mut self.slots[slot as usize];
        place.tag = tag;
        let request = Request { slot, generation: place.generation };
        let entry = place.operation.insert(operation).entry(fd).user_data(request.user_data());
        (request, entry)
    }

    /// The tag and the operation of a request.
    pub(super) fn get(&self, request: Request) -> Option<(u64, &Operation)> {
        let place = self.slots.get(request.slot as usize).filter(|s| s.generation == request.generation)?;
        place.operation.as_ref().map(|operation| (place.tag, operation))
    }

    /// Removes a request whose last completion has been read: the kernel no longer uses its memory.
    pub(super) fn remove(&mut self, request: Request) -> Option<Operation> {
        let place = self.slots.get_mut(request.slot as usize).filter(|s| s.generation == request.generation)?;
        let operation = place.operation.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(request.slot);
        Some(operation)
    }
}
