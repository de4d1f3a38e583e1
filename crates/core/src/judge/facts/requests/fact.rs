//! A service and the parts of its requests' time.
use parshall_evidence::{HopKind, PathPart, Service};

use super::spent::Spent;
use crate::stats::ratio;

/// Time that no cause can explain is lost only if a request waits at least this long on average: a request of 60 us is not slow,
/// whatever its largest part is.
pub const FLOOR_NS: f64 = 200_000.0;

/// A service and what is known of its requests. Times are scaled from the observed slices to the window.
#[derive(Debug)]
pub struct ServiceFact<'a> {
    /// The record.
    pub rec: &'a Service,
    /// Its time is on the account: the user asked about it, or about its client. A service that is only followed is in the paths of others.
    pub counted: bool,
    /// Time of all requests, nanoseconds.
    pub time_ns: f64,
    /// Requests that its parts stand for.
    pub requests: f64,
    /// The parts of that time; together with `unseen_ns` it is `time_ns`.
    pub parts: Vec<PartFact<'a>>,
    /// Time that no part accounts for.
    pub unseen_ns: f64,
    /// Mean number of requests that wait or are worked on.
    pub outstanding: f64,
    /// Its requests lose at least [`FLOOR_NS`] each on average.
    pub slow: bool,
}

/// A part of a service's time.
#[derive(Debug)]
pub struct PartFact<'a> {
    /// The record.
    pub rec: &'a PathPart,
    /// Its time, scaled.
    pub ns: f64,
    /// The use of that time.
    pub spent: Spent,
}

impl PartFact<'_> {
    /// The part ends in a lock that no thread was seen to hold, and whose wait has a limit or is repeated: the timer is not what it waits
    /// for.
    pub fn ends_in_limited_lock(&self) -> bool {
        let hops = &self.rec.hops;
        let timer = hops.last().is_some_and(|leaf| leaf.kind == HopKind::Timer);
        self.spent == Spent::Lock && timer && hops.iter().all(|hop| hop.kind != HopKind::Lock)
    }

    /// The row of the requests' time to which the part belongs: what the service's own thread did. A wait for a lock with a limit is one for
    /// a lock, as the chain says.
    pub fn row(&self) -> HopKind {
        match self.rec.hops.as_slice() {
            [_] if self.ends_in_limited_lock() => HopKind::Lock,
            [first, ..] => first.kind,
            [] => HopKind::Unseen,
        }
    }
}

impl<'a> ServiceFact<'a> {
    pub(super) fn new(rec: &'a Service, counted: bool, window_ns: f64) -> ServiceFact<'a> {
        let observed = rec.observed_ns as f64;
        let scale = if observed > 0.0 { (window_ns / observed).max(1.0) } else { 1.0 };
        let time_ns = rec.outstanding_ns as f64 * scale;
        let in_parts: f64 = rec.path.iter().map(|p| p.ns as f64).sum();
        let followed = (rec.followed_ns as f64).max(in_parts);
        // Followed requests stand for all others.
        let each = ratio(time_ns, followed);
        let parts = rec.path.iter().map(|p| PartFact { rec: p, ns: p.ns as f64 * each, spent: Spent::Work });
        ServiceFact {
            rec,
            counted,
            time_ns,
            requests: seen_requests(rec) as f64 * scale,
            parts: parts.collect(),
            unseen_ns: (time_ns - in_parts * each).max(0.0),
            outstanding: ratio(rec.outstanding_ns as f64, observed),
            slow: false,
        }
    }

    /// Requests that its time is that of: answered or not, those that a slice cut included as far as they were followed. At least 1.
    pub fn seen_requests(&self) -> u64 {
        seen_requests(self.rec)
    }

    /// The time that a request takes, nanoseconds: the median, or the mean by Little's law where the median is not known.
    pub fn typical_ns(&self) -> f64 {
        typical_ns(self.rec)
    }

    /// The names of all processes and threads in the ways of its requests.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        let hops = self.rec.path.iter().flat_map(|part| &part.hops);
        hops.flat_map(|hop| [hop.process.as_str(), hop.thread.as_str()])
    }

    /// Time lost of its requests; 0 unless the service is slow.
    pub fn lost_ns(&self) -> f64 {
        if !self.slow {
            return 0.0;
        }
        self.parts.iter().filter(|p| p.spent.is_lost()).map(|p| p.ns).sum()
    }

    /// The parts that were lost to this; empty unless the service is slow.
    pub fn lost_to(&self, spent: Spent) -> impl Iterator<Item = &PartFact<'a>> {
        self.parts.iter().filter(move |p| self.slow && p.spent == spent && spent.is_lost())
    }
}

/// The time that a request takes, nanoseconds.
pub fn typical_ns(rec: &Service) -> f64 {
    rec.p50_ns.map_or_else(|| ratio(rec.outstanding_ns as f64, seen_requests(rec) as f64), |ns| ns as f64)
}

fn seen_requests(rec: &Service) -> u64 {
    let ended = rec.requests.saturating_add(rec.unanswered).saturating_add(rec.abandoned);
    ended.max(rec.followed_requests).max(1)
}
