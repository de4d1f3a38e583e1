//! The labels of series: which are chosen, and their values for a row.
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use parshall_evidence::socket::Kind;
use parshall_evidence::socket::selection::address;

use crate::sockets::Row;

/// A label by which sockets are aggregated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Label {
    /// Network namespace: its name, or its inode where it has none.
    Netns,
    /// Path of the control group.
    Cgroup,
    /// Container id, from the path of the control group.
    Container,
    /// Pod uid, from the path of the control group.
    Pod,
    /// Local port; `ephemeral` for those that the kernel assigns.
    LocalPort,
    /// Network of the remote address.
    Peer,
}

impl Label {
    /// Every label, in the order of output.
    pub const ALL: [Self; 6] = [Self::Netns, Self::Cgroup, Self::Container, Self::Pod, Self::LocalPort, Self::Peer];

    /// Its name on the command line and in the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Netns => "netns",
            Self::Cgroup => "cgroup",
            Self::Container => "container",
            Self::Pod => "pod",
            Self::LocalPort => "local_port",
            Self::Peer => "peer",
        }
    }

    /// Finds a label by its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|label| label.name() == name)
    }
}

/// The chosen labels, and the settings of their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// The labels, in the order of [`Label::ALL`], each once.
    pub chosen: Vec<Label>,
    /// Prefix length of [`Label::Peer`] for IPv4 addresses.
    pub v4_bits: u8,
    /// Prefix length of [`Label::Peer`] for IPv6 addresses.
    pub v6_bits: u8,
    /// Ports that the kernel assigns (net.ipv4.ip_local_port_range). They do not identify a service.
    pub ephemeral: RangeInclusive<u16>,
}

impl Default for Labels {
    /// By control group, service port and /24 or /48 of the peer.
    fn default() -> Self {
        Self {
            chosen: vec![Label::Cgroup, Label::LocalPort, Label::Peer],
            v4_bits: 24,
            v6_bits: 48,
            ephemeral: 32_768..=60_999,
        }
    }
}

/// The values of the labels for one row, before they are formatted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Values<'a> {
    netns: (u32, &'a str),
    texts: [&'a str; 3],
    port: Option<u16>,
    peer: Option<IpNet>,
}

impl Labels {
    /// The values for a row. Labels that are not chosen have the same value in all rows.
    pub(super) fn values<'a>(&self, row: &Row<'a>) -> Values<'a> {
        let mut values = Values { netns: (0, ""), texts: [""; 3], port: None, peer: None };
        let inet = Kind::of(row.record) != Kind::Unix;
        for label in &self.chosen {
            match label {
                Label::Netns => values.netns = (row.record.netns, row.netns),
                Label::Cgroup => values.texts[0] = row.cgroup,
                Label::Container => values.texts[1] = row.container,
                Label::Pod => values.texts[2] = row.pod,
                Label::LocalPort if inet => {
                    let port = row.record.local_port;
                    values.port = Some(if self.ephemeral.contains(&port) { *self.ephemeral.start() } else { port });
                }
                Label::Peer if inet && row.record.remote_address != [0; 16] => {
                    values.peer = Some(self.network(address(row.record, true)));
                }
                Label::LocalPort | Label::Peer => {}
            }
        }
        values
    }

    /// The network of an address. An IPv4-mapped IPv6 address is treated as IPv4.
    fn network(&self, address: IpAddr) -> IpNet {
        let whole = IpNet::from(address.to_canonical());
        let bits = if whole.addr().is_ipv4() { self.v4_bits } else { self.v6_bits };
        IpNet::new(whole.addr(), bits).unwrap_or(whole).trunc()
    }

    /// The values as text, in the order of `chosen`.
    pub(super) fn texts(&self, values: &Values<'_>) -> Vec<Box<str>> {
        let text = |label: &Label| match label {
            Label::Netns if values.netns.1.is_empty() => values.netns.0.to_string(),
            Label::Netns => values.netns.1.to_owned(),
            Label::Cgroup => values.texts[0].to_owned(),
            Label::Container => values.texts[1].to_owned(),
            Label::Pod => values.texts[2].to_owned(),
            Label::LocalPort => match values.port {
                Some(port) if self.ephemeral.contains(&port) => "ephemeral".to_owned(),
                Some(port) => port.to_string(),
                None => String::new(),
            },
            Label::Peer => values.peer.map_or(String::new(), |network| network.to_string()),
        };
        self.chosen.iter().map(|label| text(label).into_boxed_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use parshall_evidence::socket::SocketRecord;

    use super::*;

    fn texts(labels: &Labels, record: &SocketRecord) -> Vec<String> {
        let row = Row { cgroup: "/web", ..Row::bare(record) };
        labels.texts(&labels.values(&row)).into_iter().map(String::from).collect()
    }

    #[test]
    fn values_of_both_families() {
        let all = Labels { chosen: Label::ALL.to_vec(), ..Labels::default() };
        let mut record = SocketRecord { family: 2, protocol: 6, netns: 7, local_port: 443, ..Default::default() };
        record.remote_address[..4].copy_from_slice(&[192, 0, 2, 77]);
        assert_eq!(texts(&all, &record), ["7", "/web", "", "", "443", "192.0.2.0/24"]);
        let mut six = SocketRecord { family: 10, protocol: 6, local_port: 40_000, ..Default::default() };
        six.remote_address = "2001:db8:1:2::9".parse::<Ipv6Addr>().unwrap().octets();
        assert_eq!(texts(&all, &six)[4..], ["ephemeral", "2001:db8:1::/48"]);
        six.remote_address = "::ffff:192.0.2.77".parse::<Ipv6Addr>().unwrap().octets();
        assert_eq!(texts(&all, &six)[5], "192.0.2.0/24");
        let unix = SocketRecord { family: 1, ..Default::default() };
        assert_eq!(texts(&all, &unix)[4..], ["", ""]);
    }

    #[test]
    fn every_length_of_a_network() {
        for bits in 0..=32u8 {
            let labels = Labels { v4_bits: bits, v6_bits: bits, ..Labels::default() };
            let network = labels.network("255.255.255.255".parse().unwrap());
            assert_eq!((network.prefix_len(), network.addr().to_string() == "0.0.0.0"), (bits, bits == 0));
            assert_eq!(labels.network("ffff::".parse().unwrap()).prefix_len(), bits);
        }
        let whole = Labels { v4_bits: 200, v6_bits: 200, ..Labels::default() };
        assert_eq!(whole.network("::1".parse().unwrap()), "::1/128".parse().unwrap());
    }

    #[test]
    fn names_map_back_to_labels() {
        for label in Label::ALL {
            assert_eq!(Label::named(label.name()), Some(label));
        }
    }
}
