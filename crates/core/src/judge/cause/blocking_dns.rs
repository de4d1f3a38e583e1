//! A thread with a request waits for a name server.
//!
//! Look-alikes: another server that answers late (blocking-downstream-call), and a resolver that is asked while no request waits.
use parshall_evidence::timeline::Op;
use parshall_evidence::{Evidence, FlowId};

use super::base::{Cause, Outcome};
use super::common::{Waits, not_spent};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;
use crate::judge::words;
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
         long it takes: `dig @{host} NAME`"
    );
    let evidence = tries(facts, &leaf.target);
    waits.candidate(summary, evidence, fix).holds()
}

/// How often this server was asked in the time that was observed, and how often it answered.
fn tries(facts: &Facts<'_>, server: &str) -> Vec<Evidence> {
    let Some(timeline) = &facts.capture.timeline else { return Vec::new() };
    let is_server = |id: &FlowId| {
        timeline
            .sockets
            .get(id)
            .is_some_and(|socket| socket.udp && !socket.serves && socket.remote.to_string() == server)
    };
    let calls = timeline.calls.iter().filter(|(id, _)| is_server(id)).flat_map(|(_, calls)| calls);
    let (mut sent, mut received) = (0, 0);
    for call in calls {
        match call.op {
            Op::Send => sent += 1,
            Op::Receive => received += 1,
            Op::Accept => {}
        }
    }
    if sent == 0 {
        return Vec::new();
    }
    vec![
        words::counted(format!("tries to ask {server}"), sent),
        words::counted(format!("answers of {server}"), received),
    ]
}

#[cfg(test)]
mod tests {
    use parshall_evidence::HopKind;

    use parshall_evidence::timeline::{Socket, Waker};

    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::timeline::{Script, client_socket, served_socket};

    #[test]
    fn names_the_server() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::NameServer, "poll").target("10.9.0.53:53");
        let report = crate::judge::judge(&with(ServiceBuilder::new(7000).requests(20, 41.0).part(way, 0.97).cpu(0.03)));
        assert_eq!(report.verdict.cause.as_deref(), Some("blocking-dns"));
        assert!(report.findings[0].fix.text.ends_with("`dig @10.9.0.53 NAME`"), "{}", report.findings[0].fix.text);
    }

    #[test]
    fn a_server_that_never_answers_is_named_with_the_tries() {
        const MS: u64 = 1_000_000;
        let mut script = Script::new().socket(1, served_socket(7000), 101);
        script.timeline.slices = vec![(0, 1000 * MS)];
        for n in 0..10 {
            let (id, at) = (10 + n, n * 100 * MS);
            script = script
                .socket(id, Socket { udp: true, closed_ns: Some(at + 91 * MS), ..client_socket(53) }, 101)
                .receives(101, 1, at, at)
                .sends(101, id, at + MS)
                .sleeps(101, at + MS, at + 45 * MS, 232, Waker::HardIrq)
                .sends(101, id, at + 46 * MS)
                .sleeps(101, at + 46 * MS, at + 90 * MS, 232, Waker::HardIrq)
                .sends(101, 1, at + 92 * MS);
        }
        let mut capture = crate::testkit::empty_capture();
        capture.timeline = Some(script.timeline);
        let report = crate::judge::judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("blocking-dns"), "{report:#?}");
        let count = |what: &str| report.findings[0].evidence.iter().find(|e| e.what == what).and_then(|e| e.count);
        assert_eq!(count("tries to ask 127.0.0.1:53"), Some(20));
        assert_eq!(count("answers of 127.0.0.1:53"), Some(0));
    }
}
