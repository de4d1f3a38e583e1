//! Evidence that is read around a window on every rung, and how it completes the rung's own: the one place where a capture is made.
use std::time::{Duration, SystemTime};

use parshall_bpf::clock::monotonic_ns;
use parshall_core::observe::naming;
use parshall_evidence::{
    CAPTURE_SCHEMA, Capture, Counters, EventCounts, HardwareCounts, Host, OwnRelay, ProbeCost, Rung, Stack, Waiting,
    WaitingThread,
};
use parshall_host::left_out;

use crate::counters;
use crate::event;
use crate::further::Further;
use crate::hardware::Hardware;
use crate::host::{self, HostWatch};
use crate::origin::origin;
use crate::records::{self, drop_interrupts};
use crate::request::Naming;
use crate::seen::{Cost, Seen};
use crate::subject::Resolved;
use crate::waiting;

/// Counters and states that are read when a window begins, and again when it has ended.
pub struct Around<'a> {
    begun: SystemTime,
    /// The same by the monotonic clock.
    begun_ns: u64,
    host: HostWatch,
    hardware: Option<Hardware>,
    counters: counters::Watch<'a>,
    waiting: waiting::Watch<'a>,
    further: &'a mut Further,
    /// The gaps of the observation, a sentence each.
    blind: Vec<String>,
}

/// Their state.
pub struct Readings<'a> {
    begun: SystemTime,
    begun_ns: u64,
    host: Host,
    own_cpu: HostWatch,
    hardware: Option<HardwareCounts>,
    counters: Counters,
    waiting: Option<Waiting>,
    further: &'a mut Further,
    blind: Vec<String>,
}

/// The other parts of a capture.
pub struct Additions<'a> {
    /// Why it is on no better rung, a sentence each.
    pub reasons: &'a [String],
    /// The subject's processes that are relays of our own.
    pub own_relays: Vec<OwnRelay>,
    /// The time that it took to begin the window.
    pub attach_ms: f64,
    /// The stacks whose functions are named.
    pub naming: Naming,
    /// The functions that interpreters run are asked for.
    pub interpreters: bool,
}

impl<'a> Around<'a> {
    /// The window has begun.
    pub fn start(resolved: &'a Resolved, rung: Rung, further: &'a mut Further, limit: Duration) -> Self {
        let blind = further.begin(resolved, limit);
        Self {
            host: HostWatch::start(),
            hardware: (rung > Rung::Procfs).then(|| Hardware::start(resolved)).flatten(),
            counters: counters::Watch::start(resolved),
            waiting: waiting::Watch::start(resolved),
            further,
            blind,
            begun: SystemTime::now(),
            begun_ns: monotonic_ns(),
        }
    }

    /// The window is over. Called before anything else is read: it takes some time to find out what was seen.
    pub fn finish(self) -> Readings<'a> {
        self.further.stop();
        Readings {
            begun: self.begun,
            begun_ns: self.begun_ns,
            waiting: self.waiting.finish(),
            counters: self.counters.finish(),
            hardware: self.hardware.map(Hardware::finish),
            host: self.host.host(),
            own_cpu: self.host,
            further: self.further,
            blind: self.blind,
        }
    }
}

impl Readings<'_> {
    /// The capture of the window.
    pub fn complete(mut self, mut seen: Seen, added: Additions<'_>) -> Capture {
        let own_cpu_ns = self.own_cpu.own_cpu_ns();
        // A rung without probes has no clock of its own.
        let begin_ns = if seen.begin_ns > 0 { seen.begin_ns } else { self.begun_ns };
        let mut found = self.further.seen(begin_ns, || seen.stacks.get_or_insert_with(|| records::stacks(false)));
        seen.cost.kernel_cpu_ns += found.took_ns;
        let Cost { kernel_cpu_ns, lost_events, missed_events, events, untracked } = seen.cost;
        // Of our time, what came before frames are named: that is not a part of the observation, and most of it is the parsing of files.
        let probe = ProbeCost {
            kernel_cpu_ns,
            own_cpu_ns,
            rss_bytes: host::own_rss_bytes(),
            lost_events,
            missed_events,
            events,
            untracked,
            attach_ms: added.attach_ms,
        };
        let waiting = self.waiting.as_mut().filter(|_| added.naming != Naming::Nothing);
        if let Some(threads) = waiting.map(|waiting| waiting.threads.as_mut_slice()) {
            waiting::add_stacks(threads, added.interpreters, || {
                seen.stacks.get_or_insert_with(|| records::stacks(false))
            });
        }
        let asleep = self.waiting.as_ref().map_or(&[][..], |waiting| &waiting.threads);
        let stacks = named(&mut seen, &found.events, asleep, added.naming);
        drop_interrupts(&mut seen.thread_stalls, &stacks);
        event::tell_interrupts(&mut found.events, &stacks);
        let mut blind = added.reasons.to_vec();
        blind.append(&mut self.blind);
        blind.append(&mut seen.blind);
        blind.extend(left_out::take());
        Capture {
            schema: CAPTURE_SCHEMA.to_owned(),
            subject: seen.subject,
            origin: Some(origin(self.begun, self.host.kernel.clone())),
            command: None,
            own_relays: added.own_relays,
            followed: seen.followed,
            host: self.host,
            window_ns: seen.window_ns,
            rung: seen.rung,
            blind,
            unseen: seen.unseen,
            slices: seen.slices,
            flows: seen.flows,
            threads: seen.threads,
            timeline: seen.timeline,
            services: Vec::new(),
            flow_stalls: seen.flow_stalls,
            thread_stalls: seen.thread_stalls,
            samples: seen.samples,
            stacks,
            cgroups: seen.cgroups,
            net: seen.net,
            counters: Some(self.counters),
            waiting: self.waiting,
            hardware: self.hardware,
            events: found.events,
            uring: found.uring,
            log: found.log,
            probe,
        }
    }
}

/// The stacks of a window, with the names of their functions where somebody may read them.
fn named(seen: &mut Seen, events: &[EventCounts], asleep: &[WaitingThread], naming: Naming) -> Vec<Stack> {
    let Some(stacks) = seen.stacks.take() else { return Vec::new() };
    match naming {
        Naming::Nothing => stacks.unnamed(),
        Naming::All => stacks.named(),
        Naming::Shown => stacks.named_of(&naming::shown(naming::References {
            threads: &seen.threads,
            stalls: seen.thread_stalls.iter().chain(&seen.followed_stalls),
            samples: &seen.samples,
            events,
            asleep,
        })),
    }
}
