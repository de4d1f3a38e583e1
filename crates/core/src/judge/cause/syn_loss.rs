//! SYNs, or the answers to them, are lost: opening a connection takes 1 s, 3 s, 7 s.
//!
//! A packet filter of this host may drop them too (a rule with a rate, a full table of connections). TCP sees nothing of it, but the kernel
//! tells the reason of each drop.
//!
//! So does a listener whose queue of half-open connections is full, where SYN cookies are off (tcp_conn_request() in net/ipv4/tcp_input.c).
//!
//! Look-alikes: a listener that drops them for lack of room (`accept-queue-overflow`: its drops are counted), a host that does not
//! answer at all.
use std::collections::BTreeSet;

use parshall_evidence::{AtListener, Place, ShareOf};

use super::base::{Candidate, Cause, Outcome, Refused, denied, place_of, stalls, who};
use super::common::Waits;
use crate::judge::chain::named;
use crate::judge::confidence::Gap;
use crate::judge::denial::{Denial, count};
use crate::judge::facts::requests::Unanswered;
use crate::judge::facts::{Blame, Facts, Lost, Spent, network};
use crate::judge::record;
use crate::judge::words;
use crate::sorting::IntoOrdered as _;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "syn-loss",
    title: "Segments that open connections are lost",
    test,
    symptom: |facts| {
        (record::rose(facts, REPEATED) as f64) + filtered(facts) as f64 + record::rose(facts, HALF_OPEN) as f64
    },
    testable: |facts| record::counters(facts) || record::flows(facts),
};

/// Fewer SYNs that were lost do not matter.
const FEW_DROPS: u64 = 3;
/// How often a SYN, or the answer to one, was sent again.
const REPEATED: &str = "TcpExt.TCPSynRetrans";
/// How many SYNs were dropped because the queue of half-open connections was full.
const HALF_OPEN: &str = "TcpExt.TCPReqQFullDrop";

fn test(facts: &Facts<'_>) -> Outcome {
    let unanswered = Waits::on(facts, Spent::Connect)
        .and_then(|waits| Some((Unanswered::of(facts.capture, waits.leaf.pid)?, waits)));
    if let Some((to, waits)) = unanswered {
        return gone(waits, to).holds();
    }
    if filtered(facts) >= FEW_DROPS {
        return by_filter(facts).holds();
    }
    if record::rose(facts, HALF_OPEN) >= FEW_DROPS {
        return by_half_open(facts).holds();
    }
    let counters = facts.capture.counters.as_ref();
    let repeated = record::rose(facts, REPEATED);
    let overflows = counters.map_or(0, |c| c.rose("TcpExt.ListenOverflows"));
    let opened =
        facts.capture.net.opened.max(counters.map_or(0, |c| c.rose("Tcp.ActiveOpens").max(c.rose("Tcp.PassiveOpens"))));
    let lost = facts.blamed(&[Blame::Syn]);
    if lost.ns == 0.0 && counters.is_none() {
        return Outcome::Untested("the counters of repeated SYNs were not read".to_string());
    }
    if overflows > 0 || (lost.ns == 0.0 && repeated < FEW_DROPS) {
        let denial = Denial::of(count(repeated, "SYNs", "repeated, answers to them included")).beside(count(
            opened,
            "connections",
            "opened",
        ));
        let because = if overflows > 0 { "and a listen queue overflowed" } else { "too few to matter" };
        let denial = denial.because(because);
        return denied(if lost.ns > 0.0 { denial.seen() } else { denial });
    }
    let seen = lost.by_flow.len() as u64;
    let all = repeated.max(seen);
    let opening = match lost.worst() {
        Some(_) => format!("{}: opening the connection", who(facts, &lost)),
        None => "Opening a connection".to_string(),
    };
    let wait = if lost.p50_ns > 0.0 { lost.p50_ns } else { network::SYN_TIMEOUT_NS };
    let summary = format!(
        "{opening} takes {} longer each time a SYN or its answer is lost: {} repeated, while {} opened.",
        units::duration(wait.max(network::SYN_TIMEOUT_NS)),
        units::plural(all, "was", "were"),
        units::plural(opened, "connection was", "connections were")
    );
    let mut evidence =
        vec![words::counted("SYNs and answers to them repeated", all), words::counted("connections opened", opened)];
    if lost.ns > 0.0 {
        evidence.push(stalls("waits of connections for an answer to their SYN", &lost));
    }
    evidence.push(words::counted("overflows of listen queues meanwhile", overflows));
    let fix = "Look for what drops SYNs on the path: a firewall or load balancer with a rate limit or a full connection table \
               (`conntrack -S`, nf_conntrack_max), a lossy link (`mtr`). `tcpdump 'tcp[tcpflags] & tcp-syn != 0'` at both ends shows where \
               they are missing. Kept connections need fewer of them.";
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    candidate.always_wrong = true;
    if counters.is_some() {
        // Each of them is a second at least, also where the connections' own time was not seen.
        let wait_ns = (all as f64 * network::SYN_TIMEOUT_NS).max(lost.ns);
        candidate.refused = Some(Refused { of_what: ShareOf::Connections, count: all, of: opened.max(all), wait_ns });
    }
    candidate.holds()
}

/// SYNs to the subject's listeners that a packet filter of this host dropped.
fn filtered(facts: &Facts<'_>) -> u64 {
    sum(&facts.capture.net.filtered_syns)
}

fn sum<'a>(events: impl IntoIterator<Item = &'a AtListener>) -> u64 {
    events.into_iter().map(|at| at.count).fold(0, u64::saturating_add)
}

/// The candidate for SYNs that a packet filter of this host drops.
fn by_filter(facts: &Facts<'_>) -> Candidate {
    let net = &facts.capture.net;
    let dropped = filtered(facts);
    let at = |port: u16| net.filtered_syns.iter().any(|one| one.port == port);
    let accepted = sum(net.accepted.iter().filter(|one| at(one.port)));
    let ports: BTreeSet<String> = net.filtered_syns.iter().map(|one| one.port.to_string()).into_set();
    let ports: Vec<String> = ports.into_iter().collect();
    let noun = if ports.len() == 1 { "port" } else { "ports" };
    let summary = format!(
        "A packet filter of this host dropped {} to {noun} {}, while {} accepted: whoever sent one tries again after {}.",
        units::plural(dropped, "SYN", "SYNs"),
        ports.join(", "),
        units::plural(accepted, "connection was", "connections were"),
        units::duration(network::SYN_TIMEOUT_NS)
    );
    let evidence = vec![
        words::counted("SYNs that netfilter dropped", dropped),
        words::counted("connections accepted there meanwhile", accepted),
    ];
    let fix = "Find the rule that drops them: `nft list ruleset` (or `iptables-save -c`) shows limits and counters, `conntrack -S` a table of \
               connections that is full (drop, early_drop; then raise net.netfilter.nf_conntrack_max). Raise the limit, or let it count \
               single sources instead of all together.";
    let mut candidate =
        refused((dropped, accepted), Candidate::new(Lost::default(), Place::default(), summary, evidence, fix));
    candidate.gaps.push(Gap::Inferred("that those who are kept out are clients, whom the filter should let in"));
    candidate
}

/// A candidate for so many SYNs that were dropped here, beside those that were accepted: each is a second at least to whoever sent it.
fn refused((dropped, accepted): (u64, u64), mut candidate: Candidate) -> Candidate {
    candidate.always_wrong = true;
    let wait_ns = dropped as f64 * network::SYN_TIMEOUT_NS;
    let of = accepted.saturating_add(dropped);
    candidate.refused = Some(Refused { of_what: ShareOf::Connections, count: dropped, of, wait_ns });
    candidate
}

/// The candidate for SYNs that a listener drops because connections whose handshake does not end fill its queue.
fn by_half_open(facts: &Facts<'_>) -> Candidate {
    let dropped = record::rose(facts, HALF_OPEN);
    let listeners = facts.capture.counters.iter().flat_map(|counters| &counters.listeners);
    let listener = listeners.filter(|listener| listener.drops > 0).max_by_key(|listener| listener.drops);
    let accepted = sum(&facts.capture.net.accepted);
    let who = listener.map_or("A listener".to_string(), |listener| format!("The listener on {}", listener.local));
    let summary = format!(
        "{who} dropped {} while {} accepted: connections whose handshake does not end fill its queue, and SYN cookies are off. A client \
         that is turned away tries again after 1 s, 3 s, 7 s.",
        units::plural(dropped, "SYN", "SYNs"),
        units::plural(accepted, "connection was", "connections were"),
    );
    let mut evidence = vec![
        words::counted("SYNs dropped because the queue of half-open connections was full", dropped),
        words::counted("connections accepted", accepted),
    ];
    evidence.extend(listener.map(|listener| words::counted("connections that may be half-open", listener.limit)));
    let of_port = listener.map_or(String::new(), |listener| format!(" 'sport = :{}'", listener.local.port()));
    let fix = format!(
        "`sysctl -w net.ipv4.tcp_syncookies=1` lets clients in while the queue is full. Who fills it: `ss -tn state syn-recv{of_port}` (a \
         SYN flood, a health check that never ends its handshake, answers that do not reach their clients). A larger queue: listen()'s \
         backlog and net.ipv4.tcp_max_syn_backlog."
    );
    let place = Place { pid: listener.map(|listener| listener.pid).filter(|pid| *pid != 0), ..Place::default() };
    refused((dropped, accepted), Candidate::new(Lost::default(), place, summary, evidence, fix))
}

/// Requests wait until their service gives up connections that nobody answers.
fn gone(mut waits: Waits<'_, '_>, unanswered: Unanswered) -> Candidate {
    let who = named(waits.leaf);
    let to = unanswered.to;
    if let Some(last) = waits.loss.chain.last_mut() {
        // The server that it connects to at last is not the one that does not answer.
        (last.waits_on, last.text) = (to.to_string(), format!("waits for a connection to {to}, which nobody answers"));
    }
    let summary = waits.summary(&format!(
        "{who} opens connections to {to}, which answers no SYN: {} waited for {} each. That is {} a request.",
        units::plural(unanswered.count, "connection", "connections"),
        units::duration(unanswered.each_ns()),
        waits.each()
    ));
    let evidence = vec![words::counted("connections without any answer", unanswered.count)];
    let fix = format!(
        "See whether {to} is there and what drops its packets (a firewall, a lost route). Take it out of use in {who} meanwhile: a health \
         check that fails sooner, or a shorter timeout for connecting."
    );
    waits.candidate(summary, evidence, fix)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{AtListener, Confidence, Counters, FlowState, HopKind, Release, Role, ShareOf, Status};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, MS, capture, listener, rose, verdict_of};

    #[test]
    fn connections_that_wait_for_an_answer_to_their_syn() {
        let mut flow = FlowBuilder::new(1, Role::Client)
            .remote_host()
            .stall(0, 900 * MS, FlowState::Other, Release::RtoTimer)
            .talks(1, 64)
            .retransmitted(1);
        flow.stalls[0].snd_wnd = 0;
        let mut lossy = capture(vec![flow], vec![]);
        assert_eq!(verdict_of(&lossy), "syn-loss");
        lossy.counters = Some(rose(&[("TcpExt.TCPSynRetrans", 8), ("Tcp.ActiveOpens", 20)]));
        assert_eq!(verdict_of(&lossy), "syn-loss");
        // The share is of what it is a share of: the flow waited for all of its time, and 8 of 20 connections were affected.
        let report = judge(&lossy);
        assert_eq!(report.findings[0].share_of, ShareOf::FlowTime);
        assert!(report.findings[0].share > 0.9, "{}", report.findings[0].share);
    }

    #[test]
    fn syns_that_a_filter_of_this_host_drops() {
        let verdict = |dropped: u64| {
            let quick = Hops::new().thread(100, 101, "web").on(HopKind::OnCpu, "");
            let mut capture = with(ServiceBuilder::new(8080).requests(72, 0.2).part(quick, 1.0));
            capture.net.accepted = vec![AtListener { netns: 1, port: 8080, count: 72 }];
            capture.net.filtered_syns = vec![AtListener { netns: 1, port: 8080, count: dropped }];
            judge(&capture)
        };
        let report = verdict(36);
        assert_eq!(report.verdict.cause.as_deref(), Some("syn-loss"), "{report:#?}");
        assert_eq!(
            report.verdict.summary,
            "A packet filter of this host dropped 36 SYNs to port 8080, while 72 connections were accepted: whoever sent one tries again \
             after 1.00 s."
        );
        let finding = &report.findings[0];
        assert_eq!((finding.share_of, finding.confidence), (ShareOf::Connections, Confidence::Medium));
        assert!((finding.share - 1.0 / 3.0).abs() < 0.01, "{}", finding.share);
        assert_eq!(verdict(2).verdict.status, Status::Healthy, "by chance, or one who knocks at each door");
    }

    #[test]
    fn a_queue_of_half_open_connections_that_is_full() {
        let verdict = |dropped: u64| {
            let mut capture = capture(vec![FlowBuilder::new(1, Role::Server).talks(20, 64)], vec![]);
            let counters = rose(&[(super::HALF_OPEN, dropped), ("TcpExt.TCPSynRetrans", 63), ("Tcp.PassiveOpens", 5)]);
            capture.counters = Some(Counters { listeners: vec![listener(7000, dropped)], ..counters });
            capture.net.accepted = vec![AtListener { netns: 1, port: 7000, count: 5 }];
            judge(&capture).verdict
        };
        let full = verdict(103);
        assert_eq!(full.cause.as_deref(), Some("syn-loss"), "{full:?}");
        assert!(full.summary.contains("dropped 103 SYNs while 5 connections were accepted"), "{}", full.summary);
        assert!(full.summary.contains("SYN cookies are off"), "{}", full.summary);
        // Others are lost on the path.
        assert!(verdict(0).summary.contains("63 were repeated"), "{}", verdict(0).summary);
    }

    #[test]
    fn requests_that_wait_for_a_server_that_is_gone() {
        let connects = Hops::new().thread(100, 101, "proxy").on(HopKind::Connect, "epoll_wait").target("10.0.0.2:80");
        let verdict = |segs_in: u64, life: u64| {
            let mut capture = with(ServiceBuilder::new(8080).requests(40, 160.0).part(connects.clone(), 0.9).cpu(0.1));
            for id in 1..=20 {
                let mut flow = FlowBuilder::new(id, Role::Client).remote_host().fill().record;
                flow.remote = "10.0.0.7:80".parse().expect("an address");
                (flow.begin_ns, flow.end_ns) = (10 * MS, 10 * MS + life);
                (flow.last.state, flow.last.segs_in) = (7, segs_in);
                capture.flows.push(flow);
            }
            judge(&capture)
        };
        let report = verdict(0, 300 * MS);
        assert_eq!(report.verdict.cause.as_deref(), Some("syn-loss"), "{report:#?}");
        assert!(report.verdict.summary.contains("10.0.0.7:80, which answers no SYN: 20"), "{}", report.verdict.summary);
        assert!(report.findings[0].chain[0].text.contains("10.0.0.7:80"));
        // They are answered, and take the time that opening a connection takes there.
        for answered in [verdict(3, 300 * MS), verdict(0, 20 * MS)] {
            assert_eq!(answered.verdict.cause.as_deref(), Some("connection-per-request"), "{answered:#?}");
        }
    }

    #[test]
    fn a_server_counts_the_answers_that_it_repeats() {
        let mut lossy = capture(vec![FlowBuilder::new(1, Role::Server).remote_host().talks(10, 100)], vec![]);
        lossy.counters = Some(rose(&[("TcpExt.TCPSynRetrans", 40), ("Tcp.PassiveOpens", 100)]));
        assert_eq!(verdict_of(&lossy), "syn-loss");
        assert_eq!(judge(&lossy).findings[0].share_of, ShareOf::Connections);
        lossy.counters = Some(rose(&[("TcpExt.TCPSynRetrans", 40), ("Tcp.PassiveOpens", 100_000)]));
        assert_eq!(verdict_of(&lossy), "healthy");
    }
}
