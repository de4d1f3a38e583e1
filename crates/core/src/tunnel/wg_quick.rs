//! Files of `wg-quick`: the interface with its addresses and hooks, and the peers.
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::configure::{DeviceChange, PeerChange, PrefixChange};
use super::host_port::{HostPort, host_port};
use super::keys::{KeyText, PresharedKey, PrivateKey, PublicKey};
use super::uapi::mark;
use crate::networks;
use crate::text::{quote, suggest};
use crate::values::ValueError;

/// The contents of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct QuickConfig {
    /// Without one, a hook sets it.
    pub private_key: Option<PrivateKey>,
    pub listen_port: Option<u16>,
    /// 0 for none.
    pub fwmark: Option<u32>,
    /// Addresses of the interface, with their host bits.
    pub addresses: Vec<IpNet>,
    /// Servers and search domains, for hooks.
    pub dns: Vec<String>,
    pub mtu: Option<u16>,
    pub table: Table,
    /// Commands before the interface is set up, in which `%i` stands for its name.
    pub pre_up: Vec<String>,
    pub post_up: Vec<String>,
    pub pre_down: Vec<String>,
    pub post_down: Vec<String>,
    /// The file is written again with the state when the interface is closed.
    pub save_config: bool,
    pub peers: Vec<QuickPeer>,
}

/// The routing table to which routes to the peers are added.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Table {
    /// In the main table; a default route gets a table of its own and a rule.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// In a table with this number or name.
    Named(String),
}

/// A `[Peer]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QuickPeer {
    pub public_key: PublicKey,
    pub preshared_key: Option<PresharedKey>,
    pub allowed_ips: Vec<IpNet>,
    pub endpoint: Option<HostPort>,
    /// 0 for none.
    pub persistent_keepalive_s: Option<u16>,
}

/// A line that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {error}")]
pub struct FileError {
    /// From 1.
    pub line: usize,
    #[allow(missing_docs)]
    pub error: ValueError,
}

const INTERFACE_KEYS: [&str; 12] = [
    "privatekey",
    "listenport",
    "fwmark",
    "address",
    "dns",
    "mtu",
    "table",
    "preup",
    "postup",
    "predown",
    "postdown",
    "saveconfig",
];
const PEER_KEYS: [&str; 5] = ["publickey", "presharedkey", "allowedips", "endpoint", "persistentkeepalive"];

/// Reads a file.
pub fn parse_quick(text: &str) -> Result<QuickConfig, FileError> {
    let mut config = QuickConfig::default();
    let mut section = Section::None;
    for (at, line) in text.lines().enumerate() {
        let failed = |error| FileError { line: at + 1, error };
        // As wg-quick does it, also in commands.
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if line.starts_with('[') {
            section.close(&mut config)?;
            section = Section::open(line, at + 1).map_err(failed)?;
            continue;
        }
        let (key, value) = line.split_once('=').ok_or_else(|| {
            let what = format!("{} is neither a section nor a setting", quote(first_word(line)));
            failed(ValueError::new(what, "write it as `Key = value`"))
        })?;
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        match &mut section {
            Section::None => Err(outside(&key)),
            Section::Interface => set_interface(&mut config, &key, value),
            Section::Peer(peer, _) => set_peer(peer, &key, value),
        }
        .map_err(failed)?;
    }
    section.close(&mut config)?;
    Ok(config)
}

/// No more of a line than this is repeated: it may have a key in it.
fn first_word(line: &str) -> &str {
    line.split_whitespace().next().filter(|word| word.len() < 30).unwrap_or("the line")
}

fn outside(key: &str) -> ValueError {
    ValueError::new(format!("{} stands before any section", quote(key)), "begin the file with [Interface]")
}

/// A peer of which the key may still be to come.
#[derive(Default)]
struct Draft {
    public_key: Option<PublicKey>,
    preshared_key: Option<PresharedKey>,
    allowed_ips: Vec<IpNet>,
    endpoint: Option<HostPort>,
    persistent_keepalive_s: Option<u16>,
}

enum Section {
    None,
    Interface,
    /// With the line that it begins in.
    Peer(Box<Draft>, usize),
}

impl Section {
    fn open(line: &str, at: usize) -> Result<Self, ValueError> {
        match line.to_ascii_lowercase().as_str() {
            "[interface]" => Ok(Self::Interface),
            "[peer]" => Ok(Self::Peer(Box::default(), at)),
            _ => {
                let what = format!("the section {} is unknown", quote(line));
                Err(ValueError::new(what, "there are [Interface] and [Peer]"))
            }
        }
    }

    /// A complete peer goes into the configuration.
    fn close(&mut self, config: &mut QuickConfig) -> Result<(), FileError> {
        let Self::Peer(draft, line) = std::mem::replace(self, Self::None) else { return Ok(()) };
        let Draft { public_key, preshared_key, allowed_ips, endpoint, persistent_keepalive_s } = *draft;
        let public_key = public_key.ok_or_else(|| FileError {
            line,
            error: ValueError::new("the peer has no PublicKey", "add the line that `wg pubkey` prints for the peer"),
        })?;
        config.peers.push(QuickPeer { public_key, preshared_key, allowed_ips, endpoint, persistent_keepalive_s });
        Ok(())
    }
}

fn set_interface(config: &mut QuickConfig, key: &str, value: &str) -> Result<(), ValueError> {
    match key {
        "privatekey" => config.private_key = Some(PrivateKey::from_base64(value)?),
        "listenport" => config.listen_port = Some(port(value)?),
        "fwmark" => config.fwmark = Some(fwmark(value)?),
        "address" => each(value, |text| address(text).map(|address| config.addresses.push(address)))?,
        "dns" => each(value, |text| {
            config.dns.push(text.to_owned());
            Ok(())
        })?,
        "mtu" => config.mtu = Some(mtu(value)?),
        "table" => config.table = table(value)?,
        "preup" => config.pre_up.push(value.to_owned()),
        "postup" => config.post_up.push(value.to_owned()),
        "predown" => config.pre_down.push(value.to_owned()),
        "postdown" => config.post_down.push(value.to_owned()),
        "saveconfig" => config.save_config = yes(value)?,
        _ => return Err(unknown(key, "[Interface]", &INTERFACE_KEYS)),
    }
    Ok(())
}

fn set_peer(peer: &mut Draft, key: &str, value: &str) -> Result<(), ValueError> {
    match key {
        "publickey" => peer.public_key = Some(PublicKey::from_base64(value)?),
        "presharedkey" => peer.preshared_key = Some(PresharedKey::from_base64(value)?),
        "allowedips" => each(value, |text| address(text).map(|prefix| peer.allowed_ips.push(prefix.trunc())))?,
        "endpoint" => peer.endpoint = Some(host_port(value)?),
        "persistentkeepalive" => peer.persistent_keepalive_s = Some(keepalive(value)?),
        _ => return Err(unknown(key, "[Peer]", &PEER_KEYS)),
    }
    Ok(())
}

fn unknown(key: &str, section: &str, known: &[&str]) -> ValueError {
    ValueError::new(format!("{section} has no setting {}", quote(key)), suggest(key, known))
}

/// The parts of a list; an empty one has none.
fn each(list: &str, mut take: impl FnMut(&str) -> Result<(), ValueError>) -> Result<(), ValueError> {
    list.split(',').map(str::trim).filter(|text| !text.is_empty()).try_for_each(&mut take)
}

/// An address with or without a prefix length.
fn address(text: &str) -> Result<IpNet, ValueError> {
    let (ip, prefix) = text.split_once('/').map_or((text, None), |(ip, prefix)| (ip, Some(prefix)));
    let ip: IpAddr = ip.parse().map_err(|_| {
        let what = format!("{} is not an address or a network", quote(text));
        ValueError::new(what, "write it as 10.0.0.2/32 or fd00::2/128")
    })?;
    networks::with_prefix(ip, prefix)
}

fn port(text: &str) -> Result<u16, ValueError> {
    text.parse().map_err(|_| ValueError::new(format!("{} is not a port", quote(text)), "a port is 0 to 65535"))
}

fn fwmark(text: &str) -> Result<u32, ValueError> {
    let value = if text.eq_ignore_ascii_case("off") { Some(0) } else { mark(text).filter(|_| !text.is_empty()) };
    value.ok_or_else(|| {
        ValueError::new(format!("{} is not a mark", quote(text)), "write a number such as 51820 or 0xca6c, or off")
    })
}

fn mtu(text: &str) -> Result<u16, ValueError> {
    // An IPv4 host must take packets of 576 bytes (RFC 791).
    text.parse().ok().filter(|mtu| *mtu >= 576).ok_or_else(|| {
        ValueError::new(format!("{} is not an MTU", quote(text)), "an MTU is 576 to 65535; 1420 fits most paths")
    })
}

fn table(text: &str) -> Result<Table, ValueError> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(Table::Auto),
        "off" => Ok(Table::Off),
        // It becomes a word of a command.
        _ if text.is_empty() || text.starts_with('-') || !text.chars().all(|c| c.is_ascii_graphic()) => {
            let what = format!("{} is not a routing table", quote(text));
            Err(ValueError::new(what, "write a number, a name of /etc/iproute2/rt_tables, auto or off"))
        }
        _ => Ok(Table::Named(text.to_owned())),
    }
}

fn yes(text: &str) -> Result<bool, ValueError> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(ValueError::new(format!("{} is neither true nor false", quote(text)), "write true or false")),
    }
}

fn keepalive(text: &str) -> Result<u16, ValueError> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        let what = format!("{} is not a number of seconds", quote(text));
        ValueError::new(what, "write 1 to 65535, usually 25, or off")
    })
}

impl QuickConfig {
    /// Erases the keys: who has made a change of them ([`QuickConfig::device_change`]) needs them no longer.
    pub fn erase_keys(&mut self) {
        self.private_key = None;
        self.peers.iter_mut().for_each(|peer| peer.preshared_key = None);
    }

    /// The change that gives a device this configuration. `resolve` finds the address of an endpoint; where it finds none, the
    /// peer has none until one is set, its name is found, or the peer is heard of.
    pub fn device_change(&self, mut resolve: impl FnMut(&HostPort) -> Option<SocketAddr>) -> DeviceChange {
        let peers = self.peers.iter().map(|peer| PeerChange {
            preshared_key: peer.preshared_key.clone(),
            endpoint: peer.endpoint.as_ref().and_then(&mut resolve),
            endpoint_name: peer.endpoint.clone().filter(HostPort::is_name),
            persistent_keepalive_s: peer.persistent_keepalive_s,
            replace_allowed_ips: true,
            allowed_ips: peer.allowed_ips.iter().copied().map(PrefixChange::Add).collect(),
            ..PeerChange::new(peer.public_key)
        });
        DeviceChange {
            private_key: self.private_key.clone(),
            listen_port: self.listen_port,
            fwmark: self.fwmark,
            replace_peers: true,
            peers: peers.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "QiyOemIn17yhNQs+K7cnn3iXuHu2hUt4PGDoAxGuMHk=";

    #[test]
    fn a_file_with_everything() {
        let text = format!(
            "# a comment\n[Interface]\nPrivateKey = {KEY} # secret\naddress=10.0.0.1/24, fd00::1\nAddress = 192.0.2.1\n\
             DNS = 1.1.1.1, example.com\nListenPort = 51820\nFwMark = 0xca6c\nMTU=1380\nTable = 1234\n\
             PreUp = echo a\nPostUp = iptables -A FORWARD -i %i -j ACCEPT\nPostUp = echo b\nPreDown=c\nPostDown = d\n\
             SaveConfig = true\n\n[peer]\nPublicKey={KEY}\nPresharedKey = {KEY}\nAllowedIPs = 10.0.0.2/24,\nallowedips = ::/0\n\
             Endpoint = vpn.example.com:51820\nPersistentKeepalive = 25\n[Peer]\nPublicKey = {KEY}\n\
             Endpoint=[2001:db8::1]:1\nPersistentKeepalive = off\nAllowedIPs =\n",
        );
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let config = parse_quick(&text).unwrap();
        assert_eq!(config.addresses, [net("10.0.0.1/24"), net("fd00::1/128"), net("192.0.2.1/32")]);
        assert_eq!(config.dns, ["1.1.1.1", "example.com"]);
        assert_eq!((config.listen_port, config.fwmark, config.mtu), (Some(51820), Some(0xca6c), Some(1380)));
        assert_eq!(config.table, Table::Named("1234".to_owned()));
        assert_eq!(config.post_up, ["iptables -A FORWARD -i %i -j ACCEPT", "echo b"]);
        assert_eq!(
            (&config.pre_up[..], &config.pre_down[..], &config.post_down[..]),
            (&["echo a".to_owned()][..], &["c".to_owned()][..], &["d".to_owned()][..])
        );
        assert!(config.save_config && config.private_key.is_some());
        let [first, second] = &config.peers[..] else { panic!() };
        assert_eq!(first.allowed_ips, [net("10.0.0.0/24"), net("::/0")]);
        assert_eq!(first.endpoint, Some(HostPort { host: "vpn.example.com".to_owned(), port: 51820 }));
        assert_eq!((first.persistent_keepalive_s, second.persistent_keepalive_s), (Some(25), Some(0)));
        assert_eq!(second.endpoint, Some(HostPort { host: "2001:db8::1".to_owned(), port: 1 }));
        let change =
            config.device_change(|endpoint| endpoint.host.parse().ok().map(|ip: IpAddr| (ip, endpoint.port).into()));
        assert_eq!((change.peers[0].endpoint, &change.peers[0].endpoint_name), (None, &first.endpoint));
        assert_eq!(change.peers[1].endpoint_name, None, "an address stays what it is");
        assert_eq!(change.peers[1].endpoint, Some("[2001:db8::1]:1".parse().unwrap()));
        assert!(change.replace_peers && change.peers[0].replace_allowed_ips);
        assert_eq!(change.peers[0].allowed_ips.len(), 2);
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        for (text, line, what, hint) in [
            ("Address = 10.0.0.1", 1, "`address` stands before any section", "begin the file with [Interface]"),
            ("[Interfaces]", 1, "the section `[Interfaces]` is unknown", "there are [Interface] and [Peer]"),
            ("[Interface]\n\nAdress = 1", 3, "[Interface] has no setting `adress`", "did you mean `address`?"),
            ("[Interface]\nhello", 2, "`hello` is neither a section nor a setting", "write it as `Key = value`"),
            (
                "[Interface]\nPrivateKey = secret",
                2,
                "a key of 6 characters is not 32 bytes of base64",
                "write the 44 characters that `wg genkey`, `wg pubkey` or `wg genpsk` prints",
            ),
            (
                "[Interface]\nTable = 7 metric 1",
                2,
                "`7 metric 1` is not a routing table",
                "write a number, a name of /etc/iproute2/rt_tables, auto or off",
            ),
            (
                "[Peer]\nAllowedIPs = 10.0.0.0/8\n[Peer]",
                1,
                "the peer has no PublicKey",
                "add the line that `wg pubkey` prints for the peer",
            ),
            ("[Interface]\nMTU = 100", 2, "`100` is not an MTU", "an MTU is 576 to 65535; 1420 fits most paths"),
            (
                "[Peer]\nEndpoint = 2001:db8::1:51820",
                2,
                "`2001:db8::1:51820` is not an endpoint",
                "write it as vpn.example.com:51820, 192.0.2.1:51820 or [2001:db8::1]:51820",
            ),
        ] {
            let error = parse_quick(text).unwrap_err();
            assert_eq!((error.line, &*error.error.what, &*error.error.hint), (line, what, hint), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "(\\[(Interface|Peer)\\]\n)?((Address|AllowedIPs|Endpoint|PublicKey|FwMark|MTU|Table|x) ?=? ?[-0-9a-z:./,%=#]{0,30}\n){0,6}",
        ) {
            let _ = parse_quick(&text);
        }
    }
}
