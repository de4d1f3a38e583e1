//! The host's activity during a trial: read before it and after it.
use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use parshall_core::experiment::Conditions;
use parshall_core::sorting::IntoOrdered as _;
use parshall_sys::clock::ticks_per_second;

/// Times of all CPUs together since boot, in s (/proc/stat).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct CpuTimes {
    user: f64,
    system: f64,
    idle: f64,
    interrupts: f64,
    steal: f64,
}

/// A reading of the host before a trial.
#[derive(Debug)]
pub struct Before {
    at: Instant,
    cpu: Option<CpuTimes>,
    memory_s: Option<f64>,
    io_s: Option<f64>,
}

impl Before {
    pub fn now() -> Self {
        Self { at: Instant::now(), cpu: CpuTimes::now(), memory_s: stalled_s("memory"), io_s: stalled_s("io") }
    }

    /// The activity since then. `used` is the CPU time of the trial itself.
    pub fn until_now(&self, trial_cpu_s: f64) -> Conditions {
        let wall_s = self.at.elapsed().as_secs_f64().max(1e-6);
        let since = |before: Option<f64>, now: Option<f64>| Some(((now? - before?) / wall_s).clamp(0.0, 1.0));
        let cpu = self.cpu.zip(CpuTimes::now()).map(|(before, now)| now.since(before));
        // Times of /proc/stat are sampled: a short trial may see none.
        let cpu = cpu.filter(|cpu| cpu.all() > 0.0);
        let share = |of: fn(&CpuTimes) -> f64| cpu.map(|cpu| (of(&cpu) / cpu.all()).clamp(0.0, 1.0));
        Conditions {
            steal: share(|cpu| cpu.steal),
            other_cpu: cpu.map(|cpu| ((cpu.user + cpu.system - trial_cpu_s) / cpu.all()).clamp(0.0, 1.0)),
            busy: share(|cpu| cpu.all() - cpu.idle),
            memory_pressure: since(self.memory_s, stalled_s("memory")),
            io_pressure: since(self.io_s, stalled_s("io")),
            frequency: lowest_frequency(),
        }
    }
}

impl CpuTimes {
    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks = ticks_per_second() as f64;
        let fields: Vec<f64> =
            line.split_whitespace().filter_map(|n| n.parse::<f64>().ok()).map(|n| n / ticks).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = fields[..] else { return None };
        Some(Self { user: user + nice, system, idle: idle + iowait, interrupts: irq + softirq, steal })
    }

    fn since(self, before: Self) -> Self {
        Self {
            user: self.user - before.user,
            system: self.system - before.system,
            idle: self.idle - before.idle,
            interrupts: self.interrupts - before.interrupts,
            steal: self.steal - before.steal,
        }
    }

    fn all(&self) -> f64 {
        self.user + self.system + self.idle + self.interrupts + self.steal
    }
}

/// Share of the CPUs' time since boot that the hypervisor gave to others.
pub fn steal_since_boot() -> f64 {
    CpuTimes::now().map_or(0.0, |cpu| cpu.steal / cpu.all().max(1.0))
}

/// Time since boot in which some task waited for a resource, in s (/proc/pressure).
fn stalled_s(resource: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/pressure/{resource}")).ok()?;
    let total = text.lines().find(|line| line.starts_with("some "))?.rsplit_once("total=")?.1;
    total.parse::<f64>().ok().map(|us| us / 1e6)
}

/// Of all CPUs, as a share of the highest that each can have.
fn lowest_frequency() -> Option<f64> {
    let policies = fs::read_dir("/sys/devices/system/cpu/cpufreq").ok()?.flatten();
    let share = |entry: fs::DirEntry| {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).ok()?.trim().parse::<f64>().ok();
        Some(read("scaling_cur_freq")? / read("cpuinfo_max_freq")?)
    };
    policies.filter_map(share).min_by(f64::total_cmp)
}

/// The counters of /proc/net/snmp and /proc/net/netstat, summed over the texts of several namespaces.
pub fn counters(texts: &[String]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for text in texts {
        let mut lines = text.lines();
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let (Some((group, names)), Some((_, values))) = (names.split_once(": "), values.split_once(": ")) else {
                continue;
            };
            for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
                *sums.entry(format!("{group}{name}")).or_insert(0) += value.parse::<u64>().unwrap_or(0);
            }
        }
    }
    sums
}

/// By how much counters grew; those that did not are left out.
pub fn growth(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = |(name, after): (&String, &u64)| {
        let more = after.saturating_sub(before.get(name).copied().unwrap_or(0));
        (more > 0).then(|| (name.clone(), more))
    };
    after.iter().filter_map(grown).into_map()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_read() {
        let times = CpuTimes::parse("cpu  100 20 30 400 5 6 7 8 0 0\ncpu0 1 1\n").expect("a line");
        let ticks = ticks_per_second() as f64;
        assert!((times.all() - 576.0 / ticks).abs() < 1e-9 && (times.user - 120.0 / ticks).abs() < 1e-9, "{times:?}");
        assert_eq!(CpuTimes::parse("cpu  1 2 3\n"), None);
    }

    #[test]
    fn shares_of_a_busy_moment() {
        let before = Before::now();
        let begun = Instant::now();
        while begun.elapsed().as_millis() < 150 {
            std::hint::spin_loop();
        }
        let found = before.until_now(0.15);
        assert!(found.busy.is_some_and(|busy| busy > 0.0 && busy <= 1.0), "{found:?}");
        assert!(found.steal.is_some_and(|steal| steal < 1.0), "{found:?}");
    }

    #[test]
    fn counters_of_namespaces_add_up() {
        let text = "TcpExt: SyncookiesSent TCPRcvCollapsed\nTcpExt: 1 2\nIp: InReceives\nIp: 7\n".to_owned();
        let sums = counters(&[text.clone(), text]);
        assert_eq!(sums["TcpExtTCPRcvCollapsed"], 4);
        let more = BTreeMap::from([("TcpExtTCPRcvCollapsed".to_owned(), 9), ("IpInReceives".to_owned(), 14)]);
        assert_eq!(growth(&sums, &more), BTreeMap::from([("TcpExtTCPRcvCollapsed".to_owned(), 5)]));
    }
}
