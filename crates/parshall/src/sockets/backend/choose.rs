//! Which backend reads: the one that was asked for, or the best that works here.
use anyhow::Context;
use parshall_core::sockets::Selection;

use super::Backend;
use super::iter::Iter;
use super::netlink::{Netlink, Options};
use super::walk::Walk;
use crate::error::UserError;
use crate::sockets::request::{BackendChoice, Reading};

/// A backend, and why it is not a better one.
pub struct Chosen {
    /// The backend.
    pub backend: Box<dyn Backend>,
    /// One sentence per better backend that does not work here, and what this one does not see.
    pub notes: Vec<String>,
}

/// Opens the backend.
///
/// # Errors
/// The one that was asked for does not work here.
pub fn choose(reading: Reading, selection: &Selection) -> anyhow::Result<Chosen> {
    let refused = |name: &str, error: anyhow::Error| -> anyhow::Error {
        UserError::new(
            format!("the backend {name} does not work here: {error:#}"),
            "leave --backend out for the best that does; `parshall doctor` says what this host offers",
        )
        .into()
    };
    match reading.backend {
        BackendChoice::Walk => walk().map_err(|e| refused("walk", e)).map(alone),
        BackendChoice::Iter => iter(selection).map_err(|e| refused("iter", e)).map(alone),
        BackendChoice::Netlink => netlink(reading).map_err(|e| refused("netlink", e)),
        BackendChoice::Auto => {
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

fn alone(backend: Box<dyn Backend>) -> Chosen {
    Chosen { backend, notes: Vec::new() }
}

fn walk() -> anyhow::Result<Box<dyn Backend>> {
    Ok(Box::new(Walk::open()?))
}

fn iter(selection: &Selection) -> anyhow::Result<Box<dyn Backend>> {
    Ok(Box::new(Iter::load(selection.kinds)?))
}

fn netlink(reading: Reading) -> anyhow::Result<Chosen> {
    let backend = Netlink::open(Options { readers: reading.readers, uring: reading.uring, keep: 0 })?;
    let notes = backend.missing();
    Ok(Chosen { backend: Box::new(backend), notes })
}
