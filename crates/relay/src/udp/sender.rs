//! Sends the messages of a batch over a socket without waiting. Messages that cannot be sent are dropped and counted; the
//! datagrams of a message that the kernel does not segment are sent one by one.
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;

use parshall_sys::udp_batch::DatagramBatch;

/// Error numbers without a stable [`ErrorKind`].
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const EMSGSIZE: i32 = 90;

/// A GSO message that the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unsegmented {
    /// The message's tag.
    pub(super) tag: u64,
    /// The largest size of datagrams to join from now on.
    pub(super) segment_max: usize,
}

/// The result of sending a batch.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
    /// ICMP errors of earlier datagrams, which the kernel returns when the next one is sent.
    pub(super) refused: u64,
    /// The first of them.
    pub(super) error: Option<io::Error>,
    pub(super) calls: u64,
    pub(super) unsegmented: Vec<Unsegmented>,
}

/// Sends all messages, in order.
pub(super) fn send(batch: &mut DatagramBatch, socket: BorrowedFd<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut next = 0;
    let mut icmp_seen = false;
    while next < batch.messages().len() {
        outcome.calls += 1;
        match batch.transmit(socket, next) {
            // Not expected: the kernel sends at least one message or returns an error.
            Ok(0) => {
                drop_from(batch, next, &mut outcome);
                break;
            }
            Ok(sent) => {
                for message in &batch.messages()[next..next + sent] {
                    outcome.datagrams += message.datagrams() as u64;
                    outcome.bytes += message.bytes as u64;
                }
                next += sent;
                icmp_seen = false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // An error of an earlier datagram, and this message was not sent: it is sent again once.
            Err(error) if is_icmp(&error) && !icmp_seen => {
                outcome.refused += 1;
                outcome.error.get_or_insert(error);
                icmp_seen = true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                drop_from(batch, next, &mut outcome);
                break;
            }
            Err(error) => {
                refused_one(batch, socket, next, &error, &mut outcome);
                next += 1;
                icmp_seen = false;
            }
        }
    }
    outcome
}

fn is_icmp(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable)
}

fn drop_from(batch: &DatagramBatch, next: usize, outcome: &mut Outcome) {
    outcome.dropped += batch.messages()[next..].iter().map(|message| message.datagrams() as u64).sum::<u64>();
}

/// Handles a message that the kernel refused: a single datagram is dropped, several are sent one by one.
fn refused_one(
    batch: &mut DatagramBatch,
    socket: BorrowedFd<'_>,
    index: usize,
    error: &io::Error,
    outcome: &mut Outcome,
) {
    let message = batch.messages()[index];
    let segmentation_failed = matches!(error.raw_os_error(), Some(EIO | EINVAL | EMSGSIZE));
    if message.datagrams() == 1 || !segmentation_failed {
        outcome.dropped += message.datagrams() as u64;
        return;
    }
    // EIO: the route's device computes no checksums, so GSO never works. Otherwise the datagrams are longer than the path's
    // MTU, unless they fit into any (508 bytes): then the kernel has no UDP GSO.
    let never = error.raw_os_error() == Some(EIO) || message.segment <= 508;
    let segment_max = if never { 0 } else { message.segment - 1 };
    outcome.unsegmented.push(Unsegmented { tag: message.tag, segment_max });
    for part in 0..message.datagrams() {
        outcome.calls += 1;
        let mut sent = batch.transmit_part(socket, index, part);
        if let Some(error) = sent.as_ref().err().filter(|error| is_icmp(error)) {
            outcome.refused += 1;
            outcome.error.get_or_insert(error.kind().into());
            sent = batch.transmit_part(socket, index, part);
        }
        match sent {
            Ok(()) => {
                outcome.datagrams += 1;
                outcome.bytes += (message.bytes - part * message.segment).min(message.segment) as u64;
            }
            Err(_) => outcome.dropped += 1,
        }
    }
}
