//! `parshall sockets`: the state of every socket of every network namespace.
//!
//! A [`backend`] returns records in batches that are read in place. [`collect`] joins them with names, owners and rates to
//! rows. A [`mod@format`] encodes rows. A [`sink`] delivers rows, and counts what was delivered and what was lost.
#![forbid(unsafe_code)]
// Not a library for others: a comment stands where it says more than the name.
#![allow(missing_docs)]

mod backend;
pub mod cli;
mod collect;
mod format;
mod losses;
mod names;
mod namespaces;
mod once;
mod owners;
pub mod request;
mod sink;
mod stream;
#[cfg(test)]
mod testkit;
mod wire;

use std::process::ExitCode;

use request::SocketsRequest;

/// Runs `parshall sockets once` or `stream`.
///
/// # Errors
/// See [`once::once`] and [`stream::stream`].
pub fn sockets(request: SocketsRequest) -> anyhow::Result<ExitCode> {
    match request {
        SocketsRequest::Once(request) => once::once(&request),
        SocketsRequest::Stream(request) => stream::stream(request),
    }
}
