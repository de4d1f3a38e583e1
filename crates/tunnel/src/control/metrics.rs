//! The HTTP endpoint: `/metrics` in the OpenMetrics text format, which Prometheus reads, and `/healthz`.
use std::fmt;
use std::net::TcpListener;
use std::time::Duration;

use hyper::StatusCode;
use parshall_host::http::{Answer, TEXT, answer};
use parshall_host::open_metrics::{self, CONTENT_TYPE, Families};

use super::report::{PeerReport, Report, Reporter};
use crate::counters::Counters;

/// The time from accept to the last byte of the response.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Serves until the future is dropped.
pub(super) async fn serve(listener: TcpListener, reporter: Reporter) {
    let respond = move |request: hyper::Request<hyper::body::Incoming>| {
        let reporter = reporter.clone();
        async move { respond(request.uri().path(), &reporter).await }
    };
    parshall_host::http::serve(listener, TIME_MAX, respond).await;
}

async fn respond(path: &str, reporter: &Reporter) -> Answer {
    match path {
        "/metrics" => match reporter.report().await.map(text) {
            Some(Ok(text)) => answer(StatusCode::OK, CONTENT_TYPE, text),
            Some(Err(_)) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics could not be written\n"),
            None => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, "the tunnel ends\n"),
        },
        "/healthz" => answer(StatusCode::OK, TEXT, "ok\n"),
        _ => answer(StatusCode::NOT_FOUND, TEXT, "here are /metrics and /healthz\n"),
    }
}

fn text(report: Report) -> Result<String, fmt::Error> {
    open_metrics::text("parshall_tunnel", move |families| {
        of_peers(&report, families)?;
        of_packets(&report, families)?;
        of_process(&report, families)
    })
}

/// A family of counters: its name, its label, and the values of that label.
type Counted = (&'static str, &'static str, [(&'static str, fn(&Counters) -> u64); 2]);

fn of_peers(report: &Report, families: &mut Families<'_, '_>) -> fmt::Result {
    type Direction = (&'static str, fn(&PeerReport) -> u64);
    const BYTES: [Direction; 2] = [("received", |p| p.received_bytes), ("sent", |p| p.sent_bytes)];
    const PACKETS: [Direction; 2] = [("received", |p| p.received_packets), ("sent", |p| p.sent_packets)];
    const BATCHES: [Direction; 2] = [("received", |p| p.received_batches), ("sent", |p| p.sent_batches)];
    let Report { interface, peers, .. } = report;
    for (name, help, directions) in [
        ("peer_bytes", "Bytes of datagrams, handshakes included", BYTES),
        ("peer_packets", "Data messages, keepalives included", PACKETS),
        ("peer_batches", "Runs of data messages that were opened, or sealed, together", BATCHES),
    ] {
        let samples = peers.iter().flat_map(|peer| {
            directions.map(|(direction, value)| {
                let labels = [("interface", interface.as_str()), ("peer", &peer.public_key), ("direction", direction)];
                (labels, value(peer))
            })
        });
        families.counters(name, help, samples)?;
    }
    let drops = peers.iter().flat_map(|peer| {
        let labels = |cause| [("interface", interface.as_str()), ("peer", &peer.public_key), ("cause", cause)];
        peer.drops.iter().map(move |(cause, count)| (labels(cause.as_str()), *count))
    });
    families.counters("peer_dropped_packets", "Packets and datagrams of a peer that were dropped, by cause", drops)?;
    let labelled =
        peers.iter().map(|peer| ([("interface", interface.as_str()), ("peer", peer.public_key.as_str())], peer));
    let handshakes = labelled.clone().map(|(labels, peer)| (labels, peer.handshakes));
    families.counters("peer_handshakes", "Handshakes that ended with a session", handshakes)?;
    let help = "Since the last handshake; no series before the first one";
    let ages = labelled.filter_map(|(labels, peer)| Some((labels, peer.handshake_age_s?)));
    families.gauges("peer_handshake_age_seconds", help, ages)
}

fn of_packets(report: &Report, families: &mut Families<'_, '_>) -> fmt::Result {
    const COUNTED: [Counted; 4] = [
        (
            "device_frames",
            "Frames of the TUN device: up to 64 KiB of a flow each",
            [("read", |c| c.frames_read), ("written", |c| c.frames_written)],
        ),
        (
            "device_packets",
            "Packets in these frames",
            [("read", |c| c.packets_read), ("written", |c| c.packets_written)],
        ),
        (
            "socket_messages",
            "UDP messages of one or more datagrams (UDP_SEGMENT, UDP_GRO)",
            [("sent", |c| c.messages_sent), ("received", |c| c.messages_received)],
        ),
        (
            "socket_datagrams",
            "Datagrams in these messages",
            [("sent", |c| c.datagrams_sent), ("received", |c| c.datagrams_received)],
        ),
    ];
    let Report { interface, drops, counters, .. } = report;
    for (name, help, values) in COUNTED {
        let samples = values
            .into_iter()
            .map(|(direction, value)| ([("interface", interface.as_str()), ("direction", direction)], value(counters)));
        families.counters(name, help, samples)?;
    }
    let causes = drops.iter().map(|(cause, count)| ([("interface", interface.as_str()), ("cause", cause)], *count));
    families.counters("dropped_packets", "Packets and datagrams that were dropped, by cause", causes)
}

fn of_process(report: &Report, families: &mut Families<'_, '_>) -> fmt::Result {
    let process = &report.process;
    let help = "CPU time of the process that moves packets, in the kernel and outside";
    families.counter_s("cpu_seconds", help, process.cpu_s)?;
    for (name, help, value) in [
        ("cpu_seconds_per_gbit", "CPU time for each Gbit of datagrams, since the start", report.cpu_s_per_gbit()),
        ("resident_bytes", "Resident memory of that process", Some(process.rss_bytes as f64)),
        ("uptime_seconds", "Since its start", Some(report.uptime_s)),
    ] {
        if let Some(value) = value {
            families.gauge(name, help, value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;

    #[test]
    fn every_series_is_there_once() {
        let peer = |key: &str| PeerReport {
            public_key: key.to_owned(),
            received_bytes: 125_000_000,
            handshakes: 2,
            handshake_age_s: (key == "A=").then_some(1.5),
            drops: BTreeMap::from([("replayed".to_owned(), 2)]),
            ..PeerReport::default()
        };
        let report = Report {
            schema: String::new(),
            interface: "wg0".to_owned(),
            uptime_s: 3.5,
            public_key: None,
            listen_port: 1,
            fwmark: 0,
            peers: vec![peer("A="), peer("B=")],
            drops: BTreeMap::from([("replayed".to_owned(), 4), ("no-peer".to_owned(), 9)]),
            counters: Counters { frames_read: 7, ..Counters::default() },
            process: parshall_host::process::Process { cpu_s: 1.0, ..Default::default() },
        };
        let text = text(report).unwrap();
        for line in [
            r#"parshall_tunnel_peer_bytes_total{interface="wg0",peer="A=",direction="received"} 125000000"#,
            r#"parshall_tunnel_peer_handshake_age_seconds{interface="wg0",peer="A="} 1.5"#,
            r#"parshall_tunnel_peer_dropped_packets_total{interface="wg0",peer="B=",cause="replayed"} 2"#,
            r#"parshall_tunnel_device_frames_total{interface="wg0",direction="read"} 7"#,
            r#"parshall_tunnel_dropped_packets_total{interface="wg0",cause="replayed"} 4"#,
            r#"parshall_tunnel_dropped_packets_total{interface="wg0",cause="no-peer"} 9"#,
            "parshall_tunnel_cpu_seconds_per_gbit 0.5",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains(r#"age_seconds{interface="wg0",peer="B="}"#));
        let mut seen = HashSet::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(seen.insert(line.rsplit_once(' ').unwrap().0), "{line}");
        }
    }
}
