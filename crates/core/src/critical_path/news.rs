//! Requests that may be for news: their service answers all who wait at the same moment and alike, when a timer of its own brings something,
//! and answers other requests at once meanwhile.
//!
//! A service that looks after its requests at intervals looks alike, but for the others: each of them waits, too. Only one that does so for
//! one kind of requests cannot be told from it.
use parshall_evidence::timeline::{Op, Timeline};
use parshall_evidence::{FlowId, Service};

use super::heartbeat::of_service;
use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;

/// Replies within this time are of the same moment.
const MOMENT_NS: u64 = 5_000_000;
/// News go to at least as many connections at a moment.
const CONNECTIONS_MIN: usize = 3;
/// The share of the time of all requests that such replies end.
const NEWS: f64 = 0.8;
/// Others are answered within this share of the time that one waits for news, and are at least as many as the moments of news.
const AT_ONCE: f64 = 0.05;

/// An exchange: how long it took, when it was answered, with how many bytes, and on which connection.
struct Exchange {
    ns: u64,
    end_ns: u64,
    bytes: u32,
    id: FlowId,
}

/// Whether most of the time of a service's requests may go by for news that a timer brings.
pub fn may_be_news(timeline: &Timeline, service: &Service) -> bool {
    let mut all: Vec<Exchange> = Vec::new();
    for (id, turns) in of_service(timeline, service) {
        let answered = turns.windows(2).filter(|pair| pair[0].op == Op::Receive);
        all.extend(answered.map(|pair| Exchange {
            ns: pair[1].at_ns.saturating_sub(pair[0].at_ns),
            end_ns: pair[1].at_ns,
            bytes: pair[1].bytes,
            id,
        }));
    }
    let ns = |exchanges: &[Exchange]| exchanges.iter().map(|exchange| exchange.ns as f64).sum::<f64>();
    let all_ns = ns(&all);
    all.sort_unstable_by_key(|exchange| (exchange.bytes, exchange.end_ns));
    let moments = all.chunk_by(|a, b| a.bytes == b.bytes && b.end_ns - a.end_ns <= MOMENT_NS);
    let news: Vec<&[Exchange]> = moments.filter(|moment| connections(moment) >= CONNECTIONS_MIN).collect();
    let news_ns: f64 = news.iter().map(|moment| ns(moment)).sum();
    let each_ns = ratio(news_ns, news.iter().map(|moment| moment.len()).sum::<usize>() as f64);
    let at_once = all.iter().filter(|exchange| exchange.ns as f64 <= AT_ONCE * each_ns).count();
    news_ns > 0.0 && news_ns >= NEWS * all_ns && at_once >= news.len().max(CONNECTIONS_MIN)
}

fn connections(moment: &[Exchange]) -> usize {
    moment.iter().map(|exchange| exchange.id).into_set().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, served_socket};

    const MS: u64 = 1_000_000;

    /// Three clients of 101 ask for news, which come every 300 ms, and a fourth one asks for something every 100 ms, which takes `other_ns`.
    /// `apart_ns`: how far the replies to the three are apart.
    fn may_be(other_ns: u64, apart_ns: u64) -> bool {
        let mut script = (1..=4).fold(Script::new(), |script, id| script.socket(id, served_socket(7000), 101));
        script.timeline.slices = vec![(0, 2_000 * MS)];
        for n in 1..6_u64 {
            for id in 1..=3 {
                let (asked, came) = ((300 * n + 2) * MS, (300 * n + 150) * MS + id * apart_ns);
                script = script.receives(101, id, asked, asked).sends(101, id, came);
            }
            for at in [300 * n * MS, (300 * n + 100) * MS, (300 * n + 200) * MS] {
                script = script.receives(101, 4, at, at).sends(101, 4, at + other_ns);
            }
        }
        let service = services(&script.timeline).into_iter().next().expect("a service");
        may_be_news(&script.timeline, &service)
    }

    #[test]
    fn all_who_wait_are_answered_alike_at_a_moment_and_others_at_once() {
        assert!(may_be(MS, 10_000));
        // The other requests wait, too, or each is answered at a time of its own.
        assert!(!may_be(60 * MS, 10_000));
        assert!(!may_be(MS, 20 * MS));
    }
}
