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

/// A sentence as it goes on behind a colon: in lower case, but for a name at its begin, which is one of `names`, and for an acronym.
pub fn behind_colon<'n>(sentence: &str, mut names: impl Iterator<Item = &'n str>) -> String {
    let mut letters = sentence.chars();
    let Some(first) = letters.next() else { return String::new() };
    let is_acronym = letters.clone().next().is_some_and(|second| !second.is_lowercase() && second != ' ');
    if is_acronym || names.any(|name| !name.is_empty() && sentence.starts_with(name)) {
        return sentence.to_owned();
    }
    first.to_lowercase().chain(letters).collect()
}

/// The begin of a sentence: `Thread 4121 (worker)` for `thread 4121 (worker)`. A name stays as it is.
pub fn begun(words: &str) -> String {
    match words.strip_prefix("thread ") {
        Some(rest) => format!("Thread {rest}"),
        None => words.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::behind_colon;

    #[test]
    fn a_sentence_goes_on_behind_a_colon() {
        for (sentence, behind) in [
            ("Nobody accepts the connection.", "nobody accepts the connection."),
            ("A deadlock.", "a deadlock."),
            ("VM Thread runs.", "VM Thread runs."),
            ("Xorg 812 waits.", "Xorg 812 waits."),
            ("nginx 9 waits.", "nginx 9 waits."),
            ("SYNs are lost.", "SYNs are lost."),
            ("", ""),
        ] {
            assert_eq!(behind_colon(sentence, ["", "Xorg", "nginx"].into_iter()), behind);
        }
    }
}
