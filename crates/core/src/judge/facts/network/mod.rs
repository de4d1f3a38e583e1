//! The limit of a socket, a host or a path to which a wait of the network belongs.
//!
//! The account of a flow says that it waited for a window, a buffer or the retransmission timer. Here the settings of both sockets, the
//! counters of their namespaces and the round trip times say why: each piece of lost time gets one more exact [`Blame`], or keeps
//! the one it has. `window` is about buffers and windows, `path` about what lies between the hosts, `restart` about pauses,
//! `connect` about opening connections, `round_trips` about waiting for one answer after the other.
mod connect;
pub(super) mod findings;
mod path;
mod restart;
mod round_trips;
mod whole;
mod window;

use super::part::{Blame, Part};
use super::prepared::Facts;

pub use connect::{OF_LIFE_MIN, SYN_TIMEOUT_NS, overflowed};
pub use findings::{Chatter, Network, Refusals, Setup};
pub use path::{QUEUE_MIN_NS, adds_delay, shaper};
pub use restart::largest_window;
pub use window::RCVBUF_LOCK;

/// Gives the lost time that the network caused its exact blame, and adds what only counters and settings show to be lost.
pub fn refine(facts: &Facts<'_>, mut parts: Vec<Part>) -> (Vec<Part>, Network) {
    let refusals = connect::refusals(facts);
    let black_holes = path::black_holes(facts);
    let windows = window::Windows::of(facts, &parts);
    parts.retain(|part| !windows.is_growth(part));
    for part in &mut parts {
        part.blame = match part.blame {
            Blame::PeerWindow => windows.of_peer(facts, part),
            Blame::ReaderBlocked => window::of_reader(facts, part),
            Blame::Sndbuf | Blame::Qdisc => window::of_send_buffer(facts, part),
            Blame::Loss | Blame::Rto | Blame::Cwnd => path::of_loss(facts, &refusals, &black_holes, part),
            other => other,
        };
    }
    window::add_receivers(facts, &mut parts);
    window::add_turns(facts, &mut parts);
    path::add_queued(facts, &mut parts);
    restart::add(facts, &mut parts);
    let setup = connect::add_setup(facts, &mut parts);
    let chatter = round_trips::add(facts, &mut parts);
    window::add_own(facts, &mut parts);
    (parts, Network { refusals, setup, chatter })
}
