//! Addresses to names: blazesym behind a cache, asked while the process is still alive.
use std::collections::{HashMap, HashSet};

use blazesym::Pid;
use blazesym::symbolize::source::{Kernel, Process, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use parshall_evidence::{Frame, Stack};

/// Frames of a stack that are kept.
const FRAMES_MAX: usize = 48;
/// Distinct stacks that are kept; beyond, stalls and samples still count, without their stack.
const STACKS_MAX: usize = 20_000;

/// A stack as the kernel tells it: addresses, innermost first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Raw {
    tgid: u32,
    kernel: Vec<u64>,
    user: Vec<u64>,
}

/// Interns stacks and names their frames.
///
/// Naming is left until it is known to be needed: the kernel's names alone take 60 ms of CPU to read, which a saturated
/// service would feel. Only user addresses can be named as they come, for processes that may end before the window does.
pub struct Stacks {
    symbolizer: Symbolizer,
    eager: bool,
    names: HashMap<(u32, u64), Frame>,
    ids: HashMap<Raw, u32>,
    stacks: Vec<Raw>,
}

impl Stacks {
    /// No stacks yet. `eager`: name user addresses as they come.
    pub fn new(eager: bool) -> Self {
        let symbolizer = Symbolizer::new();
        Self { symbolizer, eager, names: HashMap::new(), ids: HashMap::new(), stacks: Vec::new() }
    }

    /// The id of a stack given by its kernel and user addresses, innermost first.
    pub fn intern(&mut self, tgid: u32, kernel: &[u64], user: &[u64]) -> Option<u32> {
        if kernel.is_empty() && user.is_empty() {
            return None;
        }
        if self.eager {
            self.name(tgid, user);
        }
        self.keep(Raw { tgid, kernel: kernel.to_vec(), user: user.to_vec() })
    }

    /// A stack that puts the user frames of `user` below the kernel frames of `kernel`, both interned already.
    pub fn join(&mut self, kernel: Option<u32>, user: Option<u32>) -> Option<u32> {
        let (Some(k), Some(u)) = (kernel, user) else { return kernel.or(user) };
        let (k, u) = (&self.stacks[k as usize], &self.stacks[u as usize]);
        self.keep(Raw { tgid: u.tgid, kernel: k.kernel.clone(), user: u.user.clone() })
    }

    /// All stacks by id, their frames named.
    pub fn named(mut self) -> Vec<Stack> {
        let mut addresses: HashMap<u32, HashSet<u64>> = HashMap::new();
        for raw in &self.stacks {
            addresses.entry(0).or_default().extend(&raw.kernel);
            addresses.entry(raw.tgid).or_default().extend(&raw.user);
        }
        for (tgid, addresses) in addresses {
            self.name(tgid, &addresses.into_iter().collect::<Vec<_>>());
        }
        self.unnamed()
    }

    /// All stacks by id; addresses that were not named stand for themselves.
    pub fn unnamed(&self) -> Vec<Stack> {
        let frame = |tgid: u32, address: u64| {
            let named = self.names.get(&(tgid, address)).cloned();
            named.unwrap_or_else(|| bare(tgid, address))
        };
        let whole = |raw: &Raw| {
            let kernel = raw.kernel.iter().map(|a| frame(0, *a));
            let frames = kernel.chain(raw.user.iter().map(|a| frame(raw.tgid, *a)));
            Stack { frames: frames.filter(|frame| !is_probe(frame)).take(FRAMES_MAX).collect() }
        };
        self.stacks.iter().map(whole).collect()
    }

    fn keep(&mut self, stack: Raw) -> Option<u32> {
        if let Some(id) = self.ids.get(&stack) {
            return Some(*id);
        }
        if self.stacks.len() >= STACKS_MAX {
            return None;
        }
        let id = self.stacks.len() as u32;
        self.ids.insert(stack.clone(), id);
        self.stacks.push(stack);
        Some(id)
    }

    /// Names the addresses that are not known yet; 0 stands for the kernel.
    fn name(&mut self, tgid: u32, addresses: &[u64]) {
        let new: Vec<u64> = addresses.iter().copied().filter(|a| !self.names.contains_key(&(tgid, *a))).collect();
        if new.is_empty() {
            return;
        }
        let source = if tgid == 0 {
            // Names are all that is shown, and a kernel image with debug information takes seconds to read.
            let kernel = Kernel { vmlinux: blazesym::MaybeDefault::None, debug_syms: false, ..Kernel::default() };
            Source::Kernel(kernel)
        } else {
            let mut process = Process::new(Pid::from(tgid));
            process.debug_syms = false;
            process.perf_map = true;
            Source::Process(process)
        };
        let found = self.symbolizer.symbolize(&source, Input::AbsAddr(&new)).unwrap_or_default();
        let all_named = found.len() == new.len() && found.iter().all(|found| found.as_sym().is_some());
        let maps = if tgid == 0 || all_named { Vec::new() } else { mappings(tgid) };
        for (i, address) in new.iter().enumerate() {
            let frame = match found.get(i) {
                Some(Symbolized::Sym(sym)) => Frame {
                    name: sym.name.to_string(),
                    module: if tgid == 0 { String::new() } else { module(sym.module.as_deref()) },
                    kernel: tgid == 0,
                },
                _ => in_mapping(&maps, *address).unwrap_or_else(|| bare(tgid, *address)),
            };
            self.names.insert((tgid, *address), frame);
        }
    }
}

fn bare(tgid: u32, address: u64) -> Frame {
    Frame { name: format!("{address:#x}"), module: String::new(), kernel: tgid == 0 }
}

/// A file in the memory of a process: where it begins and ends, at which offset of the file, and the file.
type Mapping = (u64, u64, u64, String);

/// The mappings of a process that have a name; none when it is gone.
fn mappings(tgid: u32) -> Vec<Mapping> {
    let maps = std::fs::read_to_string(format!("/proc/{tgid}/maps")).unwrap_or_default();
    maps.lines().filter_map(mapping).collect()
}

/// A line of /proc/PID/maps: `55d0c0de1000-55d0c0de2000 r-xp 00001000 fd:00 1234   /usr/bin/program`.
fn mapping(line: &str) -> Option<Mapping> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut words = line.split_ascii_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let offset = words.nth(1)?;
    let file = words.nth(2)?;
    Some((hex(begin)?, hex(end)?, hex(offset)?, module(Some(std::ffi::OsStr::new(file)))))
}

/// A stripped program has no names; which file, and where in it, is the same in every process that runs it.
fn in_mapping(maps: &[Mapping], address: u64) -> Option<Frame> {
    let (begin, _, offset, file) = maps.iter().find(|(begin, end, ..)| (*begin..*end).contains(&address))?;
    Some(Frame { name: format!("{:#x}", address - begin + offset), module: file.clone(), kernel: false })
}

fn module(path: Option<&std::ffi::OsStr>) -> String {
    path.map(|p| {
        let p = std::path::Path::new(p);
        p.file_name().unwrap_or(p.as_os_str()).to_string_lossy().into_owned()
    })
    .unwrap_or_default()
}

/// Is this stack of a wake-up one of an interrupt, whose "waker" only happened to be running?
pub fn in_interrupt(stack: &Stack) -> bool {
    const ENTRIES: [&str; 4] = ["run_ksoftirqd", "sysvec_", "common_interrupt", "el1_interrupt"];
    stack.frames.iter().any(|f| f.kernel && ENTRIES.iter().any(|e| f.name.contains(e)))
}

/// The probe's own frames on top of a waker's stack.
fn is_probe(frame: &Frame) -> bool {
    frame.kernel
        && (frame.name.starts_with("bpf_")
            || frame.name.starts_with("__bpf_")
            || frame.name.starts_with("__traceiter_")
            || frame.name.contains("bpf_trace_run"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_name_is_placed_in_its_file() {
        let line = "55d0c0de1000-55d0c0de2000 r-xp 00001000 fd:00 1234                       /usr/bin/program";
        let maps = vec![mapping(line).expect("a named mapping")];
        let frame = in_mapping(&maps, 0x55d0c0de1206).expect("inside");
        assert_eq!((frame.name.as_str(), frame.module.as_str(), frame.kernel), ("0x1206", "program", false));
        assert_eq!(in_mapping(&maps, 0x55d0c0de2000), None);
        assert_eq!(mapping("7f00-8000 rw-p 00000000 00:00 0"), None);
        assert_eq!(mapping("no mapping"), None);
    }

    #[test]
    fn our_own_program_is_mapped() {
        assert!(mappings(std::process::id()).iter().any(|(.., file)| file.starts_with("parshall")));
        assert!(mappings(u32::MAX).is_empty());
    }
}
