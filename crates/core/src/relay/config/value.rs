//! Parsers of values that only the relay has. The hint of each error says how a value is written.
use std::net::IpAddr;
use std::time::Duration;

use super::model::{Balance, EngineChoice, LogTo, ProxyVersion};
use crate::text::quote;
use crate::values::{ValueError, count, duration, duration_or_off, size_within};

/// The largest size of a copy buffer in bytes.
pub fn buffer(text: &str) -> Result<usize, ValueError> {
    size_within(text, 1 << 10, 16 << 20).map(|bytes| bytes as usize)
}

/// A number of worker threads.
pub fn threads(text: &str) -> Result<u16, ValueError> {
    match text.parse::<u16>() {
        Ok(number) if (1..=1024).contains(&number) => Ok(number),
        _ => Err(ValueError::new(
            format!("{} is not a number of threads", quote(text)),
            "choose from 1 to 1024, or leave it out for one per CPU",
        )),
    }
}

/// A user, and optionally a colon and a group.
pub fn user(text: &str) -> Result<String, ValueError> {
    let fits =
        |name: &str| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control() || c == ':');
    let (user, group) = text.split_once(':').unwrap_or((text, "x"));
    if fits(user) && fits(group) {
        return Ok(text.to_owned());
    }
    Err(ValueError::new(format!("{} is not a user", quote(text)), "write it as nobody or nobody:nogroup"))
}

/// The log of closed connections: `stdout`, `off`, or a path.
pub fn log(text: &str) -> Result<LogTo, ValueError> {
    match text {
        "stdout" | "-" => Ok(LogTo::Stdout),
        "off" => Ok(LogTo::Nowhere),
        path if path.contains('/') && !path.ends_with('/') && !path.contains('\0') => Ok(LogTo::File(path.to_owned())),
        _ => Err(ValueError::new(
            format!("{} is not a place for a log", quote(text)),
            "write stdout, off, or a path such as /var/log/relay.json",
        )),
    }
}

/// The path of the control socket.
pub fn control(text: &str) -> Result<String, ValueError> {
    let path = text.strip_prefix("unix:").unwrap_or(text);
    super::address::unix(path).map(|_| path.to_owned())
}

/// An address of this host.
pub fn source(text: &str) -> Result<IpAddr, ValueError> {
    text.parse().map_err(|_| {
        ValueError::new(
            format!("{} is not an address", quote(text)),
            "write an address of this host without a port, as 192.0.2.1",
        )
    })
}

/// A keepalive time: TCP_KEEPIDLE takes whole seconds up to 32,767 (MAX_TCP_KEEPIDLE of the kernel).
pub fn keepalive(text: &str) -> Result<Option<Duration>, ValueError> {
    match duration_or_off(text)? {
        Some(time) if time.subsec_nanos() > 0 || time.as_secs() > 32_767 => Err(ValueError::new(
            format!("{} cannot be set", quote(text)),
            "the kernel takes whole seconds from 1s to 32767s, or off",
        )),
        time => Ok(time),
    }
}

/// A time between keepalive probes: TCP_KEEPINTVL takes the same times (MAX_TCP_KEEPINTVL).
pub fn keepalive_interval(text: &str) -> Result<Duration, ValueError> {
    keepalive(text)?.ok_or_else(|| {
        ValueError::new(
            "probes have no interval without a time",
            "write a time from 1s to 32767s, or keepalive = \"off\"",
        )
    })
}

/// A number of keepalive probes: TCP_KEEPCNT takes up to 127 (MAX_TCP_KEEPCNT).
pub fn keepalive_count(text: &str) -> Result<u32, ValueError> {
    match count(text) {
        Ok(probes) if probes <= 127 => Ok(probes),
        _ => Err(ValueError::new(format!("{} is not a number of probes", quote(text)), "choose from 1 to 127")),
    }
}

/// A user timeout: TCP_USER_TIMEOUT takes milliseconds in an int.
pub fn user_timeout(text: &str) -> Result<Option<Duration>, ValueError> {
    match duration_or_off(text)? {
        Some(time) if time.as_millis() == 0 || time.as_millis() > i32::MAX as u128 => Err(ValueError::new(
            format!("{} cannot be set", quote(text)),
            "the kernel takes times from 1ms to 24d, or off",
        )),
        time => Ok(time),
    }
}

/// The length of an accept queue.
pub fn backlog(text: &str) -> Result<u32, ValueError> {
    match count(text) {
        Ok(length) if length <= 65_535 => Ok(length),
        _ => Err(ValueError::new(format!("{} is not a length of a queue", quote(text)), "choose from 1 to 65535")),
    }
}

/// An interval of checks, at least 100 ms: more frequent ones would be a load for the target.
pub fn interval(text: &str) -> Result<Duration, ValueError> {
    match duration(text)? {
        time if time.as_millis() < 100 => {
            Err(ValueError::new(format!("{} is too short", quote(text)), "the shortest interval is 100ms"))
        }
        time => Ok(time),
    }
}

/// A size of a socket's buffer, which the kernel doubles into an int.
pub fn socket_buffer(text: &str) -> Result<u32, ValueError> {
    size_within(text, 2 << 10, 1 << 30).map(|bytes| bytes as u32)
}

/// A number of failures; 0 is never.
pub fn fails(text: &str) -> Result<u32, ValueError> {
    text.parse().map_err(|_| {
        ValueError::new(format!("{} is not a whole number", quote(text)), "write a number, or 0 for never")
    })
}

/// The names of the engines.
pub static ENGINES: [(&str, EngineChoice); 3] =
    [("auto", EngineChoice::Auto), ("copy", EngineChoice::Copy), ("splice", EngineChoice::Splice)];

/// The names of the balancing methods.
pub static BALANCES: [(&str, Balance); 3] = [
    ("round-robin", Balance::RoundRobin),
    ("least-connections", Balance::LeastConnections),
    ("source-hash", Balance::SourceHash),
];

/// The names of the versions of the PROXY protocol; `off` overrides a default.
pub static PROXY_VERSIONS: [(&str, Option<ProxyVersion>); 3] =
    [("v1", Some(ProxyVersion::V1)), ("v2", Some(ProxyVersion::V2)), ("off", None)];

/// The name of a value in such a list; empty if it is not in it.
pub fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    names.iter().find(|(_, v)| v == value).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_bounds() {
        assert!(threads("0").is_err() && threads("1025").is_err());
    }

    #[test]
    fn keepalive_probes_have_the_bounds_of_the_kernel() {
        assert_eq!((keepalive_interval("1s"), keepalive_count("127")), (Ok(Duration::from_secs(1)), Ok(127)));
        assert!(["off", "0s", "500ms", "32768s", "1500ms"].iter().all(|text| keepalive_interval(text).is_err()));
        assert!(["0", "128", "x"].iter().all(|text| keepalive_count(text).is_err()));
    }
}
