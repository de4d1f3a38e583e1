//! Seals packets in place, in batches, in the current session of a peer.
use std::sync::Arc;

use ring::aead::LessSafeKey;

use super::Ns;
use super::crypto;
use super::link::{Link, Refusal};
use super::message::{DATA_OVERHEAD, HEADER_LEN, Kind};
use super::session::{PADDING, Session};

impl Link {
    /// Begins to seal at most `packets` packets.
    pub fn sealer(&self, now: Ns, packets: u32) -> Result<Sealer<'_>, Refusal> {
        if !self.has_endpoint() {
            return Err(Refusal::NoEndpoint);
        }
        let sealer = self.sending_session(now).and_then(|session| Sealer::new(self, session, packets));
        sealer.ok_or_else(|| Refusal::NoSession { attend: self.ask_for_handshake() })
    }
}

/// Seals the packets of a batch for one peer. Other threads may seal for the same peer meanwhile: each has its own counters.
///
/// Counters that are left over are skipped, which the receiver takes for lost packets.
pub struct Sealer<'a> {
    link: &'a Link,
    session: Arc<Session>,
    key: LessSafeKey,
    next: u64,
    end: u64,
    packets: u64,
    bytes: u64,
    has_data: bool,
}

impl<'a> Sealer<'a> {
    /// `None` if the session has come to its limit of messages.
    pub(super) fn new(link: &'a Link, session: Arc<Session>, packets: u32) -> Option<Self> {
        let next = session.reserve(packets.into())?;
        let key = session.sealing_key();
        Some(Self { link, key, next, end: next + u64::from(packets), packets: 0, bytes: 0, has_data: false, session })
    }

    /// Seals the packet of `len` bytes at offset [`HEADER_LEN`] of `slot` and returns the length of the datagram, which begins
    /// at the beginning of `slot`. A packet of no bytes is a keepalive.
    ///
    /// The packet is padded, but never beyond the slot: a slot of the tunnel's MTU and [`DATA_OVERHEAD`] keeps datagrams
    /// within the path's MTU.
    ///
    /// # Panics
    ///
    /// If the slot has fewer than `len` + [`DATA_OVERHEAD`] bytes, or if more packets are sealed than were asked for.
    pub fn seal(&mut self, slot: &mut [u8], len: usize) -> usize {
        assert!(self.next < self.end, "the number of packets was given when the sealer was made");
        let padded = len.next_multiple_of(PADDING).min(slot.len() - DATA_OVERHEAD);
        let datagram = &mut slot[..padded + DATA_OVERHEAD];
        datagram[HEADER_LEN + len..HEADER_LEN + padded].fill(0);
        datagram[..4].copy_from_slice(&Kind::Data.number().to_le_bytes());
        datagram[4..8].copy_from_slice(&self.session.remote_index.to_le_bytes());
        datagram[8..HEADER_LEN].copy_from_slice(&self.next.to_le_bytes());
        crypto::seal(&self.key, self.next, &[], &mut datagram[HEADER_LEN..]);
        self.next += 1;
        self.packets += 1;
        self.bytes += datagram.len() as u64;
        self.has_data |= len > 0;
        datagram.len()
    }

    /// Seals a GSO batch for one send with UDP_SEGMENT, which wants datagrams of equal length: `packets - 1` packets of `len` bytes
    /// and one of `last` bytes, at most `len`. Each lies at [`HEADER_LEN`] of a slot of `stride` bytes, which is
    /// [`datagram_len`](super::datagram_len) or, where padding would exceed the tunnel's MTU, less. Returns the length of the GSO batch.
    ///
    /// # Panics
    ///
    /// As [`Sealer::seal`], for a GSO batch that is too short, and for slots that are longer than their datagrams.
    pub fn seal_gso_batch(
        &mut self,
        batch: &mut [u8],
        stride: usize,
        packets: usize,
        len: usize,
        last: usize,
    ) -> usize {
        assert!(last <= len && packets > 0, "the last packet is the shortest");
        let (full, rest) = batch.split_at_mut((packets - 1) * stride);
        for slot in full.chunks_exact_mut(stride) {
            assert_eq!(self.seal(slot, len), stride, "a GSO batch has no gaps");
        }
        let rest_len = rest.len().min(stride);
        full.len() + self.seal(&mut rest[..rest_len], last)
    }

    /// Counts what was sealed as sent, and returns whether [`Device::attend`](super::Device::attend) is to be called.
    pub fn finish(self, now: Ns) -> bool {
        self.link.sent(now, self.packets, self.bytes, self.has_data);
        self.session.wants_rekey(now) && self.link.ask_for_handshake()
    }
}
