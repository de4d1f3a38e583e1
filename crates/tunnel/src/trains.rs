//! Where sealed packets leave: the seam between what is sent ([`crate::worker`]) and how a loop sends it.
use std::io;
use std::sync::Arc;

use parshall_core::tunnel::{Endpoint, Link};
use parshall_sys::clock::monotonic_ns;
use rustix::io::Errno;

use crate::counts::{Count, Counts};
use crate::sockets::Sockets;

/// Trains that wait to be sent. What is queued for one peer is sent in that order.
pub trait Trains {
    /// Has `write` fill a buffer with datagrams of `segment` bytes, of which the last may be shorter, and return their length.
    /// They are sent with the next [`Trains::flush`] at the latest. `link` learns what the kernel refuses.
    fn queue(
        &mut self,
        sockets: &Sockets,
        link: Option<&Arc<Link>>,
        to: &Endpoint,
        segment: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    );

    /// Sends all that waits.
    fn flush(&mut self, sockets: &Sockets);
}

/// Whether a train was refused because it is one, or because its datagrams are too long: they can be sent one by one.
///
/// EMSGSIZE: datagrams longer than the path's MTU (EINVAL before kernel 6.14). EINVAL: too many datagrams. EIO: the device has
/// no checksums in hardware (before kernel 6.11), or the route is IPsec's.
pub fn may_go_apart(error: &io::Error, datagrams: usize) -> bool {
    let refusals = [Errno::MSGSIZE, Errno::INVAL, Errno::IO].map(Errno::raw_os_error);
    datagrams > 1 && error.raw_os_error().is_some_and(|code| refusals.contains(&code))
}

/// The kernel has refused a train of `datagrams` of `segment` bytes: the path learns of it.
pub fn refused(
    counts: &Counts,
    sockets: &Sockets,
    link: Option<&Arc<Link>>,
    to: &Endpoint,
    (datagrams, segment): (usize, usize),
) {
    counts.add(Count::TrainsRefused, 1);
    if let Some(link) = link {
        let (mtu, now) = (sockets.path_mtu(to), monotonic_ns());
        let mut path = link.path();
        path.set_mtu(now, to.remote, mtu);
        path.train_failed(now, to.remote, datagrams, segment);
    }
}

/// What datagrams that could not be sent are counted as.
pub fn cause(error: &io::Error) -> Count {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => Count::SendBufferFull,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkDown => {
            Count::Unreachable
        }
        _ if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => Count::SendBufferFull,
        _ => Count::SendFailed,
    }
}
