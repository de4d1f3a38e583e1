//! How a connection through the relay ends.
//!
//! Two directions end each by itself. An end of data is passed on as a half-close once all that came before it is
//! delivered; the other direction goes on, however late its replies are. A reset is passed on as a reset, but only once
//! everything received before it has left: closing with a reset throws away what the kernel has not yet sent.
//!
//! [`Closing`] is told what happened to each direction and answers what to do with the sockets. It holds no data: the
//! engines report an end only when nothing that came before it is left with them.

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Who connected to the relay.
    Client,
    /// To whom the relay connected.
    Target,
}

impl Side {
    /// The other end.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Target,
            Self::Target => Self::Client,
        }
    }
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Both directions came to their end.
    Finished,
    /// The client reset it.
    ClientReset,
    /// The target reset it.
    TargetReset,
    /// The client could not be reached any more (retransmissions or keepalive gave up, or no route).
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
    /// The peer is none of the proxies that may say who the client is.
    UntrustedProxy,
    /// The PROXY header was missing or malformed.
    BadHeader,
    /// The relay stopped, or its listener was removed, and the time to drain was over.
    Drained,
    /// The relay itself failed: no memory or descriptors.
    RelayFailed,
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
        }
    }

    /// All of them, for metrics.
    pub const ALL: [Self; 16] = [
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
    ];
}

/// What killed a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The other side sent a reset.
    Reset,
    /// It could not be reached.
    Lost,
}

/// What happened to the direction that reads from a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The side sent its end of data, and all before it is delivered.
    Eof,
    /// Reading from the side failed, and all before it is delivered.
    SourceFailed(Failure),
    /// Writing to the other side failed; what was left is lost.
    SinkFailed(Failure),
}

/// What to do with the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing yet.
    Wait,
    /// Send the end of data to this side (shutdown of writing).
    HalfClose(Side),
    /// Close both in good order: each side has all its data and its end.
    Close(CloseReason),
    /// Reset this side once its data has left (the other one is dead), then close both.
    Reset(Side, CloseReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// Its end of data is passed on.
    Over,
    /// Its sink is dead; the reason waits until the other direction has delivered what is left.
    Broken(Side, Failure),
}

/// The state of both directions; index 0 reads from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closing {
    ways: [Way; 2],
}

impl Default for Closing {
    fn default() -> Self {
        Self { ways: [Way::Open; 2] }
    }
}

fn index(from: Side) -> usize {
    match from {
        Side::Client => 0,
        Side::Target => 1,
    }
}

fn reason(dead: Side, failure: Failure) -> CloseReason {
    match (dead, failure) {
        (Side::Client, Failure::Reset) => CloseReason::ClientReset,
        (Side::Client, Failure::Lost) => CloseReason::ClientLost,
        (Side::Target, Failure::Reset) => CloseReason::TargetReset,
        (Side::Target, Failure::Lost) => CloseReason::TargetLost,
    }
}

impl Closing {
    /// Whether the direction that reads from this side still moves data.
    pub fn is_open(&self, from: Side) -> bool {
        self.ways[index(from)] == Way::Open
    }

    /// Whether one direction has ended and the other has not: the linger timeout runs.
    pub fn half_closed(&self) -> bool {
        self.is_open(Side::Client) != self.is_open(Side::Target)
    }

    /// The direction that reads from `from` has ended.
    pub fn ended(&mut self, from: Side, how: Ended) -> Action {
        if !self.is_open(from) {
            return Action::Wait;
        }
        let back = self.ways[index(from.other())];
        match how {
            Ended::Eof => {
                self.ways[index(from)] = Way::Over;
                match back {
                    Way::Open => Action::HalfClose(from.other()),
                    Way::Over => Action::Close(CloseReason::Finished),
                    // `from` is dead or gone as a sink, and has now said all it had to say.
                    Way::Broken(dead, failure) => Action::Reset(dead.other(), reason(dead, failure)),
                }
            }
            // A dead socket takes no more data either, so the other direction has nowhere to go.
            Ended::SourceFailed(failure) => {
                self.ways = [Way::Over; 2];
                Action::Reset(from.other(), reason(from, failure))
            }
            Ended::SinkFailed(failure) => {
                let dead = from.other();
                self.ways[index(from)] = Way::Broken(dead, failure);
                match back {
                    // What the dead side sent before it died may still wait to be read.
                    Way::Open => Action::Wait,
                    Way::Over | Way::Broken(..) => {
                        self.ways = [Way::Over; 2];
                        Action::Reset(from, reason(dead, failure))
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Side::{Client, Target};

    #[test]
    fn both_ends_in_turn_finish_it() {
        for first in [Client, Target] {
            let mut closing = Closing::default();
            assert_eq!(closing.ended(first, Ended::Eof), Action::HalfClose(first.other()));
            assert!(closing.half_closed() && closing.is_open(first.other()));
            assert_eq!(closing.ended(first.other(), Ended::Eof), Action::Close(CloseReason::Finished));
        }
    }

    #[test]
    fn a_reset_is_passed_on_at_once_whatever_the_other_direction_does() {
        let mut closing = Closing::default();
        assert_eq!(
            closing.ended(Target, Ended::SourceFailed(Failure::Reset)),
            Action::Reset(Client, CloseReason::TargetReset)
        );
        let mut closing = Closing::default();
        closing.ended(Target, Ended::Eof);
        assert_eq!(
            closing.ended(Client, Ended::SourceFailed(Failure::Lost)),
            Action::Reset(Target, CloseReason::ClientLost)
        );
        assert_eq!(closing.ended(Target, Ended::Eof), Action::Wait, "told once");
    }

    #[test]
    fn what_a_dead_target_had_sent_still_reaches_the_client() {
        let mut closing = Closing::default();
        assert_eq!(closing.ended(Client, Ended::SinkFailed(Failure::Reset)), Action::Wait);
        assert!(closing.is_open(Target));
        assert_eq!(closing.ended(Target, Ended::Eof), Action::Reset(Client, CloseReason::TargetReset));
    }

    #[test]
    fn a_sink_that_fails_after_the_other_direction_is_over_resets() {
        let mut closing = Closing::default();
        closing.ended(Target, Ended::Eof);
        assert_eq!(
            closing.ended(Client, Ended::SinkFailed(Failure::Reset)),
            Action::Reset(Client, CloseReason::TargetReset)
        );
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::HashSet<_> = CloseReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), CloseReason::ALL.len());
    }
}
