//! The command line: the products' own flags under one name.
//!
//! `args.rs` lists the commands, `manual.rs` makes man pages and completions of them, `usage_error.rs` turns every refusal into one
//! `error:` and one `hint:` line, and `guesses.rs` has those for the words of other tools. Flags and their
//! validation belong to each product's `cli` module; nothing here reads from the host.
mod args;
mod guesses;
mod help;
mod manual;
mod parts;
mod usage_error;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};
use parshall_diagnose::request::{AttachRequest, DoctorRequest, RunRequest, ShowRequest};
use parshall_diagnose::trial::TryRequest;
use parshall_evidence::RelayStart;
use parshall_host::error::UserError;

use args::{Cli, Command};

/// The request that the arguments make.
#[derive(Debug)]
pub enum Invocation {
    /// Run a command.
    Do {
        #[allow(missing_docs)]
        request: Box<Request>,
        /// Levels of the log above the default, as [`parshall_host::log::start`] takes them.
        log_steps: i32,
    },
    /// Print this text to stdout (help or version) and stop.
    Print(String),
}

/// A validated command.
#[derive(Debug)]
pub enum Request {
    Attach(AttachRequest),
    Run(RunRequest),
    Show(ShowRequest),
    Try(TryRequest),
    Doctor(DoctorRequest),
    #[cfg(feature = "relay")]
    Relay(parshall_relay::request::RelayRequest),
    #[cfg(feature = "sockets")]
    Sockets(parshall_sockets::request::SocketsRequest),
    #[cfg(feature = "tunnel")]
    Tunnel(parshall_tunnel::request::TunnelRequest),
    #[cfg(feature = "lab")]
    Lab(parshall_lab::request::LabRequest),
}

/// Parses the arguments of the process, its name first.
pub fn parse<I, T>(arguments: I) -> Result<Invocation, UserError>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    let arguments = asked_for_help(arguments.into_iter().map(Into::into).collect());
    let mut command = help::unbroken(manual::with_commands(Cli::command()));
    let matched = command.try_get_matches_from_mut(&arguments);
    if let Some(printed) = matched.as_ref().ok().and_then(|matches| manual::asked_for(matches, Cli::command)) {
        return printed.map(Invocation::Print);
    }
    let cli = match matched.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) if usage_error::is_requested_text(&error) => {
            return Ok(Invocation::Print(help::rendered(&error.render().to_string())));
        }
        Err(error) => return Err(usage_error::from_clap(&error, &command, &arguments)),
    };
    let log_steps = i32::from(cli.verbose) - i32::from(cli.quiet);
    let request = match cli.command {
        Command::Attach(args) => Request::Attach(args.validate(relay_start)?),
        Command::Run(args) => Request::Run(args.validate(relay_start)?),
        Command::Show(args) => Request::Show(args.validate()?),
        Command::Try(args) => Request::Try(args.validate()?),
        Command::Doctor(args) => Request::Doctor(args.validate()),
        #[cfg(feature = "relay")]
        Command::Relay(args) => Request::Relay(args.validate()?),
        #[cfg(feature = "sockets")]
        Command::Sockets(args) => Request::Sockets(args.validate()?),
        #[cfg(feature = "tunnel")]
        Command::Tunnel(args) => Request::Tunnel(args.validate()?),
        #[cfg(feature = "lab")]
        Command::Lab(args) => Request::Lab(args.validate()?),
    };
    Ok(Invocation::Do { request: Box::new(request), log_steps })
}

/// How a command line of parshall starts a relay; None when it starts none. `words` begin with the program's name.
#[cfg(feature = "relay")]
fn relay_start(words: &[String]) -> Option<RelayStart> {
    use parshall_core::relay::config::value::{ENGINES, name_of};
    use parshall_relay::request::{RelayRequest, Source};

    let Ok(Invocation::Do { request, .. }) = parse(words) else { return None };
    let Request::Relay(RelayRequest::Run(source)) = *request else { return None };
    Some(match source {
        Source::File(path) => RelayStart::File { config: path.display().to_string() },
        Source::Given(config) => {
            let listener = config.listeners.first()?;
            let engine = name_of(&ENGINES, &listener.engine).to_owned();
            RelayStart::Flags { engine, buffer_bytes: listener.buffer as u64 }
        }
    })
}

#[cfg(not(feature = "relay"))]
fn relay_start(_: &[String]) -> Option<RelayStart> {
    None
}

/// `parshall` alone means `parshall --help`, and `parshall help lab run` means `parshall lab run --help`. clap's own `help` command would
/// stand in every list of commands.
fn asked_for_help(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.len() == 1 {
        arguments.push("--help".into());
    }
    if arguments.get(1).is_some_and(|word| word == "help") {
        arguments.remove(1);
        arguments.push("--help".into());
    }
    arguments
}

/// The declared command line, for man pages and completions.
#[cfg(test)]
fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests;
