//! A peer as the device sees it: its handshakes and timers.
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use zeroize::Zeroizing;

use super::cookie::Signer;
use super::crypto::{Forged, Secret};
use super::data_path::DataPath;
use super::drops::DropCause;
use super::host_port::HostPort;
use super::link::{Endpoint, Link};
use super::message::{HANDSHAKE_LEN_MAX, INITIATION_LEN, RESPONSE_LEN, field, u32_at};
use super::name::Name;
use super::noise::{self, Identity, Initiated, Keys, Remote, Verified};
use super::output::{Event, Lookup, Output};
use super::peer_id::PeerId;
use super::session::Session;
use super::timestamp::Timestamp;
use super::{JITTER_MAX, KEEPALIVE_TIMEOUT, Ns, REKEY_ATTEMPT_TIME, REKEY_TIMEOUT, Random, SECOND, Time};

/// The least time between two initiations of one peer that are answered (the kernel's INITIATIONS_PER_SECOND is 50).
const INITIATION_INTERVAL: Ns = SECOND / 50;

/// How long after a packet at the latest a timer that depends on it is looked at.
const TIMER_STEP: Ns = SECOND;

/// State that all peers of a device share.
pub(super) struct Common {
    pub(super) identity: Option<Identity>,
    pub(super) path: Arc<DataPath>,
    /// The peers by the indices of the initiations that they have not answered.
    pub(super) pending: HashMap<u32, PeerId>,
    pub(super) random: Box<dyn Random>,
    /// The greatest timestamp that was sent.
    last_timestamp: Timestamp,
}

impl Common {
    pub(super) fn new(random: Box<dyn Random>) -> Self {
        let path = Arc::new(DataPath::new());
        Self { identity: None, path, pending: HashMap::new(), random, last_timestamp: Timestamp::default() }
    }

    fn secret(&mut self) -> Secret {
        let mut bytes = Zeroizing::default();
        self.random.fill(&mut *bytes as &mut [u8; 32]);
        bytes
    }

    fn random_u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.random.fill(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn jitter(&mut self) -> Ns {
        Ns::from(self.random_u32()) % JITTER_MAX
    }

    /// An index that no session and no handshake has.
    fn index(&mut self) -> u32 {
        loop {
            let index = self.random_u32();
            if !self.pending.contains_key(&index) && !self.path.sessions.contains(index) {
                return index;
            }
        }
    }

    fn timestamp(&mut self, unix: Duration) -> Timestamp {
        self.last_timestamp = Timestamp::of(unix).after(self.last_timestamp);
        self.last_timestamp
    }
}

/// A handshake that this host tries.
struct Attempt {
    began: Ns,
    /// When the next initiation is sent.
    retry: Ns,
}

pub(super) struct Peer {
    pub(super) link: Arc<Link>,
    pub(super) remote: Remote,
    pub(super) signer: Signer,
    /// The prefixes that the routes lead to it, in the order of their addresses.
    pub(super) allowed_ips: BTreeSet<IpNet>,
    /// The host name from which the address of its endpoint is resolved.
    name: Option<Name>,
    /// In seconds; 0 for none.
    pub(super) persistent_keepalive_s: u16,
    /// When the last handshake ended, since 1970.
    pub(super) last_handshake: Option<Duration>,
    pub(super) handshakes: u64,
    attempt: Option<Attempt>,
    /// The initiation that a response is expected to.
    initiated: Option<Initiated>,
    initiation_sent: Option<Ns>,
    /// The greatest timestamp that was received.
    greatest_timestamp: Timestamp,
    initiation_received: Option<Ns>,
    jitter: Ns,
}

impl Peer {
    pub(super) fn new(link: Link, remote: Remote) -> Self {
        Self {
            signer: Signer::new(&remote.public),
            link: Arc::new(link),
            remote,
            allowed_ips: BTreeSet::new(),
            name: None,
            persistent_keepalive_s: 0,
            last_handshake: None,
            handshakes: 0,
            attempt: None,
            initiated: None,
            initiation_sent: None,
            greatest_timestamp: Timestamp::default(),
            initiation_received: None,
            jitter: 0,
        }
    }

    /// Sets the endpoint, its name, or both. Another address without a name takes the place of the name.
    pub(super) fn set_endpoint(&mut self, address: Option<SocketAddr>, name: Option<&HostPort>) {
        let current = self.link.endpoint().map(|endpoint| endpoint.remote);
        if let Some(address) = address {
            self.link.set_endpoint(Some(Endpoint::from(address)));
            self.name.take_if(|_| current != Some(address));
        }
        if let Some(host) = name.filter(|host| self.name.as_ref().is_none_or(|known| known.host() != *host)) {
            self.name = Some(Name::new(host.clone()));
        }
    }

    /// Asks for the name of the endpoint, if there is one and it is time.
    fn look_up(&mut self, now: Ns, out: &mut Output) {
        if let Some(name) = self.name.as_mut().filter(|name| name.due().is_some_and(|due| due <= now))
            && name.ask(now)
        {
            out.lookups.push(Lookup { peer: self.link.id(), name: name.host().clone() });
        }
    }

    /// When the name is asked for next because no address is known.
    fn lookup_due(&self) -> Option<Ns> {
        self.name.as_ref().filter(|_| self.link.endpoint().is_none())?.due()
    }

    /// The name was looked up.
    pub(super) fn resolved(&mut self, now: Ns, host: &HostPort, addresses: &[SocketAddr], out: &mut Output) {
        let current = self.link.endpoint().map(|endpoint| endpoint.remote);
        let Some(name) = self.name.as_mut().filter(|name| name.host() == host) else { return };
        let address = name.answered(current, addresses);
        let Some(address) = address.filter(|_| current.is_none() || self.initiated.is_some()) else { return };
        self.link.set_endpoint(Some(Endpoint::from(address)));
        // The other address has had no initiation yet.
        self.attempt.iter_mut().for_each(|attempt| attempt.retry = now);
        // The first keepalive is due at once.
        self.link.set_persistent_keepalive(Ns::from(self.persistent_keepalive_s) * SECOND);
        out.events.push(Event::Flush(self.link.id()));
    }

    /// Packets have left a notice.
    pub(super) fn attend(&mut self, time: Time, common: &mut Common, out: &mut Output) {
        if self.link.take_confirmed() {
            self.complete(time, common, out);
        }
        if self.link.handshake_is_asked_for() {
            self.begin_handshake(time, common, out);
        }
    }

    /// Begins to try a handshake, if none is tried.
    fn begin_handshake(&mut self, time: Time, common: &mut Common, out: &mut Output) {
        if self.attempt.is_some() {
            return;
        }
        // Initiations keep a distance also where the last handshake succeeded.
        let earliest = self.initiation_sent.map_or(0, |sent| sent.saturating_add(REKEY_TIMEOUT));
        self.attempt = Some(Attempt { began: time.now.max(earliest), retry: earliest });
        if earliest <= time.now {
            self.initiate(time, common, out);
        }
    }

    fn initiate(&mut self, time: Time, common: &mut Common, out: &mut Output) {
        let ready = common.identity.is_some().then(|| self.link.endpoint()).flatten();
        let Some(endpoint) = ready else { return self.abandon(common) };
        let (ephemeral, index) = (common.secret(), common.index());
        let timestamp = common.timestamp(time.unix);
        let identity = common.identity.as_ref().expect("this was checked");
        let Ok((initiated, mut message)) = noise::initiate(identity, &self.remote, &ephemeral, timestamp, index) else {
            return self.abandon(common);
        };
        self.signer.sign(time.now, &mut message);
        self.forget_initiation(common);
        common.pending.insert(index, self.link.id());
        self.initiated = Some(initiated);
        self.initiation_sent = Some(time.now);
        let (retry, jitter) = (time.now.saturating_add(REKEY_TIMEOUT), common.jitter());
        let attempt = self.attempt.get_or_insert(Attempt { began: time.now, retry });
        attempt.retry = retry.saturating_add(jitter);
        self.link.sent(time.now, 0, message.len() as u64, false);
        out.send(endpoint, &message);
    }

    fn forget_initiation(&mut self, common: &mut Common) {
        if let Some(initiated) = self.initiated.take() {
            common.pending.remove(&initiated.local_index);
        }
    }

    /// Ends the attempt, so that packets may ask for another one.
    fn abandon(&mut self, common: &mut Common) {
        self.forget_initiation(common);
        self.attempt = None;
        self.link.end_handshake();
    }

    /// Forgets sessions and handshakes: the peer is removed, or this host's key has changed.
    pub(super) fn reset(&mut self, common: &mut Common) {
        self.abandon(common);
        self.link.clear(&common.path.sessions);
        self.initiation_sent = None;
    }

    /// Both ends have a new session.
    fn complete(&mut self, time: Time, common: &mut Common, out: &mut Output) {
        self.abandon(common);
        self.name.iter_mut().for_each(Name::reached);
        self.last_handshake = Some(time.unix);
        self.handshakes += 1;
        out.events.push(Event::Flush(self.link.id()));
    }

    /// Answers an initiation that is the peer's.
    pub(super) fn respond(
        &mut self,
        time: Time,
        verified: Verified,
        from: &Endpoint,
        common: &mut Common,
        out: &mut Output,
    ) -> Result<(), DropCause> {
        if verified.timestamp <= self.greatest_timestamp {
            return Err(DropCause::Replayed);
        }
        if self.initiation_received.is_some_and(|last| time.now < last.saturating_add(INITIATION_INTERVAL)) {
            return Err(DropCause::RateLimited);
        }
        self.greatest_timestamp = verified.timestamp;
        self.initiation_received = Some(time.now);
        let (ephemeral, index) = (common.secret(), common.index());
        let (keys, remote_index, mut message) =
            verified.respond(&self.remote, &ephemeral, index).map_err(|Forged| DropCause::Forged)?;
        self.link.roam(from);
        self.link.received(time.now, 0, INITIATION_LEN as u64, false);
        self.signer.sign(time.now, &mut message);
        self.install(time.now, (index, remote_index), false, keys, common);
        self.link.sent(time.now, 0, message.len() as u64, false);
        out.send(*from, &message);
        Ok(())
    }

    /// Reads the response to the last initiation, and confirms the session with a keepalive.
    pub(super) fn finish(
        &mut self,
        time: Time,
        response: &[u8; RESPONSE_LEN],
        from: &Endpoint,
        common: &mut Common,
        out: &mut Output,
    ) -> Result<(), DropCause> {
        let identity = common.identity.as_ref().ok_or(DropCause::UnknownSession)?;
        let initiated = self.initiated.as_ref().ok_or(DropCause::UnknownSession)?;
        let (keys, remote_index) =
            initiated.finish(identity, &self.remote, response).map_err(|Forged| DropCause::Forged)?;
        let index = initiated.local_index;
        self.link.roam(from);
        self.link.received(time.now, 0, RESPONSE_LEN as u64, false);
        self.install(time.now, (index, remote_index), true, keys, common);
        self.send_keepalive(time.now, out);
        self.complete(time, common, out);
        Ok(())
    }

    fn install(&self, now: Ns, indices: (u32, u32), initiator: bool, keys: Keys, common: &Common) {
        let session = Session::new(self.link.id(), indices, initiator, now, keys);
        self.link.install(Arc::new(session), &common.path.sessions);
    }

    /// Sends a keepalive. Without a session this asks for a handshake.
    fn send_keepalive(&self, now: Ns, out: &mut Output) {
        let Some((mut sealer, endpoint)) = self.link.sealer(now, 1).ok().zip(self.link.endpoint()) else { return };
        let mut datagram = [0; HANDSHAKE_LEN_MAX];
        let len = sealer.seal(&mut datagram[..super::DATA_OVERHEAD], 0);
        sealer.finish(now);
        out.send(endpoint, &datagram[..len]);
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, time: Time, common: &mut Common, out: &mut Output) {
        let now = time.now;
        self.link.expire(now, &common.path.sessions);
        if self.attempt.as_ref().is_some_and(|attempt| attempt.retry <= now) {
            self.retry(time, common, out);
        }
        if self.lookup_due().is_some_and(|due| due <= now) {
            self.look_up(now, out);
        }
        if self.unanswered_due().is_some_and(|due| due <= now) {
            self.link.clear_unanswered();
            self.link.forget_local_address();
            self.jitter = common.jitter();
            self.link.ask_for_handshake();
            self.look_up(now, out);
        }
        if self.link.keepalive_due().is_some_and(|due| due <= now) {
            self.send_keepalive(now, out);
            self.link.take_keepalive(now);
        }
        if self.link.persistent_keepalive_due().is_some_and(|due| due <= now) {
            self.send_keepalive(now, out);
            self.link.take_persistent_keepalive(now);
        }
    }

    /// When something is due at the latest.
    pub(super) fn deadline(&self, now: Ns) -> Option<Ns> {
        // Packets may set timers at any time while there is a session.
        let expiry = self.link.next_expiry();
        let step = expiry.map(|_| now.saturating_add(TIMER_STEP));
        let retry = self.attempt.as_ref().map(|attempt| attempt.retry);
        [step, expiry, retry, self.link.persistent_keepalive_due(), self.lookup_due()].into_iter().flatten().min()
    }

    fn retry(&mut self, time: Time, common: &mut Common, out: &mut Output) {
        if self.initiated.is_some() {
            self.look_up(time.now, out);
        }
        let began = self.attempt.as_ref().map_or(0, |attempt| attempt.began);
        if time.now.saturating_sub(began) >= REKEY_ATTEMPT_TIME {
            self.abandon(common);
            out.events.push(Event::Discard(self.link.id()));
        } else {
            // The address of this host that was used so far may be the reason.
            if self.initiated.is_some() {
                self.link.forget_local_address();
            }
            self.initiate(time, common, out);
        }
    }

    /// When a handshake is due because nothing has come back.
    fn unanswered_due(&self) -> Option<Ns> {
        let wait = KEEPALIVE_TIMEOUT + REKEY_TIMEOUT + self.jitter;
        self.link.unanswered_since().map(|since| since.saturating_add(wait))
    }

    /// Takes a cookie.
    pub(super) fn take_cookie(&mut self, now: Ns, reply: &[u8]) -> Result<(), DropCause> {
        self.signer.take_reply(now, reply).map_err(|Forged| DropCause::Forged)
    }
}

/// The index of the receiver in a response or a cookie reply.
pub(super) fn receiver_of(message: &[u8], at: usize) -> u32 {
    u32_at(message, at).expect("the length was checked")
}

/// A message of a known length.
pub(super) fn sized<const N: usize>(message: &[u8]) -> &[u8; N] {
    field(message, 0)
}
