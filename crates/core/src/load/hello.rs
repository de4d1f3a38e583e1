//! The first bytes of a generator's connection: what the client wants the server to do on it.

/// The service that the server provides on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Answers each request.
    Requests,
    /// Answers one request and closes.
    Once,
    /// Discards what arrives.
    Upload,
    /// Sends until the client closes.
    Download,
    /// Both at once.
    Both,
    /// Opens a UDP port, says which, counts the packets that arrive there, and reports as [`Mode::Report`].
    Packets,
    /// Reports its CPU time whenever it is asked.
    Report,
}

const MODES: [Mode; 7] =
    [Mode::Requests, Mode::Once, Mode::Upload, Mode::Download, Mode::Both, Mode::Packets, Mode::Report];
const MAGIC: [u8; 4] = *b"PLG1";

/// The first bytes that a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    #[allow(missing_docs)]
    pub mode: Mode,
    /// Whether a thread of the server is to serve this connection alone, with blocking calls.
    pub alone: bool,
    /// Bytes of a request, or of a packet.
    pub request: u32,
    /// Bytes of a reply.
    pub reply: u32,
}

impl Hello {
    /// Bytes of an encoded hello.
    pub const BYTES: usize = 16;
    /// The largest request or reply, in bytes.
    pub const SIZE_MAX: u32 = 1 << 24;

    /// The bytes to be sent: magic, mode, flags, two zeros, both sizes in network byte order.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mode = MODES.iter().position(|mode| *mode == self.mode).unwrap_or_default() as u8;
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = mode;
        bytes[5] = u8::from(self.alone);
        bytes[8..12].copy_from_slice(&self.request.to_be_bytes());
        bytes[12..].copy_from_slice(&self.reply.to_be_bytes());
        bytes
    }

    /// Reads what a client sent; None if it is something else. Sizes are 1 to [`Hello::SIZE_MAX`].
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let [m0, m1, m2, m3, mode, alone @ 0..=1, 0, 0, r0, r1, r2, r3, s0, s1, s2, s3] = *bytes else { return None };
        let hello = Self {
            mode: *MODES.get(usize::from(mode))?,
            alone: alone == 1,
            request: u32::from_be_bytes([r0, r1, r2, r3]),
            reply: u32::from_be_bytes([s0, s1, s2, s3]),
        };
        let sized = [hello.request, hello.reply].iter().all(|size| (1..=Self::SIZE_MAX).contains(size));
        ([m0, m1, m2, m3] == MAGIC && sized).then_some(hello)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_hello_is_read_back(mode in 0..MODES.len(), alone: bool, request in 1..=Hello::SIZE_MAX, reply in 1..=Hello::SIZE_MAX) {
            let hello = Hello { mode: MODES[mode], alone, request, reply };
            prop_assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }

        #[test]
        fn only_what_can_be_written_is_read(bytes: [u8; Hello::BYTES]) {
            prop_assert_eq!(Hello::decode(&bytes).map(|hello| hello.encode()), Hello::decode(&bytes).map(|_| bytes));
        }
    }

    #[test]
    fn another_protocol_is_refused() {
        assert_eq!(Hello::decode(b"GET / HTTP/1.1\r\n"), None);
        let empty = Hello { mode: Mode::Once, alone: false, request: 0, reply: 1 };
        assert_eq!(Hello::decode(&empty.encode()), None);
        let huge = Hello { mode: Mode::Once, alone: false, request: 1, reply: Hello::SIZE_MAX + 1 };
        assert_eq!(Hello::decode(&huge.encode()), None);
    }
}
