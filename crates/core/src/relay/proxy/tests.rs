//! Tests of the PROXY protocol: examples of the specification, and properties of the parser and the encoders.
use proptest::prelude::*;

use std::net::SocketAddr;

use super::*;
use crate::relay::config::ProxyVersion;

/// Types of section 2.2 that the relay passes on as they are.
const ALPN: Kind = Kind(0x01);
const AUTHORITY: Kind = Kind(0x02);
const NOOP: Kind = Kind(0x04);

fn done(bytes: &[u8]) -> (Header, usize) {
    match parse(bytes) {
        Progress::Done { header, consumed } => (header, consumed),
        other => panic!("{other:?} of {bytes:02x?}"),
    }
}

fn why(bytes: &[u8]) -> Malformed {
    match parse(bytes) {
        Progress::Malformed { why } => why,
        other => panic!("{other:?} of {bytes:02x?}"),
    }
}

fn stream(source: &str, destination: &str) -> Addresses {
    let address = |text: &str| text.parse().unwrap();
    Addresses::Ip { transport: Transport::Stream, source: address(source), destination: address(destination) }
}

/// A version 2 header from its bytes 13 and 14 and the bytes after the length.
fn v2(version_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    bytes.extend([version_command, family]);
    bytes.extend((rest.len() as u16).to_be_bytes());
    bytes.extend(rest);
    bytes
}

#[test]
fn lines_of_the_specification() {
    let request = b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nGET / HTTP/1.1\r\n";
    let (header, consumed) = done(request);
    assert_eq!((header.addresses, consumed), (stream("192.168.0.1:56324", "192.168.0.11:443"), 47));
    assert_eq!((header.version, header.command), (ProxyVersion::V1, Command::Proxy));

    let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let line = format!("PROXY TCP6 {longest} {longest} 65535 65535\r\n");
    let address = format!("[{longest}]:65535");
    assert_eq!(done(line.as_bytes()).0.addresses, stream(&address, &address));
    assert_eq!(line.len(), 104);

    let line = format!("PROXY UNKNOWN {longest} {longest} 65535 65535\r\n");
    let (header, consumed) = done(line.as_bytes());
    assert_eq!((header.addresses, consumed), (Addresses::Unknown, 107));
    assert_eq!(done(b"PROXY UNKNOWN\r\nrest").1, 15);
    let dotted = done(b"PROXY TCP6 ::ffff:1.2.3.4 ::1 5 6\r\n").0.addresses;
    assert_eq!((dotted.source(), dotted), ("1.2.3.4:5".parse().ok(), stream("[::ffff:1.2.3.4]:5", "[::1]:6")));
    assert_eq!(done(b"PROXY UNKNOWN what\never\rcomes\r\n").0.addresses, Addresses::Unknown);
}

#[test]
fn invalid_lines_are_malformed() {
    for line in [
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
        "PROXY TCP4 1.2.3.4  5.6.7.8 1 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 \r\n",
        "PROXY TCP4 01.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 \r\n",
        "PROXY TCP4 1.2.3.4 ::1 1 2\r\n",
        "PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY TCP6 ::1%1 ::1 1 2\r\n",
        "PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY UNKNOWNS\r\n",
        "PROXY \r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\rX",
    ] {
        assert_eq!(why(line.as_bytes()), Malformed::BadLine, "{line:?}");
    }
    assert_eq!(why(b"PROXY\r\n"), Malformed::NotProxy);
    assert_eq!(why(b"GET / HTTP/1.1\r\n"), Malformed::NotProxy);
    assert_eq!(why(b"POST / HTTP/1.1\r\n"), Malformed::NotProxy);
    assert_eq!(why(&[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 93]].concat()), Malformed::LineTooLong);
}

#[test]
fn headers_of_version_2() {
    let v4 = [10, 0, 0, 1, 10, 0, 0, 2, 0xc0, 0, 0x01, 0xbb];
    let (header, consumed) = done(&[v2(0x21, 0x11, &v4), b"data".to_vec()].concat());
    assert_eq!((header.addresses, consumed), (stream("10.0.0.1:49152", "10.0.0.2:443"), 28));

    let Addresses::Ip { transport, source, .. } = done(&v2(0x21, 0x12, &v4)).0.addresses else { panic!() };
    assert_eq!((transport, source.port()), (Transport::Datagram, 49152));

    let mut v6 = [0; 36];
    (v6[15], v6[31], v6[33], v6[35]) = (1, 2, 3, 4);
    assert_eq!(done(&v2(0x21, 0x21, &v6)).0.addresses, stream("[::1]:3", "[::2]:4"));

    let mut paths = [0; 216];
    paths[..4].copy_from_slice(b"/a/b");
    paths[108..110].copy_from_slice(b"\0c");
    let Addresses::Unix { transport, paths } = done(&v2(0x21, 0x31, &paths)).0.addresses else { panic!() };
    assert_eq!(
        (transport, &paths.source[..5], &paths.destination[..3]),
        (Transport::Stream, &b"/a/b\0"[..], &b"\0c\0"[..])
    );
}

#[test]
fn headers_without_addresses_are_accepted() {
    for bytes in [
        v2(0x20, 0x00, &[]),
        v2(0x20, 0xff, &[1, 2, 3]),
        v2(0x21, 0x00, &[]),
        v2(0x21, 0x00, &[9, 9]),
        v2(0x21, 0x10, &[0; 12]),
    ] {
        let (header, consumed) = done(&bytes);
        assert_eq!((header.addresses, header.tlvs.is_empty(), consumed), (Addresses::Unknown, true, bytes.len()));
    }
    let with_alpn = v2(0x21, 0x00, &[1, 0, 2, b'h', b'2']);
    assert_eq!(done(&with_alpn).0.tlvs.get(ALPN), Some(&b"h2"[..]));
}

#[test]
fn invalid_headers_of_version_2_are_malformed() {
    assert_eq!(why(&v2(0x11, 0x11, &[])), Malformed::BadVersion(1));
    assert_eq!(why(&v2(0x22, 0x11, &[])), Malformed::BadCommand(2));
    assert_eq!(why(&v2(0x21, 0x41, &[])), Malformed::BadFamily(0x41));
    assert_eq!(why(&v2(0x21, 0x13, &[])), Malformed::BadFamily(0x13));
    assert_eq!(why(&v2(0x21, 0x11, &[0; 11])), Malformed::AddressesCut);
    assert_eq!(why(&v2(0x21, 0x21, &[0; 35])), Malformed::AddressesCut);
    assert_eq!(why(&v2(0x21, 0x11, &[0; 14])), Malformed::TlvCut);
    assert_eq!(why(&v2(0x21, 0x11, &[&[0; 12][..], &[1, 0, 2, 0]].concat())), Malformed::TlvCut);
    assert_eq!(why(&v2(0x21, 0x11, &[&[0; 12][..], &[3, 0, 1, 0]].concat())), Malformed::BadTlv(3));
    assert_eq!(why(&v2(0x21, 0x11, &[&[0; 12][..], &[5, 0, 129], &[0; 129]].concat())), Malformed::BadTlv(5));
    // A header that is too long is refused as soon as its length has arrived.
    assert_eq!(why(&v2(0x21, 0x11, &[0; 4081])[..16]), Malformed::HeaderTooLong(4097));
    assert_eq!(parse(&v2(0x21, 0x11, &[0; 4080])[..16]), Progress::NeedMore);
}

#[test]
fn the_checksum_is_that_of_iscsi_and_any_flipped_bit_is_found() {
    // CRC32C of "123456789" is the check value of its parameters; of 32 zeros the first vector of RFC 3720, B.4.
    let crc32c = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    assert_eq!((crc32c.checksum(b"123456789"), crc32c.checksum(&[0; 32])), (0xe306_9283, 0x8a91_36aa));

    let mut header = Header {
        version: ProxyVersion::V2,
        command: Command::Proxy,
        addresses: stream("10.0.0.1:49152", "10.0.0.2:443"),
        checksum: true,
        tlvs: Tlvs::default(),
    };
    header.tlvs.push(AUTHORITY, b"example.com").unwrap();
    let mut bytes = Vec::new();
    encode_v2(&header, &mut bytes).unwrap();
    assert_eq!(done(&bytes), (header, bytes.len()));
    for bit in 16 * 8..bytes.len() * 8 {
        let mut altered = bytes.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        // A flipped bit in the type or length of the checksum makes it another TLV; the header must not count as verified.
        let passed = matches!(parse(&altered), Progress::Done { header, .. } if header.checksum);
        assert!(!passed, "bit {bit}");
    }
    // Two checksums, the first of which is right.
    let mut twice = v2(0x21, 0x11, &[&[0; 12][..], &[3, 0, 4, 0, 0, 0, 0], &[3, 0, 4, 0, 0, 0, 0]].concat());
    let first = crc32c.checksum(&twice);
    twice[31..35].copy_from_slice(&first.to_be_bytes());
    assert_eq!(why(&twice), Malformed::BadTlv(3));
    twice[31] ^= 1;
    assert_eq!(why(&twice), Malformed::BadChecksum);
}

#[test]
fn checksums_and_long_ids_cannot_be_added() {
    let mut tlvs = Tlvs::default();
    assert!(tlvs.push(Kind::CRC32C, &[0; 4]).is_err() && tlvs.push(Kind::UNIQUE_ID, &[0; 129]).is_err());
    assert!(tlvs.push(Kind::UNIQUE_ID, &[0; 128]).is_ok());
}

#[test]
fn version_1_writes_tcp_addresses_and_otherwise_unknown() {
    let line = |addresses: &Addresses| {
        let mut out = Vec::new();
        encode_v1(addresses, &mut out);
        String::from_utf8(out).unwrap()
    };
    let between = |a: &str, b: &str| Addresses::between(Transport::Stream, a.parse().unwrap(), b.parse().unwrap());
    assert_eq!(line(&between("1.2.3.4:5", "[::ffff:6.7.8.9]:10")), "PROXY TCP4 1.2.3.4 6.7.8.9 5 10\r\n");
    assert_eq!(line(&between("1.2.3.4:5", "[::1]:10")), "PROXY TCP6 ::ffff:102:304 ::1 5 10\r\n");
    assert_eq!(line(&Addresses::Unknown), "PROXY UNKNOWN\r\n");
    let udp = Addresses::between(Transport::Datagram, "1.2.3.4:5".parse().unwrap(), "1.2.3.4:5".parse().unwrap());
    assert_eq!(line(&udp), "PROXY UNKNOWN\r\n");
}

#[test]
fn tlvs_beyond_the_length_field_are_refused_and_leave_the_buffer_unchanged() {
    let mut tlvs = Tlvs::default();
    tlvs.push(NOOP, &[0; 65535]).unwrap();
    let addresses = stream("1.2.3.4:5", "1.2.3.4:5");
    let (version, command) = (ProxyVersion::V2, Command::Proxy);
    let mut out = b"before".to_vec();
    let header = Header { version, command, addresses, checksum: true, tlvs };
    assert!(encode_v2(&header, &mut out).is_err());
    assert_eq!(out, b"before");
}

fn ips() -> impl Strategy<Value = Addresses> {
    let transport = prop_oneof![Just(Transport::Stream), Just(Transport::Datagram)];
    let v4 = any::<([u8; 4], u16, [u8; 4], u16)>()
        .prop_map(|(a, p, b, q)| (SocketAddr::from((a, p)), SocketAddr::from((b, q))));
    let v6 = any::<([u8; 16], u16, [u8; 16], u16)>()
        .prop_map(|(a, p, b, q)| (SocketAddr::from((a, p)), SocketAddr::from((b, q))));
    (transport, prop_oneof![v4, v6]).prop_map(|(transport, (source, destination))| Addresses::Ip {
        transport,
        source,
        destination,
    })
}

fn headers() -> impl Strategy<Value = Header> {
    let unix = (any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(|(a, b)| {
        let mut paths = UnixPaths { source: [0; 108], destination: [0; 108] };
        paths.source[..32].copy_from_slice(&a);
        paths.destination[76..].copy_from_slice(&b);
        Addresses::Unix { transport: Transport::Stream, paths: Box::new(paths) }
    });
    let addresses = prop_oneof![4 => ips(), 1 => unix, 1 => Just(Addresses::Unknown)];
    let tlvs = prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)), 0..6);
    (addresses, tlvs, any::<bool>()).prop_map(|(addresses, list, checksum)| {
        let mut tlvs = Tlvs::default();
        for (kind, value) in list.into_iter().filter(|(kind, _)| *kind != Kind::CRC32C.0) {
            tlvs.push(Kind(kind), &value).unwrap();
        }
        Header { version: ProxyVersion::V2, command: Command::Proxy, addresses, checksum, tlvs }
    })
}

/// Every strict prefix needs more, the whole is done, and the bytes that follow are not parsed.
fn holds_under_every_split(bytes: &[u8], expected: &Header, follows: &[u8]) {
    for cut in 0..bytes.len() {
        assert_eq!(parse(&bytes[..cut]), Progress::NeedMore, "{cut} of {}", bytes.len());
    }
    let whole = [bytes, follows].concat();
    assert_eq!(done(&whole), (expected.clone(), bytes.len()));
}

proptest! {
    #[test]
    fn version_2_reads_back_under_every_split(header in headers(), follows in prop::collection::vec(any::<u8>(), 0..9)) {
        let mut bytes = Vec::new();
        encode_v2(&header, &mut bytes).unwrap();
        holds_under_every_split(&bytes, &header, &follows);
    }

    #[test]
    fn version_1_reads_back_under_every_split(addresses in ips(), follows in prop::collection::vec(any::<u8>(), 0..9)) {
        let mut bytes = Vec::new();
        encode_v1(&addresses, &mut bytes);
        let (version, command) = (ProxyVersion::V1, Command::Proxy);
        let expected = match addresses {
            Addresses::Ip { transport: Transport::Stream, .. } => addresses,
            _ => Addresses::Unknown,
        };
        let header = Header { version, command, addresses: expected, checksum: false, tlvs: Tlvs::default() };
        holds_under_every_split(&bytes, &header, &follows);
    }

    /// Headers with altered bytes: the parser does not panic, and a result other than `NeedMore` never changes with more bytes.
    #[test]
    fn results_are_final(
        header in headers(),
        as_v1 in any::<bool>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = Vec::new();
        if as_v1 { encode_v1(&header.addresses, &mut bytes) } else { encode_v2(&header, &mut bytes).unwrap() }
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend(noise);
        let mut final_result = None;
        for cut in 0..=bytes.len() {
            match (parse(&bytes[..cut]), &final_result) {
                (Progress::NeedMore, None) => {}
                (Progress::Malformed { .. }, Some(Progress::Malformed { .. })) => {}
                (result, None) => final_result = Some(result),
                (result, Some(before)) => prop_assert_eq!(&result, before, "after {} bytes", cut),
            }
            prop_assert!(cut < V2_MAX_BYTES || final_result.is_some());
        }
    }

    #[test]
    fn any_bytes_can_be_parsed(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Progress::Done { consumed, .. } = parse(&bytes) {
            prop_assert!(consumed <= bytes.len());
        }
    }
}
