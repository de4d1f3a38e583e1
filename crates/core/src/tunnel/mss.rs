//! The clamping of the MSS, which spares TCP the messages about packets that are too big for the path.
use super::checksum::{finish, fold, sum};
use super::message::field;

const TCP: u8 = 6;
const SYN: u8 = 0x02;
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MSS: u8 = 2;

/// Lowers the MSS option of a TCP SYN to what fits packets of `mtu` bytes. The checksum is that of the packet before, corrected.
/// Returns whether it was changed.
pub fn clamp_mss(packet: &mut [u8], mtu: usize) -> bool {
    let Some((at, value_at)) = mss_option(packet) else { return false };
    let most = mtu.saturating_sub(at + 20).min(usize::from(u16::MAX)) as u16;
    if u16::from_be_bytes(*field(packet, value_at)) <= most {
        return false;
    }
    // The two bytes with those that they share a word of the checksum with. A packet of odd length ends within a word, whose other
    // byte counts as zero (RFC 1071).
    let words = at + (value_at - at) / 2 * 2..(at + (value_at + 3 - at) / 2 * 2).min(packet.len());
    let before = fold(sum(0, &packet[words.clone()]));
    packet[value_at..value_at + 2].copy_from_slice(&most.to_be_bytes());
    let after = fold(sum(0, &packet[words]));
    // RFC 1624.
    let checksum = u16::from_ne_bytes(*field(packet, at + 16));
    let corrected = finish(u64::from(!checksum) + u64::from(!before) + u64::from(after));
    packet[at + 16..at + 18].copy_from_slice(&corrected);
    true
}

/// The offsets of a SYN's TCP header and of the value of its MSS option.
fn mss_option(packet: &[u8]) -> Option<(usize, usize)> {
    let (at, protocol) = match packet.first()? >> 4 {
        4 if packet.len() >= 20 && packet[6] & 0x1f == 0 && packet[7] == 0 => {
            (usize::from(packet[0] & 15) * 4, packet[9])
        }
        6 if packet.len() >= 40 => (40, packet[6]),
        _ => return None,
    };
    let header = packet.get(at..).filter(|rest| at >= 20 && protocol == TCP && rest.len() >= 20)?;
    if header[13] & SYN == 0 {
        return None;
    }
    let end = (usize::from(header[12] >> 4) * 4).min(header.len());
    let mut next = 20;
    while next < end {
        match header[next] {
            OPTION_END => return None,
            OPTION_NOP => next += 1,
            kind => {
                let len = usize::from(*header[..end].get(next + 1)?);
                if kind == OPTION_MSS && len == 4 && next + 4 <= end {
                    return Some((at, at + next + 2));
                }
                next += len.max(2);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MTU: usize = 1220;

    /// A SYN with options, and with its checksum.
    fn syn(v6: bool, options: &[u8]) -> Vec<u8> {
        let at = if v6 { 40 } else { 20 };
        let mut packet = vec![0; at + 20 + options.len()];
        packet[0] = if v6 { 0x60 } else { 0x45 };
        packet[if v6 { 6 } else { 9 }] = TCP;
        packet[at + 12] = (5 + options.len() as u8 / 4) << 4;
        packet[at + 13] = SYN;
        packet[at + 20..].copy_from_slice(options);
        packet[at + 16..at + 18].fill(0);
        let checksum = finish(sum(0, &packet[at..]));
        packet[at + 16..at + 18].copy_from_slice(&checksum);
        packet
    }

    #[test]
    fn an_mss_is_lowered_wherever_it_stands() {
        for (v6, options) in [(false, &[2, 4, 0x05, 0xb4][..]), (true, &[1, 2, 4, 0x05, 0xb4, 0, 0, 0][..])] {
            let (at, mut packet) = (if v6 { 40 } else { 20 }, syn(v6, options));
            assert!(clamp_mss(&mut packet, MTU));
            let mss = packet.windows(4).find(|option| option[..2] == [2, 4]).unwrap();
            assert_eq!(mss[2..], ((MTU - at - 20) as u16).to_be_bytes());
            assert_eq!(fold(sum(0, &packet[at..])), 0xffff, "the checksum holds");
            assert!(!clamp_mss(&mut packet, MTU), "it fits now");
            packet[at + 13] = 0x10;
            assert!(!clamp_mss(&mut packet, 500), "only SYNs");
        }
    }

    /// A packet that ends with its MSS option at an odd offset ends within a word of the checksum.
    #[test]
    fn an_mss_at_the_end_of_an_odd_packet_is_lowered() {
        for v6 in [false, true] {
            let at = if v6 { 40 } else { 20 };
            let mut packet = syn(v6, &[1, 2, 4, 0xff, 0xff]);
            packet[at + 12] = 7 << 4;
            packet[at + 16..at + 18].fill(0);
            let checksum = finish(sum(0, &packet[at..]));
            packet[at + 16..at + 18].copy_from_slice(&checksum);
            assert!(clamp_mss(&mut packet, MTU));
            assert_eq!(packet[at + 23..], ((MTU - at - 20) as u16).to_be_bytes());
            assert_eq!(fold(sum(0, &packet[at..])), 0xffff, "the checksum holds");
        }
    }

    /// Options as a peer may write them: whole ones, ones of a false length, and any bytes.
    fn options() -> impl Strategy<Value = Vec<u8>> {
        let option = prop_oneof![
            3 => Just(vec![OPTION_NOP]),
            3 => any::<u16>().prop_map(|mss| [&[OPTION_MSS, 4][..], &mss.to_be_bytes()].concat()),
            1 => (any::<u8>(), any::<u8>()).prop_map(|(kind, len)| vec![kind, len]),
            1 => prop::collection::vec(any::<u8>(), 1..6),
        ];
        prop::collection::vec(option, 0..4).prop_map(|options| options.concat())
    }

    proptest! {
        #[test]
        fn a_syn_of_any_options_keeps_its_checksum(
            options in options(), longer in 0u8..2, v6 in any::<bool>(), mtu in 0usize..2000,
        ) {
            let (at, mut packet) = (if v6 { 40 } else { 20 }, syn(v6, &options));
            // The header may claim to be longer than the packet.
            let offset = (5 + (options.len() as u8).div_ceil(4) + longer).min(15);
            packet[at + 12] = offset << 4;
            packet[at + 16..at + 18].fill(0);
            let checksum = finish(sum(0, &packet[at..]));
            packet[at + 16..at + 18].copy_from_slice(&checksum);
            let before = packet.clone();
            prop_assert_eq!(clamp_mss(&mut packet, mtu), packet != before);
            prop_assert_eq!(fold(sum(0, &packet[at..])), 0xffff);
        }

        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..90), v6 in any::<bool>(), mtu in 0usize..2000) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = if v6 { 0x60 } else { 0x40 | *first & 15 };
            }
            if bytes.len() > 9 {
                bytes[if v6 { 6 } else { 9 }] = TCP;
            }
            let before = bytes.clone();
            prop_assert_eq!(clamp_mss(&mut bytes, mtu), bytes != before);
            prop_assert_eq!(bytes.len(), before.len());
        }
    }
}
