//! Datagrams are dropped at a UDP socket, because its receive buffer is full of others that its program has not read.
//!
//! Look-alikes: datagrams lost on the way, or in the device, which no socket counts.
use parshall_evidence::{Place, ShareOf};

use super::base::{Candidate, Cause, Outcome, Refused, denied};
use crate::judge::denial::{Denial, count, count_of};
use crate::judge::facts::{Facts, Lost};
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "udp-rcvbuf-overflow",
    title: "The receive buffer of a UDP socket overflows",
    test,
    symptom: |facts| dropped(facts) as f64,
    testable: record::counters,
};

/// A lost datagram costs its sender at least this: resolvers and RPC clients wait no less before they repeat a request.
const REPEAT_NS: f64 = 200e6;

/// A limit of SO_RCVBUF that is large enough for bursts of some thousand datagrams.
const ENOUGH_RMEM_MAX: u64 = 8_388_608;

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(counters) = &facts.capture.counters else {
        return Outcome::Untested("the UDP sockets were not read".to_string());
    };
    let drops = dropped(facts);
    let Some(worst) = counters.udp.iter().filter(|socket| socket.drops > 0).max_by_key(|socket| socket.drops) else {
        let denial = Denial::of(count(0, "datagrams", "dropped"));
        return denied(denial.beside(count(counters.udp.len() as u64, "UDP sockets", "of the subject")));
    };
    // Udp.RcvbufErrors is there for IPv4, Udp6RcvbufErrors for IPv6; without either it was a filter or a checksum.
    let full = counters.rose("Udp.RcvbufErrors").saturating_add(counters.rose("Udp6RcvbufErrors"));
    if full == 0 {
        let denial = Denial::of(count_of(0, drops, "datagrams", "dropped for a full receive buffer"));
        return denied(denial.seen().because("the others for a filter or a checksum"));
    }
    let received = counters.rose("Udp.InDatagrams").saturating_add(counters.rose("Udp6InDatagrams"));
    let summary = format!(
        "{} to {} dropped because its receive buffer of {} was full; {} received meanwhile.",
        units::plural(worst.drops, "datagram", "datagrams"),
        format_args!("{} {}", worst.local, if worst.drops == 1 { "was" } else { "were" }),
        units::bytes(worst.rcvbuf_bytes as f64),
        units::plural(received, "was", "were")
    );
    let evidence = vec![
        words::counted("datagrams dropped at this socket", worst.drops),
        words::counted("datagrams received, over the sockets of its namespaces", received),
        words::valued("receive buffer", worst.rcvbuf_bytes as f64, "B"),
        words::valued("memory of datagrams that waited at the end", worst.queued_bytes as f64, "B"),
    ];
    let settings = counters.namespaces.iter().filter_map(|n| n.settings).find(|s| s.rmem_max > 0);
    let limit =
        settings.map_or(String::new(), |s| format!(" (net.core.rmem_max allows {})", units::bytes(s.rmem_max as f64)));
    let raise = match settings {
        Some(settings) if settings.rmem_max >= ENOUGH_RMEM_MAX => String::new(),
        _ => format!(", after `sysctl -w net.core.rmem_max={ENOUGH_RMEM_MAX}`"),
    };
    let fix = format!(
        "Read faster: several datagrams per call (recvmmsg), a thread that only reads, several sockets (SO_REUSEPORT). For bursts, a larger \
         buffer: SO_RCVBUF{limit}{raise}."
    );
    let place = Place { pid: (worst.pid != 0).then_some(worst.pid), ..Place::default() };
    let mut candidate = Candidate::new(Lost::default(), place, summary, evidence, fix);
    candidate.refused = Some(Refused {
        of_what: ShareOf::Datagrams,
        count: worst.drops,
        of: worst.drops.saturating_add(received),
        wait_ns: worst.drops as f64 * REPEAT_NS,
    });
    candidate.holds()
}

/// Datagrams that UDP sockets of the subject dropped, for whatever reason.
fn dropped(facts: &Facts<'_>) -> u64 {
    let sockets = facts.capture.counters.iter().flat_map(|counters| &counters.udp);
    sockets.fold(0, |n, socket| n.saturating_add(socket.drops))
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Role, UdpCounters};

    use crate::testkit::{FlowBuilder, capture, rose, verdict_of};

    #[test]
    fn datagrams_dropped_at_a_full_socket() {
        let socket = |drops| UdpCounters {
            local: "0.0.0.0:53".parse().expect("an address"),
            netns: 1,
            pid: 100,
            drops,
            queued_bytes: 4096,
            rcvbuf_bytes: 4608,
        };
        let mut full = capture(vec![], vec![]);
        let mut counters = rose(&[("Udp.RcvbufErrors", 900), ("Udp.InDatagrams", 2000)]);
        counters.udp = vec![socket(900), socket(0)];
        full.counters = Some(counters.clone());
        assert_eq!(verdict_of(&full), "udp-rcvbuf-overflow");
        // A drop in ten thousand, or those of another program.
        let mut busy = capture(vec![FlowBuilder::new(1, Role::Server).talks(10, 100)], vec![]);
        counters.udp = vec![socket(1)];
        counters.namespaces[0].rose.insert("Udp.InDatagrams".into(), 10_000);
        busy.counters = Some(counters.clone());
        assert_eq!(verdict_of(&busy), "healthy");
        counters.udp = vec![socket(0)];
        busy.counters = Some(counters);
        assert_eq!(verdict_of(&busy), "healthy");
    }
}
