//! A row of the table of settings, which describes one setting. The parsers, the flags of the command line, the output of
//! `relay check` and the reference in docs/relay.md are made from the rows in [`super::table`].
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::model::{AccessRule, Balance, EngineChoice, LogTo, ProxyVersion};
use super::read::{Entry, Reader};
use super::value::{BALANCES, ENGINES, PROXY_VERSIONS, name_of};
use crate::networks::networks;
use crate::text::{quote, suggest};
use crate::values::{ValueError, duration_text};

/// A setting of `S`, which is a listener, the process or a health check.
pub struct Row<S: 'static> {
    /// The key in a file, after the name of its table and a dot if it is in one.
    pub key: &'static str,
    /// A value in TOML, for the reference and hints.
    pub example: &'static str,
    /// Its effect, in lower case and without a full stop, for the reference and `--help`.
    pub help: &'static str,
    /// The field that it sets.
    pub field: &'static dyn Field<S>,
    /// Properties that few settings have.
    pub more: More<S>,
}

/// Properties that few settings have. [`More::of`] has the values of the others.
pub struct More<S: 'static> {
    /// Its section in the output of `relay check`.
    pub section: Section,
    /// The default in words, where the example shows another value.
    pub default: &'static str,
    /// The unit that is appended to the key in JSON.
    pub unit: &'static str,
    /// Zero means off: it is null in JSON.
    pub zero_is_off: bool,
    /// Its flag on the command line.
    pub flag: Option<Flag>,
    /// Its text in `relay check`, from the subject and a subject with all defaults. Without it the text is the key and the
    /// value, unless that is the default.
    pub describe: Option<fn(&S, &S) -> Option<String>>,
    /// It takes effect when the process starts: a reload does not change it.
    pub at_start: bool,
    /// The hint for its use in a UDP listener, if it is for TCP only.
    pub tcp_only: Option<&'static str>,
    /// The hint for its use in a TCP listener, if it is for UDP only.
    pub udp_only: Option<&'static str>,
    /// Whether the value turns the setting off, which fits every listener.
    pub is_off: fn(&S) -> bool,
    /// Whether the value needs the address of the client.
    pub by_client: fn(&S) -> bool,
}

impl<S> More<S> {
    /// The section alone, and no other property.
    pub const fn of(section: Section) -> Self {
        Self {
            section,
            default: "",
            unit: "",
            zero_is_off: false,
            flag: None,
            describe: None,
            at_start: false,
            tcp_only: None,
            udp_only: None,
            is_off: |_| false,
            by_client: |_| false,
        }
    }
}

/// Groups of settings in the order in which `relay check` prints them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Section {
    Process,
    Forwarding,
    Limits,
    Timeouts,
    Addresses,
    Sockets,
    Health,
    Access,
}

/// A flag of the command line.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Its name without the dashes.
    pub name: &'static str,
    /// The name of its value in `--help`; not used by a flag without a value.
    pub value: &'static str,
    /// The default in `--help`; empty to leave it out.
    pub default: &'static str,
}

/// A flag whose default `--help` leaves out.
pub const fn flag(name: &'static str, value: &'static str) -> Option<Flag> {
    Some(Flag { name, value, default: "" })
}

/// A flag whose default `--help` prints.
pub const fn flag_default(name: &'static str, value: &'static str, default: &'static str) -> Option<Flag> {
    Some(Flag { name, value, default })
}

/// A function that sets a field to the value that was read.
pub type Set<S> = Arc<dyn Fn(&mut S) + Send + Sync>;

/// The field of a setting, whatever its type.
pub trait Field<S>: Sync {
    /// Reads the value of an entry in TOML; None if it is invalid, which adds an error.
    fn read(&self, reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, example: &str) -> Option<Set<S>>;
    /// Reads the values of a flag: one, or several of a list.
    fn parse(&self, texts: &[&str]) -> Result<Set<S>, ValueError>;
    /// The kind of value of its flag.
    fn takes(&self) -> Takes;
    /// Whether two subjects differ in it.
    fn differs(&self, a: &S, b: &S) -> bool;
    /// Its value for output.
    fn shown(&self, subject: &S) -> Shown;
}

/// The kind of value of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Takes {
    /// No value: the flag means true.
    Nothing,
    /// One text.
    Text,
    /// One of these names.
    Names(Vec<&'static str>),
    /// A list of texts, for which the flag is given several times.
    List,
}

/// How a field of the type `T` is read.
pub enum Read<T: 'static> {
    /// From a string or a number.
    Text(fn(&str) -> Result<T, ValueError>),
    /// From a string or a number; `false` means the same as `off`.
    TextOrFalse(fn(&str) -> Result<T, ValueError>),
    /// From `true` or `false`.
    Flag(fn(bool) -> T),
    /// From one of these names.
    Names(&'static [(&'static str, T)]),
    /// From a list of networks that is not empty.
    Networks(fn(Vec<IpNet>) -> T),
    /// From a table or a boolean.
    Table(fn(&mut Reader<'_, '_>, &Entry<'_, '_>) -> Option<T>),
    /// Together with other keys, by `toml/access.rs`.
    Elsewhere,
}

/// A field of the type `T` of `S`.
pub struct Typed<S, T: 'static> {
    /// How it is read.
    pub read: Read<T>,
    /// Borrows the field.
    pub get: fn(&S) -> &T,
    /// Borrows the field to change it.
    pub get_mut: fn(&mut S) -> &mut T,
}

impl<S: 'static, T: Show + Clone + PartialEq + Send + Sync> Typed<S, T> {
    fn set(&self, value: T) -> Set<S> {
        let place = self.get_mut;
        Arc::new(move |subject| place(subject).clone_from(&value))
    }
}

/// The value of one of these names.
pub fn pick<T: Clone>(names: &[(&str, T)], text: &str) -> Result<T, ValueError> {
    names.iter().find(|(name, _)| *name == text).map(|(_, value)| value.clone()).ok_or_else(|| {
        let words: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        ValueError::new(format!("{} is not one of its values", quote(text)), suggest(text, &words))
    })
}

impl<S: 'static, T: Show + Clone + PartialEq + Send + Sync> Field<S> for Typed<S, T> {
    fn read(&self, reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, example: &str) -> Option<Set<S>> {
        let value = match &self.read {
            Read::TextOrFalse(parse) if reader.is_false(entry) => parse("off").ok(),
            Read::Text(parse) | Read::TextOrFalse(parse) => reader.parsed(entry, example, parse),
            Read::Flag(from) => reader.flag(entry).map(from),
            Read::Names(names) => reader.parsed(entry, example, |text| pick(names, text)),
            Read::Networks(from) => Some(from(reader.networks(entry, example))),
            Read::Table(read) => read(reader, entry),
            Read::Elsewhere => None,
        };
        value.map(|value| self.set(value))
    }

    fn parse(&self, texts: &[&str]) -> Result<Set<S>, ValueError> {
        let text = texts.last().copied().unwrap_or_default();
        let value = match &self.read {
            Read::Text(parse) | Read::TextOrFalse(parse) => parse(text)?,
            Read::Flag(from) => from(true),
            Read::Names(names) => pick(names, text)?,
            Read::Networks(from) => {
                let each = texts.iter().map(|text| networks(text)).collect::<Result<Vec<_>, _>>()?;
                from(each.concat())
            }
            Read::Table(_) | Read::Elsewhere => {
                return Err(ValueError::new("this setting has no flag", "write it into a file"));
            }
        };
        Ok(self.set(value))
    }

    fn takes(&self) -> Takes {
        match &self.read {
            Read::Flag(_) => Takes::Nothing,
            Read::Names(names) => Takes::Names(names.iter().map(|(name, _)| *name).collect()),
            Read::Networks(_) => Takes::List,
            _ => Takes::Text,
        }
    }

    fn differs(&self, a: &S, b: &S) -> bool {
        (self.get)(a) != (self.get)(b)
    }

    fn shown(&self, subject: &S) -> Shown {
        (self.get)(subject).show()
    }
}

impl<S> fmt::Debug for Row<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key)
    }
}

impl<S> Row<S> {
    /// The table that it is in; empty for the listener itself or the top of the file.
    pub fn table(&self) -> &'static str {
        self.key.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// The key within its table.
    pub fn name(&self) -> &'static str {
        self.key.rsplit_once('.').map_or(self.key, |(_, name)| name)
    }

    /// A line of a file that sets it.
    pub fn line(&self) -> String {
        format!("{} = {}", self.name(), self.example)
    }

    /// Its text in `relay check`, where `defaults` has every default; None if there is nothing to print.
    pub fn describe(&self, subject: &S, defaults: &S) -> Option<String> {
        match self.more.describe {
            Some(describe) => describe(subject, defaults),
            None => {
                let changed = self.field.differs(subject, defaults);
                changed.then(|| format!("{} {}", self.key, self.field.shown(subject)))
            }
        }
    }

    /// The name of its value in JSON.
    pub fn json_key(&self) -> String {
        format!("{}{}", self.name().replace('-', "_"), self.more.unit)
    }
}

/// A value for text and JSON output.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Shown {
    /// No limit, off, or left to the system.
    Nothing,
    Flag(bool),
    Number(u64),
    Time(Duration),
    Text(String),
    List(Vec<Shown>),
    /// Keys as in JSON, with their values.
    Table(Vec<(String, Shown)>),
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("off"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Time(time) => f.write_str(&duration_text(*time)),
            Self::Text(text) => f.write_str(text),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::to_string).collect();
                f.write_str(&items.join(", "))
            }
            Self::Table(entries) => {
                let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key} {value}")).collect();
                f.write_str(&entries.join(", "))
            }
        }
    }
}

/// A type whose values can be output.
pub trait Show {
    /// The value.
    fn show(&self) -> Shown;
}

macro_rules! show {
    ($($T:ty: |$value:ident| $shown:expr;)*) => {
        $(impl Show for $T {
            fn show(&self) -> Shown {
                let $value = self;
                $shown
            }
        })*
    };
}

show! {
    bool: |v| Shown::Flag(*v);
    u16: |v| Shown::Number((*v).into());
    u32: |v| Shown::Number((*v).into());
    u64: |v| Shown::Number(*v);
    usize: |v| Shown::Number(*v as u64);
    String: |v| Shown::Text(v.clone());
    Duration: |v| Shown::Time(*v);
    IpAddr: |v| Shown::Text(v.to_string());
    SocketAddr: |v| Shown::Text(v.to_string());
    IpNet: |v| Shown::Text(v.to_string());
    EngineChoice: |v| Shown::Text(name_of(&ENGINES, v).to_owned());
    Balance: |v| Shown::Text(name_of(&BALANCES, v).to_owned());
    ProxyVersion: |v| Shown::Text(name_of(&PROXY_VERSIONS, &Some(*v)).to_owned());
    AccessRule: |v| Shown::Table(vec![
        ("allow".to_owned(), v.allow.show()),
        ("network".to_owned(), v.network.show()),
    ]);
    LogTo: |v| match v {
        LogTo::Nowhere => Shown::Nothing,
        LogTo::Stdout => Shown::Text("stdout".to_owned()),
        LogTo::File(path) => Shown::Text(path.clone()),
    };
}

impl<T: Show> Show for Option<T> {
    fn show(&self) -> Shown {
        self.as_ref().map_or(Shown::Nothing, Show::show)
    }
}

impl<T: Show> Show for Vec<T> {
    fn show(&self) -> Shown {
        Shown::List(self.iter().map(Show::show).collect())
    }
}
