//! Reads the functions that a thread runs from outside of its process, as the probes do from within (crates/bpf, diagnose/interpreter).
//!
//! All addresses are the process's own and may lead anywhere. What cannot be read is 0, which ends the chain, and each loop has a bound.
use super::memory::Memory;
use super::{Place, RawFrame};

/// States of threads that are searched: new ones are put before the others.
const STATES_SEARCHED: usize = 256;
/// Innermost frames that are read, as many as the probes copy.
const FRAMES_MAX: usize = 48;
/// No thread's structure of libc is larger: that of glibc has 2.3 KiB. Those of two threads are farther apart.
const STRUCTURE_MAX: u64 = 4096;

/// The frames of a thread, innermost first. `inside` is an address in the structure that libc has of the thread.
pub fn frames(memory: &mut impl Memory, place: &Place, inside: u64) -> Vec<RawFrame> {
    let mut frames = Vec::new();
    let (mut memory, of) = (Words(memory), &place.offsets);
    let Some(state) = state(&mut memory, place, inside) else { return frames };
    let mut frame = memory.at(state, of.state_frame);
    if let (Some(offset), true) = (of.cframe_frame, frame != 0) {
        frame = memory.at(frame, offset);
    }
    while frame != 0 && frames.len() < FRAMES_MAX {
        frames.push(RawFrame {
            code: memory.at(frame, of.frame_code),
            instruction: memory.at(frame, of.frame_instruction),
            kind: memory.at(frame, of.frame_kind) as u8,
        });
        frame = memory.at(frame, of.frame_caller);
    }
    frames
}

/// The state that the interpreter keeps of the thread.
fn state(memory: &mut Words<'_, impl Memory>, place: &Place, inside: u64) -> Option<u64> {
    let of = &place.offsets;
    let mut interpreter = memory.at(place.interpreters, 0);
    let mut state = memory.first_state(interpreter, of.first_state);
    for _ in 0..STATES_SEARCHED {
        if state != 0 {
            let identity = memory.at(state, of.state_identity);
            if inside.checked_sub(identity).is_some_and(|offset| offset < STRUCTURE_MAX) {
                return Some(state);
            }
            state = memory.at(state, of.next_state);
        } else if interpreter != 0 {
            interpreter = memory.at(interpreter, of.next_interpreter);
            state = memory.first_state(interpreter, of.first_state);
        } else {
            break;
        }
    }
    None
}

/// Memory of which only words are read.
struct Words<'a, M>(&'a mut M);

impl<M: Memory> Words<'_, M> {
    /// The word of a structure, 0 if it cannot be read.
    fn at(&mut self, structure: u64, offset: u32) -> u64 {
        structure.checked_add(offset.into()).and_then(|address| self.0.word(address)).unwrap_or(0)
    }

    fn first_state(&mut self, interpreter: u64, offset: u32) -> u64 {
        if interpreter == 0 { 0 } else { self.at(interpreter, offset) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::layout;
    use super::*;

    /// Words by their addresses.
    #[derive(Default)]
    struct Made(HashMap<u64, u64>);

    impl Memory for Made {
        fn read(&mut self, address: u64, into: &mut [u8]) -> Option<()> {
            into.copy_from_slice(&self.0.get(&address)?.to_ne_bytes());
            Some(())
        }
    }

    const RUNTIME: u64 = 0x100;
    const THREAD: u64 = 0x7f00_0000_4000;

    /// A Python with two interpreters, of which the second has the states of two threads. The thread at [`THREAD`] runs the functions with
    /// the codes 1 and 2, which `shared` leads to where frames are found through another structure.
    fn made(minor: u8) -> (Made, Place) {
        let of = layout::offsets((3, minor), || None).expect("known");
        let place = Place { interpreters: RUNTIME, offsets: of };
        let mut words = HashMap::from([(RUNTIME, 0x1000)]);
        let mut put = |at: u64, offset: u32, word: u64| words.insert(at + u64::from(offset), word);
        put(0x1000, of.next_interpreter, 0x2000);
        put(0x1000, of.first_state, 0);
        put(0x2000, of.first_state, 0x3000);
        put(0x3000, of.state_identity, THREAD + 0x10_0000);
        put(0x3000, of.next_state, 0x4000);
        put(0x4000, of.state_identity, THREAD);
        put(0x4000, of.state_frame, 0x5000);
        if let Some(offset) = of.cframe_frame {
            put(0x5000, offset, 0x6000);
        }
        let first = if of.cframe_frame.is_some() { 0x6000 } else { 0x5000 };
        for (frame, code, caller) in [(first, 1, 0x7000), (0x7000, 2, 0)] {
            put(frame, of.frame_instruction, code * 10);
            // Of some versions it is another byte of the same word.
            put(frame, of.frame_kind, code * 10);
            put(frame, of.frame_code, code);
            put(frame, of.frame_caller, caller);
        }
        (Made(words), place)
    }

    #[test]
    fn the_thread_is_found_by_what_lies_in_its_structure() {
        for minor in 8..=12 {
            let (mut memory, place) = made(minor);
            let mut codes = |inside| frames(&mut memory, &place, inside).iter().map(|f| f.code).collect::<Vec<_>>();
            assert_eq!(codes(THREAD + 736), [1, 2], "3.{minor}");
            assert_eq!(codes(THREAD), [1, 2], "3.{minor}");
            assert!(codes(THREAD - 1).is_empty() && codes(THREAD + STRUCTURE_MAX).is_empty(), "3.{minor}");
            assert!(codes(0).is_empty() && codes(u64::MAX).is_empty(), "3.{minor}");
            let found = frames(&mut memory, &place, THREAD);
            assert_eq!(found.iter().map(|f| f.instruction).collect::<Vec<_>>(), [10, 20], "3.{minor}");
        }
    }

    #[test]
    fn what_leads_nowhere_or_in_a_circle_ends() {
        let (mut memory, place) = made(12);
        let of = place.offsets;
        memory.0.insert(0x7000 + u64::from(of.frame_caller), 0x6000);
        assert_eq!(frames(&mut memory, &place, THREAD).len(), FRAMES_MAX);
        memory.0.insert(0x4000 + u64::from(of.state_frame), u64::MAX);
        assert!(frames(&mut memory, &place, THREAD).is_empty());
        memory.0.insert(0x3000 + u64::from(of.next_state), 0x3000);
        assert!(frames(&mut memory, &place, THREAD).is_empty());
        memory.0.insert(0x1000 + u64::from(of.next_interpreter), 0x1000);
        assert!(frames(&mut memory, &place, THREAD).is_empty());
        assert!(frames(&mut Made::default(), &place, THREAD).is_empty());
    }
}
