//! Makes a configuration of what the user wrote: expands ranges, fills in defaults, and checks values against each other.
use std::collections::HashMap;

use ipnet::IpNet;

use super::address::Spec;
use super::at::At;
use super::error::ConfigErrors;
use super::model::{AccessRule, Endpoint, Protocol, Target};
use super::rules;
use super::setting::Setting;
use super::table::{Config, Global, Listener};
use crate::text::quote;
use crate::values::ValueError;

/// A target before ranges are expanded.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetSpec {
    /// Its address or addresses.
    pub spec: Spec,
    /// Its weight, 1 to 1000.
    pub weight: u32,
}

/// A listener as the user wrote it, which becomes one [`Listener`] for each address and port.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Its name, if it has one.
    pub name: Option<At<String>>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The addresses to listen on.
    pub listen: Vec<At<Spec>>,
    /// The targets.
    pub targets: Vec<At<TargetSpec>>,
    /// Its settings, of which a later one overrides an earlier one.
    pub settings: Vec<At<Setting>>,
}

/// The most listeners: each takes a descriptor per thread.
pub const MAX_LISTENERS: usize = 16_384;

/// The configuration of a command line, or the first error.
pub fn quick(global: Global, draft: Draft) -> Result<Config, ValueError> {
    let mut errors = ConfigErrors::new("");
    let config = assemble(global, &[], &[draft], &mut errors);
    match errors.into_first() {
        None => Ok(config),
        Some(wrong) => Err(wrong),
    }
}

/// Expands and checks drafts. The result is a valid configuration only if no error was added.
pub(super) fn assemble(
    global: Global,
    defaults: &[At<Setting>],
    drafts: &[Draft],
    errors: &mut ConfigErrors<'_>,
) -> Config {
    let mut assembly = Assembly { errors, listeners: Vec::new(), taken: HashMap::new(), names: HashMap::new() };
    for draft in drafts {
        assembly.add(draft, defaults);
    }
    let listeners = assembly.listeners;
    if let Some(metrics) = global.metrics
        && let Some(at) = assembly.taken.get(&(Protocol::Tcp, Endpoint::Ip(metrics)))
    {
        let what = format!("{metrics} is the address of the metrics too");
        errors.add(*at, ValueError::new(what, "give the metrics another port"));
    }
    Config { global, listeners }
}

struct Assembly<'m, 't> {
    errors: &'m mut ConfigErrors<'t>,
    listeners: Vec<Listener>,
    /// The byte offset of each address that is listened on.
    taken: HashMap<(Protocol, Endpoint), usize>,
    /// The byte offset of each name.
    names: HashMap<String, usize>,
}

impl Assembly<'_, '_> {
    fn add(&mut self, draft: &Draft, defaults: &[At<Setting>]) {
        let many = draft.listen.len() > 1 || draft.listen.iter().any(|l| l.value.ports.count() > 1);
        for listen in &draft.listen {
            if !self.stream_only(draft, listen) {
                continue;
            }
            let count = listen.value.ports.count();
            if self.listeners.len() + count > MAX_LISTENERS {
                let what = format!("there are more than {MAX_LISTENERS} ports to listen on");
                self.errors
                    .add(listen.at, ValueError::new(what, "choose a shorter range, or spread it over several relays"));
                continue;
            }
            let targets: Vec<&At<TargetSpec>> =
                draft.targets.iter().filter(|target| self.ranges_fit(listen, target)).collect();
            let mut reported_taken = false;
            for index in 0..count {
                let mut listener = expand(draft, listen, &targets, index);
                // The settings of all ports of a range have the same errors.
                let settings = self.settings(draft, defaults, &listener, index == 0);
                settings.iter().for_each(|setting| setting.apply(&mut listener));
                reported_taken = reported_taken || self.taken(&listener, listen.at);
                self.loops(&listener, &targets);
                self.name(&mut listener, draft, many, listen.at);
                self.listeners.push(listener);
            }
        }
    }

    /// Unix sockets are stream sockets, so they are errors with UDP.
    fn stream_only(&mut self, draft: &Draft, listen: &At<Spec>) -> bool {
        if draft.protocol == Protocol::Tcp {
            return true;
        }
        let specs = draft.targets.iter().map(|t| (t.at, &t.value.spec)).chain([(listen.at, &listen.value)]);
        let unix: Vec<usize> = specs.filter(|(_, spec)| spec.is_unix()).map(|(at, _)| at).collect();
        for at in &unix {
            let hint = "write an address and a port: a Unix socket here carries a stream";
            self.errors.add(*at, ValueError::new("a Unix socket cannot be used with UDP", hint));
        }
        unix.is_empty()
    }

    fn ranges_fit(&mut self, listen: &At<Spec>, target: &At<TargetSpec>) -> bool {
        let (from, to) = (listen.value.ports.count(), target.value.spec.ports.count());
        let fits = to == 1 || to == from;
        if !fits {
            let what = format!("the target has {}, its listener {}", ports(to), ports(from));
            let hint = if from == 1 {
                "write one port; for several targets, list each of them"
            } else {
                "ranges of the same length map one to one; or write one port for all"
            };
            self.errors.add(target.at, ValueError::new(what, hint));
        }
        fits
    }

    /// The defaults that fit this listener, and then its own settings. With `report` errors are added.
    fn settings<'d>(
        &mut self,
        draft: &'d Draft,
        defaults: &'d [At<Setting>],
        bare: &Listener,
        report: bool,
    ) -> Vec<&'d Setting> {
        let mut own = bare.clone();
        draft.settings.iter().for_each(|s| s.value.apply(&mut own));
        // A default may fit only with another one: an access list on a Unix socket needs PROXY headers.
        let mut all = bare.clone();
        defaults.iter().chain(&draft.settings).for_each(|s| s.value.apply(&mut all));
        let fits = |setting: &Setting| {
            let mut with_it = own.clone();
            setting.apply(&mut with_it);
            setting.misfit(&all).is_none() && rules::two_sources(setting.key(), &with_it).is_none()
        };
        let kept: Vec<&At<Setting>> = defaults.iter().filter(|d| fits(&d.value)).chain(&draft.settings).collect();
        if report {
            let mut whole = bare.clone();
            kept.iter().for_each(|s| s.value.apply(&mut whole));
            self.contradictions(&kept, &whole);
        }
        kept.into_iter().map(|s| &s.value).collect()
    }

    fn contradictions(&mut self, settings: &[&At<Setting>], whole: &Listener) {
        let mut reported = false;
        for At { value: setting, at } in settings {
            let listed = || settings.iter().any(|s| s.value.key() == "proxy-from");
            let lacks = || rules::lacks_proxies(setting.key(), whole).filter(|_| !listed());
            if let Some(error) = setting.misfit(whole).or_else(lacks) {
                self.errors.add(*at, error);
            }
            if let Some(error) = rules::two_sources(setting.key(), whole).filter(|_| !reported) {
                reported = true;
                self.errors.add(*at, error);
            }
        }
    }

    /// Whether another listener has the address, which is an error. Port 0 is a new port each time.
    fn taken(&mut self, listener: &Listener, at: usize) -> bool {
        if matches!(&listener.listen, Endpoint::Ip(a) if a.port() == 0)
            || matches!(&listener.listen, Endpoint::Name(_, 0))
        {
            return false;
        }
        let Some(first) = self.taken.insert((listener.protocol, listener.listen.clone()), at) else { return false };
        self.taken.insert((listener.protocol, listener.listen.clone()), first);
        let what = format!("{} is already listened on in line {}", listener.listen, self.errors.line(first));
        self.errors
            .add(at, ValueError::new(what, "listen on each address once; one listener can have several targets"));
        true
    }

    /// A listener that is its own target is an error: one connection would open connections without end.
    fn loops(&mut self, listener: &Listener, targets: &[&At<TargetSpec>]) {
        for (target, written) in listener.targets.iter().zip(targets) {
            if target.endpoint == listener.listen {
                let what = format!("{} would forward to itself", listener.listen);
                self.errors.add(written.at, ValueError::new(what, "name another target, or listen on another port"));
            }
        }
    }

    fn name(&mut self, listener: &mut Listener, draft: &Draft, many: bool, at: usize) {
        if let Some(name) = &draft.name {
            listener.name = if many { format!("{}/{}", name.value, listener.listen) } else { name.value.clone() };
            if let Some(first) = self.names.get(&listener.name).copied()
                && first != name.at
            {
                let what =
                    format!("the name {} is already used in line {}", quote(&listener.name), self.errors.line(first));
                self.errors.add(name.at, ValueError::new(what, "give each listener its own name"));
            }
            self.names.insert(listener.name.clone(), name.at);
            return;
        }
        // Listeners on port 0 have the same address until they are opened.
        let plain = listener.name.clone();
        let mut number = 2;
        while self.names.contains_key(&listener.name) {
            listener.name = format!("{plain}#{number}");
            number += 1;
        }
        self.names.insert(listener.name.clone(), at);
    }
}

/// The listener for one port of the draft, with the defaults of its protocol.
fn expand(draft: &Draft, listen: &At<Spec>, targets: &[&At<TargetSpec>], index: usize) -> Listener {
    let targets = targets.iter().map(|t| {
        let spec = &t.value.spec;
        Target { endpoint: spec.endpoint(if spec.ports.count() == 1 { 0 } else { index }), weight: t.value.weight }
    });
    Listener::new(draft.protocol, listen.value.endpoint(index), targets.collect())
}

/// The access list of a command line, in which deny rules come before allow rules.
pub fn access_list(allow: &[AccessRule], deny: &[AccessRule]) -> Result<Vec<AccessRule>, ValueError> {
    let rules: Vec<AccessRule> = deny.iter().chain(allow).copied().collect();
    let mut errors = ConfigErrors::new("");
    let placed: Vec<At<AccessRule>> = rules.iter().map(|rule| At::new(*rule, 0)).collect();
    check_access(&placed, "deny goes before allow: make the denied network narrower", &mut errors);
    errors.into_first().map_or(Ok(rules), Err)
}

fn ports(count: usize) -> String {
    if count == 1 { "one port".to_owned() } else { format!("{count} ports") }
}

/// Adds an error for each rule that never applies because an earlier one says the opposite for all of its network.
pub(super) fn check_access(rules: &[At<AccessRule>], hint: &str, errors: &mut ConfigErrors<'_>) {
    let mut earlier: HashMap<IpNet, usize> = HashMap::new();
    for (index, At { value: rule, at }) in rules.iter().enumerate() {
        let supernets = std::iter::successors(Some(rule.network), IpNet::supernet);
        if let Some(first) = supernets.filter_map(|network| earlier.get(&network)).min()
            && rules[*first].value.allow != rule.allow
        {
            let what = format!("`{rule}` never holds: `{}` comes first", rules[*first].value);
            errors.add(*at, ValueError::new(what, hint));
        }
        earlier.entry(rule.network).or_insert(index);
    }
}
