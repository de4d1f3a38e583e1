//! A session: two keys, the counter of sent packets and the window of received ones; and the three sessions of a peer.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::aead::LessSafeKey;

use super::crypto;
use super::message::DATA_OVERHEAD;
use super::noise::Keys;
use super::peer_id::PeerId;
use super::replay::Window;
use super::{Ns, REJECT_AFTER_MESSAGES, REJECT_AFTER_TIME, REKEY_AFTER_MESSAGES, REKEY_AFTER_TIME};

/// Packets are padded to a multiple of this.
pub(super) const PADDING: usize = 16;

/// A value with cache lines of its own: threads that seal and threads that open do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine<T>(T);

/// A session with a peer. Its keys are erased when it is dropped.
pub(super) struct Session {
    pub(super) peer: PeerId,
    /// The index that the peer's packets carry.
    pub(super) local_index: u32,
    pub(super) remote_index: u32,
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
    pub(super) fn reserve(&self, count: u64) -> Option<u64> {
        let after = |counter: u64| counter.checked_add(count).filter(|end| *end <= REJECT_AFTER_MESSAGES);
        self.counter.0.fetch_update(Relaxed, Relaxed, after).ok()
    }

    pub(super) fn sealing_key(&self) -> LessSafeKey {
        crypto::aead(&self.keys.sending)
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
