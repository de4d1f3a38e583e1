//! Packets of IP with any contents, SYNs with options among them: whatever is read or changed in a packet, it keeps its length and
//! the checksum of TCP holds if it held before.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_core::tunnel::{ICMP_LEN_MAX, clamp_mss, destination, source, too_big, udp_ports, unreachable};

/// The one's complement sum of 16-bit words, as RFC 1071 describes it.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum = words.fold(0u32, u32::wrapping_add);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Makes a SYN of the bytes: a header of IP, one of TCP, and what is left as its options.
fn syn(bytes: &[u8], v6: bool) -> Vec<u8> {
    let at = if v6 { 40 } else { 20 };
    let mut packet = vec![0; at + 20];
    packet[0] = if v6 { 0x60 } else { 0x45 };
    packet[if v6 { 6 } else { 9 }] = 6;
    packet[at + 12] = bytes.first().map_or(0x50, |offset| offset & 0xf0);
    packet[at + 13] = 2;
    packet.extend(bytes.get(1..).unwrap_or_default());
    let checksum = !sum(&packet[at..]);
    packet[at + 16..at + 18].copy_from_slice(&checksum.to_be_bytes());
    packet
}

fuzz_target!(|bytes: &[u8]| {
    let [how, mtu, bytes @ ..] = bytes else { return };
    let (v6, mtu) = (how & 1 != 0, usize::from(*mtu) * 8);
    // Longer packets are none of IP.
    let bytes = &bytes[..bytes.len().min(60_000)];
    let mut packet = if how & 2 != 0 { syn(bytes, v6) } else { bytes.to_vec() };
    let (at, len, before) = (if v6 { 40 } else { 20 }, packet.len(), packet.clone());
    assert_eq!(clamp_mss(&mut packet, mtu), packet != before);
    assert_eq!(packet.len(), len);
    if how & 2 != 0 {
        assert_eq!(sum(&packet[at..]), 0xffff, "the checksum of a SYN");
    }
    let _ = (source(&packet), destination(&packet), udp_ports(&packet));
    let mut into = [0; ICMP_LEN_MAX];
    let _ = (too_big(&packet, len, mtu, &mut into), unreachable(&packet, &mut into));
});
