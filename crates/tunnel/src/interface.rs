//! The interface of a tunnel: the TUN device with its addresses and routes, which end with it; the rules of a default route, and the
//! routes by which packets are dropped once the interface is gone. These do not end with it and are on record in [`Undo`].
use std::fs::File;
use std::io;

use ipnet::IpNet;
use parshall_core::tunnel::{QuickConfig, TunnelRoute, is_default};
use parshall_host::error::UserError;
use parshall_sys::tun::{self, Frames};

use crate::undo::{Step, Undo};
use crate::{ip, rp_filter};

/// The MTU with which datagrams fit into packets of 1500 bytes over IPv6, as wg-quick has it.
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
/// number of the file's mark, that of a tunnel that died and is taken over, or one that is free. Packets of the tunnel itself are to
/// have it as their mark.
pub fn default_table(config: &QuickConfig, undo: &Undo) -> anyhow::Result<Option<u32>> {
    if !config.wants_default_table() {
        return Ok(None);
    }
    let marked = config.fwmark.filter(|mark| *mark != 0);
    if let Some(mark) = marked.or_else(|| undo.held().iter().find_map(marked_by)) {
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

/// The mark of the rule of [`lead_to_default`] that a step deletes.
fn marked_by(step: &Step) -> Option<u32> {
    let Step::Ip(words) = step else { return None };
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "rule", "delete", "not", "fwmark", mark, "table", table] if mark == table => mark.parse().ok(),
        _ => None,
    }
}

/// How the routes of an interface are set up.
#[derive(Debug, Clone, Copy)]
pub struct Routing {
    /// The table of [`default_table`].
    pub default_table: Option<u32>,
    /// Packets that are routed into the tunnel may leave by other interfaces once this one is gone.
    pub fail_open: bool,
}

/// Adds addresses, sets the link up and adds routes. Returns whether what is routed into the tunnel is dropped when the interface is
/// gone.
pub fn configure(name: &str, config: &QuickConfig, routing: Routing, undo: &mut Undo) -> anyhow::Result<bool> {
    for address in &config.addresses {
        ip::run(&[family(address), "address", "add", &address.to_string(), "dev", name])?;
    }
    ip::run(&["link", "set", "up", "dev", name])?;
    let routes = config.routes(routing.default_table);
    let add = |TunnelRoute { prefix, table }: &TunnelRoute| {
        ip::words(&format!("{} route add {prefix} dev {name} table {table}", family(prefix)))
    };
    ip::run_all(&routes.iter().map(add).collect::<Vec<_>>())?;
    let blocks = if routing.fail_open { Vec::new() } else { config.blocks(routing.default_table) };
    block(&blocks, undo)?;
    if let Some(table) = routing.default_table {
        let defaults: Vec<&str> =
            routes.iter().filter(|route| is_default(&route.prefix)).map(|route| family(&route.prefix)).collect();
        if defaults.contains(&"-4") {
            rp_filter::admit_answers(name, config, table, undo)?;
        }
        defaults.into_iter().try_for_each(|family| lead_to_default(family, table, undo))?;
    }
    Ok(!blocks.is_empty())
}

/// Adds routes behind those into the tunnel, by which packets are dropped once the interface and its routes are gone: also when this
/// process was killed.
fn block(blocks: &[TunnelRoute], undo: &mut Undo) -> anyhow::Result<()> {
    let command = |verb: &str, route: &TunnelRoute| {
        let (family, TunnelRoute { prefix, table }) = (family(&route.prefix), route);
        ip::words(&format!("{family} route {verb} blackhole {prefix} table {table} metric {}", route.block_metric()))
    };
    let step = |route: &TunnelRoute| Step::Ip(command("delete", route));
    let blocks: Vec<&TunnelRoute> = blocks.iter().filter(|route| !undo.claim(&step(route))).collect();
    let add: Vec<_> = blocks.iter().map(|route| command("add", route)).collect();
    let steps: Vec<_> = blocks.iter().map(|route| step(route)).collect();
    undo.push_all(steps.iter().cloned())?;
    let mut others = Vec::new();
    for failed in ip::each(&add)? {
        if !failed.exists() {
            return Err(failed.error(&add[failed.at]));
        }
        // Somebody else's route takes over then, and stays when this tunnel ends.
        tracing::warn!(
            "{} is not blocked when the tunnel ends: there is a route of that metric",
            blocks[failed.at].prefix
        );
        others.push(steps[failed.at].clone());
    }
    if !others.is_empty() {
        undo.forget(&others)?;
    }
    Ok(())
}

/// Leads packets without the tunnel's mark to the table of default routes, unless the main table has a route for them that is not its
/// default.
fn lead_to_default(family: &str, table: u32, undo: &mut Undo) -> anyhow::Result<()> {
    const MAIN: [&str; 4] = ["table", "main", "suppress_prefixlength", "0"];
    let number = table.to_string();
    let marked = ["not", "fwmark", &number, "table", &number];
    if undo.claim(&unruled(family, &marked)) {
        // Both are in place, in the right order.
        undo.claim(&unruled(family, &MAIN));
        return Ok(());
    }
    add_rule(family, &marked, undo)?;
    // The kernel asks the rule first that was added last. One that a process that died has left would come too late.
    let held = undo.claim(&unruled(family, &MAIN));
    if held {
        ip::run(&[&[family, "rule", "delete"], &MAIN[..]].concat())?;
        return ip::run(&[&[family, "rule", "add"], &MAIN[..]].concat());
    }
    // Another tunnel may have it already, and ends it then.
    if !ip::read(&[family, "rule", "show"])?.contains("lookup main suppress_prefixlength 0") {
        add_rule(family, &MAIN, undo)?;
    }
    Ok(())
}

fn add_rule(family: &str, rule: &[&str], undo: &mut Undo) -> anyhow::Result<()> {
    undo.push(unruled(family, rule))?;
    ip::run(&[&[family, "rule", "add"], rule].concat())
}

/// The step that deletes a rule.
fn unruled(family: &str, rule: &[&str]) -> Step {
    Step::Ip([&[family, "rule", "delete"], rule].concat().into_iter().map(str::to_owned).collect())
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
    fn a_default_route_takes_the_files_mark_as_its_table() {
        let key = "QiyOemIn17yhNQs+K7cnn3iXuHu2hUt4PGDoAxGuMHk=";
        let scratch = tempfile::tempdir().unwrap();
        let mut undo = Undo::take_over(scratch.path().join("wg0.undo")).unwrap();
        undo.push(unruled("-6", &["not", "fwmark", "77", "table", "77"])).unwrap();
        let undo = Undo::take_over(scratch.path().join("wg0.undo")).unwrap();
        let table = |interface: &str, prefix: &str| {
            let text = format!("[Interface]\n{interface}\n[Peer]\nPublicKey = {key}\nAllowedIPs = {prefix}\n");
            default_table(&parse_quick(&text).unwrap(), &undo).unwrap()
        };
        assert_eq!(table("FwMark = 0x10", "0.0.0.0/0"), Some(16));
        assert_eq!(table("", "0.0.0.0/0"), Some(77), "that of a tunnel that died");
        assert_eq!(table("FwMark = 16\nTable = off", "::/0"), None);
        assert_eq!(table("FwMark = 16", "0.0.0.0/1, 128.0.0.0/1"), None);
    }
}
