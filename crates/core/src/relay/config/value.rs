//! Values as people write them: times, sizes, rates, networks. Each parser says what a right value looks like.
use std::net::IpAddr;
use std::time::Duration;

use super::mistake::{Wrong, quote};
use super::model::{Balance, EngineChoice, LogTo, ProxyVersion};

/// The longest time that can be asked for.
const MAX_TIME: Duration = Duration::from_secs(365 * 86_400);

/// A length of time: a number and `ms`, `s`, `m`, `h` or `d`; at most a year.
pub fn duration(text: &str) -> Result<Duration, Wrong> {
    let wrong = || Wrong::new(format!("{} is not a length of time", quote(text)), "write it as 500ms, 30s, 5m or 1h");
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let unit_s = match unit {
        "ms" => 0.001,
        "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "" if number == 0.0 => 1.0,
        "" => {
            let hint = format!("write {text}s for seconds, or {text}ms");
            return Err(Wrong::new(format!("{} has no unit of time", quote(text)), hint));
        }
        _ => return Err(wrong()),
    };
    if number * unit_s > MAX_TIME.as_secs_f64() {
        return Err(Wrong::new(format!("{} is too long", quote(text)), "the longest time is a year, 365d"));
    }
    // Rounded to whole microseconds, so that 0.3s is what it says.
    Ok(Duration::from_micros((number * unit_s * 1e6).round() as u64))
}

/// A length of time that is not zero.
pub fn some_time(text: &str) -> Result<Duration, Wrong> {
    match duration(text)? {
        Duration::ZERO => Err(Wrong::new("the time must be more than zero", "write it as 500ms, 30s, 5m or 1h")),
        time => Ok(time),
    }
}

/// A length of time, or `off` (also `0s`).
pub fn time_or_off(text: &str) -> Result<Option<Duration>, Wrong> {
    if text == "off" {
        return Ok(None);
    }
    match duration(text) {
        Ok(time) => Ok((time > Duration::ZERO).then_some(time)),
        Err(wrong) => Err(Wrong::new(wrong.what, format!("{}, or off", wrong.hint))),
    }
}

/// A number of bytes: `65536`, `64KiB` (also `64K`: 1024 each) or `64kB` (1000 each).
pub fn size(text: &str) -> Result<u64, Wrong> {
    let scaled = number_and_unit(text).and_then(|(number, unit)| Some(number * unit_bytes(unit)?));
    match scaled {
        Some(bytes) if bytes <= MAX_EXACT => Ok(bytes.round() as u64),
        _ => Err(Wrong::new(
            format!("{} is not a number of bytes", quote(text)),
            "write it as 64KiB, 1MiB or a plain number of bytes",
        )),
    }
}

/// A number of bytes between two bounds.
pub fn size_within(text: &str, min: u64, max: u64) -> Result<u64, Wrong> {
    let bytes = size(text)?;
    if (min..=max).contains(&bytes) {
        return Ok(bytes);
    }
    let why = if bytes < min { "small" } else { "large" };
    Err(Wrong::new(
        format!("{} is too {why}", quote(text)),
        format!("choose from {} to {}", bytes_text(min), bytes_text(max)),
    ))
}

/// A copy buffer's ceiling in bytes.
pub fn buffer(text: &str) -> Result<usize, Wrong> {
    size_within(text, 1 << 10, 16 << 20).map(|bytes| bytes as usize)
}

/// Bytes a second, from `10MiB/s`, `10MB/s` or `100Mbit/s`.
pub fn bandwidth(text: &str) -> Result<u64, Wrong> {
    let wrong = || {
        Wrong::new(
            format!("{} is not a bandwidth", quote(text)),
            "write bytes a second as 10MiB/s, or bits a second as 100Mbit/s",
        )
    };
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let unit = unit.strip_suffix("/s").ok_or_else(wrong)?;
    let scale = match unit.strip_suffix("bit") {
        Some("") => 0.125,
        Some("k" | "K") => 125.0,
        Some("M") => 125e3,
        Some("G") => 125e6,
        Some(_) => return Err(wrong()),
        None => unit_bytes(unit).filter(|_| !unit.is_empty()).ok_or_else(wrong)?,
    };
    let bytes_per_s = (number * scale).round();
    match bytes_per_s {
        b if b < 1.0 => Err(Wrong::new(format!("{} lets nothing pass", quote(text)), "leave it out for no limit")),
        b if b > MAX_EXACT => Err(wrong()),
        b => Ok(b as u64),
    }
}

/// A number a second: `100` or `100/s`.
pub fn rate(text: &str) -> Result<u32, Wrong> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    count(number).map_err(|_| {
        Wrong::new(format!("{} is not a rate", quote(text)), "write how many a second, from 1, as 100 or 100/s")
    })
}

/// A whole number from 1.
pub fn count(text: &str) -> Result<u32, Wrong> {
    match text.parse::<u32>() {
        Ok(number) if number > 0 && !text.starts_with('+') => Ok(number),
        _ => Err(Wrong::new(
            format!("{} is not a whole number from 1", quote(text)),
            format!("write a number such as 100; the largest is {}", u32::MAX),
        )),
    }
}

/// A number of worker threads.
pub fn threads(text: &str) -> Result<u16, Wrong> {
    match text.parse::<u16>() {
        Ok(number) if (1..=1024).contains(&number) => Ok(number),
        _ => Err(Wrong::new(
            format!("{} is not a number of threads", quote(text)),
            "choose from 1 to 1024, or leave it out for one per CPU",
        )),
    }
}

/// Networks: `10.0.0.0/8`, an address, or `all`, which is every address of both families.
pub fn networks(text: &str) -> Result<Vec<(IpAddr, u8)>, Wrong> {
    if text == "all" {
        return Ok(vec![("0.0.0.0".parse().expect("an address"), 0), ("::".parse().expect("an address"), 0)]);
    }
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(ip) = address.parse::<IpAddr>() else {
        return Err(Wrong::new(
            format!("{} is not an address or a network", quote(text)),
            "write it as 10.0.0.0/8, 192.0.2.7, 2001:db8::/32 or all",
        ));
    };
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix.map(str::parse::<u8>) {
        None => longest,
        Some(Ok(prefix)) if prefix <= longest => prefix,
        Some(_) => {
            let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(Wrong::new(
                format!("{} is not a network: its prefix is not 0 to {longest}", quote(text)),
                format!("an {family} prefix is a number from 0 to {longest}, as in {address}/{longest}"),
            ));
        }
    };
    let network = masked(ip, prefix);
    if network != ip {
        return Err(Wrong::new(
            format!("{} has bits set behind its prefix", quote(text)),
            format!("write {network}/{prefix} for the network, or {ip} for the one address"),
        ));
    }
    Ok(vec![(network, prefix)])
}

/// An address with the bits behind the prefix cleared.
pub fn masked(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

/// A user, and optionally a group behind a colon.
pub fn user(text: &str) -> Result<String, Wrong> {
    let fits =
        |name: &str| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control() || c == ':');
    let (user, group) = text.split_once(':').unwrap_or((text, "x"));
    if fits(user) && fits(group) {
        return Ok(text.to_owned());
    }
    Err(Wrong::new(format!("{} is not a user", quote(text)), "write it as nobody or nobody:nogroup"))
}

/// Where the lines of closed connections go: `stdout`, `off`, or a path.
pub fn log(text: &str) -> Result<LogTo, Wrong> {
    match text {
        "stdout" | "-" => Ok(LogTo::Stdout),
        "off" => Ok(LogTo::Nowhere),
        path if path.contains('/') && !path.ends_with('/') && !path.contains('\0') => Ok(LogTo::File(path.to_owned())),
        _ => Err(Wrong::new(
            format!("{} is not a place for a log", quote(text)),
            "write stdout, off, or a path such as /var/log/relay.json",
        )),
    }
}

/// The path of the control socket.
pub fn control(text: &str) -> Result<String, Wrong> {
    let path = text.strip_prefix("unix:").unwrap_or(text);
    super::address::unix(path).map(|_| path.to_owned())
}

/// The names of the engines.
pub const ENGINES: [(&str, EngineChoice); 5] = [
    ("auto", EngineChoice::Auto),
    ("copy", EngineChoice::Copy),
    ("splice", EngineChoice::Splice),
    ("uring", EngineChoice::Uring),
    ("sockmap", EngineChoice::Sockmap),
];

/// The names of the ways to choose a target.
pub const BALANCES: [(&str, Balance); 3] = [
    ("round-robin", Balance::RoundRobin),
    ("least-connections", Balance::LeastConnections),
    ("source-hash", Balance::SourceHash),
];

/// The names of the versions of the PROXY protocol; `off` undoes a default.
pub const PROXY_VERSIONS: [(&str, Option<ProxyVersion>); 3] =
    [("v1", Some(ProxyVersion::V1)), ("v2", Some(ProxyVersion::V2)), ("off", None)];

/// The name of a value in such a list.
pub fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    names.iter().find(|(_, v)| v == value).map_or("", |(name, _)| name)
}

/// A size as a person would write it.
pub fn bytes_text(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

/// Above 2^53 an f64 skips whole numbers.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

fn unit_bytes(unit: &str) -> Option<f64> {
    Some(match unit {
        "" | "B" => 1.0,
        "KiB" | "K" | "k" => 1024.0,
        "MiB" | "M" => 1024.0 * 1024.0,
        "GiB" | "G" => 1024.0 * 1024.0 * 1024.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    })
}

/// Digits, with a decimal point or without, and what follows them.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let starts_well = number.starts_with(|c: char| c.is_ascii_digit());
    starts_well.then(|| Some((number.parse().ok()?, unit.trim_start_matches(' '))))?
}
