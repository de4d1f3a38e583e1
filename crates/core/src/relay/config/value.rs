//! Values that only the relay has. Each parser says what a right value looks like.
use super::model::{Balance, EngineChoice, LogTo, ProxyVersion};
use crate::text::quote;
use crate::values::{ValueError, size_within};

/// A copy buffer's ceiling in bytes.
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

/// A user, and optionally a group behind a colon.
pub fn user(text: &str) -> Result<String, ValueError> {
    let fits =
        |name: &str| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control() || c == ':');
    let (user, group) = text.split_once(':').unwrap_or((text, "x"));
    if fits(user) && fits(group) {
        return Ok(text.to_owned());
    }
    Err(ValueError::new(format!("{} is not a user", quote(text)), "write it as nobody or nobody:nogroup"))
}

/// Where the lines of closed connections go: `stdout`, `off`, or a path.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_bounds() {
        assert!(threads("0").is_err() && threads("1025").is_err());
    }
}
