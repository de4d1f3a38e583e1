//! Decodes what the programs report of the first bytes of a call: the form of the message that begins there.
//!
//! The programs decode the bytes themselves (`frame.h`), which therefore never leave the kernel. [`read`] and [`read_datagram`] run the
//! same code here, for tests and the fuzz target.
use parshall_evidence::timeline::{Frame, Protocol};

/// Bytes of a call that are looked at.
const FRAME_BYTES: usize = 16;
/// `struct frame_bytes`.
#[repr(C)]
struct FrameBytes {
    b: [u8; FRAME_BYTES],
    n: u32,
    total: u32,
}

/// `struct frame`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)]
pub struct FrameWire {
    pub protocol: u8,
    /// `type`.
    pub kind: u8,
    pub flags: u8,
    pub pad: u8,
    pub length: u32,
    pub stream: u32,
    pub second: u32,
}

unsafe extern "C" {
    fn parshall_read_frame(bytes: *mut FrameBytes, frame: *mut FrameWire) -> libc::c_int;
    fn parshall_read_datagram(bytes: *mut FrameBytes, frame: *mut FrameWire) -> libc::c_int;
}

type Read = unsafe extern "C" fn(*mut FrameBytes, *mut FrameWire) -> libc::c_int;

/// The programs' report of a call on a connection that moved `total` bytes, of which `bytes` are the first.
pub fn read(bytes: &[u8], total: u32) -> FrameWire {
    run(parshall_read_frame, bytes, total)
}

/// The programs' report of a datagram of `total` bytes, of which `bytes` are the first.
pub fn read_datagram(bytes: &[u8], total: u32) -> FrameWire {
    run(parshall_read_datagram, bytes, total)
}

fn run(function: Read, bytes: &[u8], total: u32) -> FrameWire {
    let n = bytes.len().min(FRAME_BYTES);
    let mut first = FrameBytes { b: [0; FRAME_BYTES], n: n as u32, total };
    first.b[..n].copy_from_slice(&bytes[..n]);
    let mut frame = FrameWire::default();
    // SAFETY: both structures have the layout of those in frame.h, live until the call returns, and are used by nobody else meanwhile.
    // The function reads the first and writes into the second one only.
    unsafe { function(&raw mut first, &raw mut frame) };
    frame
}

/// `enum frame_protocol`; None for `FRAME_NONE` and what is unknown.
fn protocol(wire: u8) -> Option<Protocol> {
    Protocol::ALL.get(usize::from(wire).checked_sub(1)?).copied()
}

impl FrameWire {
    /// The frame of a call that belongs to the requests of its connection (`asks`), or to the replies.
    pub fn decode(self, asks: bool) -> Option<Frame> {
        let protocol = protocol(self.protocol)?;
        let frame = Frame { protocol, kind: self.kind, flags: self.flags, length: self.length, stream: self.stream };
        match (protocol, asks) {
            (Protocol::Kafka, true) => (self.flags != 0).then_some(Frame { stream: self.second, flags: 0, ..frame }),
            (Protocol::Kafka, false) => Some(Frame { kind: 0, flags: 0, ..frame }),
            _ => Some(frame),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Option<(Protocol, u8, u32, u32)> {
        frame(bytes, bytes.len() as u32, true)
    }

    fn frame(bytes: &[u8], total: u32, asks: bool) -> Option<(Protocol, u8, u32, u32)> {
        let frame = read(bytes, total).decode(asks)?;
        Some((frame.protocol, frame.kind, frame.length, frame.stream))
    }

    #[test]
    fn records_of_tls() {
        assert_eq!(of(&[22, 3, 1, 2, 0, 1, 0, 1, 252]), Some((Protocol::Tls, 22, 517, 0)));
        assert_eq!(read(&[22, 3, 1, 2, 0, 1], 517).flags, 1, "a client's hello");
        assert_eq!(of(&[23, 3, 3, 0, 19]), Some((Protocol::Tls, 23, 24, 0)), "a header that is read alone");
        assert_eq!(of(&[20, 3, 3, 0, 1, 1]), Some((Protocol::Tls, 20, 6, 0)));
        assert_eq!(of(&[23, 3, 3, 255, 255]), None, "no record is that long");
        assert_eq!(of(&[24, 3, 3, 0, 19]), None);
    }

    #[test]
    fn heads_of_http() {
        let kind = |text: &str| of(text.as_bytes()).map(|(protocol, kind, ..)| (protocol, kind));
        for method in ["GET", "PUT", "POST", "HEAD", "PATCH", "DELETE", "TRACE", "CONNECT", "OPTIONS"] {
            assert_eq!(kind(&format!("{method} / HTTP/1.1\r\n\r\n")), Some((Protocol::Http1, 1)), "{method}");
        }
        for method in ["PROPFIND", "REPORT", "LOCK", "MKCALENDAR", "PURGE"] {
            assert_eq!(kind(&format!("{method} /files HTTP/1.1\r\n\r\n")), Some((Protocol::Http1, 1)), "{method}");
        }
        assert_eq!(kind("GETTING it done"), None);
        assert_eq!(kind("MAIL FROM:<root@localhost>"), None);
        assert_eq!(kind("OK / done"), None, "no method is that short");
        assert_eq!(kind("LONGESTMETHOD / HTTP/1.1"), None);
        assert_eq!(kind("HTTP/1.1 200 OK\r\n"), Some((Protocol::Http1, 2)));
        assert_eq!(kind("HTTP/1.1 100 Continue\r\n\r\n"), Some((Protocol::Http1, 3)));
        assert_eq!(kind("HTTP/1.1 101 Switching"), Some((Protocol::Http1, 4)));
        assert_eq!(kind("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Some((Protocol::Http2, 0xff)));
    }

    #[test]
    fn frames_of_http2() {
        let headers = [0, 0, 30, 1, 4, 0, 0, 0, 5];
        assert_eq!(frame(&headers, 39, true), Some((Protocol::Http2, 1, 39, 5)));
        assert_eq!(frame(&[0, 0, 18, 4, 0, 0, 0, 0, 0, 0, 3], 27, true), Some((Protocol::Http2, 4, 27, 0)));
        assert_eq!(frame(&[0, 0, 4, 8, 0, 0, 0, 0, 0], 13, true), Some((Protocol::Http2, 8, 13, 0)));
        assert_eq!(frame(&[0, 0, 8, 6, 1, 0, 0, 0, 0], 17, true), Some((Protocol::Http2, 6, 17, 0)));
        assert_eq!(frame(&[0, 0, 30, 1, 4, 0, 0, 0, 0], 39, true), None, "headers are of a stream");
        assert_eq!(frame(&[0, 0, 17, 4, 0, 0, 0, 0, 0], 26, true), None, "no length of settings");
    }

    #[test]
    fn messages_of_databases() {
        assert_eq!(of(b"Q\0\0\0\x0dselect 1\0"), Some((Protocol::Postgres, b'Q', 14, 0)));
        assert_eq!(of(b"\0\0\0\x08\x04\xd2\x16\x2f"), Some((Protocol::Postgres, 0, 8, 0)));
        assert_eq!(frame(b"\0\0\0\x29\0\x03\0\0user\0", 41, true), Some((Protocol::Postgres, 0, 41, 0)));
        assert_eq!(frame(b"T\0\0\0\x21\0\x01", 200, false), Some((Protocol::Postgres, b'T', 34, 0)));
        assert_eq!(of(b"Query the thing"), None);
        assert_eq!(of(b"\x09\0\0\0\x03select 1"), Some((Protocol::Mysql, 0, 13, 0)));
        assert_eq!(of(b"\x01\0\0\0\x01"), Some((Protocol::Mysql, 1, 5, 0)), "the end");
        assert_eq!(frame(b"\x01\0\0\x01\x01\x17\0\0\x02", 90, false), Some((Protocol::Mysql, 1, 5, 1)));
        assert_eq!(of(b"*1\r\n$4\r\nPING\r\n"), Some((Protocol::Redis, b'*', 0, 0)));
        assert_eq!(of(b"+PONG\r\n"), Some((Protocol::Redis, b'+', 0, 0)));
        assert_eq!(of(b"$1024\r\nxxxxxxxxxxxxx"), Some((Protocol::Redis, b'$', 0, 0)));
        assert_eq!(of(b"$HOME is where"), None);
    }

    #[test]
    fn a_message_of_kafka_has_its_number_behind_the_function_or_alone() {
        // Fetch, version 11, number 300.
        let request = [0, 0, 0, 60, 0, 1, 0, 11, 0, 0, 1, 44, 0, 5, b'j', b'a'];
        assert_eq!(frame(&request, 64, true), Some((Protocol::Kafka, 1, 64, 300)));
        let reply = [0, 0, 1, 0, 0, 0, 1, 44, 0, 0, 0, 0];
        assert_eq!(frame(&reply, 260, false), Some((Protocol::Kafka, 0, 260, 300)));
        assert_eq!(frame(&reply[..8], 8, false), Some((Protocol::Kafka, 0, 260, 300)), "the head alone");
        assert_eq!(frame(&[0, 0, 1, 0, 1, 0, 1, 44, 0, 0, 0, 0], 260, true), None, "no request");
        assert_eq!(frame(&request, 65, true), None, "the length is another one");
    }

    #[test]
    fn frames_of_websocket_fill_their_call() {
        assert_eq!(of(&[0x8a, 0x80, 1, 2, 3, 4]), Some((Protocol::WebSocket, 10, 6, 0)));
        assert_eq!(frame(&[0x82, 126, 1, 0, 9], 260, false), Some((Protocol::WebSocket, 2, 260, 0)));
        assert_eq!(frame(&[0x82, 126, 1, 0, 9], 261, false), None);
    }

    #[test]
    fn messages_of_mqtt() {
        let publish = b"\x30\x09\0\x05plant21";
        assert_eq!(of(publish), Some((Protocol::Mqtt, 3, 11, 0)));
        assert_eq!(read(b"\x32\x0b\0\x05plant\0\x0121", 13).flags, 2, "quality of service 1");
        assert_eq!(frame(&publish[..2], 11, true), Some((Protocol::Mqtt, 3, 11, 0)), "its header alone");
        assert_eq!(of(b"\x30\x09\0\x0cplant21"), None, "a topic that is longer than the message");
        assert_eq!(of(b"\x10\x0c\0\x04MQTT\x04\x02\0\x1e\0\0"), Some((Protocol::Mqtt, 1, 14, 0)));
        assert_eq!(of(&[0xc0, 0]), Some((Protocol::Mqtt, 12, 2, 0)), "a ping");
        assert_eq!(of(&[0x40, 2, 0, 1]), Some((Protocol::Mqtt, 4, 4, 0)), "its acknowledgement");
        assert!(of(&[0x41, 2, 0, 1]).is_none_or(|found| found.0 != Protocol::Mqtt), "flags that it has not");
        assert_eq!(frame(&[0x30, 0x80, 0x01, 0, 5], 131, true), Some((Protocol::Mqtt, 3, 131, 0)), "a longer one");
        assert_eq!(frame(publish, 12, true), None, "the length is another one");
    }

    #[test]
    fn messages_of_dns() {
        let question = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let dns =
            |bytes: &[u8], total| read_datagram(bytes, total).decode(true).map(|f| (f.protocol, f.kind, f.stream));
        assert_eq!(dns(&question, 40), Some((Protocol::Dns, 0, 0x1234)));
        assert_eq!(dns(&[0x12, 0x34, 0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 1], 90), Some((Protocol::Dns, 1, 0x1234)));
        assert_eq!(dns(&[0x12, 0x34, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0], 40), None, "a question with an answer");
        assert_eq!(dns(&question[..8], 40), None);
    }

    #[test]
    fn any_bytes_are_read_without_harm_and_most_are_no_message() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut found = 0;
        for round in 0..20_000_u32 {
            let mut bytes = [0; 16];
            for byte in &mut bytes {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (seed >> 33) as u8;
            }
            let n = (round % 17) as usize;
            let (as_request, as_reply) =
                (read(&bytes[..n], round).decode(true), read_datagram(&bytes[..n], round).decode(false));
            found += u32::from(as_request.is_some()) + u32::from(as_reply.is_some());
        }
        assert!(found < 20, "{found}");
    }
}
