//! The CPU time that the probes take in a slice: measured by the kernel in the first slice, estimated from the number of events
//! in later ones.
use parshall_core::observe::slice::Cost;
use parshall_evidence::Slices;

use super::host::{self, IdleMeter};

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
    /// Their CPU time, while the kernel measures it.
    pub timed_ns: u64,
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
        let Some(slice) = self.slice else { return Cost { kernel_ns: 0, elapsed_ns: 1, cpus, idle } };
        Cost { kernel_ns: self.spent(&slice, reading), elapsed_ns: now.saturating_sub(slice.at), cpus, idle }
    }

    fn spent(&self, slice: &SliceBegin, reading: Reading) -> u64 {
        if self.timing {
            return reading.timed_ns.saturating_sub(slice.reading.timed_ns);
        }
        (reading.events.saturating_sub(slice.reading.events) as f64 * self.ns_per_event) as u64
    }

    /// Excludes what ran between two readings from the cost of the slice: it was not caused by events and does not occur again.
    pub fn set_aside(&mut self, before: Reading, after: Reading) {
        let Some(slice) = self.slice.as_mut().filter(|_| self.timing) else { return };
        let ns = after.timed_ns.saturating_sub(before.timed_ns);
        slice.reading.timed_ns += ns;
        self.kernel_ns += ns;
    }

    /// A slice ends.
    pub fn end(&mut self, at: u64, reading: Reading) {
        let Some(slice) = self.slice.take() else { return };
        let spent = self.spent(&slice, reading);
        let events = reading.events.saturating_sub(slice.reading.events);
        self.spans.push((slice.at, at));
        self.kernel_ns += spent;
        if self.timing && events > 0 {
            self.ns_per_event = spent as f64 / events as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_slices_are_estimated_from_the_first() {
        let mut meter = Meter::new(true);
        meter.begin(100, Reading { events: 10, timed_ns: 1_000 });
        assert_eq!(meter.cost(200, Reading { events: 20, timed_ns: 3_000 }).kernel_ns, 2_000);
        meter.set_aside(Reading { events: 20, timed_ns: 3_000 }, Reading { events: 20, timed_ns: 3_500 });
        assert_eq!(meter.cost(200, Reading { events: 20, timed_ns: 3_500 }).kernel_ns, 2_000);
        meter.end(300, Reading { events: 30, timed_ns: 5_500 });
        assert_eq!((meter.kernel_ns, &meter.spans[..]), (4_500, &[(100, 300)][..]));
        meter.timing = false;
        meter.begin(500, Reading { events: 30, timed_ns: 5_000 });
        assert_eq!(meter.cost(600, Reading { events: 40, timed_ns: 5_000 }).kernel_ns, 2_000);
        meter.end(700, Reading { events: 40, timed_ns: 5_000 });
        assert_eq!(meter.kernel_ns, 6_500);
        assert_eq!(meter.cost(800, Reading::default()).kernel_ns, 0);
    }
}
