//! State that a connection needs only until bytes move.
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parshall_core::relay::config::Endpoint;
use parshall_core::relay::connection::happy_eyeballs::Outcome;
use parshall_core::relay::proxy::Header;
use parshall_sys::stream_io;
use parshall_sys::stream_socket::StreamAddr;

/// State that a connection needs only until bytes move.
#[derive(Debug)]
pub enum Setup {
    /// The PROXY header of the client.
    Header(Box<HeaderReader>),
    /// The attempts to connect to a target.
    Attempts(Box<Attempts>),
}

/// The attempts of a connection that has no target yet.
#[derive(Debug)]
pub struct Attempts {
    /// Indices of the targets to try, in this order.
    pub(super) order: Vec<usize>,
    /// Addresses of the current target.
    pub(super) addresses: Arc<[StreamAddr]>,
    /// Number, index of the address and socket of each attempt under way.
    pub(super) running: Vec<(u8, usize, OwnedFd)>,
    /// The number of the next attempt.
    pub(super) next_number: u8,
    /// The last address of the current target that failed, and its error.
    pub(super) error: Option<(usize, io::Error)>,
    /// All attempts to connect to the current target failed on this host, which says nothing about the target.
    pub(super) only_local: bool,
    /// The PROXY header that came with the client, to be passed on.
    pub(super) header: Option<Header>,
}

impl Attempts {
    /// Resets the attempts when they are closed: a target may have accepted one whose event was not yet seen here.
    pub fn reset_on_close(&self) {
        for (_, _, socket) in &self.running {
            // A socket that refuses the option is closed as any other.
            let _result = stream_io::reset_on_close(socket.as_raw_fd());
        }
    }

    /// Why the current target cannot be reached, for the log.
    pub(super) fn reason(&self, why: Outcome, target: &Endpoint, timeout: Duration) -> String {
        let address = |index: &usize| match (target, self.addresses.get(*index)) {
            (Endpoint::Name(..), Some(address)) => format!("{address}: "),
            _ => String::new(),
        };
        match (why, &self.error) {
            (Outcome::TimedOut, _) => format!("no answer within {} s", timeout.as_secs_f64()),
            (Outcome::Failed, Some((index, error))) => format!("{}{error}", address(index)),
            (Outcome::Failed, None) if self.addresses.is_empty() => "its name has no address".to_owned(),
            (Outcome::Failed, None) => "the connection was closed at once".to_owned(),
        }
    }
}

/// A header that is being read.
#[derive(Debug, Default)]
pub struct HeaderReader {
    /// The bytes read; once the header is complete, those after it.
    pub(super) bytes: Vec<u8>,
    pub(super) header: Option<Header>,
}
