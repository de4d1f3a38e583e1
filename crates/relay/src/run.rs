//! The main thread of `parshall relay`: opens everything, gives up privileges, starts the threads, and then waits for
//! signals (SIGHUP reloads, SIGUSR2 upgrades, SIGTERM and SIGINT drain, and cut when they come again). It waits for nothing
//! else: what takes its time is done by other threads, which send an event when it is.
mod reload;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::Context;
use parshall_core::relay::config::{Config, Endpoint};
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::{Ns, ns};
use parshall_core::units::plural;
use parshall_sys::clock::monotonic_ns;
use parshall_sys::handover;
use parshall_sys::privileges::{self, User};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use self::reload::{NewConfig, Reloading};
use super::control::Control;
use super::control::board::Board;
use super::control::resolve::Found;
use super::log::Log;
use super::management::{Management, Opened};
use super::notify::notify;
use super::open::Pool;
use super::serve::{Means, Prepared, Relay, unix_path};
use super::service::Service;
use super::stats::ListenerStats;
use super::upgrade::{Program, READY};
use parshall_host::error::UserError;

/// Listeners told one by one at the start; with more, their number.
const TOLD_MAX: usize = 20;

/// Between two looks at whether the UDP threads have ended, which tell nobody.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_RARELY: Duration = Duration::from_secs(3600);

/// What the main thread waits for.
#[derive(Debug)]
enum Event {
    Signal(i32),
    WorkerEnded,
    /// The process that is to take over is ready, or why it is not.
    Successor(Result<u32, String>),
    /// A new configuration was read.
    Read(anyhow::Result<NewConfig>),
    /// The names of a configuration were asked for.
    Named(Found),
}

/// Forwards until a signal ends it. `source` is the file that the configuration came from, read again on SIGHUP.
pub fn run(config: Config, source: Option<PathBuf>) -> anyhow::Result<()> {
    // From here on a signal is answered, however early it comes.
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
    main.say_ready(inherited.ready);
    main.serve();
    main.finish()
}

fn threads(config: &Config) -> usize {
    config.global.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()), usize::from)
}

struct Main {
    config: Config,
    source: Option<PathBuf>,
    program: Program,
    threads: usize,
    means: Means,
    relay: Relay,
    /// Until it is started.
    opened: Option<(Prepared, Opened)>,
    management: Management,
    board: Arc<Board>,
    control: Option<Control>,
    log: Option<Log>,
    events: (Sender<Event>, Receiver<Event>),
    reloading: Option<Reloading>,
    /// SIGHUP came while a configuration was read: it may have changed since.
    reload_again: bool,
    /// A successor has been started.
    upgrading: bool,
    /// A successor has the listeners.
    handed_over: bool,
    draining: bool,
    /// Connections that reloads have cut.
    cut_before: u64,
}

impl Main {
    /// Opens all that needs privileges, and gives them up. No other thread runs yet.
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
            tracing::warn!("{left} was handed over, but no listener is on it: it is closed");
        }
        give_up_privileges(&config, user.as_ref())?;
        Ok(Self {
            means: Means::new(&config, threads, parshall_sys::limits::descriptors()),
            config,
            source,
            program,
            threads,
            relay,
            opened: Some((prepared, opened)),
            management: Management::default(),
            board: Arc::default(),
            control: None,
            log: None,
            events: channel(),
            reloading: None,
            reload_again: false,
            upgrading: false,
            handed_over: false,
            draining: false,
            cut_before: 0,
        })
    }

    /// Starts to serve. False if a signal to stop came before.
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
        let control = Control::start(self.board.clone())?;
        let services: Vec<_> = prepared.services().cloned().collect();
        let events = self.events.0.clone();
        control.ask(services.clone(), move |found| drop(events.send(Event::Named(found))));
        let Some(found) = self.wait_for_names() else {
            tracing::info!("stopped before it was started");
            notify("STOPPING=1");
            control.stop();
            return Ok(false);
        };
        all_reachable(&services, &found)?;
        tell_unresolved(&found);
        let events = self.events.0.clone();
        let ended = move || drop(events.send(Event::WorkerEnded));
        let (wake, lines) = self.relay.start(&self.config, self.means, ended)?;
        let log = Log::start(opened.sink(), wake, lines)?;
        self.board.set_log(log.counts());
        self.relay.commit(prepared, 0);
        self.board.show(&self.relay);
        control.follow(services.clone(), found);
        control.check(services);
        self.management.serve(opened, &control);
        (self.control, self.log) = (Some(control), Some(log));
        Ok(true)
    }

    /// What was found of the names at the start. None if a signal to stop comes first; other signals are answered later.
    fn wait_for_names(&self) -> Option<Found> {
        let mut later = Vec::new();
        let found = loop {
            match self.events.1.recv() {
                Ok(Event::Named(found)) => break Some(found),
                Ok(Event::Signal(SIGTERM | SIGINT)) => break None,
                Ok(other) => later.push(other),
                // We hold a sender ourselves.
                Err(_) => break None,
            }
        };
        later.into_iter().for_each(|event| drop(self.events.0.send(event)));
        found
    }

    fn say_ready(&self, predecessor: Option<std::fs::File>) {
        let listeners = &self.relay.listeners;
        for running in listeners.iter().take(TOLD_MAX) {
            let targets: Vec<_> = running.service.config.targets.iter().map(|t| t.endpoint.to_string()).collect();
            tracing::info!("listening on {} -> {}", running.bound, targets.join(", "));
        }
        if listeners.len() > TOLD_MAX {
            tracing::info!("and on {} more", listeners.len() - TOLD_MAX);
        }
        if let Some(address) = self.management.metrics_address() {
            tracing::info!("metrics on http://{address}/metrics");
        }
        let limit = parshall_sys::limits::descriptors();
        let (threads, most) = (plural(self.threads as u64, "thread", "threads"), self.means.connections);
        tracing::info!("started: {threads}, at most {most} connections ({limit} descriptors)");
        if let Some(mut pipe) = predecessor {
            // A predecessor that is gone has stopped accepting already.
            pipe.write_all(READY).ok();
        }
        notify(&format!("READY=1\nSTATUS={} listeners", listeners.len()));
    }

    fn serve(&mut self) {
        let mut running = self.threads;
        while running > 0 || !self.relay.udp_ended() {
            // We hold a sender ourselves, so there is always someone who could send: an error is a look around.
            let Ok(event) = self.events.1.recv_timeout(if running > 0 { LOOK_RARELY } else { LOOK }) else { continue };
            match event {
                Event::Signal(SIGHUP) => self.reload(),
                Event::Signal(SIGUSR2) => self.upgrade(),
                Event::Signal(_) => self.stop(),
                Event::Successor(outcome) => self.successor(outcome),
                Event::Read(outcome) => self.take_read(outcome),
                Event::Named(found) => self.take_named(found),
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
        paths.iter().for_each(|path| super::open::leave_stale(path));
        if let Some(log) = self.log.take() {
            log.finish();
        }
        if let Some(control) = self.control.take() {
            control.stop();
        }
        match cut(&counts) - self.cut_before {
            0 => tracing::info!("drained"),
            n => tracing::warn!("drained: {} had to be cut", plural(n, "connection", "connections")),
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
        self.cut_before = cut(&self.relay.counts());
        self.board.set_draining();
        let (open, s) = (plural(self.relay.active(), "connection", "connections"), timeout.as_secs_f64());
        tracing::info!("draining: {open} may finish within {s} s; a second signal cuts them");
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
                    // Who asks from now on is answered by the new one, not by either.
                    self.management.leave(control);
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

/// A listener none of whose targets has an address cannot serve anyone.
fn all_reachable(services: &[Arc<Service>], found: &Found) -> anyhow::Result<()> {
    for service in services {
        if service.targets.iter().any(|t| !t.addresses().is_empty()) {
            continue;
        }
        let first = service.config.targets.first().map(|t| &t.endpoint);
        let Some(Endpoint::Name(name, _)) = first else { continue };
        let why = found.why(name).unwrap_or("no address is known");
        let what = format!("{}: the name {name} cannot be resolved: {why}", service.config.name);
        return Err(UserError::new(what, "check the spelling; `getent hosts NAME` asks as the relay does").into());
    }
    Ok(())
}

fn tell_unresolved(found: &Found) {
    for (name, why) in found.unresolved() {
        tracing::warn!("the name {name} cannot be resolved: {why}; it is asked for again, and the other targets serve");
    }
}

/// Who the relay is to become, if somebody else than who started it.
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
        // A new program that takes over is to have the capabilities of its file, if this one has them from its own.
        return if privileges::elevated_by_file() { Ok(()) } else { Ok(privileges::gain_nothing()?) };
    };
    let transparent = config.listeners.iter().any(|l| l.transparent);
    privileges::become_user(user, transparent).map_err(|e| {
        let wanted = config.global.user.as_deref().unwrap_or_default();
        let hint = if privileges::current() == *user {
            "start the relay as root, or as this user without other groups; or leave `user` out"
        } else {
            "only root can become another user: leave `user` out"
        };
        UserError::new(format!("cannot become {wanted}: {e}"), hint).into()
    })
}

/// Connections that were ended because their time to drain was over.
fn cut(counts: &[Arc<ListenerStats>]) -> u64 {
    counts.iter().map(|s| s.closed(CloseReason::Drained).get()).sum()
}

fn after(time: Duration) -> Ns {
    monotonic_ns().saturating_add(ns(time))
}
