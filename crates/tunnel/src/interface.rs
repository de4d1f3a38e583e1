//! The interface of a tunnel: the TUN device with its addresses and routes, which end with it.
use std::fs::File;
use std::io;
use std::process::{Command, Stdio};

use anyhow::Context;
use ipnet::IpNet;
use parshall_core::tunnel::{QuickConfig, Table};
use parshall_host::error::UserError;
use parshall_sys::tun::{self, Frames};

/// What fits into packets of 1500 bytes over IPv6, as wg-quick has it.
const MTU_DEFAULT: u16 = 1420;

/// Creates the device, with addresses and routes. Returns it with its MTU.
pub fn set_up(name: &str, config: &QuickConfig) -> anyhow::Result<(File, usize)> {
    let device = tun::create(name, Frames::SuperFrames).map_err(|error| refusal(name, error))?;
    let mtu = config.mtu.unwrap_or(MTU_DEFAULT);
    for address in &config.addresses {
        ip(address, &["address", "add", &address.to_string(), "dev", name])?;
    }
    run(&["link", "set", "mtu", &mtu.to_string(), "up", "dev", name])?;
    let table = match &config.table {
        Table::Off => return Ok((device, mtu.into())),
        Table::Auto => None,
        Table::Named(table) => Some(table.as_str()),
    };
    for prefix in routes(config) {
        let (prefix_text, at) = (prefix.to_string(), ["table", table.unwrap_or("main")]);
        ip(&prefix, &[&["route", "add", &prefix_text, "dev", name][..], &at].concat())?;
    }
    Ok((device, mtu.into()))
}

/// The error for a device that the kernel does not make.
fn refusal(name: &str, error: io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root, or with CAP_NET_ADMIN",
        io::ErrorKind::ResourceBusy => "another process has an interface of this name: stop it, or use --interface",
        io::ErrorKind::NotFound => "load the module with `modprobe tun`; a container needs the device /dev/net/tun",
        _ => "`ip link` lists the interfaces",
    };
    UserError::new(format!("the interface {name} cannot be made: {error}"), hint).into()
}

/// The prefixes of peers that need a route: each once, and none that the interface's own addresses cover.
fn routes(config: &QuickConfig) -> Vec<IpNet> {
    let mut prefixes: Vec<IpNet> = config.peers.iter().flat_map(|peer| peer.allowed_ips.iter().copied()).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes.retain(|prefix| !config.addresses.iter().any(|own| own.trunc().contains(prefix)));
    prefixes
}

/// Runs `ip` for the family of a prefix.
fn ip(family: &IpNet, arguments: &[&str]) -> anyhow::Result<()> {
    let family = if family.addr().is_ipv4() { "-4" } else { "-6" };
    run(&[&[family], arguments].concat())
}

fn run(arguments: &[&str]) -> anyhow::Result<()> {
    let command = || format!("ip {}", arguments.join(" "));
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output().map_err(|error| {
        UserError::new(
            format!("`{}` could not be run: {error}", command()),
            "install iproute2, which has the program `ip`",
        )
    });
    let output = output.context("setting up the interface")?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let hint = "correct Address, MTU, Table or AllowedIPs in the file; `Table = off` adds no routes";
    Err(UserError::new(format!("`{}` failed: {reason}", command()), hint).into())
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
}
