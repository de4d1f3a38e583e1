//! clap's errors in the form of every other error: one line that says what is wrong, one hint.
use std::ffi::OsString;
use std::net::{AddrParseError, SocketAddr};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use parshall_host::error::UserError;

use super::guesses;

/// Whether this is the text of `--help` or `--version`, which clap returns as an error.
pub fn is_requested_text(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

/// The error for the user. `arguments` are those of the process: they show which command refused them.
pub fn from_clap(error: &clap::Error, command: &clap::Command, arguments: &[OsString]) -> UserError {
    if let Some(user) = std::error::Error::source(error).and_then(|s| s.downcast_ref::<UserError>()) {
        let flag = words(error, ContextKind::InvalidArg).concat();
        let flag = flag.split_whitespace().next().unwrap_or_default();
        return UserError::new(format!("{flag}: {}", user.what), user.hint.clone());
    }
    let at = commands_in(command, arguments).join(" ");
    let usage = format!("`{at} --help` shows the usage and examples");
    let first = |kind| words(error, kind).into_iter().next().unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let flag = first(ContextKind::InvalidArg);
            let what = if flag.starts_with('-') { "is not an option of" } else { "is not expected by" };
            #[cfg(feature = "sockets")]
            let hint =
                at.strip_prefix("parshall sockets ").and_then(|command| parshall_sockets::cli::hint(command, &flag));
            #[cfg(not(feature = "sockets"))]
            let hint: Option<&str> = None;
            let hint = hint.or_else(|| guesses::of_flag(&at, &flag)).map(str::to_owned);
            let hint = hint.or_else(|| subject_hint(&at, &flag, arguments));
            let hint = hint.unwrap_or_else(|| unknown_argument_hint(error, &flag, &at, usage));
            UserError::new(format!("`{flag}` {what} `{at}`"), hint)
        }
        ErrorKind::InvalidSubcommand => {
            let name = first(ContextKind::InvalidSubcommand);
            let near = words(error, ContextKind::SuggestedSubcommand);
            let hint = if super::parts::left_out().contains(&name.as_str()) {
                format!("this parshall was built without {name}; `make build` builds one with everything")
            } else if let Some(hint) = guesses::of_verb(&at, &name) {
                hint.to_owned()
            } else if near.is_empty() {
                format!("`{at} --help` lists the commands")
            } else {
                did_you_mean(&near)
            };
            UserError::new(format!("`{name}` is not a command of `{at}`"), hint)
        }
        ErrorKind::InvalidValue => invalid_value(error),
        ErrorKind::ValueValidation => unreadable_value(error, usage),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            UserError::new("no command is given", format!("`{at} --help` lists the commands"))
        }
        ErrorKind::MissingRequiredArgument => missing(error, &at, usage),
        ErrorKind::ArgumentConflict => {
            let one = first(ContextKind::InvalidArg);
            let other = words(error, ContextKind::PriorArg);
            let other = other.first().filter(|other| **other != one);
            let what = match other {
                Some(other) => format!("`{one}` and `{other}` cannot be used together"),
                None => format!("`{one}` is given more than once"),
            };
            let hint = match at.as_str() {
                "parshall relay" if other.is_some() => "with -c the file holds all settings: write it into the file",
                "parshall attach" => "leave one of them out; to observe several processes, repeat --pid",
                _ => "leave one of them out",
            };
            UserError::new(what, hint)
        }
        _ => UserError::new(first_line(error), usage),
    }
}

/// A subject without the flag that says what it is.
fn subject_hint(at: &str, word: &str, arguments: &[OsString]) -> Option<String> {
    let is_number = word.chars().all(|c| c.is_ascii_digit());
    let is_path = word.starts_with('/');
    let list = ["--port", "--pid"].into_iter().find(|flag| arguments.iter().any(|argument| argument == flag));
    match at {
        _ if word.starts_with('-') => None,
        "parshall attach" | "parshall try" | "parshall sockets once" | "parshall sockets stream"
            if is_number && list.is_some() =>
        {
            Some(format!("write several with commas between them, as `{} 1,2`", list.unwrap_or_default()))
        }
        "parshall try" if is_number => Some(format!("say what it is: `--port {word}` or `--pid {word}`")),
        "parshall try" => Some(format!("say what it is: `--process {word}`, `--port PORT` or `--pid PID`")),
        "parshall show" => Some("one case is shown at a time: type the command once for each".to_owned()),
        "parshall attach" if is_number => Some(format!("say what it is: `{at} --port {word}` or `{at} --pid {word}`")),
        "parshall attach" if is_path => {
            Some(format!("say what it is: `{at} --cgroup {word}`; a process goes behind --process"))
        }
        "parshall attach" => Some(format!("say what it is: `{at} --process {word}` or `{at} --port PORT`")),
        _ => None,
    }
}

fn unknown_argument_hint(error: &clap::Error, flag: &str, at: &str, usage: String) -> String {
    let near = words(error, ContextKind::SuggestedArg);
    if !near.is_empty() {
        did_you_mean(&near)
    } else if flag.starts_with('-') || at != "parshall run" {
        usage
    } else {
        format!("{usage}; a command to run goes behind `--`, as in `parshall run -- CMD`")
    }
}

fn invalid_value(error: &clap::Error) -> UserError {
    let flag = words(error, ContextKind::InvalidArg).concat();
    let flag = flag.split_whitespace().next().unwrap_or_default();
    let value = words(error, ContextKind::InvalidValue).concat();
    let valid = words(error, ContextKind::ValidValue);
    let near = words(error, ContextKind::SuggestedValue);
    let what = if value.is_empty() {
        format!("{flag} needs a value")
    } else {
        format!("{flag}: `{value}` is not one of its values")
    };
    let hint = match (near.is_empty(), valid.is_empty()) {
        (false, _) => did_you_mean(&near),
        (_, false) => format!("choose one of {}", valid.join(", ")),
        _ => format!("write {}", words(error, ContextKind::InvalidArg).concat()),
    };
    UserError::new(what, hint)
}

/// A value that one of clap's own parsers has refused.
fn unreadable_value(error: &clap::Error, usage: String) -> UserError {
    let flag = words(error, ContextKind::InvalidArg).concat();
    let flag = flag.split_whitespace().next().unwrap_or_default();
    let value = words(error, ContextKind::InvalidValue).concat();
    let Some(source) = std::error::Error::source(error) else { return UserError::new(first_line(error), usage) };
    let reason = source.to_string();
    let (what, hint) = if let Some((_, range)) = reason.split_once(" is not in ") {
        (format!("`{value}` is out of range"), range_hint(range))
    } else if source.is::<std::num::ParseIntError>() {
        (format!("`{value}` is not a whole number"), format!("write a number, as in `{flag} 10`"))
    } else if source.is::<std::num::ParseFloatError>() {
        (format!("`{value}` is not a number"), format!("write a number, as in `{flag} 2.5`"))
    } else if let Some(refused) = source.downcast_ref::<AddrParseError>() {
        let (what, right) = match "".parse::<SocketAddr>() == Err(refused.clone()) {
            true => ("an address and a port", "127.0.0.1:9474"),
            false => ("an IP address", "192.0.2.7"),
        };
        (format!("`{value}` is not {what}"), format!("write it in full, as in `{flag} {right}`"))
    } else {
        (reason, usage)
    };
    UserError::new(format!("{flag}: {what}"), hint)
}

/// Words for the range that clap writes as `1..=64`, or as `1..` with the type's largest number behind it.
fn range_hint(range: &str) -> String {
    let (least, most) = range.split_once("..").unwrap_or((range, ""));
    match most.strip_prefix('=') {
        Some(most) => format!("write a number from {least} to {most}"),
        None => format!("write a number of at least {least}"),
    }
}

fn missing(error: &clap::Error, at: &str, usage: String) -> UserError {
    let names = words(error, ContextKind::InvalidArg);
    if at == "parshall attach" {
        return UserError::new(
            "no subject is given",
            "name one of --port N, --process NAME, --pid N, --cgroup PATH, --netns NAME or --all, as in `parshall attach --port 7000`",
        );
    }
    if at == "parshall try" {
        let what = match names.iter().any(|name| name.contains("CHANGE")) {
            true => "what to change is not given",
            false => "no service is given",
        };
        return UserError::new(
            what,
            "name a change and one of --port N, --process NAME and --pid N, as in `parshall try nodelay --port 7000`",
        );
    }
    if at.starts_with("parshall tunnel ") {
        let verb = at.rsplit(' ').next().unwrap_or_default();
        let hint = match verb {
            "up" => {
                "name the interface, `parshall tunnel up wg0`, for /etc/wireguard/wg0.conf, or a file, as ./wg0.conf"
                    .to_owned()
            }
            _ => format!(
                "name the interface, as in `parshall tunnel {verb} wg0`; `parshall tunnel show` lists those that are up"
            ),
        };
        return UserError::new(format!("{} is not given", names.join(" and ")), hint);
    }
    if at == "parshall lab run" {
        return UserError::new(
            "no case, fault or control is named",
            "`parshall lab list` shows the names; begin with `parshall lab run nagle-stall`",
        );
    }
    if at == "parshall show" {
        return UserError::new(
            "<CASE> is not given",
            "name a file that `--save FILE` has written: `parshall attach --port 7000 --save slow.json`, then `parshall show slow.json`",
        );
    }
    if at == "parshall run" {
        return UserError::new(
            "the command to run is not given",
            "put it behind `--`, as in `parshall run -- ./server --port 7000`",
        );
    }
    UserError::new(format!("{} is not given", names.join(" and ")), usage)
}

fn did_you_mean(near: &[String]) -> String {
    let quoted: Vec<String> = near.iter().map(|n| format!("`{n}`")).collect();
    format!("did you mean {}?", quoted.join(" or "))
}

/// The values that clap attached to an error under a kind of context.
fn words(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(s)) => vec![s.clone()],
        Some(ContextValue::Strings(s)) => s.clone(),
        _ => Vec::new(),
    }
}

/// The chain of commands that the arguments name, such as `["parshall", "attach"]`.
fn commands_in(root: &clap::Command, arguments: &[OsString]) -> Vec<String> {
    let mut chain = vec![root.get_name().to_owned()];
    let mut here = root;
    for word in arguments.iter().skip(1).filter_map(|a| a.to_str()).take_while(|a| *a != "--") {
        if let Some(next) = here.find_subcommand(word) {
            chain.push(next.get_name().to_owned());
            here = next;
        }
    }
    chain
}

/// The first line of clap's message, without its prefix.
fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or("the arguments could not be understood");
    line.strip_prefix("error: ").unwrap_or(line).trim_end_matches('.').to_owned()
}
