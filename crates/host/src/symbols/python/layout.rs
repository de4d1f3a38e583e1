//! Where CPython has what a stack is made of: offsets of fields by minor version, each with the header file of CPython that declares the
//! structure. They are those of 64-bit builds, and the same in all releases of a minor version.
use super::lines::Form;

/// How frames show where the evaluation loop was entered, each time in a native function of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Each frame has a run of the loop.
    Every,
    /// A byte of the frame is not 0: `is_entry`.
    Marked,
    /// The loop puts a frame of its own below the first one: its `owner` is `FRAME_OWNED_BY_CSTACK`.
    Below,
}

/// How the place of an instruction is written in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// A 32-bit number, in units of so many bytes.
    Number(u32),
    /// An address. The code begins at this offset in the code object.
    Address(u32),
}

/// Offsets of fields, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    /// `_PyRuntimeState.interpreters.head`
    pub interpreters: u32,
    /// `PyInterpreterState.next`
    pub next_interpreter: u32,
    /// `PyInterpreterState.tstate_head`, `threads.head` since 3.11
    pub first_state: u32,
    /// `PyThreadState.next`
    pub next_state: u32,
    /// `PyThreadState.thread_id`, which is pthread_self(): the number of the thread that the kernel knows is another one in a container.
    pub state_identity: u32,
    /// `PyThreadState.frame`; `cframe` in 3.11 and 3.12; `current_frame` since 3.13
    pub state_frame: u32,
    /// `_PyCFrame.current_frame`, where `state_frame` is a `cframe`
    pub cframe_frame: Option<u32>,
    /// `PyFrameObject.f_back`, `_PyInterpreterFrame.previous` since 3.11
    pub frame_caller: u32,
    /// `f_code` of either, `f_executable` since 3.13
    pub frame_code: u32,
    /// `PyFrameObject.f_lasti`, `_PyInterpreterFrame.prev_instr` since 3.11, `instr_ptr` since 3.13
    pub frame_instruction: u32,
    /// The byte that `entry` speaks of.
    pub frame_kind: u32,
    #[allow(missing_docs)]
    pub entry: Entry,
    #[allow(missing_docs)]
    pub instruction: Instruction,
    /// `PyCodeObject.co_name`, `co_qualname` since 3.11
    pub code_name: u32,
    /// `PyCodeObject.co_filename`
    pub code_file: u32,
    /// `PyCodeObject.co_firstlineno`
    pub code_first_line: u32,
    /// `PyCodeObject.co_lnotab`, `co_linetable` since 3.10
    pub code_lines: u32,
    #[allow(missing_docs)]
    pub lines: Form,
    /// The size of `PyASCIIObject`, behind which the characters of an ASCII string are.
    pub ascii_bytes: u32,
    /// The size of `PyCompactUnicodeObject`, for the other strings.
    pub compact_bytes: u32,
}

/// `FRAME_OWNED_BY_CSTACK` (Include/internal/pycore_frame.h since 3.12).
pub const OWNED_BY_C_STACK: u8 = 3;
/// `PyVarObject.ob_size` and `PyBytesObject.ob_sval` (Include/object.h, Include/cpython/bytesobject.h): in all versions.
pub const BYTES_SIZE: u32 = 16;
pub const BYTES_DATA: u32 = 32;
/// `PyASCIIObject.length` and `.state` (Include/cpython/unicodeobject.h): in all versions.
pub const STRING_LENGTH: u32 = 16;
pub const STRING_STATE: u32 = 32;

/// 3.8: Include/cpython/pystate.h (thread state), Include/internal/pycore_pystate.h (interpreter and runtime), Include/frameobject.h,
/// Include/code.h, Include/cpython/unicodeobject.h.
const PYTHON_3_8: Offsets = Offsets {
    interpreters: 32,
    next_interpreter: 0,
    first_state: 8,
    next_state: 8,
    state_identity: 176,
    state_frame: 24,
    cframe_frame: None,
    frame_caller: 24,
    frame_code: 32,
    frame_instruction: 104,
    frame_kind: 104,
    entry: Entry::Every,
    instruction: Instruction::Number(1),
    code_name: 112,
    code_file: 104,
    code_first_line: 40,
    code_lines: 120,
    lines: Form::Steps,
    ascii_bytes: 48,
    compact_bytes: 72,
};

/// 3.9: as 3.8, in Include/internal/pycore_interp.h and pycore_runtime.h, Include/cpython/frameobject.h and Include/cpython/code.h.
const PYTHON_3_9: Offsets = PYTHON_3_8;

/// 3.10: Include/cpython/frameobject.h lost a field before `f_lasti`, which counts instructions; Include/cpython/code.h has another table.
const PYTHON_3_10: Offsets = Offsets {
    frame_instruction: 96,
    frame_kind: 96,
    instruction: Instruction::Number(2),
    lines: Form::Ranges,
    ..PYTHON_3_9
};

/// 3.11: Include/internal/pycore_runtime.h, pycore_interp.h and pycore_frame.h, Include/cpython/pystate.h (thread state and `_PyCFrame`),
/// Include/cpython/code.h.
const PYTHON_3_11: Offsets = Offsets {
    interpreters: 40,
    first_state: 16,
    state_identity: 152,
    state_frame: 56,
    cframe_frame: Some(8),
    frame_caller: 48,
    frame_code: 32,
    frame_instruction: 56,
    frame_kind: 68,
    entry: Entry::Marked,
    instruction: Instruction::Address(184),
    code_name: 128,
    code_file: 112,
    code_first_line: 72,
    code_lines: 136,
    lines: Form::Locations,
    ..PYTHON_3_10
};

/// 3.12: the same files. Include/cpython/unicodeobject.h has shorter strings.
const PYTHON_3_12: Offsets = Offsets {
    first_state: 72,
    state_identity: 136,
    cframe_frame: Some(0),
    frame_caller: 8,
    frame_code: 0,
    frame_kind: 70,
    entry: Entry::Below,
    instruction: Instruction::Address(192),
    code_first_line: 68,
    ascii_bytes: 40,
    compact_bytes: 56,
    ..PYTHON_3_11
};

/// The bytes of `_PyRuntime` that [`debug_offsets`] reads.
pub const DEBUG_OFFSETS_BYTES: usize = 568;
/// The first bytes of `_PyRuntime` since 3.13.
const COOKIE: &[u8; 8] = b"xdebugpy";
/// No structure is larger: an interpreter has some 100 KiB.
const OFFSET_MAX: u64 = 1 << 20;

/// 3.13: `_Py_DebugOffsets` in Include/internal/pycore_runtime.h, with which `_PyRuntime` begins, has what differs between builds. Only the
/// places in it are of this version. Free-threaded builds have other frames.
fn debug_offsets(runtime: &[u8; DEBUG_OFFSETS_BYTES]) -> Option<Offsets> {
    let word = |at: usize| u64::from_ne_bytes(runtime[at..at + 8].try_into().expect("eight bytes"));
    let offset = |at: usize| Some(word(at)).filter(|offset| *offset < OFFSET_MAX).map(|offset| offset as u32);
    let free_threaded = word(16) != 0;
    if &runtime[..8] != COOKIE || free_threaded {
        return None;
    }
    Some(Offsets {
        interpreters: offset(40)?,
        next_interpreter: offset(64)?,
        first_state: offset(72)?,
        next_state: offset(168)?,
        state_frame: offset(184)?,
        state_identity: offset(192)?,
        cframe_frame: None,
        frame_caller: offset(232)?,
        frame_code: offset(240)?,
        frame_instruction: offset(248)?,
        frame_kind: offset(264)?,
        code_file: offset(280)?,
        code_name: offset(296)?,
        code_lines: offset(304)?,
        code_first_line: offset(312)?,
        instruction: Instruction::Address(offset(344)?),
        ascii_bytes: offset(560)?,
        // Three fields less one: `utf8_length` and `utf8` are behind the ASCII string.
        compact_bytes: offset(560)? + 16,
        ..PYTHON_3_12
    })
}

/// The offsets of a version, None for one that is not known. `runtime` reads the begin of `_PyRuntime`.
pub fn offsets(
    (major, minor): (u8, u8),
    runtime: impl FnOnce() -> Option<[u8; DEBUG_OFFSETS_BYTES]>,
) -> Option<Offsets> {
    match (major, minor) {
        (3, 8) => Some(PYTHON_3_8),
        (3, 9) => Some(PYTHON_3_9),
        (3, 10) => Some(PYTHON_3_10),
        (3, 11) => Some(PYTHON_3_11),
        (3, 12) => Some(PYTHON_3_12),
        (3, 13) => debug_offsets(&runtime()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of `_Py_DebugOffsets` that are read, with the values of 3.13.0.
    fn python_3_13() -> [u8; DEBUG_OFFSETS_BYTES] {
        let mut runtime = [0; DEBUG_OFFSETS_BYTES];
        runtime[..8].copy_from_slice(COOKIE);
        for (at, value) in [
            (8, 0x030d_00f0_u64),
            (40, 632),
            (64, 7264),
            (72, 7344),
            (168, 8),
            (184, 72),
            (192, 152),
            (232, 8),
            (240, 0),
            (248, 56),
            (264, 70),
            (280, 112),
            (288, 120),
            (296, 128),
            (304, 136),
            (312, 68),
            (344, 200),
            (560, 40),
        ] {
            runtime[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        runtime
    }

    #[test]
    fn of_3_13_the_process_says_the_offsets() {
        let found = offsets((3, 13), || Some(python_3_13())).expect("3.13 is known");
        let expected = Offsets {
            interpreters: 632,
            next_interpreter: 7264,
            first_state: 7344,
            state_identity: 152,
            state_frame: 72,
            cframe_frame: None,
            instruction: Instruction::Address(200),
            ..PYTHON_3_12
        };
        assert_eq!(found, expected);
        assert_eq!(offsets((3, 13), || None), None);
    }

    #[test]
    fn what_is_no_3_13_is_refused() {
        let changed = |at: usize, value: u64| {
            let mut runtime = python_3_13();
            runtime[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            offsets((3, 13), || Some(runtime))
        };
        assert_eq!(changed(0, 0), None, "no cookie");
        assert_eq!(changed(16, 1), None, "free-threaded");
        assert_eq!(changed(64, u64::MAX), None, "an offset that no structure has");
    }

    #[test]
    fn other_versions_are_not_known() {
        for version in [(2, 7), (3, 7), (3, 14), (4, 8)] {
            assert_eq!(offsets(version, || Some(python_3_13())), None, "{version:?}");
        }
        assert_eq!((8..=12).filter(|minor| offsets((3, *minor), || None).is_some()).count(), 5);
    }
}
