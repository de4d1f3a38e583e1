//! rtnetlink messages (RFC 3549, `linux/rtnetlink.h`): just enough to write attributes and to wait for the kernel's answer.
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A message under construction: header, family header, attributes.
#[derive(Debug)]
pub struct Message {
    buf: Vec<u8>,
}

const HEADER_LEN: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

impl Message {
    /// A message of this type (`RTM_...`), with `NLM_F_REQUEST | NLM_F_ACK` and these flags, and its family header.
    pub fn new(kind: u16, flags: u16, family_header: &[u8]) -> Self {
        let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut buf = vec![0; 4];
        buf.extend_from_slice(&kind.to_ne_bytes());
        buf.extend_from_slice(&flags.to_ne_bytes());
        buf.extend_from_slice(&[0; 8]);
        buf.extend_from_slice(family_header);
        let mut message = Self { buf };
        message.pad();
        message
    }

    /// Appends an attribute.
    pub fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        self.buf.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        self.buf.extend_from_slice(value);
        self.pad();
        self
    }

    /// Appends a name as a zero-terminated string.
    pub fn attr_name(self, kind: u16, name: &str) -> Self {
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    /// Appends an attribute that holds what `fill` writes.
    pub fn nest(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let at = self.buf.len();
        self.buf.extend_from_slice(&[0; 2]);
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        self = fill(self);
        let len = (self.buf.len() - at) as u16;
        self.buf[at..at + 2].copy_from_slice(&len.to_ne_bytes());
        self
    }

    /// Appends bytes as they are (a family header inside a nested attribute).
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.buf.extend_from_slice(bytes);
        self.pad();
        self
    }

    fn pad(&mut self) {
        self.buf.resize(self.buf.len().next_multiple_of(4), 0);
    }

    fn finish(mut self, seq: u32) -> Vec<u8> {
        let len = self.buf.len() as u32;
        self.buf[..4].copy_from_slice(&len.to_ne_bytes());
        self.buf[8..12].copy_from_slice(&seq.to_ne_bytes());
        self.buf
    }
}

/// An rtnetlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Route {
    fd: OwnedFd,
    seq: u32,
}

impl Route {
    /// Opens the socket.
    pub fn open() -> io::Result<Self> {
        // SAFETY: socket() takes no pointers; the result is checked before it becomes an OwnedFd.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd is open, and nothing else owns it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, seq: 0 })
    }

    /// Sends a request and waits for the kernel's ACK; its errno becomes the error.
    pub fn request(&mut self, message: Message) -> io::Result<()> {
        self.seq += 1;
        let bytes = message.finish(self.seq);
        // SAFETY: the pointer and length are those of `bytes`, which lives across the call.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        loop {
            let mut buf = [0u8; 8192];
            // SAFETY: the pointer and length are those of `buf`, which lives across the call.
            let n = unsafe { libc::recv(self.fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) };
            if n < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            if let Some(answer) = find_ack(&buf[..n as usize], self.seq) {
                return answer;
            }
        }
    }
}

impl Route {
    /// Asks for everything of a kind (`RTM_GET...`) and returns the answers without their netlink headers.
    pub fn dump(&mut self, kind: u16, family_header: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.ask(Message::new(kind, libc::NLM_F_DUMP as u16, family_header))
    }

    /// Sends a request and returns its answers, until the end of a dump or the kernel's ACK; its errno becomes the error.
    pub(crate) fn ask(&mut self, message: Message) -> io::Result<Vec<Vec<u8>>> {
        self.seq += 1;
        let bytes = message.finish(self.seq);
        // SAFETY: the pointer and length are those of `bytes`, which lives across the call.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answers = Vec::new();
        // The kernel fills at most 32 KiB at a time.
        let mut buf = vec![0u8; 1 << 15];
        loop {
            // SAFETY: the pointer and length are those of `buf`, which lives across the call.
            let n = unsafe { libc::recv(self.fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) };
            if n < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            if let Some(end) = take_dump(&buf[..n as usize], self.seq, &mut answers) {
                return end.map(|()| answers);
            }
        }
    }
}

/// Adds the answers to dump `seq` in `bytes`; the end of the dump, or an error, when it is among them.
fn take_dump(mut bytes: &[u8], seq: u32, answers: &mut Vec<Vec<u8>>) -> Option<io::Result<()>> {
    while let Some(header) = bytes.get(..HEADER_LEN) {
        let at = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let len = (at(0) as usize).max(HEADER_LEN);
        let body = bytes.get(HEADER_LEN..len.min(bytes.len())).unwrap_or_default();
        if at(8) == seq {
            match u16::from_ne_bytes([header[4], header[5]]) {
                NLMSG_DONE => return Some(Ok(())),
                NLMSG_ERROR => return find_ack(bytes, seq),
                _ => answers.push(body.to_vec()),
            }
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// The answer to request `seq` among the messages in `bytes`.
fn find_ack(mut bytes: &[u8], seq: u32) -> Option<io::Result<()>> {
    let u32_at = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).map(|b| u32::from_ne_bytes(b.try_into().expect("the slice is 4 bytes long")))
    };
    while bytes.len() >= HEADER_LEN + 4 {
        let len = u32_at(bytes, 0)? as usize;
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        if kind == NLMSG_ERROR && u32_at(bytes, 8)? == seq {
            let errno = u32_at(bytes, HEADER_LEN)? as i32;
            return Some(if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-errno)) });
        }
        bytes = bytes.get(len.max(HEADER_LEN).next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_nested_lengths_cover_their_content() {
        let message = Message::new(16, 0, &[0; 16]).nest(18, |m| m.attr_name(1, "veth")).finish(3);
        assert_eq!(message.len(), 16 + 16 + 4 + 12);
        assert_eq!(u32::from_ne_bytes(message[..4].try_into().expect("4 bytes")), 48);
        assert_eq!(&message[32..36], &[16, 0, 18, 0], "4 of its own, 12 inside");
        assert_eq!(&message[36..40], &[9, 0, 1, 0], "length without padding");
    }

    #[test]
    fn a_dump_ends_with_its_last_message() {
        let message = |kind: u16, seq: u32, body: &[u8]| {
            let mut bytes = ((HEADER_LEN + body.len()) as u32).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0, 0]);
            bytes.extend(seq.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(body);
            bytes
        };
        let mut answers = Vec::new();
        let first = [message(36, 7, &[1; 8]), message(36, 6, &[2; 8]), message(36, 7, &[3; 8])].concat();
        assert!(take_dump(&first, 7, &mut answers).is_none());
        assert!(take_dump(&message(NLMSG_DONE, 7, &[0; 4]), 7, &mut answers).is_some_and(|end| end.is_ok()));
        assert_eq!(answers, [vec![1; 8], vec![3; 8]]);
        let refused = message(NLMSG_ERROR, 7, &(-libc::EPERM).to_ne_bytes());
        assert!(take_dump(&refused, 7, &mut answers).is_some_and(|end| end.is_err()));
        assert!(take_dump(&[255; 30], 7, &mut answers).is_none());
    }

    #[test]
    fn the_loopback_device_has_a_name_and_a_queue() {
        let queues = Route::open().and_then(|mut route| route.dump(libc::RTM_GETQDISC, &[0; 20])).expect("a dump");
        let of_loopback = |answer: &&Vec<u8>| answer.get(4..8) == Some(&1i32.to_ne_bytes()[..]);
        assert_eq!(crate::link::name(1).expect("every namespace has it"), "lo");
        assert!(queues.is_empty() || queues.iter().any(|answer| of_loopback(&answer)) || queues.len() > 1);
    }

    #[test]
    fn ack_of_another_request_is_skipped() {
        let answer = |seq: u32, errno: i32| {
            let mut bytes = vec![20, 0, 0, 0, 2, 0, 0, 0];
            bytes.extend_from_slice(&seq.to_ne_bytes());
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&errno.to_ne_bytes());
            bytes
        };
        let bytes = [answer(1, 0), answer(2, -libc::EEXIST)].concat();
        let error = find_ack(&bytes, 2).expect("answered").expect_err("an errno");
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        assert!(find_ack(&bytes, 3).is_none());
        assert!(find_ack(&[255; 30], 3).is_none());
    }
}
