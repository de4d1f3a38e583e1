//! Congestion marks (ECN) across the tunnel, as RFC 6040 says: a datagram is sent with the bits of its packet, and what routers have
//! marked on the way is copied to the packet.
use super::checksum::{finish, sum};

/// Not capable of ECN.
pub const NOT_ECT: u8 = 0;
/// Capable of ECN, the less common codepoint.
const ECT_1: u8 = 1;
/// Capable of ECN.
const ECT_0: u8 = 2;
/// A router was congested.
pub const CE: u8 = 3;

const MASK: u8 = 3;

/// The two bits of ECN of an IP packet, with which its datagram is sent ("normal mode" of RFC 6040, section 4.1).
pub fn ecn(packet: &[u8]) -> u8 {
    match packet {
        [first, tos, ..] if first >> 4 == 4 => tos & MASK,
        [first, second, ..] if first >> 4 == 6 => second >> 4 & MASK,
        _ => NOT_ECT,
    }
}

/// Gives a packet from the tunnel the mark of its datagram (RFC 6040, section 4.2). Returns false for a packet that is to be dropped: a
/// router was congested, and only a loss tells that to its sender, which does not use ECN.
pub fn take_mark(packet: &mut [u8], outer: u8) -> bool {
    match (ecn(packet), outer) {
        (NOT_ECT, CE) => return false,
        (ECT_0 | ECT_1, CE) => set_ecn(packet, CE),
        (ECT_0, ECT_1) => set_ecn(packet, ECT_1),
        _ => {}
    }
    true
}

/// Writes the bits into an IP header, and corrects its checksum.
fn set_ecn(packet: &mut [u8], bits: u8) {
    match packet {
        [first, second, ..] if *first >> 4 == 6 => *second = *second & !(MASK << 4) | bits << 4,
        _ => {
            let header_len = packet.first().map_or(0, |first| usize::from(first & 15) * 4);
            let Some(header) = packet.get_mut(..header_len).filter(|header| header.len() >= 20) else { return };
            header[1] = header[1] & !MASK | bits;
            header[10..12].fill(0);
            let checksum = finish(sum(0, header));
            header[10..12].copy_from_slice(&checksum);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::checksum::fold;
    use super::*;

    /// An IPv4 header with a right checksum, and an IPv6 header. Both have other bits set beside those of ECN.
    fn packets(bits: u8) -> [Vec<u8>; 2] {
        let mut v4 = vec![0x46; 24];
        v4[1] = 0xb8 | bits;
        v4[10..12].fill(0);
        let checksum = finish(sum(0, &v4));
        v4[10..12].copy_from_slice(&checksum);
        let mut v6 = vec![0x6a; 40];
        v6[1] = 0x8f | bits << 4;
        [v4, v6]
    }

    #[test]
    fn marks_are_those_of_the_table_of_rfc_6040() {
        // Rows are the packet's bits, columns the datagram's, both Not-ECT, ECT(1), ECT(0), CE.
        let kept = |bits| Some(bits);
        let table = [
            [kept(NOT_ECT), kept(NOT_ECT), kept(NOT_ECT), None],
            [kept(ECT_1), kept(ECT_1), kept(ECT_1), kept(CE)],
            [kept(ECT_0), kept(ECT_1), kept(ECT_0), kept(CE)],
            [kept(CE), kept(CE), kept(CE), kept(CE)],
        ];
        for (inner, row) in (0..).zip(table) {
            for (outer, expected) in (0..).zip(row) {
                for (before, mut packet) in packets(inner).into_iter().zip(packets(inner)) {
                    assert_eq!(ecn(&packet), inner);
                    let taken = take_mark(&mut packet, outer);
                    assert_eq!(taken.then(|| ecn(&packet)), expected, "{inner} in {outer}");
                    if packet[0] >> 4 == 4 {
                        assert_eq!(fold(sum(0, &packet)), 0xffff, "the checksum holds");
                    }
                    let changed = packet.iter().zip(&before).filter(|(a, b)| a != b).count();
                    assert!(changed == 0 || expected != kept(inner), "nothing else changes");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..64), outer in 0u8..4) {
            let mut packet = bytes;
            take_mark(&mut packet, outer);
        }
    }
}
