//! Whether the generator was the limit, and not what it measured.
use serde::{Deserialize, Serialize};

use super::Latency;

/// A thread that uses more of one CPU can do no more.
const FULL: f64 = 0.95;
/// An open loop that sends less of what is due is behind.
const KEPT_UP: f64 = 0.99;
/// The share of the median latency that the generator's own lateness may make.
const LATE: f64 = 0.25;

/// A limit of a load beside the server and the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// A thread of the client used a whole CPU.
    ClientThread,
    /// A thread of the load's own server used a whole CPU.
    ServerThread,
    /// Requests were due for which no connection was free: part of their latency is time in the client's queue.
    Connections,
    /// The client sent requests late although a connection was free.
    SendLag,
}

/// Measurements of a client about itself and its server.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// Share of the time for which the client's busiest thread was on a CPU.
    pub client_thread: Option<f64>,
    /// The same of the server.
    pub server_thread: Option<f64>,
    /// Requests per second of the schedule; None in a closed loop.
    pub offered_per_s: Option<f64>,
    /// Requests answered per second.
    pub rate_per_s: f64,
    /// From when a request was due until it was sent, where a connection was free.
    pub send_lag: Option<Latency>,
    /// From when a request was due until its reply was complete.
    pub latency: Option<Latency>,
}

/// Returns the limit of the load, if there was one.
pub fn limits(seen: &Seen) -> Vec<Limit> {
    let full = |share: Option<f64>| share.is_some_and(|share| share >= FULL);
    let behind = seen.offered_per_s.is_some_and(|offered| seen.rate_per_s < offered * KEPT_UP);
    let late = seen.send_lag.zip(seen.latency).is_some_and(|(lag, latency)| lag.p50_us > latency.p50_us * LATE);
    [
        (full(seen.client_thread), Limit::ClientThread),
        (full(seen.server_thread), Limit::ServerThread),
        (behind, Limit::Connections),
        (late, Limit::SendLag),
    ]
    .into_iter()
    .filter_map(|(holds, limit)| holds.then_some(limit))
    .collect()
}

impl Limit {
    /// Its meaning for the result, and a remedy.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::ClientThread => "a thread of the client used a whole CPU: with more --threads the rate may be higher",
            Self::ServerThread => {
                "a thread of this load's server used a whole CPU: with more --threads at --serve the rate may be higher"
            }
            Self::Connections => {
                "fewer requests were answered than were due: the server or the number of connections is the limit, and \
                 latencies count the wait for a free connection"
            }
            Self::SendLag => {
                "the client sent its requests late: part of the latency is its own; use more --threads or a lower --rate"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(p50_us: f64) -> Option<Latency> {
        Some(Latency { p50_us, ..Latency::default() })
    }

    #[test]
    fn a_healthy_load_has_no_limit() {
        let seen = Seen {
            client_thread: Some(0.6),
            server_thread: Some(0.9),
            offered_per_s: Some(1000.0),
            rate_per_s: 998.0,
            send_lag: latency(4.0),
            latency: latency(50.0),
        };
        assert_eq!(limits(&seen), []);
        assert_eq!(limits(&Seen::default()), []);
    }

    #[test]
    fn each_limit_is_found() {
        let full = Seen { client_thread: Some(0.99), server_thread: Some(0.97), ..Seen::default() };
        assert_eq!(limits(&full), [Limit::ClientThread, Limit::ServerThread]);
        let behind = Seen { offered_per_s: Some(1000.0), rate_per_s: 900.0, ..Seen::default() };
        assert_eq!(limits(&behind), [Limit::Connections]);
        let late = Seen { send_lag: latency(20.0), latency: latency(50.0), ..Seen::default() };
        assert_eq!(limits(&late), [Limit::SendLag]);
    }
}
