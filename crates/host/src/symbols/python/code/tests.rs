//! Code objects in a memory made by hand: whole ones, and those that mean harm.
use std::collections::BTreeMap;

use super::*;
use crate::symbols::python::layout::{self, DEBUG_OFFSETS_BYTES};

/// Pieces of memory by their addresses.
#[derive(Default)]
struct Pieces {
    pieces: BTreeMap<u64, Vec<u8>>,
    /// Bytes that were read so far.
    read: u64,
}

impl Memory for Pieces {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Option<()> {
        self.read += into.len() as u64;
        let (begin, piece) = self.pieces.range(..=address).next_back()?;
        let from = usize::try_from(address - begin).ok()?;
        into.copy_from_slice(piece.get(from..from.checked_add(into.len())?)?);
        Some(())
    }
}

impl Pieces {
    fn put(&mut self, at: u64, offset: u32, bytes: &[u8]) {
        let piece = self.pieces.entry(at).or_default();
        let end = offset as usize + bytes.len();
        if piece.len() < end {
            piece.resize(end, 0);
        }
        piece[offset as usize..end].copy_from_slice(bytes);
    }

    /// A string of so many characters as it says, with these bytes.
    fn string(&mut self, of: &Offsets, at: u64, length: u64, width: u32, ascii: bool, bytes: &[u8]) {
        self.put(at, STRING_LENGTH, &length.to_ne_bytes());
        self.put(at, STRING_STATE, &(width << 2 | 1 << 5 | u32::from(ascii) << 6).to_ne_bytes());
        self.put(at, if ascii { of.ascii_bytes } else { of.compact_bytes }, bytes);
    }
}

const CODE: u64 = 0x7f00_0000_1000;
const NAME: u64 = 0x7f01_0000_0000;
const PATH: u64 = 0x7f02_0000_0000;
const TABLE: u64 = 0x7f03_0000_0000;

/// `view` of `/srv/app/orders.py`, in line 40, whose instruction 6 is in line 42.
fn whole(of: &Offsets) -> Pieces {
    let mut memory = Pieces::default();
    memory.put(CODE, of.code_name, &NAME.to_ne_bytes());
    memory.put(CODE, of.code_file, &PATH.to_ne_bytes());
    memory.put(CODE, of.code_first_line, &40_i32.to_ne_bytes());
    memory.put(CODE, of.code_lines, &TABLE.to_ne_bytes());
    memory.string(of, NAME, 4, 1, true, b"view");
    memory.string(of, PATH, 18, 1, true, b"/srv/app/orders.py");
    let table: &[u8] = match of.lines {
        lines::Form::Steps => &[6, 2],
        lines::Form::Ranges => &[6, 0, 4, 2],
        // Three instructions without a step, then two of two lines more.
        lines::Form::Locations => &[0x82, 0, 0x80 | 12 << 3 | 1, 0, 0],
    };
    memory.put(TABLE, BYTES_SIZE, &(table.len() as u64).to_ne_bytes());
    memory.put(TABLE, BYTES_DATA, table);
    memory
}

fn versions() -> impl Iterator<Item = (u8, Offsets)> {
    (8..=12).map(|minor| (minor, layout::offsets((3, minor), || None::<[u8; DEBUG_OFFSETS_BYTES]>).expect("known")))
}

/// The instruction at byte `at`, as a frame of that version has it.
fn instruction(of: &Offsets, at: u64) -> u64 {
    match of.instruction {
        // The other half is the next field.
        Instruction::Number(unit) => (at / u64::from(unit)) | (0xdead_beef << 32),
        Instruction::Address(begin) => CODE + u64::from(begin) + at,
    }
}

fn name(memory: &mut Pieces, of: &Offsets, at: u64) -> Option<String> {
    function(memory, of, CODE, instruction(of, at)).map(|function| function.name)
}

#[test]
fn the_line_is_that_of_the_instruction() {
    for (minor, of) in versions() {
        let mut memory = whole(&of);
        assert_eq!(name(&mut memory, &of, 4).as_deref(), Some("view (orders.py:40)"), "3.{minor}");
        assert_eq!(name(&mut memory, &of, 6).as_deref(), Some("view (orders.py:42)"), "3.{minor}");
        // Before the first instruction.
        let not_begun = match of.instruction {
            Instruction::Number(_) => u64::from(u32::MAX),
            Instruction::Address(begin) => CODE + u64::from(begin) - 2,
        };
        let found = function(&mut memory, &of, CODE, not_begun).expect("a function");
        assert_eq!((found.name.as_str(), found.from), ("view (orders.py:40)", Interpreted::Application), "3.{minor}");
    }
}

#[test]
fn names_have_any_characters() {
    let of = versions().last().expect("one").1;
    for (width, text) in [(1_u32, "größe"), (2, "列表"), (4, "𝒻")] {
        let mut memory = whole(&of);
        let bytes: Vec<u8> =
            text.chars().flat_map(|c| u32::from(c).to_le_bytes().into_iter().take(width as usize)).collect();
        memory.string(&of, NAME, text.chars().count() as u64, width, false, &bytes);
        assert_eq!(name(&mut memory, &of, 4), Some(format!("{text} (orders.py:40)")));
    }
}

#[test]
fn the_file_says_where_a_function_comes_from() {
    for (path, short_path, origin) in [
        ("/srv/app/orders.py", "orders.py", Interpreted::Application),
        ("app.py", "app.py", Interpreted::Application),
        ("/usr/lib/python3.11/socket.py", "socket.py", Interpreted::Library),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>", Interpreted::Library),
        ("/usr/lib/python3/dist-packages/flask/app.py", "app.py", Interpreted::Package),
        ("/srv/venv/lib/python3.12/site-packages/requests/__init__.py", "requests/__init__.py", Interpreted::Package),
        ("__main__.py", "__main__.py", Interpreted::Application),
    ] {
        assert_eq!((short(path), from(path)), (short_path, origin), "{path}");
    }
}

#[test]
fn what_is_too_long_is_cut() {
    let of = versions().last().expect("one").1;
    let mut memory = whole(&of);
    memory.string(&of, NAME, 1 << 20, 1, true, &vec![b'n'; 1 << 20]);
    let path: Vec<u8> = [vec![b'd'; 1 << 20], b"/end.py".to_vec()].concat();
    memory.string(&of, PATH, path.len() as u64, 1, true, &path);
    memory.put(TABLE, BYTES_SIZE, &(1_u64 << 20).to_ne_bytes());
    memory.put(TABLE, BYTES_DATA, &vec![0x80; 1 << 20]);
    let found = name(&mut memory, &of, 4).expect("a function");
    assert_eq!(found, format!("{} (end.py:40)", "n".repeat(NAME_MAX as usize)));
    assert!(memory.read < 80 << 10, "{} bytes were read", memory.read);
    // A file whose name is no name of a file.
    memory.string(&of, PATH, 1 << 20, 1, true, &vec![b'd'; 1 << 20]);
    let found = name(&mut memory, &of, 4).expect("a function");
    assert!(found.ends_with(&format!(" ({}:40)", "d".repeat(FILE_MAX))), "{found}");
}

#[test]
fn lengths_that_lie_are_refused() {
    let of = versions().last().expect("one").1;
    for length in [5_000, 1 << 40, u64::MAX, u64::MAX / 4] {
        for width in [1, 2, 4, 7] {
            let mut memory = whole(&of);
            memory.string(&of, NAME, length, width, false, b"view");
            assert_eq!(name(&mut memory, &of, 4), None);
            let mut memory = whole(&of);
            memory.string(&of, PATH, length, width, true, b"view");
            assert_eq!(name(&mut memory, &of, 4), None);
            assert!(memory.read < 32 << 10);
        }
        // Without its table a function has its first line.
        let mut memory = whole(&of);
        memory.put(TABLE, BYTES_SIZE, &length.to_ne_bytes());
        assert_eq!(name(&mut memory, &of, 6).as_deref(), Some("view (orders.py:40)"));
    }
}

#[test]
fn pointers_into_nowhere_and_in_circles_end() {
    for (_, of) in versions() {
        let mut seed = 3_u64;
        let mut next = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed
        };
        for round in 0..2_000_u64 {
            let mut memory = whole(&of);
            for _ in 0..4 {
                let target = [CODE, NAME, PATH, TABLE, 0, u64::MAX, u64::MAX - 8, next()][next() as usize >> 4 & 7];
                let field = [of.code_name, of.code_file, of.code_lines][next() as usize % 3];
                memory.put(CODE, field, &target.to_ne_bytes());
            }
            function(&mut memory, &of, CODE, next());
            function(&mut memory, &of, next(), next());
            function(&mut memory, &of, u64::MAX - round % 200, CODE);
            assert!(memory.read < 400 << 10);
        }
        assert_eq!(function(&mut Pieces::default(), &of, CODE, CODE), None);
    }
}
