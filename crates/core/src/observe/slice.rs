//! When per-event probes run: all of the time on a slow service, in short slices on a busy one.
//!
//! Full-time probing of a saturated host takes about 30 % of its throughput (measured with an epoll ping-pong at
//! 177,000 requests/s), of a service with 10,000 requests/s about 2 %. The policy measures what probing costs while a
//! slice is on and pauses between slices so that the cost over time stays within a budget.

/// Nanoseconds on the caller's clock.
pub type Ns = u64;

/// Shortest length of a slice: it must hold a 40 ms delayed ACK whole, twice over.
pub const SLICE_NS: Ns = 100_000_000;
/// Its length in a long window. Attaching and detaching stops every request for about a millisecond each time, so few long slices
/// disturb a service less than many short ones with the same share of the time.
const SLICE_LONG_NS: Ns = 250_000_000;
/// How many slices of that length a window must hold.
const SLICES_PER_WINDOW: Ns = 20;
/// Its length where probing is so expensive that every slice hurts; a saturated service has thousands of requests in it.
pub const SLICE_EXPENSIVE_NS: Ns = 50_000_000;
/// Share of the host's CPU time from which on full-time probing is expensive.
const EXPENSIVE: f64 = 0.1;
/// How long the first slice runs before its cost is judged, and for how long again it must be above the budget: a pause of the hypervisor
/// counts as run time of the program that it met, and so does what the observer itself does at its start.
pub const FIRST_CHECK_NS: Ns = 20_000_000;
/// A cost in the first slice at which probing cannot wait until programs are warm: the first runs cost several times what later ones do.
const FIRST_CHECK_ALARM: f64 = 0.05;
/// When programs are warm and the host's idle time has been measured.
const SETTLE_NS: Ns = 130_000_000;
/// How long a judgement of the cost holds while a slice goes on.
const RECHECK_NS: Ns = 250_000_000;
/// Below this rate of events probing is cheap, whatever a busy host makes their run times look like.
const EVENTS_PER_S_FREE: u64 = 1_000;
/// A slice is at least this many times as long as requests take on average: of shorter ones it would cut too many.
const REQUESTS_PER_SLICE: Ns = 3;
/// Dispatch of tracepoints costs about half as much again as the programs' own run time.
const DISPATCH_FACTOR: f64 = 1.5;
/// Share of the CPUs that may go into probing on a busy host.
const BUDGET_BUSY: f64 = 0.01;
/// On an idle host probing takes nothing from anyone; as much as this is then fine.
const BUDGET_IDLE: f64 = 0.03;

/// The cost of the probes since the slice began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// CPU time of the probes in the kernel, without dispatch.
    pub kernel_ns: u64,
    /// Wall time in which they spent it.
    pub elapsed_ns: Ns,
    /// CPUs of the host.
    pub cpus: u32,
    /// Idle share of the host's CPU time.
    pub idle: f64,
    /// Events that the probes handled in this time.
    pub events: u64,
}

impl Cost {
    /// Share of the host's CPU time, dispatch included.
    pub fn share(&self) -> f64 {
        let capacity = self.elapsed_ns as f64 * f64::from(self.cpus.max(1));
        if capacity > 0.0 { self.kernel_ns as f64 * DISPATCH_FACTOR / capacity } else { 0.0 }
    }

    /// So few events come that probing them costs nothing worth saving.
    fn is_free(&self) -> bool {
        self.events.saturating_mul(1_000_000_000) < self.elapsed_ns.saturating_mul(EVENTS_PER_S_FREE)
    }

    /// The cost after the first `elapsed_ns` of a slice, which took `kernel_ns`.
    fn since(self, (elapsed_ns, kernel_ns): (Ns, u64)) -> Self {
        let (kernel_ns, elapsed_ns) =
            (self.kernel_ns.saturating_sub(kernel_ns), self.elapsed_ns.saturating_sub(elapsed_ns));
        Self { kernel_ns, elapsed_ns, ..self }
    }
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing changes.
    Keep,
    /// End the slice.
    Pause,
    /// Begin the next slice.
    Resume,
}

/// The policy's memory.
#[derive(Debug, Clone)]
pub struct SlicePlan {
    gap_max: Ns,
    slice_full: Ns,
    on_since: Option<Ns>,
    resume_at: Ns,
    relook_at: Ns,
    slice_ns: Ns,
    /// The first slice is on, whose cost is measured and not estimated.
    first: bool,
    /// How long it had run at the last judgement, and its CPU time.
    judged: (Ns, u64),
    /// It was above the budget then.
    above: bool,
}

impl SlicePlan {
    /// A plan for a window that begins at `now` and ends at `end`; the first slice is on.
    pub fn new(now: Ns, end: Ns) -> Self {
        let window = end.saturating_sub(now);
        Self {
            gap_max: (window / 4).max(SLICE_NS),
            slice_full: (window / SLICES_PER_WINDOW).clamp(SLICE_NS, SLICE_LONG_NS),
            on_since: Some(now),
            resume_at: 0,
            relook_at: now + FIRST_CHECK_NS,
            slice_ns: SLICE_NS,
            first: true,
            judged: (0, 0),
            above: false,
        }
    }

    /// The share of the host's CPU time that probing may take on a host of which `idle` is unused. Below half of idle
    /// time nothing is given away.
    pub fn budget(idle: f64) -> f64 {
        let spare = ((idle - 0.5) * 2.0).clamp(0.0, 1.0);
        BUDGET_BUSY + (BUDGET_IDLE - BUDGET_BUSY) * spare
    }

    /// When [`SlicePlan::step`] next has something to decide: what probing costs need not be read before.
    pub fn due_at(&self) -> Ns {
        if self.on_since.is_some() { self.relook_at } else { self.resume_at }
    }

    /// Called often; `cost` is of the current slice, and `request_ns` the time that requests take on average, None while none was seen.
    pub fn step(&mut self, now: Ns, cost: Cost, request_ns: Option<Ns>) -> Step {
        match self.on_since {
            None if now >= self.resume_at => {
                self.on_since = Some(now);
                self.relook_at = now + self.slice_ns;
                Step::Resume
            }
            None => Step::Keep,
            Some(_) if now < self.relook_at => Step::Keep,
            Some(since) => {
                let full = cost.since(self.judged).share();
                let duty = if full > 0.0 { Self::budget(cost.idle) / full } else { 1.0 };
                let was_above = std::mem::replace(&mut self.above, duty < 1.0);
                if self.first {
                    self.judged = (cost.elapsed_ns, cost.kernel_ns);
                }
                if duty >= 1.0 || cost.is_free() {
                    self.relook_at = now + RECHECK_NS;
                    return Step::Keep;
                }
                let whole_requests = request_ns.map_or(0, |ns| ns.saturating_mul(REQUESTS_PER_SLICE));
                let least_ns = whole_requests.min(self.gap_max);
                if now < since.saturating_add(least_ns) {
                    self.relook_at = since + least_ns;
                    return Step::Keep;
                }
                if self.first && !was_above {
                    let warm = if full < FIRST_CHECK_ALARM { since + SETTLE_NS } else { now };
                    self.relook_at = warm.max(now + FIRST_CHECK_NS);
                    return Step::Keep;
                }
                self.slice_ns = if full >= EXPENSIVE { SLICE_EXPENSIVE_NS } else { self.slice_full }.max(least_ns);
                self.pause(now, since, duty);
                Step::Pause
            }
        }
    }

    /// The next slice comes when this one has paid for itself, but at least four fit into the window.
    fn pause(&mut self, now: Ns, since: Ns, duty: f64) {
        let ran = (now - since).max(1);
        // A full slice that follows the short first slice must be paid for in advance.
        let ahead = if ran < self.slice_ns { self.slice_ns / 2 } else { 0 };
        let gap = ((ran + ahead) as f64 * (1.0 / duty - 1.0)) as Ns;
        self.resume_at = now + gap.min(self.gap_max);
        self.on_since = None;
        (self.first, self.judged) = (false, (0, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    /// Many events, of requests whose length is not known.
    fn cost() -> Cost {
        Cost { kernel_ns: 0, elapsed_ns: 0, cpus: 2, idle: 0.0, events: 1_000_000 }
    }

    /// Runs a plan over `window` with a given cost of full-time probing; returns (observed, slices).
    fn run(window: Ns, cores_full_time: f64, idle: f64) -> (Ns, u32) {
        let (mut plan, mut observed, mut slices) = (SlicePlan::new(0, window), 0, 1);
        let mut since = Some(0);
        let mut now = 0;
        while now < window {
            now += 10 * MS;
            let elapsed = since.map_or(0, |s| now - s);
            let kernel_ns = (elapsed as f64 * cores_full_time) as u64;
            match plan.step(now, Cost { kernel_ns, elapsed_ns: elapsed, cpus: 2, idle, ..cost() }, None) {
                Step::Pause => {
                    observed += elapsed;
                    since = None;
                }
                Step::Resume => {
                    since = Some(now);
                    slices += 1;
                }
                Step::Keep => {}
            }
        }
        (observed + since.map_or(0, |s| now - s), slices)
    }

    #[test]
    fn a_slow_service_is_probed_all_of_the_time() {
        assert_eq!(run(5_000 * MS, 0.000_5, 0.0), (5_000 * MS, 1));
    }

    #[test]
    fn a_saturated_host_pays_a_few_per_cent_at_most() {
        // 30 % of two CPUs, of which DISPATCH_FACTOR is dispatch.
        let full: f64 = 0.30;
        let (observed, slices) = run(5_000 * MS, full * 2.0 / DISPATCH_FACTOR, 0.0);
        let share = observed as f64 / 5e9;
        assert!(slices >= 3, "{slices}");
        assert!(share * full < 0.04, "{share}");
    }

    #[test]
    fn at_ten_thousand_requests_the_cost_is_below_one_per_cent() {
        let full: f64 = 0.02;
        let (observed, slices) = run(10_000 * MS, full * 2.0 / DISPATCH_FACTOR, 0.0);
        let share = observed as f64 / 1e10;
        assert!(share * full < 0.011, "{share}");
        assert!(slices > 2 && share > 0.2, "{slices} {share}");
    }

    #[test]
    fn a_service_at_half_load_is_stopped_rarely() {
        // Measured at 10,000 requests/s: 5 % of both CPUs full time, half of the host idle.
        let full: f64 = 0.05;
        let (observed, slices) = run(5_000 * MS, full * 2.0 / DISPATCH_FACTOR, 0.55);
        let share = observed as f64 / 5e9;
        assert!((3..=6).contains(&slices), "{slices}");
        assert!((0.15..0.35).contains(&share), "{share}");
    }

    #[test]
    fn an_idle_host_is_probed_all_of_the_time() {
        let full: f64 = 0.02;
        assert_eq!(run(5_000 * MS, full * 2.0 / DISPATCH_FACTOR, 0.9), (5_000 * MS, 1));
    }

    #[test]
    fn a_pause_of_the_hypervisor_is_not_taken_for_the_cost_of_a_slow_service() {
        for pause_at in [5 * MS, 25 * MS] {
            let mut plan = SlicePlan::new(0, 1_000 * MS);
            for now in (1..100).map(|tick| tick * 10 * MS) {
                // 0.1 % of a CPU, and 12 ms in which the CPU was taken away in a program.
                let kernel_ns = now / 1_000 + if now >= pause_at { 12 * MS } else { 0 };
                let cost = Cost { kernel_ns, elapsed_ns: now, cpus: 2, idle: 0.0, ..cost() };
                assert_eq!(plan.step(now, cost, None), Step::Keep, "a pause at {pause_at}: {now}");
            }
        }
    }

    #[test]
    fn slices_hold_whole_requests() {
        let length = |request_ns| {
            let (mut plan, mut lengths, mut since) = (SlicePlan::new(0, 5_000 * MS), Vec::new(), 0);
            for now in (1..500).map(|tick| tick * 10 * MS) {
                let elapsed_ns = now - since;
                let cost = Cost { kernel_ns: elapsed_ns / 2, elapsed_ns, ..cost() };
                match plan.step(now, cost, request_ns) {
                    Step::Pause => lengths.push(elapsed_ns),
                    Step::Resume => since = now,
                    Step::Keep => {}
                }
            }
            lengths.into_iter().min().expect("a slice ended")
        };
        assert_eq!(length(None), 40 * MS);
        assert_eq!(length(Some(44 * MS)), 140 * MS);
        // At most a quarter of the window, or the others would be too far away.
        assert_eq!(length(Some(5_000 * MS)), 1_250 * MS);
    }

    #[test]
    fn a_service_with_few_events_is_not_sliced() {
        let mut plan = SlicePlan::new(0, 1_000 * MS);
        for now in (1..100).map(|tick| tick * 10 * MS) {
            // 12 requests a second with some events each, on a host whose clock says that they cost 4 % of a CPU.
            let cost = Cost { kernel_ns: now / 25, elapsed_ns: now, events: now / (5 * MS), ..cost() };
            assert_eq!(plan.step(now, cost, None), Step::Keep, "{now}");
        }
    }

    #[test]
    fn a_short_window_is_not_left_without_a_second_slice() {
        let (_, slices) = run(1_000 * MS, 0.3, 0.0);
        assert!(slices >= 2, "{slices}");
    }
}
