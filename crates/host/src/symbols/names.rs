//! Names of addresses: of the kernel from /proc/kallsyms, of a process from copies of the files that it has mapped.
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blazesym::Pid;
use blazesym::symbolize::source::{Elf, Kernel, Process, Source};
use blazesym::symbolize::{Input, Symbolizer};
use parshall_evidence::Frame;

use super::frame::{hex_frame, shortened};
use super::maps::{self, Budget, Mapping};
use super::{elf_copy, perf_map};
use crate::foreign_file::open_regular_link;
use crate::left_out;
use crate::mountinfo::{self, Mount};

/// Bytes of symbol tables that are copied at most, of all files together. Files beyond that have offsets instead of names.
const COPIED_MAX: u64 = 48 << 20;
/// Files that are copied at most: each holds a descriptor.
const FILES_MAX: usize = 256;
/// Bytes that the mappings of one process may take while their addresses are named.
const MAPS_MAX: u64 = 16 << 20;
/// Bytes of mount tables that are read in all.
const MOUNTS_MAX: u64 = 64 << 20;
const VDSO: &str = "[vdso]";

/// A process, and what its maps say of a file: its device and its inode.
type Mapped = (u32, (u32, u32), u64);
/// Device and inode of a file that was opened.
type FileId = (u64, u64);

/// Looks up names, and keeps the copies that it has made.
pub struct Names {
    symbolizer: Symbolizer,
    /// Its key in `copies`; None for a file that could not be opened.
    mapped: HashMap<Mapped, Option<FileId>>,
    /// None for a file that could not be copied.
    copies: HashMap<FileId, Option<File>>,
    /// The rest of `COPIED_MAX`.
    bytes_left: u64,
    mount_tables: MountTables,
}

impl Names {
    /// Copies nothing yet.
    pub fn new() -> Self {
        // A copy does not change.
        let symbolizer = Symbolizer::builder().enable_auto_reload(false).build();
        Self {
            symbolizer,
            mapped: HashMap::new(),
            copies: HashMap::new(),
            bytes_left: COPIED_MAX,
            mount_tables: MountTables::new(),
        }
    }

    /// A frame for each address of a process; process 0 is the kernel.
    pub fn frames(&mut self, tgid: u32, addresses: &[u64]) -> Vec<Frame> {
        let known = if tgid == 0 { self.of_kernel(addresses) } else { self.of_process(tgid, addresses) };
        addresses
            .iter()
            .map(|address| known.get(address).cloned().unwrap_or_else(|| hex_frame(tgid, *address)))
            .collect()
    }

    fn of_kernel(&self, addresses: &[u64]) -> HashMap<u64, Frame> {
        // Names are all that is shown, and a kernel image with debug information takes seconds to read.
        let kernel = Kernel { vmlinux: blazesym::MaybeDefault::None, debug_syms: false, ..Kernel::default() };
        let frame = |name| Frame { name, module: String::new(), kernel: true };
        self.ask(&Source::Kernel(kernel), Input::AbsAddr(addresses))
            .zip(addresses)
            .filter_map(|(name, address)| Some((*address, frame(name?))))
            .collect()
    }

    fn of_process(&mut self, tgid: u32, addresses: &[u64]) -> HashMap<u64, Frame> {
        let mut addresses = addresses.to_vec();
        addresses.sort_unstable();
        let maps = maps::read(tgid, &mut Budget(MAPS_MAX), |range, _| maps::holds_any(range, &addresses));
        let mut named = HashMap::new();
        for (mapping, inside) in by_mapping(&maps, &addresses) {
            let names = if mapping.path == VDSO {
                self.of_vdso(mapping, &inside)
            } else {
                self.of_file(tgid, mapping, &inside)
            };
            let frame = |name| Frame { name, module: mapping.module(), kernel: false };
            let found = inside.iter().zip(names).filter_map(|(address, name)| Some((*address, frame(name?))));
            named.extend(found);
        }
        let left: Vec<u64> = addresses.iter().copied().filter(|address| !named.contains_key(address)).collect();
        if left.is_empty() {
            return named;
        }
        let mut compiled = perf_map::names(tgid, &left);
        for address in left {
            let frame = match compiled.remove(&address) {
                Some(name) => Some(Frame { name, module: String::new(), kernel: false }),
                None => maps::find(&maps, address).and_then(|mapping| mapping.file_frame(address)),
            };
            named.extend(frame.map(|frame| (address, frame)));
        }
        named
    }

    /// The vDSO is the same in every process of our word size, so ours is read instead.
    fn of_vdso(&self, theirs: &Mapping, addresses: &[u64]) -> Vec<Option<String>> {
        let length = |mapping: &Mapping| mapping.range.end - mapping.range.start;
        let maps = maps::read(std::process::id(), &mut Budget(MAPS_MAX), |_, executable| executable);
        let Some(ours) = maps.iter().find(|mapping| mapping.path == VDSO && length(mapping) == length(theirs)) else {
            return Vec::new();
        };
        let moved: Vec<u64> = addresses.iter().map(|a| a - theirs.range.start + ours.range.start).collect();
        let mut process = Process::new(Pid::Slf);
        process.debug_syms = false;
        process.perf_map = false;
        self.ask(&Source::Process(process), Input::AbsAddr(&moved)).collect()
    }

    fn of_file(&mut self, tgid: u32, mapping: &Mapping, addresses: &[u64]) -> Vec<Option<String>> {
        let Some(path) = self.copy_of(tgid, mapping) else { return Vec::new() };
        let offsets: Vec<u64> = addresses.iter().map(|&address| mapping.file_offset(address)).collect();
        let mut elf = Elf::new(path);
        elf.debug_syms = false;
        self.ask(&Source::Elf(elf), Input::FileOffset(&offsets)).collect()
    }

    /// The path of our copy of a mapped file.
    fn copy_of(&mut self, tgid: u32, mapping: &Mapping) -> Option<PathBuf> {
        if mapping.inode == 0 {
            return None;
        }
        let key = (tgid, mapping.device, mapping.inode);
        if !self.mapped.contains_key(&key) {
            let opened = open_mapped(tgid, mapping, &mut self.mount_tables);
            let id = opened.ok().and_then(|file| self.keep(&file));
            self.mapped.insert(key, id);
        }
        let copy = self.copies.get(self.mapped.get(&key)?.as_ref()?)?.as_ref()?;
        Some(PathBuf::from(format!("/proc/self/fd/{}", copy.as_raw_fd())))
    }

    /// Copies a file unless that was done or tried before. A process that replaces a mapping while it is opened changes
    /// only its own names: copies are keyed by the file that was opened.
    fn keep(&mut self, file: &File) -> Option<FileId> {
        let metadata = file.metadata().ok()?;
        let id = (metadata.dev(), metadata.ino());
        if !self.copies.contains_key(&id) && self.copies.len() < FILES_MAX {
            let copied = elf_copy::copy(file, &mut self.bytes_left).ok();
            self.copies.insert(id, copied);
        }
        Some(id)
    }

    /// A name for each input, where there is one.
    fn ask(&self, source: &Source<'_>, input: Input<&[u64]>) -> impl Iterator<Item = Option<String>> {
        let found = self.symbolizer.symbolize(source, input).unwrap_or_default();
        found
            .into_iter()
            .map(|found| found.as_sym().map(|symbol| shortened(&symbol.name)))
            .collect::<Vec<_>>()
            .into_iter()
    }
}

/// Mount tables of other processes, whose length their users choose: up to 100,000 mounts in each namespace (`fs.mount-max`).
pub struct MountTables {
    /// The rest of `MOUNTS_MAX`.
    left: u64,
}

impl MountTables {
    /// Has read none yet.
    pub const fn new() -> Self {
        Self { left: MOUNTS_MAX }
    }

    /// Whether this device is, or may be, a FUSE file system of a user other than root, who can delay reads for ever.
    fn may_be_users_fuse(&mut self, tgid: u32, device: (u32, u32)) -> bool {
        for process in [tgid.to_string(), "self".into()] {
            match mountinfo::with_device(&process, device, &mut self.left, is_users_fuse) {
                // All mounts of a device are of one file system.
                Ok(Some(users)) => return users,
                Ok(None) => {}
                Err(_) => {
                    left_out::add(format!(
                        "the mount table of process {tgid} is too long: files that it has mapped were not opened for their names"
                    ));
                    return true;
                }
            }
        }
        false
    }
}

/// Opens the mapped file itself, also when it was deleted or is in another mount namespace.
pub fn open_mapped(tgid: u32, mapping: &Mapping, mount_tables: &mut MountTables) -> io::Result<File> {
    if mount_tables.may_be_users_fuse(tgid, mapping.device) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a FUSE file system of a user"));
    }
    let range = &mapping.range;
    open_regular_link(Path::new(&format!("/proc/{tgid}/map_files/{:x}-{:x}", range.start, range.end)))
}

fn is_users_fuse(mount: &Mount<'_>) -> bool {
    mount.kind.starts_with(b"fuse") && !mount.has_option("user_id=0")
}

/// Ascending addresses by the mapping that holds them; those that none holds are left out.
fn by_mapping<'a>(maps: &'a [Mapping], addresses: &[u64]) -> Vec<(&'a Mapping, Vec<u64>)> {
    let mut groups: Vec<(&Mapping, Vec<u64>)> = Vec::new();
    for &address in addresses {
        let Some(mapping) = maps::find(maps, address) else { continue };
        match groups.last_mut() {
            Some((last, inside)) if *last == mapping => inside.push(address),
            _ => groups.push((mapping, vec![address])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_file_system_is_distinguished_from_roots() {
        let of = |kind: &str| {
            let line = format!("36 35 0:52 / /mnt rw,nosuid shared:1 - {kind}");
            Mount::parse(line.as_bytes()).is_some_and(|mount| is_users_fuse(&mount))
        };
        assert!(of("fuse.sshfs host: rw,user_id=1000,group_id=0"));
        assert!(of("fuse app rw"));
        assert!(!of("fuse.fuse-overlayfs overlay rw,user_id=0,group_id=0"));
        assert!(!of("ext4 /dev/vda rw"));
        assert_eq!(Mount::parse(b"nonsense"), None);
    }

    #[test]
    fn the_vdso_and_our_own_program_have_names() {
        let mut names = Names::new();
        let own = std::process::id();
        let here = Names::new as *const () as u64;
        let frames = names.frames(own, &[here, 1]);
        // Our own maps are readable; following their links to the files needs a capability.
        if parshall_testkit::root("names of our own program") {
            assert!(frames[0].name.contains("Names") && frames[0].module.starts_with("parshall"), "{frames:?}");
        }
        assert_eq!(frames[1], hex_frame(own, 1));
        let maps = maps::all(own);
        let vdso = maps.iter().find(|mapping| mapping.path == VDSO);
        // Some address in its code has a name.
        let named = |range: &std::ops::Range<u64>| {
            let addresses: Vec<u64> = range.clone().step_by(64).collect();
            names.frames(own, &addresses).iter().any(|frame| frame.name.starts_with("__vdso"))
        };
        assert!(vdso.map(|mapping| mapping.range.clone()).as_ref().is_none_or(named));
    }
}
