//! The CPUs' time during a trial: by kernel stack, from samples of all CPUs, and what each CPU does. Both are counters like
//! those of the network, so what steps at a turn of a sweep is found in the same way.
use std::collections::{BTreeMap, HashMap};
use std::fs;

use parshall_bpf::kernel_names;
use parshall_core::sorting::{IntoOrdered as _, StableSort as _};
use parshall_host::cpus;
use parshall_sys::clock::ticks_per_second;
use parshall_sys::perf_sampler::Sampler;

/// Samples a second of each CPU. A round number would beat with timers.
const HZ: u64 = 997;
/// Functions of a stack, the innermost first. More would split what belongs together.
const FRAMES: usize = 3;
/// Stacks that are kept, those with the most samples.
const STACKS: usize = 64;
/// The columns of a CPU in /proc/stat.
const COLUMNS: [&str; 7] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq"];

/// A profile in progress.
#[derive(Debug)]
pub struct Profile {
    sampler: Sampler,
    samples: HashMap<Vec<u64>, u64>,
    cpus: BTreeMap<String, u64>,
}

impl Profile {
    /// # Errors
    /// If no CPU can be sampled: without CAP_PERFMON.
    pub fn start() -> std::io::Result<Self> {
        Ok(Self { sampler: Sampler::of_cpus(HZ, cpus::online())?, samples: HashMap::new(), cpus: cpu_times() })
    }

    /// Takes what was sampled since. To be called several times a second.
    pub fn drain(&mut self) {
        let samples = &mut self.samples;
        self.sampler.drain(&mut |sample| {
            let frames = sample.kernel.into_iter().take(FRAMES).collect::<Vec<_>>();
            *samples.entry(frames).or_insert(0) += 1;
        });
    }

    /// Ends it.
    pub fn stop(mut self) -> Profiled {
        let times = cpu_times().into_iter().map(|(name, after)| {
            let us = after.saturating_sub(self.cpus.get(&name).copied().unwrap_or(0));
            (name, us)
        });
        let cpus = times.filter(|(_, us)| *us > 0).into_map();
        self.drain();
        Profiled { samples: self.samples, cpus }
    }
}

/// A profile that has ended. Naming its stacks reads all symbols of the kernel, so it waits until nothing is measured any more.
#[derive(Debug)]
pub struct Profiled {
    samples: HashMap<Vec<u64>, u64>,
    /// Time of each CPU by use, in µs.
    cpus: BTreeMap<String, u64>,
}

impl Profiled {
    /// Time in µs, by what it was spent on.
    pub fn by_name(self) -> BTreeMap<String, u64> {
        let mut most: Vec<(Vec<u64>, u64)> =
            self.samples.into_iter().filter(|(frames, _)| !frames.is_empty()).collect();
        most.stable_sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut addresses: Vec<u64> = most.iter().flat_map(|(frames, _)| frames).copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        let names = kernel_names::names(&addresses).unwrap_or_default();
        let names: HashMap<u64, String> =
            addresses.into_iter().zip(names).filter_map(|(at, name)| Some((at, name?))).collect();
        let mut found = BTreeMap::new();
        for (frames, count) in most {
            let stack: Vec<&str> = frames.iter().map(|at| names.get(at).map_or("?", String::as_str)).collect();
            *found.entry(format!("µs in {}", stack.join(" < "))).or_insert(0) += count * 1_000_000 / HZ;
        }
        // Addresses within one function have become one stack.
        let mut largest: Vec<(String, u64)> = found.into_iter().collect();
        largest.stable_sort_by_key(|(_, us)| std::cmp::Reverse(*us));
        largest.truncate(STACKS);
        let mut counters = self.cpus;
        counters.extend(largest);
        counters
    }
}

/// Time of each CPU by use since boot, in µs.
fn cpu_times() -> BTreeMap<String, u64> {
    parse_cpu_times(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse_cpu_times(text: &str) -> BTreeMap<String, u64> {
    let tick_us = 1_000_000 / ticks_per_second();
    let mut times = BTreeMap::new();
    for line in text.lines() {
        let Some((cpu, values)) = line.split_once(' ').filter(|(cpu, _)| cpu.starts_with("cpu") && *cpu != "cpu")
        else {
            continue;
        };
        for (column, value) in COLUMNS.iter().zip(values.split_whitespace()) {
            times.insert(format!("µs of {column} on {cpu}"), value.parse::<u64>().unwrap_or(0) * tick_us);
        }
    }
    times
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn each_cpu_has_its_columns() {
        let times = parse_cpu_times("cpu  9 9 9 9 9 9 9 9\ncpu0 1 0 2 3 0 0 4 0\ncpu1 5 0 0 0 0 0 0 0\nintr 1 2\n");
        let tick_us = 1_000_000 / ticks_per_second();
        assert_eq!((times["µs of system on cpu0"], times["µs of softirq on cpu0"]), (2 * tick_us, 4 * tick_us));
        assert_eq!((times["µs of user on cpu1"], times.len()), (5 * tick_us, 14));
    }

    #[test]
    fn time_in_the_kernel_is_seen_by_its_stack() {
        const WHAT: &str = "a profile of the host's kernel";
        if !parshall_testkit::root(WHAT) {
            return;
        }
        let mut profile = Profile::start().expect("root may");
        let begun_ns = parshall_sys::clock::thread_cpu_ns();
        let mut buffer = vec![0; 1 << 20];
        while parshall_sys::clock::thread_cpu_ns() < begun_ns + 300_000_000 {
            std::io::Read::read_exact(&mut std::fs::File::open("/dev/zero").expect("is there"), &mut buffer)
                .expect("reads");
            profile.drain();
        }
        let found = profile.stop().by_name();
        let seen: u64 = found
            .iter()
            .filter(|(name, _)| name.contains("read_zero") || name.contains("clear_user"))
            .map(|(_, us)| us)
            .sum();
        assert!(seen > 10_000, "{found:?}");
    }
}
