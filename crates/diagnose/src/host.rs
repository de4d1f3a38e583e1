//! CPU figures of the host, and what parshall itself uses.

use parshall_evidence::{CpuTime, Host};
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
    /// Context switches.
    switches: u64,
}

fn parse_stat(text: &str, tick_ns: u64) -> Stat {
    let cpus = text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    let words = text.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> = words.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let of = |index: usize| ticks.get(index).map_or(0, |ticks| ticks * tick_ns);
    // user nice system idle iowait irq softirq steal; guest time is part of user time already.
    let busy_ns = (ticks.len() >= 4).then(|| [0, 1, 2, 5, 6, 7].into_iter().map(of).sum());
    let switches = text.lines().find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok()).unwrap_or(0);
    Stat { cpus: cpus as u32, busy_ns, stolen_ns: of(7), switches }
}

/// The times of each CPU since boot, by number.
fn parse_each(stat: &str, softnet: &str, tick_ns: u64) -> Vec<CpuTime> {
    let mut each: Vec<CpuTime> = stat.lines().filter_map(|line| parse_cpu(line, tick_ns)).collect();
    for (row, line) in softnet.lines().enumerate() {
        let words: Vec<u64> = line.split_whitespace().map_while(|word| u64::from_str_radix(word, 16).ok()).collect();
        // A CPU that is offline has no row. Since 5.10 the 13th word says which CPU a row is of.
        let cpu = words.get(12).map_or(row as u64, |cpu| *cpu);
        if let (Some(time), [packets, dropped, squeezed, ..]) =
            (each.iter_mut().find(|time| u64::from(time.cpu) == cpu), &words[..])
        {
            (time.packets, time.dropped, time.squeezed) = (*packets, *dropped, *squeezed);
        }
    }
    each
}

/// `cpu1 user nice system idle iowait irq softirq steal`.
fn parse_cpu(line: &str, tick_ns: u64) -> Option<CpuTime> {
    let (cpu, words) = line.strip_prefix("cpu")?.split_once(' ')?;
    let ticks: Vec<u64> = words.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let of = |index: usize| ticks.get(index).map_or(0, |ticks: &u64| ticks.saturating_mul(tick_ns));
    Some(CpuTime {
        cpu: cpu.parse().ok()?,
        user_ns: of(0).saturating_add(of(1)),
        system_ns: of(2),
        idle_ns: of(3),
        iowait_ns: of(4),
        irq_ns: of(5),
        softirq_ns: of(6),
        stolen_ns: of(7),
        ..CpuTime::default()
    })
}

/// The increase of the counters since `then`. A CPU that was not online then has no figures.
fn risen(now: Vec<CpuTime>, then: &[CpuTime]) -> Vec<CpuTime> {
    let both = |now: CpuTime| Some((now, *then.iter().find(|then| then.cpu == now.cpu)?));
    let rise = |(now, then): (CpuTime, CpuTime)| CpuTime {
        cpu: now.cpu,
        user_ns: now.user_ns.saturating_sub(then.user_ns),
        system_ns: now.system_ns.saturating_sub(then.system_ns),
        irq_ns: now.irq_ns.saturating_sub(then.irq_ns),
        softirq_ns: now.softirq_ns.saturating_sub(then.softirq_ns),
        iowait_ns: now.iowait_ns.saturating_sub(then.iowait_ns),
        idle_ns: now.idle_ns.saturating_sub(then.idle_ns),
        stolen_ns: now.stolen_ns.saturating_sub(then.stolen_ns),
        packets: now.packets.saturating_sub(then.packets),
        dropped: now.dropped.saturating_sub(then.dropped),
        squeezed: now.squeezed.saturating_sub(then.squeezed),
    };
    now.into_iter().filter_map(both).map(rise).collect()
}

fn tick_ns() -> u64 {
    1_000_000_000 / clock::ticks_per_second()
}

fn text(path: &str) -> String {
    bounded_file::text(path).unwrap_or_default()
}

fn read() -> Stat {
    parse_stat(&text("/proc/stat"), tick_ns())
}

/// All CPUs together, and each.
fn read_all() -> (Stat, Vec<CpuTime>) {
    let (stat, tick_ns) = (text("/proc/stat"), tick_ns());
    (parse_stat(&stat, tick_ns), parse_each(&stat, &text("/proc/net/softnet_stat"), tick_ns))
}

/// The CPU times when the window began.
#[derive(Debug)]
pub struct HostWatch {
    begun: Stat,
    each: Vec<CpuTime>,
    own_ns: u64,
}

impl HostWatch {
    pub fn start() -> Self {
        let (begun, each) = read_all();
        Self { begun, each, own_ns: clock::process_cpu_ns() }
    }

    /// The host over the window.
    pub fn host(&self) -> Host {
        let (now, each) = read_all();
        let kernel = text("/proc/sys/kernel/osrelease").trim().to_owned();
        let busy_ns = now.busy_ns.zip(self.begun.busy_ns).map(|(now, then)| now.saturating_sub(then));
        Host {
            kernel,
            cpus: now.cpus,
            busy_ns,
            stolen_ns: now.stolen_ns.saturating_sub(self.begun.stolen_ns),
            switches: now.switches.saturating_sub(self.begun.switches),
            each: risen(each, &self.each),
        }
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
        let text =
            "cpu  10 1 5 1000 500 2 3 4 9 0\ncpu0 5 0 2 500 1 0 0 0 0 0\ncpu1 5 0 2 500 1 0 0 0 0 0\nintr 5\nctxt 77\n";
        assert_eq!(parse_stat(text, 10), Stat { cpus: 2, busy_ns: Some(250), stolen_ns: 40, switches: 77 });
        let nothing = Stat { cpus: 0, busy_ns: None, stolen_ns: 0, switches: 0 };
        assert_eq!((parse_stat("", 10), parse_stat("cpu  1 2\n", 10)), (nothing, nothing));
    }

    #[test]
    fn each_cpu_has_its_times_and_its_packets() {
        let stat = "cpu  9 0 0 9\ncpu0 5 1 2 500 1 3 4 6 2 0\ncpu2 50 0 0 0\nintr 5\n";
        // CPU 1 is offline; older kernels have fewer words, and newer ones the number of the CPU.
        let softnet = "0000000a 00000001 00000002 0 0 0 0 0 0 0 0 00000000 00000000\n\
                       ffffffff 00000000 00000000 0 0 0 0 0 0 0 0 00000000 00000002 0 0\n";
        let each = parse_each(stat, softnet, 10);
        let first = CpuTime {
            cpu: 0,
            user_ns: 60,
            system_ns: 20,
            idle_ns: 5_000,
            iowait_ns: 10,
            irq_ns: 30,
            softirq_ns: 40,
            stolen_ns: 60,
            packets: 10,
            dropped: 1,
            squeezed: 2,
        };
        assert_eq!(each[0], first);
        assert_eq!((each.len(), each[1].cpu, each[1].user_ns, each[1].packets), (2, 2, 500, 0xffff_ffff));
        assert_eq!(parse_each(stat, "7 0 0\n", 10)[0].packets, 7);
        assert!(parse_each("cpu\ncpux 1\n", "what\n", 10).is_empty());
        let later = CpuTime { user_ns: 100, packets: 15, ..first };
        let rise = risen(vec![later, CpuTime { cpu: 7, ..first }], &each);
        assert_eq!(rise, [CpuTime { cpu: 0, user_ns: 40, packets: 5, ..CpuTime::default() }]);
    }

    #[test]
    fn reads_this_host() {
        let watch = HostWatch::start();
        assert!(watch.begun.switches > 0);
        let host = watch.host();
        assert!(host.cpus > 0 && host.busy_ns.is_some() && !host.kernel.is_empty());
        assert_eq!(host.each.len(), host.cpus as usize);
        assert!(own_rss_bytes() > 0);
    }
}
