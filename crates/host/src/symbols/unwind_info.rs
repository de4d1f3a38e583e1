//! Call frame information of an ELF file: what its loader would find of it by the program headers, which stripped files keep.
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use framehop::{ExplicitModuleSectionInfo, Module};

use super::elf::{Layout, long, word};
use super::maps::Mapping;

/// PT_LOAD and PT_GNU_EH_FRAME (elf.h).
const LOAD: u32 = 1;
const EH_FRAME: u32 = 0x6474_e550;
/// PF_X, a flag of a segment.
const EXECUTABLE: u32 = 1;
/// Size of a program header of a 64-bit file.
const HEADER_BYTES: usize = 56;
/// Program headers that are read at most.
const HEADERS_MAX: usize = 64;
/// DW_EH_PE_pcrel | DW_EH_PE_sdata4: how linkers write the address of `.eh_frame` into `.eh_frame_hdr`.
const RELATIVE: u8 = 0x1b;

/// Contents of a section.
pub type Data = Arc<[u8]>;

/// The parts of a file that unwinding needs.
pub struct UnwindInfo {
    /// `.eh_frame_hdr` and its address.
    index: (u64, Data),
    /// `.eh_frame`, with what follows it in its segment, and its address.
    frames: (u64, Data),
    segments: Vec<Segment>,
}

/// A program header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    kind: u32,
    executable: bool,
    at: u64,
    address: u64,
    bytes: u64,
}

impl UnwindInfo {
    /// Reads it from a file. `budget` is how many bytes may still be read; those that were read are subtracted. None for other files
    /// than 64-bit ELF files of this machine, and for those without call frame information.
    pub fn read(file: &File, budget: &mut u64) -> Option<Self> {
        let segments = segments(file)?;
        let mut data = |at: u64, bytes: u64| {
            *budget = budget.checked_sub(bytes)?;
            let mut data = vec![0; usize::try_from(bytes).ok()?];
            file.read_exact_at(&mut data, at).ok()?;
            Some(Data::from(data))
        };
        let header = segments.iter().find(|s| s.kind == EH_FRAME)?;
        let index = data(header.at, header.bytes)?;
        let address = frames_address(header.address, &index)?;
        let mut loaded = segments.iter().filter(|s| s.kind == LOAD);
        let segment = loaded.find(|s| address.checked_sub(s.address).is_some_and(|inside| inside < s.bytes))?;
        let inside = address - segment.address;
        let frames = data(segment.at.checked_add(inside)?, segment.bytes - inside)?;
        Some(Self { index: (header.address, index), frames: (address, frames), segments })
    }

    /// The file as it is mapped; None when this is no mapping of one of its segments.
    pub fn module(&self, mapping: &Mapping) -> Option<Module<Data>> {
        let base = mapped_base(&self.segments, mapping)?;
        let range = |(address, data): &(u64, Data)| *address..address.saturating_add(data.len() as u64);
        let info = ExplicitModuleSectionInfo {
            eh_frame_hdr_svma: Some(range(&self.index)),
            eh_frame_hdr: Some(self.index.1.clone()),
            eh_frame_svma: Some(range(&self.frames)),
            eh_frame: Some(self.frames.1.clone()),
            ..ExplicitModuleSectionInfo::default()
        };
        Some(Module::new(mapping.module(), mapping.range.clone(), base, info))
    }
}

/// The difference between addresses where a file is mapped and those in it; None when this is no mapping of one of its segments.
pub fn base(file: &File, mapping: &Mapping) -> Option<u64> {
    mapped_base(&segments(file)?, mapping)
}

fn mapped_base(segments: &[Segment], mapping: &Mapping) -> Option<u64> {
    let page = parshall_sys::clock::page_bytes();
    // Two segments may have a page in common.
    let mut loaded = segments.iter().filter(|s| s.kind == LOAD && s.executable == mapping.executable);
    // A mapping begins with the page that holds the segment's first byte.
    let segment =
        loaded.find(|s| mapping.offset >= s.at & !(page - 1) && mapping.offset < s.at.saturating_add(s.bytes))?;
    let loaded_at = mapping.range.start.wrapping_add(segment.at.wrapping_sub(mapping.offset));
    Some(loaded_at.wrapping_sub(segment.address))
}

fn segments(file: &File) -> Option<Vec<Segment>> {
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    let layout = Layout::parse(&head).ok().filter(|layout| layout.wide)?;
    let (at, bytes) = layout.segments;
    let mut headers = vec![0; usize::try_from(bytes).ok()?.min(HEADERS_MAX * HEADER_BYTES)];
    file.read_exact_at(&mut headers, at).ok()?;
    Some(headers.chunks_exact(HEADER_BYTES).map(segment).collect())
}

/// Elf64_Phdr.
fn segment(header: &[u8]) -> Segment {
    let mut bytes = [0; 64];
    bytes[..HEADER_BYTES].copy_from_slice(header);
    Segment {
        kind: word(&bytes, 0),
        executable: word(&bytes, 4) & EXECUTABLE != 0,
        at: long(&bytes, 8),
        address: long(&bytes, 16),
        bytes: long(&bytes, 32),
    }
}

/// The address of `.eh_frame`, from `.eh_frame_hdr` and its address.
fn frames_address(address: u64, index: &[u8]) -> Option<u64> {
    let [1, RELATIVE, _, _, relative @ ..] = index else { return None };
    let relative = i32::from_ne_bytes(relative.get(..4)?.try_into().ok()?);
    address.checked_add(4)?.checked_add_signed(relative.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").expect("our own program")
    }

    #[test]
    fn our_own_program_has_call_frame_information() {
        let mut budget = 64 << 20;
        let file = File::open("/proc/self/exe").expect("our own program");
        let info = UnwindInfo::read(&file, &mut budget).expect("it is unwound at a panic");
        assert_eq!(budget, (64 << 20) - (info.index.1.len() + info.frames.1.len()) as u64);
        // The first record's length.
        assert!(u32::from_ne_bytes(info.frames.1[..4].try_into().expect("four")) < 256);
        assert!(UnwindInfo::read(&file, &mut 5_000).is_none(), "beyond the budget");
    }

    #[test]
    fn damaged_files_have_none() {
        let whole = own();
        let file = tempfile::tempfile().expect("a file");
        for seed in 0..400_u64 {
            let mut head = whole[..4096].to_vec();
            for n in 0..8 {
                let at = (seed * 8 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                head[4 + (at % 1000) as usize] = (at >> 32) as u8;
            }
            file.set_len(0).and_then(|()| file.write_all_at(&head, 0)).expect("writable");
            assert!(UnwindInfo::read(&file, &mut (1 << 20)).is_none(), "the sections are cut off");
        }
    }

    #[test]
    fn the_address_of_the_frames_is_relative() {
        let index = [&[1, RELATIVE, 3, 0x3b][..], &(-16_i32).to_ne_bytes()].concat();
        assert_eq!(frames_address(0x1000, &index), Some(0xff4));
        assert_eq!(frames_address(0x1000, &index[..6]), None);
        assert_eq!(frames_address(0x1000, &[1, 0xff, 0, 0, 0, 0, 0, 0]), None);
    }
}
