//! Prints a configuration as text: every listener with its settings that are not the default.
use std::path::Path;

use parshall_core::relay::config::{Config, Endpoint, Global, Listener, Protocol, Target};

use parshall_host::output::{TextStyle, clean, items};

/// The separator of the items of a line.
const SEPARATOR: &str = " · ";

/// The text of a valid configuration.
pub fn text(path: &Path, config: &Config, style: TextStyle) -> String {
    let count = config.listeners.len();
    let listeners = if count == 1 { "one listener".to_owned() } else { format!("{count} listeners") };
    let head = format!("{}: {listeners}, no errors", clean(&path.display().to_string()));
    let mut out = if style.color { format!("\x1b[1m{head}\x1b[0m\n") } else { format!("{head}\n") };
    let defaults = Global::default();
    let global = Global::ROWS.iter().filter_map(|row| row.describe(&config.global, &defaults)).collect::<Vec<_>>();
    lines(&mut out, &global, style.width);
    for group in groups(&config.listeners) {
        out.push('\n');
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let targets = first.targets.iter().zip(&last.targets).map(|(a, b)| target(a, b));
        let listen = span(&first.listen, &last.listen);
        let protocol = if first.protocol == Protocol::Udp { "udp" } else { "tcp" };
        let head = format!("{protocol} {listen} → {}", targets.collect::<Vec<_>>().join(", "));
        out.push_str(&clean(&head));
        out.push('\n');
        lines(&mut out, &details(first, group.len() > 1), style.width);
    }
    out
}

fn lines(out: &mut String, parts: &[String], width: usize) {
    const INDENT: &str = "    ";
    let parts: Vec<String> = parts.iter().map(|p| clean(p)).collect();
    for line in items(&parts, SEPARATOR, width.saturating_sub(INDENT.len()).max(20)) {
        out.push_str(INDENT);
        out.push_str(&line);
        out.push('\n');
    }
}

/// Successive listeners that differ only in their ports are printed as a range.
fn groups(listeners: &[Listener]) -> Vec<&[Listener]> {
    listeners
        .chunk_by(|a, b| {
            let same_port = || a.targets.iter().zip(&b.targets).all(|(x, y)| x.endpoint == y.endpoint);
            let next_port =
                || a.targets.iter().zip(&b.targets).all(|(x, y)| follows(&x.endpoint, &y.endpoint) || x == y);
            let like_a = || {
                let (name, listen, targets) = (a.name.clone(), a.listen.clone(), a.targets.clone());
                Listener { name, listen, targets, ..b.clone() }
            };
            follows(&a.listen, &b.listen)
                && a.targets.len() == b.targets.len()
                && (same_port() || next_port())
                && *a == like_a()
        })
        .collect()
}

fn follows(a: &Endpoint, b: &Endpoint) -> bool {
    match (a, b) {
        (Endpoint::Ip(a), Endpoint::Ip(b)) => a.ip() == b.ip() && a.port().checked_add(1) == Some(b.port()),
        (Endpoint::Name(a, p), Endpoint::Name(b, q)) => a == b && p.checked_add(1) == Some(*q),
        _ => false,
    }
}

fn span(first: &Endpoint, last: &Endpoint) -> String {
    match last {
        _ if first == last => first.to_string(),
        Endpoint::Ip(address) => format!("{first}-{}", address.port()),
        Endpoint::Name(_, port) => format!("{first}-{port}"),
        Endpoint::Unix(_) => first.to_string(),
    }
}

fn target(first: &Target, last: &Target) -> String {
    let weight = if first.weight == 1 { String::new() } else { format!(" (weight {})", first.weight) };
    format!("{}{weight}", span(&first.endpoint, &last.endpoint))
}

fn details(l: &Listener, range: bool) -> Vec<String> {
    let defaults = Listener::new(l.protocol, l.listen.clone(), Vec::new());
    let mut parts = Vec::new();
    if l.name != defaults.name {
        // Each name of a range ends with its address.
        parts.push(format!("name {}", if range { l.name.split('/').next().unwrap_or_default() } else { &l.name }));
    }
    let mut rows: Vec<_> = Listener::rows().collect();
    rows.sort_by_key(|row| row.more.section);
    // The rules of an access list are items.
    let described = rows.iter().filter_map(|row| row.describe(l, &defaults));
    parts.extend(described.flat_map(|text| text.split(SEPARATOR).map(str::to_owned).collect::<Vec<_>>()));
    parts
}
