//! The keys that a listener and `[defaults]` share.
use std::net::IpAddr;

use ::toml::de::DeValue;
use ipnet::IpNet;

use super::super::draft::{At, check_access};
use super::super::model::{AccessRule, Check, Protocol};
use super::super::setting::Setting;
use super::super::value;
use super::Places;
use super::read::{Entry, Reader, named};
use crate::networks;
use crate::text::quote;
use crate::values::{self, ValueError};

/// All keys of a listener, ordered by where else they may stand.
pub const ALL: &[&str] = &[
    "name",
    "listen",
    "target",
    "targets",
    "protocol",
    "balance",
    "engine",
    "buffer",
    "allow",
    "deny",
    "access",
    "limits",
    "timeouts",
    "sockets",
    "proxy-in",
    "proxy-from",
    "proxy-out",
    "transparent",
    "source",
    "health",
];
/// Those that only a listener has.
pub const OWN: &[&str] = ALL.split_at(4).0;
/// The keys of `[defaults]`.
pub const DEFAULTS: &[&str] = ALL.split_at(4).1;
/// Those of settings.
pub const KEYS: &[&str] = ALL.split_at(5).1;
const LIMITS: [&str; 4] = ["connections", "per-source", "rate", "bandwidth"];
const TIMEOUTS: [&str; 4] = ["connect", "idle", "linger", "header"];
const SOCKETS: [&str; 8] =
    ["nodelay", "receive-buffer", "send-buffer", "keepalive", "user-timeout", "mptcp", "fast-open", "backlog"];
const HEALTH: [&str; 3] = ["fails", "pause", "check"];
const CHECK: [&str; 4] = ["interval", "timeout", "rise", "fall"];

/// The tables below a listener and their keys.
pub const TABLES: [(&str, &[&str]); 5] =
    [("limits", &LIMITS), ("timeouts", &TIMEOUTS), ("sockets", &SOCKETS), ("health", &HEALTH), ("check", &CHECK)];

/// The names of the protocols.
pub const PROTOCOLS: [(&str, Protocol); 2] = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];

/// What a table has set.
#[derive(Debug, Default)]
pub struct Settings {
    /// The protocol, if it was said.
    pub protocol: Option<Protocol>,
    /// The rest.
    pub settings: Places<Setting>,
    /// The lists that become one access list once all keys are read.
    access: AccessKeys,
}

#[derive(Debug, Default)]
struct AccessKeys {
    allow: Places<AccessRule>,
    deny: Places<AccessRule>,
    access: Places<AccessRule>,
    /// Where the first of the three keys stands, and each that was used.
    at: usize,
    used: Vec<&'static str>,
}

/// Reads `[defaults]`.
pub fn defaults(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Settings {
    let mut settings = Settings::default();
    for entry in &reader.table(entry, "", "[defaults] on a line of its own") {
        if !setting(reader, entry, &mut settings) {
            reader.unknown(entry, DEFAULTS);
        }
    }
    finish(reader, &mut settings);
    settings
}

/// Reads one key into the settings; false if there is no such key.
pub fn setting(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, into: &mut Settings) -> bool {
    let setting = match entry.key {
        "protocol" => {
            into.protocol = reader.named(entry, "protocol = \"udp\"", &PROTOCOLS).or(into.protocol);
            None
        }
        "balance" => reader.named(entry, "balance = \"least-connections\"", &value::BALANCES).map(Setting::Balance),
        "engine" => reader.named(entry, "engine = \"auto\"", &value::ENGINES).map(Setting::Engine),
        "buffer" => reader.parsed(entry, "buffer = \"64KiB\"", value::buffer).map(Setting::Buffer),
        "proxy-in" => reader.flag(entry).map(Setting::ProxyIn),
        "proxy-from" => Some(Setting::ProxyFrom(networks(reader, entry))),
        "proxy-out" => reader.named(entry, "proxy-out = \"v2\"", &value::PROXY_VERSIONS).map(Setting::ProxyOut),
        "transparent" => reader.flag(entry).map(Setting::Transparent),
        "source" => reader.parsed(entry, "source = \"192.0.2.1\"", source).map(Setting::Source),
        "allow" | "deny" | "access" => {
            access(reader, entry, &mut into.access);
            None
        }
        "limits" | "timeouts" | "sockets" | "health" => {
            table(reader, entry, into);
            None
        }
        _ => return false,
    };
    into.settings.extend(setting.map(|setting| At::new(setting, entry.at)));
    true
}

/// To be called when all keys were read.
pub fn finish(reader: &mut Reader<'_, '_>, settings: &mut Settings) {
    let AccessKeys { allow, mut deny, access, at, used } = std::mem::take(&mut settings.access);
    if used.is_empty() {
        return;
    }
    if used.contains(&"access") && used.len() > 1 {
        let what = format!(
            "`access` and `{}` cannot be used together",
            used.iter().find(|k| **k != "access").unwrap_or(&"allow")
        );
        reader
            .mistakes
            .add(at, ValueError::new(what, "write all rules into `access`, as \"allow 10.0.0.0/8\" and \"deny all\""));
        return;
    }
    if used.contains(&"access") {
        check_access(&access, "the first rule that matches decides: put the narrower rule first", reader.mistakes);
        deny = access;
    } else {
        deny.extend(allow);
        let hint =
            "deny goes before allow; to have the order yours, write access = [\"allow 10.0.0.0/8\", \"deny all\"]";
        check_access(&deny, hint, reader.mistakes);
    }
    let rules = deny.into_iter().map(|rule| rule.value).collect();
    settings.settings.push(At::new(Setting::Access(rules), at));
}

fn access(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, keys: &mut AccessKeys) {
    if keys.used.is_empty() {
        keys.at = entry.at;
    }
    let (key, list, example) = match entry.key {
        "allow" => ("allow", &mut keys.allow, "allow = [\"10.0.0.0/8\", \"192.0.2.7\"]"),
        "deny" => ("deny", &mut keys.deny, "deny = [\"10.0.0.0/8\", \"192.0.2.7\"]"),
        _ => ("access", &mut keys.access, "access = [\"allow 10.0.0.0/8\", \"deny all\"]"),
    };
    keys.used.push(key);
    for At { value: text, at } in reader.strings(entry, example) {
        let (allow, network) = match key {
            "access" => match rule(&text) {
                Ok(rule) => rule,
                Err(wrong) => {
                    reader.mistakes.add(at, wrong);
                    continue;
                }
            },
            _ => (key == "allow", text.as_str()),
        };
        let networks = reader.mistakes.keep(at, networks::networks(network).map_err(|wrong| named(entry, wrong)));
        list.extend(networks.into_iter().flatten().map(|network| At::new(AccessRule { allow, network }, at)));
    }
}

/// A list of networks that must not be empty.
fn networks(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Vec<IpNet> {
    const EXAMPLE: &str = "proxy-from = [\"10.0.0.5\", \"10.1.0.0/16\"]";
    if matches!(entry.value.get_ref(), DeValue::Array(items) if items.is_empty()) {
        let wrong =
            ValueError::new(format!("`{}` is empty", entry.path()), format!("name at least one, as in {EXAMPLE}"));
        reader.mistakes.add(entry.value.span().start, wrong);
    }
    let mut networks = Vec::new();
    for At { value: text, at } in reader.strings(entry, EXAMPLE) {
        let network = networks::networks(&text).map_err(|wrong| named(entry, wrong));
        networks.extend(reader.mistakes.keep(at, network).into_iter().flatten());
    }
    networks
}

fn rule(text: &str) -> Result<(bool, &str), ValueError> {
    match text.split_once(' ').map(|(word, network)| (word, network.trim())) {
        Some(("allow", network)) => Ok((true, network)),
        Some(("deny", network)) => Ok((false, network)),
        _ => Err(ValueError::new(
            format!("{} is not a rule", quote(text)),
            "write \"allow 10.0.0.0/8\", \"deny 192.0.2.7\" or \"deny all\"",
        )),
    }
}

fn source(text: &str) -> Result<IpAddr, ValueError> {
    text.parse().map_err(|_| {
        ValueError::new(
            format!("{} is not an address", quote(text)),
            "write an address of this host without a port, as 192.0.2.1",
        )
    })
}

fn table(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, into: &mut Settings) {
    let (above, keys, example): (_, &[&str], _) = match entry.key {
        "limits" => ("limits.", &LIMITS, "limits = { connections = 1000 }"),
        "timeouts" => ("timeouts.", &TIMEOUTS, "timeouts = { idle = \"1h\" }"),
        "sockets" => ("sockets.", &SOCKETS, "sockets = { keepalive = \"60s\" }"),
        _ => ("health.", &HEALTH, "health = { fails = 3, pause = \"10s\" }"),
    };
    for entry in &reader.table(entry, above, example) {
        if !keys.contains(&entry.key) {
            reader.unknown(entry, keys);
            continue;
        }
        let setting = match above {
            "limits." => limit(reader, entry),
            "timeouts." => timeout(reader, entry),
            "sockets." => socket(reader, entry),
            _ => health(reader, entry),
        };
        into.settings.extend(setting.map(|setting| At::new(setting, entry.at)));
    }
}

fn limit(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Option<Setting> {
    match entry.key {
        "connections" => reader.parsed(entry, "connections = 1000", values::count).map(Setting::Connections),
        "per-source" => reader.parsed(entry, "per-source = 50", values::count).map(Setting::PerSource),
        "rate" => reader.parsed(entry, "rate = 500", values::rate).map(Setting::Rate),
        _ => reader.parsed(entry, "bandwidth = \"10MiB/s\"", values::bandwidth).map(Setting::Bandwidth),
    }
}

fn timeout(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Option<Setting> {
    match entry.key {
        "connect" => reader.parsed(entry, "connect = \"5s\"", values::positive_duration).map(Setting::Connect),
        "idle" => reader.parsed(entry, "idle = \"1h\"", values::duration_or_off).map(Setting::Idle),
        "linger" => reader.parsed(entry, "linger = \"60s\"", values::positive_duration).map(Setting::Linger),
        _ => reader.parsed(entry, "header = \"3s\"", values::positive_duration).map(Setting::Header),
    }
}

fn socket(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Option<Setting> {
    // The kernel doubles the value into an int.
    let buffer = |text: &str| values::size_within(text, 2 << 10, 1 << 30).map(|bytes| bytes as u32);
    match entry.key {
        "nodelay" => reader.flag(entry).map(Setting::Nodelay),
        "receive-buffer" => reader.parsed(entry, "receive-buffer = \"4MiB\"", buffer).map(Setting::ReceiveBuffer),
        "send-buffer" => reader.parsed(entry, "send-buffer = \"4MiB\"", buffer).map(Setting::SendBuffer),
        "keepalive" => match entry.value.get_ref() {
            DeValue::Boolean(false) => Some(Setting::Keepalive(None)),
            _ => reader.parsed(entry, "keepalive = \"60s\"", keepalive).map(Setting::Keepalive),
        },
        "user-timeout" => match entry.value.get_ref() {
            DeValue::Boolean(false) => Some(Setting::UserTimeout(None)),
            _ => reader.parsed(entry, "user-timeout = \"30s\"", user_timeout).map(Setting::UserTimeout),
        },
        "mptcp" => reader.flag(entry).map(Setting::Mptcp),
        "fast-open" => reader.flag(entry).map(Setting::FastOpen),
        _ => reader.parsed(entry, "backlog = 4096", backlog).map(Setting::Backlog),
    }
}

/// TCP_KEEPIDLE counts whole seconds, at most 32,767 (MAX_TCP_KEEPIDLE of the kernel).
fn keepalive(text: &str) -> Result<Option<std::time::Duration>, ValueError> {
    match values::duration_or_off(text)? {
        Some(time) if time.subsec_nanos() > 0 || time.as_secs() > 32_767 => Err(ValueError::new(
            format!("{} cannot be set", quote(text)),
            "the kernel takes whole seconds from 1s to 32767s, or off",
        )),
        time => Ok(time),
    }
}

/// TCP_USER_TIMEOUT counts milliseconds in an int.
fn user_timeout(text: &str) -> Result<Option<std::time::Duration>, ValueError> {
    match values::duration_or_off(text)? {
        Some(time) if time.as_millis() == 0 || time.as_millis() > i32::MAX as u128 => Err(ValueError::new(
            format!("{} cannot be set", quote(text)),
            "the kernel takes times from 1ms to 24d, or off",
        )),
        time => Ok(time),
    }
}

fn backlog(text: &str) -> Result<u32, ValueError> {
    match values::count(text) {
        Ok(length) if length <= 65_535 => Ok(length),
        _ => Err(ValueError::new(format!("{} is not a length of a queue", quote(text)), "choose from 1 to 65535")),
    }
}

fn health(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Option<Setting> {
    let number = |text: &str| match text.parse::<u32>() {
        Ok(number) => Ok(number),
        Err(_) => {
            Err(ValueError::new(format!("{} is not a whole number", quote(text)), "write a number, or 0 for never"))
        }
    };
    match entry.key {
        "fails" => reader.parsed(entry, "fails = 3", number).map(Setting::Fails),
        "pause" => reader.parsed(entry, "pause = \"10s\"", values::positive_duration).map(Setting::Pause),
        _ => match entry.value.get_ref() {
            DeValue::Boolean(on) => Some(Setting::Check(on.then(Check::default))),
            _ => check(reader, entry),
        },
    }
}

fn check(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>) -> Option<Setting> {
    let mut check = Check::default();
    let mut timeout = None;
    for entry in &reader.table(entry, "health.check.", "check = { interval = \"5s\", timeout = \"2s\" }") {
        match entry.key {
            "interval" => {
                check.interval = reader.parsed(entry, "interval = \"5s\"", interval).unwrap_or(check.interval)
            }
            "timeout" => {
                timeout =
                    reader.parsed(entry, "timeout = \"2s\"", values::positive_duration).map(|t| At::new(t, entry.at))
            }
            "rise" => check.rise = reader.parsed(entry, "rise = 2", values::count).unwrap_or(check.rise),
            "fall" => check.fall = reader.parsed(entry, "fall = 3", values::count).unwrap_or(check.fall),
            _ => reader.unknown(entry, &CHECK),
        }
    }
    check.timeout = timeout.map_or(check.timeout.min(check.interval), |t| t.value);
    if let Some(timeout) = timeout.filter(|t| t.value > check.interval) {
        let wrong =
            ValueError::new("the check's timeout is longer than its interval", "make the timeout the shorter one");
        reader.mistakes.add(timeout.at, wrong);
    }
    Some(Setting::Check(Some(check)))
}

/// Faster checks than this are a load of their own.
fn interval(text: &str) -> Result<std::time::Duration, ValueError> {
    match values::duration(text)? {
        time if time.as_millis() < 100 => {
            Err(ValueError::new(format!("{} is too short", quote(text)), "the shortest interval is 100ms"))
        }
        time => Ok(time),
    }
}
