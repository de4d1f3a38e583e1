//! The way by which sealed packets leave: the seam between what is sent ([`crate::data_path`], [`crate::worker`]) and how a loop sends it.
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use parshall_core::tunnel::{DataPath, DropCause, Endpoint, Link};
use parshall_sys::clock::boottime_ns;
use parshall_sys::udp_batch::{DatagramBatch, Message};
use rustix::io::Errno;

use crate::counts::{Count, Counts};
use crate::sockets::Sockets;

/// Sends GSO batches: datagrams of one length in one message. Those to one peer leave in the order in which they were queued.
pub trait GsoSender {
    /// Has `write` fill a buffer with datagrams of `segment` bytes, of which the last may be shorter, and return their length.
    /// They are sent to `target` with the next [`GsoSender::flush`] at the latest.
    fn queue(&mut self, sockets: &Arc<Sockets>, target: Target, segment: usize, write: impl FnOnce(&mut [u8]) -> usize);

    /// Sends all that waits.
    fn flush(&mut self, sockets: &Arc<Sockets>);
}

/// The destination of a GSO batch.
pub struct Target {
    /// Of the peer, which learns what the kernel refuses, unless it is a handshake message.
    pub link: Option<Arc<Link>>,
    pub to: Endpoint,
    /// The bits of ECN of its datagrams.
    pub ecn: u8,
}

/// Counts messages that were sent.
pub fn count_sent(counts: &Counts, messages: &[Message]) {
    counts.add(Count::MessagesSent, messages.len());
    counts.add(Count::DatagramsSent, messages.iter().map(Message::datagrams).sum());
}

/// Handles the error of a message of a batch: where that can help, the path learns of it and its datagrams are sent one by one.
/// Datagrams that cannot be sent at all are dropped and counted.
pub fn send_failed(
    counts: &Counts,
    path: &DataPath,
    sockets: &Sockets,
    batch: &mut DatagramBatch,
    index: usize,
    target: &Target,
    error: &io::Error,
) {
    let message = batch.messages()[index];
    let datagrams = message.datagrams();
    let to = &target.to;
    if !may_go_apart(error, datagrams) {
        tracing::debug!(%error, datagrams, to = %to.remote, "a message was not sent");
        return drop_datagrams(path, target, error, datagrams);
    }
    tracing::debug!(%error, datagrams, to = %to.remote, "a GSO batch was refused");
    counts.add(Count::GsoBatchesRefused, 1);
    if let Some(link) = &target.link {
        let (mtu, now) = (sockets.path_mtu(to), boottime_ns());
        let mut peer_path = link.path();
        peer_path.set_mtu(now, to.remote, mtu);
        peer_path.gso_failed(now, to.remote, datagrams, message.segment);
    }
    let ipv6 = to.remote.is_ipv6();
    for part in 0..datagrams {
        counts.add(Count::SendCalls, 1);
        let mut sent = batch.transmit_part(sockets.of(ipv6).as_fd(), index, part);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) && sockets.wait_for_space(ipv6) {
            sent = batch.transmit_part(sockets.of(ipv6).as_fd(), index, part);
        }
        match sent {
            Ok(()) => {
                counts.add(Count::MessagesSent, 1);
                counts.add(Count::DatagramsSent, 1);
            }
            Err(error) => drop_datagrams(path, target, &error, 1),
        }
    }
}

/// Counts datagrams that cannot be sent. The address of this host that they were to leave from may be gone (EINVAL), or no route may
/// lead from there.
fn drop_datagrams(path: &DataPath, target: &Target, error: &io::Error, datagrams: usize) {
    let cause = cause(error);
    path.count_drops(target.link.as_deref(), cause, datagrams);
    if let Some(link) = target.link.as_ref().filter(|_| cause != DropCause::SendBufferFull) {
        link.forget_local_address();
    }
}

/// Whether a GSO batch was refused because it is one, or because its datagrams are too long: they can be sent one by one.
///
/// EMSGSIZE: datagrams longer than the path's MTU (EINVAL before kernel 6.14). EINVAL: too many datagrams. EIO: the device has
/// no checksums in hardware (before kernel 6.11), or the route is IPsec's.
fn may_go_apart(error: &io::Error, datagrams: usize) -> bool {
    let refusals = [Errno::MSGSIZE, Errno::INVAL, Errno::IO].map(Errno::raw_os_error);
    datagrams > 1 && error.raw_os_error().is_some_and(|code| refusals.contains(&code))
}

/// The cause by which datagrams that could not be sent are counted.
fn cause(error: &io::Error) -> DropCause {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => DropCause::SendBufferFull,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkDown => {
            DropCause::Unreachable
        }
        // A send that waited for space in vain is cancelled.
        _ if [Errno::NOBUFS, Errno::CANCELED]
            .map(|errno| Some(errno.raw_os_error()))
            .contains(&error.raw_os_error()) =>
        {
            DropCause::SendBufferFull
        }
        _ => DropCause::SendFailed,
    }
}
