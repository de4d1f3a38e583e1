//! The ends of connections that hold a request which nobody has answered: found by what moved last, and in which direction.
use parshall_evidence::WaitingEnd;
use parshall_evidence::socket::selection::state::{ESTABLISHED, SYN_SENT};

/// The kernel's clock for what moved last may stand this long (HZ=100).
pub const TICK_NS: u64 = 10_000_000;

/// Whether an end owes an answer, or is owed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Debt {
    /// No.
    No,
    /// A request and a reply moved in the same tick of the kernel's clock, and which came last does not show.
    Maybe,
    /// Yes.
    Sure,
}

/// By the socket alone. At an end that serves, a request has arrived; at one that asks, one has been sent.
///
/// A peer that has closed its direction waits no more, as far as this end tells: it may have given up.
pub fn debt(end: &WaitingEnd) -> Debt {
    match end.state {
        ESTABLISHED => {}
        SYN_SENT if !end.serves && end.still_ns > 0 => return Debt::Sure,
        _ => return Debt::No,
    }
    if end.serves && !end.accepted {
        return Debt::Sure;
    }
    if end.serves && end.unread_bytes > 0 {
        return if is_streaming(end) { Debt::No } else { Debt::Sure };
    }
    let (asked, answered) = if end.serves { (end.received_ns, end.sent_ns) } else { (end.sent_ns, end.received_ns) };
    match (asked, answered) {
        (None, _) => Debt::No,
        (Some(_), None) => Debt::Sure,
        (Some(asked), Some(answered)) if asked < answered => Debt::Sure,
        (Some(asked), Some(answered)) if asked > answered => Debt::No,
        // The reply was acknowledged later, by an ACK of its own.
        (Some(asked), _) if end.serves && end.acked_ns.saturating_add(TICK_NS) < asked => Debt::No,
        _ => Debt::Maybe,
    }
}

/// It has sent since data arrived, within the window too: what it leaves unread keeps nobody waiting.
fn is_streaming(end: &WaitingEnd) -> bool {
    let sent_since = end.sent_ns.zip(end.received_ns).is_some_and(|(sent, received)| sent < received);
    sent_since && end.still_ns == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::waiting::tests::end;

    const MS: u64 = 1_000_000;

    #[test]
    fn what_moved_last_tells_who_owes() {
        let moved = |received: Option<u64>, sent: Option<u64>, acked: u64| WaitingEnd {
            received_ns: received.map(|ms| ms * MS),
            sent_ns: sent.map(|ms| ms * MS),
            acked_ns: acked * MS,
            ..end(1, true)
        };
        for (end, wanted) in [
            (moved(None, None, 9000), Debt::No),
            (moved(Some(7000), None, 7000), Debt::Sure),
            (moved(Some(7000), Some(7004), 7000), Debt::Sure),
            (moved(Some(7004), Some(7000), 6960), Debt::No),
            (moved(Some(7000), Some(7000), 7000), Debt::Maybe),
            (moved(Some(7000), Some(7000), 6960), Debt::No),
        ] {
            assert_eq!(debt(&end), wanted, "{end:?}");
            let asks = WaitingEnd { serves: false, received_ns: end.sent_ns, sent_ns: end.received_ns, ..end };
            let ties = wanted == Debt::No && asks.received_ns == asks.sent_ns && asks.sent_ns.is_some();
            assert_eq!(debt(&asks), if ties { Debt::Maybe } else { wanted }, "{asks:?}");
        }
    }

    #[test]
    fn unread_and_unaccepted_is_owed_whatever_moved() {
        let idle = WaitingEnd { received_ns: Some(7004 * MS), sent_ns: Some(7000 * MS), ..end(1, true) };
        assert_eq!(debt(&idle), Debt::No);
        assert_eq!(debt(&WaitingEnd { unread_bytes: 1, still_ns: 1, ..idle.clone() }), Debt::Sure);
        // It streams, and never reads what its client sent first.
        assert_eq!(debt(&WaitingEnd { unread_bytes: 1, still_ns: 0, ..idle.clone() }), Debt::No);
        let not_sent = WaitingEnd { sent_ns: None, ..idle.clone() };
        assert_eq!(debt(&WaitingEnd { unread_bytes: 1, still_ns: 0, ..not_sent }), Debt::Sure);
        assert_eq!(debt(&WaitingEnd { accepted: false, received_ns: None, sent_ns: None, ..idle.clone() }), Debt::Sure);
        // Its client has closed.
        assert_eq!(debt(&WaitingEnd { unread_bytes: 1, state: 8, ..idle.clone() }), Debt::No);
        // A reply that the client does not read owes nobody an answer.
        assert_eq!(debt(&WaitingEnd { unread_bytes: 1, serves: false, received_ns: Some(1), ..idle }), Debt::No);
    }

    #[test]
    fn a_connection_that_is_being_opened() {
        let opening = WaitingEnd { state: SYN_SENT, still_ns: 5, ..end(1, false) };
        assert_eq!(debt(&opening), Debt::Sure);
        assert_eq!(debt(&WaitingEnd { still_ns: 0, ..opening }), Debt::No);
    }
}
