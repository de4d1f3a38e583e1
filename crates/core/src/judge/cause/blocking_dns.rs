//! A thread with a request waits for a name server.
//!
//! Look-alikes: another server that answers late (blocking-downstream-call), and a resolver that is asked while no request waits.
use super::common::{Waits, not_spent};
use super::{Cause, Outcome, record};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "blocking-dns",
    title: "Requests wait for a name server",
    test,
    symptom: |facts| facts.requests.share(Spent::Dns),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Dns) else { return not_spent(facts, Spent::Dns) };
    let leaf = waits.leaf;
    let server = units::or(&leaf.target, "the name server");
    let summary = waits.summary(&format!("{} waits for answers of {server}, {} a request.", named(leaf), waits.each()));
    let host = leaf.target.rsplit_once(':').map_or("SERVER", |(host, _)| host);
    let fix = format!(
        "Keep the addresses, look names up ahead or without blocking, or run a cache on this host (systemd-resolved, dnsmasq). How \
         long it takes: dig @{host} NAME"
    );
    waits.candidate(summary, Vec::new(), fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::HopKind;

    use crate::testkit::service::{Hops, ServiceBuilder, with};

    #[test]
    fn names_the_server() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::NameServer, "poll").target("10.9.0.53:53");
        let report = crate::judge::judge(&with(ServiceBuilder::new(7000).requests(20, 41.0).part(way, 0.97).cpu(0.03)));
        assert_eq!(report.verdict.cause.as_deref(), Some("blocking-dns"));
        assert!(report.findings[0].fix.text.ends_with("dig @10.9.0.53 NAME"), "{}", report.findings[0].fix.text);
    }
}
