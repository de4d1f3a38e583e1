//! The CPU time that the probes take in a slice: measured by the kernel in the first slice, estimated from the number of events
//! in later ones.
use parshall_core::observe::slice::Cost;
use parshall_evidence::Slices;

use super::host::{self, IdleMeter};

/// The most that a run of a program takes, on average over a slice: several times of what they do take.
const RUN_MAX_NS: u64 = 5_000;

/// The most that an event costs, on average over a slice. A first slice with hardly an event, and with runs that found nothing of the
/// subject, would make each event of the later ones cost milliseconds.
const EVENT_MAX_NS: f64 = 2_000.0;

/// The meter of one observation.
#[derive(Debug, Default)]
pub struct Meter {
    /// Whether the kernel measures every run of a program now.
    pub timing: bool,
    /// CPU time of the slices that have ended.
    pub kernel_ns: u64,
    ns_per_event: f64,
    slice: Option<SliceBegin>,
    idle: Option<IdleMeter>,
    /// Begin and end of the slices that have ended.
    pub spans: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct SliceBegin {
    at: u64,
    reading: Reading,
}

/// The programs' counters so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    /// Events they handled.
    pub events: u64,
    /// Their CPU time and how often they ran, while the kernel measures it.
    pub timed_ns: u64,
    pub timed_runs: u64,
}

impl Reading {
    /// CPU time of the runs since `before`. The kernel measures it by the clock, which goes on while the hypervisor or an interrupt has
    /// the CPU: a single such pause of 10 ms must not make programs expensive that hardly run.
    fn cpu_ns_since(&self, before: &Self) -> u64 {
        let runs = self.timed_runs.saturating_sub(before.timed_runs);
        self.timed_ns.saturating_sub(before.timed_ns).min(runs.saturating_mul(RUN_MAX_NS))
    }
}

impl Meter {
    /// The slices that have ended, with times relative to the window's beginning, and the number of their events.
    pub fn slices(&self, window_begin: u64, events: u64) -> Slices {
        let spans: Vec<(u64, u64)> =
            self.spans.iter().map(|&(begin, end)| (begin - window_begin, end - begin)).collect();
        Slices { count: spans.len() as u32, observed_ns: spans.iter().map(|span| span.1).sum(), events, spans }
    }

    /// `timing`: whether the kernel measures the first slice.
    pub fn new(timing: bool) -> Self {
        Self { timing, ..Self::default() }
    }

    /// A slice begins.
    pub fn begin(&mut self, at: u64, reading: Reading) {
        self.slice = Some(SliceBegin { at, reading });
        self.idle.get_or_insert_with(|| IdleMeter::start(at));
    }

    /// When the current slice began.
    pub fn slice_begin(&self) -> Option<u64> {
        self.slice.map(|slice| slice.at)
    }

    /// The cost of the current slice until `now`.
    pub fn cost(&mut self, now: u64, reading: Reading) -> Cost {
        let cpus = host::cpus();
        let idle = self.idle.as_mut().map_or(0.0, |meter| meter.measure(now));
        let Some(slice) = self.slice else {
            return Cost { kernel_ns: 0, elapsed_ns: 1, cpus, idle, events: 0 };
        };
        Cost {
            kernel_ns: self.spent(&slice, reading),
            elapsed_ns: now.saturating_sub(slice.at),
            cpus,
            idle,
            events: reading.events.saturating_sub(slice.reading.events),
        }
    }

    fn spent(&self, slice: &SliceBegin, reading: Reading) -> u64 {
        if self.timing {
            return reading.cpu_ns_since(&slice.reading);
        }
        (reading.events.saturating_sub(slice.reading.events) as f64 * self.ns_per_event) as u64
    }

    /// Excludes what ran between two readings from the cost of the slice: it was not caused by events and does not occur again.
    pub fn set_aside(&mut self, before: Reading, after: Reading) {
        let Some(slice) = self.slice.as_mut().filter(|_| self.timing) else { return };
        slice.reading.timed_ns += after.timed_ns.saturating_sub(before.timed_ns);
        slice.reading.timed_runs += after.timed_runs.saturating_sub(before.timed_runs);
        self.kernel_ns += after.cpu_ns_since(&before);
    }

    /// A slice ends.
    pub fn end(&mut self, at: u64, reading: Reading) {
        let Some(slice) = self.slice.take() else { return };
        let spent = self.spent(&slice, reading);
        let events = reading.events.saturating_sub(slice.reading.events);
        let runs = reading.timed_runs.saturating_sub(slice.reading.timed_runs);
        tracing::debug!("a slice of {} ns: events {events}, runs of programs {runs}, {spent} ns", at - slice.at);
        self.spans.push((slice.at, at));
        self.kernel_ns += spent;
        if self.timing && events > 0 {
            self.ns_per_event = (spent as f64 / events as f64).min(EVENT_MAX_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many events, a run each.
    fn reading(events: u64, timed_ns: u64) -> Reading {
        Reading { events, timed_ns, timed_runs: events }
    }

    #[test]
    fn later_slices_are_estimated_from_the_first() {
        let mut meter = Meter::new(true);
        meter.begin(100, reading(10, 1_000));
        assert_eq!(meter.cost(200, reading(20, 3_000)).kernel_ns, 2_000);
        let aside = Reading { timed_ns: 3_500, timed_runs: 21, ..reading(20, 3_000) };
        meter.set_aside(reading(20, 3_000), aside);
        assert_eq!(meter.cost(200, aside).kernel_ns, 2_000);
        meter.end(300, Reading { timed_ns: 5_500, timed_runs: 31, ..reading(30, 0) });
        assert_eq!((meter.kernel_ns, &meter.spans[..]), (4_500, &[(100, 300)][..]));
        meter.timing = false;
        meter.begin(500, reading(30, 5_000));
        assert_eq!(meter.cost(600, reading(40, 5_000)).kernel_ns, 2_000);
        meter.end(700, reading(40, 5_000));
        assert_eq!(meter.kernel_ns, 6_500);
        assert_eq!(meter.cost(800, Reading::default()).kernel_ns, 0);
    }

    #[test]
    fn runs_without_an_event_do_not_make_later_events_dear() {
        let mut meter = Meter::new(true);
        meter.begin(0, reading(0, 0));
        meter.end(100, Reading { events: 2, timed_ns: 900_000, timed_runs: 1_000 });
        assert_eq!(meter.kernel_ns, 900_000);
        meter.timing = false;
        meter.begin(200, reading(2, 0));
        assert_eq!(meter.cost(300, reading(1_002, 0)).kernel_ns, 2_000_000);
    }

    #[test]
    fn a_pause_of_the_hypervisor_is_no_cost() {
        let mut meter = Meter::new(true);
        meter.begin(0, reading(0, 0));
        // 40 runs of 2 µs, in one of which the CPU was taken away for 12 ms.
        assert_eq!(meter.cost(20_000_000, reading(40, 12_080_000)).kernel_ns, 40 * RUN_MAX_NS);
    }
}
