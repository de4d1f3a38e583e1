//! Superframes of a TUN device with virtio headers: cut into packets for the tunnel, and made of packets from it.
//!
//! The kernel passes up to 64 KiB of one TCP or UDP flow at once (`struct virtio_net_hdr`, `linux/virtio_net.h`), and takes as
//! much. A [`Superframe`] writes each packet straight into the slot that it is sealed in. [`join`] finds neighbours that make a
//! superframe where they lie, so that they are written by one `writev`.
use super::checksum::{finish, fold, sum};
use super::data_path::packet_len;
use super::message::field;

/// The length of the header before each frame.
pub const VIRTIO_HEADER_LEN: usize = 10;

/// Bytes of the longest frame: the length field of IPv4 has no more. Over IPv6 40 more would fit.
const FRAME_MAX: usize = 65_535;

const NEEDS_CHECKSUM: u8 = 1;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
/// The flow uses ECN; the type is in the other bits.
const GSO_ECN: u8 = 0x80;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const CWR: u8 = 0x80;

/// The header before a frame, in the byte order of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VirtioHeader {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl VirtioHeader {
    #[allow(missing_docs)]
    pub fn from_bytes(bytes: [u8; VIRTIO_HEADER_LEN]) -> Self {
        let [flags, gso_type, rest @ ..] = bytes;
        let number = |at: usize| u16::from_ne_bytes([rest[at], rest[at + 1]]);
        let [header_len, gso_size, checksum_start, checksum_offset] = [0, 2, 4, 6].map(number);
        Self { flags, gso_type, header_len, gso_size, checksum_start, checksum_offset }
    }

    #[allow(missing_docs)]
    pub fn to_bytes(self) -> [u8; VIRTIO_HEADER_LEN] {
        let mut bytes = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
        let numbers = [self.header_len, self.gso_size, self.checksum_start, self.checksum_offset];
        for (to, number) in bytes[2..].chunks_exact_mut(2).zip(numbers) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }
}

/// A frame and its header contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the frame does not fit its virtio header")]
pub struct BadFrame;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    fn protocol(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    fn checksum_offset(self) -> usize {
        match self {
            Self::Tcp => 16,
            Self::Udp => 6,
        }
    }

    /// The length of the header that begins `bytes`.
    fn header_len(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Tcp => bytes.get(12).map(|offset| usize::from(offset >> 4) * 4).filter(|len| *len >= 20),
            Self::Udp => Some(8),
        }
        .filter(|len| *len <= bytes.len())
    }
}

/// A frame from the TUN device: one packet, or several that are cut out of it.
#[derive(Debug)]
pub struct Superframe<'a> {
    frame: &'a [u8],
    /// The offset of the transport header, and how its packets are cut; `None` for one packet that is complete.
    cut: Option<Cut>,
    /// The checksum of a single packet is still to be added: where it begins to count, and where it is.
    checksum: Option<(usize, usize)>,
}

#[derive(Debug, Clone, Copy)]
struct Cut {
    transport: Transport,
    transport_at: usize,
    payload_at: usize,
    /// Payload of each packet but the last.
    size: usize,
}

impl<'a> Superframe<'a> {
    /// Checks a frame against its header.
    pub fn new(header: VirtioHeader, frame: &'a [u8]) -> Result<Self, BadFrame> {
        let (start, offset) = (usize::from(header.checksum_start), usize::from(header.checksum_offset));
        let checksum = (header.flags & NEEDS_CHECKSUM != 0).then_some((start, start + offset));
        let version = frame.first().map(|byte| byte >> 4);
        let transport = match (header.gso_type & !GSO_ECN, version) {
            (0, _) => {
                let fits = checksum.is_none_or(|(_, field)| field + 2 <= frame.len());
                return if fits { Ok(Self { frame, cut: None, checksum }) } else { Err(BadFrame) };
            }
            (GSO_TCP4, Some(4)) | (GSO_TCP6, Some(6)) => Transport::Tcp,
            (GSO_UDP, Some(4 | 6)) => Transport::Udp,
            _ => return Err(BadFrame),
        };
        let ip_len = if version == Some(4) { usize::from(frame[0] & 15) * 4 } else { 40 };
        let least = if version == Some(4) { 20 } else { 40 };
        // The kernel leaves the checksum of every superframe to the reader, and so says where its transport header is.
        let fits = ip_len >= least && start >= ip_len && checksum.is_some() && packet_len(frame) == Some(frame.len());
        let header_len = frame.get(start..).filter(|_| fits).and_then(|rest| transport.header_len(rest));
        let payload_at = start + header_len.ok_or(BadFrame)?;
        let size = usize::from(header.gso_size);
        if offset != transport.checksum_offset() || size == 0 || payload_at == frame.len() {
            return Err(BadFrame);
        }
        Ok(Self { frame, cut: Some(Cut { transport, transport_at: start, payload_at, size }), checksum: None })
    }

    /// How many packets it has.
    pub fn packets(&self) -> usize {
        self.cut.map_or(1, |cut| (self.frame.len() - cut.payload_at).div_ceil(cut.size))
    }

    /// The length of each packet but the last.
    pub fn packet_len(&self) -> usize {
        self.cut.map_or(self.frame.len(), |cut| (cut.payload_at + cut.size).min(self.frame.len()))
    }

    /// The beginning of the frame, as long as its first packet. Lengths in its headers are those of the frame.
    pub fn head(&self) -> &'a [u8] {
        &self.frame[..self.packet_len()]
    }

    /// The length of the last packet.
    pub fn last_len(&self) -> usize {
        match self.cut {
            Some(cut) => self.frame.len() - (self.packets() - 1) * cut.size,
            None => self.frame.len(),
        }
    }

    /// Writes packet `n` to the beginning of `into`, and returns its length.
    ///
    /// # Panics
    ///
    /// If there is no such packet, or if it does not fit.
    pub fn write_packet(&self, n: usize, into: &mut [u8]) -> usize {
        let Some(cut) = self.cut else {
            let packet = &mut into[..self.frame.len()];
            packet.copy_from_slice(self.frame);
            if let Some((start, field)) = self.checksum {
                // The field has the sum of the pseudo-header.
                let checksum = no_zero(finish(sum(0, &packet[start..])));
                packet[field..field + 2].copy_from_slice(&checksum);
            }
            return packet.len();
        };
        let payload = &self.frame[cut.payload_at..][n * cut.size..];
        let payload = &payload[..cut.size.min(payload.len())];
        let len = cut.payload_at + payload.len();
        let packet = &mut into[..len];
        packet[..cut.payload_at].copy_from_slice(&self.frame[..cut.payload_at]);
        packet[cut.payload_at..].copy_from_slice(payload);
        set_ip_len(packet, n as u16);
        cut.adjust_transport(packet, n, n + 1 == self.packets());
        set_checksum(packet, cut.transport, cut.transport_at);
        len
    }
}

impl Cut {
    /// The fields of the transport header that differ between the packets of a superframe.
    fn adjust_transport(&self, packet: &mut [u8], n: usize, last: bool) {
        let at = self.transport_at;
        match self.transport {
            Transport::Tcp => {
                let seq = u32::from_be_bytes(*field(packet, at + 4)).wrapping_add((n * self.size) as u32);
                packet[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
                let first_only = if n == 0 { 0 } else { CWR };
                let last_only = if last { 0 } else { FIN | PSH };
                packet[at + 13] &= !(first_only | last_only);
            }
            Transport::Udp => {
                let len = (packet.len() - at) as u16;
                packet[at + 4..at + 6].copy_from_slice(&len.to_be_bytes());
            }
        }
    }
}

/// Writes the length of a packet into its IP header, with `id_step` added to the identification of IPv4.
fn set_ip_len(packet: &mut [u8], id_step: u16) {
    let len = packet.len();
    if packet[0] >> 4 == 6 {
        packet[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        return;
    }
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    let id = u16::from_be_bytes(*field(packet, 4)).wrapping_add(id_step);
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    let header_len = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let checksum = finish(sum(0, &packet[..header_len]));
    packet[10..12].copy_from_slice(&checksum);
}

/// Writes the checksum of the transport header at `at`.
fn set_checksum(packet: &mut [u8], transport: Transport, at: usize) {
    let field = at + transport.checksum_offset();
    packet[field..field + 2].fill(0);
    let checksum = no_zero(finish(sum(pseudo_header(packet, transport, at), &packet[at..])));
    packet[field..field + 2].copy_from_slice(&checksum);
}

/// Writes a checksum of zero as 0xffff, which is the same sum. Zero stands for none in UDP (RFC 768), and IPv6 drops that. It is right for
/// all protocols, and `skb_checksum_help()` does it for all (net/core/dev.c).
fn no_zero(checksum: [u8; 2]) -> [u8; 2] {
    if checksum == [0, 0] { [0xff, 0xff] } else { checksum }
}

/// The sum of the addresses, the protocol and the length of what follows the IP header.
fn pseudo_header(packet: &[u8], transport: Transport, transport_at: usize) -> u64 {
    let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..40] };
    let len = (packet.len() - transport_at) as u16;
    let rest = [0, transport.protocol(), (len >> 8) as u8, len as u8];
    sum(sum(0, addresses), &rest)
}

/// A packet as [`join`] sees it.
struct Parsed<'a> {
    bytes: &'a [u8],
    transport: Transport,
    transport_at: usize,
    payload_at: usize,
}

impl<'a> Parsed<'a> {
    /// `None` for what cannot be part of a superframe.
    fn new(bytes: &'a [u8]) -> Option<Self> {
        if packet_len(bytes)? != bytes.len() {
            return None;
        }
        let (protocol, transport_at) = match bytes[0] >> 4 {
            // No options, and no fragment.
            4 if bytes[0] & 15 == 5 && field::<2>(bytes, 6)[0] & 0x3f == 0 && bytes[7] == 0 => (bytes[9], 20),
            6 if bytes.len() >= 40 => (bytes[6], 40),
            _ => return None,
        };
        let transport = match protocol {
            6 => Transport::Tcp,
            17 => Transport::Udp,
            _ => return None,
        };
        let payload_at = transport_at + transport.header_len(&bytes[transport_at..])?;
        let parsed = Self { bytes, transport, transport_at, payload_at };
        parsed.may_join().then_some(parsed)
    }

    fn may_join(&self) -> bool {
        let plain = match self.transport {
            // Only data: other flags mean something for one packet.
            Transport::Tcp => self.flags() & !PSH == ACK,
            Transport::Udp => {
                let len = usize::from(u16::from_be_bytes(*field(self.bytes, self.transport_at + 4)));
                let checksum = *field::<2>(self.bytes, self.transport_at + 6);
                len == self.bytes.len() - self.transport_at && checksum != [0, 0]
            }
        };
        plain && self.payload_len() > 0 && self.checksums_hold()
    }

    fn flags(&self) -> u8 {
        self.bytes[self.transport_at + 13]
    }

    fn payload_len(&self) -> usize {
        self.bytes.len() - self.payload_at
    }

    fn seq(&self) -> u32 {
        u32::from_be_bytes(*field(self.bytes, self.transport_at + 4))
    }

    /// The kernel takes the checksums of a superframe for granted.
    fn checksums_hold(&self) -> bool {
        let ip = self.bytes[0] >> 4 == 6 || fold(sum(0, &self.bytes[..20])) == 0xffff;
        let pseudo = pseudo_header(self.bytes, self.transport, self.transport_at);
        ip && fold(sum(pseudo, &self.bytes[self.transport_at..])) == 0xffff
    }

    /// Whether `next` differs only in what follows from its place in a superframe of `count` packets that begins with `self`.
    fn is_followed_by(&self, next: &Self, count: usize) -> bool {
        let (first, second) = (self.bytes, next.bytes);
        let same = |from: usize, to: usize| first.get(from..to) == second.get(from..to);
        let headers = (self.transport, self.payload_at) == (next.transport, next.payload_at) && first[0] == second[0];
        let at = self.transport_at;
        let ip = match first[0] >> 4 {
            4 => {
                let id = |bytes: &[u8]| u16::from_be_bytes(*field(bytes, 4));
                // The identification of packets that may not be fragmented means nothing.
                let ids = first[6] & 0x40 != 0 || id(second) == id(first).wrapping_add(count as u16);
                same(0, 2) && same(6, 10) && same(12, 20) && ids
            }
            _ => same(0, 4) && same(6, 40),
        };
        let transport = headers
            && match self.transport {
                Transport::Tcp => {
                    let seq = self.seq().wrapping_add((count * self.payload_len()) as u32);
                    // Ports, acknowledgement, window, options.
                    same(at, at + 4)
                        && same(at + 8, at + 13)
                        && same(at + 14, at + 16)
                        && same(at + 18, self.payload_at)
                        && next.seq() == seq
                }
                Transport::Udp => same(at, at + 4),
            };
        ip && transport && next.payload_len() <= self.payload_len()
    }
}

/// Neighbours among packets that are written as one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// How many packets.
    pub packets: usize,
    /// The offset of the payload in all but the first, which is written with its headers.
    pub payload_at: usize,
    /// The header of the frame.
    pub header: VirtioHeader,
}

/// How many of `packets`, from the first one on, make one frame. Packets keep their order, and only intact ones are joined.
/// Those of UDP only with `udp`, which the kernel takes since 6.2.
///
/// Where that is more than one, [`prepare_first`] is called with the first and the length of the frame.
pub fn join<'a>(packets: impl IntoIterator<Item = &'a [u8]>, udp: bool) -> Option<Joined> {
    let mut packets = packets.into_iter();
    let first = packets.next()?;
    let single = Joined { packets: 1, payload_at: 0, header: VirtioHeader::default() };
    let parsed = Parsed::new(first).filter(|first| udp || first.transport == Transport::Tcp);
    let Some(first) = parsed else { return Some(single) };
    let (mut count, mut len) = (1, first.bytes.len());
    if !(first.transport == Transport::Tcp && first.flags() & PSH != 0) {
        for next in packets {
            // The packets of a frame have one size, so a shorter one is its last.
            let Some(next) = Parsed::new(next).filter(|next| first.is_followed_by(next, count)) else { break };
            if len + next.payload_len() > FRAME_MAX {
                break;
            }
            count += 1;
            len += next.payload_len();
            let pushed = next.transport == Transport::Tcp && next.flags() & PSH != 0;
            if pushed || next.payload_len() < first.payload_len() {
                break;
            }
        }
    }
    if count == 1 {
        return Some(single);
    }
    let gso_type = match (first.transport, first.bytes[0] >> 4) {
        (Transport::Udp, _) => GSO_UDP,
        (Transport::Tcp, 4) => GSO_TCP4,
        (Transport::Tcp, _) => GSO_TCP6,
    };
    let header = VirtioHeader {
        flags: NEEDS_CHECKSUM,
        gso_type,
        header_len: first.payload_at as u16,
        gso_size: first.payload_len() as u16,
        checksum_start: first.transport_at as u16,
        checksum_offset: first.transport.checksum_offset() as u16,
    };
    Some(Joined { packets: count, payload_at: first.payload_at, header })
}

/// Makes the headers of the first packet those of a frame of `frame_len` bytes. `pushed` is whether the last packet, of TCP, has
/// the flag PSH ([`has_push`]).
pub fn prepare_first(first: &mut [u8], joined: &Joined, frame_len: usize, pushed: bool) {
    let at = usize::from(joined.header.checksum_start);
    let transport = if joined.header.gso_type == GSO_UDP { Transport::Udp } else { Transport::Tcp };
    let len = (frame_len - at) as u16;
    match first[0] >> 4 {
        4 => {
            first[2..4].copy_from_slice(&(frame_len as u16).to_be_bytes());
            first[10..12].fill(0);
            let checksum = finish(sum(0, &first[..20]));
            first[10..12].copy_from_slice(&checksum);
        }
        _ => first[4..6].copy_from_slice(&len.to_be_bytes()),
    }
    match transport {
        Transport::Tcp if pushed => first[at + 13] |= PSH,
        Transport::Tcp => {}
        Transport::Udp => first[at + 4..at + 6].copy_from_slice(&len.to_be_bytes()),
    }
    let addresses = if first[0] >> 4 == 4 { sum(0, &first[12..20]) } else { sum(0, &first[8..40]) };
    let rest = [0, transport.protocol(), (len >> 8) as u8, len as u8];
    let pseudo = fold(sum(addresses, &rest)).to_ne_bytes();
    let field = at + transport.checksum_offset();
    first[field..field + 2].copy_from_slice(&pseudo);
}

/// Whether the TCP flag PSH is set in a packet of a frame.
pub fn has_push(packet: &[u8], joined: &Joined) -> bool {
    let flags = packet.get(usize::from(joined.header.checksum_start) + 13);
    joined.header.gso_type != GSO_UDP && flags.is_some_and(|flags| flags & PSH != 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A frame as the kernel passes it: lengths and the sum of the pseudo-header are right.
    fn frame(v6: bool, transport: Transport, flags: u8, payload: &[u8]) -> Vec<u8> {
        let (transport_at, header_len) = (if v6 { 40 } else { 20 }, if transport == Transport::Tcp { 32 } else { 8 });
        let mut frame = vec![0; transport_at + header_len];
        frame.extend(payload);
        let len = frame.len();
        if v6 {
            frame[0] = 0x60;
            frame[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
            frame[6..8].copy_from_slice(&[transport.protocol(), 64]);
            frame[8..40].copy_from_slice(&std::array::from_fn::<u8, 32, _>(|n| n as u8));
        } else {
            frame[..10].copy_from_slice(&[
                0x45,
                2,
                (len >> 8) as u8,
                len as u8,
                0xff,
                0xfe,
                0x40,
                0,
                64,
                transport.protocol(),
            ]);
            frame[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        }
        frame[transport_at..transport_at + 4].copy_from_slice(&[0x30, 0x39, 0, 80]);
        match transport {
            Transport::Tcp => {
                frame[transport_at + 4..transport_at + 8].copy_from_slice(&(u32::MAX - 100).to_be_bytes());
                frame[transport_at + 12] = 0x80;
                frame[transport_at + 13] = flags;
                frame[transport_at + 20..transport_at + 32].fill(1);
            }
            Transport::Udp => {
                let udp_len = (len - transport_at) as u16;
                frame[transport_at + 4..transport_at + 6].copy_from_slice(&udp_len.to_be_bytes());
            }
        }
        let pseudo = fold(pseudo_header(&frame, transport, transport_at)).to_ne_bytes();
        let field = transport_at + transport.checksum_offset();
        frame[field..field + 2].copy_from_slice(&pseudo);
        frame
    }

    fn header(v6: bool, transport: Transport, gso_size: u16) -> VirtioHeader {
        VirtioHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: match (transport, v6) {
                (Transport::Udp, _) => GSO_UDP,
                (Transport::Tcp, false) => GSO_TCP4 | GSO_ECN,
                (Transport::Tcp, true) => GSO_TCP6,
            },
            header_len: 0,
            gso_size,
            checksum_start: if v6 { 40 } else { 20 },
            checksum_offset: transport.checksum_offset() as u16,
        }
    }

    fn cut(frame: &Superframe<'_>) -> Vec<Vec<u8>> {
        let one = |n| {
            let mut packet = vec![0xee; frame.packet_len()];
            let len = frame.write_packet(n, &mut packet);
            packet.truncate(len);
            packet
        };
        (0..frame.packets()).map(one).collect()
    }

    proptest! {
        #[test]
        fn a_frame_is_cut_into_whole_packets_which_join_again(
            v6 in any::<bool>(), udp in any::<bool>(), size in 1u16..3000, len in 1usize..20_000, pushed in any::<bool>(),
            cwr in any::<bool>(),
        ) {
            let transport = if udp { Transport::Udp } else { Transport::Tcp };
            let payload: Vec<u8> = (0..len).map(|n| (n * 7 % 251) as u8).collect();
            let flags = ACK | if pushed { PSH } else { 0 } | if cwr { CWR } else { 0 };
            let original = frame(v6, transport, flags, &payload);
            let superframe = Superframe::new(header(v6, transport, size), &original).unwrap();
            let packets = cut(&superframe);
            prop_assert_eq!(packets.len(), len.div_ceil(size.into()));
            prop_assert_eq!(packets.last().unwrap().len(), superframe.last_len());
            let payload_at = original.len() - len;
            let joined: Vec<u8> = packets.iter().flat_map(|packet| &packet[payload_at..]).copied().collect();
            prop_assert_eq!(&joined, &payload);
            for (n, packet) in packets.iter().enumerate() {
                prop_assert_eq!(packet_len(packet), Some(packet.len()));
                let transport_at = if v6 { 40 } else { 20 };
                let parsed = Parsed { bytes: packet, transport, transport_at, payload_at };
                prop_assert!(parsed.checksums_hold(), "packet {}", n);
                if !udp {
                    prop_assert_eq!(parsed.seq(), (u32::MAX - 100).wrapping_add((n * usize::from(size)) as u32));
                    let last = n + 1 == packets.len();
                    prop_assert_eq!(parsed.flags() & PSH != 0, pushed && last);
                    prop_assert_eq!(parsed.flags() & CWR != 0, cwr && n == 0);
                }
            }
            if packets.len() > 1 && !cwr {
                let joined = join(packets.iter().map(Vec::as_slice), true).unwrap();
                prop_assert_eq!(joined.packets, packets.len());
                prop_assert_eq!(joined.payload_at, payload_at);
                prop_assert_eq!(joined.header.gso_size, size);
                let mut first = packets[0].clone();
                prepare_first(&mut first, &joined, original.len(), has_push(packets.last().unwrap(), &joined));
                let again: Vec<u8> = first.iter().chain(packets[1..].iter().flat_map(|packet| &packet[payload_at..])).copied().collect();
                let again = cut(&Superframe::new(joined.header, &again).unwrap());
                prop_assert_eq!(again, packets);
            }
        }

        #[test]
        fn any_bytes_are_cut_or_refused(
            head in any::<[u8; VIRTIO_HEADER_LEN]>(), version in prop::sample::select(vec![0x45u8, 0x46, 0x60, 0]),
            gso_type in 0u8..6, mut bytes in prop::collection::vec(any::<u8>(), 0..200), right_len in any::<bool>(),
        ) {
            let mut head = VirtioHeader::from_bytes(head);
            head.gso_type = gso_type;
            head.checksum_start %= 70;
            head.checksum_offset %= 20;
            let len = bytes.len();
            if let Some(first) = bytes.first_mut() {
                *first = version;
            }
            if right_len && len >= 40 {
                let len = if version == 0x60 { len - 40 } else { len } as u16;
                let at = if version == 0x60 { 4 } else { 2 };
                bytes[at..at + 2].copy_from_slice(&len.to_be_bytes());
            }
            prop_assert_eq!(VirtioHeader::from_bytes(head.to_bytes()), head);
            if let Ok(superframe) = Superframe::new(head, &bytes) {
                prop_assert!(cut(&superframe).iter().all(|packet| packet.len() <= bytes.len()));
            }
            let _ = join([&bytes[..], &bytes[..]], true);
        }
    }

    #[test]
    fn only_intact_neighbours_of_one_flow_are_joined() {
        let payload: Vec<u8> = (0..3000).map(|n| n as u8).collect();
        let packets = |flags| {
            let original = frame(false, Transport::Tcp, flags, &payload);
            cut(&Superframe::new(header(false, Transport::Tcp, 1000), &original).unwrap())
        };
        let count = |packets: &[Vec<u8>]| join(packets.iter().map(Vec::as_slice), true).map(|joined| joined.packets);
        let right = packets(ACK);
        assert_eq!((count(&right), count(&[])), (Some(3), None));
        let altered = |n: usize, at: usize| {
            let mut packets = right.clone();
            packets[n][at] ^= 1;
            packets
        };
        assert_eq!(count(&altered(0, 60)), Some(1), "the checksum of the first does not hold");
        assert_eq!(count(&altered(2, 60)), Some(2));
        assert_eq!(count(&[right[0].clone(), right[2].clone()]), Some(1), "one is missing");
        assert_eq!(count(&[right[1].clone(), right[0].clone()]), Some(1), "the order is wrong");
        assert_eq!(count(&packets(ACK | FIN)), Some(2), "the last ends the connection");
        for (at, what) in [
            (1, "ECN"),
            (8, "TTL"),
            (13, "source"),
            (21, "port"),
            (28, "acknowledgement"),
            (35, "window"),
            (45, "option"),
        ] {
            let mut packets = right.clone();
            packets[1][at] ^= 1;
            set_ip_len(&mut packets[1], 0);
            set_checksum(&mut packets[1], Transport::Tcp, 20);
            assert_eq!(count(&packets), Some(1), "{what}");
        }
        let mut pushed = right.clone();
        pushed[1][33] |= PSH;
        set_checksum(&mut pushed[1], Transport::Tcp, 20);
        assert_eq!(count(&pushed), Some(2), "PSH ends a frame");
    }

    /// IPv6 drops UDP without a checksum, which zero stands for.
    #[test]
    fn a_checksum_that_is_zero_is_written_as_ones() {
        for transport in [Transport::Udp, Transport::Tcp] {
            let zero = (0..=u16::MAX).map(|word| frame(true, transport, ACK, &word.to_be_bytes())).find(|frame| {
                let field = 40 + transport.checksum_offset();
                let mut summed = frame.clone();
                summed[field..field + 2].fill(0);
                finish(sum(pseudo_header(&summed, transport, 40), &summed[40..])) == [0, 0]
            });
            let original = zero.expect("one of all words makes the sum zero");
            for gso_type in [0, header(true, transport, 0).gso_type] {
                let head = VirtioHeader { gso_type, ..header(true, transport, 2) };
                let packets = cut(&Superframe::new(head, &original).unwrap());
                let field = 40 + transport.checksum_offset();
                assert_eq!(packets[0][field..field + 2], [0xff, 0xff], "{transport:?}, type {gso_type}");
                assert!(Parsed::new(&packets[0]).is_some(), "it holds");
            }
        }
    }

    #[test]
    fn a_single_packet_gets_its_checksum() {
        for udp in [false, true] {
            let transport = if udp { Transport::Udp } else { Transport::Tcp };
            let original = frame(true, transport, ACK, b"odd");
            let head = VirtioHeader { gso_type: 0, ..header(true, transport, 0) };
            let packets = cut(&Superframe::new(head, &original).unwrap());
            assert!(Parsed::new(&packets[0]).is_some(), "its checksum holds");
            let plain = VirtioHeader::default();
            assert_eq!(cut(&Superframe::new(plain, &packets[0]).unwrap()), packets);
        }
    }
}
