//! CPU figures of the host, and what parshall itself uses.

use parshall_evidence::Host;
use parshall_sys::clock;

use parshall_host::bounded_file;

/// Sums of /proc/stat since boot, over all CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    cpus: u32,
    /// None when unknown.
    busy_ns: Option<u64>,
    /// The part of it that the hypervisor took.
    stolen_ns: u64,
}

fn parse_stat(text: &str, tick_ns: u64) -> Stat {
    let cpus = text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    let words = text.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> = words.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let of = |index: usize| ticks.get(index).map_or(0, |ticks| ticks * tick_ns);
    // user nice system idle iowait irq softirq steal; guest time is part of user time already.
    let busy_ns = (ticks.len() >= 4).then(|| [0, 1, 2, 5, 6, 7].into_iter().map(of).sum());
    Stat { cpus: cpus as u32, busy_ns, stolen_ns: of(7) }
}

fn read() -> Stat {
    let tick_ns = 1_000_000_000 / clock::ticks_per_second();
    parse_stat(&bounded_file::text("/proc/stat").unwrap_or_default(), tick_ns)
}

/// The CPU times when the window began.
#[derive(Debug)]
pub struct HostWatch {
    begun: Stat,
    own_ns: u64,
}

impl HostWatch {
    pub fn start() -> Self {
        Self { begun: read(), own_ns: clock::process_cpu_ns() }
    }

    /// The host over the window.
    pub fn host(&self) -> Host {
        let now = read();
        let kernel = bounded_file::text("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let busy_ns = now.busy_ns.zip(self.begun.busy_ns).map(|(now, then)| now.saturating_sub(then));
        Host { kernel, cpus: now.cpus, busy_ns, stolen_ns: now.stolen_ns.saturating_sub(self.begun.stolen_ns) }
    }

    /// CPU time of this process since the start.
    pub fn own_cpu_ns(&self) -> u64 {
        clock::process_cpu_ns().saturating_sub(self.own_ns)
    }
}

/// How idle the host has been lately.
#[derive(Debug)]
pub struct IdleMeter {
    at: u64,
    busy_ns: u64,
    idle: f64,
}

impl IdleMeter {
    /// The kernel counts in ticks of 10 ms: a shorter measurement would be noise.
    const MIN_NS: u64 = 90_000_000;

    /// Starts at `now` (nanoseconds on any monotonic clock); until the first measurement the host counts as busy.
    pub fn start(now: u64) -> Self {
        Self { at: now, busy_ns: read().busy_ns.unwrap_or(0), idle: 0.0 }
    }

    /// The idle share of all CPUs' time between the last measurement and `now`.
    pub fn measure(&mut self, now: u64) -> f64 {
        let wall = now.saturating_sub(self.at);
        if wall >= Self::MIN_NS {
            let stat = read();
            let busy = stat.busy_ns.unwrap_or(u64::MAX);
            let used = busy.saturating_sub(self.busy_ns) as f64 / (wall as f64 * f64::from(stat.cpus.max(1)));
            *self = Self { at: now, busy_ns: busy, idle: (1.0 - used).clamp(0.0, 1.0) };
        }
        self.idle
    }
}

/// CPUs that are online.
pub fn cpus() -> u32 {
    read().cpus.max(1)
}

/// Resident memory of this process.
pub fn own_rss_bytes() -> u64 {
    let statm = bounded_file::text("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * clock::page_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_iowait_are_not_busy() {
        let text = "cpu  10 1 5 1000 500 2 3 4 9 0\ncpu0 5 0 2 500 1 0 0 0 0 0\ncpu1 5 0 2 500 1 0 0 0 0 0\nintr 5\n";
        assert_eq!(parse_stat(text, 10), Stat { cpus: 2, busy_ns: Some(250), stolen_ns: 40 });
        let nothing = Stat { cpus: 0, busy_ns: None, stolen_ns: 0 };
        assert_eq!((parse_stat("", 10), parse_stat("cpu  1 2\n", 10)), (nothing, nothing));
    }

    #[test]
    fn reads_this_host() {
        let host = HostWatch::start().host();
        assert!(host.cpus > 0 && host.busy_ns.is_some() && !host.kernel.is_empty());
        assert!(own_rss_bytes() > 0);
    }
}
