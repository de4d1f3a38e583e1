//! parshall: finds out why traffic on a Linux host is slow, proves it with evidence from the kernel, and fixes it.
//!
//! `main` parses, hands over to the room of the command, and turns what comes back into an exit code:
//! 0 done, 1 it failed, 2 wrong usage.
#![forbid(unsafe_code)]

mod bounded;
mod cli;
mod diagnose;
mod doctor;
mod error;
mod foreign_file;
mod http;
mod lab;
mod private_file;
mod relay;
mod report;
mod sockets;
#[cfg(test)]
mod testing;
mod utc;

use std::process::ExitCode;

use cli::{Invocation, Request};

/// The arguments make no sense.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    // Before anything is opened: what was handed over is a range of descriptors.
    parshall_sys::handover::claim();
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|w| w == diagnose::command::GATE) {
        return diagnose::command::become_command(words);
    }
    let request = match cli::parse(std::env::args_os()) {
        Ok(Invocation::Do(request)) => request,
        Ok(Invocation::Print(text)) => return error::exit(report::print(&text).map(|()| ExitCode::SUCCESS)),
        Err(mistake) => {
            error::tell(&mistake);
            return ExitCode::from(WRONG_USAGE);
        }
    };
    parshall_bpf::probes::quiet_libbpf();
    error::exit(match *request {
        Request::Attach(config) => diagnose::attach(&config),
        Request::Run(config) => diagnose::run(&config),
        Request::Show(config) => diagnose::show(&config),
        Request::Doctor(config) => doctor::doctor(&config),
        Request::Relay(request) => relay::relay(&request),
        Request::Sockets(request) => sockets::sockets(request),
        Request::Lab(args) => lab::run(&args),
    })
}
