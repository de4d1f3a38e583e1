//! Addresses as people write them, with port ranges.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::model::Endpoint;
use crate::text::quote;
use crate::values::ValueError;

/// An address with one port or a range of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The host or the socket.
    pub host: Host,
    /// The ports; 0 to 0 for a Unix socket.
    pub ports: Ports,
}

/// A host, or the path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// An address, and the interface index of a link-local one (otherwise 0).
    Ip(IpAddr, u32),
    /// A name to resolve.
    Name(String),
    /// A Unix stream socket: a path, or an abstract name after `@`.
    Unix(String),
}

/// Ports from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// The first port.
    pub first: u16,
    /// The last port, which is not below the first.
    pub last: u16,
}

impl Ports {
    /// One port.
    pub fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// The number of ports.
    pub fn count(self) -> usize {
        usize::from(self.last - self.first) + 1
    }
}

impl Spec {
    /// The address with the port at this index of the range.
    pub fn endpoint(&self, index: usize) -> Endpoint {
        let port = self.ports.first.saturating_add(index as u16).min(self.ports.last);
        match &self.host {
            Host::Ip(IpAddr::V6(ip), scope) => Endpoint::Ip(SocketAddr::V6(SocketAddrV6::new(*ip, port, 0, *scope))),
            Host::Ip(ip, _) => Endpoint::Ip(SocketAddr::new(*ip, port)),
            Host::Name(name) => Endpoint::Name(name.clone(), port),
            Host::Unix(path) => Endpoint::Unix(path.clone()),
        }
    }

    /// Whether it is a Unix socket.
    pub fn is_unix(&self) -> bool {
        matches!(self.host, Host::Unix(_))
    }
}

/// An address to listen on: `127.0.0.1:9000`, `[::1]:9000`, `localhost:9000`, `127.0.0.1:9000-9010`, `unix:/run/x.sock`,
/// or `:9000`, which is every address of the host and so two: `0.0.0.0:9000` and `[::]:9000`. Port 0 lets the kernel
/// choose.
pub fn listen(text: &str) -> Result<Vec<Spec>, ValueError> {
    let everywhere = text.starts_with(':') && !text.starts_with("::") || text.starts_with("*:");
    let spec = spec(text, "127.0.0.1:9000, [::1]:9000, :9000 or unix:/run/x.sock", |host| match host {
        "" | "*" if everywhere => Ok(Host::Ip(Ipv4Addr::UNSPECIFIED.into(), 0)),
        host => self::host(host),
    })?;
    check_listen_ports(&spec)?;
    let v6 = everywhere.then(|| Spec { host: Host::Ip(Ipv6Addr::UNSPECIFIED.into(), 0), ports: spec.ports });
    Ok([spec].into_iter().chain(v6).collect())
}

/// An error for a range that begins with port 0.
pub fn check_listen_ports(spec: &Spec) -> Result<(), ValueError> {
    if spec.ports.first == 0 && spec.ports.last != 0 {
        return Err(ValueError::new(
            "a range of ports cannot begin with 0",
            "begin with 1, or write 0 alone for any free port",
        ));
    }
    Ok(())
}

/// An address to forward to: as [`listen`], but with a host and no port 0.
pub fn target(text: &str) -> Result<Spec, ValueError> {
    let spec =
        spec(text, "10.0.0.2:9001, [2001:db8::2]:9001, backend.example:9001 or unix:/run/x.sock", |host| match host {
            "" | "*" => Err(ValueError::new(
                format!("the target {} has no host", quote(text)),
                format!("name one, as in 127.0.0.1{}", text.trim_start_matches('*')),
            )),
            host => self::host(host),
        })?;
    check_target_ports(&spec)?;
    Ok(spec)
}

/// An error for port 0.
pub fn check_target_ports(spec: &Spec) -> Result<(), ValueError> {
    if spec.ports.first == 0 && !spec.is_unix() {
        return Err(ValueError::new(
            "a target cannot have port 0",
            "write the port that the target listens on, 1 to 65535",
        ));
    }
    Ok(())
}

/// A single IP address and port.
pub fn socket_address(text: &str) -> Result<SocketAddr, ValueError> {
    let specs = listen(text)?;
    match (specs.len(), specs[0].ports.count(), specs[0].endpoint(0)) {
        (1, 1, Endpoint::Ip(address)) => Ok(address),
        _ => Err(ValueError::new(
            format!("{} is not one address and port", quote(text)),
            "write it as 127.0.0.1:9100 or [::1]:9100",
        )),
    }
}

fn spec(text: &str, examples: &str, host: impl Fn(&str) -> Result<Host, ValueError>) -> Result<Spec, ValueError> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Spec { host: unix(path)?, ports: Ports::one(0) });
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let what =
            format!("{} is not an address: {} does not belong there", quote(text), quote(&format!("{scheme}://")));
        return Err(ValueError::new(what, url_hint(scheme, rest)));
    }
    if text.starts_with('/') {
        return Err(ValueError::new(
            format!("{} is not an address", quote(text)),
            format!("write unix:{text} for a Unix socket"),
        ));
    }
    let no_port = || {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let hint = if digits { format!("write 127.0.0.1:{text}") } else { format!("write it as {examples}") };
        ValueError::new(format!("{} has no port", quote(text)), hint)
    };
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (_, behind) = rest.split_once(']').ok_or_else(|| {
                ValueError::new(format!("{} has no `]`", quote(text)), "write an IPv6 address as [::1]:9000")
            })?;
            let port = behind.strip_prefix(':').ok_or_else(no_port)?;
            (&text[..text.len() - behind.len()], port)
        }
        None => text.rsplit_once(':').ok_or_else(no_port)?,
    };
    if let Some((digits, behind)) = port.split_once('/') {
        let hint = match behind {
            "udp" => format!("write {name}:{digits}, and protocol = \"udp\" in a file or --udp on the command line"),
            _ => format!("write {name}:{digits}"),
        };
        return Err(ValueError::new(format!("{} does not end with its port", quote(text)), hint));
    }
    if name.contains(':') && !name.starts_with('[') {
        let whole_is_address = text.parse::<Ipv6Addr>().is_ok();
        let hint = if whole_is_address { format!("write [{text}]:9000") } else { format!("write [{name}]:{port}") };
        return Err(ValueError::new(format!("{} has an IPv6 address without brackets", quote(text)), hint));
    }
    Ok(Spec { host: host(name)?, ports: ports(port)? })
}

/// The hint for a URL: to write its address without user, path and query, with the default port of the scheme if the URL has
/// none.
fn url_hint(scheme: &str, rest: &str) -> String {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let behind_host = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    let port = match scheme {
        _ if behind_host.contains(':') => "",
        "http" => ":80",
        "https" => ":443",
        _ => return format!("write {} alone, and its port behind a colon", quote(host)),
    };
    format!("write {} alone", quote(&format!("{host}{port}")))
}

/// A host without a port: an IPv4 address, an IPv6 address (with or without brackets), or a name.
pub fn host(text: &str) -> Result<Host, ValueError> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    if let Some(v6) = bare.or_else(|| text.contains(':').then_some(text)) {
        return ipv6(v6);
    }
    if let Ok(v4) = text.parse::<Ipv4Addr>() {
        return Ok(Host::Ip(v4.into(), 0));
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(ValueError::new(
            format!("{} is not an IPv4 address", quote(text)),
            "write four numbers from 0 to 255, as in 127.0.0.1",
        ));
    }
    name(text).map(Host::Name)
}

fn ipv6(text: &str) -> Result<Host, ValueError> {
    let (address, scope) = match text.split_once('%') {
        Some((address, scope)) => (address, Some(scope)),
        None => (text, None),
    };
    let ip: Ipv6Addr = address.parse().map_err(|_| {
        ValueError::new(format!("{} is not an IPv6 address", quote(text)), "write it as [::1] or [2001:db8::2]")
    })?;
    let scope = match scope.map(str::parse::<u32>) {
        None => 0,
        Some(Ok(scope)) => scope,
        Some(Err(_)) => {
            return Err(ValueError::new(
                format!("{} names an interface", quote(text)),
                format!("write its number, as in [{address}%2]; `ip link` prints it"),
            ));
        }
    };
    Ok(Host::Ip(ip.into(), scope))
}

/// A host name (RFC 1123), in which `_` is also allowed because it is in use.
fn name(text: &str) -> Result<String, ValueError> {
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    let labels = text.strip_suffix('.').unwrap_or(text);
    if labels.len() <= 253 && labels.split('.').all(label) {
        return Ok(text.to_owned());
    }
    Err(ValueError::new(
        format!("{} is neither an address nor a name", quote(text)),
        "names are made of letters, digits, `-` and `.`, as in backend.example",
    ))
}

/// One port or a range: `9000`, `9000-9010`.
pub fn ports(text: &str) -> Result<Ports, ValueError> {
    let wrong = || {
        ValueError::new(
            format!("{} is not a port", quote(text)),
            "ports are numbers from 1 to 65535, ranges are written as 9000-9010",
        )
    };
    let one = |t: &str| t.parse::<u16>().ok().filter(|_| !t.starts_with('+')).ok_or_else(wrong);
    let Some((first, last)) = text.split_once('-') else {
        return one(text).map(Ports::one);
    };
    let (first, last) = (one(first)?, one(last)?);
    if last < first {
        return Err(ValueError::new(
            format!("the range {} runs backwards", quote(text)),
            format!("write {last}-{first}"),
        ));
    }
    Ok(Ports { first, last })
}

/// The path of a Unix socket, or an abstract name after `@`.
pub fn unix(path: &str) -> Result<Host, ValueError> {
    // sun_path of sockaddr_un(7) has 108 bytes, the last of which ends the path.
    const LONGEST: usize = 107;
    if path.is_empty() || path == "@" {
        return Err(ValueError::new("the Unix socket has no path", "write it as unix:/run/x.sock or unix:@name"));
    }
    if path.contains('\0') {
        return Err(ValueError::new("the path of the Unix socket has a zero byte", "write it as unix:/run/x.sock"));
    }
    if path.len() > LONGEST {
        return Err(ValueError::new(
            format!("the path of the Unix socket has {} bytes", path.len()),
            format!("the kernel takes at most {LONGEST}: choose a shorter one"),
        ));
    }
    Ok(Host::Unix(path.to_owned()))
}
