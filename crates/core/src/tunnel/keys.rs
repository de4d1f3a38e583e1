//! Keys, and how they are written: base64 in files (`wg genkey`), hexadecimal in the configuration protocol.
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;
use x25519_dalek::StaticSecret;
use zeroize::{Zeroize, Zeroizing};

use crate::values::ValueError;

pub(super) const KEY_LEN: usize = 32;

/// A key that can be read and written as text.
pub trait KeyText: Sized {
    /// Reads 44 characters of base64.
    fn from_base64(text: &str) -> Result<Self, ValueError>;
    /// Reads 64 hexadecimal digits.
    fn from_hex(text: &str) -> Option<Self>;
    /// Writes base64. The text of a secret is erased when it is dropped.
    fn to_base64(&self) -> Zeroizing<String>;
    /// Writes hexadecimal digits. The text of a secret is erased when it is dropped.
    fn to_hex(&self) -> Zeroizing<String>;
}

/// A Curve25519 public key, by which a peer is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; KEY_LEN]);

/// A Curve25519 private key. It is erased when it is dropped.
#[derive(Clone)]
pub struct PrivateKey(SecretBytes);

/// A symmetric key that both peers mix into the handshake; all zeros for none. It is erased when it is dropped.
#[derive(Clone, Default)]
pub struct PresharedKey(SecretBytes);

/// The bytes of a secret key, which do not move: what holds them may be copied to another place, as the elements of a vector that
/// grows are, and leaves no key behind. They are erased when they are dropped.
#[derive(Clone, Default)]
struct SecretBytes(Box<[u8; KEY_LEN]>);

impl SecretBytes {
    /// Moves a key to its place.
    fn new(bytes: &mut [u8; KEY_LEN]) -> Self {
        let mut own = Self::default();
        own.0.copy_from_slice(bytes);
        bytes.zeroize();
        own
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl AsRef<[u8]> for SecretBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0[..]
    }
}

impl PrivateKey {
    /// A key of these bytes, clamped as Curve25519 has it.
    pub fn new(mut bytes: [u8; KEY_LEN]) -> Self {
        bytes[0] &= 0xf8;
        bytes[31] = bytes[31] & 0x7f | 0x40;
        Self(SecretBytes::new(&mut bytes))
    }

    /// The public key that belongs to it.
    pub fn public(&self) -> PublicKey {
        PublicKey(x25519_dalek::PublicKey::from(&self.secret()).to_bytes())
    }

    pub(super) fn secret(&self) -> StaticSecret {
        StaticSecret::from(*self.0.0)
    }

    /// All zeros, which the configuration protocol writes for "no key", clamped.
    pub fn is_unset(&self) -> bool {
        *self == Self::new([0; KEY_LEN])
    }
}

impl PresharedKey {
    #[allow(missing_docs)]
    pub fn new(mut bytes: [u8; KEY_LEN]) -> Self {
        Self(SecretBytes::new(&mut bytes))
    }

    pub(super) fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0.0
    }

    /// All zeros: no such key.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

fn decode_base64(text: &str) -> Result<Zeroizing<[u8; KEY_LEN]>, ValueError> {
    // The decoder wants room for the padding too.
    let mut bytes = Zeroizing::new([0; KEY_LEN + 1]);
    let mut key = Zeroizing::new([0; KEY_LEN]);
    match STANDARD.decode_slice(text, &mut *bytes) {
        Ok(KEY_LEN) => {
            key.copy_from_slice(&bytes[..KEY_LEN]);
            Ok(key)
        }
        // The text is not repeated: it may be a private key with a mistake in it.
        _ => Err(ValueError::new(
            format!("a key of {} characters is not 32 bytes of base64", text.chars().count()),
            "write the 44 characters that `wg genkey`, `wg pubkey` or `wg genpsk` prints",
        )),
    }
}

fn decode_hex(text: &str) -> Option<Zeroizing<[u8; KEY_LEN]>> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_LEN {
        return None;
    }
    let mut key = Zeroizing::new([0; KEY_LEN]);
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = (value(pair[0])? << 4 | value(pair[1])?) as u8;
    }
    Some(key)
}

fn encode_hex(bytes: &[u8]) -> Zeroizing<String> {
    // Reserved at once: a string that grows would leave parts of the key behind.
    let mut text = Zeroizing::new(String::with_capacity(2 * KEY_LEN));
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).expect("four bits are a digit"));
        }
    }
    text
}

macro_rules! key_text {
    ($key:ident, $new:expr) => {
        impl KeyText for $key {
            fn from_base64(text: &str) -> Result<Self, ValueError> {
                decode_base64(text).map(|bytes| $new(*bytes))
            }

            fn from_hex(text: &str) -> Option<Self> {
                decode_hex(text).map(|bytes| $new(*bytes))
            }

            fn to_base64(&self) -> Zeroizing<String> {
                Zeroizing::new(STANDARD.encode(&self.0))
            }

            fn to_hex(&self) -> Zeroizing<String> {
                encode_hex(self.0.as_ref())
            }
        }
    };
}

key_text!(PublicKey, PublicKey);
key_text!(PrivateKey, PrivateKey::new);
key_text!(PresharedKey, PresharedKey::new);

macro_rules! secret {
    ($key:ident) => {
        impl PartialEq for $key {
            fn eq(&self, other: &Self) -> bool {
                self.0.as_ref().ct_eq(other.0.as_ref()).into()
            }
        }

        impl Eq for $key {}

        impl fmt::Debug for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($key), "(..)"))
            }
        }
    };
}

secret!(PrivateKey);
secret!(PresharedKey);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_base64())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_known_key_pair_as_wg_prints_it() {
        // RFC 7748, section 5.2: the first iteration.
        let nine = format!("09{}", "0".repeat(62));
        let public = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079";
        let private = PrivateKey::from_hex(&nine).unwrap();
        assert_eq!(&*private.public().to_hex(), public);
        assert_eq!(private.public().to_string(), "QiyOemIn17yhNQs+K7cnn3iXuHu2hUt4PGDoAxGuMHk=");
        assert_eq!(format!("{private:?}"), "PrivateKey(..)");
    }

    #[test]
    fn a_secret_key_stays_in_its_place() {
        let mut keys = vec![PresharedKey::new([7; KEY_LEN])];
        let place = keys[0].bytes().as_ptr();
        keys.extend((0..100).map(|n| PresharedKey::new([n; KEY_LEN])));
        let moved = keys.swap_remove(0);
        assert_eq!((moved.bytes().as_ptr(), moved.bytes()), (place, &[7; KEY_LEN]));
    }

    #[test]
    fn texts_that_are_no_keys() {
        for text in ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", &"A".repeat(44), "not base64!"] {
            let error = PublicKey::from_base64(text).unwrap_err();
            assert!(text.is_empty() || !error.what.contains(text), "an error does not repeat what may be a key");
        }
        for text in ["", "00", &"0".repeat(63), &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(PublicKey::from_hex(text), None);
        }
        assert!(PrivateKey::from_hex(&"0".repeat(64)).unwrap().is_unset());
    }

    proptest! {
        #[test]
        fn texts_come_back_as_the_same_key(bytes in any::<[u8; 32]>()) {
            let key = PublicKey(bytes);
            prop_assert_eq!(PublicKey::from_base64(&key.to_base64()).unwrap(), key);
            prop_assert_eq!(PublicKey::from_hex(&key.to_hex()).unwrap(), key);
            let key = PrivateKey::new(bytes);
            prop_assert!(PrivateKey::from_base64(&key.to_base64()).unwrap() == key);
            prop_assert!(PresharedKey::from_hex(&PresharedKey::new(bytes).to_hex()).unwrap() == PresharedKey::new(bytes));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = PublicKey::from_base64(&text);
            let _ = PublicKey::from_hex(&text);
        }
    }
}
