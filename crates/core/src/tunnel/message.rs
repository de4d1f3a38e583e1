//! The layout of the four messages, and how received bytes are told apart. Numbers are little-endian.

/// The bytes in front of the encrypted packet: type, receiver index and counter.
pub const HEADER_LEN: usize = 16;
/// The authentication tag behind everything that is encrypted.
pub const TAG_LEN: usize = 16;
/// Bytes that a data message adds to its padded packet.
pub const DATA_OVERHEAD: usize = HEADER_LEN + TAG_LEN;

pub(super) const INITIATION_LEN: usize = 148;
pub(super) const RESPONSE_LEN: usize = 92;
pub(super) const COOKIE_REPLY_LEN: usize = 64;
/// The length of both MACs at the end of a handshake message.
pub(super) const MACS_LEN: usize = 32;
/// The longest message of a handshake.
pub(super) const HANDSHAKE_LEN_MAX: usize = INITIATION_LEN;

/// The kind of a datagram, by its type field and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    #[allow(missing_docs)]
    Initiation,
    #[allow(missing_docs)]
    Response,
    #[allow(missing_docs)]
    CookieReply,
    #[allow(missing_docs)]
    Data,
}

impl Kind {
    /// The kind of a datagram, or `None` for what is no message of WireGuard.
    pub fn of(datagram: &[u8]) -> Option<Self> {
        // The three bytes after the type are reserved and zero.
        match (u32_at(datagram, 0)?, datagram.len()) {
            (1, INITIATION_LEN) => Some(Self::Initiation),
            (2, RESPONSE_LEN) => Some(Self::Response),
            (3, COOKIE_REPLY_LEN) => Some(Self::CookieReply),
            (4, DATA_OVERHEAD..) => Some(Self::Data),
            _ => None,
        }
    }

    /// The value of the type field.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Initiation => 1,
            Self::Response => 2,
            Self::CookieReply => 3,
            Self::Data => 4,
        }
    }
}

/// The number at a byte offset, where there is one.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes))
}

/// As [`u32_at`], for 64 bits.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes))
}

/// `N` bytes at an offset of a message whose length has been checked.
pub(super) fn field<const N: usize>(message: &[u8], at: usize) -> &[u8; N] {
    message[at..].first_chunk().expect("the field is inside of the message")
}

/// Writes a number at an offset of a message that is long enough.
pub(super) fn put_u32(message: &mut [u8], at: usize, value: u32) {
    message[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_type_and_its_length() {
        let datagram = |kind: u32, len: usize| {
            let mut bytes = vec![0; len];
            put_u32(&mut bytes, 0, kind);
            bytes
        };
        for kind in [Kind::Initiation, Kind::Response, Kind::CookieReply, Kind::Data] {
            let len = match kind {
                Kind::Initiation => 148,
                Kind::Response => 92,
                Kind::CookieReply => 64,
                Kind::Data => 32,
            };
            assert_eq!(Kind::of(&datagram(kind.number(), len)), Some(kind));
            assert_eq!(Kind::of(&datagram(kind.number(), len - 1)), None);
            assert_eq!(Kind::of(&datagram(kind.number() | 1 << 8, len)), None, "a reserved byte is set");
        }
        assert_eq!(Kind::of(&datagram(1, 149)), None);
        assert_eq!(Kind::of(&[4, 0, 0]), None);
        assert_eq!(Kind::of(&datagram(0, 148)), None);
    }
}
