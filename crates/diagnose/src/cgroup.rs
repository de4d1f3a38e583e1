//! CPU bandwidth control (quota and throttling) of control groups, of version 1 and 2.
//!
//! A group is throttled when it or *any ancestor* has used up its quota, so all levels are read. Sources:
//! Documentation/scheduler/sched-bwc.rst (v1, `throttled_time` in ns), Documentation/admin-guide/cgroup-v2.rst
//! (`throttled_usec`, `cpu.max`).
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use parshall_core::sorting::{IntoOrdered as _, StableSort as _};
use parshall_evidence::CgroupCpu;

use super::subject::Process;

use parshall_host::bounded_file;

/// Levels above a group that are read. Kubernetes nests about 5.
const LEVELS_MAX: usize = 32;

/// The account of one group at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Level {
    /// Its directory.
    pub directory: PathBuf,
    /// Its path below the mount point.
    pub path: String,
    /// Quota per period; None when there is no limit.
    pub quota_us: Option<u64>,
    /// The period.
    pub period_us: u64,
    /// Periods that elapsed since the group was made.
    pub periods: u64,
    /// Of these, those in which it was throttled.
    pub throttled_periods: u64,
    /// Time throttled, summed over CPUs.
    pub throttled_ns: u64,
}

/// Reads a group and all its ancestors, the innermost first.
pub fn snapshot_directory(directory: &Path) -> Vec<Level> {
    let mut levels: Vec<Level> = directory.ancestors().take(LEVELS_MAX).map_while(read_level).collect();
    if let Some(root) = levels.last().map(|level| level.directory.clone()) {
        for level in &mut levels {
            let inside = level.directory.strip_prefix(&root).unwrap_or(Path::new(""));
            level.path = format!("/{}", inside.display());
        }
    }
    levels
}

/// None where there is no cpu.stat: above the mount point.
fn read_level(directory: &Path) -> Option<Level> {
    let stat = bounded_file::text(directory.join("cpu.stat")).ok()?;
    let mut level = Level { directory: directory.to_path_buf(), ..parse_stat(&stat) };
    let read = |name: &str| bounded_file::text(directory.join(name)).ok();
    if let Some(max) = read("cpu.max") {
        (level.quota_us, level.period_us) = parse_max(&max);
    } else if let (Some(quota), Some(period)) = (read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")) {
        // -1 is no limit.
        level.quota_us = quota.trim().parse().ok();
        level.period_us = period.trim().parse().unwrap_or(0);
    }
    Some(level)
}

fn parse_stat(text: &str) -> Level {
    let mut level = Level::default();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(' ') else { continue };
        let Ok(value) = value.trim().parse::<u64>() else { continue };
        match name {
            "nr_periods" => level.periods = value,
            "nr_throttled" => level.throttled_periods = value,
            "throttled_time" => level.throttled_ns = value,
            "throttled_usec" => level.throttled_ns = value.saturating_mul(1000),
            _ => {}
        }
    }
    level
}

/// `cpu.max`: `QUOTA PERIOD`, with `max` for no limit.
fn parse_max(text: &str) -> (Option<u64>, u64) {
    let mut fields = text.split_whitespace();
    let quota = fields.next().and_then(|quota| quota.parse().ok());
    (quota, fields.next().and_then(|period| period.parse().ok()).unwrap_or(0))
}

/// The differences between two snapshots of the same group, for the levels that have a quota or were throttled, tightest quota
/// first.
pub fn delta(before: &[Level], after: &[Level]) -> Vec<CgroupCpu> {
    let mut all: Vec<CgroupCpu> = after
        .iter()
        .filter_map(|now| {
            let then = before.iter().find(|then| then.directory == now.directory)?;
            Some(CgroupCpu {
                path: now.path.clone(),
                quota_us: now.quota_us,
                period_us: now.period_us,
                periods: now.periods.saturating_sub(then.periods),
                throttled_periods: now.throttled_periods.saturating_sub(then.throttled_periods),
                throttled_ns: now.throttled_ns.saturating_sub(then.throttled_ns),
            })
        })
        .filter(|group| group.quota_us.is_some() || group.throttled_ns > 0 || group.throttled_periods > 0)
        .collect();
    all.stable_sort_by(|a, b| cpus(a).total_cmp(&cpus(b)));
    all
}

/// CPUs that the quota allows.
fn cpus(group: &CgroupCpu) -> f64 {
    match group.quota_us {
        Some(quota) if group.period_us > 0 => quota as f64 / group.period_us as f64,
        _ => f64::INFINITY,
    }
}

/// The groups of a subject over a window.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    begin: BTreeMap<PathBuf, Vec<Level>>,
}

impl Watch {
    /// Starts with a snapshot of the groups of all processes.
    pub fn start(processes: &[Process]) -> Self {
        let directories: BTreeSet<&PathBuf> = processes.iter().filter_map(|p| p.cpu_cgroup.as_ref()).into_set();
        Self { begin: directories.into_iter().map(|at| (at.clone(), snapshot_directory(at))).into_map() }
    }

    /// Time for which `directory` or an ancestor of it was throttled since the start, by their latest account. A thread that
    /// waits for several levels at once waits only once, so this is the largest of them.
    pub fn throttled_ns(&self, directory: &Path) -> u64 {
        let Some(before) = self.begin.get(directory) else { return 0 };
        before
            .iter()
            .filter(|level| level.quota_us.is_some())
            .filter_map(|then| Some(read_level(&then.directory)?.throttled_ns.saturating_sub(then.throttled_ns)))
            .max()
            .unwrap_or(0)
    }

    /// True when some watched group has a quota.
    pub fn has_quota(&self) -> bool {
        self.begin.values().flatten().any(|level| level.quota_us.is_some())
    }

    /// The differences since the start, with each group once.
    pub fn finish(&self) -> Vec<CgroupCpu> {
        let mut all: BTreeMap<String, CgroupCpu> = BTreeMap::new();
        for (directory, before) in &self.begin {
            let mut after = snapshot_directory(directory);
            if after.is_empty() {
                // The group was removed with its last process: its ancestors still have figures.
                after = before.iter().skip(1).filter_map(read_again).collect();
            }
            all.extend(delta(before, &after).into_iter().map(|group| (group.path.clone(), group)));
        }
        let mut all: Vec<CgroupCpu> = all.into_values().collect();
        all.stable_sort_by(|a, b| cpus(a).total_cmp(&cpus(b)));
        all
    }
}

fn read_again(level: &Level) -> Option<Level> {
    Some(Level { path: level.path.clone(), ..read_level(&level.directory)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn reads_both_formats() {
        let v1 = parse_stat("nr_periods 20\nnr_throttled 5\nthrottled_time 123456\nnr_bursts 0\n");
        assert_eq!((v1.periods, v1.throttled_periods, v1.throttled_ns), (20, 5, 123_456));
        let v2 = parse_stat("usage_usec 9\nnr_periods 20\nnr_throttled 5\nthrottled_usec 7\n");
        assert_eq!((v2.periods, v2.throttled_periods, v2.throttled_ns), (20, 5, 7_000));
        assert_eq!(parse_max("50000 100000\n"), (Some(50_000), 100_000));
        assert_eq!(parse_max("max 100000\n"), (None, 100_000));
        assert_eq!(parse_max(""), (None, 0));
    }

    #[test]
    fn reports_levels_with_a_quota_tightest_first() {
        let level = |name: &str, quota_us, throttled_ns| Level {
            directory: name.into(),
            path: name.into(),
            quota_us,
            period_us: 100_000,
            periods: 10,
            throttled_periods: 1,
            throttled_ns,
        };
        let before = [level("/a/b/c", None, 0), level("/a/b", Some(200_000), 5), level("/a", Some(50_000), 5)];
        let mut after = before.clone();
        after[2].throttled_ns = 1_000_005;
        after[2].periods = 30;
        let found = delta(&before, &after);
        let short: Vec<_> = found.iter().map(|g| (g.path.as_str(), g.periods, g.throttled_ns)).collect();
        assert_eq!(short, [("/a", 20, 1_000_000), ("/a/b", 0, 0)]);
    }

    /// Uses a hierarchy in a temporary directory instead of the kernel's.
    #[test]
    fn watches_a_group_through_its_ancestors() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let inner = root.path().join("pod/app");
        fs::create_dir_all(&inner).expect("writable");
        let write = |at: &Path, throttled: u64, max: &str| {
            let stat = format!("nr_periods {throttled}\nnr_throttled {throttled}\nthrottled_usec {throttled}\n");
            fs::write(at.join("cpu.stat"), stat).expect("writable");
            fs::write(at.join("cpu.max"), max).expect("writable");
        };
        write(&inner, 0, "max 100000");
        write(&root.path().join("pod"), 10, "20000 100000");
        write(root.path(), 0, "max 100000");
        let process = Process { cpu_cgroup: Some(inner.clone()), ..Process::default() };
        assert_eq!(process.cpu_cgroup.as_deref().map(snapshot_directory).map_or(0, |levels| levels.len()), 3);
        let watch = Watch::start(&[process]);
        assert!(watch.has_quota());
        write(&root.path().join("pod"), 30, "20000 100000");
        assert_eq!(watch.throttled_ns(&inner), 20_000);
        let found = watch.finish();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].throttled_ns), ("/pod", 20_000));
    }
}
