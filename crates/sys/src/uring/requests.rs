//! Requests that the kernel has not completed, and the memory that each of them owns until then.
//!
//! A queue entry is made from an [`Operation`] that is already in the table ([`Operation::entry`]). So the table owns the
//! memory that the entry points to before the kernel can see the entry, and until the last completion.
use std::os::fd::RawFd;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use super::buffers::Chunk;
use super::receive_memory::{ReadBuffer, Template};
use crate::udp_batch::DatagramBatch;

/// Flags of a send that takes as many bytes as fit, and that raises no SIGPIPE.
pub(super) const AT_ONCE: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

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

/// The message header and the pieces of memory of a gathered send (sendmsg).
pub(super) struct Gather {
    header: libc::msghdr,
    pieces: Vec<libc::iovec>,
}

// SAFETY: the pointers lead to the pieces of the same value and to buffers of the ring that owns it.
unsafe impl Send for Gather {}

impl Gather {
    pub(super) fn new() -> Box<Self> {
        // SAFETY: all-zero bytes are a msghdr without address, pieces and control data.
        Box::new(Self { header: unsafe { std::mem::zeroed() }, pieces: Vec::new() })
    }

    /// Replaces the pieces. Pieces that are adjacent in memory become one.
    pub(super) fn fill(&mut self, pieces: impl Iterator<Item = (*mut u8, usize)>) {
        self.pieces.clear();
        for (start, len) in pieces {
            let full = self.pieces.len() == PIECES_MAX;
            match self.pieces.last_mut() {
                // The kernel takes buffers in the order in which they were given back, so successive ones are often adjacent.
                Some(last) if last.iov_base.addr() + last.iov_len == start.addr() => last.iov_len += len,
                _ if full => break,
                _ => self.pieces.push(libc::iovec { iov_base: start.cast(), iov_len: len }),
            }
        }
        self.header.msg_iov = self.pieces.as_mut_ptr();
        self.header.msg_iovlen = self.pieces.len() as _;
    }

    pub(super) fn header(&self) -> *const libc::msghdr {
        &raw const self.header
    }

    /// The piece, if there is exactly one.
    pub(super) fn only(&self) -> Option<Piece> {
        if let [piece] = self.pieces[..] { Some(Piece(piece)) } else { None }
    }
}

/// A piece of memory to send.
pub(super) struct Piece(libc::iovec);

// SAFETY: the pointer leads to buffers of the ring that owns it.
unsafe impl Send for Piece {}

/// Where the bytes of chunks are.
pub(super) enum Places {
    /// One piece, as in most sends: it is sent without a message header.
    One(Piece),
    /// Several pieces.
    Several(Box<Gather>),
}

/// The most pieces of one gathered send: UIO_MAXIOV.
const PIECES_MAX: usize = 1024;

/// The operation of a request, with the memory that it owns.
pub(super) enum Operation {
    /// Receives into buffers of a group. With `bundle` one completion may fill several buffers.
    Receive { group: u16, bundle: bool },
    /// Accepts one client; the completion brings its descriptor.
    Accept,
    /// Reports whenever a descriptor becomes readable.
    Poll,
    /// Cancels another request.
    Cancel(Request),
    /// Sends chunks.
    SendChunks { chunks: Vec<Chunk>, places: Places },
    /// Sends a buffer without its first `from` bytes.
    SendBuffer { buffer: Vec<u8>, from: usize },
    /// Receives messages into buffers of a group.
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
            Self::Receive { group, bundle: true } => opcode::RecvMultiBundle::new(fd, *group).build(),
            Self::Receive { group, bundle: false } => opcode::RecvMulti::new(fd, *group).build(),
            // Null: the address is asked for later, if it is needed.
            Self::Accept => opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                .flags(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
                .build(),
            Self::Poll => opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build(),
            Self::Cancel(request) => opcode::AsyncCancel::new(request.user_data()).build(),
            Self::SendChunks { places: Places::One(Piece(piece)), .. } => {
                opcode::Send::new(fd, piece.iov_base.cast(), length(piece.iov_len)).flags(AT_ONCE).build()
            }
            Self::SendChunks { places: Places::Several(gather), .. } => {
                opcode::SendMsg::new(fd, gather.header()).flags(AT_ONCE as u32).build()
            }
            Self::SendBuffer { buffer, from } => {
                let rest = buffer.get(*from..).unwrap_or_default();
                opcode::Send::new(fd, rest.as_ptr(), length(rest.len())).flags(libc::MSG_NOSIGNAL).build()
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

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
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
