//! Whether anybody notices the time that requests lose. Nobody waits for a service that has hardly anything to do and answers within a
//! few milliseconds, whatever most of these go into: a person does not see them, and a program that asks for one thing after the other
//! lets the service have a request all the time. Where the time that is lost is a small share of all time, that program would hardly be done
//! sooner without the loss, either.
//!
//! This module has the limits. [`crate::judge::facts`] decides which time was lost.
use parshall_evidence::FlowRecord;

use crate::judge::cause::RequestLoss;
use crate::judge::denial::{Denial, amount};
use crate::judge::facts::{Facts, Lost, Shape};
use crate::judge::ledger::flow::State;
use crate::judge::ledger::flow_rules::serves;
use crate::stats::ratio;
use crate::units;

/// Of a request where no single cause has it, and of a connection that stays, with little to move, less lost time than this is felt by nobody.
const FELT_NS: f64 = 1e6;
/// The same of a request to a service that is asked rarely, of its causes, and of a connection that is opened and closed again.
const FELT_RARELY_NS: f64 = 5e6;
/// Requests that lose less than this share of the window for each client, all together, keep none from asking more. One that asks again as
/// soon as it has its answer waits for nearly all of the time, and would be done sooner by the share that is lost.
const RARELY: f64 = 0.10;

/// The share of the requests' time that was lost, where that is long enough to be felt.
pub fn share(facts: &Facts<'_>) -> f64 {
    let lost_ns = facts.requests.lost_ns();
    if is_felt(facts, lost_ns) { ratio(lost_ns, facts.requests.time_ns()) } else { 0.0 }
}

/// Whether it is felt that all requests together lose `lost_ns`.
fn is_felt(facts: &Facts<'_>, lost_ns: f64) -> bool {
    let requests: f64 = facts.requests.counted().map(|service| service.requests).sum();
    ratio(lost_ns, requests) >= felt_ns(facts, lost_ns)
}

/// The share of the requests' time that went by for what was not seen, where that would be felt if it was lost as well.
pub fn unseen_share(facts: &Facts<'_>) -> f64 {
    let unseen = facts.requests.unseen_share();
    let lost_ns = facts.requests.lost_ns() + unseen * facts.requests.time_ns();
    let waited = facts.requests.waited().next().is_some();
    if waited || is_felt(facts, lost_ns) { unseen } else { 0.0 }
}

/// Nobody notices what requests lose to a cause: little each, in services that have a request only now and then. The loss of a few slow
/// ones among them is judged apart ([`crate::judge::tail`]).
pub fn is_unfelt(facts: &Facts<'_>, loss: &RequestLoss) -> bool {
    !loss.waited && loss.each_ns < felt_ns(facts, loss.ns) && is_rare(facts, loss.ns)
}

/// The least lost time of a request that is felt, where all requests together lose `lost_ns`. A reply may be in flight for long after it was
/// sent, which is on the account of its connection alone: the time in which it has data on the way must be short, too.
fn felt_ns(facts: &Facts<'_>, lost_ns: f64) -> f64 {
    if is_rare(facts, lost_ns.max(on_the_way_ns(facts))) { FELT_RARELY_NS } else { FELT_NS }
}

/// Time in which flows had sent something that was not there yet, or could not send it. In the other states an end works or has nothing to do,
/// which is on the requests' account.
fn on_the_way_ns(facts: &Facts<'_>) -> f64 {
    use State::{AckDelayed, AppThinking, NothingToSend, Other, PeerThinking, ReaderWaiting};
    let elsewhere = [AckDelayed, AppThinking, NothingToSend, Other, PeerThinking, ReaderWaiting];
    let states = || State::ALL.into_iter().filter(|state| !elsewhere.contains(state));
    facts.flows.iter().flat_map(|flow| states().map(|state| flow.ledger.of(state))).sum()
}

fn is_rare(facts: &Facts<'_>, lost_ns: f64) -> bool {
    lost_ns < RARELY * clients(facts) * facts.capture.window_ns as f64
}

/// The clients that ask, as far as connections tell: those that stay open for the whole window, as many as their shares of the exchanges
/// amount to (a client with a pool may use one of them for nearly all). At least one.
fn clients(facts: &Facts<'_>) -> f64 {
    let served = |port| {
        let mut services = facts.requests.counted().filter(|service| !service.rec.outbound && !service.rec.followed);
        services.any(|service| service.rec.address.port() == port)
    };
    let stays = |rec: &FlowRecord| rec.begin_ns == 0 && rec.end_ns >= facts.capture.window_ns && rec.connections() == 1;
    let flows = facts.flows.iter().map(|flow| flow.rec);
    let asked = flows.filter(|rec| serves(rec) && stays(rec) && served(rec.local.port()));
    let (sum, squares) = asked.map(|rec| rec.calls.exchanges as f64).fold((0.0, 0.0), |(s, q), n| (s + n, q + n * n));
    ratio(sum * sum, squares).max(1.0)
}

/// The share of the time in which flows could have moved data that was lost, where that is long enough to be felt. `lost_ns` is all that
/// flows lost.
pub fn flow_share(facts: &Facts<'_>, lost_ns: f64) -> f64 {
    if is_unfelt_on_flows(facts, &facts.lost(|_| true)) { 0.0 } else { ratio(lost_ns, facts.could_ns()).min(1.0) }
}

/// Nobody notices what connections lose: little each, and they have data to move only now and then. A connection that is opened for a
/// request, or for a few, gives its whole loss to them, which is felt as theirs is.
pub fn is_unfelt_on_flows(facts: &Facts<'_>, lost: &Lost) -> bool {
    let (brief, others): (Vec<_>, Vec<_>) =
        lost.of_affected(facts).into_iter().partition(|&(flow, _)| is_brief(facts, flow));
    let mean_ns = |of: &[(usize, f64)]| ratio(of.iter().map(|(_, ns)| ns).sum(), of.len() as f64);
    let unfelt = mean_ns(&brief) < FELT_RARELY_NS && mean_ns(&others) < FELT_NS;
    !lost.by_flow.is_empty() && unfelt && is_rare(facts, facts.could_ns())
}

/// The connection was opened and closed within the window, and messages alternate on it: what a client asked for was done then. A stream
/// has no request whose time its loss could be.
fn is_brief(facts: &Facts<'_>, flow: usize) -> bool {
    let flow = &facts.flows[flow];
    flow.shape == Shape::RequestReply && flow.rec.begin_ns > 0 && flow.rec.end_ns < facts.capture.window_ns
}

/// The same as [`denial`] of a cause that flows show.
pub fn denial_on_flows(facts: &Facts<'_>, lost: &Lost) -> Denial {
    let brief = lost.affected(facts).into_iter().any(|flow| is_brief(facts, flow));
    let limit = units::duration(if brief { FELT_RARELY_NS } else { FELT_NS });
    let why = format!("under {limit}, of connections that have little to move");
    Denial::of(amount(lost.mean_ms(facts), "ms", "a connection")).seen().because(why)
}

/// Why a cause that holds is not named: it takes too little of each request.
pub fn denial(facts: &Facts<'_>, loss: &RequestLoss) -> Denial {
    let limit = units::duration(felt_ns(facts, loss.ns));
    let why = format!("under {limit}, of a service that is idle most of the time");
    Denial::of(amount(loss.each_ns / 1e6, "ms", "a request")).seen().because(why)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, HopKind, Release, Report, Role, Status};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, MS};

    fn asks_of(requests: u64, ms: f64) -> ServiceBuilder {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Reply, "recvfrom").target("127.0.0.1:9000");
        ServiceBuilder::new(7000).requests(requests, ms).part(way, 0.55).cpu(0.45)
    }

    /// A second of `requests` that take `ms` each, half of it for the reply of another server.
    fn asks(requests: u64, ms: f64, change: impl FnOnce(&mut ServiceBuilder)) -> Report {
        let mut service = asks_of(requests, ms);
        change(&mut service);
        judge(&with(service))
    }

    fn cause(report: &Report) -> &str {
        report.verdict.cause.as_deref().unwrap_or_default()
    }

    #[test]
    fn a_short_call_is_felt_where_clients_wait_for_it_all_the_time() {
        let idle = asks(15, 0.5, |_| {});
        assert_eq!((idle.verdict.status, cause(&idle)), (Status::Healthy, ""), "{idle:#?}");
        let entry = idle.ruled_out.iter().find(|entry| entry.cause == "blocking-downstream-call").expect("an entry");
        assert!(entry.seen && entry.why.contains("a request"), "{}", entry.why);
        // A client asks again as soon as it is answered: it could ask twice as often.
        assert_eq!(cause(&asks(1500, 0.5, |_| {})), "blocking-downstream-call");
        // So is one of a few milliseconds where requests come now and then, and not where they come one after the other.
        assert_eq!(asks(15, 5.0, |_| {}).verdict.status, Status::Healthy);
        assert_eq!(cause(&asks(150, 5.0, |_| {})), "blocking-downstream-call");
        // Several clients that pause may have as many requests under way in all, and each would hardly be done sooner.
        assert_eq!(asks(30, 5.0, |_| {}).verdict.status, Status::Healthy);
        // Requests that wait for longer are slow, however few there are.
        assert_eq!(cause(&asks(5, 15.0, |_| {})), "blocking-downstream-call");
    }

    #[test]
    fn each_of_several_clients_may_lose_a_little() {
        // Sixty requests that lose 2.75 ms each, on connections with these exchanges.
        let shared = |exchanges: &[u64]| {
            let mut capture = with(asks_of(60, 5.0));
            capture.flows = (1..)
                .zip(exchanges)
                .map(|(id, &n)| FlowBuilder::new(id, Role::Server).talks(n, 100).fill().record)
                .collect();
            capture.flows.iter_mut().for_each(|flow| flow.local.set_port(7000));
            cause(&judge(&capture)).to_owned()
        };
        assert_eq!(shared(&[20, 20, 20]), "");
        // One client has a pool, and uses one connection of it.
        assert_eq!(shared(&[58, 1, 1]), "blocking-downstream-call");
        assert_eq!(shared(&[60]), "blocking-downstream-call");
    }

    #[test]
    fn one_slow_request_is_an_accident_of_its_own() {
        let unlucky = asks(15, 0.5, |service| service.record.p99_ns = Some(20_000_000));
        assert_eq!((unlucky.verdict.status, cause(&unlucky)), (Status::Healthy, ""));
        // As many that the mean is several milliseconds are none.
        assert_eq!(cause(&asks(9, 10.0, |service| service.record.p50_ns = Some(500_000))), "blocking-downstream-call");
    }

    #[test]
    fn replies_that_are_long_on_their_way_are_felt() {
        let service = asks_of(15, 5.0);
        let mut far = with(service);
        assert_eq!(judge(&far).verdict.status, Status::Healthy);
        let mut flow = FlowBuilder::new(1, Role::Server)
            .every(60 * MS, 0, 50 * MS, FlowState::Cwnd, Release::RxAck)
            .talks(15, 20_000);
        flow.record.last.min_rtt_us = 50_000;
        far.flows.push(flow.fill().record);
        let report = judge(&far);
        assert_ne!(report.verdict.status, Status::Healthy, "{report:#?}");
    }

    #[test]
    fn what_was_not_seen_of_short_requests_would_not_be_felt() {
        let unseen = |requests, ms| {
            let way = Hops::new().thread(100, 101, "app").on(HopKind::Unseen, "");
            judge(&with(ServiceBuilder::new(7000).requests(requests, ms).part(way, 0.95).cpu(0.05)))
        };
        let short = unseen(15, 2.0);
        assert_eq!(short.verdict.status, Status::Healthy, "{short:#?}");
        assert_ne!(short.verdict.confidence, parshall_evidence::Confidence::High);
        for report in [unseen(150, 2.0), unseen(5, 15.0)] {
            assert_eq!(report.verdict.status, Status::InsufficientEvidence, "{report:#?}");
        }
    }

    #[test]
    fn requests_that_were_never_answered_are_felt() {
        let report = asks(15, 0.5, |service| {
            (service.record.waited, service.record.requests) = (true, 0);
            (service.record.unanswered, service.record.unanswered_longest_ns) = (1, 500_000);
        });
        assert_ne!(report.verdict.status, Status::Healthy, "{report:#?}");
    }
}
