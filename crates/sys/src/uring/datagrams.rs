//! Datagrams and frames on a ring: multishot recvmsg into provided buffers, sends of prepared messages, and reads into buffers of
//! their own.
use std::net::SocketAddr;
use std::os::fd::RawFd;

use super::Ring;
use super::buffers::Chunk;
use super::receive_memory::{DATAGRAM_HEADER_LEN, NAME_LEN, OUT_LEN, ReadBuffer, Template};
use super::requests::{Operation, Request};
use crate::udp_batch::address::Name;
use crate::udp_batch::control::{self, Control};
use crate::udp_batch::{DatagramBatch, Received};

impl Ring {
    /// Receives messages with their senders and local addresses, each into one buffer of a group, whenever some arrive. The
    /// buffers have [`DATAGRAM_HEADER_LEN`] bytes more than the longest message. Ends as [`Ring::recv_messages`] does.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn recv_datagrams(&mut self, fd: RawFd, group: u16, tag: u64) -> Request {
        assert!(usize::from(group) < self.groups.len(), "group {group} of {}", self.groups.len());
        self.submit(fd, tag, Operation::ReceiveDatagrams { group, template: Template::new() })
    }

    /// The message in a chunk of [`Ring::recv_datagrams`], and its payload; `None` if the kernel wrote less than a header.
    ///
    /// # Panics
    /// If the chunk is of another ring.
    pub fn datagrams(&mut self, chunk: &Chunk) -> Option<(Received, &mut [u8])> {
        let bytes = self.group_mut(chunk).bytes_mut(chunk);
        if bytes.len() < DATAGRAM_HEADER_LEN {
            return None;
        }
        let (head, payload) = bytes.split_at_mut(DATAGRAM_HEADER_LEN);
        let number = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name_len, control_len, flags) = (number(0) as usize, number(4) as usize, number(12) as i32);
        let mut name = Name::NONE;
        name.copy_from(&head[OUT_LEN..OUT_LEN + name_len.min(size_of::<Name>())]);
        let mut control = Control::EMPTY;
        let control_len = control_len.min(Control::BYTES);
        control.0[..control_len].copy_from_slice(&head[OUT_LEN + NAME_LEN..][..control_len]);
        // SAFETY: null pointers and zero lengths are a valid msghdr.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = control_len as _;
        let control = control::read(&header);
        let peer = if name_len > 0 { name.address() } else { SocketAddr::from(([0, 0, 0, 0], 0)) };
        let received = Received {
            bytes: payload.len(),
            segment: control.segment.unwrap_or(payload.len()).max(1),
            peer,
            local: control.local,
            interface: control.interface,
            ecn: control.ecn,
            arrived: control.arrived,
            truncated: flags & libc::MSG_TRUNC != 0,
        };
        Some((received, payload))
    }

    /// Sends the first message of a batch, and waits for space in the send buffer. With `linked`, the next request that is
    /// submitted begins after this one has ended, whatever its result. With `zero_copy`, the first completion has the result, and
    /// the batch comes with the last.
    pub fn send_message(
        &mut self,
        fd: RawFd,
        batch: Box<DatagramBatch>,
        linked: bool,
        zero_copy: bool,
        tag: u64,
    ) -> Request {
        assert!(!batch.messages().is_empty(), "a batch without messages");
        self.submit(fd, tag, Operation::SendMessage { batch, linked, zero_copy })
    }

    /// Reads once, as soon as there is something to read. The buffer comes back with the completion. EAGAIN comes only from
    /// non-blocking files that cannot be waited for this way, such as TUN devices before kernel 6.4.
    pub fn read(&mut self, fd: RawFd, buffer: ReadBuffer, tag: u64) -> Request {
        self.submit(fd, tag, Operation::Read { buffer })
    }
}
