//! Names the functions that a Python program runs, in the place of those of its interpreter.
//!
//! The probes copy the addresses of code objects (crates/bpf, diagnose/interpreter). `find` finds a CPython in a process, `layout` says
//! where it has what, `code` and `lines` read the names and lines of functions, once each; `merge` puts them into native stacks. Only
//! `find` and `memory` touch a process.
mod code;
mod find;
mod layout;
mod lines;
pub(super) mod memory;
mod merge;
pub(super) mod outside;

use std::collections::HashMap;

use parshall_evidence::Frame;

use super::names::MountTables;
use crate::left_out;
use crate::timed_worker::TimedWorker;
use code::Function;
use find::{Found, Runtime, is_python};
pub use layout::{Entry, Offsets};
use memory::ProcessMemory;
use merge::{Interpreted, merge};

/// Functions that are kept at most, each with a line, and addresses that are none. Those beyond have no name.
const FUNCTIONS_MAX: usize = 65_536;
/// Processes that are searched for an interpreter at most.
const PROCESSES_MAX: usize = 4096;
/// How often a process without an interpreter is seen until it is searched for the second time; then as many times as often each time.
/// It may have begun to run another program, or load the interpreter as a library.
const AGAIN: u32 = 8;

/// A frame as the probes copy it: addresses of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawFrame {
    /// The code object.
    pub code: u64,
    /// The instruction, in the form of the version.
    pub instruction: u64,
    /// The byte at [`Offsets::frame_kind`].
    pub kind: u8,
}

/// Where the interpreter of a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Address of the pointer to its first interpreter state.
    pub interpreters: u64,
    #[allow(missing_docs)]
    pub offsets: Offsets,
}

/// A function in a stack: its index, and whether the evaluation loop was entered with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id {
    function: u32,
    entry: bool,
}

/// The search for the interpreter of a process.
enum Process {
    /// No interpreter was found; it is searched again after so many more records.
    None {
        left: u32,
        next: u32,
    },
    Unknown,
    Python(Runtime),
}

/// A question to the worker, which alone reads other processes.
enum Question {
    Find(u32),
    Name(u32, Box<Offsets>, Vec<RawFrame>),
}

enum Answer {
    Found(Found),
    Named(Vec<Option<Function>>),
}

/// Finds interpreters, and keeps the functions that they were seen to run.
pub struct Interpreters {
    worker: TimedWorker<Question, Answer>,
    processes: HashMap<u32, Process>,
    ids: HashMap<(u32, u64, u64), u32>,
    functions: Vec<Frame>,
}

impl Default for Interpreters {
    fn default() -> Self {
        Self {
            worker: TimedWorker::new(|| {
                let mut mounts = MountTables::new();
                Box::new(move |question| answer(question, &mut mounts))
            }),
            processes: HashMap::new(),
            ids: HashMap::new(),
            functions: Vec::new(),
        }
    }
}

fn answer(question: Question, mounts: &mut MountTables) -> Answer {
    match question {
        Question::Find(tgid) => Answer::Found(find::find(tgid, mounts)),
        Question::Name(tgid, offsets, frames) => {
            let mut memory = ProcessMemory::open(tgid);
            let mut named =
                |frame: &RawFrame| code::function(memory.as_mut()?, &offsets, frame.code, frame.instruction);
            Answer::Named(frames.iter().map(&mut named).collect())
        }
    }
}

impl Interpreters {
    /// A process was seen. Where its interpreter is, the first time that it is found; the probes do not know it yet.
    pub fn see(&mut self, tgid: u32) -> Option<Place> {
        let full = self.processes.len() >= PROCESSES_MAX;
        let next = match self.processes.get_mut(&tgid) {
            Some(Process::None { left: 0, next }) => next.saturating_mul(AGAIN),
            Some(Process::None { left, .. }) => {
                *left -= 1;
                return None;
            }
            Some(_) => return None,
            None if full => return None,
            None => AGAIN,
        };
        let found = match self.worker.call(Question::Find(tgid)) {
            Some(Answer::Found(found)) => found,
            _ => Found::None,
        };
        let (process, place) = match found {
            Found::None => (Process::None { left: next, next }, None),
            Found::Unknown(why) => {
                left_out::add(why);
                (Process::Unknown, None)
            }
            Found::Python(runtime) => {
                let place = place_of(&runtime);
                (Process::Python(runtime), Some(place))
            }
        };
        self.processes.insert(tgid, process);
        place
    }

    /// Where the interpreter of a process is, for who reads its threads without the probes.
    pub fn place(&mut self, tgid: u32) -> Option<Place> {
        self.see(tgid);
        match self.processes.get(&tgid) {
            Some(Process::Python(runtime)) => Some(place_of(runtime)),
            _ => None,
        }
    }

    /// The functions of a stack, innermost first. Those that are not known yet are read from the process now, for it may end.
    pub fn functions(&mut self, tgid: u32, frames: &[RawFrame]) -> Vec<Id> {
        let Some(Process::Python(runtime)) = self.processes.get(&tgid) else { return Vec::new() };
        let (offsets, module) = (runtime.offsets, runtime.module.clone());
        let key = |frame: &RawFrame| (tgid, frame.code, frame.instruction);
        let mut new: Vec<RawFrame> = frames.iter().filter(|f| !is_loops_own(&offsets, f)).copied().collect();
        new.retain(|frame| !self.ids.contains_key(&key(frame)));
        new.truncate(FUNCTIONS_MAX.saturating_sub(self.ids.len()));
        if !new.is_empty() {
            let question = Question::Name(tgid, Box::new(offsets), new.clone());
            let Some(Answer::Named(named)) = self.worker.call(question) else { return Vec::new() };
            for (frame, function) in new.iter().zip(named) {
                // An address of no code object belongs to no stack, and is not read again.
                let id = function.map_or(NO_FUNCTION, |function| {
                    self.functions.push(Frame::of_interpreter(function.name, &module, function.from));
                    self.functions.len() as u32 - 1
                });
                self.ids.insert(key(frame), id);
            }
        }
        let mut ids: Vec<Id> = Vec::with_capacity(frames.len());
        for frame in frames {
            if is_loops_own(&offsets, frame) {
                // It stands below the function that the loop was entered with.
                ids.iter_mut().next_back().into_iter().for_each(|last| last.entry = true);
                continue;
            }
            let entry = match offsets.entry {
                Entry::Every => true,
                Entry::Marked => frame.kind != 0,
                Entry::Below => false,
            };
            let known = self.ids.get(&key(frame)).filter(|function| **function != NO_FUNCTION);
            ids.extend(known.map(|function| Id { function: *function, entry }));
        }
        ids
    }

    /// The user frames of a stack of the process, with these functions in the place of the interpreter's.
    pub fn merged(&self, tgid: u32, native: Vec<Frame>, functions: &[Id]) -> Vec<Frame> {
        let interpreted = |id: &Id| {
            let frame = self.functions.get(id.function as usize)?;
            Some(Interpreted { frame: frame.clone(), entry: id.entry })
        };
        let interpreted: Vec<Interpreted> = functions.iter().filter_map(interpreted).collect();
        let own = match self.processes.get(&tgid) {
            Some(Process::Python(runtime)) => runtime.module.as_str(),
            _ => "",
        };
        merge(native, &interpreted, |frame| frame.module == own || is_python(&frame.module))
    }
}

/// Where the interpreters of a runtime begin.
fn place_of(runtime: &Runtime) -> Place {
    let interpreters = runtime.at.wrapping_add(runtime.offsets.interpreters.into());
    Place { interpreters, offsets: runtime.offsets }
}

/// Stands for what has no name.
const NO_FUNCTION: u32 = u32::MAX;

/// A frame that is no function.
fn is_loops_own(offsets: &Offsets, frame: &RawFrame) -> bool {
    offsets.entry == Entry::Below && frame.kind == layout::OWNED_BY_C_STACK
}

#[cfg(test)]
mod tests;
