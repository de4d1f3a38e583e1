//! Interpreters of this host, and stacks that were made by hand.
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use parshall_testkit::{root, skip};

use super::memory::Memory;
use super::*;

/// Says the address of the code of a function, and the identity of its only thread.
const SCRIPT: &str = "
import sys, threading
def view_orders():
    return 1
print(id(view_orders.__code__), threading.get_ident(), flush=True)
sys.stdin.read()
";

/// A program that has said two numbers; killed when dropped.
struct Running(Child);

impl Running {
    fn start(python: &str) -> Option<(Self, u64, u64)> {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Self(command.spawn().ok()?);
        let mut line = String::new();
        BufReader::new(running.0.stdout.take()?).read_line(&mut line).ok()?;
        let (code, thread) = line.trim().split_once(' ')?;
        Some((running, code.parse().ok()?, thread.parse().ok()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_python_is_found_with_its_threads_and_functions() {
    if !root("functions of a Python program") {
        return;
    }
    let mut seen = 0;
    for python in ["python3", "/usr/bin/python3"] {
        let Some((running, code, thread)) = Running::start(python) else { continue };
        let tgid = running.0.id();
        let mut interpreters = Interpreters::default();
        let Some(place) = interpreters.see(tgid) else { panic!("{python}: {:?}", left_out::take()) };
        assert_eq!(interpreters.see(tgid), None, "once is enough");
        let of = place.offsets;
        let mut memory = ProcessMemory::open(tgid).expect("it is our child");
        let mut at = |address: u64, offset: u32| memory.word(address + u64::from(offset)).expect("its memory");
        let interpreter = at(place.interpreters, 0);
        let state = at(interpreter, of.first_state);
        assert_eq!((at(state, of.state_identity), at(state, of.next_state)), (thread, 0), "{python}");
        let raw = RawFrame { code, instruction: begin(&of, code), kind: 1 };
        let ids = interpreters.functions(tgid, &[raw, RawFrame { code: 8, ..raw }, raw]);
        let frames = interpreters.merged(tgid, Vec::new(), &ids);
        let names: Vec<&str> = frames.iter().map(|frame| frame.name.as_str()).collect();
        assert_eq!(names.len(), 2, "what is no code object is left out: {names:?}");
        // Versions differ in what the first instruction belongs to: the function, or its first statement.
        assert!(["view_orders (<string>:3)", "view_orders (<string>:4)"].contains(&names[0]), "{python}: {names:?}");
        assert!(frames[0].module.contains("python3."), "{frames:?}");
        drop(running);
        // Known names stay when the process is gone.
        assert_eq!(interpreters.functions(tgid, &[raw]).len(), 1);
        seen += 1;
    }
    if seen == 0 {
        skip("functions of a Python program", "there is no Python here");
    }
}

fn begin(of: &Offsets, code: u64) -> u64 {
    match of.instruction {
        layout::Instruction::Number(_) => 0,
        layout::Instruction::Address(begin) => code + u64::from(begin),
    }
}

#[test]
fn a_process_without_one_is_searched_more_and_more_rarely() {
    let mut interpreters = Interpreters::default();
    let own = std::process::id();
    let searches = |interpreters: &Interpreters| match interpreters.processes.get(&own) {
        Some(Process::None { left, next }) => (*left, *next),
        _ => panic!("we are no Python"),
    };
    assert_eq!(interpreters.see(own), None);
    assert_eq!(searches(&interpreters), (AGAIN, AGAIN));
    (0..AGAIN).for_each(|_| assert_eq!(interpreters.see(own), None));
    assert_eq!(searches(&interpreters), (0, AGAIN));
    interpreters.see(own);
    assert_eq!(searches(&interpreters), (AGAIN * AGAIN, AGAIN * AGAIN));
    // Frames of such a process are none.
    assert_eq!(interpreters.functions(own, &[RawFrame { code: 1, instruction: 2, kind: 3 }]), []);
}

/// A process with these functions, none of which has to be read.
fn known(minor: u8, codes: &[u64]) -> Interpreters {
    let offsets = layout::offsets((3, minor), || None).expect("known");
    let mut interpreters = Interpreters::default();
    let runtime = Runtime { at: 0, offsets, module: format!("python3.{minor}") };
    interpreters.processes.insert(1, Process::Python(runtime));
    for (index, code) in codes.iter().enumerate() {
        interpreters.ids.insert((1, *code, 0), index as u32);
        let name = format!("f{code} (app.py:1)");
        interpreters.functions.push(Frame::of_interpreter(name, "python", parshall_evidence::Interpreted::Application));
    }
    interpreters
}

/// The functions of frames with these kinds, `f!` where the loop was entered.
fn entered(minor: u8, frames: &[(u64, u8)]) -> String {
    let codes: Vec<u64> = frames.iter().map(|(code, _)| *code).collect();
    let raw: Vec<RawFrame> = frames.iter().map(|&(code, kind)| RawFrame { code, instruction: 0, kind }).collect();
    let mut interpreters = known(minor, &codes);
    let ids = interpreters.functions(1, &raw);
    let text = |id: &Id| {
        let name = &interpreters.functions[id.function as usize].name;
        format!("{}{}", name.split(' ').next().unwrap_or(name), if id.entry { "!" } else { "" })
    };
    ids.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[test]
fn versions_show_in_their_own_ways_where_the_loop_was_entered() {
    assert_eq!(entered(10, &[(1, 0), (2, 9), (3, 0)]), "f1! f2! f3!");
    assert_eq!(entered(11, &[(1, 0), (2, 1), (3, 1)]), "f1 f2! f3!");
    // Since 3.12 a frame of the loop's own stands below.
    assert_eq!(entered(12, &[(1, 0), (2, 1), (90, 3), (4, 0), (91, 3)]), "f1 f2! f4!");
    assert_eq!(entered(12, &[(90, 3), (1, 0)]), "f1", "one that is on top has entered nothing");
    assert_eq!(entered(12, &[]), "");
}
