//! The main thread of `parshall relay`: opens everything, gives up privileges, starts the threads, and then waits for
//! signals (SIGHUP reloads, SIGUSR2 upgrades, SIGTERM and SIGINT drain; a second one closes what is left). It never blocks
//! on anything else: other threads read files and resolve names, and send an event when they are done.
mod reachable;
mod reload;
mod state;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::Context;
use parshall_core::relay::config::Config;
use parshall_core::relay::connection::CloseReason;
use parshall_core::units::plural;
use parshall_sys::clock::monotonic_ns;
use parshall_sys::handover;
use parshall_sys::privileges::{self, CapabilitySet, User};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use self::reachable::{any_reachable, warn_unresolved};
use self::state::{Event, Main, after};
use super::control::Control;
use super::control::resolve::Resolved;
use super::log::Log;
use super::management::{Management, Opened};
use super::notify::notify;
use super::open::Pool;
use super::serve::{ProcessLimits, Relay, unix_path};
use super::stats::ListenerStats;
use super::upgrade::{Program, READY};
use parshall_host::error::UserError;

/// Listeners logged one by one at the start; further ones are counted.
const LISTED_MAX: usize = 20;

/// The interval of checking whether the UDP threads have ended: they send no event.
const UDP_POLL: Duration = Duration::from_millis(50);
const UNTIL_EVENT: Duration = Duration::from_secs(3600);

/// Runs the relay until a signal ends it. `source` is the file of the configuration, which is read again on SIGHUP.
pub fn run(config: Config, source: Option<PathBuf>) -> anyhow::Result<()> {
    // From here on signals are handled, also those that come before the relay is started.
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR2])?;
    let program = Program::this()?;
    let inherited = handover::inherited();
    if inherited.missing > 0 {
        let missing = plural(inherited.missing as u64, "descriptor", "descriptors");
        tracing::warn!("LISTEN_FDS announces {missing} more than were handed over");
    }
    let mut main = Main::open(config, source, program, inherited.sockets)?;
    if !main.start(signals)? {
        return Ok(());
    }
    main.report_ready(inherited.ready);
    main.serve();
    main.finish()
}

fn threads(config: &Config) -> usize {
    config.global.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()), usize::from)
}

impl Main {
    /// Opens everything that needs privileges, and gives them up. No other thread runs yet.
    fn open(
        config: Config,
        source: Option<PathBuf>,
        program: Program,
        inherited: Vec<std::os::fd::OwnedFd>,
    ) -> anyhow::Result<Self> {
        let threads = threads(&config);
        let mut pool = Pool::new(inherited);
        let relay = Relay::new(threads);
        let prepared = relay.prepare(&config, &mut pool)?;
        let user = wanted_user(&config)?;
        let opened = Opened::open(None, &config.global, &mut pool, user.as_ref())?;
        for left in pool.rest() {
            tracing::warn!("{left} was inherited, but no listener is on it: it is closed");
        }
        give_up_privileges(&config, user.as_ref())?;
        Ok(Self {
            limits: ProcessLimits::new(&config, threads, parshall_sys::limits::descriptors()),
            most: (config.global.max_connections, config.global.max_sessions),
            config,
            source,
            program,
            threads,
            relay,
            opened: Some((prepared, opened)),
            management: Management::default(),
            status: Arc::default(),
            control: None,
            log: None,
            events: channel(),
            reloading: None,
            reload_again: false,
            upgrading: false,
            handed_over: false,
            draining: false,
            drained_before: 0,
        })
    }

    /// Starts the threads. False if a signal to stop came first.
    fn start(&mut self, mut signals: Signals) -> anyhow::Result<bool> {
        let (prepared, mut opened) = self.opened.take().context("started twice")?;
        let events = self.events.0.clone();
        std::thread::Builder::new().name("relay-signals".into()).spawn(move || {
            for signal in signals.forever() {
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
        let control = Control::start(self.status.clone())?;
        let services: Vec<_> = prepared.services().cloned().collect();
        let events = self.events.0.clone();
        control.resolve(services.clone(), move |found| drop(events.send(Event::Resolved(found))));
        let Some(found) = self.wait_for_names() else {
            tracing::info!("stopped before it was started");
            notify("STOPPING=1");
            control.stop();
            return Ok(false);
        };
        any_reachable(&services, &found)?;
        warn_unresolved(&services, &found);
        let events = self.events.0.clone();
        let ended = move || drop(events.send(Event::WorkerEnded));
        let (wake, lines) = self.relay.start(&self.config, self.limits, ended)?;
        let log = Log::start(opened.sink(), wake, lines)?;
        self.status.set_log(log.counts());
        self.relay.commit(prepared, 0);
        self.status.set_listeners(&self.relay);
        control.refresh(services.clone(), found);
        control.check(services);
        self.management.serve(opened, &control);
        (self.control, self.log) = (Some(control), Some(log));
        Ok(true)
    }

    /// Waits for the addresses of names at the start. None if a signal to stop comes first; other events are queued again.
    fn wait_for_names(&self) -> Option<Resolved> {
        let mut later = Vec::new();
        let found = loop {
            match self.events.1.recv() {
                Ok(Event::Resolved(found)) => break Some(found),
                Ok(Event::Signal(SIGTERM | SIGINT)) => break None,
                Ok(other) => later.push(other),
                // Not possible: `self` holds a sender.
                Err(_) => break None,
            }
        };
        later.into_iter().for_each(|event| drop(self.events.0.send(event)));
        found
    }

    fn report_ready(&self, predecessor: Option<std::fs::File>) {
        let listeners = &self.relay.listeners;
        for running in listeners.iter().take(LISTED_MAX) {
            let targets: Vec<_> = running.service.config.targets.iter().map(|t| t.endpoint.to_string()).collect();
            tracing::info!("listening on {} -> {}", running.bound, targets.join(", "));
        }
        if listeners.len() > LISTED_MAX {
            tracing::info!("and on {} more", listeners.len() - LISTED_MAX);
        }
        if let Some(address) = self.management.metrics_address() {
            tracing::info!("metrics on http://{address}/metrics");
        }
        let limit = parshall_sys::limits::descriptors();
        let threads = plural(self.threads as u64, "thread", "threads");
        let (tcp, udp): (Vec<_>, Vec<_>) = listeners.iter().partition(|running| running.is_tcp());
        let connections = (!tcp.is_empty()).then(|| format!("{} connections", self.limits.connections));
        let sessions = (!udp.is_empty()).then(|| format!("{} sessions", self.limits.sessions));
        let most: Vec<String> = connections.into_iter().chain(sessions).collect();
        tracing::info!("started: {threads}, at most {} ({limit} descriptors)", most.join(" and "));
        if let Some(mut pipe) = predecessor {
            // A predecessor that is gone has stopped accepting already.
            pipe.write_all(READY).ok();
        }
        notify(&format!("READY=1\nSTATUS={} listeners", listeners.len()));
    }

    fn serve(&mut self) {
        let mut running = self.threads;
        while running > 0 || !self.relay.udp_ended() {
            // `self` holds a sender, so an error is the timeout.
            let Ok(event) = self.events.1.recv_timeout(if running > 0 { UNTIL_EVENT } else { UDP_POLL }) else {
                continue;
            };
            match event {
                Event::Signal(SIGHUP) => self.reload(),
                Event::Signal(SIGUSR2) => self.upgrade(),
                Event::Signal(_) => self.stop(),
                Event::Successor(outcome) => self.successor(outcome),
                Event::Read(outcome) => self.take_read(outcome),
                Event::Resolved(found) => self.take_resolved(found),
                Event::WorkerEnded => {
                    running -= 1;
                    if !self.draining {
                        tracing::error!("a worker has failed; the others finish their connections");
                        self.drain(self.config.global.drain);
                    }
                }
            }
        }
    }

    fn finish(mut self) -> anyhow::Result<()> {
        let paths: Vec<String> = match self.handed_over {
            true => Vec::new(),
            false => self
                .relay
                .listeners
                .iter()
                .filter_map(|r| unix_path(&r.service.config.listen))
                .map(str::to_owned)
                .collect(),
        };
        let counts = self.relay.counts();
        let result = self.relay.join();
        paths.iter().for_each(|path| super::open::remove_stale(path));
        if let Some(log) = self.log.take() {
            log.finish();
        }
        if let Some(control) = self.control.take() {
            control.stop();
        }
        match closed_at_timeout(&counts) - self.drained_before {
            0 => tracing::info!("drained"),
            n => tracing::warn!("drained: {} closed at the timeout", plural(n, "connection was", "connections were")),
        }
        result
    }

    fn stop(&mut self) {
        if self.draining {
            tracing::info!("stopping now");
            return self.relay.drain(monotonic_ns(), self.handed_over);
        }
        notify("STOPPING=1");
        self.drain(self.config.global.drain);
    }

    fn drain(&mut self, timeout: Duration) {
        self.draining = true;
        self.drained_before = closed_at_timeout(&self.relay.counts());
        self.status.set_draining();
        let (open, s) = (plural(self.relay.active(), "connection", "connections"), timeout.as_secs_f64());
        tracing::info!("draining: {open} may finish within {s} s; a second signal closes them");
        self.relay.drain(after(timeout), self.handed_over);
    }

    fn upgrade(&mut self) {
        let busy =
            [(self.draining, "draining"), (self.upgrading, "upgrading"), (self.reloading.is_some(), "reloading")];
        if let Some((_, doing)) = busy.iter().find(|(so, _)| *so) {
            return tracing::warn!("not upgraded: it is {doing} already");
        }
        let sockets: Vec<_> = self.relay.sockets().chain(self.management.sockets()).collect();
        let events = self.events.0.clone();
        match self.program.start(&sockets, move |outcome| drop(events.send(Event::Successor(outcome)))) {
            Ok(()) => {
                self.upgrading = true;
                tracing::info!("upgrading: a new process has {}", plural(sockets.len() as u64, "socket", "sockets"));
            }
            Err(e) => tracing::warn!("not upgraded, this process goes on: {e:#}"),
        }
    }

    fn successor(&mut self, outcome: Result<u32, String>) {
        self.upgrading = false;
        match outcome {
            Ok(pid) => {
                tracing::info!("process {pid} has taken over");
                self.handed_over = true;
                if let Some(control) = &self.control {
                    // From now on only the successor answers.
                    self.management.hand_over(control);
                }
                notify(&format!("MAINPID={pid}"));
                if !self.draining {
                    self.drain(self.config.global.drain);
                }
            }
            Err(why) => tracing::warn!("not upgraded, this process goes on: the new one failed: {why}"),
        }
    }
}

/// The user that the relay is to become, if one is configured.
fn wanted_user(config: &Config) -> anyhow::Result<Option<User>> {
    let Some(wanted) = &config.global.user else { return Ok(None) };
    let (name, group) = wanted.split_once(':').map_or((wanted.as_str(), None), |(user, group)| (user, Some(group)));
    let user = privileges::lookup(name, group).ok_or_else(|| {
        UserError::new(
            format!("there is no user {wanted}"),
            "write USER or USER:GROUP as in /etc/passwd and /etc/group",
        )
    })?;
    Ok(Some(user))
}

fn give_up_privileges(config: &Config, user: Option<&User>) -> anyhow::Result<()> {
    let Some(user) = user else {
        // With no_new_privs a successor would not get the capabilities of its file, from which this process has its own.
        return if privileges::elevated_by_file() { Ok(()) } else { Ok(privileges::gain_nothing()?) };
    };
    let transparent = config.listeners.iter().any(|l| l.transparent);
    let keep = if transparent { CapabilitySet::NET_ADMIN } else { CapabilitySet::empty() };
    privileges::become_user(user, keep).map_err(|e| {
        let wanted = config.global.user.as_deref().unwrap_or_default();
        let hint = if privileges::current() == *user {
            "start the relay as root, or as this user without other groups; or leave `user` out"
        } else {
            "only root can become another user: leave `user` out"
        };
        UserError::new(format!("cannot become {wanted}: {e}"), hint).into()
    })
}

/// Connections that were closed because the drain timeout was over.
fn closed_at_timeout(counts: &[Arc<ListenerStats>]) -> u64 {
    counts.iter().map(|s| s.closed(CloseReason::Drained).get()).sum()
}
