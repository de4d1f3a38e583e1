//! Version 1: one line of text (section 2.1).
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::header::{Addresses, Command, Header, Malformed, Parsed, Transport, agrees};
use super::tlv::Tlvs;
use crate::relay::config::ProxyVersion;

/// The length of the longest line with its CRLF.
pub const MAX_BYTES: usize = 107;

const WORD: &[u8] = b"PROXY ";

pub(super) fn parse(bytes: &[u8]) -> Parsed {
    if !agrees(bytes, WORD) {
        return Err(Malformed::NotProxy);
    }
    let window = &bytes[..bytes.len().min(MAX_BYTES)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return incomplete(window).map(|()| None);
    };
    let addresses = line(window.get(WORD.len()..end).ok_or(Malformed::BadLine)?)?;
    let header = Header {
        version: ProxyVersion::V1,
        command: Command::Proxy,
        addresses,
        checksum: false,
        tlvs: Tlvs::default(),
    };
    Ok(Some((header, end + 2)))
}

/// Checks that a line without its end can still become a valid one, so that an invalid sender is refused early (section 2.1).
fn incomplete(window: &[u8]) -> Result<(), Malformed> {
    let rest = window.get(WORD.len()..).unwrap_or_default();
    let unknown = agrees(rest, b"UNKNOWN");
    let may_go_on = if unknown {
        // The text between the word and the end of the line must be ignored, but the word must end.
        matches!(rest.get(7), None | Some(b' ' | b'\r'))
    } else {
        let (text, last) = rest.split_at(rest.len().saturating_sub(1));
        let of_address = |b: &u8| b.is_ascii_hexdigit() || matches!(b, b'.' | b':' | b' ');
        (agrees(rest, b"TCP4 ") || agrees(rest, b"TCP6 "))
            && text.iter().skip(5).all(of_address)
            && (rest.len() <= 5 || last.iter().all(|b| of_address(b) || *b == b'\r'))
    };
    match may_go_on {
        false => Err(Malformed::BadLine),
        true if window.len() >= MAX_BYTES => Err(Malformed::LineTooLong),
        true => Ok(()),
    }
}

/// Parses the text between "PROXY " and the CRLF.
fn line(text: &[u8]) -> Result<Addresses, Malformed> {
    if text == b"UNKNOWN" || text.starts_with(b"UNKNOWN ") {
        return Ok(Addresses::Unknown);
    }
    let text = std::str::from_utf8(text).map_err(|_| Malformed::BadLine)?;
    addresses(text).ok_or(Malformed::BadLine)
}

fn addresses(text: &str) -> Option<Addresses> {
    let mut words = text.split(' ');
    let is_v4 = match words.next()? {
        "TCP4" => true,
        "TCP6" => false,
        _ => return None,
    };
    // The standard library refuses leading zeros in IPv4, as the protocol does. It accepts ::ffff:1.2.3.4, which the protocol
    // does not have, but which inet_ntop(3) and therefore many senders write.
    let ip = |word: &str| -> Option<IpAddr> {
        if is_v4 {
            word.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
        } else {
            word.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
        }
    };
    let (source, destination) = (ip(words.next()?)?, ip(words.next()?)?);
    let (source_port, destination_port) = (port(words.next()?)?, port(words.next()?)?);
    if words.next().is_some() {
        return None;
    }
    Some(Addresses::Ip {
        transport: Transport::Stream,
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
    })
}

/// Decimal digits only: no sign, no leading zero.
fn port(word: &str) -> Option<u16> {
    let plain = word.bytes().all(|b| b.is_ascii_digit()) && (word.len() == 1 || !word.starts_with('0'));
    if plain { word.parse().ok() } else { None }
}

/// Appends the line for these addresses. Version 1 has TCP only; for everything else the line says "UNKNOWN".
pub fn encode(addresses: &Addresses, out: &mut Vec<u8>) {
    let &Addresses::Ip { transport: Transport::Stream, source, destination } = addresses else {
        out.extend_from_slice(b"PROXY UNKNOWN\r\n");
        return;
    };
    let (from, to) = (source.port(), destination.port());
    let written = match (source.ip(), destination.ip()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => write!(out, "PROXY TCP4 {a} {b} {from} {to}\r\n"),
        (a, b) => write!(out, "PROXY TCP6 {} {} {from} {to}\r\n", Hex(v6(a)), Hex(v6(b))),
    };
    written.expect("writing to memory does not fail");
}

/// An address as IPv6, an IPv4 one as IPv4-mapped.
pub(super) fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Prints IPv6 in hexadecimal only: the protocol does not have ::ffff:1.2.3.4.
struct Hex(Ipv6Addr);

impl std::fmt::Display for Hex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0.to_ipv4_mapped(), self.0.segments()) {
            (Some(_), [.., high, low]) => write!(f, "::ffff:{high:x}:{low:x}"),
            (None, _) => write!(f, "{}", self.0),
        }
    }
}
