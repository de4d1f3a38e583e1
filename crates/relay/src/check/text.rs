//! What a configuration would do, for people: every listener with what is not as usual about it.
use std::path::Path;
use std::time::Duration;

use parshall_core::relay::config::value::{BALANCES, ENGINES, PROXY_VERSIONS, name_of};
use parshall_core::relay::config::{
    BUFFER_DEFAULT, Balance, Config, Endpoint, Global, Listener, LogTo, Protocol, SocketOptions, Target,
};
use parshall_core::values::bytes_text;

use parshall_host::output::{TextStyle, clean, items};

/// The page.
pub fn text(path: &Path, config: &Config, style: TextStyle) -> String {
    let count = config.listeners.len();
    let listeners = if count == 1 { "one listener".to_owned() } else { format!("{count} listeners") };
    let head = format!("{}: {listeners}, no mistakes", clean(&path.display().to_string()));
    let mut out = if style.color { format!("\x1b[1m{head}\x1b[0m\n") } else { format!("{head}\n") };
    rows(&mut out, &global(&config.global), style.width);
    for group in groups(&config.listeners) {
        out.push('\n');
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let targets = first.targets.iter().zip(&last.targets).map(|(a, b)| target(a, b));
        let listen = span(&first.listen, &last.listen);
        let protocol = if first.protocol == Protocol::Udp { "udp" } else { "tcp" };
        let head = format!("{protocol} {listen} → {}", targets.collect::<Vec<_>>().join(", "));
        out.push_str(&clean(&head));
        out.push('\n');
        rows(&mut out, &details(first, group.len() > 1), style.width);
    }
    out
}

fn rows(out: &mut String, parts: &[String], width: usize) {
    const INDENT: &str = "    ";
    let parts: Vec<String> = parts.iter().map(|p| clean(p)).collect();
    for line in items(&parts, " · ", width.saturating_sub(INDENT.len()).max(20)) {
        out.push_str(INDENT);
        out.push_str(&line);
        out.push('\n');
    }
}

fn global(global: &Global) -> Vec<String> {
    let mut parts = vec![match global.threads {
        Some(1) => "one thread".to_owned(),
        Some(threads) => format!("{threads} threads"),
        None => "one thread per CPU".to_owned(),
    }];
    parts.extend(global.max_connections.map(|n| format!("at most {n} connections")));
    parts.extend(global.metrics.map(|address| format!("metrics at {address}")));
    parts.extend(global.control.as_ref().map(|path| format!("control at {path}")));
    parts.push(match &global.log {
        LogTo::Nowhere => "no log".to_owned(),
        LogTo::Stdout => "log to stdout".to_owned(),
        LogTo::File(path) => format!("log to {path}"),
    });
    parts.extend(global.user.as_ref().map(|user| format!("as {user}")));
    parts.push(format!("drain {}", time(global.drain)));
    parts
}

/// Neighbours that differ in their ports only are shown as the range that they were written as.
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
    let usual = Listener::new(l.protocol, l.listen.clone(), Vec::new());
    let mut parts = Vec::new();
    if l.name != usual.name {
        // The names of a range end with each address.
        parts.push(format!("name {}", if range { l.name.split('/').next().unwrap_or_default() } else { &l.name }));
    }
    if l.protocol == Protocol::Tcp {
        parts.push(format!("engine {}", name_of(&ENGINES, &l.engine)));
        if l.buffer != BUFFER_DEFAULT {
            parts.push(format!("buffer {}", bytes_text(l.buffer as u64)));
        }
    }
    if l.targets.len() > 1 || l.balance != Balance::RoundRobin {
        parts.push(name_of(&BALANCES, &l.balance).to_owned());
    }
    limits(l, &mut parts);
    times(l, &usual, &mut parts);
    parts.extend(l.proxy_in.then(|| {
        let networks: Vec<String> = l.proxy_from.iter().map(|network| format!(" {network}")).collect();
        let from = if networks.is_empty() { "" } else { " from" };
        format!("PROXY header in{from}{}", networks.join(","))
    }));
    parts.extend(l.proxy_out.map(|v| format!("PROXY header out {}", name_of(&PROXY_VERSIONS, &Some(v)))));
    parts.extend(l.transparent.then(|| "from the client's address".to_owned()));
    parts.extend(l.source.map(|source| format!("from {source}")));
    sockets(&l.sockets, &usual.sockets, &mut parts);
    if l.health.fails != usual.health.fails || l.health.pause != usual.health.pause {
        parts.push(match l.health.fails {
            0 => "no target is left alone".to_owned(),
            fails => format!("{fails} failures pause a target {}", time(l.health.pause)),
        });
    }
    parts.extend(l.health.check.map(|c| format!("checked every {} for {}", time(c.interval), time(c.timeout))));
    parts.extend(l.access.iter().map(ToString::to_string));
    parts
}

fn limits(l: &Listener, parts: &mut Vec<String>) {
    let udp = l.protocol == Protocol::Udp;
    let open = if udp { "sessions" } else { "connections" };
    parts.extend(l.limits.connections.map(|n| format!("at most {n} {open}")));
    parts.extend(l.limits.per_source.map(|n| format!("{n} {open} per source")));
    parts.extend(l.limits.rate.map(|n| match udp {
        true => format!("{n} datagrams/s per source"),
        false => format!("{n} new connections/s"),
    }));
    parts.extend(l.limits.bandwidth.map(|n| format!("{}/s each way", bytes_text(n))));
}

fn times(l: &Listener, usual: &Listener, parts: &mut Vec<String>) {
    let (own, usual) = (l.timeouts, usual.timeouts);
    let rows = [
        ("connect", own.connect, usual.connect),
        ("idle", own.idle, usual.idle),
        ("linger", own.linger, usual.linger),
        ("header", own.header, usual.header),
    ];
    for (name, own, usual) in rows {
        if own != usual {
            parts.push(if own.is_zero() {
                format!("no {name} timeout")
            } else {
                format!("{name} timeout {}", time(own))
            });
        }
    }
}

fn sockets(own: &SocketOptions, usual: &SocketOptions, parts: &mut Vec<String>) {
    parts.extend((!own.nodelay).then(|| "without TCP_NODELAY".to_owned()));
    parts.extend(own.receive_buffer.map(|n| format!("SO_RCVBUF {}", bytes_text(n.into()))));
    parts.extend(own.send_buffer.map(|n| format!("SO_SNDBUF {}", bytes_text(n.into()))));
    if own.keepalive != usual.keepalive {
        parts.push(own.keepalive.map_or("no keepalive".to_owned(), |t| format!("keepalive after {}", time(t))));
    }
    parts.extend(own.user_timeout.map(|t| format!("TCP_USER_TIMEOUT {}", time(t))));
    parts.extend(own.mptcp.then(|| "MPTCP".to_owned()));
    parts.extend(own.fast_open.then(|| "TCP Fast Open".to_owned()));
    if own.backlog != usual.backlog {
        parts.push(format!("backlog {}", own.backlog));
    }
}

/// A time in the largest unit that keeps it whole.
fn time(time: Duration) -> String {
    let ms = time.as_millis();
    for (unit_ms, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")] {
        if ms > 0 && ms.is_multiple_of(unit_ms) {
            return format!("{} {unit}", ms / unit_ms);
        }
    }
    if ms >= 1 { format!("{ms} ms") } else { format!("{} µs", time.as_micros()) }
}
