//! Checks for settings that cannot be used together or do not fit a listener.
use super::model::{Endpoint, Protocol};
use super::table::Listener;
use crate::values::ValueError;

/// The error for `source` together with `transparent`, which is the same at either setting.
pub fn two_sources(key: &str, listener: &Listener) -> Option<ValueError> {
    let either = ["source", "transparent"].contains(&key);
    (either && listener.transparent && listener.source.is_some()).then(|| {
        ValueError::new(
            "`source` and `transparent` cannot be used together",
            "leave one out: transparent connects from the client's address, source from a fixed one",
        )
    })
}

/// The error for `proxy-in` without `proxy-from`. It is an error in `[defaults]` too: without it the listener would serve
/// clients without PROXY headers. A list that could not be read has been reported already.
pub fn lacks_proxies(key: &str, listener: &Listener) -> Option<ValueError> {
    let takes = key == "proxy-in" && listener.proxy_in && listener.protocol == Protocol::Tcp;
    let has_address = !matches!(listener.listen, Endpoint::Unix(_));
    (takes && has_address && listener.proxy_from.is_empty()).then(|| {
        ValueError::new(
            "`proxy-in` needs `proxy-from`: without it, every client could say that it is another one",
            "name the proxies that clients come through, as in proxy-from = [\"10.0.0.5\", \"10.1.0.0/16\"]",
        )
    })
}

/// The error of a value that does not fit the rest of the listener.
pub fn misfit(key: &str, listener: &Listener) -> Option<ValueError> {
    match key {
        "proxy-from" => proxy_from(listener),
        "transparent" => transparent(listener),
        "source" => source(listener),
        _ => None,
    }
}

/// The error for `proxy-from` without `proxy-in`, or where clients have no address.
fn proxy_from(listener: &Listener) -> Option<ValueError> {
    if !listener.proxy_in {
        let hint = "set proxy-in if clients come through proxies that send PROXY headers, or leave it out";
        return Some(ValueError::new("`proxy-from` cannot be used without `proxy-in`", hint));
    }
    matches!(listener.listen, Endpoint::Unix(_)).then(|| {
        ValueError::new(
            "`proxy-from` cannot be used with a Unix listener: its clients have no address",
            "leave it out: who may connect is a matter of the rights of the socket and its directory",
        )
    })
}

/// The error for `transparent` with a Unix target.
fn transparent(listener: &Listener) -> Option<ValueError> {
    let unix = listener.targets.iter().any(|t| matches!(t.endpoint, Endpoint::Unix(_)));
    unix.then(|| unix_target("transparent"))
}

/// The error for `source` with Unix targets only, or with targets of the other family only.
fn source(listener: &Listener) -> Option<ValueError> {
    let source = listener.source?;
    if !listener.targets.is_empty() && listener.targets.iter().all(|t| matches!(t.endpoint, Endpoint::Unix(_))) {
        return Some(unix_target("source"));
    }
    let families: Vec<bool> = listener
        .targets
        .iter()
        .filter_map(|t| match &t.endpoint {
            Endpoint::Ip(address) => Some(address.is_ipv4()),
            // A name may have addresses of both families.
            Endpoint::Name(..) => Some(source.is_ipv4()),
            Endpoint::Unix(_) => None,
        })
        .collect();
    let reaches_none = !families.is_empty() && !families.contains(&source.is_ipv4());
    reaches_none.then(|| {
        let (own, other) = if source.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
        ValueError::new(
            format!("`source` is an {own} address, but all targets are {other}"),
            format!("write an {other} address of this host"),
        )
    })
}

fn unix_target(key: &str) -> ValueError {
    ValueError::new(format!("`{key}` cannot be used with a Unix target"), "leave it out: a Unix socket has no address")
}
