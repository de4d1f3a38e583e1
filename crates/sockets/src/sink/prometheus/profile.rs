//! A CPU profile of the collector itself, in the format of pprof (github.com/google/pprof, proto/profile.proto), which
//! `go tool pprof` reads: samples of all threads for some seconds, with names.
use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parshall_evidence::Stack;
use parshall_sys::perf_sampler::Sampler;

use crate::wire::MessageWriter;
use parshall_host::symbols::Stacks;

/// Samples per second of CPU time. A prime, so that samples do not coincide with timers.
const HZ: u64 = 97;
/// The interval at which buffers are read and new threads are found.
const ROUND: Duration = Duration::from_millis(200);
/// Whether a profile is being taken. There is one at a time in a process.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Why there is no profile.
#[derive(Debug)]
pub enum Refused {
    /// Another profile is being taken.
    Busy,
    /// The error of perf_event_open(2).
    Host(std::io::Error),
}

/// Takes a profile, and returns it compressed with gzip. Blocks for `duration`.
///
/// # Errors
/// See [`Refused`].
pub fn take(duration: Duration) -> Result<Vec<u8>, Refused> {
    if BUSY.swap(true, Ordering::AcqRel) {
        return Err(Refused::Busy);
    }
    let _free = Free;
    let mut sampler = Sampler::start(HZ, threads()).map_err(Refused::Host)?;
    let (begun, at) = (Instant::now(), SystemTime::now());
    let (pid, mut stacks) =
        (std::process::id(), Stacks::new(false, |addresses| parshall_bpf::kernel_names::names(addresses).ok()));
    let mut counts: HashMap<u32, u64> = HashMap::new();
    while begun.elapsed() < duration {
        std::thread::sleep(ROUND.min(duration.saturating_sub(begun.elapsed())));
        sampler.drain(&mut |sample| {
            if let Some(id) = stacks.intern(pid, &sample.kernel, &sample.user) {
                *counts.entry(id).or_default() += 1;
            }
        });
        for tid in threads() {
            // The thread may have ended meanwhile.
            sampler.follow(tid).ok();
        }
    }
    let lost = sampler.lost();
    let took = begun.elapsed();
    // Sampling ends before names are looked up, which costs more CPU time than the profile.
    drop(sampler);
    let at_unix_ns = at.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let profile = profile(&stacks.named(), &counts, at_unix_ns, took, lost);
    Ok(compress(&profile))
}

struct Free;

impl Drop for Free {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

fn threads() -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    // Writing to memory cannot fail.
    encoder.write_all(bytes).and_then(|()| encoder.finish()).unwrap_or_default()
}

/// The string table of a profile. Its first entry must be empty.
struct Texts {
    list: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.list.len() as u64;
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

fn profile(stacks: &[Stack], counts: &HashMap<u32, u64>, at_unix_ns: u64, took: Duration, lost: u64) -> Vec<u8> {
    const PERIOD_NS: u64 = 1_000_000_000 / HZ;
    let mut texts = Texts { list: vec![String::new()], numbers: HashMap::from([(String::new(), 0)]) };
    let mut out = MessageWriter::default();
    for (kind, unit) in [("samples", "count"), ("cpu", "nanoseconds")] {
        out.message(1, |m| value_type(m, &mut texts, kind, unit));
    }
    let mut frames: HashMap<(&str, &str), u64> = HashMap::new();
    let mut order = Vec::new();
    let mut sampled: Vec<(u32, u64)> = counts.iter().map(|(id, n)| (*id, *n)).collect();
    sampled.sort_unstable();
    for (id, count) in sampled {
        let Some(stack) = stacks.get(id as usize) else { continue };
        let locations: Vec<u64> = stack
            .frames
            .iter()
            .map(|frame| {
                let module = if frame.kernel { "[kernel]" } else { frame.module.as_str() };
                *frames.entry((frame.name.as_str(), module)).or_insert_with(|| {
                    order.push((frame.name.as_str(), module));
                    order.len() as u64
                })
            })
            .collect();
        out.message(2, |m| {
            m.packed(1, locations);
            m.packed(2, [count, count * PERIOD_NS]);
        });
    }
    // A location and a function with the same number for each name.
    for (i, (name, module)) in order.iter().enumerate() {
        let id = i as u64 + 1;
        out.message(4, |m| {
            m.uint(1, id);
            m.message(4, |line| line.uint(1, id));
        });
        let (name, module) = (texts.number(name), texts.number(module));
        out.message(5, |m| {
            m.uint(1, id);
            m.uint(2, name);
            m.uint(3, name);
            m.uint(4, module);
        });
    }
    out.uint(9, at_unix_ns);
    out.uint(10, took.as_nanos() as u64);
    out.message(11, |m| value_type(m, &mut texts, "cpu", "nanoseconds"));
    out.uint(12, PERIOD_NS);
    if lost > 0 {
        let comment = texts.number(&format!("{lost} samples were lost"));
        out.packed(13, [comment]);
    }
    texts.list.iter().for_each(|text| out.always(6, text));
    out.0
}

fn value_type(message: &mut MessageWriter, texts: &mut Texts, kind: &str, unit: &str) {
    message.uint(1, texts.number(kind));
    message.uint(2, texts.number(unit));
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;
    use parshall_testkit::skip;

    /// Held by a test that takes profiles: there is one at a time in a process.
    pub fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As while a profile is taken, until what it returns is dropped.
    pub fn busy() -> impl Drop {
        BUSY.store(true, Ordering::Release);
        Free
    }

    #[inline(never)]
    fn spin_for_the_profile(until: &AtomicBool) -> u64 {
        let mut x = 1u64;
        while !until.load(Ordering::Relaxed) {
            for i in 0..10_000 {
                x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i));
            }
        }
        x
    }

    /// A profile of a second in which a thread spins, as far as it gets a CPU.
    fn spinning() -> Result<Vec<u8>, Refused> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| spin_for_the_profile(&stop));
            let taken = take(Duration::from_secs(1));
            stop.store(true, Ordering::Relaxed);
            taken
        })
    }

    /// A profile with the function that works: on a busy host a thread may get too little CPU in a second to be sampled.
    fn with_the_function_that_works() -> Result<Vec<u8>, Refused> {
        let name = b"spin_for_the_profile";
        let names_it = |profile: &Vec<u8>| {
            let mut texts = Vec::new();
            flate2::read::GzDecoder::new(&profile[..]).read_to_end(&mut texts).unwrap();
            texts.windows(name.len()).any(|text| text == name)
        };
        let found = (0..20).map(|_| spinning()).find(|taken| taken.as_ref().map_or(true, names_it));
        found.expect("one profile of twenty")
    }

    #[test]
    fn the_function_that_works_is_named() {
        let _alone = alone();
        match with_the_function_that_works() {
            Ok(_) => {}
            Err(Refused::Host(why)) => skip("a CPU profile of the collector", &why.to_string()),
            Err(why) => panic!("{why:?}"),
        }
    }

    // Go builds its reader of profiles when it is first asked for.
    #[test]
    #[ignore = "make test-all"]
    fn go_finds_the_function_that_works() {
        let _alone = alone();
        let profile = match with_the_function_that_works() {
            Ok(profile) => profile,
            Err(Refused::Host(why)) => return skip("a CPU profile of the collector", &why.to_string()),
            Err(why) => panic!("{why:?}"),
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &profile).unwrap();
        let go = std::process::Command::new("go")
            .args(["tool", "pprof", "-top", "-nodecount=1000"])
            .arg(file.path())
            .output();
        let Ok(go) = go else { return skip("go tool pprof on a profile of the collector", "go is not installed") };
        let (said, wrong) = (String::from_utf8_lossy(&go.stdout), String::from_utf8_lossy(&go.stderr));
        let finds_it = said.contains("Type: cpu") && said.contains("spin_for_the_profile");
        assert!(go.status.success() && finds_it, "{said}{wrong}");
    }
}
