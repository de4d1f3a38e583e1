//! A writer and a reader of PROXY headers that are independent of the relay's own.
use std::net::{IpAddr, SocketAddr};

pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Version 1 for TCP over IPv4.
pub fn v1(source: &str, destination: &str) -> Vec<u8> {
    let (s, d): (SocketAddr, SocketAddr) = (source.parse().unwrap(), destination.parse().unwrap());
    format!("PROXY TCP4 {} {} {} {}\r\n", s.ip(), d.ip(), s.port(), d.port()).into_bytes()
}

/// A TLV.
pub fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((value.len() as u16).to_be_bytes());
    bytes.extend(value);
    bytes
}

/// Version 2 for TCP over IPv4, with TLVs, and with a CRC32C for `checksum`.
pub fn v2(source: &str, destination: &str, tlvs: &[Vec<u8>], checksum: bool) -> Vec<u8> {
    let mut rest = Vec::new();
    let ends: [SocketAddr; 2] = [source.parse().unwrap(), destination.parse().unwrap()];
    for end in ends {
        let IpAddr::V4(v4) = end.ip() else { panic!("IPv4") };
        rest.extend(v4.octets());
    }
    ends.iter().for_each(|end| rest.extend(end.port().to_be_bytes()));
    tlvs.iter().for_each(|t| rest.extend(t));
    raw_v2(0x21, 0x11, &rest, checksum)
}

/// Version 2 with this command and family.
pub fn raw_v2(command: u8, family: u8, rest: &[u8], checksum: bool) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([command, family]);
    let len = rest.len() + if checksum { 7 } else { 0 };
    bytes.extend((len as u16).to_be_bytes());
    bytes.extend(rest);
    if checksum {
        bytes.extend(tlv(3, &[0; 4]));
        let crc = crc32c(&bytes).to_be_bytes();
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&crc);
    }
    bytes
}

/// CRC32C, bit by bit.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

/// A version 2 header that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct ReadHeader {
    pub command: u8,
    pub family: u8,
    pub source: Option<SocketAddr>,
    pub destination: Option<SocketAddr>,
    /// All TLVs but the CRC32C.
    pub tlvs: Vec<(u8, Vec<u8>)>,
    /// Whether it has a CRC32C, which was verified.
    pub checksum: bool,
}

/// Reads a version 2 header: its first 16 bytes and the rest.
pub fn read_v2(head: &[u8], rest: &[u8]) -> ReadHeader {
    let (command, family) = (head[12], head[13]);
    let mut got = ReadHeader { command, family, source: None, destination: None, tlvs: Vec::new(), checksum: false };
    let mut at = 0;
    if family == 0x11 {
        let end = |ip: usize, port: usize| {
            let ip: [u8; 4] = rest[ip..ip + 4].try_into().unwrap();
            SocketAddr::new(ip.into(), u16::from_be_bytes([rest[port], rest[port + 1]]))
        };
        (got.source, got.destination, at) = (Some(end(0, 8)), Some(end(4, 10)), 12);
    } else if family == 0x21 {
        let end = |ip: usize, port: usize| {
            let ip: [u8; 16] = rest[ip..ip + 16].try_into().unwrap();
            SocketAddr::new(ip.into(), u16::from_be_bytes([rest[port], rest[port + 1]]))
        };
        (got.source, got.destination, at) = (Some(end(0, 32)), Some(end(16, 34)), 36);
    }
    while at < rest.len() {
        let len = usize::from(u16::from_be_bytes([rest[at + 1], rest[at + 2]]));
        let value = rest[at + 3..at + 3 + len].to_vec();
        if rest[at] == 3 {
            let mut whole = [head, rest].concat();
            whole[16 + at + 3..16 + at + 7].fill(0);
            assert_eq!(value, crc32c(&whole).to_be_bytes(), "the checksum of the header is wrong");
            got.checksum = true;
        } else {
            got.tlvs.push((rest[at], value));
        }
        at += 3 + len;
    }
    got
}
