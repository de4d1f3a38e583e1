//! `parshall sockets`: the state of every socket of every network namespace.
//!
//! A [`backend`] gives records in batches that are read in place; names, owners and rates are joined to them as rows;
//! a [`mod@format`] turns rows into bytes; a [`sink`] takes rows and answers for what became of them.
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

/// Does what was asked for.
///
/// # Errors
/// Nothing can be read or written.
pub fn sockets(request: SocketsRequest) -> anyhow::Result<ExitCode> {
    match request {
        SocketsRequest::Once(request) => once::once(&request),
        SocketsRequest::Stream(request) => stream::stream(request),
    }
}
