//! `parshall relay`: forwards TCP and UDP.
//!
//! Decisions are made in `parshall_core::relay`; this crate has the sockets, the threads and the engines. A worker is a
//! thread with its own listeners and connections ([`worker`], [`udp`]). An engine moves the bytes of a direction
//! ([`engine`]). The main thread ([`run`]) starts the workers, sends them new configurations ([`serve`]) and handles signals.
//! The control thread ([`control`]) resolves names, checks targets and serves metrics.
#![forbid(unsafe_code)]
// Not a library for others: a doc comment stands where it says more than the name.
#![allow(missing_docs)]

mod adjust;
mod check;
pub mod cli;
mod command;
mod connection_limit;
mod control;
mod engine;
mod listener;
mod load;
mod log;
mod management;
mod notify;
mod open;
mod own_address;
mod record;
pub mod request;
mod run;
mod serve;
mod serve_udp;
mod service;
mod stats;
mod top;
mod udp;
mod upgrade;
mod worker;

use std::process::ExitCode;

use request::{RelayRequest, Source};

/// `parshall relay`.
pub fn relay(request: &RelayRequest) -> anyhow::Result<ExitCode> {
    match request {
        RelayRequest::Run(Source::Given(config)) => run::run((**config).clone(), None)?,
        RelayRequest::Run(Source::File(path)) => match load::load(path)?.config {
            Ok(config) => run::run(config, Some(path.clone()))?,
            Err(errors) => return Ok(load::print_errors(path, &errors)),
        },
        RelayRequest::Check { path, output } => return check::check(path, output),
        RelayRequest::Top { control, output } => return top::top(control.clone(), output),
    }
    Ok(ExitCode::SUCCESS)
}
