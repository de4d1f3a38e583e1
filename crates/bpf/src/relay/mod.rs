//! Loads `redirect.bpf.c`, which redirects data between TCP sockets in the kernel.
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenObject};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::bytes;
use crate::load::{or_refused, unsignalled};

/// The generated skeleton of `redirect.bpf.c`.
#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/redirect.skel.rs"));
}
use skel::{RedirectSkel, RedirectSkelBuilder};

/// `struct direction`: the counters of one direction of a relayed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Redirected {
    /// Bytes redirected to the sink.
    pub redirected: u64,
    /// Bytes passed to the source's receive queue, for user space to copy.
    pub passed: u64,
    /// Not 0: the program has stopped to redirect this direction.
    pub passing: u32,
    begun: u32,
    first: u32,
    pad: u32,
}

/// Sets an entry. The method of libbpf-rs does not preserve most error numbers.
fn update(map: &MapHandle, key: &[u8], value: &[u8]) -> io::Result<()> {
    assert!(
        map.key_size() as usize == key.len() && map.value_size() as usize == value.len(),
        "key and value have the sizes of the map"
    );
    let any = MapFlags::ANY.bits();
    // SAFETY: the kernel reads as many bytes of key and value as the map declares, which are their lengths (asserted above).
    let ret = unsafe {
        libbpf_sys::bpf_map_update_elem(map.as_fd().as_raw_fd(), key.as_ptr().cast(), value.as_ptr().cast(), any)
    };
    if ret == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-ret)) }
}

/// The loaded program and its maps. Dropping it detaches the program from all sockets.
pub struct Redirect {
    /// Keeps the program alive.
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
    /// Loads the program. A direction is no longer redirected when more than `max_in_flight` bytes were redirected and not yet
    /// written to the sink's send queue.
    ///
    /// # Errors
    /// PermissionDenied: a capability is missing. Others: the kernel's error.
    pub fn load(max_in_flight: u32) -> io::Result<Self> {
        or_refused(|| Self::try_load(max_in_flight))
    }

    fn try_load(max_in_flight: u32) -> Result<Self, libbpf_rs::Error> {
        // Leaked, so that the skeleton needs no lifetime: a page, once per worker thread.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = RedirectSkelBuilder::default().open(storage)?;
        if let Some(data) = open.maps.rodata_data.as_deref_mut() {
            data.max_in_flight = max_in_flight;
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

    /// Redirects data that arrives at `source` to `sink` from now on. `cookie` is the cookie of `source` and the key of the
    /// direction. The source's receive queue must not begin with a segment that was partly read. Data that is already in the
    /// queue is redirected when more data arrives or SO_RCVLOWAT is set.
    ///
    /// # Errors
    /// EOPNOTSUPP: not a TCP socket, or not established any more.
    pub fn redirect(&self, cookie: u64, source: RawFd, sink: RawFd) -> io::Result<()> {
        let key = cookie.to_ne_bytes();
        let fd = |fd: RawFd| u64::from(fd.unsigned_abs()).to_ne_bytes();
        update(&self.directions, &key, Redirected::new_zeroed().as_bytes())?;
        let added = update(&self.sinks, &key, &fd(sink)).and_then(|()| update(&self.sources, &key, &fd(source)));
        if added.is_err() {
            // The map of sinks has no program, so the sink receives as before.
            let _absent = self.sinks.delete(&key);
            self.forget(cookie);
        }
        added
    }

    /// The counters of a direction; `None` if it is not in the map.
    pub fn counters(&self, cookie: u64) -> Option<Redirected> {
        bytes::read(&self.directions.lookup(&cookie.to_ne_bytes(), MapFlags::ANY).ok().flatten()?)
    }

    /// Stops to redirect a direction: data that arrives goes to the source's receive queue. The sockets stay in the maps until
    /// they are closed, because removing them would lose data that was redirected and not yet written to the sink.
    pub fn forget(&self, cookie: u64) {
        let _absent = self.directions.delete(&cookie.to_ne_bytes());
    }

    /// The number of directions that are redirected or were passed to user space.
    pub fn directions(&self) -> usize {
        self.directions.keys().count()
    }
}
