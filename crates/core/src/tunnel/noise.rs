//! The handshake: Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s, as functions from keys and messages to keys and messages.
//!
//! MACs, timestamps and the choice of a peer are the caller's.
use std::cell::OnceCell;

use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

use super::crypto::{self, Forged, Hash, Secret, dh, kdf};
use super::keys::{KEY_LEN, PresharedKey, PrivateKey, PublicKey};
use super::message::{INITIATION_LEN, Kind, RESPONSE_LEN, TAG_LEN, field, put_u32, u32_at};
use super::timestamp::{TIMESTAMP_LEN, Timestamp};

const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";

const INITIATION_EPHEMERAL: usize = 8;
const INITIATION_STATIC: usize = 40;
const INITIATION_TIMESTAMP: usize = 88;
const INITIATION_MACS: usize = 116;
const RESPONSE_EPHEMERAL: usize = 12;
const RESPONSE_EMPTY: usize = 44;
const RESPONSE_MACS: usize = 60;

/// This host's key pair.
pub(super) struct Identity {
    secret: StaticSecret,
    pub(super) public: PublicKey,
}

impl Identity {
    pub(super) fn new(private: &PrivateKey) -> Self {
        Self { secret: private.secret(), public: private.public() }
    }
}

/// The keys of a peer that are known before a handshake.
pub(super) struct Remote {
    pub(super) public: PublicKey,
    pub(super) preshared: PresharedKey,
    /// The shared secret of both static keys. It is computed for the first handshake, because it costs 50 µs: thousands of peers
    /// are configured at once, while packets wait.
    static_static: OnceCell<Result<Secret, Forged>>,
}

impl Remote {
    pub(super) fn new(public: PublicKey, preshared: PresharedKey) -> Self {
        Self { public, preshared, static_static: OnceCell::new() }
    }

    /// This host's key has changed.
    pub(super) fn forget_identity(&mut self) {
        self.static_static.take();
    }

    /// Fails for a public key with which there is no secret; then no handshake comes about.
    fn static_static(&self, identity: &Identity) -> Result<&Secret, Forged> {
        self.static_static.get_or_init(|| dh(&identity.secret, &self.public)).as_ref().map_err(|Forged| Forged)
    }
}

/// The keys of a session.
pub(super) struct Keys {
    pub(super) sending: Secret,
    pub(super) receiving: Secret,
}

/// The chaining key and the hash, which every step mixes into.
struct Symmetric {
    chaining_key: Secret,
    hash: Hash,
}

impl Symmetric {
    fn new(responder: &PublicKey) -> Self {
        let chaining_key = Zeroizing::new(crypto::hash(&[CONSTRUCTION]));
        let hash = crypto::hash(&[&crypto::hash(&[&*chaining_key, IDENTIFIER]), &responder.0]);
        Self { chaining_key, hash }
    }

    fn mix_hash(&mut self, bytes: &[u8]) {
        self.hash = crypto::hash(&[&self.hash, bytes]);
    }

    /// An ephemeral public key goes into both.
    fn mix_ephemeral(&mut self, public: &[u8; KEY_LEN]) {
        self.mix_hash(public);
        self.mix_key(public);
    }

    fn mix_key(&mut self, input: &[u8; KEY_LEN]) {
        [self.chaining_key] = kdf(&self.chaining_key, input);
    }

    /// As `mix_key`, with a key to encrypt with.
    fn mix_cipher_key(&mut self, input: &[u8; KEY_LEN]) -> Secret {
        let [chaining_key, key] = kdf(&self.chaining_key, input);
        self.chaining_key = chaining_key;
        key
    }

    fn mix_preshared(&mut self, preshared: &PresharedKey) -> Secret {
        let [chaining_key, temporary, key] = kdf(&self.chaining_key, preshared.bytes());
        self.chaining_key = chaining_key;
        self.mix_hash(&*temporary);
        key
    }

    /// Encrypts all of `bytes` but the last 16, which become the tag.
    fn seal(&mut self, key: &Secret, bytes: &mut [u8]) {
        crypto::seal(&crypto::aead(key), 0, &self.hash, bytes);
        self.mix_hash(bytes);
    }

    /// Decrypts `sealed` into as many bytes of `N` as are no tag.
    fn open<const N: usize>(&mut self, key: &Secret, sealed: &[u8; N]) -> Result<Zeroizing<[u8; N]>, Forged> {
        let mut bytes = Zeroizing::new(*sealed);
        crypto::open(&crypto::aead(key), 0, &self.hash, &mut *bytes)?;
        self.mix_hash(sealed);
        Ok(bytes)
    }

    /// The last step: the keys of the initiator's and of the responder's packets.
    fn split(&self) -> [Secret; 2] {
        kdf(&self.chaining_key, &[])
    }
}

/// The state of an initiator until the response comes.
pub(super) struct Initiated {
    symmetric: Symmetric,
    ephemeral: StaticSecret,
    pub(super) local_index: u32,
}

/// Makes an initiation; its MACs are zero. `ephemeral` are random bytes.
pub(super) fn initiate(
    identity: &Identity,
    remote: &Remote,
    ephemeral: &Secret,
    timestamp: Timestamp,
    local_index: u32,
) -> Result<(Initiated, [u8; INITIATION_LEN]), Forged> {
    let ephemeral = StaticSecret::from(**ephemeral);
    let ephemeral_public = x25519_dalek::PublicKey::from(&ephemeral).to_bytes();
    let mut message = [0; INITIATION_LEN];
    put_u32(&mut message, 0, Kind::Initiation.number());
    put_u32(&mut message, 4, local_index);
    message[INITIATION_EPHEMERAL..INITIATION_STATIC].copy_from_slice(&ephemeral_public);

    let mut symmetric = Symmetric::new(&remote.public);
    symmetric.mix_ephemeral(&ephemeral_public);
    let key = symmetric.mix_cipher_key(&*dh(&ephemeral, &remote.public)?);
    message[INITIATION_STATIC..INITIATION_STATIC + KEY_LEN].copy_from_slice(&identity.public.0);
    symmetric.seal(&key, &mut message[INITIATION_STATIC..INITIATION_TIMESTAMP]);
    let key = symmetric.mix_cipher_key(remote.static_static(identity)?);
    message[INITIATION_TIMESTAMP..INITIATION_TIMESTAMP + TIMESTAMP_LEN].copy_from_slice(&timestamp.0);
    symmetric.seal(&key, &mut message[INITIATION_TIMESTAMP..INITIATION_MACS]);
    Ok((Initiated { symmetric, ephemeral, local_index }, message))
}

/// An initiation of which only the sender is known so far. Until [`Claimed::verify`] it may be anybody's.
pub(super) struct Claimed {
    symmetric: Symmetric,
    ephemeral: PublicKey,
    sender_index: u32,
    sealed_timestamp: [u8; TIMESTAMP_LEN + TAG_LEN],
    /// The static key that the sender claims.
    pub(super) public: PublicKey,
}

/// Reads who an initiation claims to come from.
pub(super) fn read_initiation(identity: &Identity, message: &[u8; INITIATION_LEN]) -> Result<Claimed, Forged> {
    let ephemeral = PublicKey(*field(message, INITIATION_EPHEMERAL));
    let mut symmetric = Symmetric::new(&identity.public);
    symmetric.mix_ephemeral(&ephemeral.0);
    let key = symmetric.mix_cipher_key(&*dh(&identity.secret, &ephemeral)?);
    let public = symmetric.open(&key, field::<{ KEY_LEN + TAG_LEN }>(message, INITIATION_STATIC))?;
    Ok(Claimed {
        symmetric,
        ephemeral,
        sender_index: u32_at(message, 4).ok_or(Forged)?,
        sealed_timestamp: *field(message, INITIATION_TIMESTAMP),
        public: PublicKey(*field(&*public, 0)),
    })
}

/// An initiation that is the peer's, and its time.
pub(super) struct Verified {
    symmetric: Symmetric,
    ephemeral: PublicKey,
    sender_index: u32,
    pub(super) timestamp: Timestamp,
}

impl Claimed {
    /// Checks that the sender has the static key that it claims.
    pub(super) fn verify(self, identity: &Identity, remote: &Remote) -> Result<Verified, Forged> {
        let Self { mut symmetric, ephemeral, sender_index, sealed_timestamp, .. } = self;
        let key = symmetric.mix_cipher_key(remote.static_static(identity)?);
        let timestamp = Timestamp(*field(&*symmetric.open(&key, &sealed_timestamp)?, 0));
        Ok(Verified { symmetric, ephemeral, sender_index, timestamp })
    }
}

impl Verified {
    /// Makes the response, whose MACs are zero, the keys and the peer's index. `ephemeral` are random bytes.
    pub(super) fn respond(
        self,
        remote: &Remote,
        ephemeral: &Secret,
        local_index: u32,
    ) -> Result<(Keys, u32, [u8; RESPONSE_LEN]), Forged> {
        let mut symmetric = self.symmetric;
        let ephemeral = StaticSecret::from(**ephemeral);
        let ephemeral_public = x25519_dalek::PublicKey::from(&ephemeral).to_bytes();
        let mut message = [0; RESPONSE_LEN];
        put_u32(&mut message, 0, Kind::Response.number());
        put_u32(&mut message, 4, local_index);
        put_u32(&mut message, 8, self.sender_index);
        message[RESPONSE_EPHEMERAL..RESPONSE_EMPTY].copy_from_slice(&ephemeral_public);

        symmetric.mix_ephemeral(&ephemeral_public);
        symmetric.mix_key(&*dh(&ephemeral, &self.ephemeral)?);
        symmetric.mix_key(&*dh(&ephemeral, &remote.public)?);
        let key = symmetric.mix_preshared(&remote.preshared);
        symmetric.seal(&key, &mut message[RESPONSE_EMPTY..RESPONSE_MACS]);
        let [receiving, sending] = symmetric.split();
        Ok((Keys { sending, receiving }, self.sender_index, message))
    }
}

impl Initiated {
    /// Reads the response: the keys and the peer's index. A forged response changes nothing.
    pub(super) fn finish(
        &self,
        identity: &Identity,
        remote: &Remote,
        response: &[u8; RESPONSE_LEN],
    ) -> Result<(Keys, u32), Forged> {
        let Symmetric { chaining_key, hash } = &self.symmetric;
        let mut symmetric = Symmetric { chaining_key: chaining_key.clone(), hash: *hash };
        let ephemeral = PublicKey(*field(response, RESPONSE_EPHEMERAL));
        symmetric.mix_ephemeral(&ephemeral.0);
        symmetric.mix_key(&*dh(&self.ephemeral, &ephemeral)?);
        symmetric.mix_key(&*dh(&identity.secret, &ephemeral)?);
        let key = symmetric.mix_preshared(&remote.preshared);
        symmetric.open(&key, field::<TAG_LEN>(response, RESPONSE_EMPTY))?;
        let [sending, receiving] = symmetric.split();
        Ok((Keys { sending, receiving }, u32_at(response, 4).ok_or(Forged)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::message::MACS_LEN;

    const TIMESTAMP: Timestamp = Timestamp([9; TIMESTAMP_LEN]);

    /// Both ends with fixed keys; the second identity is the responder's.
    fn ends(preshared: &PresharedKey) -> (PrivateKey, PrivateKey, Remote, Remote) {
        let (a, b) = (PrivateKey::new([1; 32]), PrivateKey::new([2; 32]));
        let to_b = Remote::new(b.public(), preshared.clone());
        let to_a = Remote::new(a.public(), preshared.clone());
        (a, b, to_b, to_a)
    }

    /// `snow` is a general implementation of Noise, which passes Noise's own vectors.
    fn snow_end(private: &PrivateKey, preshared: &PresharedKey, ephemeral: &Secret) -> snow::Builder<'static> {
        let builder = snow::Builder::new("Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s".parse().unwrap());
        let (private, ephemeral): (&'static [u8], &'static [u8]) =
            (Box::leak(Box::new(private.secret().to_bytes())), Box::leak(Box::new(**ephemeral)));
        builder
            .prologue(IDENTIFIER)
            .unwrap()
            .local_private_key(private)
            .unwrap()
            .psk(2, Box::leak(Box::new(*preshared.bytes())))
            .unwrap()
            .fixed_ephemeral_key_for_testing_only(ephemeral)
    }

    #[test]
    fn every_byte_is_that_of_a_general_implementation_of_noise() {
        for preshared in [PresharedKey::default(), PresharedKey::new([5; 32])] {
            let (a, b, to_b, to_a) = ends(&preshared);
            let (ephemeral_a, ephemeral_b) = (Zeroizing::new([3; 32]), Zeroizing::new([4; 32]));
            let b_public: &'static [u8] = Box::leak(Box::new(b.public().0));
            let mut snow_a =
                snow_end(&a, &preshared, &ephemeral_a).remote_public_key(b_public).unwrap().build_initiator().unwrap();
            let mut snow_b = snow_end(&b, &preshared, &ephemeral_b).build_responder().unwrap();
            let (identity_a, identity_b) = (Identity::new(&a), Identity::new(&b));

            let (initiated, initiation) = initiate(&identity_a, &to_b, &ephemeral_a, TIMESTAMP, 7).unwrap();
            let (mut expected, mut payload) = ([0; 108], [0; 12]);
            assert_eq!(snow_a.write_message(&TIMESTAMP.0, &mut expected).unwrap(), 108);
            assert_eq!(initiation[INITIATION_EPHEMERAL..INITIATION_MACS], expected);
            assert_eq!(snow_b.read_message(&expected, &mut payload).unwrap(), 12);

            let claimed = read_initiation(&identity_b, &initiation).unwrap();
            assert_eq!(claimed.public, a.public());
            let verified = claimed.verify(&identity_b, &to_a).unwrap();
            assert_eq!(verified.timestamp, TIMESTAMP);
            let (keys_b, index, response) = verified.respond(&to_a, &ephemeral_b, 8).unwrap();
            let mut expected = [0; 48];
            assert_eq!(snow_b.write_message(&[], &mut expected).unwrap(), 48);
            assert_eq!((index, &response[RESPONSE_EPHEMERAL..RESPONSE_MACS]), (7, &expected[..]));
            snow_a.read_message(&expected, &mut []).unwrap();

            let (keys_a, index) = initiated.finish(&identity_a, &to_b, &response).unwrap();
            assert_eq!(index, 8);
            assert_eq!((&keys_a.sending, &keys_a.receiving), (&keys_b.receiving, &keys_b.sending));
            let mut snow_a = snow_a.into_transport_mode().unwrap();
            let (mut ours, mut theirs) = ([0; 20], [0; 20]);
            snow_a.write_message(b"text", &mut theirs).unwrap();
            ours[..4].copy_from_slice(b"text");
            crypto::seal(&crypto::aead(&keys_a.sending), 0, &[], &mut ours);
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn a_changed_byte_of_a_message_is_noticed() {
        let (a, b, to_b, to_a) = ends(&PresharedKey::default());
        let (identity_a, identity_b) = (Identity::new(&a), Identity::new(&b));
        let (ephemeral_a, ephemeral_b) = (Zeroizing::new([3; 32]), Zeroizing::new([4; 32]));
        let (initiated, initiation) = initiate(&identity_a, &to_b, &ephemeral_a, TIMESTAMP, 7).unwrap();
        let reads = |message: &[u8; INITIATION_LEN]| {
            read_initiation(&identity_b, message).and_then(|claimed| claimed.verify(&identity_b, &to_a)).is_ok()
        };
        assert!(reads(&initiation));
        for at in INITIATION_EPHEMERAL..INITIATION_LEN - MACS_LEN {
            let mut changed = initiation;
            changed[at] ^= 1;
            assert!(!reads(&changed), "byte {at}");
        }
        let verified = read_initiation(&identity_b, &initiation).unwrap().verify(&identity_b, &to_a).unwrap();
        let (_, _, response) = verified.respond(&to_a, &ephemeral_b, 8).unwrap();
        for at in RESPONSE_EPHEMERAL..RESPONSE_LEN - MACS_LEN {
            let mut changed = response;
            changed[at] ^= 1;
            assert!(initiated.finish(&identity_a, &to_b, &changed).is_err(), "byte {at}");
        }
        assert!(initiated.finish(&identity_a, &to_b, &response).is_ok(), "forged responses have changed nothing");
    }

    #[test]
    fn keys_that_do_not_fit_give_no_session() {
        let (a, b, to_b, to_a) = ends(&PresharedKey::default());
        let (identity_a, identity_b) = (Identity::new(&a), Identity::new(&b));
        let ephemeral = Zeroizing::new([3; 32]);
        let (initiated, initiation) = initiate(&identity_a, &to_b, &ephemeral, TIMESTAMP, 7).unwrap();
        assert!(read_initiation(&identity_a, &initiation).is_err(), "it is for another host");
        let unknown = Remote::new(PublicKey([8; 32]), PresharedKey::default());
        assert!(read_initiation(&identity_b, &initiation).unwrap().verify(&identity_b, &unknown).is_err());
        let other = Remote::new(a.public(), PresharedKey::new([1; 32]));
        let verified = read_initiation(&identity_b, &initiation).unwrap().verify(&identity_b, &to_a).unwrap();
        let (_, _, response) = verified.respond(&other, &Zeroizing::new([4; 32]), 8).unwrap();
        assert!(initiated.finish(&identity_a, &to_b, &response).is_err(), "the preshared keys differ");
        let low_order = Remote::new(PublicKey([0; 32]), PresharedKey::default());
        assert!(initiate(&identity_a, &low_order, &ephemeral, TIMESTAMP, 7).is_err());
        let mut remote = Remote::new(b.public(), PresharedKey::default());
        assert!(initiate(&Identity::new(&PrivateKey::new([3; 32])), &remote, &ephemeral, TIMESTAMP, 7).is_ok());
        remote.forget_identity();
        let (_, initiation) = initiate(&identity_a, &remote, &ephemeral, TIMESTAMP, 7).unwrap();
        let claimed = read_initiation(&identity_b, &initiation).unwrap();
        assert!(claimed.verify(&identity_b, &to_a).is_ok(), "the secret is that of the new key");
    }
}
