//! The choice of the backend: the one that `--backend` names, or the best that works on this host.
use std::fs;

use anyhow::Context;
use parshall_bpf::kernel_release;
use parshall_core::sockets::cost::{HostSockets, netlink_is_cheaper, netlink_sees_all};
use parshall_evidence::socket::Selection;

use super::Backend;
use super::netlink::{Netlink, missing};
use super::walk::WalkBackend;
use crate::namespaces::Discovery;
use crate::request::{BackendChoice, Reading};
use parshall_host::error::UserError;
use parshall_host::{lockdown, sock_diag_dump};
use parshall_sys::limits;

pub struct Chosen {
    pub backend: Box<dyn Backend>,
    /// Why each better backend does not work here, and what this one does not see: a sentence each.
    pub notes: Vec<String>,
}

/// The number of dumps that the backend will read, and their use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dumps {
    /// One dump, of which a table is printed: the cost of loading matters most, and no key.
    Table,
    /// One dump, with the keys and all fields that its groups have.
    One,
    /// The cost of each dump matters most.
    Many,
}

/// Opens the backend.
///
/// # Errors
/// The named backend does not work here, or none does.
pub fn choose(reading: Reading, selection: &Selection, dumps: Dumps) -> anyhow::Result<Chosen> {
    let refused = |name: &str, error: anyhow::Error| -> anyhow::Error {
        UserError::new(
            format!("the backend {name} does not work here: {error:#}"),
            "leave --backend out for the best that does; `parshall doctor` shows what this host supports",
        )
        .into()
    };
    if kernel_release::counts_locked_memory(kernel_release::running()) {
        limits::raise_locked_memory();
    }
    match reading.backend {
        BackendChoice::Walk => walk().map_err(|e| refused("walk", e)).map(alone),
        BackendChoice::Netlink => netlink(reading).map_err(|e| refused("netlink", e)),
        BackendChoice::Auto => {
            if let Some(backend) = (dumps == Dumps::Table).then(|| netlink_if_better(reading, selection)).flatten() {
                return Ok(alone(Box::new(backend)));
            }
            let note = match walk() {
                Ok(backend) => return Ok(alone(backend)),
                Err(error) => format!("not read by walk: {error:#}"),
            };
            let mut chosen = netlink(reading).context("no backend works here")?;
            chosen.notes.insert(0, note);
            Ok(chosen)
        }
    }
}

/// The error of programs that read the kernel's memory, with the mode of the kernel that refuses them whatever the error says.
fn of_programs(error: anyhow::Error) -> anyhow::Error {
    let locked_down = lockdown::mode().is_some_and(|mode| mode == lockdown::CONFIDENTIALITY);
    let why = "the kernel is in lockdown mode confidentiality, which refuses it";
    if locked_down { anyhow::anyhow!("{error:#}; {why}") } else { error }
}

fn alone(backend: Box<dyn Backend>) -> Chosen {
    Chosen { backend, notes: Vec::new() }
}

/// SOCK_DIAG, if it is cheaper than the walk and finds the same sockets, with all that a table shows of them.
fn netlink_if_better(reading: Reading, selection: &Selection) -> Option<Netlink> {
    let sockets = HostSockets::read(&fs::read_to_string("/proc/net/sockstat").ok()?).max();
    if !netlink_sees_all(selection) || !netlink_is_cheaper(sockets, 1) || !missing().is_empty() {
        return None;
    }
    // Namespaces are counted last, because that reads all of /proc.
    let mut discovery = Discovery::default();
    let namespaces = discovery.scan(&[]).namespaces.len();
    // Without the kernel's modules it would read /proc/net, which has no counters.
    if !netlink_is_cheaper(sockets, namespaces as u64) || !sock_diag_dump::can_dump(selection) {
        return None;
    }
    Netlink::with_discovery(reading.readers, discovery).ok()
}

fn walk() -> anyhow::Result<Box<dyn Backend>> {
    Ok(Box::new(WalkBackend::open().map_err(|error| of_programs(error.into()))?))
}

fn netlink(reading: Reading) -> anyhow::Result<Chosen> {
    Ok(Chosen { backend: Box::new(Netlink::open(reading.readers)?), notes: missing() })
}
