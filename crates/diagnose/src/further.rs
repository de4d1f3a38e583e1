//! Evidence beside that of a rung, by programs of its own: events by name, requests to io_uring, log lines. Each is loaded only where
//! somebody asks for it, or where the subject has what it is of.
use std::time::Duration;

use parshall_evidence::{EventCounts, Log, Rung, Uring};
use parshall_host::symbols::Stacks;

use crate::event::EventWatch;
use crate::log::LogWatch;
use crate::request::{Naming, ObserveOptions};
use crate::subject::Resolved;
use crate::uring::{self, UringWatch};

/// Programs that are loaded.
#[derive(Default)]
pub struct Further {
    events: Watch<EventWatch>,
    uring: Watch<UringWatch>,
    log: Watch<LogWatch>,
    /// Whether io_uring is worth following where the subject uses it.
    may_follow: bool,
}

/// Programs, and whether they are attached in the present window.
struct Watch<T> {
    loaded: Option<T>,
    begun: bool,
}

impl<T> Default for Watch<T> {
    fn default() -> Self {
        Self { loaded: None, begun: false }
    }
}

impl<T> Watch<T> {
    fn new(loaded: Option<T>) -> Self {
        Self { loaded, begun: false }
    }

    /// Begins a window, or says why it cannot.
    fn begin<E: ToString>(&mut self, begin: impl FnOnce(&mut T) -> Result<(), E>, blind: &mut Vec<String>) {
        let result = self.loaded.as_mut().map(begin);
        self.begun = matches!(result, Some(Ok(())));
        blind.extend(result.and_then(Result::err).map(|error| error.to_string()));
    }

    fn attached(&mut self) -> Option<&mut T> {
        self.loaded.as_mut().filter(|_| self.begun)
    }
}

/// The evidence of a window.
#[derive(Default)]
pub struct FurtherSeen {
    pub events: Vec<EventCounts>,
    pub uring: Option<Uring>,
    pub log: Option<Log>,
    /// The nanoseconds that it took the kernel.
    pub took_ns: u64,
}

impl Further {
    /// Loads what was asked for; a reason says why it cannot be had.
    pub fn load(rung: Rung, resolved: &Resolved, options: &ObserveOptions, reasons: &mut Vec<String>) -> Self {
        let mut not = |what: &str, why: &str| reasons.push(format!("{what}: {why}"));
        let (events, lines) = ("the events that were asked for are not counted", "log lines are not kept");
        if rung == Rung::Procfs {
            let why = "this rung has no probes";
            (!options.events.is_empty()).then(|| not(events, why));
            options.log.iter().for_each(|_| not(lines, why));
            return Self::default();
        }
        let counted = (!options.events.is_empty()).then(|| EventWatch::load(&options.events));
        let counted = counted.and_then(|loaded| loaded.map_err(|error| not(events, &error.to_string())).ok());
        let kept = options.log.as_ref().map(|logs| LogWatch::load(logs, resolved));
        let kept = kept.and_then(|loaded| loaded.map_err(|error| not(lines, &error.to_string())).ok());
        let mut further = Self {
            events: Watch::new(counted),
            log: Watch::new(kept),
            uring: Watch::default(),
            // A comparison of windows prints no accounts.
            may_follow: options.naming != Naming::Nothing,
        };
        // A command that has not begun has no ring yet. The programs cost it nothing where it makes none.
        if options.from_its_start {
            further.prepare(resolved, true, reasons);
        }
        further
    }

    /// Loads what follows io_uring if the subject has a ring, before a window begins.
    pub fn prepare(&mut self, resolved: &Resolved, in_any_case: bool, reasons: &mut Vec<String>) {
        if !self.may_follow || self.uring.loaded.is_some() || !(in_any_case || uring::is_used(resolved)) {
            return;
        }
        match UringWatch::load(resolved) {
            Ok(loaded) => self.uring.loaded = Some(loaded),
            Err(error) => {
                self.may_follow = false;
                // Of a command nobody knows whether it would have used it.
                if !in_any_case {
                    reasons.push(format!("requests to io_uring are not followed: {error}"));
                }
            }
        }
    }

    /// A window begins, which takes `limit` at most. Returns what cannot be seen in it, a sentence each.
    pub fn begin(&mut self, resolved: &Resolved, limit: Duration) -> Vec<String> {
        let window_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let mut blind = Vec::new();
        self.events.begin(EventWatch::begin, &mut blind);
        self.uring.begin(|watch| watch.begin(resolved, window_ns), &mut blind);
        self.log.begin(|watch| watch.begin(resolved), &mut blind);
        blind
    }

    /// The window is over.
    pub fn stop(&mut self) {
        self.events.attached().into_iter().for_each(EventWatch::stop);
        self.uring.attached().into_iter().for_each(UringWatch::stop);
        self.log.attached().into_iter().for_each(LogWatch::stop);
    }

    /// The evidence since `begin_ns` of the monotonic clock. `stacks` are asked for only where there may be some.
    pub fn seen<'s>(&mut self, begin_ns: u64, stacks: impl FnOnce() -> &'s mut Stacks) -> FurtherSeen {
        let mut seen = FurtherSeen::default();
        if let Some(events) = self.events.attached() {
            (seen.events, seen.took_ns) = events.counts(stacks());
        }
        if let Some(watch) = self.uring.attached() {
            let (uring, took_ns) = watch.seen(begin_ns);
            seen.uring = uring;
            seen.took_ns += took_ns;
        }
        if let Some(watch) = self.log.attached() {
            let (log, took_ns) = watch.lines(begin_ns);
            seen.log = Some(log);
            seen.took_ns += took_ns;
        }
        seen
    }
}
