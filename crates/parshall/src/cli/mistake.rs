//! clap's errors, lowered into the shape of every other mistake: one line that says what is wrong, one hint.
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::error::UserError;

/// Help and version come back from clap as errors; they are answers.
pub fn is_answer(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

/// Lowers an error. `arguments` tells at which command it happened.
pub fn lower(error: &clap::Error, command: &clap::Command, arguments: &[OsString]) -> UserError {
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
            UserError::new(format!("`{flag}` {what} `{at}`"), unknown_argument_hint(error, &flag, usage))
        }
        ErrorKind::InvalidSubcommand => {
            let name = first(ContextKind::InvalidSubcommand);
            let near = words(error, ContextKind::SuggestedSubcommand);
            let hint = if near.is_empty() { format!("`{at} --help` lists the commands") } else { did_you_mean(&near) };
            UserError::new(format!("`{name}` is not a command of `{at}`"), hint)
        }
        ErrorKind::InvalidValue => invalid_value(error),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            UserError::new("no command is given", format!("`{at} --help` lists the commands"))
        }
        ErrorKind::MissingRequiredArgument => missing(error, &at, usage),
        ErrorKind::ArgumentConflict => {
            let one = first(ContextKind::InvalidArg);
            let other = words(error, ContextKind::PriorArg);
            let what = match other.first() {
                Some(other) if *other != one => format!("`{one}` and `{other}` cannot be used together"),
                _ => format!("`{one}` is given more than once"),
            };
            let hint = match at.as_str() {
                "parshall relay" if what.contains("together") => {
                    "with -c the file says everything: write it into the file"
                }
                "parshall attach" => "leave one of them out; to observe several processes, repeat --pid",
                _ => "leave one of them out",
            };
            UserError::new(what, hint)
        }
        _ => UserError::new(first_line(error), usage),
    }
}

fn unknown_argument_hint(error: &clap::Error, flag: &str, usage: String) -> String {
    let near = words(error, ContextKind::SuggestedArg);
    if !near.is_empty() {
        did_you_mean(&near)
    } else if flag.starts_with('-') || !usage.contains(" run ") {
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

fn missing(error: &clap::Error, at: &str, usage: String) -> UserError {
    let names = words(error, ContextKind::InvalidArg);
    if at.ends_with(" attach") {
        return UserError::new(
            "whom to observe is not given",
            "name one of --pid N, --port N, --cgroup PATH, --netns NAME or --all, as in `parshall attach --port 7000`",
        );
    }
    if at.ends_with(" run") {
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

/// The words that clap attached to an error under a kind.
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

/// clap's own words, without its prefix and its paragraphs.
fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or("the arguments could not be understood");
    line.strip_prefix("error: ").unwrap_or(line).trim_end_matches('.').to_owned()
}
