//! The service to which a flow is a connection, found by address: a capture may have as many of each as its file holds.
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::AddAssign;

use parshall_evidence::{FlowRecord, Service};

use crate::judge::ledger::flow_rules::serves;

/// The choice of the own ends of connections to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    /// All.
    Any,
    /// Those at this address.
    Ip(IpAddr),
    /// Those at a loopback address, which belong to a service at any address.
    Loopback,
}

/// Sums over flows that serve, for the services that they may be connections to.
#[derive(Debug, Default)]
pub struct ByService<T> {
    sums: BTreeMap<(u16, At), T>,
}

impl<T: Default + Copy + AddAssign> ByService<T> {
    /// Adds what a flow contributes.
    pub fn add(&mut self, flow: &FlowRecord, value: T) {
        if !serves(flow) {
            return;
        }
        let ip = flow.local.ip();
        let own = if ip.is_loopback() { At::Loopback } else { At::Ip(ip.to_canonical()) };
        for at in [At::Any, own] {
            *self.sums.entry((flow.local.port(), at)).or_default() += value;
        }
    }

    /// The sum over the flows that are connections to the service at its own end: at its address, or at a loopback address,
    /// or at any where the service is at a loopback address or at none.
    pub fn of(&self, service: &Service) -> T {
        let mut sum = T::default();
        if service.outbound {
            return sum;
        }
        let ip = service.address.ip().to_canonical();
        let any = ip.is_unspecified() || ip.is_loopback();
        let meant = if any { [Some(At::Any), None] } else { [Some(At::Ip(ip)), Some(At::Loopback)] };
        for at in meant.into_iter().flatten() {
            sum += self.sums.get(&(service.address.port(), at)).copied().unwrap_or_default();
        }
        sum
    }
}

/// Services, for the flows that may be connections to one of them.
#[derive(Debug, Default)]
pub struct Served {
    all: BTreeSet<u16>,
    at_any: BTreeSet<u16>,
    at: BTreeSet<(u16, IpAddr)>,
}

impl Served {
    /// By any of these services.
    pub fn by<'s>(services: impl Iterator<Item = &'s Service>) -> Served {
        let mut served = Served::default();
        for service in services.filter(|s| !s.outbound) {
            let (ip, port) = (service.address.ip().to_canonical(), service.address.port());
            served.all.insert(port);
            if ip.is_unspecified() || ip.is_loopback() {
                served.at_any.insert(port);
            }
            served.at.insert((port, ip));
        }
        served
    }

    /// Whether a flow is a connection to one of them, at its own end.
    pub fn holds(&self, flow: &FlowRecord) -> bool {
        let (ip, port) = (flow.local.ip(), flow.local.port());
        let same = || self.at_any.contains(&port) || ip.is_loopback() || self.at.contains(&(port, ip.to_canonical()));
        serves(flow) && self.all.contains(&port) && same()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use parshall_evidence::Role;

    use super::*;
    use crate::testkit::FlowBuilder;
    use crate::testkit::service::ServiceBuilder;

    /// The rule for one flow and one service.
    fn is_served_by(flow: &FlowRecord, service: &Service) -> bool {
        let ip = service.address.ip().to_canonical();
        let same = ip.is_unspecified()
            || ip == flow.local.ip().to_canonical()
            || flow.local.ip().is_loopback()
            || ip.is_loopback();
        !service.outbound && serves(flow) && flow.local.port() == service.address.port() && same
    }

    #[test]
    fn sums_are_those_over_each_pair() {
        let addresses = ["127.0.0.1", "::1", "10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2", "0.0.0.0", "::"];
        let addresses = || addresses.iter().map(|ip| SocketAddr::new(ip.parse().expect("an address"), 7000));
        let flow = |at| {
            let mut flow = FlowBuilder::new(1, Role::Server).fill().record;
            flow.local = at;
            flow
        };
        let flows: Vec<FlowRecord> = addresses().map(flow).collect();
        for (address, outbound) in addresses().flat_map(|address| [(address, false), (address, true)]) {
            let mut service = ServiceBuilder::new(7000).build();
            (service.address, service.outbound) = (address, outbound);
            let mut sums = ByService::default();
            flows.iter().for_each(|flow| sums.add(flow, 1));
            let served = Served::by([&service].into_iter());
            let one_by_one: Vec<bool> = flows.iter().map(|flow| is_served_by(flow, &service)).collect();
            let held: Vec<bool> = flows.iter().map(|flow| served.holds(flow)).collect();
            assert_eq!(held, one_by_one, "{address} {outbound}");
            assert_eq!(sums.of(&service), one_by_one.iter().filter(|served| **served).count(), "{address} {outbound}");
        }
    }
}
