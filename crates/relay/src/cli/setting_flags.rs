//! Flags that are also keys of a configuration file, made from the table of settings.
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches, Id};
use parshall_core::relay::config::row::{Flag, Row, Takes};
use parshall_core::relay::config::{Global, Listener};

use parshall_host::error::UserError;

/// A part of the configuration whose settings may be flags.
pub trait Subject: Sized + 'static {
    /// The clap group of its flags, with which other flags conflict.
    const GROUP: &'static str;
    /// Its settings.
    fn rows() -> impl Iterator<Item = &'static Row<Self>>;
}

impl Subject for Global {
    const GROUP: &'static str = "process settings";

    fn rows() -> impl Iterator<Item = &'static Row<Self>> {
        Self::ROWS.iter()
    }
}

impl Subject for Listener {
    const GROUP: &'static str = "listener settings";

    fn rows() -> impl Iterator<Item = &'static Row<Self>> {
        Self::rows()
    }
}

/// The flags that were given.
#[derive(Debug)]
pub struct SettingFlags<S: Subject> {
    /// Each setting with the texts of its values.
    pub given: Vec<(&'static Row<S>, Vec<String>)>,
}

fn flags<S: Subject>() -> impl Iterator<Item = (&'static Row<S>, Flag)> {
    S::rows().filter_map(|row| Some((row, row.more.flag?)))
}

impl<S: Subject> FromArgMatches for SettingFlags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        for (row, flag) in flags::<S>() {
            let texts: Vec<String> = match row.field.takes() {
                Takes::Nothing if matches.get_flag(flag.name) => vec![String::new()],
                Takes::Nothing => continue,
                _ => matches.get_many::<String>(flag.name).into_iter().flatten().cloned().collect(),
            };
            if !texts.is_empty() {
                given.push((row, texts));
            }
        }
        Ok(Self { given })
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Err(clap::Error::raw(ErrorKind::InvalidValue, "flags are read once"))
    }
}

impl<S: Subject> Args for SettingFlags<S> {
    fn group_id() -> Option<Id> {
        Some(Id::from(S::GROUP))
    }

    fn augment_args(command: Command) -> Command {
        let names: Vec<&str> = flags::<S>().map(|(_, flag)| flag.name).collect();
        let command = flags::<S>().fold(command, |command, (row, flag)| command.arg(arg(row, flag)));
        command.group(ArgGroup::new(S::GROUP).multiple(true).args(names))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg<S: Subject>(row: &'static Row<S>, flag: Flag) -> Arg {
    let arg = Arg::new(flag.name).long(flag.name).help(help(row, flag));
    // Here the value is only checked. It is read once all flags are known, because a list takes all its values together.
    let read = move |text: &str| row.field.parse(&[text]).map(|_| text.to_owned()).map_err(UserError::from);
    match row.field.takes() {
        Takes::Nothing => arg.action(ArgAction::SetTrue),
        Takes::Names(names) => arg.value_name(flag.value).value_parser(PossibleValuesParser::new(names)),
        Takes::List => arg.value_name(flag.value).action(ArgAction::Append).value_parser(read),
        Takes::Text => arg.value_name(flag.value).value_parser(read),
    }
}

fn help<S: 'static>(row: &Row<S>, flag: Flag) -> String {
    let mut help = row.help.to_owned();
    if let Some(first) = help.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    if row.field.takes() == Takes::List {
        help.push_str("; may be given several times");
    }
    if !flag.default.is_empty() {
        help.push_str(&format!(" [default: {}]", flag.default));
    }
    help
}
