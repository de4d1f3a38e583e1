//! Describes interpreters to the programs, and decodes the stacks of functions that these run.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::diagnose::record_head::RecordHead;

/// Most frames of such a stack.
pub const INTERPRETED_MAX: usize = 48;

/// `struct interpreter`: where the interpreter of a process has what a stack is made of. `interpreters` is an address, the others are
/// offsets of fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct InterpreterWire {
    pub interpreters: u64,
    pub next_interpreter: u32,
    pub first_state: u32,
    pub next_state: u32,
    pub state_identity: u32,
    pub state_frame: u32,
    /// 1: `state_frame` leads to a structure that has the frame at `cframe_frame`.
    pub through_cframe: u32,
    pub cframe_frame: u32,
    pub frame_caller: u32,
    pub frame_code: u32,
    pub frame_instruction: u32,
    pub frame_kind: u32,
    pub pad: u32,
}

/// `struct interpreted_frame`. All of it is what the process's memory holds, which may be anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct InterpretedFrameWire {
    pub code: u64,
    pub instruction: u64,
    /// In the lowest byte.
    pub kind: u64,
}

/// `struct interpreted_rec`: the functions that a thread runs in an interpreter.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct InterpretedWire {
    pub head: RecordHead,
    pub tgid: u32,
    pub seq: u32,
    pub n_frames: u32,
    /// 1: there are more frames than were copied.
    pub more: u32,
    pub frames: [InterpretedFrameWire; INTERPRETED_MAX],
}

impl InterpretedWire {
    /// The frames, innermost first.
    pub fn frames(&self) -> &[InterpretedFrameWire] {
        &self.frames[..INTERPRETED_MAX.min(self.n_frames as usize)]
    }
}
