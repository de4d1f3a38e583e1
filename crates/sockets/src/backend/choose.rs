//! The choice of the backend: the one that `--backend` names, or the best that works on this host.
use std::fs;

use anyhow::Context;
use parshall_bpf::kernel_release;
use parshall_core::sockets::cost::{HostSockets, iterators_are_cheaper, iterators_see_all};
use parshall_evidence::socket::Selection;

use super::Backend;
use super::iter::Iter;
use super::netlink::{CAP_SYS_ADMIN, Netlink, Options, effective_capabilities};
use super::walk::WalkBackend;
use crate::namespaces::Discovery;
use crate::request::{BackendChoice, Reading};
use parshall_host::error::UserError;
use parshall_host::lockdown;
use parshall_sys::limits;

pub struct Chosen {
    pub backend: Box<dyn Backend>,
    /// Why each better backend does not work here, and what this one does not see: a sentence each.
    pub notes: Vec<String>,
}

/// The number of dumps that the backend will read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dumps {
    /// The cost of loading matters most.
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
        BackendChoice::Iter => iter(selection).map_err(|e| refused("iter", e)).map(alone),
        BackendChoice::Netlink => netlink(reading).map_err(|e| refused("netlink", e)),
        BackendChoice::Auto => {
            // The iterators return the same rows with the same keys. If they fail here, the walk is tried as usual.
            if let Some(backend) = (dumps == Dumps::One).then(|| iterators_if_cheaper(selection)).flatten() {
                return Ok(alone(backend));
            }
            let mut notes = Vec::new();
            let mut note = |name: &str, error: anyhow::Error| notes.push(format!("not read by {name}: {error:#}"));
            match walk() {
                Ok(backend) => return Ok(alone(backend)),
                Err(error) => note("walk", error),
            }
            match iter(selection) {
                Ok(backend) => return Ok(Chosen { backend, notes }),
                Err(error) => note("iter", error),
            }
            let mut chosen = netlink(reading).context("no backend works here")?;
            notes.append(&mut chosen.notes);
            Ok(Chosen { notes, ..chosen })
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

/// The iterators, if they are cheaper than the walk and find the same sockets.
fn iterators_if_cheaper(selection: &Selection) -> Option<Box<dyn Backend>> {
    let capabilities = effective_capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let own = HostSockets::read(&fs::read_to_string("/proc/net/sockstat").ok()?);
    // Without CAP_SYS_ADMIN only the walk reads other namespaces. They are counted last, because that reads all of /proc.
    if capabilities >> CAP_SYS_ADMIN & 1 == 0 || !iterators_are_cheaper(own.max(), 1) {
        return None;
    }
    let mut discovery = Discovery::default();
    let namespaces = discovery.scan(&[]).namespaces.len();
    let own6 = HostSockets::read(&fs::read_to_string("/proc/net/sockstat6").unwrap_or_default());
    // The UDP-Lite sockets of other namespaces are not counted anywhere.
    let udp_lite = namespaces > 1 || own.udp_lite + own6.udp_lite > 0;
    if !iterators_see_all(selection, udp_lite) || !iterators_are_cheaper(own.max(), namespaces as u64) {
        return None;
    }
    Some(Box::new(Iter::load_with(selection.kinds, discovery).ok()?))
}

fn walk() -> anyhow::Result<Box<dyn Backend>> {
    Ok(Box::new(WalkBackend::open().map_err(|error| of_programs(error.into()))?))
}

fn iter(selection: &Selection) -> anyhow::Result<Box<dyn Backend>> {
    Ok(Box::new(Iter::load(selection.kinds).map_err(of_programs)?))
}

fn netlink(reading: Reading) -> anyhow::Result<Chosen> {
    let backend = Netlink::open(Options { readers: reading.readers, uring: reading.uring, keep: 0 })?;
    let notes = backend.missing();
    Ok(Chosen { backend: Box::new(backend), notes })
}
