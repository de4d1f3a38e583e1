//! Which prefixes are routed into a tunnel, by which table, and which of them are blocked when its interface is gone. How they are set up
//! is not decided here.
use ipnet::IpNet;

use super::wg_quick::{QuickConfig, Table};

/// A prefix and the table of its route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TunnelRoute {
    #[allow(missing_docs)]
    pub prefix: IpNet,
    /// A name or a number.
    pub table: String,
}

impl TunnelRoute {
    /// The metric of the route that blocks the prefix: the next one to that of the route into the tunnel (0 for IPv4, 1024 for IPv6), so
    /// that it is used before any other route of the prefix once the interface is gone.
    pub fn block_metric(&self) -> u32 {
        if self.prefix.addr().is_ipv4() { 1 } else { 1025 }
    }
}

impl QuickConfig {
    /// The routes into the tunnel, each once. `default_table` is the table of routes to all addresses.
    ///
    /// The kernel adds the networks of the interface's own addresses to the main table by itself, and to no other.
    pub fn routes(&self, default_table: Option<u32>) -> Vec<TunnelRoute> {
        let Some(table) = self.table_name() else { return Vec::new() };
        let mut prefixes: Vec<IpNet> = self.peers.iter().flat_map(|peer| peer.allowed_ips.iter().copied()).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        let connected =
            |prefix: &IpNet| is_main(table) && self.addresses.iter().any(|own| own.trunc().contains(prefix));
        prefixes.retain(|prefix| !connected(prefix));
        let table_of = |prefix: &IpNet| match default_table.filter(|_| is_default(prefix)) {
            Some(number) => number.to_string(),
            None => table.to_owned(),
        };
        prefixes.into_iter().map(|prefix| TunnelRoute { table: table_of(&prefix), prefix }).collect()
    }

    /// Networks whose packets are dropped instead of leaving by another interface when this one is gone: all that are routed into the tunnel,
    /// with the networks of the interface's own addresses, whose routes end with it too.
    pub fn blocks(&self, default_table: Option<u32>) -> Vec<TunnelRoute> {
        if self.table == Table::Off {
            return Vec::new();
        }
        let networks = self.addresses.iter().filter(|own| own.prefix_len() < own.max_prefix_len());
        let connected = networks.map(|own| TunnelRoute { prefix: own.trunc(), table: "main".to_owned() });
        let mut blocks: Vec<TunnelRoute> = self.routes(default_table).into_iter().chain(connected).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    /// Whether routes to all addresses are to get a table of their own.
    pub fn wants_default_table(&self) -> bool {
        self.table == Table::Auto && self.routes(None).iter().any(|route| is_default(&route.prefix))
    }

    /// Leaves out all that is of IPv6, and returns whether there was something.
    pub fn leave_out_ipv6(&mut self) -> bool {
        let mut left_out = false;
        let mut keep = |prefix: &IpNet| {
            left_out |= prefix.addr().is_ipv6();
            prefix.addr().is_ipv4()
        };
        self.addresses.retain(&mut keep);
        self.peers.iter_mut().for_each(|peer| peer.allowed_ips.retain(&mut keep));
        left_out
    }

    fn table_name(&self) -> Option<&str> {
        match &self.table {
            Table::Off => None,
            Table::Auto => Some("main"),
            Table::Named(table) => Some(table),
        }
    }
}

/// The main table has a name and a number (RT_TABLE_MAIN).
fn is_main(table: &str) -> bool {
    matches!(table, "main" | "254")
}

/// Whether a prefix has all addresses of its family.
pub fn is_default(prefix: &IpNet) -> bool {
    prefix.prefix_len() == 0
}

#[cfg(test)]
mod tests {
    use super::super::wg_quick::parse_quick;
    use super::*;

    fn config(interface: &str, allowed: &[&str]) -> QuickConfig {
        let key = "QiyOemIn17yhNQs+K7cnn3iXuHu2hUt4PGDoAxGuMHk=";
        let peers: String =
            allowed.iter().map(|ips| format!("[Peer]\nPublicKey = {key}\nAllowedIPs = {ips}\n")).collect();
        parse_quick(&format!("[Interface]\n{interface}\n{peers}")).unwrap()
    }

    fn text(routes: &[TunnelRoute]) -> Vec<String> {
        routes.iter().map(|route| format!("{} {}", route.prefix, route.table)).collect()
    }

    #[test]
    fn routes_lead_to_what_the_kernel_adds_no_route_for() {
        let allowed = ["10.0.0.2, 10.1.0.0/16, fd00::/8", "10.1.0.0/16"];
        let addresses = "Address = 10.0.0.1/24";
        for table in ["Table = main", "Table = 254", "Table = auto"] {
            let routes = text(&config(&format!("{addresses}\n{table}"), &allowed).routes(None));
            let name = if table.ends_with("254") { "254" } else { "main" };
            assert_eq!(routes, [format!("10.1.0.0/16 {name}"), format!("fd00::/8 {name}")]);
        }
        // In another table nobody adds them.
        let named = config(&format!("{addresses}\nTable = 7"), &allowed);
        assert_eq!(text(&named.routes(None)), ["10.0.0.2/32 7", "10.1.0.0/16 7", "fd00::/8 7"]);
        let off = config(&format!("{addresses}\nTable = off"), &allowed);
        assert!(off.routes(None).is_empty() && off.blocks(None).is_empty() && !off.wants_default_table());
    }

    #[test]
    fn a_default_route_gets_the_table_that_is_free() {
        let auto = config("Address = 10.0.0.1/32", &["0.0.0.0/0, 10.0.0.0/8"]);
        assert!(auto.wants_default_table());
        assert_eq!(text(&auto.routes(Some(51_820))), ["0.0.0.0/0 51820", "10.0.0.0/8 main"]);
        let named = config("Table = 7", &["0.0.0.0/0"]);
        assert!(!named.wants_default_table() && text(&named.routes(None)) == ["0.0.0.0/0 7"]);
        assert!(!config("", &["0.0.0.0/1, 128.0.0.0/1"]).wants_default_table());
        // An own network that is everything: the kernel's route would be in the main table.
        assert!(!config("Address = 10.0.0.1/0", &["0.0.0.0/0"]).wants_default_table());
    }

    #[test]
    fn all_that_ends_with_the_interface_is_blocked() {
        let auto =
            config("Address = 10.0.0.1/24, 10.0.0.9/24, fd00::1/128", &["0.0.0.0/0, 10.0.0.7/32, 10.2.0.0/16, ::/0"]);
        let blocks = auto.blocks(Some(5));
        assert_eq!(text(&blocks), ["0.0.0.0/0 5", "10.0.0.0/24 main", "10.2.0.0/16 main", "::/0 5"]);
        assert_eq!((blocks[0].block_metric(), blocks[3].block_metric()), (1, 1025));
        let named = config("Address = 10.0.0.1/24\nTable = 7", &["10.0.0.7/32"]);
        assert_eq!(text(&named.blocks(None)), ["10.0.0.0/24 main", "10.0.0.7/32 7"]);
    }

    #[test]
    fn ipv6_is_left_out_everywhere() {
        let mut config = config("Address = 10.0.0.1/24, fd00::1/64", &["10.0.0.2/32, ::/0"]);
        assert!(config.leave_out_ipv6() && !config.leave_out_ipv6());
        assert_eq!((config.addresses.len(), config.peers[0].allowed_ips.len()), (1, 1));
    }
}
