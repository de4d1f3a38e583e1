//! The interface of a tunnel: the TUN device with its addresses and routes, which end with it, and the rules of a default route,
//! which do not and are on record in [`Undo`].
use std::fs::{self, File};
use std::io;

use ipnet::IpNet;
use parshall_core::tunnel::{QuickConfig, Table};
use parshall_host::error::UserError;
use parshall_sys::tun::{self, Frames};

use crate::ip;
use crate::undo::{Step, Undo};

/// What fits into packets of 1500 bytes over IPv6, as wg-quick has it.
const MTU_DEFAULT: u16 = 1420;

/// The first table that is tried for a default route, as wg-quick does it. The mark of the tunnel's own packets is the same
/// number.
const DEFAULT_TABLE: u32 = 51_820;

/// The MTU of the interface.
pub fn mtu(config: &QuickConfig) -> u16 {
    config.mtu.unwrap_or(MTU_DEFAULT)
}

/// Creates the device, without addresses and down.
pub fn create(name: &str, config: &QuickConfig) -> anyhow::Result<File> {
    let device = tun::create(name, Frames::SuperFrames).map_err(|error| refusal(name, error))?;
    ip::run(&["link", "set", "mtu", &mtu(config).to_string(), "dev", name])?;
    Ok(device)
}

/// The error for a device that the kernel does not make.
fn refusal(name: &str, error: io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root",
        io::ErrorKind::ResourceBusy => "another process has an interface of this name: stop it, or use --interface",
        io::ErrorKind::NotFound => "load the module with `modprobe tun`; a container needs the device /dev/net/tun",
        _ => "`ip link` lists the interfaces",
    };
    UserError::new(format!("the interface {name} cannot be made: {error}"), hint).into()
}

/// The table for the default routes of the peers, if the file has such routes and leaves the table to us: the one with the
/// number of the file's mark, or one that is free. Packets of the tunnel itself are to have it as their mark.
pub fn default_table(config: &QuickConfig) -> anyhow::Result<Option<u32>> {
    if config.table != Table::Auto || !routes(config).iter().any(is_default) {
        return Ok(None);
    }
    if let Some(mark) = config.fwmark.filter(|mark| *mark != 0) {
        return Ok(Some(mark));
    }
    for table in DEFAULT_TABLE.. {
        let number = table.to_string();
        let read = |family| ip::read(&[family, "route", "show", "table", &number]);
        if read("-4")?.is_empty() && read("-6")?.is_empty() {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// Adds addresses, sets the link up and adds routes. `default` is the table of [`default_table`].
pub fn configure(name: &str, config: &QuickConfig, default: Option<u32>, undo: &mut Undo) -> anyhow::Result<()> {
    for address in &config.addresses {
        ip::run(&[family(address), "address", "add", &address.to_string(), "dev", name])?;
    }
    ip::run(&["link", "set", "up", "dev", name])?;
    let table = match &config.table {
        Table::Off => return Ok(()),
        Table::Auto => "main",
        Table::Named(table) => table,
    };
    for prefix in routes(config) {
        match default.filter(|_| is_default(&prefix)) {
            Some(table) => add_default(name, &prefix, table, undo)?,
            None => ip::run(&[family(&prefix), "route", "add", &prefix.to_string(), "dev", name, "table", table])?,
        }
    }
    Ok(())
}

/// Leads packets without the tunnel's mark into it, unless the main table has a route for them that is not its default.
fn add_default(name: &str, prefix: &IpNet, table: u32, undo: &mut Undo) -> anyhow::Result<()> {
    let (family, number) = (family(prefix), table.to_string());
    ip::run(&[family, "route", "add", &prefix.to_string(), "dev", name, "table", &number])?;
    add_rule(family, &["not", "fwmark", &number, "table", &number], undo)?;
    // Another tunnel may have it already, and ends it then.
    if !ip::read(&[family, "rule", "show"])?.contains("lookup main suppress_prefixlength 0") {
        add_rule(family, &["table", "main", "suppress_prefixlength", "0"], undo)?;
    }
    if prefix.addr().is_ipv4() {
        expect_marked_replies();
    }
    Ok(())
}

fn add_rule(family: &str, rule: &[&str], undo: &mut Undo) -> anyhow::Result<()> {
    let command = |verb: &'static str| [&[family, "rule", verb], rule].concat();
    undo.push(Step::Ip(command("delete").into_iter().map(str::to_owned).collect()))?;
    ip::run(&command("add"))
}

/// Has the check of source addresses (rp_filter) look up the way back with the mark of a packet, as wg-quick does. It stays:
/// other tunnels may have come to need it.
fn expect_marked_replies() {
    const ALL: &str = "/proc/sys/net/ipv4/conf/all";
    if let Err(error) = fs::write(format!("{ALL}/src_valid_mark"), "1") {
        tracing::warn!(%error, "net.ipv4.conf.all.src_valid_mark could not be set");
    }
    if fs::read_to_string(format!("{ALL}/rp_filter")).is_ok_and(|mode| mode.trim() == "1") {
        tracing::warn!(
            "net.ipv4.conf.all.rp_filter is 1 (strict), which drops datagrams from peers unless their marks are restored: \
             set it to 2, or let PostUp add a CONNMARK rule"
        );
    }
}

/// The prefixes of peers that need a route: each once, and none that the interface's own addresses cover.
fn routes(config: &QuickConfig) -> Vec<IpNet> {
    let mut prefixes: Vec<IpNet> = config.peers.iter().flat_map(|peer| peer.allowed_ips.iter().copied()).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes.retain(|prefix| !config.addresses.iter().any(|own| own.trunc().contains(prefix)));
    prefixes
}

fn is_default(prefix: &IpNet) -> bool {
    prefix.prefix_len() == 0
}

/// The flag of `ip` for the family of a prefix.
fn family(prefix: &IpNet) -> &'static str {
    if prefix.addr().is_ipv4() { "-4" } else { "-6" }
}

#[cfg(test)]
mod tests {
    use parshall_core::tunnel::parse_quick;

    use super::*;

    #[test]
    fn routes_lead_to_what_no_address_covers() {
        let key = "QiyOemIn17yhNQs+K7cnn3iXuHu2hUt4PGDoAxGuMHk=";
        let text = format!(
            "[Interface]\nAddress = 10.0.0.1/24\n[Peer]\nPublicKey = {key}\nAllowedIPs = 10.0.0.2, 10.1.0.0/16, fd00::/8\n\
             [Peer]\nPublicKey = {key}\nAllowedIPs = 10.1.0.0/16\n"
        );
        let found: Vec<_> = routes(&parse_quick(&text).unwrap()).iter().map(IpNet::to_string).collect();
        assert_eq!(found, ["10.1.0.0/16", "fd00::/8"]);
    }

    #[test]
    fn a_default_route_takes_the_files_mark_as_its_table() {
        let key = "QiyOemIn17yhNQs+K7cnn3iXuHu2hUt4PGDoAxGuMHk=";
        let table = |interface: &str, prefix: &str| {
            let text = format!("[Interface]\n{interface}\n[Peer]\nPublicKey = {key}\nAllowedIPs = {prefix}\n");
            default_table(&parse_quick(&text).unwrap()).unwrap()
        };
        assert_eq!(table("FwMark = 0x10", "0.0.0.0/0"), Some(16));
        assert_eq!(table("FwMark = 16\nTable = off", "::/0"), None);
        assert_eq!(table("FwMark = 16", "0.0.0.0/1, 128.0.0.0/1"), None);
    }
}
