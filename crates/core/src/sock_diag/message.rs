//! Netlink messages (`struct nlmsghdr`) of one part of a reply.
use super::bytes::Bytes;

const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;

/// One message of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A socket: to be read with [`decode`](super::decode).
    Socket(&'a [u8]),
    /// The end of the dump; 0, or the errno that ended it.
    Done(i32),
    /// The request was refused with this errno.
    Refused(i32),
}

/// The messages of one part that answer one request or several with consecutive sequence numbers.
#[derive(Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
    first: u32,
    requests: u32,
    request: u32,
    interrupted: bool,
    broken: bool,
}

impl<'a> Messages<'a> {
    /// The messages of `part` that carry this sequence number; others belong to an earlier request that was given up.
    pub fn new(part: &'a [u8], sequence: u32) -> Self {
        Self::of_requests(part, sequence, 1)
    }

    /// The messages of `part` that answer one of `requests` requests, whose sequence numbers begin with `first`.
    pub fn of_requests(part: &'a [u8], first: u32, requests: u32) -> Self {
        Self { rest: part, first, requests, request: 0, interrupted: false, broken: false }
    }

    /// The number of the request that the last message answers, counted from 0.
    pub fn request(&self) -> u32 {
        self.request
    }

    /// Whether a message so far said that the tables changed under the dump (NLM_F_DUMP_INTR): sockets may be missing.
    pub fn interrupted(&self) -> bool {
        self.interrupted
    }

    /// Whether the part ended in the middle of a message: what followed is lost.
    pub fn broken(&self) -> bool {
        self.broken
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    #[inline]
    fn next(&mut self) -> Option<Message<'a>> {
        loop {
            let head = Bytes(self.rest);
            let len = head.u32(0) as usize;
            // After an invalid length the next message cannot be found.
            let Some(payload) = self.rest.get(HEADER..len) else {
                self.broken |= !self.rest.is_empty();
                self.rest = &[];
                return None;
            };
            self.rest = self.rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            self.request = head.u32(8).wrapping_sub(self.first);
            if self.request >= self.requests {
                continue;
            }
            self.interrupted |= head.u16(6) & NLM_F_DUMP_INTR != 0;
            let errno = || (Bytes(payload).u32(0) as i32).saturating_neg().max(0);
            return Some(match head.u16(4) {
                NLMSG_DONE => Message::Done(errno()),
                NLMSG_ERROR => Message::Refused(errno()),
                _ => Message::Socket(payload),
            });
        }
    }
}
