//! A session: two keys, the counter of sent packets and the window of received ones; and the three sessions of a peer.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::aead::LessSafeKey;

use super::crypto;
use super::link::{Link, PeerId};
use super::message::{DATA_OVERHEAD, HEADER_LEN, Kind};
use super::noise::Keys;
use super::replay::Window;
use super::{Ns, REJECT_AFTER_MESSAGES, REJECT_AFTER_TIME, REKEY_AFTER_MESSAGES, REKEY_AFTER_TIME};

/// Packets are padded to a multiple of this.
const PADDING: usize = 16;

/// A value with cache lines of its own: threads that seal and threads that open do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine<T>(T);

/// A session with a peer. Its keys are erased when it is dropped.
pub(super) struct Session {
    pub(super) peer: PeerId,
    /// The index that the peer's packets carry.
    pub(super) local_index: u32,
    remote_index: u32,
    /// This host sent the initiation. Only initiators begin the next session by age.
    pub(super) initiator: bool,
    created: Ns,
    keys: Keys,
    /// The peer has shown that it has the keys. A responder sends only then.
    pub(super) confirmed: AtomicBool,
    /// Packets received near its end have asked for the next session.
    pub(super) renewed: AtomicBool,
    /// The next counter to send.
    counter: OwnLine<AtomicU64>,
    window: OwnLine<Mutex<Window>>,
}

impl Session {
    pub(super) fn new(
        peer: PeerId,
        (local_index, remote_index): (u32, u32),
        initiator: bool,
        created: Ns,
        keys: Keys,
    ) -> Self {
        Self {
            peer,
            local_index,
            remote_index,
            initiator,
            created,
            keys,
            confirmed: AtomicBool::new(initiator),
            renewed: AtomicBool::new(false),
            counter: OwnLine::default(),
            window: OwnLine::default(),
        }
    }

    pub(super) fn age(&self, now: Ns) -> Ns {
        now.saturating_sub(self.created)
    }

    /// It is too old to send or receive.
    pub(super) fn is_expired(&self, now: Ns) -> bool {
        self.age(now) >= REJECT_AFTER_TIME
    }

    /// When it will be too old.
    pub(super) fn expires(&self) -> Ns {
        self.created.saturating_add(REJECT_AFTER_TIME)
    }

    /// Whether the next session should begin, for who sends in this one.
    pub(super) fn wants_rekey(&self, now: Ns) -> bool {
        self.counter.0.load(Relaxed) > REKEY_AFTER_MESSAGES || self.initiator && self.age(now) >= REKEY_AFTER_TIME
    }

    /// Takes `count` counters, which no other thread gets; `None` at the limit of messages.
    fn reserve(&self, count: u64) -> Option<u64> {
        let after = |counter: u64| counter.checked_add(count).filter(|end| *end <= REJECT_AFTER_MESSAGES);
        self.counter.0.fetch_update(Relaxed, Relaxed, after).ok()
    }

    pub(super) fn opener(&self) -> LessSafeKey {
        crypto::aead(&self.keys.receiving)
    }

    /// The replay window. It is locked once for a batch, and usually one thread receives all packets of a session.
    pub(super) fn window(&self) -> MutexGuard<'_, Window> {
        self.window.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn set_counter(&self, counter: u64) {
        self.counter.0.store(counter, Relaxed);
    }
}

/// The length of the datagram that carries a packet, if its padding is not cut.
pub const fn datagram_len(packet_len: usize) -> usize {
    packet_len.next_multiple_of(PADDING) + DATA_OVERHEAD
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
        let key = crypto::aead(&session.keys.sending);
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

    /// Seals a train for one send with UDP_SEGMENT, which wants datagrams of equal length: `packets - 1` packets of `len` bytes
    /// and one of `last` bytes, at most `len`. Each lies at [`HEADER_LEN`] of a slot of `stride` bytes, which is
    /// [`datagram_len`] or, where padding would exceed the tunnel's MTU, less. Returns the length of the train.
    ///
    /// # Panics
    ///
    /// As [`Sealer::seal`], for a train that is too short, and for slots that are longer than their datagrams.
    pub fn seal_train(&mut self, train: &mut [u8], stride: usize, packets: usize, len: usize, last: usize) -> usize {
        assert!(last <= len && packets > 0, "the last packet is the shortest");
        let (full, rest) = train.split_at_mut((packets - 1) * stride);
        for slot in full.chunks_exact_mut(stride) {
            assert_eq!(self.seal(slot, len), stride, "a train has no gaps");
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

/// The sessions of a peer. A new one takes the place of the current one only when both ends have it, and packets that are
/// under way may still come in the previous one.
#[derive(Default)]
pub(super) struct Keypairs {
    pub(super) previous: Option<Arc<Session>>,
    pub(super) current: Option<Arc<Session>>,
    /// This host responded and waits for the first packet in it.
    pub(super) next: Option<Arc<Session>>,
}

impl Keypairs {
    /// Adds a session and returns those that it replaces.
    pub(super) fn add(&mut self, session: Arc<Session>) -> [Option<Arc<Session>>; 2] {
        if !session.initiator {
            // The previous one goes too: it would be unclear which of three the peer sends in.
            return [self.previous.take(), self.next.replace(session)];
        }
        let current = self.current.replace(session);
        match self.next.take() {
            // The peer has it already, perhaps as the current one.
            Some(next) => [self.previous.replace(next), current],
            None => [std::mem::replace(&mut self.previous, current), None],
        }
    }

    /// The peer has sent in the next session: it becomes the current one. Returns whether it was the next one, and the
    /// session that is replaced.
    pub(super) fn confirm(&mut self, session: &Arc<Session>) -> (bool, Option<Arc<Session>>) {
        match self.next.take_if(|next| Arc::ptr_eq(next, session)) {
            Some(next) => {
                let current = self.current.replace(next);
                (true, std::mem::replace(&mut self.previous, current))
            }
            None => (false, None),
        }
    }

    /// Takes out the sessions for which `remove` holds.
    pub(super) fn take_if(&mut self, remove: impl Fn(&Session) -> bool) -> [Option<Arc<Session>>; 3] {
        [&mut self.previous, &mut self.current, &mut self.next].map(|slot| slot.take_if(|session| remove(session)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Session>> {
        [&self.previous, &self.current, &self.next].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    fn session(index: u32, initiator: bool) -> Arc<Session> {
        let keys = Keys { sending: Zeroizing::new([1; 32]), receiving: Zeroizing::new([2; 32]) };
        Arc::new(Session::new(PeerId(1), (index, 0), initiator, 0, keys))
    }

    fn indices<'a>(sessions: impl IntoIterator<Item = &'a Arc<Session>>) -> Vec<u32> {
        sessions.into_iter().map(|session| session.local_index).collect()
    }

    #[test]
    fn an_initiators_session_is_current_at_once() {
        let mut keypairs = Keypairs::default();
        assert_eq!(keypairs.add(session(1, true)).iter().flatten().count(), 0);
        assert_eq!(keypairs.add(session(2, true)).iter().flatten().count(), 0);
        assert_eq!(indices(&keypairs.previous), [1]);
        assert_eq!(indices(keypairs.add(session(3, true)).iter().flatten()), [1]);
        assert_eq!(indices(&keypairs.current), [3]);
    }

    #[test]
    fn a_responders_session_waits_for_a_packet() {
        let mut keypairs = Keypairs::default();
        keypairs.add(session(1, true));
        keypairs.add(session(2, true));
        let next = session(3, false);
        assert_eq!(indices(keypairs.add(Arc::clone(&next)).iter().flatten()), [1], "the previous one goes");
        assert_eq!(indices(&keypairs.current), [2]);
        assert!(!keypairs.confirm(&session(3, false)).0, "another session with the same index");
        assert!(keypairs.confirm(&next).0);
        assert!(!keypairs.confirm(&next).0, "it is confirmed once");
        assert_eq!((indices(&keypairs.current), indices(&keypairs.previous)), (vec![3], vec![2]));
    }

    #[test]
    fn an_initiators_session_keeps_one_that_waits() {
        let mut keypairs = Keypairs::default();
        keypairs.add(session(1, true));
        keypairs.add(session(2, false));
        assert_eq!(indices(keypairs.add(session(3, true)).iter().flatten()), [1]);
        assert_eq!((indices(&keypairs.current), indices(&keypairs.previous)), (vec![3], vec![2]));
        assert!(keypairs.next.is_none());
    }

    #[test]
    fn counters_end_at_the_limit_and_are_given_out_once() {
        let session = session(1, true);
        session.set_counter(REJECT_AFTER_MESSAGES - 10);
        assert_eq!(session.reserve(11), None);
        assert_eq!(session.reserve(10), Some(REJECT_AFTER_MESSAGES - 10));
        assert_eq!(session.reserve(1), None);
        session.set_counter(0);
        let mut taken: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..500).map(|_| session.reserve(3).unwrap()).collect::<Vec<_>>()))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        taken.sort_unstable();
        assert_eq!(taken, (0..2000).map(|n| n * 3).collect::<Vec<_>>());
    }

    #[test]
    fn who_asks_for_the_next_session() {
        let (initiator, responder) = (session(1, true), session(2, false));
        assert!(!initiator.wants_rekey(REKEY_AFTER_TIME - 1));
        assert!(initiator.wants_rekey(REKEY_AFTER_TIME));
        assert!(!responder.wants_rekey(REJECT_AFTER_TIME - 1));
        responder.set_counter(REKEY_AFTER_MESSAGES + 1);
        assert!(responder.wants_rekey(0));
        assert!(!responder.is_expired(REJECT_AFTER_TIME - 1) && responder.is_expired(REJECT_AFTER_TIME));
    }
}
