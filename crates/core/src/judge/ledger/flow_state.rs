//! The states that exclude each other, into which the time of a flow is split.
/// A use of a flow's time; at each moment exactly one holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum State {
    /// No side has data to move.
    NothingToSend,
    /// The local application has read a request and did not answer yet.
    AppThinking,
    /// A small write waits one round trip for an ACK.
    HeldByNagle,
    /// A small write waits for an ACK that the peer delays.
    HeldByNagleDelayedAck,
    /// A partial segment is held by TCP_CORK or MSG_MORE.
    Corked,
    /// On the way, one round trip.
    InFlight,
    /// Nothing is unsent; the ACK takes longer than a round trip.
    AckDelayed,
    /// Fast recovery.
    LossRecovery,
    /// Waiting for the retransmission timer, and what follows it.
    RetransmissionTimeout,
    /// The congestion window is full.
    CwndLimited,
    /// The peer's receive window is full.
    PeerWindowLimited,
    /// The writer waits for space in its own send buffer.
    SndbufLimited,
    /// The pacing timer runs.
    Paced,
    /// Too much sits in the local qdisc or device.
    QdiscQueued,
    /// Received data is unread.
    ReaderWaiting,
    /// The peer has the request and did not answer yet.
    PeerThinking,
    /// The peer's Nagle waits for our delayed ACK.
    PeerHeld,
    /// Connecting, closing, or not observed.
    Other,
}

impl State {
    /// How many states there are.
    pub const N: usize = 18;

    /// All states.
    pub const ALL: [State; State::N] = [
        State::NothingToSend,
        State::AppThinking,
        State::HeldByNagle,
        State::HeldByNagleDelayedAck,
        State::Corked,
        State::InFlight,
        State::AckDelayed,
        State::LossRecovery,
        State::RetransmissionTimeout,
        State::CwndLimited,
        State::PeerWindowLimited,
        State::SndbufLimited,
        State::Paced,
        State::QdiscQueued,
        State::ReaderWaiting,
        State::PeerThinking,
        State::PeerHeld,
        State::Other,
    ];

    /// Its id in reports.
    pub fn id(self) -> &'static str {
        self.names().0
    }

    /// Its name for people.
    pub fn label(self) -> &'static str {
        self.names().1
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            State::NothingToSend => ("nothing-to-send", "nothing to send"),
            State::AppThinking => ("app-thinking", "local application working"),
            State::HeldByNagle => ("held-by-nagle", "held by Nagle, one RTT"),
            State::HeldByNagleDelayedAck => ("held-by-nagle-delayed-ack", "held by Nagle, ACK delayed"),
            State::Corked => ("corked", "held by cork"),
            State::InFlight => ("in-flight", "in flight"),
            State::AckDelayed => ("ack-delayed", "ACK late, nothing held"),
            State::LossRecovery => ("loss-recovery", "loss recovery"),
            State::RetransmissionTimeout => ("retransmission-timeout", "retransmission timeout"),
            State::CwndLimited => ("cwnd-limited", "congestion window full"),
            State::PeerWindowLimited => ("peer-window-limited", "peer's window full"),
            State::SndbufLimited => ("sndbuf-limited", "send buffer full"),
            State::Paced => ("paced", "paced"),
            State::QdiscQueued => ("qdisc-queued", "queued in the local qdisc"),
            State::ReaderWaiting => ("reader-waiting", "data waiting for the local reader"),
            State::PeerThinking => ("peer-thinking", "peer thinking"),
            State::PeerHeld => ("peer-held", "peer waits for our delayed ACK"),
            State::Other => ("other", "other, or between slices"),
        }
    }
}
