//! Which CPUs are online. Their numbers have gaps where one is offline or absent, so a count does not say what they are.
use parshall_core::values;

use crate::bounded_file;

/// The numbers of the CPUs that are online, ascending; `[0]` where neither sysfs nor procfs says it.
pub fn online() -> Vec<u32> {
    let listed = bounded_file::text("/sys/devices/system/cpu/online").unwrap_or_default();
    let cpus = listed_cpus(&listed).or_else(|| stat_cpus(&bounded_file::text("/proc/stat").unwrap_or_default()));
    cpus.unwrap_or_else(|| vec![0])
}

fn listed_cpus(text: &str) -> Option<Vec<u32>> {
    let cpus = values::cpus(text.trim()).ok()?;
    cpus.into_iter().map(|cpu| u32::try_from(cpu).ok()).collect()
}

/// The lines `cpuN` of /proc/stat are those of the CPUs that are online.
fn stat_cpus(text: &str) -> Option<Vec<u32>> {
    let number = |line: &str| line.strip_prefix("cpu")?.split(' ').next()?.parse().ok();
    let mut cpus: Vec<u32> = text.lines().filter_map(number).collect();
    cpus.sort_unstable();
    (!cpus.is_empty()).then_some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_listed_with_the_gaps_between_them() {
        assert_eq!(listed_cpus("0,2-3,9\n"), Some(vec![0, 2, 3, 9]));
        assert_eq!(stat_cpus("cpu  9 9\ncpu0 1 2\ncpu3 4 5\nintr 1\n"), Some(vec![0, 3]));
        assert_eq!((listed_cpus("\n"), stat_cpus("intr 1\n")), (None, None));
        assert!(online().len() >= std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    }
}
