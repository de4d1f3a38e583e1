//! The kernel's type information, reduced to what an object asks for, in the form in which libbpf takes it. How it is reduced
//! is the business of `small_btf`; which types an object names, the build writes down.
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Struct;

use crate::small_btf;

const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// A part of the kernel's type information. It counts types in its own way, so an object that is opened with it must take the
/// kernel's own numbers from [`KernelTypes::ids`].
#[derive(Debug)]
pub(crate) struct KernelTypes {
    /// None when the kernel tells its types in a form that is not known here: libbpf then finds them by itself, more slowly.
    file: Option<File>,
    ids: Vec<u32>,
    /// Names of type definitions and enumerations, those among the ones that were asked for.
    named: Vec<String>,
}

impl KernelTypes {
    /// The types of these names, with what they are made of, and the kernel's numbers of the structures `followed`. None when the
    /// kernel does not tell its types.
    pub fn read(names: &[impl AsRef<str>], followed: &[&str]) -> Option<Self> {
        let full = Mapped::open().ok()?;
        let names = names.iter().map(AsRef::as_ref).chain(followed.iter().copied());
        let wanted = names.map(str::as_bytes).collect();
        let followed_names: Vec<&[u8]> = followed.iter().map(|name| name.as_bytes()).collect();
        let reduced = small_btf::reduce(full.bytes(), &wanted, &followed_names);
        match reduced.and_then(|(small, ids)| Some((in_memory(&small)?, ids, small_btf::named_types(&small)?))) {
            Some((file, ids, named)) => Some(Self { file: Some(file), ids, named }),
            None => Some(Self { file: None, ids: ids_by_libbpf(followed)?, named: Vec::new() }),
        }
    }

    /// The kernel's number of each structure of `followed`, 0 for those that it does not have.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Whether the kernel has the type definition or enumeration, which must be one of those asked for; None when that is not known.
    pub fn has(&self, name: &str) -> Option<bool> {
        self.file.as_ref().map(|_| self.named.iter().any(|one| one == name))
    }

    /// The path by which libbpf opens them; valid as long as this is.
    pub fn path(&self) -> Option<CString> {
        let path = format!("/proc/self/fd/{}", self.file.as_ref()?.as_raw_fd());
        CString::new(path).ok()
    }
}

/// Offsets in the kernel's per-CPU data of the variables called `names`, None for those that the kernel does not tell of.
pub(crate) fn per_cpu_offsets(names: &[&str]) -> Vec<Option<u32>> {
    let found = Mapped::open().ok().and_then(|full| small_btf::per_cpu_offsets(full.bytes(), names));
    found.unwrap_or_else(|| vec![None; names.len()])
}

/// The offset of a member of one of the kernel's structures, if the kernel tells it.
pub(crate) fn member_offset(structure: &str, member: &str) -> Option<u32> {
    small_btf::member_offset(Mapped::open().ok()?.bytes(), structure, member)
}

fn in_memory(bytes: &[u8]) -> Option<File> {
    // SAFETY: the name is a NUL-terminated string; the kernel answers with a new descriptor or an error.
    let fd = unsafe { libc::memfd_create(c"parshall-types".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the descriptor is new, so nothing else owns it.
    let mut file = (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })?;
    file.write_all(bytes).ok()?;
    Some(file)
}

fn ids_by_libbpf(followed: &[&str]) -> Option<Vec<u32>> {
    let types = Btf::from_vmlinux().ok()?;
    let id = |name: &&str| types.type_by_name::<Struct<'_>>(name).map_or(0, |found| u32::from(found.type_id()));
    Some(followed.iter().map(id).collect())
}

/// Options for an object that finds its types at `path`, which must outlive the call that takes them.
pub(crate) fn options(path: Option<&CString>) -> libbpf_sys::bpf_object_open_opts {
    let mut options = libbpf_sys::bpf_object_open_opts {
        sz: size_of::<libbpf_sys::bpf_object_open_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    options.btf_custom_path = path.map_or(std::ptr::null(), |path| path.as_ptr());
    options
}

/// All of the kernel's type information: mapped where the kernel can (Linux 6.16), which saves copying 5 MB, else read.
enum Mapped {
    Pages { at: *mut libc::c_void, len: usize },
    Copy(Vec<u8>),
}

impl Mapped {
    fn open() -> io::Result<Self> {
        let file = File::open(VMLINUX)?;
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping of a file that the kernel never changes, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0) };
        if at == libc::MAP_FAILED { Ok(Self::Copy(std::fs::read(VMLINUX)?)) } else { Ok(Self::Pages { at, len }) }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: mapped for as long as this lives, `len` readable bytes that nobody writes.
            Self::Pages { at, len } => unsafe { std::slice::from_raw_parts(at.cast::<u8>().cast_const(), *len) },
            Self::Copy(bytes) => bytes,
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Self::Pages { at, len } = self {
            // SAFETY: the mapping is ours, and nothing borrows from it any more.
            unsafe { libc::munmap(*at, *len) };
        }
    }
}
