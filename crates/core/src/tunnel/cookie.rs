//! The two MACs of handshake messages and the cookie that the second one is made with.
//!
//! The first MAC shows that the sender knows the receiver's public key. A receiver under load answers without any state: a
//! cookie reply, and only a message whose second MAC was made with that cookie, from the same address and port, is worked on.
use std::net::{IpAddr, SocketAddr};

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::crypto::{self, Forged, Hash, Secret};
use super::keys::PublicKey;
use super::message::{COOKIE_REPLY_LEN, Kind, MACS_LEN, field, put_u32};
use super::{Ns, Random, SECOND};

const MAC_LEN: usize = MACS_LEN / 2;
const COOKIE_LEN: usize = 16;

/// How long a secret makes cookies.
const SECRET_LIFE: Ns = 120 * SECOND;
/// How long before the end of the secret's life a cookie is no longer used, since the message is under way for some time.
const COOKIE_LATENCY: Ns = 5 * SECOND;

const NONCE_AT: usize = 8;
const COOKIE_AT: usize = 32;

fn mac1_key(public: &PublicKey) -> Hash {
    crypto::hash(&[b"mac1----", &public.0])
}

fn cookie_key(public: &PublicKey) -> Hash {
    crypto::hash(&[b"cookie--", &public.0])
}

/// The parts of a handshake message: what MAC1 covers, what MAC2 covers, MAC1 and MAC2.
fn parts(message: &[u8]) -> (&[u8], &[u8], &[u8], &[u8]) {
    let (mac1_at, mac2_at) = (message.len() - MACS_LEN, message.len() - MAC_LEN);
    (&message[..mac1_at], &message[..mac2_at], &message[mac1_at..mac2_at], &message[mac2_at..])
}

/// Checks the MACs of messages to this host, and makes its cookies.
pub(super) struct Checker {
    mac1_key: Hash,
    cookie_key: Hash,
    secret: Secret,
    secret_made: Option<Ns>,
}

impl Checker {
    pub(super) fn new(public: &PublicKey) -> Self {
        let secret = Zeroizing::default();
        Self { mac1_key: mac1_key(public), cookie_key: cookie_key(public), secret, secret_made: None }
    }

    /// Whether the sender knows this host's public key.
    pub(super) fn mac1_holds(&self, message: &[u8]) -> bool {
        let (covered, _, mac1, _) = parts(message);
        crypto::mac(&self.mac1_key, &[covered]).ct_eq(mac1).into()
    }

    /// Whether the sender has received a cookie at this address and port.
    pub(super) fn mac2_holds(&self, now: Ns, message: &[u8], from: SocketAddr) -> bool {
        let current = self.secret_made.is_some_and(|made| now < made.saturating_add(SECRET_LIFE));
        let (_, covered, _, mac2) = parts(message);
        // It is all zeros without a cookie: a flood is spared two thirds of the work on each message.
        current && mac2 != [0; MAC_LEN] && bool::from(crypto::mac(&*self.cookie(from), &[covered]).ct_eq(mac2))
    }

    /// The answer to `message` while under load.
    pub(super) fn reply(
        &mut self,
        now: Ns,
        message: &[u8],
        sender_index: u32,
        from: SocketAddr,
        random: &mut dyn Random,
    ) -> [u8; COOKIE_REPLY_LEN] {
        if self.secret_made.is_none_or(|made| now >= made.saturating_add(SECRET_LIFE)) {
            random.fill(&mut *self.secret);
            self.secret_made = Some(now);
        }
        let mut reply = [0; COOKIE_REPLY_LEN];
        put_u32(&mut reply, 0, Kind::CookieReply.number());
        put_u32(&mut reply, 4, sender_index);
        random.fill(&mut reply[NONCE_AT..COOKIE_AT]);
        let nonce = *field::<24>(&reply, NONCE_AT);
        reply[COOKIE_AT..COOKIE_AT + COOKIE_LEN].copy_from_slice(&*self.cookie(from));
        let (_, _, mac1, _) = parts(message);
        crypto::seal_cookie(&self.cookie_key, &nonce, mac1, &mut reply[COOKIE_AT..]);
        reply
    }

    fn cookie(&self, from: SocketAddr) -> Zeroizing<[u8; COOKIE_LEN]> {
        let port = from.port().to_be_bytes();
        Zeroizing::new(match from.ip() {
            IpAddr::V4(ip) => crypto::mac(&*self.secret, &[&ip.octets(), &port]),
            IpAddr::V6(ip) => crypto::mac(&*self.secret, &[&ip.octets(), &port]),
        })
    }
}

/// Writes the MACs of messages to one peer, and keeps the cookie that the peer sent.
pub(super) struct Signer {
    mac1_key: Hash,
    cookie_key: Hash,
    cookie: Option<(Zeroizing<[u8; COOKIE_LEN]>, Ns)>,
    last_mac1: Option<[u8; MAC_LEN]>,
}

impl Signer {
    pub(super) fn new(public: &PublicKey) -> Self {
        Self { mac1_key: mac1_key(public), cookie_key: cookie_key(public), cookie: None, last_mac1: None }
    }

    /// Fills the last 32 bytes of a handshake message.
    pub(super) fn sign(&mut self, now: Ns, message: &mut [u8]) {
        let (mac1_at, mac2_at) = (message.len() - MACS_LEN, message.len() - MAC_LEN);
        let mac1 = crypto::mac(&self.mac1_key, &[&message[..mac1_at]]);
        message[mac1_at..mac2_at].copy_from_slice(&mac1);
        self.last_mac1 = Some(mac1);
        self.cookie.take_if(|(_, received)| now >= received.saturating_add(SECRET_LIFE - COOKIE_LATENCY));
        let mac2 = self.cookie.as_ref().map(|(cookie, _)| crypto::mac(&**cookie, &[&message[..mac2_at]]));
        message[mac2_at..].copy_from_slice(&mac2.unwrap_or_default());
    }

    /// Takes the cookie for the next message. The reply must belong to the last message that was signed, and only one is taken
    /// for each.
    pub(super) fn take_reply(&mut self, now: Ns, reply: &[u8]) -> Result<(), Forged> {
        let mac1 = self.last_mac1.ok_or(Forged)?;
        let mut sealed = *field::<32>(reply, COOKIE_AT);
        let cookie = crypto::open_cookie(&self.cookie_key, field(reply, NONCE_AT), &mac1, &mut sealed)?;
        self.cookie = Some((Zeroizing::new(cookie), now));
        self.last_mac1 = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: PublicKey = PublicKey([7; 32]);

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn pair() -> (Checker, Signer, [u8; 148]) {
        let (checker, mut signer, mut message) = (Checker::new(&PUBLIC), Signer::new(&PUBLIC), [3; 148]);
        signer.sign(0, &mut message);
        (checker, signer, message)
    }

    fn random() -> impl Random {
        let mut n = 0u8;
        move |bytes: &mut [u8]| {
            n += 1;
            bytes.fill(n);
        }
    }

    #[test]
    fn the_first_mac_covers_the_message_and_the_key() {
        let (checker, _, message) = pair();
        assert!(checker.mac1_holds(&message));
        assert!(!Checker::new(&PublicKey([8; 32])).mac1_holds(&message));
        for at in 0..132 {
            let mut changed = message;
            changed[at] ^= 1;
            assert!(!checker.mac1_holds(&changed), "byte {at}");
        }
        assert!(!checker.mac2_holds(0, &message, address("10.0.0.1:1")), "no cookie was given out");
    }

    #[test]
    fn a_cookie_holds_for_its_address_and_port_and_for_two_minutes() {
        let (mut checker, mut signer, mut message) = pair();
        let from = address("10.0.0.1:5000");
        let reply = checker.reply(SECOND, &message, 9, from, &mut random());
        assert_eq!(Kind::of(&reply), Some(Kind::CookieReply));
        assert_eq!(signer.take_reply(SECOND, &reply), Ok(()));
        assert_eq!(signer.take_reply(SECOND, &reply), Err(Forged), "one reply for each message");
        signer.sign(2 * SECOND, &mut message);
        assert!(checker.mac1_holds(&message) && checker.mac2_holds(2 * SECOND, &message, from));
        for other in ["10.0.0.1:5001", "10.0.0.2:5000", "[::ffff:10.0.0.1]:5000"] {
            assert!(!checker.mac2_holds(2 * SECOND, &message, address(other)), "{other}");
        }
        assert!(checker.mac2_holds(120 * SECOND, &message, from));
        assert!(!checker.mac2_holds(121 * SECOND, &message, from), "the secret is too old");
        signer.sign(115 * SECOND, &mut message);
        assert!(checker.mac2_holds(116 * SECOND, &message, from));
        signer.sign(116 * SECOND, &mut message);
        assert_eq!(message[132..], [0; 16], "the cookie may end before the message arrives");
    }

    #[test]
    fn a_reply_to_another_message_or_from_another_peer_is_refused() {
        let (mut checker, mut signer, message) = pair();
        let from = address("[2001:db8::1]:5000");
        let mut other = message;
        other[120] ^= 1;
        let reply = checker.reply(0, &other, 9, from, &mut random());
        assert_eq!(signer.take_reply(0, &reply), Err(Forged));
        let reply = Checker::new(&PublicKey([8; 32])).reply(0, &message, 9, from, &mut random());
        assert_eq!(signer.take_reply(0, &reply), Err(Forged));
        let mut reply = checker.reply(0, &message, 9, from, &mut random());
        assert_eq!(signer.take_reply(0, &reply), Ok(()));
        reply[40] ^= 1;
        assert_eq!(pair().1.take_reply(0, &reply), Err(Forged));
        assert_eq!(Signer::new(&PUBLIC).take_reply(0, &reply), Err(Forged), "nothing was sent");
    }
}
