//! `parshall relay`: forwards TCP and UDP.
//!
//! What is decided is decided in `parshall_core::relay`; here are the sockets, the threads and the engines. A worker is a
//! thread with its own listeners and connections ([`worker`], [`udp`]); an engine moves the bytes of a direction
//! ([`engine`]); the main thread ([`run`]) starts workers, tells them what changes ([`serve`]) and answers signals; what is
//! asked over the network (names, checks, metrics) is seen to by a thread of its own ([`control`]).
pub mod adjust;
pub mod balancing;
mod check;
pub mod checks;
pub mod command;
pub mod conn;
pub mod control;
pub mod directory;
pub mod engine;
pub mod load;
pub mod log;
pub mod metrics;
pub mod notify;
pub mod open;
pub mod outlets;
pub mod record;
pub mod request;
pub mod resolve;
pub mod room;
mod run;
pub mod serve;
mod serve_udp;
pub mod service;
pub mod stats;
pub mod top;
pub mod udp;
pub mod upgrade;
pub mod worker;

use std::process::ExitCode;

use request::{RelayRequest, Source};

/// `parshall relay`.
pub fn relay(request: &RelayRequest) -> anyhow::Result<ExitCode> {
    match request {
        RelayRequest::Run(Source::Given(config)) => run::run((**config).clone(), None)?,
        RelayRequest::Run(Source::File(path)) => match load::load(path)?.config {
            Ok(config) => run::run(config, Some(path.clone()))?,
            Err(mistakes) => return Ok(load::tell(path, &mistakes)),
        },
        RelayRequest::Check { path, output } => return check::check(path, output),
        RelayRequest::Top { control, output } => return top::top(control.clone(), output),
    }
    Ok(ExitCode::SUCCESS)
}
