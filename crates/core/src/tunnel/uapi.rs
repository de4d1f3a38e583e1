//! The configuration protocol of WireGuard in user space, which `wg` speaks over a Unix socket
//! (<https://www.wireguard.com/xplatform/>): lines of `key=value`, and an empty line at the end.
use std::fmt::Write;
use std::net::{SocketAddr, SocketAddrV6};
use std::str::FromStr;

use ipnet::IpNet;
use zeroize::Zeroizing;

use super::configure::{DeviceChange, DeviceState, PeerChange, PeerState, PrefixChange};
use super::host_port::host_port;
use super::keys::{KeyText, PublicKey};
use crate::networks;

/// The longest request that is read. A peer with ten prefixes takes about 600 bytes.
pub const REQUEST_LEN_MAX: usize = 64 << 20;

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The state, which [`write_state`] writes.
    Get,
    /// `report=1`, which is not in the protocol: what the caller reports beyond its state.
    Report,
    /// A change.
    Set(DeviceChange),
}

/// A request that cannot be carried out. Nothing of it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[allow(missing_docs)]
    #[error("line {line}: the key `{key}` is unknown here")]
    UnknownKey { line: usize, key: String },
    /// The value is not repeated: it may be a secret.
    #[allow(missing_docs)]
    #[error("line {line}: `{key}` has a value that it cannot have")]
    Value { line: usize, key: String },
    #[allow(missing_docs)]
    #[error("line {line} is not of the form `key=value`")]
    NoValue { line: usize },
    /// The first line is neither `get=1` nor `set=1`.
    #[error("the request is neither `get=1` nor `set=1`")]
    UnknownRequest,
}

impl RequestError {
    /// The number that the answer has: a negative errno, as wireguard-go sends it.
    pub fn errno(&self) -> i32 {
        const EINVAL: i32 = 22;
        const EPROTO: i32 = 71;
        match self {
            Self::UnknownKey { .. } | Self::Value { .. } => -EINVAL,
            Self::NoValue { .. } | Self::UnknownRequest => -EPROTO,
        }
    }
}

/// The length of the first request in `received`, with the empty line that ends it; `None` if more is to come. The first
/// `searched` bytes have been searched before.
pub fn request_len(received: &[u8], searched: usize) -> Option<usize> {
    let from = searched.saturating_sub(1);
    match received {
        [b'\n', ..] => Some(1),
        _ => received.get(from..)?.windows(2).position(|pair| pair == b"\n\n").map(|at| from + at + 2),
    }
}

/// Reads one request. `index` finds the number of an interface by its name, which an address of the link has as its zone.
pub fn parse_request(text: &str, index: &dyn Fn(&str) -> Option<u32>) -> Result<Request, RequestError> {
    let mut lines = text.lines().enumerate().take_while(|(_, line)| !line.is_empty());
    match lines.next() {
        Some((_, first @ ("get=1" | "report=1"))) => match lines.next() {
            None if first == "report=1" => Ok(Request::Report),
            None => Ok(Request::Get),
            Some((at, line)) => Err(RequestError::UnknownKey { line: at + 1, key: key_of(line) }),
        },
        Some((_, "set=1")) => {
            let mut change = DeviceChange::default();
            for (at, line) in lines {
                let (key, value) = line.split_once('=').ok_or(RequestError::NoValue { line: at + 1 })?;
                set(&mut change, key, value, index).map_err(|wrong| match wrong {
                    Wrong::Key => RequestError::UnknownKey { line: at + 1, key: key_of(line) },
                    Wrong::Value => RequestError::Value { line: at + 1, key: key_of(line) },
                })?;
            }
            Ok(Request::Set(change))
        }
        _ => Err(RequestError::UnknownRequest),
    }
}

/// The key of a line, cut to what a log can hold.
fn key_of(line: &str) -> String {
    line.split('=').next().unwrap_or_default().chars().take(40).collect()
}

enum Wrong {
    Key,
    Value,
}

fn set(change: &mut DeviceChange, key: &str, value: &str, index: &dyn Fn(&str) -> Option<u32>) -> Result<(), Wrong> {
    if key == "public_key" {
        change.peers.push(PeerChange::new(PublicKey::from_hex(value).ok_or(Wrong::Value)?));
        return Ok(());
    }
    match change.peers.last_mut() {
        Some(peer) if key == "endpoint" => {
            peer.endpoint = Some(endpoint(value, index).ok_or(Wrong::Value)?);
            Ok(())
        }
        Some(peer) => set_peer(peer, key, value),
        None => set_device(change, key, value),
    }
}

fn set_device(change: &mut DeviceChange, key: &str, value: &str) -> Result<(), Wrong> {
    match key {
        "private_key" => change.private_key = Some(secret(value)?),
        "listen_port" => change.listen_port = Some(number(value)?),
        "fwmark" => change.fwmark = Some(mark(value).ok_or(Wrong::Value)?),
        "replace_peers" => change.replace_peers = is_true(value)?,
        _ => return Err(Wrong::Key),
    }
    Ok(())
}

fn set_peer(peer: &mut PeerChange, key: &str, value: &str) -> Result<(), Wrong> {
    match key {
        "remove" => peer.remove = is_true(value)?,
        "update_only" => peer.update_only = is_true(value)?,
        "preshared_key" => peer.preshared_key = Some(secret(value)?),
        // Not in the protocol: a name that is looked up here.
        "endpoint_name" => peer.endpoint_name = Some(host_port(value).map_err(|_| Wrong::Value)?),
        "persistent_keepalive_interval" => peer.persistent_keepalive_s = Some(number(value)?),
        "replace_allowed_ips" => peer.replace_allowed_ips = is_true(value)?,
        "allowed_ip" => peer.allowed_ips.push(match value.strip_prefix('-') {
            Some(removed) => PrefixChange::Remove(prefix(removed)?),
            None => PrefixChange::Add(prefix(value)?),
        }),
        // The only version that there is.
        "protocol_version" if value == "1" => {}
        "protocol_version" => return Err(Wrong::Value),
        _ => return Err(Wrong::Key),
    }
    Ok(())
}

/// An address with a port. The zone of an IPv6 address is a number, or the name of an interface.
fn endpoint(value: &str, index: &dyn Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    if let Ok(address) = value.parse() {
        return Some(address);
    }
    let (ip, rest) = value.strip_prefix('[')?.split_once('%')?;
    let (zone, port) = rest.rsplit_once("]:")?;
    Some(SocketAddrV6::new(ip.parse().ok()?, port.parse().ok()?, 0, index(zone)?).into())
}

fn secret<K: KeyText>(value: &str) -> Result<K, Wrong> {
    K::from_hex(value).ok_or(Wrong::Value)
}

fn number<T: FromStr>(value: &str) -> Result<T, Wrong> {
    value.parse().map_err(|_| Wrong::Value)
}

fn is_true(value: &str) -> Result<bool, Wrong> {
    if value == "true" { Ok(true) } else { Err(Wrong::Value) }
}

/// A mark in decimal or, after `0x`, in hexadecimal digits; nothing for none.
pub(super) fn mark(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None if text.is_empty() => Some(0),
        None => text.parse().ok(),
    }
}

fn prefix(value: &str) -> Result<IpNet, Wrong> {
    let (address, len) = value.split_once('/').map_or((value, None), |(address, len)| (address, Some(len)));
    let ip = address.parse().map_err(|_| Wrong::Value)?;
    networks::with_prefix(ip, len).map(|prefix| prefix.trunc()).map_err(|_| Wrong::Value)
}

/// The request that asks for a change. It may have keys and is erased when it is dropped.
pub fn write_change(change: &DeviceChange) -> Zeroizing<String> {
    // Reserved at once: a string that grows would leave parts of the keys behind.
    let prefixes: usize = change.peers.iter().map(|peer| peer.allowed_ips.len()).sum();
    let mut text = Zeroizing::new(String::with_capacity(256 + 640 * change.peers.len() + 64 * prefixes));
    text.push_str("set=1\n");
    if let Some(key) = &change.private_key {
        line(&mut text, "private_key", key.to_hex().as_str());
    }
    change.listen_port.iter().for_each(|port| line(&mut text, "listen_port", port));
    change.fwmark.iter().for_each(|mark| line(&mut text, "fwmark", mark));
    if change.replace_peers {
        line(&mut text, "replace_peers", "true");
    }
    for peer in &change.peers {
        write_peer_change(&mut text, peer);
    }
    text.push('\n');
    text
}

fn write_peer_change(text: &mut String, peer: &PeerChange) {
    line(text, "public_key", peer.public_key.to_hex().as_str());
    for (key, set) in
        [("remove", peer.remove), ("update_only", peer.update_only), ("replace_allowed_ips", peer.replace_allowed_ips)]
    {
        if set {
            line(text, key, "true");
        }
    }
    if let Some(key) = &peer.preshared_key {
        line(text, "preshared_key", key.to_hex().as_str());
    }
    peer.endpoint.iter().for_each(|endpoint| line(text, "endpoint", endpoint));
    peer.endpoint_name.iter().for_each(|name| line(text, "endpoint_name", name));
    peer.persistent_keepalive_s.iter().for_each(|s| line(text, "persistent_keepalive_interval", s));
    for prefix in &peer.allowed_ips {
        match prefix {
            PrefixChange::Add(prefix) => line(text, "allowed_ip", prefix),
            PrefixChange::Remove(prefix) => line(text, "allowed_ip", format_args!("-{prefix}")),
        }
    }
}

/// The answer to [`Request::Get`]. It has the private key and is erased when it is dropped.
pub fn write_state(state: &DeviceState) -> Zeroizing<String> {
    // Reserved at once: a string that grows would leave parts of the keys behind.
    let prefixes: usize = state.peers.iter().map(|peer| peer.allowed_ips.len()).sum();
    let mut text = Zeroizing::new(String::with_capacity(256 + 640 * state.peers.len() + 64 * prefixes));
    if let Some(key) = &state.private_key {
        line(&mut text, "private_key", key.to_hex().as_str());
    }
    if state.listen_port != 0 {
        line(&mut text, "listen_port", state.listen_port);
    }
    if state.fwmark != 0 {
        line(&mut text, "fwmark", state.fwmark);
    }
    for peer in &state.peers {
        write_peer(&mut text, peer);
    }
    text.push_str(&answer(0));
    text
}

fn write_peer(text: &mut String, peer: &PeerState) {
    line(text, "public_key", peer.public_key.to_hex().as_str());
    line(text, "preshared_key", peer.preshared_key.to_hex().as_str());
    line(text, "protocol_version", 1);
    if let Some(endpoint) = peer.endpoint {
        line(text, "endpoint", endpoint);
    }
    let handshake = peer.last_handshake.unwrap_or_default();
    line(text, "last_handshake_time_sec", handshake.as_secs());
    line(text, "last_handshake_time_nsec", handshake.subsec_nanos());
    line(text, "tx_bytes", peer.traffic.sent_bytes);
    line(text, "rx_bytes", peer.traffic.received_bytes);
    line(text, "persistent_keepalive_interval", peer.persistent_keepalive_s);
    for prefix in &peer.allowed_ips {
        line(text, "allowed_ip", prefix);
    }
}

fn line(text: &mut String, key: &str, value: impl std::fmt::Display) {
    writeln!(text, "{key}={value}").expect("a string takes any text");
}

/// The end of every answer: 0, or the number of what is wrong ([`RequestError::errno`]).
pub fn answer(errno: i32) -> String {
    format!("errno={errno}\n\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::host_port::HostPort;
    use super::super::keys::{PresharedKey, PrivateKey};
    use super::super::link::Traffic;
    use super::super::peer_id::PeerId;
    use super::*;

    fn parse(text: &str) -> Result<Request, RequestError> {
        parse_request(text, &|name| (name == "eth0").then_some(3))
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        let v4 = (any::<[u8; 4]>(), 0u8..=32).prop_map(|(ip, len)| IpNet::new_assert(ip.into(), len).trunc());
        let v6 = (any::<[u8; 16]>(), 0u8..=128).prop_map(|(ip, len)| IpNet::new_assert(ip.into(), len).trunc());
        prop_oneof![v4, v6]
    }

    fn endpoint() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            any::<([u8; 4], u16)>().prop_map(SocketAddr::from),
            any::<([u8; 16], u16)>().prop_map(SocketAddr::from)
        ]
    }

    fn peer_change() -> impl Strategy<Value = PeerChange> {
        let prefixes = prop::collection::vec((prefix(), any::<bool>()), 0..4);
        let name = ("[a-z]{1,9}([.][a-z]{1,5})?|fe80::1%[a-z]{1,5}", any::<u16>());
        let name = name.prop_map(|(host, port)| HostPort { host, port });
        let optional = (
            prop::option::of(any::<[u8; 32]>()),
            (prop::option::of(endpoint()), prop::option::of(name)),
            prop::option::of(any::<u16>()),
        );
        (any::<[u8; 32]>(), any::<(bool, bool, bool)>(), optional, prefixes).prop_map(
            |(key, (remove, update_only, replace_allowed_ips), (preshared, (endpoint, name), keepalive), prefixes)| {
                PeerChange {
                    remove,
                    update_only,
                    preshared_key: preshared.map(PresharedKey::new),
                    endpoint,
                    endpoint_name: name,
                    persistent_keepalive_s: keepalive,
                    replace_allowed_ips,
                    allowed_ips: prefixes
                        .into_iter()
                        .map(|(prefix, add)| if add { PrefixChange::Add(prefix) } else { PrefixChange::Remove(prefix) })
                        .collect(),
                    ..PeerChange::new(PublicKey(key))
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_change_is_read_as_it_was_written(
            key in prop::option::of(any::<[u8; 32]>()), listen_port in any::<Option<u16>>(), fwmark in any::<Option<u32>>(),
            replace_peers in any::<bool>(), peers in prop::collection::vec(peer_change(), 0..4),
        ) {
            let private_key = key.map(PrivateKey::new);
            let change = DeviceChange { private_key, listen_port, fwmark, replace_peers, peers };
            let text = write_change(&change);
            prop_assert_eq!(request_len(text.as_bytes(), 0), Some(text.len()));
            prop_assert_eq!(parse(&text), Ok(Request::Set(change)));
        }

        #[test]
        fn a_state_is_the_change_that_leads_to_it(
            key in any::<[u8; 32]>(), listen_port in any::<u16>(), fwmark in any::<u32>(),
            peers in prop::collection::vec(peer_change(), 0..4),
        ) {
            let private_key = Some(PrivateKey::new(key));
            let peers: Vec<_> = peers.into_iter().map(|peer| PeerState {
                id: PeerId(1),
                public_key: peer.public_key,
                preshared_key: peer.preshared_key.unwrap_or_default(),
                endpoint: peer.endpoint,
                persistent_keepalive_s: peer.persistent_keepalive_s.unwrap_or_default(),
                allowed_ips: peer.allowed_ips.iter().map(|(PrefixChange::Add(prefix) | PrefixChange::Remove(prefix))| *prefix).collect(),
                last_handshake: Some(Duration::new(1_700_000_000, 5)),
                handshakes: 1,
                traffic: Traffic { received_bytes: 7, sent_bytes: 8, ..Traffic::default() },
                drops: Vec::new(),
            }).collect();
            let state = DeviceState { private_key: private_key.clone(), listen_port, fwmark, peers };
            let text = write_state(&state);
            let body = text.strip_suffix("errno=0\n\n").unwrap();
            let settings: String = body.split_inclusive('\n')
                .filter(|line| !["last_handshake", "tx_bytes", "rx_bytes"].iter().any(|key| line.starts_with(key))).collect();
            let Ok(Request::Set(change)) = parse(&format!("set=1\n{settings}\n")) else { panic!("{settings}") };
            prop_assert_eq!(change.private_key, private_key);
            prop_assert_eq!((change.listen_port.unwrap_or(0), change.fwmark.unwrap_or(0)), (listen_port, fwmark));
            for (change, state) in change.peers.iter().zip(&state.peers) {
                prop_assert_eq!(change.public_key, state.public_key);
                prop_assert_eq!(change.preshared_key.as_ref(), Some(&state.preshared_key));
                prop_assert_eq!(change.endpoint, state.endpoint);
                prop_assert_eq!(change.persistent_keepalive_s, Some(state.persistent_keepalive_s));
                let prefixes: Vec<_> = state.allowed_ips.iter().copied().map(PrefixChange::Add).collect();
                prop_assert_eq!(&change.allowed_ips, &prefixes);
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(get=1\n|set=1\n)?([a-z_]{0,20}=?[-0-9a-f/.:]{0,70}\n){0,5}\n?") {
            let _ = parse(&text);
            let _ = request_len(text.as_bytes(), 0);
        }
    }

    #[test]
    fn requests_that_are_wrong() {
        let key = "0".repeat(64);
        let value = |line: usize, key: &str| Err(RequestError::Value { line, key: key.to_owned() });
        let unknown = |line: usize, key: &str| Err(RequestError::UnknownKey { line, key: key.to_owned() });
        for (text, expected) in [
            ("", Err(RequestError::UnknownRequest)),
            ("get=2\n\n", Err(RequestError::UnknownRequest)),
            ("get=1\n\n", Ok(Request::Get)),
            ("get=1\nlisten_port=1\n\n", unknown(2, "listen_port")),
            ("set=1\n\n", Ok(Request::Set(DeviceChange::default()))),
            ("set=1\nlisten_port\n\n", Err(RequestError::NoValue { line: 2 })),
            ("set=1\nlisten_port=65536\n\n", value(2, "listen_port")),
            ("set=1\nprivate_key=00\n\n", value(2, "private_key")),
            ("set=1\nreplace_peers=false\n\n", value(2, "replace_peers")),
            ("set=1\nendpoint=1.2.3.4:5\n\n", unknown(2, "endpoint")),
            (&format!("set=1\npublic_key={key}\nlisten_port=1\n\n"), unknown(3, "listen_port")),
            (&format!("set=1\npublic_key={key}\nendpoint=localhost:1\n\n"), value(3, "endpoint")),
            (&format!("set=1\npublic_key={key}\nendpoint=[fe80::1%eth1]:1\n\n"), value(3, "endpoint")),
            (&format!("set=1\npublic_key={key}\nendpoint_name=a:b:1\n\n"), value(3, "endpoint_name")),
            (&format!("set=1\npublic_key={key}\nallowed_ip=10.0.0.0/33\n\n"), value(3, "allowed_ip")),
            (&format!("set=1\npublic_key={key}\nprotocol_version=2\n\n"), value(3, "protocol_version")),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        assert_eq!(RequestError::UnknownRequest.errno(), -71);
        assert_eq!(answer(value(2, "x").map_or_else(|error| error.errno(), |_: Request| 0)), "errno=-22\n\n");
    }

    #[test]
    fn a_request_ends_with_an_empty_line() {
        assert_eq!(request_len(b"get=1\n", 6), None);
        assert_eq!(request_len(b"get=1\n\nset=1\n\n", 6), Some(7));
        assert_eq!(request_len(b"\nget=1\n\n", 0), Some(1));
    }

    #[test]
    fn an_address_of_the_link_has_its_interface_by_name_or_number() {
        for (written, read) in [("[fe80::1%eth0]:51820", "[fe80::1%3]:51820"), ("[fe80::1%7]:1", "[fe80::1%7]:1")] {
            let text = format!("set=1\npublic_key={}\nendpoint={written}\n\n", "0".repeat(64));
            let Ok(Request::Set(change)) = parse(&text) else { panic!("{text}") };
            assert_eq!(change.peers[0].endpoint, read.parse().ok());
        }
    }

    #[test]
    fn values_as_wg_writes_them() {
        let key = "0".repeat(64);
        let text = format!("set=1\nfwmark=\npublic_key={key}\nallowed_ip=10.1.2.3/8\nallowed_ip=-fd00::1\n\n");
        let Ok(Request::Set(change)) = parse(&text) else { panic!() };
        assert_eq!(change.fwmark, Some(0));
        let prefix = |text: &str| text.parse::<IpNet>().unwrap();
        let expected = [PrefixChange::Add(prefix("10.0.0.0/8")), PrefixChange::Remove(prefix("fd00::1/128"))];
        assert_eq!(change.peers[0].allowed_ips, expected);
    }
}
