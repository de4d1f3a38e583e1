//! Whether a testbed can be made, and whether what was made would carry packets.
use std::net::IpAddr;

use ipnet::IpNet;

use super::model::{End, Link, Route, Testbed};
use super::problem::{LinkPlaces, Problem, fail};
use crate::text::quote;
use crate::values::ValueError;

/// Of `linux/if_ether.h` and `net/ipv6.h`.
const MTU_MIN: u32 = 68;
const MTU_MIN_IPV6: u32 = 1280;
const MTU_MAX: u32 = 65_535;
/// IFNAMSIZ less the zero byte.
const DEVICE_MAX: usize = 15;
/// TCP_CA_NAME_MAX less the zero byte.
const ALGORITHM_MAX: usize = 15;
const SYSCTL_VALUE_MAX: usize = 256;
/// Bytes of an Ethernet header.
const ETHERNET: u32 = 14;
/// Sysctls that belong to the host: they are read-only, or missing, in every other namespace.
const OF_THE_HOST: [&str; 3] = ["net.core.rmem_max", "net.core.wmem_max", "net.core.netdev_max_backlog"];

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

pub(super) fn namespace_name(name: &str, longest: usize) -> Result<String, ValueError> {
    if is_word(name) && name.len() <= longest && !name.starts_with('-') {
        return Ok(name.to_owned());
    }
    let hint = format!("use letters, digits, - and _, at most {longest} of them");
    Err(ValueError::new(format!("{} is not a name for a namespace", quote(name)), hint))
}

pub(super) fn algorithm(name: &str) -> Result<String, ValueError> {
    if is_word(name) && name.len() <= ALGORITHM_MAX {
        return Ok(name.to_owned());
    }
    let hint = "write cubic or reno, or another one of net.ipv4.tcp_allowed_congestion_control";
    Err(ValueError::new(format!("{} is not a congestion control", quote(name)), hint))
}

/// The rules of dev_valid_name() in net/core/dev.c, and no character that a shell would interpret.
pub(super) fn device(name: &str) -> Result<String, ValueError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= DEVICE_MAX && name.chars().all(good) && name != "lo" {
        return Ok(name.to_owned());
    }
    let hint = format!("use letters, digits, -, _ and ., at most {DEVICE_MAX} of them; lo is taken");
    Err(ValueError::new(format!("{} is not a name for a device", quote(name)), hint))
}

pub(super) fn sysctl(name: &str, value: &str) -> Result<(), ValueError> {
    let error = |what: String, hint: &str| Err(ValueError::new(what, hint));
    let part = |part: &str| is_word(part);
    if !name.starts_with("net.") || !name.split('.').all(part) {
        let hint = "only sysctls below net. are a namespace's own; write them as net.ipv4.tcp_rmem";
        return error(format!("{} is not a sysctl of a namespace", quote(name)), hint);
    }
    if OF_THE_HOST.contains(&name) {
        let hint = "use net.ipv4.tcp_rmem or net.ipv4.tcp_wmem, or set the buffer of the program's socket";
        return error(format!("{name} cannot be set in a namespace: it is the host's"), hint);
    }
    if matches!(name, "net.ipv4.tcp_congestion_control") {
        return error(format!("{name} has a key of its own"), "write congestion_control = \"cubic\"");
    }
    let good = |c: char| c.is_ascii_graphic() && !matches!(c, '\'' | '"' | '\\' | '`' | '$') || c == ' ';
    if value.is_empty() || value.len() > SYSCTL_VALUE_MAX || !value.chars().all(good) {
        return error(
            format!("{} is not a value of a sysctl", quote(value)),
            "write a number, or numbers with blanks between",
        );
    }
    Ok(())
}

/// A link against itself and all before it.
pub(super) fn link(testbed: &Testbed, link: &Link, at: &LinkPlaces) -> Result<(), Problem> {
    let [a, b] = &link.ends;
    if a.namespace == b.namespace {
        let what = format!("both ends are in {}", quote(&testbed.namespaces[a.namespace].name));
        let hint = "packets between addresses of one namespace take its loopback interface; use two namespaces";
        return fail(at.ends[1].namespace, what, hint);
    }
    let least = if link.ends.iter().any(End::has_ipv6) { MTU_MIN_IPV6 } else { MTU_MIN };
    if !(least..=MTU_MAX).contains(&link.mtu) {
        return fail(
            at.mtu,
            format!("an MTU of {} is not possible", link.mtu),
            format!("choose from {least} to {MTU_MAX}"),
        );
    }
    impairments(link, at)?;
    for (index, (end, places)) in link.ends.iter().zip(&at.ends).enumerate() {
        let name = &testbed.namespaces[end.namespace].name;
        if testbed.ends_in(end.namespace).any(|other| other.device == end.device) {
            let what = format!("{} has two devices named {}", quote(name), quote(&end.device));
            return fail(places.device, what, "give each device of a namespace a name of its own");
        }
        if let Some(shaper) = end.shaper.filter(|shaper| shaper.burst < link.mtu + ETHERNET) {
            let what = format!("a burst of {} bytes is less than a packet", shaper.burst);
            let hint = format!("give the shaper a burst of {} bytes or more", link.mtu + ETHERNET);
            return fail(places.shaper, what, hint);
        }
        for (nth, address) in end.addresses.iter().enumerate() {
            let before = end.addresses[..nth].iter().chain(if index == 1 { &a.addresses[..] } else { &[] });
            address_of(testbed, end, address, before).map_err(|error| Problem { at: places.addresses[nth], error })?;
        }
    }
    let shares = |address: &IpNet| a.addresses.iter().any(|other| other.trunc() == address.trunc());
    if !b.addresses.iter().any(shares) {
        let (first, other) = (a.addresses[0], b.addresses[0]);
        let what = format!("{first} and {other} are not in one network, so nothing can pass between them");
        return fail(at.ends[1].addresses[0], what, format!("give this end an address in {}", first.trunc()));
    }
    Ok(())
}

/// Refuses offloads where an emulator would impair superframes instead of packets.
fn impairments(link: &Link, at: &LinkPlaces) -> Result<(), Problem> {
    let place = at.impairments.into_iter().find(|&place| place > 0).unwrap_or(at.mtu);
    if link.needs_single_segments() && link.offloads.set().any(|(_, on)| on) {
        let what = "an offload is on, and the impairments are those of single packets";
        let hint =
            "leave offloads out: a superframe is one packet to the emulator, so a loss would take about forty segments";
        return fail(place, what, hint);
    }
    let too_small = |size: &u32| *size < MTU_MIN || *size > MTU_MAX;
    if let Some(size) = link.impairments.iter().filter_map(|one| one.largest_packet).find(|size| too_small(size)) {
        let what = format!("largest_packet cannot be {size}");
        return fail(place, what, format!("choose from {MTU_MIN} to {MTU_MAX} bytes"));
    }
    Ok(())
}

/// An address of an end against the addresses of all earlier links, and those before it in this one.
fn address_of<'a>(
    testbed: &'a Testbed,
    end: &End,
    address: &IpNet,
    before: impl Iterator<Item = &'a IpNet>,
) -> Result<(), ValueError> {
    let ip = address.addr();
    let unusable = ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || (address.prefix_len() + 1 < address.max_prefix_len() && (ip == address.network() || is_broadcast(address)));
    if unusable {
        return Err(ValueError::new(format!("{ip} is not an address of a host"), "choose one within the network"));
    }
    let mut all = before.chain(testbed.links.iter().flat_map(|link| &link.ends).flat_map(|end| &end.addresses));
    if all.any(|other| other.addr() == ip) {
        return Err(ValueError::new(format!("{ip} is there twice"), "give each end an address of its own"));
    }
    let overlaps = |other: &&IpNet| other.contains(&address.trunc()) || address.contains(&other.trunc());
    let mut others = testbed.ends_in(end.namespace).flat_map(|end| &end.addresses);
    if let Some(other) = others.find(overlaps) {
        let what =
            format!("{address} and {other} are on two devices of {}", quote(&testbed.namespaces[end.namespace].name));
        return Err(ValueError::new(
            what,
            "give each link a network of its own: a packet would leave by the first device only",
        ));
    }
    Ok(())
}

fn is_broadcast(address: &IpNet) -> bool {
    matches!(address, IpNet::V4(v4) if v4.addr() == v4.broadcast())
}

/// A route of a namespace against all links: its gateway must be a neighbour that forwards.
pub(super) fn route(testbed: &Testbed, namespace: usize, route: &Route) -> Result<(), ValueError> {
    let error = |what: String, hint: String| Err(ValueError::new(what, hint));
    let from = &testbed.namespaces[namespace].name;
    if testbed.namespaces[namespace].routes.iter().any(|other| other.to == route.to) {
        return error(format!("there are two routes to {}", route.to), "leave one of them out".to_owned());
    }
    let is_on = |end: &&End, ip: IpAddr| end.addresses.iter().any(|address| address.contains(&ip));
    let Some(out) = testbed.ends_in(namespace).find(|end| is_on(end, route.via)) else {
        let what = format!("the route to {} has no way: {} is on no link of {}", route.to, route.via, quote(from));
        return error(what, "name an address of a neighbour, at the other end of a link".to_owned());
    };
    let has = |end: &&End| end.addresses.iter().any(|address| address.addr() == route.via);
    let mut everywhere = testbed.links.iter().flat_map(|link| &link.ends);
    let Some(gateway) = everywhere.find(has).filter(|gateway| gateway.namespace != namespace) else {
        let what = format!("the route to {} has no way: no neighbour of {} has {}", route.to, quote(from), route.via);
        let hint = format!("name the address of the end that {} is linked to", quote(&out.device));
        return error(what, hint);
    };
    let gateway = &testbed.namespaces[gateway.namespace];
    let forwarding = if route.via.is_ipv4() { "net.ipv4.ip_forward" } else { "net.ipv6.conf.all.forwarding" };
    if !gateway.sysctls.iter().any(|(name, value)| name == forwarding && value == "1") {
        let what = format!("the route to {} has no way: {} does not forward", route.to, quote(&gateway.name));
        return error(what, format!("write sysctls = {{ \"{forwarding}\" = 1 }} for {}", quote(&gateway.name)));
    }
    Ok(())
}
