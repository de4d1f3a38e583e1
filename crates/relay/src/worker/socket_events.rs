//! The events that a worker waits for: which of a connection's sockets, and what their bits mean.
use parshall_core::relay::connection::SocketState;
use parshall_sys::epoll::{EDGE, FAILED, HUNG_UP, PEER_CLOSED, READABLE, URGENT, WRITABLE};

/// Kinds of events in the token of an epoll event; attempt n to connect to a target is n + 1.
pub(super) const CLIENT: u8 = 0;
pub(super) const ATTEMPTS_MAX: u8 = 200;
pub(super) const LISTENER: u8 = 254;
pub(super) const INBOX: u8 = 255;

/// The epoll events of a connection's sockets, which never change.
pub(super) const WATCHED: u32 = READABLE | WRITABLE | PEER_CLOSED | URGENT | EDGE;

/// The state of a socket by its epoll events.
pub(super) fn socket_state(bits: u32) -> SocketState {
    SocketState {
        readable: bits & (READABLE | PEER_CLOSED | FAILED | HUNG_UP) != 0,
        writable: bits & WRITABLE != 0,
        ended: bits & (PEER_CLOSED | URGENT | FAILED | HUNG_UP) != 0,
        failed: bits & (FAILED | HUNG_UP) != 0,
    }
}
