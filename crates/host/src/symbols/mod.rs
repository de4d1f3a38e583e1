//! Stacks of addresses: stores each distinct one once, and names its frames while the process still runs.
mod asleep;
mod dynamic_symbols;
mod elf;
mod elf_copy;
mod frame;
mod maps;
mod names;
mod perf_map;
pub mod python;
mod unwind;
mod unwind_info;

use std::collections::{HashMap, HashSet};

use parshall_evidence::{Frame, Stack};

use super::left_out;
use super::timed_worker::TimedWorker;
use frame::{FRAMES_MAX, hex_frame};
use names::Names;
use python::{Id, Interpreters, Place, RawFrame};
use unwind::Unwinders;
pub use unwind::UserStack;

/// The most distinct stacks that are kept; further stalls and samples still count, but without their stack.
const STACKS_MAX: usize = 20_000;
/// A stack as the kernel reports it: addresses, innermost first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Raw {
    tgid: u32,
    kernel: Vec<u64>,
    user: Vec<u64>,
    /// Functions that an interpreter runs in the user frames, innermost first.
    interpreted: Vec<Id>,
}

/// Names addresses of the kernel's code, in order; None when it cannot name any.
pub type KernelNamer = fn(&[u64]) -> Option<Vec<Option<String>>>;

/// A stack to unwind.
enum Unwind {
    /// One that the probes have copied.
    Copied(UserStack),
    /// That of a thread that sleeps in this system call, with the functions of the interpreter of its process, if that is asked for. Its
    /// memory may lie on a file system that does not answer.
    Asleep { tgid: u32, tid: u32, syscall: i32, interpreter: Option<Box<Place>> },
}

/// The addresses of a stack, and what an interpreter runs in it.
#[derive(Default)]
struct Unwound {
    addresses: Vec<u64>,
    interpreted: Vec<RawFrame>,
}

/// Interns stacks and names their frames.
///
/// Frames are named only when the names are needed: reading all of the kernel's names takes 60 ms of CPU, which would slow down a
/// saturated service. User addresses can be named as they arrive, for processes that may end before the window does.
pub struct Stacks {
    /// Returns a frame for each address of a process; process 0 is the kernel.
    namer: TimedWorker<(u32, Vec<u64>), Vec<Frame>>,
    unwinder: TimedWorker<Unwind, Unwound>,
    kernel: KernelNamer,
    eager: bool,
    names: HashMap<(u32, u64), Frame>,
    ids: HashMap<Raw, u32>,
    stacks: Vec<Raw>,
    interpreters: Interpreters,
}

impl Stacks {
    /// `eager`: name user addresses as they arrive. `kernel` names addresses of the kernel; where it cannot, /proc/kallsyms is read.
    pub fn new(eager: bool, kernel: KernelNamer) -> Self {
        let namer = TimedWorker::new(|| {
            let mut names = Names::new();
            Box::new(move |(tgid, addresses): (u32, Vec<u64>)| names.frames(tgid, &addresses))
        });
        let unwinder = TimedWorker::new(|| {
            let mut unwinders = Unwinders::new();
            Box::new(move |asked: Unwind| match asked {
                Unwind::Copied(stack) => Unwound { addresses: unwinders.unwind(&stack), interpreted: Vec::new() },
                Unwind::Asleep { tgid, tid, syscall, interpreter } => {
                    let found = asleep::read(tgid, tid, syscall, interpreter.as_deref());
                    found.map_or_else(Unwound::default, |(stack, interpreted)| Unwound {
                        addresses: unwinders.unwind(&stack),
                        interpreted,
                    })
                }
            })
        });
        let (names, ids, stacks) = (HashMap::new(), HashMap::new(), Vec::new());
        Self { namer, unwinder, kernel, eager, names, ids, stacks, interpreters: Interpreters::default() }
    }

    /// Interns a stack of kernel and user addresses, innermost first, and returns its id.
    pub fn intern(&mut self, tgid: u32, kernel: &[u64], user: &[u64]) -> Option<u32> {
        if kernel.is_empty() && user.is_empty() {
            return None;
        }
        if self.eager {
            self.name(tgid, user);
        }
        self.keep(Raw { tgid, kernel: kernel.to_vec(), user: user.to_vec(), interpreted: Vec::new() })
    }

    /// A process was seen that may run an interpreter. Where that is, the first time that it is found.
    pub fn see_process(&mut self, tgid: u32) -> Option<Place> {
        self.interpreters.see(tgid)
    }

    /// The functions that an interpreter was seen to run in a process, innermost first.
    pub fn functions(&mut self, tgid: u32, frames: &[RawFrame]) -> Vec<Id> {
        self.interpreters.functions(tgid, frames)
    }

    /// Interns a stack like an interned one, in which an interpreter of its process runs these functions. None for no stack at all.
    pub fn interpreted(&mut self, tgid: u32, stack: Option<u32>, functions: &[Id]) -> Option<u32> {
        if functions.is_empty() {
            return stack;
        }
        let native = stack.and_then(|id| self.stacks.get(id as usize));
        let (kernel, user) = native.map(|raw| (raw.kernel.clone(), raw.user.clone())).unwrap_or_default();
        self.keep(Raw { tgid, kernel, user, interpreted: functions.to_vec() }).or(stack)
    }

    /// Interns a stack with the kernel frames of `kernel` above the user frames of `user`, both interned already.
    pub fn join(&mut self, kernel: Option<u32>, user: Option<u32>) -> Option<u32> {
        let (Some(k), Some(u)) = (kernel, user) else { return kernel.or(user) };
        let (k, u) = (&self.stacks[k as usize], &self.stacks[u as usize]);
        let interpreted = if u.interpreted.is_empty() { &k.interpreted } else { &u.interpreted };
        self.keep(Raw {
            tgid: u.tgid,
            kernel: k.kernel.clone(),
            user: u.user.clone(),
            interpreted: interpreted.clone(),
        })
    }

    /// The addresses of a user stack, innermost first, by the call frame information of the files that its process has mapped. They
    /// are found at once, because the process may end.
    pub fn unwind(&mut self, stack: UserStack) -> Vec<u64> {
        self.unwinder.call(Unwind::Copied(stack)).unwrap_or_default().addresses
    }

    /// Interns the user stack of a thread that sleeps in this system call, as it is now. None where it does something else by now, or
    /// its process may not be read. `interpreters`: the functions that an interpreter runs in it are read, too.
    pub fn asleep(&mut self, tgid: u32, tid: u32, syscall: i32, interpreters: bool) -> Option<u32> {
        let interpreter = interpreters.then(|| self.interpreters.place(tgid)).flatten().map(Box::new);
        let found = self.unwinder.call(Unwind::Asleep { tgid, tid, syscall, interpreter })?;
        let stack = self.intern(tgid, &[], &found.addresses);
        let functions = self.functions(tgid, &found.interpreted);
        self.interpreted(tgid, stack, &functions)
    }

    /// The user frames of an interned stack.
    pub fn user_frames(&self, id: u32) -> &[u64] {
        self.stacks.get(id as usize).map_or(&[], |raw| raw.user.as_slice())
    }

    /// All stacks by id, with named frames.
    pub fn named(self) -> Vec<Stack> {
        let all: Vec<u32> = (0..self.stacks.len() as u32).collect();
        self.named_of(&all)
    }

    /// All stacks by id; the frames of `ids` are named.
    pub fn named_of(mut self, ids: &[u32]) -> Vec<Stack> {
        let mut addresses: HashMap<u32, HashSet<u64>> = HashMap::new();
        for raw in ids.iter().filter_map(|id| self.stacks.get(*id as usize)) {
            addresses.entry(0).or_default().extend(&raw.kernel);
            addresses.entry(raw.tgid).or_default().extend(&raw.user);
        }
        // The kernel first, so that a process whose files use up the time loses only its own names.
        let mut addresses: Vec<_> = addresses.into_iter().collect();
        addresses.sort_unstable_by_key(|(tgid, _)| *tgid);
        for (tgid, addresses) in addresses {
            self.name(tgid, &addresses.into_iter().collect::<Vec<_>>());
        }
        self.unnamed()
    }

    /// All stacks by id; addresses without a name become hexadecimal.
    pub fn unnamed(&self) -> Vec<Stack> {
        let frame = |tgid: u32, address: u64| {
            let named = self.names.get(&(tgid, address)).cloned();
            named.unwrap_or_else(|| hex_frame(tgid, address))
        };
        let whole = |raw: &Raw| {
            let kernel = raw.kernel.iter().map(|a| frame(0, *a));
            let mut user: Vec<Frame> = raw.user.iter().map(|a| frame(raw.tgid, *a)).collect();
            if !raw.interpreted.is_empty() {
                user = self.interpreters.merged(raw.tgid, user, &raw.interpreted);
            }
            let frames = kernel.chain(user);
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
        if let Some(names) = (tgid == 0).then(|| (self.kernel)(&new)).flatten() {
            let frame = |name| Frame { name, module: String::new(), kernel: true };
            let named = new.into_iter().zip(names).filter_map(|(address, name)| Some(((0, address), frame(name?))));
            self.names.extend(named);
            return;
        }
        let Some(frames) = self.namer.call((tgid, new.clone())) else {
            left_out::add("naming functions took longer than 10 s: some names are missing".to_owned());
            return;
        };
        self.names.extend(new.into_iter().map(|address| (tgid, address)).zip(frames));
    }
}

/// Whether this stack of a wake-up is one of an interrupt, whose "waker" only happened to be running.
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
mod tests;
