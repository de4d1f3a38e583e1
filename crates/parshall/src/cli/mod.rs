//! The command line: the one place where arguments are parsed and lowered into a validated config.
//!
//! `args.rs` declares the flags, `config.rs` lowers them, `mistake.rs` turns every refusal into one `error:` and one
//! `hint:` line. What a command does belongs to its own room; nothing here looks at the host.
mod args;
mod config;
mod help;
mod mistake;
mod relay;
mod sockets;
mod value;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command};
pub use value::window;

pub use config::{AttachConfig, Destination, DoctorConfig, Format, Output, ResultConfig, RunConfig, ShowConfig};

use crate::error::UserError;

/// What the arguments ask for.
#[derive(Debug)]
pub enum Invocation {
    /// Run a command.
    Do(Box<Request>),
    /// Print this text to stdout (help or version) and stop.
    Print(String),
}

/// A command with its validated config.
#[derive(Debug)]
pub enum Request {
    /// `parshall attach`.
    Attach(AttachConfig),
    /// `parshall run`.
    Run(RunConfig),
    /// `parshall show`.
    Show(ShowConfig),
    /// `parshall doctor`.
    Doctor(DoctorConfig),
    /// `parshall relay`.
    Relay(crate::relay::request::RelayRequest),
    /// `parshall sockets`.
    Sockets(crate::sockets::request::SocketsRequest),
    /// `parshall lab`.
    Lab(crate::lab::LabArgs),
}

/// Parses the arguments of the process, its name first.
pub fn parse<I, T>(arguments: I) -> Result<Invocation, UserError>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    let arguments = asked_for_help(arguments.into_iter().map(Into::into).collect());
    let mut command = help::unbroken(Cli::command());
    let parsed = command.try_get_matches_from_mut(&arguments).and_then(|m| Cli::from_arg_matches(&m));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) if mistake::is_answer(&error) => {
            return Ok(Invocation::Print(help::rendered(&error.render().to_string())));
        }
        Err(error) => return Err(mistake::lower(&error, &command, &arguments)),
    };
    let request = match cli.command {
        Command::Attach(args) => Request::Attach(args.lower()?),
        Command::Run(args) => Request::Run(args.lower()?),
        Command::Show(args) => Request::Show(args.lower()?),
        Command::Doctor(args) => Request::Doctor(args.lower()),
        Command::Relay(args) => Request::Relay(args.lower()?),
        Command::Sockets(args) => Request::Sockets(args.lower()?),
        Command::Lab(args) => Request::Lab(args),
    };
    Ok(Invocation::Do(Box::new(request)))
}

/// `parshall help lab run` means `parshall lab run --help`. clap's own `help` command would stand in every list of commands.
fn asked_for_help(mut arguments: Vec<OsString>) -> Vec<OsString> {
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
