//! The kernel's check of source addresses (rp_filter) on the host of a tunnel that has a default route: whether it drops the datagrams of
//! peers, and the rules that keep it from doing so.

/// The interface by which strict checks of source addresses (rp_filter 1) drop what arrives on it, of the values of
/// `net.ipv4.conf.NAME.rp_filter`. The kernel uses the larger one of `all` and the interface; `default` is that of interfaces to come.
pub fn strict_rp_filter<'a>(values: &'a [(String, u8)], own: &str) -> Option<&'a str> {
    let all = values.iter().find(|(name, _)| name == "all").map_or(0, |(_, value)| *value);
    let others = values.iter().filter(|(name, _)| name != "all" && name != "lo" && name != own);
    let mut strict = others.filter(|(_, value)| all.max(*value) == 1);
    strict.next().map(|(name, _)| if all == 1 { "all" } else { name.as_str() })
}

/// The name of the table of [`restored_marks`].
pub fn marks_table(mark: u32) -> String {
    format!("parshall_tunnel_{mark}")
}

/// Rules for `nft -f` by which answers to marked UDP packets have that mark too, as those of wg-quick: rp_filter then looks up
/// the way back by the rules for the tunnel's own packets. They replace those that are there.
pub fn restored_marks(mark: u32) -> String {
    let table = marks_table(mark);
    format!(
        "add table ip {table}\ndelete table ip {table}\ntable ip {table} {{\n\
         chain prerouting {{\ntype filter hook prerouting priority -150;\nmeta l4proto udp ct mark {mark} meta mark set {mark}\n}}\n\
         chain postrouting {{\ntype filter hook postrouting priority -150;\nmeta l4proto udp meta mark {mark} ct mark set {mark}\n}}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rp_filter_is_strict_as_the_kernel_computes_it() {
        let strict = |values: &[(&str, u8)]| {
            let values: Vec<_> = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            strict_rp_filter(&values, "wg0").map(str::to_owned)
        };
        assert_eq!(strict(&[("all", 0), ("default", 0), ("eth0", 1), ("lo", 1)]).as_deref(), Some("eth0"));
        assert_eq!(strict(&[("all", 1), ("default", 0), ("eth0", 2)]).as_deref(), Some("all"), "of interfaces to come");
        assert_eq!(strict(&[("all", 1), ("default", 2), ("eth0", 2)]), None);
        assert_eq!(strict(&[("all", 2), ("default", 1), ("eth0", 1)]), None);
        assert_eq!(strict(&[("all", 0), ("default", 0), ("eth0", 2), ("wg0", 1), ("lo", 1)]), None);
        assert_eq!(strict(&[]), None);
    }

    #[test]
    fn the_rules_are_those_of_one_mark() {
        let rules = restored_marks(51_820);
        assert!(rules.starts_with("add table ip parshall_tunnel_51820\ndelete table ip parshall_tunnel_51820\n"));
        assert_eq!(rules.matches("51820").count(), 7);
    }
}
