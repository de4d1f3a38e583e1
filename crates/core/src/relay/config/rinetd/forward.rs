//! Reads a forwarding line of rinetd: two addresses with their ports, and options in brackets.
use super::super::address::{self, Ports, Spec};
use super::super::at::{At, Word};
use super::super::draft::{Draft, TargetSpec};
use super::super::error::ConfigErrors;
use super::super::model::Protocol;
use super::super::setting::Setting;
use super::super::table::SocketOptions;
use crate::text::{quote, suggest};
use crate::values::{self, ValueError};

/// An address and its protocol.
struct End {
    at: usize,
    spec: Spec,
    /// None for a Unix socket, whose protocol is that of the other end.
    protocol: Option<Protocol>,
}

/// Reads a line; None if it is invalid, which adds an error.
pub fn read(words: &[Word<'_>], errors: &mut ConfigErrors<'_>) -> Option<Draft> {
    let mut rest = words.iter();
    let from = end(&mut rest, errors, address::check_listen_ports);
    if let (Some(from), true) = (&from, rest.as_slice().is_empty()) {
        let hint = "write what to forward, as in unix:/run/x.sock 10.0.0.2 9001";
        errors.add(from.at, ValueError::new("the line has no address to connect to", hint));
        return None;
    }
    let to = end(&mut rest, errors, address::check_target_ports);
    let settings = options(rest.as_slice(), errors);
    let (from, to) = (from?, to?);
    if let (Some(a), Some(b)) = (from.protocol, to.protocol)
        && a != b
    {
        let hint = "give both ports the same suffix, as in 53/udp 10.0.0.2 53/udp";
        errors.add(to.at, ValueError::new("the line forwards between TCP and UDP", hint));
        return None;
    }
    let protocol = from.protocol.or(to.protocol).unwrap_or(Protocol::Tcp);
    Some(Draft {
        name: None,
        protocol,
        listen: vec![At::new(from.spec, from.at)],
        targets: vec![At::new(TargetSpec { spec: to.spec, weight: 1 }, to.at)],
        settings,
    })
}

fn end<'w, 't: 'w>(
    words: &mut impl Iterator<Item = &'w Word<'t>>,
    errors: &mut ConfigErrors<'_>,
    check: fn(&Spec) -> Result<(), ValueError>,
) -> Option<End> {
    let host = words.next()?;
    if let Some(path) = host.value.strip_prefix("unix:") {
        let unix = errors.keep(host.at, address::unix(path))?;
        return Some(End { at: host.at, spec: Spec { host: unix, ports: Ports::one(0) }, protocol: None });
    }
    let Some(port) = words.next() else {
        let what = format!("there is no port behind {}", quote(host.value));
        errors.add(host.at, ValueError::new(what, "write bindaddress bindport connectaddress connectport"));
        return None;
    };
    let name = errors.keep(host.at, address::host(host.value));
    let port_at = port.at;
    let port = errors.keep(port_at, self::port(port.value));
    let (host_value, (ports, protocol)) = (name?, port?);
    let spec = Spec { host: host_value, ports };
    errors.keep(port_at, check(&spec))?;
    Some(End { at: host.at, spec, protocol: Some(protocol) })
}

/// The names of services that are known. /etc/services is not read.
const SERVICES: [(&str, u16); 26] = [
    ("amqp", 5672),
    ("domain", 53),
    ("ftp", 21),
    ("http", 80),
    ("http-alt", 8080),
    ("https", 443),
    ("imap", 143),
    ("imap2", 143),
    ("imaps", 993),
    ("ldap", 389),
    ("ldaps", 636),
    ("ms-wbt-server", 3389),
    ("mysql", 3306),
    ("ntp", 123),
    ("pop3", 110),
    ("pop3s", 995),
    ("postgresql", 5432),
    ("redis", 6379),
    ("smtp", 25),
    ("snmp", 161),
    ("ssh", 22),
    ("submission", 587),
    ("syslog", 514),
    ("telnet", 23),
    ("tftp", 69),
    ("www", 80),
];

/// A port, a range or a service, optionally followed by `/tcp` or `/udp`.
fn port(text: &str) -> Result<(Ports, Protocol), ValueError> {
    let (number, protocol) = match text.split_once('/') {
        None => (text, Protocol::Tcp),
        Some((number, "tcp")) => (number, Protocol::Tcp),
        Some((number, "udp")) => (number, Protocol::Udp),
        Some((number, _)) => {
            let what = format!("{} is neither /tcp nor /udp", quote(text));
            return Err(ValueError::new(what, format!("write {number}/tcp or {number}/udp")));
        }
    };
    if let Some((_, port)) = SERVICES.iter().find(|(name, _)| *name == number) {
        return Ok((Ports::one(*port), protocol));
    }
    if number.starts_with(|c: char| c.is_ascii_alphabetic()) {
        let what = format!("the service {} is not known here", quote(number));
        return Err(ValueError::new(what, format!("write its port; `getent services {number}` prints it")));
    }
    address::ports(number).map(|ports| (ports, protocol))
}

/// Whether a word is a port.
pub fn is_port(text: &str) -> bool {
    port(text).is_ok()
}

/// Reads options such as `[timeout=1200,src=10.0.0.1]`, with or without spaces.
fn options(words: &[Word<'_>], errors: &mut ConfigErrors<'_>) -> Vec<At<Setting>> {
    let Some((first, last)) = words.first().zip(words.last()) else { return Vec::new() };
    if !first.value.starts_with('[') {
        let what = format!("{} is not expected behind the addresses", quote(first.value));
        errors.add(first.at, ValueError::new(what, "options stand in brackets, as in [timeout=1200,src=10.0.0.1]"));
        return Vec::new();
    }
    if !last.value.ends_with(']') {
        errors.add(first.at, ValueError::new("the options have no `]`", "write them as [timeout=1200,src=10.0.0.1]"));
        return Vec::new();
    }
    let mut settings = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let (mut text, mut at) = (word.value, word.at);
        if index == 0 {
            (text, at) = (&text[1..], at + 1);
        }
        if index + 1 == words.len() {
            text = text.strip_suffix(']').unwrap_or(text);
        }
        for option in text.split(',') {
            if !option.is_empty() {
                settings.extend(errors.keep(at, self::option(option)).map(|setting| At::new(setting, at)));
            }
            at += option.len() + 1;
        }
    }
    settings
}

fn option(text: &str) -> Result<Setting, ValueError> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    match key {
        "timeout" => match value.parse::<u32>() {
            Ok(seconds) => {
                let idle = values::duration_or_off(&format!("{seconds}s"))?.unwrap_or_default();
                Ok(Setting::new("timeouts.idle", move |l| l.timeouts.idle = idle))
            }
            Err(_) => Err(ValueError::new(
                format!("timeout: {} is not a number of seconds", quote(value)),
                "write it as timeout=1200",
            )),
        },
        "src" => value.parse().map(|source| Setting::new("source", move |l| l.source = Some(source))).map_err(|_| {
            ValueError::new(
                format!("src: {} is not an address", quote(value)),
                "write an address of this host, as src=10.0.0.1",
            )
        }),
        "keepalive" => match value {
            "on" => {
                let keepalive = SocketOptions::default().keepalive;
                Ok(Setting::new("sockets.keepalive", move |l| l.sockets.keepalive = keepalive))
            }
            "off" => Ok(Setting::new("sockets.keepalive", |l| l.sockets.keepalive = None)),
            _ => Err(ValueError::new(
                format!("keepalive: {} is neither on nor off", quote(value)),
                "write keepalive=on or keepalive=off",
            )),
        },
        _ => {
            let what = format!("unknown option {}", quote(key));
            Err(ValueError::new(what, suggest(key, &["timeout", "src", "keepalive"])))
        }
    }
}
