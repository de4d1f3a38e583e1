//! parshall: finds out why traffic on a Linux host is slow, proves it with evidence from the kernel, and fixes it.
//!
//! `main` parses, hands over to the product that the command belongs to, and turns what comes back into an exit code:
//! 0 done, 1 it failed, 2 wrong usage.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use cli::{Invocation, Request};
use parshall_diagnose::{command, doctor, trial};
use parshall_host::{error, log, output};

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The arguments make no sense.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    // Before anything is opened: what was handed over is a range of descriptors.
    parshall_sys::handover::claim();
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == command::GATE => return command::become_command(words),
        Some(word) if word == trial::GUARDIAN => return trial::guard(),
        _ => {}
    }
    let request = match cli::parse(std::env::args_os()) {
        Ok(Invocation::Do { request, log_steps }) => log::start(log_steps).map(|()| request),
        Ok(Invocation::Print(text)) => return error::exit(output::print(&text).map(|()| ExitCode::SUCCESS)),
        Err(error) => Err(error),
    };
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            error::print(&error);
            return ExitCode::from(WRONG_USAGE);
        }
    };
    parshall_bpf::log_libbpf();
    error::exit(match *request {
        Request::Attach(request) => parshall_diagnose::attach(&request),
        Request::Run(request) => parshall_diagnose::run(&request),
        Request::Show(request) => parshall_diagnose::show(&request),
        Request::Try(request) => trial::try_change(&request),
        Request::Doctor(request) => doctor::doctor(&request),
        #[cfg(feature = "relay")]
        Request::Relay(request) => parshall_relay::relay(&request),
        #[cfg(feature = "sockets")]
        Request::Sockets(request) => parshall_sockets::sockets(request),
        #[cfg(feature = "tunnel")]
        Request::Tunnel(request) => parshall_tunnel::tunnel(&request),
        #[cfg(feature = "lab")]
        Request::Lab(request) => parshall_lab::run(&request),
    })
}
