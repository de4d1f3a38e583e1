//! Version 2: the binary header (section 2.2).
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crc::{CRC_32_ISCSI, Crc};

use super::header::{Addresses, Command, Header, Malformed, Parsed, Transport, UnixPaths, agrees};
use super::tlv::{self, Kind, Tlvs};
use super::v1;
use crate::relay::config::ProxyVersion;

/// The longest header that is accepted, in bytes. The protocol allows 65,551, but the sender of a header is not yet trusted,
/// and the TLVs that senders add (host names, names of certificates, ids) take some hundred bytes.
pub const MAX_BYTES: usize = 4096;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The length of the fixed part: signature, version and command, family and transport, length of the rest.
const FIXED_BYTES: usize = 16;
const UNIX_PATH_BYTES: usize = 108;
/// CRC32C is the checksum of iSCSI and SCTP (RFC 4960, appendix B). A table is enough for a few hundred bytes.
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

pub(super) fn parse(bytes: &[u8]) -> Parsed {
    if !agrees(bytes, SIGNATURE) {
        return Err(Malformed::NotProxy);
    }
    let Some(&version_command) = bytes.get(12) else { return Ok(None) };
    let command = match (version_command >> 4, version_command & 0xf) {
        (2, 0) => Command::Local,
        (2, 1) => Command::Proxy,
        (2, other) => return Err(Malformed::BadCommand(other)),
        (other, _) => return Err(Malformed::BadVersion(other)),
    };
    let Some(&family) = bytes.get(13) else { return Ok(None) };
    // With LOCAL everything but the length must be ignored, also the family.
    if command == Command::Proxy && (family >> 4 > 3 || family & 0xf > 2) {
        return Err(Malformed::BadFamily(family));
    }
    let &[high, low] = bytes.get(14..FIXED_BYTES).unwrap_or_default() else { return Ok(None) };
    let total = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if total > MAX_BYTES {
        return Err(Malformed::HeaderTooLong(total as u32));
    }
    let Some(whole) = bytes.get(..total) else { return Ok(None) };
    let mut header = Header {
        version: ProxyVersion::V2,
        command,
        addresses: Addresses::Unknown,
        checksum: false,
        tlvs: Tlvs::default(),
    };
    if command == Command::Proxy {
        fill(&mut header, whole, family)?;
    }
    Ok(Some((header, total)))
}

/// The length in bytes of both addresses of a family.
fn address_bytes(family: u8) -> usize {
    match family >> 4 {
        1 => 2 * (4 + 2),
        2 => 2 * (16 + 2),
        3 => 2 * UNIX_PATH_BYTES,
        _ => 0,
    }
}

/// Reads the addresses and TLVs of a complete header with the command PROXY.
fn fill(header: &mut Header, whole: &[u8], family: u8) -> Result<(), Malformed> {
    let rest = &whole[FIXED_BYTES..];
    let (block, tlvs) = rest.split_at_checked(address_bytes(family)).ok_or(Malformed::AddressesCut)?;
    header.addresses = addresses(block, family);
    // With AF_UNSPEC anything may follow (section 2.2); it is kept only if it is a list of TLVs.
    if family >> 4 == 0 && !tlv::well_formed(tlvs) {
        return Ok(());
    }
    header.tlvs = take_tlvs(whole, tlvs, &mut header.checksum)?;
    Ok(())
}

fn addresses(block: &[u8], family: u8) -> Addresses {
    let transport = match family & 0xf {
        1 => Transport::Stream,
        2 => Transport::Datagram,
        _ => return Addresses::Unknown,
    };
    let port = |at: usize| u16::from_be_bytes([block[at], block[at + 1]]);
    let ip = |a: IpAddr, b: IpAddr, ports: usize| Addresses::Ip {
        transport,
        source: SocketAddr::new(a, port(ports)),
        destination: SocketAddr::new(b, port(ports + 2)),
    };
    match family >> 4 {
        1 => ip(Ipv4Addr::from(array::<4>(block, 0)).into(), Ipv4Addr::from(array::<4>(block, 4)).into(), 8),
        2 => ip(Ipv6Addr::from(array::<16>(block, 0)).into(), Ipv6Addr::from(array::<16>(block, 16)).into(), 32),
        3 => {
            let paths = UnixPaths { source: array(block, 0), destination: array(block, UNIX_PATH_BYTES) };
            Addresses::Unix { transport, paths: Box::new(paths) }
        }
        _ => Addresses::Unknown,
    }
}

/// `N` bytes of the address block, whose length was checked against its family.
fn array<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[at..at + N]);
    bytes
}

/// Checks the TLVs and returns them without the CRC32C, which is verified and applies to this header only.
fn take_tlvs(whole: &[u8], tlvs: &[u8], checksum: &mut bool) -> Result<Tlvs, Malformed> {
    let mut kept = Tlvs::default();
    let mut at = whole.len() - tlvs.len();
    while at < whole.len() {
        let tlv = tlv::first(&whole[at..]).ok_or(Malformed::TlvCut)?;
        let value_at = at + tlv::HEAD_BYTES;
        let next = value_at + tlv.value.len();
        match tlv.kind {
            Kind::CRC32C => {
                let &[a, b, c, d] = tlv.value else { return Err(Malformed::BadTlv(Kind::CRC32C.0)) };
                // With two of them it is undefined which bytes are taken as zero.
                if std::mem::replace(checksum, true) {
                    return Err(Malformed::BadTlv(Kind::CRC32C.0));
                }
                if crc_with_zeros_at(whole, value_at) != u32::from_be_bytes([a, b, c, d]) {
                    return Err(Malformed::BadChecksum);
                }
            }
            Kind::UNIQUE_ID if tlv.value.len() > tlv::UNIQUE_ID_MAX_BYTES => {
                return Err(Malformed::BadTlv(Kind::UNIQUE_ID.0));
            }
            _ => {
                kept.reserve(whole.len() - at);
                kept.append(&whole[at..next]);
            }
        }
        at = next;
    }
    Ok(kept)
}

/// The checksum of a header with the four bytes at `at` taken as zero (section 2.2.3).
fn crc_with_zeros_at(whole: &[u8], at: usize) -> u32 {
    let mut digest = CRC32C.digest();
    digest.update(&whole[..at]);
    digest.update(&[0; 4]);
    digest.update(&whole[at + 4..]);
    digest.finalize()
}

/// The header with its TLVs is longer than the length field of version 2 allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a PROXY header cannot have {0} bytes after its first 16: at most 65535")]
pub struct HeaderTooLong(pub usize);

/// Appends the header as version 2, also if its `version` is another. On an error `out` is unchanged.
///
/// Of a LOCAL header only the first 16 bytes are written, because receivers must ignore the rest. Two addresses of different
/// families are both written as IPv6.
pub fn encode(header: &Header, out: &mut Vec<u8>) -> Result<(), HeaderTooLong> {
    let start = out.len();
    out.extend_from_slice(SIGNATURE);
    if header.command == Command::Local {
        out.extend_from_slice(&[0x20, 0, 0, 0]);
        return Ok(());
    }
    out.push(0x21);
    out.extend_from_slice(&[0; 3]);
    out[start + 13] = encode_addresses(&header.addresses, out);
    let checksum_at = header.checksum.then(|| {
        out.extend_from_slice(&[Kind::CRC32C.0, 0, 4, 0, 0, 0, 0]);
        out.len() - 4
    });
    out.extend_from_slice(header.tlvs.as_bytes());
    let rest = out.len() - start - FIXED_BYTES;
    let Ok(length) = u16::try_from(rest) else {
        out.truncate(start);
        return Err(HeaderTooLong(rest));
    };
    out[start + 14..start + 16].copy_from_slice(&length.to_be_bytes());
    if let Some(at) = checksum_at {
        let crc = CRC32C.checksum(&out[start..]);
        out[at..at + 4].copy_from_slice(&crc.to_be_bytes());
    }
    Ok(())
}

/// Appends the addresses and returns their byte of family and transport.
fn encode_addresses(addresses: &Addresses, out: &mut Vec<u8>) -> u8 {
    let low = |transport: &Transport| match transport {
        Transport::Stream => 1,
        Transport::Datagram => 2,
    };
    match addresses {
        Addresses::Unknown => 0,
        Addresses::Unix { transport, paths } => {
            out.extend_from_slice(&paths.source);
            out.extend_from_slice(&paths.destination);
            0x30 | low(transport)
        }
        Addresses::Ip { transport, source, destination } => {
            let family = match (source.ip(), destination.ip()) {
                (IpAddr::V4(a), IpAddr::V4(b)) => {
                    out.extend_from_slice(&a.octets());
                    out.extend_from_slice(&b.octets());
                    0x10
                }
                (a, b) => {
                    out.extend_from_slice(&v1::v6(a).octets());
                    out.extend_from_slice(&v1::v6(b).octets());
                    0x20
                }
            };
            out.extend_from_slice(&source.port().to_be_bytes());
            out.extend_from_slice(&destination.port().to_be_bytes());
            family | low(transport)
        }
    }
}
