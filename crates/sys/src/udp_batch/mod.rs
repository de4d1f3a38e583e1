//! Datagrams in batches (recvmmsg, sendmmsg). They are received into preallocated buffers and forwarded from the same
//! buffers, so nothing is allocated or copied per datagram.
//!
//! A slot is the buffer of one received message: a datagram, or with UDP_GRO several successive datagrams of one size from
//! one sender (a super-datagram). A message to be sent consists of one or more slots, which the kernel cuts into datagrams
//! of one size (UDP_SEGMENT), or of a single datagram. The caller decides which slots form a message.
pub(crate) mod address;
pub(crate) mod control;
pub(crate) mod memory;
pub mod options;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use address::Name;
use control::{Ancillary, Control};
use memory::Fixed;

/// The largest payload of a datagram over IPv4 in bytes, and the most that one message may hold.
pub const DATAGRAM_MAX: usize = 65_507;
/// The most datagrams in one message: UDP_MAX_SEGMENTS of kernels before 6.9. Later kernels allow 128.
pub const SEGMENTS_MAX: usize = 64;
/// Size of a slot. The largest payload over IPv6 is 20 bytes longer than over IPv4.
const SLOT_BYTES: usize = 65_536;
/// Distance of two slots. At a distance of a power of two, all slots would begin in the same set of the CPU's caches.
const SLOT_STRIDE: usize = SLOT_BYTES + 192;

/// The received contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes of all its datagrams.
    pub bytes: usize,
    /// Bytes of each of its datagrams; the last may be shorter. At least 1, also for an empty datagram.
    pub segment: usize,
    /// The sender; 0.0.0.0:0 if it was not requested.
    pub peer: SocketAddr,
    /// The local address that the datagram was sent to, if the socket reports it ([`options::report_local_address`]).
    pub local: Option<IpAddr>,
    /// The index of the interface that it came in by, with the local address; otherwise 0.
    pub interface: u32,
    /// The two bits of ECN (RFC 3168), if the socket reports them ([`options::report_ecn`]); otherwise 0. Datagrams with other bits
    /// are no part of the same super-datagram.
    pub ecn: u8,
    /// When the kernel received it, as the time since 1970, if the socket reports it ([`options::report_arrival`]). It is that of the
    /// first of a super-datagram.
    pub arrived: Option<Duration>,
    /// Whether the datagram was larger than a slot and was truncated (MSG_TRUNC).
    pub truncated: bool,
}

impl Received {
    /// Datagrams in it.
    pub fn datagrams(&self) -> usize {
        self.bytes.div_ceil(self.segment).max(1)
    }
}

/// A message to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Bytes of all its datagrams.
    pub bytes: usize,
    /// Bytes of each of its datagrams; the last may be shorter. At least 1.
    pub segment: usize,
    /// The tag that the caller gave.
    pub tag: u64,
    first_iov: usize,
    iovs: usize,
    local: Option<IpAddr>,
    ecn: Option<control::Ecn>,
}

impl Message {
    /// Datagrams in it.
    pub fn datagrams(&self) -> usize {
        self.bytes.div_ceil(self.segment).max(1)
    }
}

/// Slots to receive into and messages made of them.
pub struct DatagramBatch {
    slots: usize,
    memory: Fixed<u8>,
    received: Vec<Received>,
    names: Fixed<Name>,
    // The headers of both halves point into the arrays beside them, which never move.
    _controls: Fixed<Control>,
    headers: Fixed<libc::mmsghdr>,
    _iovs: Fixed<libc::iovec>,
    messages: Vec<Message>,
    attached: usize,
    out_names: Fixed<Name>,
    out_controls: Fixed<Control>,
    out_headers: Fixed<libc::mmsghdr>,
    out_iovs: Fixed<libc::iovec>,
}

impl std::fmt::Debug for DatagramBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatagramBatch").field("received", &self.received).field("messages", &self.messages).finish()
    }
}

const NO_HEADER: libc::mmsghdr = {
    // SAFETY: null pointers and zero lengths are a valid mmsghdr.
    unsafe { std::mem::zeroed() }
};
const NO_IOV: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

impl DatagramBatch {
    /// Makes a batch with this number of slots (1 to 1024). Each takes 64 KiB of address space, and physical memory only for
    /// the pages that datagrams have used.
    pub fn new(slots: usize) -> Self {
        let slots = slots.clamp(1, 1024);
        let memory = Fixed::zeroed(slots * SLOT_STRIDE);
        let names = Fixed::new(Name::NONE, slots);
        let controls = Fixed::new(Control::EMPTY, slots);
        let mut iovs = Fixed::new(NO_IOV, slots);
        let mut headers = Fixed::new(NO_HEADER, slots);
        for slot in 0..slots {
            iovs.set(slot, libc::iovec { iov_base: memory.at(slot * SLOT_STRIDE).cast(), iov_len: SLOT_BYTES });
            let mut header = NO_HEADER;
            header.msg_hdr.msg_iov = iovs.at(slot);
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = controls.at(slot).cast();
            headers.set(slot, header);
        }
        Self {
            slots,
            memory,
            received: Vec::with_capacity(slots),
            names,
            _controls: controls,
            headers,
            _iovs: iovs,
            messages: Vec::with_capacity(slots),
            attached: 0,
            out_names: Fixed::new(Name::NONE, slots),
            out_controls: Fixed::new(Control::EMPTY, slots),
            out_headers: Fixed::new(NO_HEADER, slots),
            out_iovs: Fixed::new(NO_IOV, slots),
        }
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The contents of the used slots, in the order of arrival.
    pub fn received(&self) -> &[Received] {
        &self.received
    }

    /// The bytes of a slot.
    pub fn payload(&self, slot: usize) -> &[u8] {
        let bytes = self.received[slot].bytes;
        // SAFETY: the slot's first `bytes` bytes are initialised (all are, from the start) and inside the slot; nothing
        // writes to them while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.memory.at(slot * SLOT_STRIDE), bytes) }
    }

    /// As [`payload`](Self::payload), for the caller to change. Messages send the contents of their slots at the time of the call.
    pub fn payload_mut(&mut self, slot: usize) -> &mut [u8] {
        let bytes = self.received[slot].bytes;
        // SAFETY: as in `payload`; `&mut self` excludes other accesses.
        unsafe { std::slice::from_raw_parts_mut(self.memory.at(slot * SLOT_STRIDE), bytes) }
    }

    /// Takes a free slot for the caller to write into, all 64 KiB of it; `None` if there is no more.
    pub fn take_slot(&mut self) -> Option<usize> {
        let slot = Some(self.received.len()).filter(|slot| *slot < self.slots)?;
        let peer = SocketAddr::from(([0, 0, 0, 0], 0));
        let (bytes, segment, local, interface, ecn, arrived) = (SLOT_BYTES, SLOT_BYTES, None, 0, 0, None);
        self.received.push(Received { bytes, segment, peer, local, interface, ecn, arrived, truncated: false });
        Some(slot)
    }

    /// Empties all slots and removes all messages.
    pub fn clear(&mut self) {
        self.received.clear();
        self.clear_messages();
    }

    /// Removes all messages to be sent.
    pub fn clear_messages(&mut self) {
        self.messages.clear();
        self.attached = 0;
    }

    /// Receives into the free slots without blocking, and returns how many it filled: fewer than were free if the socket has
    /// no more datagrams. A pending error of the socket (such as ECONNREFUSED after an earlier send) is returned first; the
    /// next call receives the data.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, ask_peer: bool) -> io::Result<usize> {
        let first = self.received.len();
        let free = self.slots - first;
        if free == 0 {
            return Ok(0);
        }
        for slot in first..self.slots {
            // SAFETY: `at` gives a valid element, and `&mut self` excludes other accesses.
            let header = unsafe { &mut (*self.headers.at(slot)).msg_hdr };
            (header.msg_name, header.msg_namelen) = match ask_peer {
                true => (self.names.at(slot).cast(), size_of::<Name>() as libc::socklen_t),
                false => (std::ptr::null_mut(), 0),
            };
            header.msg_controllen = Control::BYTES as _;
        }
        // SAFETY: the headers from `first` on are `free` valid ones; each points to a name, a buffer and a control area
        // of the lengths it states, which live as long as `self` and which nothing else reads meanwhile.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.at(first),
                free as _,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        for slot in first..first + got as usize {
            let received = self.describe(slot, ask_peer);
            self.received.push(received);
        }
        Ok(got as usize)
    }

    fn describe(&self, slot: usize, ask_peer: bool) -> Received {
        let header = self.headers.get(slot);
        let bytes = (header.msg_len as usize).min(SLOT_BYTES);
        let control = control::read(&header.msg_hdr);
        let peer = if ask_peer && header.msg_hdr.msg_namelen > 0 {
            self.names.get(slot).address()
        } else {
            SocketAddr::from(([0, 0, 0, 0], 0))
        };
        let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let Ancillary { segment, local, interface, ecn, arrived } = control;
        Received { bytes, segment: segment.unwrap_or(bytes).max(1), peer, local, interface, ecn, arrived, truncated }
    }

    /// Begins a message. Without `to` it goes to the peer of a connected socket; without `local` it leaves from the socket's
    /// address. [`attach`](Self::attach) adds the slots.
    pub fn begin(&mut self, to: Option<&SocketAddr>, local: Option<IpAddr>, tag: u64) {
        let index = self.messages.len();
        assert!(index < self.slots, "a message holds at least one slot");
        let mut header = NO_HEADER;
        if let Some(to) = to {
            let name = Name::new(to);
            self.out_names.set(index, name);
            header.msg_hdr.msg_name = self.out_names.at(index).cast();
            header.msg_hdr.msg_namelen = name.len();
        }
        self.out_headers.set(index, header);
        self.messages.push(Message { bytes: 0, segment: 1, tag, first_iov: self.attached, iovs: 0, local, ecn: None });
    }

    /// Sends the message begun last with these two bits of ECN (RFC 3168); 0 is the default. The message must have an address.
    pub fn set_ecn(&mut self, bits: u8) {
        let index = self.messages.len() - 1;
        let name = self.out_headers.get(index).msg_hdr.msg_name;
        debug_assert!(!name.is_null(), "the family is that of the address");
        let ipv6 = self.out_names.get(index).address().is_ipv6();
        self.messages[index].ecn = (bits != 0).then_some(control::Ecn { bits, ipv6 });
    }

    /// Adds the first `bytes` of a slot to the message begun last. Each slot may be part of one message only. All slots of a
    /// message but the last must hold full segments.
    pub fn attach(&mut self, slot: usize, bytes: usize) {
        let bytes = bytes.min(self.received[slot].bytes);
        let message = self.messages.last_mut().expect("a message was begun");
        assert!(self.attached < self.slots, "a slot goes into one message");
        let base = self.memory.at(slot * SLOT_STRIDE).cast();
        self.out_iovs.set(self.attached, libc::iovec { iov_base: base, iov_len: bytes });
        self.attached += 1;
        message.iovs += 1;
        message.bytes += bytes;
    }

    /// Ends the message begun last. The kernel sends it as datagrams of `segment` bytes.
    pub fn end(&mut self, segment: usize) {
        let index = self.messages.len() - 1;
        let message = &mut self.messages[index];
        message.segment = segment.max(1);
        let mut header = self.out_headers.get(index);
        if message.iovs > 0 {
            header.msg_hdr.msg_iov = self.out_iovs.at(message.first_iov);
            header.msg_hdr.msg_iovlen = message.iovs as _;
        }
        // For a single datagram UDP_SEGMENT is not needed, and the kernel would return EMSGSIZE if it had to fragment it.
        let cut = (message.datagrams() > 1).then_some(message.segment as u16);
        if cut.is_some() || message.local.is_some() || message.ecn.is_some() {
            let mut control = Control::EMPTY;
            let len = control::write(&mut control, cut, message.ecn, message.local);
            self.out_controls.set(index, control);
            header.msg_hdr.msg_control = self.out_controls.at(index).cast();
            header.msg_hdr.msg_controllen = len as _;
        }
        self.out_headers.set(index, header);
    }

    /// The messages to be sent.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Sends the messages from index `from` on without blocking, and returns how many were sent. An error concerns the first
    /// of them.
    pub fn transmit(&mut self, socket: BorrowedFd<'_>, from: usize) -> io::Result<usize> {
        let count = self.messages.len().saturating_sub(from);
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: the headers from `from` on are `count` valid ones, ended by `end`; each points to a name, buffers and
        // a control area of the lengths it states, which live as long as `self`.
        let sent = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), self.out_headers.at(from), count as _, libc::MSG_DONTWAIT as _)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// The header of a message, for a ring to send. It stays in place as long as the batch lives.
    pub(crate) fn header(&self, message: usize) -> *const libc::msghdr {
        assert!(message < self.messages.len(), "message {message} of {}", self.messages.len());
        // SAFETY: within the array, as just checked; nothing is read.
        unsafe { &raw const (*self.out_headers.at(message)).msg_hdr }
    }

    /// Sends a single datagram of a message, for sockets and routes that do not accept UDP_SEGMENT.
    pub fn transmit_part(&mut self, socket: BorrowedFd<'_>, message: usize, part: usize) -> io::Result<()> {
        let about = self.messages[message];
        let mut header = self.out_headers.get(message).msg_hdr;
        let mut iov = self.part(&about, part);
        header.msg_iov = &raw mut iov;
        header.msg_iovlen = 1;
        let mut control = Control::EMPTY;
        let len = control::write(&mut control, None, about.ecn, about.local);
        header.msg_control = if len > 0 { control.0.as_mut_ptr().cast() } else { std::ptr::null_mut() };
        header.msg_controllen = len as _;
        // SAFETY: the header points to a name of `self`, to `iov` with a part of a slot, and to `control`, all of the
        // lengths it states and alive across the call.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The address and length of a datagram of a message. A datagram never spans two slots, because all slots but the last
    /// hold full segments.
    fn part(&self, message: &Message, part: usize) -> libc::iovec {
        let mut skip = part * message.segment;
        for index in message.first_iov..message.first_iov + message.iovs {
            let iov = self.out_iovs.get(index);
            if skip < iov.iov_len {
                let len = message.segment.min(iov.iov_len - skip);
                // SAFETY: skip is inside the buffer that the iov describes.
                return libc::iovec { iov_base: unsafe { iov.iov_base.byte_add(skip) }, iov_len: len };
            }
            skip -= iov.iov_len;
        }
        NO_IOV
    }
}
