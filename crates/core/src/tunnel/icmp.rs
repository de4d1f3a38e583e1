//! ICMP messages to the sender of a packet that cannot be sent on (RFC 792 with RFC 1191, RFC 4443).
use super::checksum::{finish, sum};
use super::message::field;

/// Room for the longest message: what IPv6 delivers everywhere.
pub const ICMP_LEN_MAX: usize = 1280;
/// The least MTU of IPv6: no sender makes shorter packets because of a message.
const IPV6_MTU_MIN: usize = 1280;
/// The longest ICMPv4 error (RFC 1812, 4.3.2.3).
const ICMPV4_LEN_MAX: usize = 576;

const ICMPV4: u8 = 1;
const ICMPV6: u8 = 58;

/// Writes the message "fragmentation needed" or "packet too big" for a packet of `packet_len` bytes, which begins with `packet`,
/// and returns its length.
///
/// `None` if its sender is not to be told: the packet may be sent in fragments (IPv4 without DF, IPv6 of up to 1280 bytes), or
/// answers to it are forbidden (RFC 1122, 3.2.2), as those to ICMP errors and to groups are.
pub fn too_big(packet: &[u8], packet_len: usize, mtu: usize, into: &mut [u8; ICMP_LEN_MAX]) -> Option<usize> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 && packet[6] & 0x40 != 0 => error_v4(packet, [3, 4], mtu as u16, into),
        6 if packet.len() >= 40 && packet_len > IPV6_MTU_MIN => {
            error_v6(packet, [2, 0], mtu.max(IPV6_MTU_MIN) as u32, into)
        }
        _ => None,
    }
}

/// Writes the message "host unreachable" or "address unreachable" for a packet, of which at least the beginning is given, and
/// returns its length. `None` if answers to it are forbidden.
pub fn unreachable(packet: &[u8], into: &mut [u8; ICMP_LEN_MAX]) -> Option<usize> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => error_v4(packet, [3, 1], 0, into),
        6 if packet.len() >= 40 => error_v6(packet, [1, 3], 0, into),
        _ => None,
    }
}

/// Writes the error with this type and code, and with `value` in the last two bytes of its header.
fn error_v4(packet: &[u8], kind: [u8; 2], value: u16, into: &mut [u8; ICMP_LEN_MAX]) -> Option<usize> {
    let header_len = usize::from(packet[0] & 15) * 4;
    let (source, to) = (*field::<4>(packet, 12), *field::<4>(packet, 16));
    let later_fragment = (packet[6] & 0x1f, packet[7]) != (0, 0);
    // Of ICMP only echoes and their answers, which are no errors.
    let error = packet[9] == ICMPV4 && !packet.get(header_len).is_some_and(|kind| [0, 8].contains(kind));
    let no_host = |address: [u8; 4]| address[0] == 0 || address[0] >= 224;
    if later_fragment || error || no_host(source) || no_host(to) {
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
    message[20..22].copy_from_slice(&kind);
    message[26..28].copy_from_slice(&value.to_be_bytes());
    message[28..].copy_from_slice(quoted);
    let checksum = finish(sum(0, &message[..20]));
    message[10..12].copy_from_slice(&checksum);
    let checksum = finish(sum(0, &message[20..]));
    message[22..24].copy_from_slice(&checksum);
    Some(len)
}

/// Writes the error with this type and code, and with `value` in the last four bytes of its header.
fn error_v6(packet: &[u8], kind: [u8; 2], value: u32, into: &mut [u8; ICMP_LEN_MAX]) -> Option<usize> {
    let (source, to) = (*field::<16>(packet, 8), *field::<16>(packet, 24));
    // Informational messages have the highest bit set.
    let error = packet[6] == ICMPV6 && packet.get(40).is_none_or(|kind| kind & 0x80 == 0);
    if error || source == [0; 16] || source[0] == 0xff || to[0] == 0xff {
        return None;
    }
    let quoted = &packet[..packet.len().min(ICMP_LEN_MAX - 48)];
    let len = 48 + quoted.len();
    let message = &mut into[..len];
    message[..48].fill(0);
    message[0] = 0x60;
    message[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
    message[6..8].copy_from_slice(&[ICMPV6, 64]);
    message[8..24].copy_from_slice(&to);
    message[24..40].copy_from_slice(&source);
    message[40..42].copy_from_slice(&kind);
    message[44..48].copy_from_slice(&value.to_be_bytes());
    message[48..].copy_from_slice(quoted);
    let rest = [0, ICMPV6, ((len - 40) >> 8) as u8, (len - 40) as u8];
    let pseudo_header = sum(sum(0, &message[8..40]), &rest);
    let checksum = finish(sum(pseudo_header, &message[40..]));
    message[42..44].copy_from_slice(&checksum);
    Some(len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::checksum::fold;
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
        let mut into = [0; ICMP_LEN_MAX];
        too_big(packet, packet.len(), MTU, &mut into).map(|len| into[..len].to_vec())
    }

    #[test]
    fn the_message_has_the_mtu_and_the_packet() {
        let v4 = packet(false, 17, 1400);
        let sent = message(&v4).unwrap();
        assert_eq!((sent.len(), &sent[20..22], &sent[26..28]), (576, &[3, 4][..], &1220u16.to_be_bytes()[..]));
        assert_eq!((&sent[12..16], &sent[16..20], &sent[28..]), (&v4[16..20], &v4[12..16], &v4[..548]));
        assert_eq!((fold(sum(0, &sent[..20])), fold(sum(0, &sent[20..]))), (0xffff, 0xffff));
        let v6 = packet(true, 17, 1400);
        let sent = message(&v6).unwrap();
        assert_eq!((sent.len(), &sent[40..42], &sent[44..48]), (1280, &[2, 0][..], &1280u32.to_be_bytes()[..]));
        assert_eq!((&sent[8..24], &sent[24..40], &sent[48..]), (&v6[24..40], &v6[8..24], &v6[..1232]));
        let rest = [0, ICMPV6, (1240u16 >> 8) as u8, 1240u16 as u8];
        assert_eq!(fold(sum(sum(sum(0, &sent[8..40]), &rest), &sent[40..])), 0xffff);
    }

    #[test]
    fn the_message_says_that_the_host_is_unreachable() {
        let mut into = [0; ICMP_LEN_MAX];
        let mut v4 = packet(false, 17, 40);
        // It may be sent in fragments, which would not help.
        v4[6] = 0;
        let len = unreachable(&v4, &mut into).unwrap();
        assert_eq!((len, &into[20..22], &into[24..28], &into[28..len]), (68, &[3, 1][..], &[0; 4][..], &v4[..]));
        let v6 = packet(true, 17, 60);
        let len = unreachable(&v6, &mut into).unwrap();
        assert_eq!((len, &into[40..42], &into[44..48], &into[48..len]), (108, &[1, 3][..], &[0; 4][..], &v6[..]));
        assert_eq!(unreachable(&packet(false, ICMPV4, 40), &mut into), None, "an error");
    }

    #[test]
    fn some_packets_get_no_message() {
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

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..90), v6 in any::<bool>(), mtu in 0usize..2000) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = if v6 { 0x60 } else { 0x40 | *first & 15 };
            }
            let _ = too_big(&bytes, 2000, mtu, &mut [0; ICMP_LEN_MAX]);
            let _ = unreachable(&bytes, &mut [0; ICMP_LEN_MAX]);
        }
    }
}
