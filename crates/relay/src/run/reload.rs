//! Reloads, in steps that leave the main thread free for signals. A thread reads the file and opens the log, the metrics and
//! the control socket; the main thread opens listeners; the control thread resolves names. A failure of these steps changes
//! nothing. The last step puts the configuration into force, which cannot fail.
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use parshall_core::relay::config::{Config, Global};
use parshall_core::units::plural;

use super::reachable::{any_reachable, is_reachable, unresolved, warn_unresolved};
use super::state::{Event, Main, NewConfig, Ready, Reloading, after};
use crate::control::resolve::Resolved;
use crate::load;
use crate::management::Opened;
use crate::notify::{self, notify};
use crate::open::Pool;
use crate::serve::{Changes, ProcessLimits};
use crate::service::Service;
use parshall_host::error::UserError;

impl Main {
    /// Begins a reload. During one, another begins after it.
    pub(super) fn reload(&mut self) {
        let Some(source) = self.source.clone() else {
            return tracing::warn!("nothing to reload: it was started without a file");
        };
        if self.draining {
            return tracing::warn!("not reloaded: it is draining");
        }
        if self.reloading.is_some() {
            self.reload_again = true;
            return;
        }
        notify::reloading();
        self.reloading = Some(Reloading::Reading);
        let (events, global) = (self.events.0.clone(), self.config.global.clone());
        // Opening the file or the log can block: each may be a pipe.
        let reader = std::thread::Builder::new()
            .name("relay-reload".into())
            .spawn(move || drop(events.send(Event::Read(read(&source, &global)))));
        if let Err(e) = reader {
            self.end_reload(Err(anyhow::Error::new(e).context("no thread to read the file")));
        }
    }

    /// The file was read: opens its listeners and has its names resolved.
    pub(super) fn take_read(&mut self, outcome: anyhow::Result<Box<NewConfig>>) {
        match outcome.and_then(|new| self.open_new(*new)) {
            Ok(ready) => self.reloading = Some(Reloading::Resolving(Box::new(ready))),
            Err(error) => self.end_reload(Err(error)),
        }
    }

    fn open_new(&self, NewConfig { config, opened }: NewConfig) -> anyhow::Result<Ready> {
        anyhow::ensure!(!self.draining, "it is draining");
        let control = self.control.as_ref().context("it has not started")?;
        let prepared = self.relay.prepare(&config, &mut Pool::default())?;
        let services: Vec<_> = prepared.services().cloned().collect();
        let events = self.events.0.clone();
        control.resolve(services.clone(), move |found| drop(events.send(Event::Resolved(found))));
        Ok(Ready { config, opened, prepared, services })
    }

    /// Its names were resolved: puts it into force.
    pub(super) fn take_resolved(&mut self, found: Resolved) {
        let Some(Reloading::Resolving(ready)) = self.reloading.take() else { return };
        let outcome = self.commit(*ready, found);
        self.end_reload(outcome);
    }

    fn commit(&mut self, ready: Ready, found: Resolved) -> anyhow::Result<Changes> {
        let Ready { config, mut opened, prepared, services } = ready;
        anyhow::ensure!(!self.draining, "it is draining");
        any_reachable(&services, &found)?;
        self.none_lost(&services, &found)?;
        let control = self.control.as_ref().context("it has not started")?;
        warn_unresolved(&services, &found);
        self.warn_unchangeable(&config);
        let changes = self.relay.commit(prepared, after(config.global.drain));
        self.status.set_listeners(&self.relay);
        control.refresh(services.clone(), found);
        control.check(services);
        if let Some(log) = &self.log {
            log.switch(opened.sink());
        }
        self.management.serve(opened, control);
        self.divide_descriptors(&config);
        self.config = config;
        Ok(changes)
    }

    /// Logs the result of a reload, and reports it to systemd.
    fn end_reload(&mut self, outcome: anyhow::Result<Changes>) {
        self.reloading = None;
        match outcome {
            Ok(Changes { added, removed, changed }) => {
                self.status.reloads.add();
                let listeners = plural(self.relay.listeners.len() as u64, "listener", "listeners");
                tracing::info!("reloaded: {listeners} ({added} added, {removed} removed, {changed} changed)");
            }
            Err(error) => {
                self.status.reloads_refused.add();
                let hint = error.chain().find_map(|e| e.downcast_ref::<UserError>()).map(|u| format!(" ({})", u.hint));
                let hint = hint.unwrap_or_default();
                tracing::warn!("not reloaded, the old configuration stays in force: {error:#}{hint}");
            }
        }
        if self.draining {
            // systemd knows that it stops.
            return;
        }
        notify("READY=1");
        if std::mem::take(&mut self.reload_again) {
            self.reload();
        }
    }

    /// Fails if a listener whose targets can be reached now would be left with names that cannot be resolved.
    fn none_lost(&self, services: &[Arc<Service>], found: &Resolved) -> anyhow::Result<()> {
        let place = |service: &Service| (service.config.protocol, service.config.listen.clone());
        let now = self.relay.listeners.iter().map(|running| &running.service);
        let serving: HashSet<_> = now.filter(|service| is_reachable(service)).map(|service| place(service)).collect();
        let lost = services.iter().find(|service| !is_reachable(service) && serving.contains(&place(service)));
        lost.map_or(Ok(()), |service| Err(unresolved(service, found).into()))
    }

    /// Divides the descriptors for the protocols of these listeners. `max-connections` and `max-sessions` stay as they were at
    /// the start.
    fn divide_descriptors(&mut self, config: &Config) {
        let mut config = Config { global: config.global.clone(), listeners: config.listeners.clone() };
        (config.global.max_connections, config.global.max_sessions) = self.most;
        self.limits = ProcessLimits::new(&config, self.threads, parshall_sys::limits::descriptors());
        self.relay.set_limits(self.limits);
    }

    fn warn_unchangeable(&self, new: &Config) {
        let (old, new) = (&self.config.global, &new.global);
        for row in Global::ROWS.iter().filter(|row| row.more.at_start && row.field.differs(old, new)) {
            let key = row.key;
            tracing::warn!("`{key}` changes with the next start or upgrade (SIGUSR2), not with a reload");
        }
    }
}

/// Reads the file, and opens the log, metrics and control socket that differ from those of `old`.
fn read(source: &Path, old: &Global) -> anyhow::Result<Box<NewConfig>> {
    let config = load::read_again(source)?;
    let opened = Opened::open(Some(old), &config.global, &mut Pool::default(), None)?;
    Ok(Box::new(NewConfig { config, opened }))
}
