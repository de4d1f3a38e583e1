//! The HTTP endpoint: `/metrics` in the OpenMetrics text format, which Prometheus reads, and `/healthz`.
use std::fmt::Error;
use std::net::TcpListener;
use std::time::Duration;

use hyper::StatusCode;
use parshall_host::http::{Answer, TEXT, answer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::Reporter;
use super::report::{PeerReport, Report};
use crate::counters::Counters;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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

fn text(report: Report) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("parshall_tunnel");
    registry.register_collector(Box::new(Source(report)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Source(Report);

impl Collector for Source {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut families = Families { encoder: &mut encoder, report: &self.0 };
        families.of_peers()?;
        families.of_packets()?;
        families.of_process()
    }
}

struct Families<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    report: &'a Report,
}

type Label<'a> = (&'static str, &'a str);
/// What is counted of the packets: by what, and for which values of that label.
type Counted = (&'static str, &'static str, [(&'static str, fn(&Counters) -> u64); 2]);

impl<'a> Families<'a, '_> {
    fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = ([Label<'a>; N], u64)>,
    ) -> Result<(), Error> {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn of_peers(&mut self) -> Result<(), Error> {
        type Direction = (&'static str, fn(&PeerReport) -> u64);
        const BYTES: [Direction; 2] = [("received", |p| p.received_bytes), ("sent", |p| p.sent_bytes)];
        const PACKETS: [Direction; 2] = [("received", |p| p.received_packets), ("sent", |p| p.sent_packets)];
        let Report { interface, peers, .. } = self.report;
        for (name, help, directions) in [
            ("peer_bytes", "Bytes of datagrams, handshakes included", BYTES),
            ("peer_packets", "Data messages, keepalives included", PACKETS),
        ] {
            let samples = peers.iter().flat_map(|peer| {
                directions.map(|(direction, value)| {
                    let labels =
                        [("interface", interface.as_str()), ("peer", &peer.public_key), ("direction", direction)];
                    (labels, value(peer))
                })
            });
            self.counters(name, help, samples)?;
        }
        let labels = |peer: &'a PeerReport| [("interface", interface.as_str()), ("peer", peer.public_key.as_str())];
        let handshakes = peers.iter().map(|peer| (labels(peer), peer.handshakes));
        self.counters("peer_handshakes", "Handshakes that ended with a session", handshakes)?;
        let help = "Since the last handshake; no series before the first one";
        let mut family = self.encoder.encode_descriptor("peer_handshake_age_seconds", help, None, MetricType::Gauge)?;
        for peer in peers {
            if let Some(age_s) = peer.handshake_age_s {
                ConstGauge::new(age_s).encode(family.encode_family(&labels(peer))?)?;
            }
        }
        Ok(())
    }

    fn of_packets(&mut self) -> Result<(), Error> {
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
                "socket_trains",
                "UDP messages of one or more datagrams (UDP_SEGMENT, UDP_GRO)",
                [("sent", |c| c.trains_sent), ("received", |c| c.trains_received)],
            ),
            (
                "socket_datagrams",
                "Datagrams in these messages",
                [("sent", |c| c.datagrams_sent), ("received", |c| c.datagrams_received)],
            ),
        ];
        let Report { interface, drops, counters, .. } = self.report;
        for (name, help, values) in COUNTED {
            let samples = values.into_iter().map(|(direction, value)| {
                ([("interface", interface.as_str()), ("direction", direction)], value(counters))
            });
            self.counters(name, help, samples)?;
        }
        let causes = drops.iter().map(|(cause, count)| (cause.as_str(), *count)).chain(counters.drops());
        let causes = causes.map(|(cause, count)| ([("interface", interface.as_str()), ("cause", cause)], count));
        self.counters("dropped_packets", "Packets and datagrams that were dropped, by cause", causes)
    }

    fn of_process(&mut self) -> Result<(), Error> {
        let process = &self.report.process;
        let cpu = ConstCounter::new(process.cpu_s);
        let help = "CPU time of the process that moves packets, in the kernel and outside";
        cpu.encode(self.encoder.encode_descriptor("cpu_seconds", help, None, MetricType::Counter)?)?;
        for (name, help, value) in [
            (
                "cpu_seconds_per_gbit",
                "CPU time for each Gbit of datagrams, since the start",
                self.report.cpu_s_per_gbit(),
            ),
            ("resident_bytes", "Resident memory of that process", Some(process.rss_bytes as f64)),
            ("uptime_seconds", "Since its start", Some(self.report.uptime_s)),
        ] {
            if let Some(value) = value {
                let descriptor = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(descriptor)?;
            }
        }
        Ok(())
    }
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
            drops: BTreeMap::from([("replayed".to_owned(), 4)]),
            counters: Counters { frames_read: 7, packets_without_peer: 9, ..Counters::default() },
            process: parshall_host::process::Process { cpu_s: 1.0, ..Default::default() },
        };
        let text = text(report).unwrap();
        for line in [
            r#"parshall_tunnel_peer_bytes_total{interface="wg0",peer="A=",direction="received"} 125000000"#,
            r#"parshall_tunnel_peer_handshake_age_seconds{interface="wg0",peer="A="} 1.5"#,
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
