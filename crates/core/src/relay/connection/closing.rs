//! How a connection through the relay ends.
//!
//! Each direction ends by itself. An end of data is passed on as a half-close once all bytes before it are delivered; the
//! other direction continues, however late its replies are. A reset is passed on as a reset, but only once the other peer has
//! acknowledged everything received before it: closing with a reset discards what the kernel has not yet sent.
//!
//! [`Closing`] knows of no bytes: the engines report an end only when all bytes before it are written.
use crate::relay::direction::{Direction, Peer, PerDirection};

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Both peers have sent their end of data.
    Finished,
    /// The client reset the connection.
    ClientReset,
    /// The target reset the connection.
    TargetReset,
    /// The client could not be reached any more (retransmissions or keepalive timed out, or no route).
    ClientLost,
    /// The target could not be reached any more.
    TargetLost,
    /// No progress for the idle timeout.
    IdleTimeout,
    /// No progress for the linger timeout after one direction had ended.
    LingerTimeout,
    /// No target accepted.
    ConnectRefused,
    /// No target answered in time.
    ConnectTimeout,
    /// The client left before a target had answered.
    ClientGone,
    /// The client is not allowed.
    Denied,
    /// A limit was reached.
    Limited,
    /// A connection with PROXY headers came from an address outside `proxy-from`.
    UntrustedProxy,
    /// The PROXY header was missing or malformed.
    BadHeader,
    /// The relay stopped, or its listener was removed, and the drain timeout was over.
    Drained,
    /// The relay itself failed: no memory, descriptors or local ports.
    RelayFailed,
    /// A UDP session made room for another one at a limit.
    Evicted,
    /// The target of a UDP session was removed, has another address, or refused datagrams while another target serves.
    TargetGone,
}

impl CloseReason {
    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::ClientReset => "client-reset",
            Self::TargetReset => "target-reset",
            Self::ClientLost => "client-lost",
            Self::TargetLost => "target-lost",
            Self::IdleTimeout => "idle-timeout",
            Self::LingerTimeout => "linger-timeout",
            Self::ConnectRefused => "connect-refused",
            Self::ConnectTimeout => "connect-timeout",
            Self::ClientGone => "client-gone",
            Self::Denied => "denied",
            Self::Limited => "limited",
            Self::UntrustedProxy => "untrusted-proxy",
            Self::BadHeader => "bad-header",
            Self::Drained => "drained",
            Self::RelayFailed => "relay-failed",
            Self::Evicted => "evicted",
            Self::TargetGone => "target-gone",
        }
    }

    /// All of them, for metrics.
    pub const ALL: [Self; 18] = [
        Self::Finished,
        Self::ClientReset,
        Self::TargetReset,
        Self::ClientLost,
        Self::TargetLost,
        Self::IdleTimeout,
        Self::LingerTimeout,
        Self::ConnectRefused,
        Self::ConnectTimeout,
        Self::ClientGone,
        Self::Denied,
        Self::Limited,
        Self::UntrustedProxy,
        Self::BadHeader,
        Self::Drained,
        Self::RelayFailed,
        Self::Evicted,
        Self::TargetGone,
    ];
}

/// The cause of a socket's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The peer sent a reset.
    Reset,
    /// The peer could not be reached.
    Lost,
}

/// How a direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The source sent its end of data, and all bytes before it are delivered.
    Eof,
    /// Reading from the source failed, and all bytes before that are delivered.
    SourceFailed(Failure),
    /// Writing to the sink failed; what was left is lost.
    SinkFailed(Failure),
}

/// The action on the sockets when a direction has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing yet.
    Wait,
    /// Send the end of data to this peer (shutdown of writing).
    HalfClose(Peer),
    /// Close both sockets: each peer has all its data and its end.
    Close(CloseReason),
    /// Reset this peer once it has acknowledged its data, because the other one is dead; then close both sockets.
    Reset(Peer, CloseReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Open,
    /// Its end of data is passed on.
    Finished,
    /// Its sink is dead. The source is reset once the other direction has delivered what is left.
    SinkFailed(Failure),
}

/// The ends of both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Closing {
    directions: PerDirection<State>,
}

fn reason(dead: Peer, failure: Failure) -> CloseReason {
    match (dead, failure) {
        (Peer::Client, Failure::Reset) => CloseReason::ClientReset,
        (Peer::Client, Failure::Lost) => CloseReason::ClientLost,
        (Peer::Target, Failure::Reset) => CloseReason::TargetReset,
        (Peer::Target, Failure::Lost) => CloseReason::TargetLost,
    }
}

impl Closing {
    /// Whether the direction still moves data.
    pub fn is_open(&self, direction: Direction) -> bool {
        self.directions[direction] == State::Open
    }

    /// Whether one direction has ended and the other has not: the linger timeout runs.
    pub fn is_half_closed(&self) -> bool {
        self.is_open(Direction::ClientToTarget) != self.is_open(Direction::TargetToClient)
    }

    /// A direction has ended.
    pub fn ended(&mut self, direction: Direction, how: Ended) -> Next {
        if !self.is_open(direction) {
            return Next::Wait;
        }
        let (source, sink) = (direction.source(), direction.sink());
        let reverse = self.directions[direction.reverse()];
        match how {
            Ended::Eof => {
                self.directions[direction] = State::Finished;
                match reverse {
                    State::Open => Next::HalfClose(sink),
                    State::Finished => Next::Close(CloseReason::Finished),
                    // The source has failed as the sink of the other direction, and all it had sent is delivered.
                    State::SinkFailed(failure) => Next::Reset(sink, reason(source, failure)),
                }
            }
            // A dead socket takes no data either, so the reverse direction has ended too.
            Ended::SourceFailed(failure) => {
                self.directions = PerDirection::new(|_| State::Finished);
                Next::Reset(sink, reason(source, failure))
            }
            Ended::SinkFailed(failure) => {
                self.directions[direction] = State::SinkFailed(failure);
                match reverse {
                    // Bytes that the dead peer sent before may still be unread.
                    State::Open => Next::Wait,
                    State::Finished | State::SinkFailed(_) => Next::Reset(source, reason(sink, failure)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{ClientToTarget, TargetToClient};

    #[test]
    fn two_ends_of_data_finish_the_connection() {
        for first in Direction::ALL {
            let mut closing = Closing::default();
            assert_eq!(closing.ended(first, Ended::Eof), Next::HalfClose(first.sink()));
            assert!(closing.is_half_closed() && closing.is_open(first.reverse()));
            assert_eq!(closing.ended(first.reverse(), Ended::Eof), Next::Close(CloseReason::Finished));
        }
    }

    #[test]
    fn a_reset_is_passed_on_at_once_whatever_the_other_direction_does() {
        let mut closing = Closing::default();
        assert_eq!(
            closing.ended(TargetToClient, Ended::SourceFailed(Failure::Reset)),
            Next::Reset(Peer::Client, CloseReason::TargetReset)
        );
        let mut closing = Closing::default();
        closing.ended(TargetToClient, Ended::Eof);
        assert_eq!(
            closing.ended(ClientToTarget, Ended::SourceFailed(Failure::Lost)),
            Next::Reset(Peer::Target, CloseReason::ClientLost)
        );
        assert_eq!(closing.ended(TargetToClient, Ended::Eof), Next::Wait, "reported once");
    }

    #[test]
    fn what_a_dead_target_had_sent_still_reaches_the_client() {
        let mut closing = Closing::default();
        assert_eq!(closing.ended(ClientToTarget, Ended::SinkFailed(Failure::Reset)), Next::Wait);
        assert!(closing.is_open(TargetToClient));
        let next = closing.ended(TargetToClient, Ended::Eof);
        assert_eq!(next, Next::Reset(Peer::Client, CloseReason::TargetReset));
    }

    #[test]
    fn a_sink_that_fails_after_the_other_direction_is_over_resets() {
        let mut closing = Closing::default();
        closing.ended(TargetToClient, Ended::Eof);
        let next = closing.ended(ClientToTarget, Ended::SinkFailed(Failure::Reset));
        assert_eq!(next, Next::Reset(Peer::Client, CloseReason::TargetReset));
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::HashSet<_> = CloseReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), CloseReason::ALL.len());
    }
}
