//! Checks the flags of `parshall sockets` and turns them into a request.
use std::path::Path;

use parshall_core::sockets::aggregate;
use parshall_core::sockets::filter;
use parshall_core::sockets::sort::SortKey;
use parshall_core::text::suggest;
use parshall_evidence::socket::expression::Expression;
use parshall_evidence::socket::selection::state::{BOUND_INACTIVE, CLOSE, LISTEN, TIME_WAIT};
use parshall_evidence::socket::selection::{STATES, state_named};
use parshall_evidence::socket::{Group, Groups};
use parshall_evidence::socket::{Kind, Kinds, Prefix, Selection, Side};

use super::args::{Networks, OnceArgs, ReadArgs, SelectArgs, SocketsArgs, SocketsCommand, StreamArgs};
use super::{file, host_names, services};
use crate::format::text;
use crate::request::{OnceRequest, Reading, SocketFormat, SocketsRequest, StreamRequest};
use crate::sink::files::FilesConfig;
use crate::sink::prometheus::table::PrometheusRequest;
use crate::sink::request::SinkRequest;
use crate::sink::stdout::{OneFileRequest, StdoutRequest};
use parshall_host::error::UserError;

impl SocketsArgs {
    pub fn validate(self) -> Result<SocketsRequest, UserError> {
        Ok(match self.command {
            SocketsCommand::Once(args) => SocketsRequest::Once(args.validate()?),
            SocketsCommand::Stream(args) => SocketsRequest::Stream(args.validate()?),
        })
    }
}

impl OnceArgs {
    fn validate(self) -> Result<OnceRequest, UserError> {
        let sort = self.sort.iter().map(|name| sort_key(name)).collect::<Result<Vec<_>, _>>()?;
        let format = self.format;
        if self.wide && format != SocketFormat::Text {
            return Err(UserError::new("--wide is for the table", "leave it out; the other formats have every field"));
        }
        let no_fields = self.select.fields.is_empty();
        let by_state = self.all || !self.select.state.is_empty() || names_states(&self.select.filter);
        // The default has owners, because users look for them, and a single scan of descriptors is cheap.
        let mut selection = self.select.selection(&["default", "owner"], false)?;
        if !by_state {
            selection.states &= !(1 << TIME_WAIT);
        }
        let groups = &mut selection.groups;
        if format == SocketFormat::Text {
            if no_fields && !self.wide {
                *groups = text::groups().with(Group::Owner);
            }
            *groups = groups.with(Group::Attributes);
        }
        *groups = sort.iter().copied().filter_map(SortKey::group).fold(*groups, Groups::with);
        Ok(OnceRequest { selection, reading: self.read.reading(), format, sort, limit: self.limit, wide: self.wide })
    }
}

impl StreamArgs {
    fn validate(self) -> Result<StreamRequest, UserError> {
        let (least, most) = (std::time::Duration::from_millis(100), std::time::Duration::from_secs(3600));
        if self.every < least || self.every > most {
            return Err(UserError::new("--every is out of range", "choose a time from 100ms to 1h, such as 5s"));
        }
        let sinks = self.sinks()?;
        let mut selection = self.select.selection(&["default"], self.changed)?;
        if sinks.iter().any(|sink| sink.aggregates()) {
            if self.changed {
                return Err(UserError::new(
                    "--changed leaves out rows that aggregates need",
                    "leave out --changed, or the sinks that aggregate (--listen, [prometheus], [[otlp]])",
                ));
            }
            selection.groups = selection.groups.union(aggregate::groups());
        }
        Ok(StreamRequest {
            selection,
            reading: self.read.reading(),
            every: self.every,
            count: self.count,
            rates: !self.no_rates,
            closes: !self.no_closes,
            sinks,
        })
    }

    /// The sinks of the file and of the flags; standard output if there are none.
    fn sinks(&self) -> Result<Vec<Box<dyn SinkRequest>>, UserError> {
        let mut sinks = match &self.config {
            Some(path) => file::read(path)?,
            None => Vec::new(),
        };
        if let Some(listen) = self.listen {
            if sinks.iter().any(|sink| sink.kind() == "prometheus") {
                let hint = "leave out --listen, or the table [prometheus] of the file";
                return Err(UserError::new(
                    "the address to listen on is given twice, by --listen and by the file",
                    hint,
                ));
            }
            sinks.push(Box::new(PrometheusRequest::at(listen)?));
        }
        if let Some(path) = &self.output {
            sinks.push(Box::new(OneFileRequest::new(path, self.format)?));
            return Ok(sinks);
        }
        match (&self.to, self.format) {
            (Some(directory), format) => sinks.push(Box::new(self.files(directory, format)?)),
            (None, Some(format)) => {
                if sinks.iter().any(|sink| sink.kind() == "stdout") {
                    let hint = "leave out --format, or the table [stdout] of the file";
                    return Err(UserError::new(
                        "the format of stdout is given twice, by --format and by the file",
                        hint,
                    ));
                }
                sinks.push(Box::new(StdoutRequest(format)));
            }
            (None, None) if sinks.is_empty() => sinks.push(Box::new(StdoutRequest(SocketFormat::Text))),
            (None, None) => {}
        }
        Ok(sinks)
    }

    fn files(&self, directory: &Path, format: Option<SocketFormat>) -> Result<FilesConfig, UserError> {
        let mut config = FilesConfig::new(directory.to_owned(), format.unwrap_or(SocketFormat::Protobuf))?;
        config.rotate_bytes = self.rotate_size;
        config.rotate_every = self.rotate_every;
        config.keep_bytes = self.keep;
        Ok(config)
    }
}

impl ReadArgs {
    fn reading(self) -> Reading {
        Reading { backend: self.backend, readers: usize::from(self.readers) }
    }
}

impl SelectArgs {
    /// The selection, with the names of namespaces and control groups resolved on this host.
    fn selection(self, default_fields: &[&str], changed: bool) -> Result<Selection, UserError> {
        let fields = if self.fields.is_empty() {
            default_fields.iter().map(|name| (*name).to_owned()).collect()
        } else {
            self.fields
        };
        let side = |ports: Vec<u16>, side: Side| ports.into_iter().map(move |port| (side, port));
        let ports = side(self.port.into_iter().flatten().collect(), Side::Either)
            .chain(side(self.local_port, Side::Local))
            .chain(side(self.remote_port, Side::Remote))
            .collect();
        let networks = |lists: Vec<Networks>, side: Side| {
            lists.into_iter().flatten().map(move |net| Prefix {
                side,
                network: net.network(),
                length: net.prefix_len(),
            })
        };
        let prefixes = networks(self.prefix, Side::Either)
            .chain(networks(self.local_prefix, Side::Local))
            .chain(networks(self.remote_prefix, Side::Remote))
            .collect();
        let mut selection = Selection {
            groups: groups(&fields)?,
            kinds: kinds(&self.kind)?,
            states: states(&self.state)?,
            namespaces: host_names::namespaces(&self.netns)?,
            cgroups: self.cgroup.iter().map(|path| host_names::control_group(path)).collect::<Result<_, _>>()?,
            ports,
            prefixes,
            changed,
            expression: expression(&self.filter)?,
            pids: self.pid.into_iter().flatten().map(host_names::process).collect::<Result<_, _>>()?,
            commands: self.process,
        };
        if selection.selects_owners() {
            selection.groups = selection.groups.with(Group::Owner);
        }
        selection.narrow();
        Ok(selection)
    }
}

/// Whether a filter chooses sockets by their state.
fn names_states(filter: &[String]) -> bool {
    let words = filter.iter().flat_map(|words| words.split(|c: char| c.is_whitespace() || "()!".contains(c)));
    words.into_iter().any(|word| ["state", "exclude"].contains(&word))
}

/// The filter after the flags.
fn expression(words: &[String]) -> Result<Option<Expression>, UserError> {
    if words.is_empty() {
        return Ok(None);
    }
    let parsed = filter::parse(&words.join(" "), &services::port);
    parsed.map(Some).map_err(UserError::from)
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> UserError {
    let known: Vec<&str> = known.collect();
    UserError::new(format!("there is no {what} `{name}`"), suggest(name, &known))
}

fn groups(names: &[String]) -> Result<Groups, UserError> {
    names.iter().try_fold(Groups::IDENTITY, |groups, name| match name.as_str() {
        "default" => Ok(Group::ALL.into_iter().filter(|g| *g != Group::Owner).fold(groups, Groups::with)),
        "all" => Ok(Groups::ALL),
        name => Group::named(name).map(|group| groups.with(group)).ok_or_else(|| {
            unknown("group of fields", name, Group::ALL.iter().map(|g| g.name()).chain(["default", "all"]))
        }),
    })
}

fn kinds(names: &[String]) -> Result<Kinds, UserError> {
    if names.iter().any(|name| name == "all") {
        return Ok(Kinds::of(Kind::ALL));
    }
    let kind = |name: &String| {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| unknown("kind of socket", name, Kind::ALL.iter().map(|kind| kind.name()).chain(["all"])))
    };
    Ok(Kinds::of(names.iter().map(kind).collect::<Result<Vec<_>, _>>()?))
}

fn states(names: &[String]) -> Result<u32, UserError> {
    if names.is_empty() {
        return Ok(u32::MAX);
    }
    names.iter().try_fold(0, |states, name| match name.as_str() {
        "all" => Ok(u32::MAX),
        "connected" => {
            Ok(states | (1..BOUND_INACTIVE).filter(|s| ![LISTEN, CLOSE].contains(s)).fold(0, |bits, s| bits | 1 << s))
        }
        name => state_named(name)
            .map(|state| states | 1 << state)
            .ok_or_else(|| unknown("state", name, STATES.into_iter().chain(["connected", "all"]))),
    })
}

fn sort_key(name: &str) -> Result<SortKey, UserError> {
    SortKey::named(name).ok_or_else(|| unknown("key to sort by", name, SortKey::names()))
}
