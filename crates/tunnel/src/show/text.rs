//! The report for people.
use std::collections::BTreeMap;
use std::fmt::Write;

use parshall_core::units;

use crate::control::report::{PeerReport, Report};

pub fn write(tunnels: &[Report]) -> String {
    if tunnels.is_empty() {
        return "no tunnel is up\n".to_owned();
    }
    tunnels.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one(tunnel: &Report) -> String {
    let mut text = format!(
        "{} · port {} · {} · up {}\n",
        tunnel.interface,
        tunnel.listen_port,
        units::plural(tunnel.peers.len() as u64, "peer", "peers"),
        span(tunnel.uptime_s),
    );
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            writeln!(text, "  {name:<12}{value}").expect("a string takes any text");
        }
    };
    add("public key", tunnel.public_key.clone().unwrap_or_else(|| "none".to_owned()));
    add("device", batches(tunnel, [("a frame read", 0), ("a frame written", 1)]));
    add("sockets", batches(tunnel, [("a GSO batch sent", 2), ("a GSO batch received", 3)]));
    let cpu = tunnel.cpu_s_per_gbit().map(|s| format!(", {} a Gbit", units::duration(s * 1e9))).unwrap_or_default();
    let memory = units::bytes(tunnel.process.rss_bytes as f64);
    add("process", format!("{} of CPU{cpu} · {memory} of memory", units::duration(tunnel.process.cpu_s * 1e9)));
    add("dropped", causes(&tunnel.drops));
    for peer in &tunnel.peers {
        text.push_str(&one_peer(peer));
    }
    text
}

fn one_peer(peer: &PeerReport) -> String {
    let handshake = match peer.handshake_age_s {
        Some(age_s) => format!("{}, {} so far", ago(age_s), units::count(peer.handshakes)),
        None => "none yet".to_owned(),
    };
    let keepalive = match peer.persistent_keepalive_s {
        0 => String::new(),
        interval_s => format!(" · keepalive every {interval_s} s"),
    };
    let dropped = match causes(&peer.drops) {
        drops if drops.is_empty() => drops,
        drops => format!("  dropped     {drops}\n"),
    };
    format!(
        "\n  peer        {}\n  endpoint    {}{keepalive}\n  allowed     {}\n  handshake   {handshake}\n  \
         traffic     {} received, {} sent\n{dropped}",
        peer.public_key,
        peer.endpoint.as_deref().unwrap_or("unknown until the peer begins"),
        units::or(&peer.allowed_ips.join(", "), "nothing"),
        units::bytes(peer.received_bytes as f64),
        units::bytes(peer.sent_bytes as f64),
    )
}

/// `1,200 replayed, 3 no-peer`
fn causes(drops: &BTreeMap<String, u64>) -> String {
    let texts = drops.iter().map(|(cause, n)| format!("{} {cause}", units::count(*n)));
    texts.collect::<Vec<_>>().join(", ")
}

/// Packets for each of what moves them, for two kinds; those without any are left out.
fn batches(tunnel: &Report, kinds: [(&str, usize); 2]) -> String {
    let c = &tunnel.counters;
    let pairs = [
        (c.packets_read, c.frames_read),
        (c.packets_written, c.frames_written),
        (c.datagrams_sent, c.messages_sent),
        (c.datagrams_received, c.messages_received),
    ];
    let present = kinds.into_iter().filter(|(_, at)| pairs[*at].1 > 0);
    let text = present.map(|(name, at)| format!("{:.1} packets {name}", pairs[at].0 as f64 / pairs[at].1 as f64));
    text.collect::<Vec<_>>().join(", ")
}

/// `12 seconds ago`, `2 minutes ago`, `3 hours ago`: the largest unit, rounded down.
fn ago(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    let (n, one, many) = match s {
        0..60 => (s, "second", "seconds"),
        60..3600 => (s / 60, "minute", "minutes"),
        3600..86_400 => (s / 3600, "hour", "hours"),
        _ => (s / 86_400, "day", "days"),
    };
    format!("{} ago", units::plural(n, one, many))
}

/// `12 s`, `3 min 5 s`, `2 h 14 min`, `3 d 4 h`.
fn span(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;

    #[test]
    fn a_tunnel_with_two_peers() {
        let known = PeerReport {
            public_key: "AAA=".to_owned(),
            endpoint: Some("192.0.2.2:51820".to_owned()),
            allowed_ips: vec!["10.0.0.2/32".to_owned(), "fd00::/8".to_owned()],
            persistent_keepalive_s: 25,
            handshakes: 3,
            handshake_age_s: Some(75.0),
            received_bytes: 1_500_000,
            sent_bytes: 40,
            drops: BTreeMap::from([("replayed".to_owned(), 1200)]),
            ..PeerReport::default()
        };
        let report = Report {
            schema: String::new(),
            interface: "wg0".to_owned(),
            uptime_s: 8100.0,
            public_key: Some("KEY=".to_owned()),
            listen_port: 51_820,
            fwmark: 0,
            peers: vec![known, PeerReport { public_key: "BBB=".to_owned(), ..PeerReport::default() }],
            drops: BTreeMap::from([("no-peer".to_owned(), 3), ("replayed".to_owned(), 1200)]),
            counters: Counters { frames_read: 2, packets_read: 21, ..Counters::default() },
            process: Default::default(),
        };
        let expected = "\
wg0 · port 51820 · 2 peers · up 2 h 15 min
  public key  KEY=
  device      10.5 packets a frame read
  process     0 µs of CPU, 0 µs a Gbit · 0 B of memory
  dropped     3 no-peer, 1,200 replayed

  peer        AAA=
  endpoint    192.0.2.2:51820 · keepalive every 25 s
  allowed     10.0.0.2/32, fd00::/8
  handshake   1 minute ago, 3 so far
  traffic     1.4 MiB received, 40 B sent
  dropped     1,200 replayed

  peer        BBB=
  endpoint    unknown until the peer begins
  allowed     nothing
  handshake   none yet
  traffic     0 B received, 0 B sent
";
        assert_eq!(write(&[report]), expected);
        assert_eq!(write(&[]), "no tunnel is up\n");
    }

    #[test]
    fn ages_are_in_words() {
        for (seconds, words) in [
            (0.4, "0 seconds ago"),
            (1.9, "1 second ago"),
            (125.0, "2 minutes ago"),
            (7199.0, "1 hour ago"),
            (200_000.0, "2 days ago"),
        ] {
            assert_eq!(ago(seconds), words);
        }
    }
}
