//! Redirection between TCP sockets in the kernel: the loader of `redirect.bpf.c`.
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenObject};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::bytes;
use crate::load::{refused, unsignalled};

/// The generated skeleton of `redirect.bpf.c`.
#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/redirect.skel.rs"));
}
use skel::{RedirectSkel, RedirectSkelBuilder};

/// `struct direction`: what the program has done with the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Redirected {
    /// Bytes given to the sink.
    pub redirected: u64,
    /// Bytes left to user space.
    pub passed: u64,
    /// Not 0: it redirects no more.
    pub passing: u32,
    begun: u32,
    first: u32,
    pad: u32,
}

/// Sets an entry. libbpf-rs does the same and loses most error numbers on the way.
fn update(map: &MapHandle, key: &[u8], value: &[u8]) -> io::Result<()> {
    assert!(
        map.key_size() as usize == key.len() && map.value_size() as usize == value.len(),
        "as the map was declared"
    );
    let any = MapFlags::ANY.bits();
    // SAFETY: the kernel reads as many bytes of key and value as the map was declared with, which is what they have.
    let ret = unsafe {
        libbpf_sys::bpf_map_update_elem(map.as_fd().as_raw_fd(), key.as_ptr().cast(), value.as_ptr().cast(), any)
    };
    if ret == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-ret)) }
}

/// The program and its maps; what is attached ends with it, and with its sockets.
pub struct Redirect {
    /// Keeps the program alive, which the map of sources only refers to.
    _skel: RedirectSkel<'static>,
    sources: MapHandle,
    sinks: MapHandle,
    directions: MapHandle,
}

impl std::fmt::Debug for Redirect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redirect").finish_non_exhaustive()
    }
}

impl Redirect {
    /// Loads the program. `most` is how many bytes may be on their way to a sink before it counts as too slow.
    /// PermissionDenied: not permitted.
    pub fn load(most: u32) -> io::Result<Self> {
        Self::try_load(most).map_err(refused)
    }

    fn try_load(most: u32) -> Result<Self, libbpf_rs::Error> {
        // One per thread for the life of the process: a page, for a skeleton without a lifetime.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = RedirectSkelBuilder::default().open(storage)?;
        if let Some(data) = open.maps.rodata_data.as_deref_mut() {
            data.most = most;
        }
        let skel = unsignalled(|| open.load())?;
        skel.progs.redirect.attach_sockmap(skel.maps.sources.as_fd().as_raw_fd())?;
        Ok(Self {
            sources: MapHandle::try_from(&skel.maps.sources)?,
            sinks: MapHandle::try_from(&skel.maps.sinks)?,
            directions: MapHandle::try_from(&skel.maps.directions)?,
            _skel: skel,
        })
    }

    /// Redirects from now on what arrives at `source`, whose cookie names the direction. Nothing may wait in it partly
    /// read. What arrived before and was not read is redirected with the next byte that arrives, or when SO_RCVLOWAT is set.
    /// EOPNOTSUPP: not TCP, or not established any more.
    pub fn join(&self, cookie: u64, source: RawFd, sink: RawFd) -> io::Result<()> {
        let key = cookie.to_ne_bytes();
        let fd = |fd: RawFd| u64::from(fd.unsigned_abs()).to_ne_bytes();
        update(&self.directions, &key, Redirected::new_zeroed().as_bytes())?;
        let joined = update(&self.sinks, &key, &fd(sink)).and_then(|()| update(&self.sources, &key, &fd(source)));
        if joined.is_err() {
            // The sink receives as before, for its map has no program.
            let _absent = self.sinks.delete(&key);
            self.part(cookie);
        }
        joined
    }

    /// What became of a direction so far.
    pub fn look(&self, cookie: u64) -> Option<Redirected> {
        bytes::read(&self.directions.lookup(&cookie.to_ne_bytes(), MapFlags::ANY).ok().flatten()?)
    }

    /// Forgets a direction: what arrives passes to the source. The sockets leave the maps when they are closed; taken out
    /// before, what is on its way would be lost.
    pub fn part(&self, cookie: u64) {
        let _absent = self.directions.delete(&cookie.to_ne_bytes());
    }

    /// Directions known.
    pub fn known(&self) -> usize {
        self.directions.keys().count()
    }
}
