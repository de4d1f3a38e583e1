//! Addresses to names: blazesym behind a cache, asked while the process is still alive.
use std::collections::HashMap;

use blazesym::Pid;
use blazesym::symbolize::source::{Kernel, Process, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use parshall_evidence::{Frame, Stack};

/// Frames of a stack that are kept.
const FRAMES_MAX: usize = 48;
/// Distinct stacks that are kept; beyond, stalls and samples still count, without their stack.
const STACKS_MAX: usize = 20_000;

/// Interns stacks and names their frames.
pub struct Stacks {
    symbolizer: Symbolizer,
    names: HashMap<(u32, u64), Frame>,
    ids: HashMap<Stack, u32>,
    stacks: Vec<Stack>,
}

impl Default for Stacks {
    fn default() -> Self {
        Self { symbolizer: Symbolizer::new(), names: HashMap::new(), ids: HashMap::new(), stacks: Vec::new() }
    }
}

impl Stacks {
    /// The id of a stack given by its kernel and user addresses, innermost first.
    pub fn intern(&mut self, tgid: u32, kernel: &[u64], user: &[u64]) -> Option<u32> {
        if kernel.is_empty() && user.is_empty() {
            return None;
        }
        self.name(0, kernel);
        self.name(tgid, user);
        let kernel = kernel.iter().map(|a| (0, *a));
        let frames: Vec<Frame> = kernel
            .chain(user.iter().map(|a| (tgid, *a)))
            .filter_map(|key| self.names.get(&key).cloned())
            .filter(|frame| !is_probe(frame))
            .take(FRAMES_MAX)
            .collect();
        self.keep(Stack { frames })
    }

    /// A stack that puts `user` (already interned) below the kernel frames of `kernel` (already interned).
    pub fn join(&mut self, kernel: Option<u32>, user: Option<u32>) -> Option<u32> {
        let (Some(k), Some(u)) = (kernel, user) else { return kernel.or(user) };
        let mut frames = self.stacks[k as usize].frames.clone();
        frames.extend(self.stacks[u as usize].frames.iter().cloned());
        frames.truncate(FRAMES_MAX);
        self.keep(Stack { frames })
    }

    /// All stacks, by id.
    pub fn into_stacks(self) -> Vec<Stack> {
        self.stacks
    }

    /// Is this stack of a wake-up one of an interrupt, whose "waker" only happened to be running?
    pub fn in_interrupt(&self, id: Option<u32>) -> bool {
        const ENTRIES: [&str; 6] =
            ["handle_softirqs", "__do_softirq", "__irq_exit_rcu", "sysvec_", "common_interrupt", "el1_interrupt"];
        id.and_then(|id| self.stacks.get(id as usize))
            .is_some_and(|s| s.frames.iter().any(|f| ENTRIES.iter().any(|e| f.name.contains(e))))
    }

    fn keep(&mut self, stack: Stack) -> Option<u32> {
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
            let kernel = Kernel { debug_syms: false, vmlinux: blazesym::MaybeDefault::None, ..Kernel::default() };
            Source::Kernel(kernel)
        } else {
            let mut process = Process::new(Pid::from(tgid));
            process.debug_syms = false;
            process.perf_map = true;
            Source::Process(process)
        };
        let found = self.symbolizer.symbolize(&source, Input::AbsAddr(&new)).unwrap_or_default();
        for (i, address) in new.iter().enumerate() {
            let frame = match found.get(i) {
                Some(Symbolized::Sym(sym)) => Frame {
                    name: sym.name.to_string(),
                    module: if tgid == 0 { String::new() } else { module(sym.module.as_deref()) },
                    kernel: tgid == 0,
                },
                _ => Frame { name: format!("{address:#x}"), module: String::new(), kernel: tgid == 0 },
            };
            self.names.insert((tgid, *address), frame);
        }
    }
}

fn module(path: Option<&std::ffi::OsStr>) -> String {
    path.map(|p| {
        let p = std::path::Path::new(p);
        p.file_name().unwrap_or(p.as_os_str()).to_string_lossy().into_owned()
    })
    .unwrap_or_default()
}

/// The probe's own frames on top of a waker's stack.
fn is_probe(frame: &Frame) -> bool {
    frame.kernel
        && (frame.name.starts_with("bpf_")
            || frame.name.starts_with("__bpf_")
            || frame.name.starts_with("__traceiter_")
            || frame.name.contains("bpf_trace_run"))
}
