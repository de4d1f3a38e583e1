//! Numbers of variable length as protobuf encodes them (LEB128): seven bits a byte, the lowest first.

/// The most bytes that a 64-bit number takes.
const BYTES_MAX: usize = 10;

/// Appends a number.
#[inline]
pub fn append(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes [`append`] appends.
#[inline]
pub const fn length(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    (bits * 9 + 64) / 64
}

/// Reads a number and moves `bytes` behind it. `None`, with `bytes` unchanged, where it is cut off or longer than 64 bits take.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(BYTES_MAX).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *bytes = &bytes[at + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_appended_is_taken(shift in 0u32..64, value: u64) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            append(&mut bytes, value);
            prop_assert_eq!(bytes.len(), length(value));
            prop_assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None);
            bytes.push(7);
            let mut rest = &bytes[..];
            prop_assert_eq!(take(&mut rest), Some(value));
            prop_assert_eq!(rest, [7]);
        }
    }

    #[test]
    fn no_number_is_longer_than_ten_bytes() {
        assert_eq!(take(&mut &[0x80; 11][..]), None);
    }
}
