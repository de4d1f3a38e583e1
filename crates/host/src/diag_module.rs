//! The kernel's modules that dump sockets by SOCK_DIAG. Most distributions build them as modules. The kernel loads one by itself
//! when the first process asks (request_module), unless it finds no modprobe, or a process without the right asks.
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use parshall_core::sock_diag::Table;

/// Its paths in distributions; a service's PATH need not have them.
const MODPROBE: [&str; 3] = ["/sbin/modprobe", "/usr/sbin/modprobe", "modprobe"];

/// The module of a table.
pub fn name(table: Table) -> &'static str {
    match table {
        Table::Tcp => "tcp_diag",
        Table::Udp | Table::UdpLite => "udp_diag",
        Table::Mptcp => "mptcp_diag",
        Table::Unix => "unix_diag",
    }
}

/// The hint for a table that the kernel does not dump.
pub fn remedy(table: Table) -> String {
    let name = name(table);
    format!("the kernel's module {name} is not loaded: `modprobe {name}` as root loads it")
}

/// Loads the module of a table by modprobe, once in this process. Returns whether modprobe has loaded it, or another thread's did
/// before. Call it after the kernel refused a dump: by then it has tried by itself.
pub fn load(table: Table) -> bool {
    static TRIED: Mutex<(BTreeSet<&str>, BTreeSet<&str>)> = Mutex::new((BTreeSet::new(), BTreeSet::new()));
    let name = name(table);
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    if tried.0.insert(name) && modprobe(name) {
        tracing::info!("the kernel's module {name} was loaded");
        tried.1.insert(name);
    }
    tried.1.contains(name)
}

fn modprobe(name: &str) -> bool {
    MODPROBE.into_iter().any(|program| {
        let mut command = Command::new(program);
        command.args(["--quiet", name]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_a_module_that_the_remedy_names() {
        for table in [Table::Tcp, Table::Udp, Table::UdpLite, Table::Mptcp, Table::Unix] {
            assert!(remedy(table).contains(&format!("`modprobe {}`", name(table))));
        }
    }
}
