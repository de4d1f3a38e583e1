//! A thread with a request waits for the reply of a server that was not observed: on another host, or out of reach.
//!
//! Look-alikes: a server on this host whose own wait was followed (that is the cause then), a network that loses or holds the
//! question (the flow's own account says so), and a name server.
use parshall_evidence::HopKind;

use super::base::{Candidate, Cause, Outcome};
use super::common::{Waits, not_spent};
use crate::judge::chain::{self, named};
use crate::judge::facts::{Facts, Spent, rtt_ns};
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "blocking-downstream-call",
    title: "Requests wait for another server",
    test,
    symptom: |facts| facts.requests.share(Spent::Downstream),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Downstream) else { return not_spent(facts, Spent::Downstream) };
    if waits.leaf.kind == HopKind::Close {
        return until_closed(waits).holds();
    }
    let leaf = waits.hop(|h| h.kind == HopKind::Reply).unwrap_or(waits.leaf);
    let server = units::or(&leaf.target, "a server that was not seen");
    let summary = waits.summary(&format!("{} waits for replies of {server}, {} a request.", named(leaf), waits.each()));
    let mut evidence = Vec::new();
    let flow = facts.flows.iter().find(|f| f.rec.pid == leaf.pid && f.rec.remote.to_string() == leaf.target);
    if let Some(flow) = flow.filter(|f| rtt_ns(f) > 0.0) {
        evidence.push(words::valued("minimum RTT to it", rtt_ns(flow) / 1e6, "ms"));
    }
    // Others wait to be read meanwhile: the call blocks a loop that serves them all.
    let blocks = waits.hop(|h| h.kind == HopKind::Unread).is_some();
    let fix = match (blocks, chain::is_elsewhere(facts, &leaf.target)) {
        (true, _) => format!(
            "{} serves nobody else while it waits: ask {server} with an asynchronous client or in other threads.",
            named(leaf)
        ),
        (false, _) if waits.leaf.kind == HopKind::Network => {
            format!("{server} answers at once, and is far away: ask less often, several at once, or keep its answers.")
        }
        (false, _) if leaf.target.is_empty() => {
            "Find out which server that is (`ss -uanp`, `tcpdump`; it is asked with datagrams that carry its address), and why it is slow. Until \
             it is faster: ask less often, several at once, or keep its answers."
                .to_string()
        }
        (false, true) => {
            format!("Look at {server}. Until it is faster: ask less often, several at once, or keep its answers.")
        }
        (false, false) => format!(
            "Observe the process behind {server} too{}: what it waits for was not seen.",
            facts.advice(", as root", "")
        ),
    };
    waits.candidate(summary, evidence, fix).holds()
}

/// The server has answered: the wait for it is one for the end of the connection.
fn until_closed(waits: Waits<'_, '_>) -> Candidate {
    let (leaf, server) = (waits.leaf, units::or(&waits.leaf.target, "its server"));
    let summary = waits.summary(&format!(
        "{} has the reply of {server}, and waits {} a request until {server} closes the connection.",
        named(leaf),
        waits.each()
    ));
    let fix = format!(
        "Let {} take the end of a reply from its length (Content-Length, chunks) instead of reading until the connection ends; or ask {server} \
         to close it at once (`Connection: close`, HTTP/1.0).",
        named(leaf)
    );
    waits.candidate(summary, Vec::new(), fix)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Confidence, HopKind};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};

    fn asks(target: &str) -> ServiceBuilder {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Reply, "recvfrom").target(target);
        ServiceBuilder::new(7000).requests(30, 30.0).part(way, 0.95).cpu(0.05)
    }

    #[test]
    fn a_server_on_another_host() {
        let report = judge(&with(asks("10.9.0.2:9000")));
        assert_eq!(report.verdict.cause.as_deref(), Some("blocking-downstream-call"));
        let peer = report.findings[0].fix.peer.as_ref().expect("a command");
        assert_eq!((peer.command.as_str(), peer.host.as_deref()), ("parshall attach --port 9000", Some("10.9.0.2")));
        assert_eq!(report.verdict.confidence, Confidence::High);
    }

    #[test]
    fn the_distance_to_a_server_that_was_followed() {
        let way = Hops::new()
            .thread(100, 101, "app")
            .on(HopKind::Reply, "recvfrom")
            .target("10.9.0.2:9000")
            .thread(0, 0, "")
            .on(HopKind::Network, "");
        let report = judge(&with(ServiceBuilder::new(7000).requests(30, 30.0).part(way, 0.95).cpu(0.05)));
        assert_eq!(report.verdict.cause.as_deref(), Some("blocking-downstream-call"));
        let finding = &report.findings[0];
        assert!(finding.summary.contains("replies of 10.9.0.2:9000"), "{}", finding.summary);
        assert!(finding.fix.text.contains("far away"), "{}", finding.fix.text);
    }

    #[test]
    fn a_server_that_has_answered_and_keeps_the_connection() {
        let way = Hops::new().thread(100, 101, "php").on(HopKind::Close, "poll").target("10.9.0.2:8000");
        let report = judge(&with(ServiceBuilder::new(7000).requests(30, 1_000.0).part(way, 0.99).cpu(0.01)));
        assert_eq!(report.verdict.cause.as_deref(), Some("blocking-downstream-call"));
        assert_eq!(report.verdict.confidence, Confidence::High);
        let summary = &report.verdict.summary;
        assert!(summary.contains("until 10.9.0.2:8000 closes the connection"), "{summary}");
        assert!(report.findings[0].fix.text.contains("Connection: close"), "{report:#?}");
    }

    #[test]
    fn a_server_on_this_host_that_was_not_seen_is_no_end() {
        let report = judge(&with(asks("127.0.0.1:9000")));
        assert_eq!(report.verdict.confidence, Confidence::Medium);
        assert!(!report.chain.expect("a chain").leaf.seen);
    }
}
