//! Words that several causes use: names of flows, and evidence with a count or a unit.
use std::net::{IpAddr, SocketAddr};

use parshall_evidence::{Evidence, FlowRecord};

/// `local->remote`, IPv4-mapped addresses as IPv4.
pub fn flow_name(flow: &FlowRecord) -> String {
    format!("{}->{}", end(flow.local), end(flow.remote))
}

/// As [`flow_name`], for sentences.
pub fn flow_arrow(flow: &FlowRecord) -> String {
    format!("{} -> {}", end(flow.local), end(flow.remote))
}

/// One end; the ports of connections that are summed up differ.
fn end(addr: SocketAddr) -> String {
    let text = plain(addr).to_string();
    text.strip_suffix(":0").map_or_else(|| text.clone(), |host| format!("{host}:*"))
}

/// The address without its port.
pub fn host(addr: SocketAddr) -> String {
    addr.ip().to_canonical().to_string()
}

fn plain(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), addr.port()),
            None => addr,
        },
        IpAddr::V4(_) => addr,
    }
}

/// `≈` in front of what was measured in slices and scaled.
pub fn about(scaled: bool, text: String) -> String {
    if scaled { format!("≈{text}") } else { text }
}

/// `2.4 MB/s`.
pub fn per_second(bytes_per_s: f64) -> String {
    match bytes_per_s {
        n if n >= 1e9 => format!("{:.1} GB/s", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB/s", n / 1e6),
        n if n >= 1e3 => format!("{:.1} kB/s", n / 1e3),
        n => format!("{:.0} B/s", n.max(0.0)),
    }
}

/// An [`Evidence`] that is a count.
pub fn counted(what: impl Into<String>, n: u64) -> Evidence {
    Evidence { what: what.into(), count: Some(n), ..Evidence::default() }
}

/// An [`Evidence`] that is a number with a unit.
pub fn valued(what: impl Into<String>, value: f64, unit: &str) -> Evidence {
    Evidence {
        what: what.into(),
        value: Some(if value.is_finite() { value } else { 0.0 }),
        unit: Some(unit.to_string()),
        ..Evidence::default()
    }
}
