//! Messages to the sender of a packet that is too long for the path (RFC 792 with RFC 1191, RFC 4443), and the clamping of the MSS
//! that spares TCP these messages.
use super::checksum::{finish, fold, sum};
use super::message::field;

/// Room for the longest message: what IPv6 delivers everywhere.
pub const TOO_BIG_LEN_MAX: usize = 1280;
/// The least MTU of IPv6: no sender makes shorter packets because of a message.
const IPV6_MTU_MIN: usize = 1280;
/// The longest ICMPv4 error (RFC 1812, 4.3.2.3).
const ICMPV4_LEN_MAX: usize = 576;

const ICMPV4: u8 = 1;
const TCP: u8 = 6;
const ICMPV6: u8 = 58;
const SYN: u8 = 0x02;
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MSS: u8 = 2;

/// Writes the message "fragmentation needed" or "packet too big" for a packet of `packet_len` bytes, which begins with `packet`,
/// and returns its length.
///
/// `None` if its sender is not to be told: the packet may be sent in fragments (IPv4 without DF, IPv6 of up to 1280 bytes), or
/// answers to it are forbidden (RFC 1122, 3.2.2), as those to ICMP errors and to groups are.
pub fn too_big(packet: &[u8], packet_len: usize, mtu: usize, into: &mut [u8; TOO_BIG_LEN_MAX]) -> Option<usize> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => too_big_v4(packet, mtu, into),
        6 if packet.len() >= 40 && packet_len > IPV6_MTU_MIN => too_big_v6(packet, mtu, into),
        _ => None,
    }
}

fn too_big_v4(packet: &[u8], mtu: usize, into: &mut [u8; TOO_BIG_LEN_MAX]) -> Option<usize> {
    let header_len = usize::from(packet[0] & 15) * 4;
    let (source, to) = (*field::<4>(packet, 12), *field::<4>(packet, 16));
    let may_fragment = packet[6] & 0x40 == 0;
    let later_fragment = (packet[6] & 0x1f, packet[7]) != (0, 0);
    // Of ICMP only echoes and their answers, which are no errors.
    let error = packet[9] == ICMPV4 && !packet.get(header_len).is_some_and(|kind| [0, 8].contains(kind));
    let no_host = |address: [u8; 4]| address[0] == 0 || address[0] >= 224;
    if may_fragment || later_fragment || error || no_host(source) || no_host(to) {
        return None;
    }
    let quoted = &packet[..packet.len().min(ICMPV4_LEN_MAX - 28)];
    let len = 28 + quoted.len();
    let message = &mut into[..len];
    message[..28].fill(0);
    // Precedence "internetwork control", as errors of Linux have.
    message[..2].copy_from_slice(&[0x45, 0xc0]);
    message[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    message[8..10].copy_from_slice(&[64, ICMPV4]);
    // From where the packet was going to: an address of this host would be refused as that of another one's packet.
    message[12..16].copy_from_slice(&to);
    message[16..20].copy_from_slice(&source);
    message[20..22].copy_from_slice(&[3, 4]);
    message[26..28].copy_from_slice(&(mtu as u16).to_be_bytes());
    message[28..].copy_from_slice(quoted);
    let checksum = finish(sum(0, &message[..20]));
    message[10..12].copy_from_slice(&checksum);
    let checksum = finish(sum(0, &message[20..]));
    message[22..24].copy_from_slice(&checksum);
    Some(len)
}

fn too_big_v6(packet: &[u8], mtu: usize, into: &mut [u8; TOO_BIG_LEN_MAX]) -> Option<usize> {
    let (source, to) = (*field::<16>(packet, 8), *field::<16>(packet, 24));
    // Informational messages have the highest bit set.
    let error = packet[6] == ICMPV6 && packet.get(40).is_none_or(|kind| kind & 0x80 == 0);
    if error || source == [0; 16] || source[0] == 0xff || to[0] == 0xff {
        return None;
    }
    let quoted = &packet[..packet.len().min(TOO_BIG_LEN_MAX - 48)];
    let len = 48 + quoted.len();
    let message = &mut into[..len];
    message[..48].fill(0);
    message[0] = 0x60;
    message[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
    message[6..8].copy_from_slice(&[ICMPV6, 64]);
    message[8..24].copy_from_slice(&to);
    message[24..40].copy_from_slice(&source);
    message[40] = 2;
    message[44..48].copy_from_slice(&(mtu.max(IPV6_MTU_MIN) as u32).to_be_bytes());
    message[48..].copy_from_slice(quoted);
    let rest = [0, ICMPV6, ((len - 40) >> 8) as u8, (len - 40) as u8];
    let pseudo_header = sum(sum(0, &message[8..40]), &rest);
    let checksum = finish(sum(pseudo_header, &message[40..]));
    message[42..44].copy_from_slice(&checksum);
    Some(len)
}

/// Lowers the MSS option of a TCP SYN to what fits packets of `mtu` bytes. The checksum is that of the packet before, corrected.
/// Returns whether it was changed.
pub fn clamp_mss(packet: &mut [u8], mtu: usize) -> bool {
    let Some((at, value_at)) = mss_option(packet) else { return false };
    let most = mtu.saturating_sub(at + 20).min(usize::from(u16::MAX)) as u16;
    if u16::from_be_bytes(*field(packet, value_at)) <= most {
        return false;
    }
    // The two bytes with those that they share a word of the checksum with.
    let words = at + (value_at - at) / 2 * 2..at + (value_at + 3 - at) / 2 * 2;
    let before = fold(sum(0, &packet[words.clone()]));
    packet[value_at..value_at + 2].copy_from_slice(&most.to_be_bytes());
    let after = fold(sum(0, &packet[words]));
    // RFC 1624.
    let checksum = u16::from_ne_bytes(*field(packet, at + 16));
    let corrected = finish(u64::from(!checksum) + u64::from(!before) + u64::from(after));
    packet[at + 16..at + 18].copy_from_slice(&corrected);
    true
}

/// Where the TCP header of a SYN and the value of its MSS option are.
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

    fn packet(v6: bool, protocol: u8, len: usize) -> Vec<u8> {
        let mut packet = vec![7; len];
        if v6 {
            packet[..8].copy_from_slice(&[0x60, 0, 0, 0, ((len - 40) >> 8) as u8, (len - 40) as u8, protocol, 64]);
            packet[8..40].copy_from_slice(&[1; 32]);
            packet[39] = 2;
        } else {
            packet[..12].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
            packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        }
        packet
    }

    fn message(packet: &[u8]) -> Option<Vec<u8>> {
        let mut into = [0; TOO_BIG_LEN_MAX];
        too_big(packet, packet.len(), MTU, &mut into).map(|len| into[..len].to_vec())
    }

    #[test]
    fn the_sender_is_told_the_mtu_and_which_packet_it_was() {
        let v4 = packet(false, 17, 1400);
        let told = message(&v4).unwrap();
        assert_eq!((told.len(), &told[20..22], &told[26..28]), (576, &[3, 4][..], &1220u16.to_be_bytes()[..]));
        assert_eq!((&told[12..16], &told[16..20], &told[28..]), (&v4[16..20], &v4[12..16], &v4[..548]));
        assert_eq!((fold(sum(0, &told[..20])), fold(sum(0, &told[20..]))), (0xffff, 0xffff));
        let v6 = packet(true, 17, 1400);
        let told = message(&v6).unwrap();
        assert_eq!((told.len(), &told[40..42], &told[44..48]), (1280, &[2, 0][..], &1280u32.to_be_bytes()[..]));
        assert_eq!((&told[8..24], &told[24..40], &told[48..]), (&v6[24..40], &v6[8..24], &v6[..1232]));
        let rest = [0, ICMPV6, (1240u16 >> 8) as u8, 1240u16 as u8];
        assert_eq!(fold(sum(sum(sum(0, &told[8..40]), &rest), &told[40..])), 0xffff);
    }

    #[test]
    fn who_is_not_told() {
        let altered = |v6: bool, at: usize, bytes: &[u8]| {
            let mut packet = packet(v6, if v6 { ICMPV6 } else { ICMPV4 }, 1400);
            packet[if v6 { 40 } else { 20 }] = if v6 { 128 } else { 8 };
            packet[at..at + bytes.len()].copy_from_slice(bytes);
            message(&packet).is_some()
        };
        assert!(altered(false, 0, &[]) && altered(true, 0, &[]), "an echo");
        assert!(!altered(false, 6, &[0, 0]), "without DF");
        assert!(!altered(false, 6, &[0x40, 1]), "a later fragment");
        assert!(!altered(false, 20, &[3]) && !altered(true, 40, &[1]), "an error");
        assert!(!altered(false, 16, &[224]) && !altered(true, 24, &[0xff]), "a group");
        assert!(!altered(false, 12, &[0; 4]) && !altered(true, 8, &[0; 16]), "no source");
        assert!(message(&packet(true, 17, 1280)).is_none(), "as short as IPv6 goes");
    }

    /// A SYN with options, and with its checksum.
    fn syn(v6: bool, options: &[u8]) -> Vec<u8> {
        let at = if v6 { 40 } else { 20 };
        let mut packet = packet(v6, TCP, at + 20 + options.len());
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

    proptest! {
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
            let _ = too_big(&bytes, 2000, mtu, &mut [0; TOO_BIG_LEN_MAX]);
        }
    }
}
