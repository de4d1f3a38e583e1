//! `parshall sockets`: the state of every socket of every network namespace.
//!
//! A [`backend`] gives records in batches that are read in place; names, owners and rates are joined to them as rows;
//! a [`mod@format`] turns rows into bytes; a [`sink`] takes rows and answers for what became of them.
pub mod backend;
mod collect;
#[cfg(test)]
mod contrib;
pub mod endpoint;
pub mod format;
mod losses;
pub mod names;
pub mod namespaces;
mod once;
pub mod owners;
pub mod profile;
pub mod request;
pub mod self_metrics;
pub mod sink;
mod stream;
#[cfg(test)]
mod testing;
mod wanted;
pub mod wire;

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

/// Something that a user should know, on stderr.
fn note(text: &str) {
    use std::io::Write;
    // Whoever has closed stderr does not want to know.
    let _told = writeln!(std::io::stderr(), "note: {text}");
}
