//! Control messages (cmsg(3)) of datagrams, received and sent.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// The buffer for the control messages of one datagram, aligned as `cmsghdr` requires. The most that arrives is an IPv6
/// pktinfo (40 bytes), a time (32), a segment size and a traffic class (24 each).
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control(pub(crate) [u8; Control::BYTES]);

impl Control {
    pub(crate) const BYTES: usize = 128;
    pub(crate) const EMPTY: Self = Self([0; Self::BYTES]);
}

/// The received control messages of a datagram.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ancillary {
    /// Size of each datagram of a super-datagram, in bytes (UDP_GRO).
    pub(crate) segment: Option<usize>,
    /// The local address that the datagram was sent to.
    pub(crate) local: Option<IpAddr>,
    /// The index of the interface that it came in by; 0 if it is unknown.
    pub(crate) interface: u32,
    /// The two bits of ECN.
    pub(crate) ecn: u8,
    /// When the kernel received it, since 1970.
    pub(crate) arrived: Option<Duration>,
}

/// The bits of ECN in a type of service or a traffic class (RFC 3168).
const ECN_MASK: u8 = 3;

/// Reads the control messages of a header that the kernel has filled in.
pub(crate) fn read(header: &libc::msghdr) -> Ancillary {
    let mut found = Ancillary::default();
    // SAFETY: msg_control points to msg_controllen bytes of messages that the kernel wrote; the macros stay within them.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: the macros return null or an aligned header inside the buffer.
        let message = unsafe { &*at };
        // SAFETY: the data follows the header.
        let data = unsafe { libc::CMSG_DATA(at) };
        let bytes = (message.cmsg_len as usize).saturating_sub(data as usize - at as usize);
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) if bytes >= size_of::<libc::c_int>() => {
                // SAFETY: the message holds at least an int, as just checked.
                let size = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                found.segment = usize::try_from(size).ok().filter(|&size| size > 0);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) if bytes >= size_of::<libc::in_pktinfo>() => {
                // SAFETY: the message holds at least an in_pktinfo, as just checked.
                let info = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
                // spec_dst is the local address even when the datagram went to a broadcast or multicast one.
                found.local = Some(IpAddr::V4(Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes())));
                found.interface = info.ipi_ifindex as u32;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if bytes >= size_of::<libc::in6_pktinfo>() => {
                // SAFETY: the message holds at least an in6_pktinfo, as just checked.
                let info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
                let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                found.local = (!ip.is_multicast()).then_some(IpAddr::V6(ip));
                found.interface = info.ipi6_ifindex;
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) if bytes >= size_of::<libc::timespec>() => {
                // SAFETY: the message holds at least a timespec, as just checked.
                let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                found.arrived = Some(Duration::new(time.tv_sec as u64, (time.tv_nsec as u32).min(999_999_999)));
            }
            (libc::IPPROTO_IP, libc::IP_TOS) if bytes >= 1 => {
                // SAFETY: the message holds at least a byte, as just checked.
                found.ecn = unsafe { *data } & ECN_MASK;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if bytes >= size_of::<libc::c_int>() => {
                // SAFETY: the message holds at least an int, as just checked.
                found.ecn = unsafe { data.cast::<libc::c_int>().read_unaligned() } as u8 & ECN_MASK;
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
    found
}

/// The bits of ECN of datagrams that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ecn {
    pub(crate) bits: u8,
    /// The family of the socket.
    pub(crate) ipv6: bool,
}

/// Writes the control messages that set the segment size (UDP_SEGMENT), the bits of ECN and the source address, as far as they
/// are given. Returns their length in bytes.
pub(crate) fn write(control: &mut Control, segment: Option<u16>, ecn: Option<Ecn>, local: Option<IpAddr>) -> usize {
    let mut at = 0;
    if let Some(Ecn { bits, ipv6 }) = ecn {
        let (level, kind) =
            if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) };
        at = append(control, at, level, kind, &libc::c_int::from(bits & ECN_MASK).to_ne_bytes());
    }
    if let Some(segment) = segment {
        at = append(control, at, libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    match local {
        Some(IpAddr::V4(ip)) => {
            // struct in_pktinfo: interface (0: the routes decide), source address, unused.
            let mut info = [0_u8; 12];
            info[4..8].copy_from_slice(&ip.octets());
            append(control, at, libc::IPPROTO_IP, libc::IP_PKTINFO, &info)
        }
        Some(IpAddr::V6(ip)) => {
            // struct in6_pktinfo: source address, interface (0: the routes or the scope of the destination decide).
            let mut info = [0_u8; 20];
            info[..16].copy_from_slice(&ip.octets());
            append(control, at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info)
        }
        None => at,
    }
}

fn append(control: &mut Control, at: usize, level: libc::c_int, kind: libc::c_int, data: &[u8]) -> usize {
    // SAFETY: both are arithmetic on a length.
    let (len, space) = unsafe { (libc::CMSG_LEN(data.len() as u32), libc::CMSG_SPACE(data.len() as u32) as usize) };
    let area = &mut control.0[at..at + space];
    area.fill(0);
    let header = area.as_mut_ptr().cast::<libc::cmsghdr>();
    // SAFETY: `area` has `space` bytes, enough for the header and the data, and `at` is a sum of CMSG_SPACEs in a buffer
    // aligned to 8, so the header is aligned; all its bytes were just written, so a reference to it is valid.
    unsafe {
        (*header).cmsg_len = len as _;
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        libc::CMSG_DATA(header).copy_from_nonoverlapping(data.as_ptr(), data.len());
    }
    at + space
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(control: &mut Control, len: usize) -> libc::msghdr {
        // SAFETY: null pointers and zero lengths are a valid msghdr.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = len as _;
        header
    }

    #[test]
    fn a_written_local_address_is_read_back() {
        for local in ["127.0.0.2", "::1", "2001:db8::7"] {
            let local: IpAddr = local.parse().expect("an address");
            let mut control = Control::EMPTY;
            let ecn = Ecn { bits: 2, ipv6: local.is_ipv6() };
            let len = write(&mut control, Some(1200), Some(ecn), Some(local));
            assert!(len <= Control::BYTES);
            let found = read(&header(&mut control, len));
            assert_eq!((found.ecn, found.interface), (2, 0));
            // The source address of a sent in_pktinfo is in the field that holds the local address of a received one.
            assert_eq!(found.local, Some(local));
            assert_eq!(found.segment, None, "UDP_SEGMENT is not UDP_GRO");
        }
    }

    #[test]
    fn a_segment_size_is_read() {
        let mut control = Control::EMPTY;
        let len = append(&mut control, 0, libc::SOL_UDP, libc::UDP_GRO, &1400_i32.to_ne_bytes());
        assert_eq!(read(&header(&mut control, len)).segment, Some(1400));
        let len = append(&mut control, 0, libc::SOL_UDP, libc::UDP_GRO, &(-1_i32).to_ne_bytes());
        assert_eq!(read(&header(&mut control, len)).segment, None);
    }

    #[test]
    fn missing_and_short_messages_are_ignored() {
        let mut control = Control::EMPTY;
        assert_eq!(read(&header(&mut control, 0)), Ancillary::default());
        let len = append(&mut control, 0, libc::SOL_UDP, libc::UDP_GRO, &[1]);
        assert_eq!(read(&header(&mut control, len)), Ancillary::default());
    }
}
