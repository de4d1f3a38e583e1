//! Finds the CPython that a process runs: which version it is, and where its state begins.
use std::fs;
use std::io;
use std::path::Path;

use super::layout::{self, Offsets};
use super::memory::{Memory, ProcessMemory};
use crate::symbols::dynamic_symbols;
use crate::symbols::maps::{self, Budget, Mapping};
use crate::symbols::names::{MountTables, open_mapped};
use crate::symbols::unwind_info;
use parshall_core::sorting::StableSort as _;

/// Bytes that the mappings of a process may take.
const MAPS_MAX: u64 = 4 << 20;
/// Files of a process that are searched at most.
const FILES_MAX: usize = 4;

/// A CPython in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// The address of `_PyRuntime`.
    pub at: u64,
    #[allow(missing_docs)]
    pub offsets: Offsets,
    /// The name of the file that it is in: the program's, or that of libpython.
    pub module: String,
}

/// The interpreter of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// No CPython, or none that was loaded so far.
    None,
    /// One whose memory cannot be read, a sentence that says why.
    Unknown(String),
    #[allow(missing_docs)]
    Python(Runtime),
}

/// Searches the executable and libpython.
pub fn find(tgid: u32, mounts: &mut MountTables) -> Found {
    let maps = maps::read(tgid, &mut Budget(MAPS_MAX), |_, executable| executable);
    let program = fs::read_link(format!("/proc/{tgid}/exe")).unwrap_or_default();
    let mut candidates: Vec<&Mapping> = maps.iter().filter(|mapping| mapping.inode != 0).collect();
    candidates.retain(|mapping| is_python(&mapping.module()) || Path::new(&mapping.path) == program);
    // A library is where its program has nothing.
    candidates.stable_sort_by_key(|mapping| !is_python(&mapping.module()));
    for mapping in candidates.into_iter().take(FILES_MAX) {
        match in_file(tgid, mapping, mounts) {
            Ok(Found::None) | Err(_) => {}
            Ok(found) => return found,
        }
    }
    Found::None
}

/// Whether a file of this name is CPython's: `python3.11`, `libpython3.12.so.1.0`.
pub fn is_python(module: &str) -> bool {
    module.starts_with("python") || module.starts_with("libpython")
}

fn in_file(tgid: u32, mapping: &Mapping, mounts: &mut MountTables) -> io::Result<Found> {
    let file = open_mapped(tgid, mapping, mounts)?;
    let Some([Some(runtime), version]) = dynamic_symbols::find(&file, ["_PyRuntime", "Py_Version"]) else {
        return Ok(Found::None);
    };
    let Some(base) = unwind_info::base(&file, mapping) else { return Ok(Found::None) };
    let (module, at) = (mapping.module(), base.wrapping_add(runtime));
    let Some(mut memory) = ProcessMemory::open(tgid) else { return Ok(Found::None) };
    let told = version.and_then(|version| version_of(memory.word(base.wrapping_add(version))?));
    let Some(version) = told.or_else(|| version_in(&module)) else {
        return Ok(Found::Unknown(format!(
            "{module} of process {tgid} is a Python that does not say which one: its functions have no names"
        )));
    };
    let Some(offsets) = layout::offsets(version, || memory.bytes(at)) else {
        return Ok(Found::Unknown(format!(
            "{module} of process {tgid} is Python {}.{}, whose stacks are not known here: its functions have no names",
            version.0, version.1
        )));
    };
    Ok(Found::Python(Runtime { at, offsets, module }))
}

/// From `PY_VERSION_HEX`, which `Py_Version` has since 3.11.
fn version_of(hex: u64) -> Option<(u8, u8)> {
    (hex >> 24 != 0 && hex >> 32 == 0).then_some(((hex >> 24) as u8, (hex >> 16) as u8))
}

/// From the name of the file, as Python installs it.
fn version_in(module: &str) -> Option<(u8, u8)> {
    let rest = module.trim_start_matches("lib").strip_prefix("python")?;
    let (major, rest) = rest.split_once('.')?;
    let minor = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_number_or_the_name() {
        assert_eq!(version_of(0x030c_01f0), Some((3, 12)));
        assert_eq!((version_of(0), version_of(u64::MAX)), (None, None));
        for (name, version) in [
            ("python3.9", Some((3, 9))),
            ("libpython3.10.so.1.0", Some((3, 10))),
            ("python3.8-dbg", Some((3, 8))),
            ("libpython3.11d.so.1.0", Some((3, 11))),
            ("python3", None),
            ("python", None),
            ("uwsgi", None),
            ("libpython3.1000.so", None),
        ] {
            assert_eq!(version_in(name), version, "{name}");
        }
    }

    #[test]
    fn a_process_without_python_has_none() {
        let mut mounts = MountTables::new();
        assert_eq!(find(std::process::id(), &mut mounts), Found::None);
        assert_eq!(find(u32::MAX, &mut mounts), Found::None);
    }
}
