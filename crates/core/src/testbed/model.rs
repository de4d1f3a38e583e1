//! The parts of a checked testbed.
use std::net::IpAddr;

use ipnet::IpNet;

use super::impairment::{Impairment, Means};

/// Namespaces and the links between them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Testbed {
    /// One line; may be empty.
    pub title: String,
    /// The seed of all impairments.
    pub seed: u64,
    /// In the order of the file. Names are unique.
    pub namespaces: Vec<Namespace>,
    /// In the order of the file.
    pub links: Vec<Link>,
}

/// A network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Letters, digits, `-` and `_`.
    pub name: String,
    /// The default congestion control of its sockets. None for cubic, or reno where the host does not allow cubic in namespaces;
    /// never the host's default.
    pub congestion_control: Option<String>,
    /// Names such as `net.ipv4.tcp_rmem`, and their values.
    pub sysctls: Vec<(String, String)>,
    /// Routes beyond those that the addresses make.
    pub routes: Vec<Route>,
}

/// A route through a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub to: IpNet,
    /// An address of another namespace on a link of this one.
    pub via: IpAddr,
}

/// A veth pair, or two TUN devices with a delay line between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The ends `a` and `b`, in different namespaces.
    pub ends: [End; 2],
    /// The MTU of both devices, in bytes.
    pub mtu: u32,
    /// Offloads of both devices.
    pub offloads: Offloads,
    /// Impairments of the packets that `a` sends, and of those that `b` sends.
    pub impairments: [Impairment; 2],
}

impl Link {
    /// The means by which both directions can be impaired.
    pub fn means(&self) -> Means {
        self.impairments.iter().map(Impairment::means).max().unwrap_or(Means::Nothing)
    }

    /// Whether the devices must send single segments.
    pub fn needs_single_segments(&self) -> bool {
        self.impairments.iter().any(Impairment::needs_single_segments)
    }

    /// The offloads that the devices get.
    pub fn effective_offloads(&self) -> Offloads {
        let off = Some(false);
        if self.needs_single_segments() { Offloads { tso: off, gso: off, gro: off } } else { self.offloads }
    }
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The index of its namespace in [`Testbed::namespaces`].
    pub namespace: usize,
    /// The name of the device; unique in the namespace.
    pub device: String,
    /// Its addresses with their prefixes, at least one.
    pub addresses: Vec<IpNet>,
    /// A shaper in front of the device.
    pub shaper: Option<Shaper>,
}

/// Offloads; None for the kernel's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads {
    /// TCP segmentation offload.
    pub tso: Option<bool>,
    /// Generic segmentation offload.
    pub gso: Option<bool>,
    /// Generic receive offload.
    pub gro: Option<bool>,
}

/// A token bucket filter (tbf) as the device's root qdisc. It belongs to the sending host: TCP sees its drops as local congestion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shaper {
    /// Bytes per second.
    pub rate: u64,
    /// Bytes that may leave at once; larger packets are segmented, or dropped if they cannot be.
    pub burst: u32,
    /// Bytes that may wait.
    pub queue: u32,
}

impl Testbed {
    /// The namespace with this name.
    pub fn namespace(&self, name: &str) -> Option<usize> {
        self.namespaces.iter().position(|namespace| namespace.name == name)
    }

    /// All ends in this namespace, in the order of the links.
    pub fn ends_in(&self, namespace: usize) -> impl Iterator<Item = &End> {
        self.links.iter().flat_map(|link| &link.ends).filter(move |end| end.namespace == namespace)
    }

    /// The first address of a namespace on its first link.
    pub fn address(&self, namespace: usize) -> Option<IpAddr> {
        self.ends_in(namespace).next()?.addresses.first().map(IpNet::addr)
    }
}

impl Offloads {
    /// Those that are set, by the names that ethtool has for them.
    pub fn set(&self) -> impl Iterator<Item = (&'static str, bool)> {
        [("tso", self.tso), ("gso", self.gso), ("gro", self.gro)]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
    }
}

impl End {
    /// Whether any address is of IPv6.
    pub fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(|address| address.addr().is_ipv6())
    }
}
