//! Sends the messages of a batch over a socket, whatever becomes of each: nothing is waited for, what cannot be sent is
//! dropped and counted, and what the kernel does not cut is sent datagram by datagram.
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;

use parshall_sys::udp_batch::DatagramBatch;

/// Linux error numbers that have no name of their own in the standard library's stable kinds.
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const EMSGSIZE: i32 = 90;

/// A message that the kernel did not cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Uncut {
    /// The message's tag.
    pub(super) tag: u64,
    /// The largest size of datagrams to join from now on.
    pub(super) segment_max: usize,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
    /// ICMP errors of earlier datagrams, which the kernel tells when the next one is sent.
    pub(super) refused: u64,
    /// The first of them.
    pub(super) error: Option<io::Error>,
    pub(super) calls: u64,
    pub(super) uncut: Vec<Uncut>,
}

/// Sends all messages, in order.
pub(super) fn send(batch: &mut DatagramBatch, socket: BorrowedFd<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut next = 0;
    let mut told = false;
    while next < batch.messages().len() {
        outcome.calls += 1;
        match batch.transmit(socket, next) {
            // The kernel sends at least one or tells why not.
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
                told = false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // An error of an earlier datagram took this one's place: it is told once, then sending goes on.
            Err(error) if is_icmp(&error) && !told => {
                outcome.refused += 1;
                outcome.error.get_or_insert(error);
                told = true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                drop_from(batch, next, &mut outcome);
                break;
            }
            Err(error) => {
                refused_one(batch, socket, next, &error, &mut outcome);
                next += 1;
                told = false;
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

/// The kernel did not take a message: one datagram is dropped, several are tried one by one.
fn refused_one(
    batch: &mut DatagramBatch,
    socket: BorrowedFd<'_>,
    index: usize,
    error: &io::Error,
    outcome: &mut Outcome,
) {
    let message = batch.messages()[index];
    let cut = matches!(error.raw_os_error(), Some(EIO | EINVAL | EMSGSIZE));
    if message.datagrams() == 1 || !cut {
        outcome.dropped += message.datagrams() as u64;
        return;
    }
    // EIO: the way out computes no checksums, so it never cuts. Otherwise the datagrams are too long for one packet, unless
    // they fit everywhere: then the kernel does not know how to cut.
    let never = error.raw_os_error() == Some(EIO) || message.segment <= 508;
    let segment_max = if never { 0 } else { message.segment - 1 };
    outcome.uncut.push(Uncut { tag: message.tag, segment_max });
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
