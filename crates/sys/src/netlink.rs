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
