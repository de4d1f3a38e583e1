//! The checksum of the Internet (RFC 1071), which IP, TCP, UDP and ICMP use.
use super::message::field;

/// Adds 16-bit words in the byte order of the host. The sum of the Internet checksum does not depend on it (RFC 1071), and four
/// bytes at once are the same as two and two.
pub(super) fn sum(begin: u64, bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(4);
    let words = chunks.by_ref().map(|chunk| u64::from(u32::from_ne_bytes(*field(chunk, 0))));
    let sum = begin + words.sum::<u64>();
    let mut last = [0; 4];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    sum + u64::from(u32::from_ne_bytes(last))
}

/// Adds the carries, until 16 bits are left.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The checksum in the order in which it is sent.
pub(super) fn finish(sum: u64) -> [u8; 2] {
    (!fold(sum)).to_ne_bytes()
}
