//! Loads `loss.bpf.c`, which loses packets of a testbed at the receiver's ingress.
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::load::{refused, unsignalled};

/// The generated skeleton of `loss.bpf.c`.
#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/loss.skel.rs"));
}
use skel::LossSkelBuilder;

/// The most ranges of [`Losses`]: `RANGES_MAX` of the program.
pub const RANGES_MAX: usize = 64;

/// The choice of the packets that are lost.
#[derive(Debug, Clone, Copy)]
pub struct Losses<'a> {
    /// The seed of the direction.
    pub seed: u64,
    /// 32 random bits below this lose a packet; 2^32 loses all.
    pub threshold: u64,
    /// The first and the last number of packets that are lost besides, from 1; at most [`RANGES_MAX`].
    pub ranges: &'a [(u64, u64)],
}

/// The program on one device; dropping it ends the loss. The kernel ends it with the process too.
#[derive(Debug)]
pub struct Loss {
    _link: OwnedFd,
    counters: MapHandle,
}

impl Loss {
    /// Loses packets at the ingress of a device of the calling thread's namespace.
    ///
    /// # Errors
    /// PermissionDenied: a capability is missing. Others: the kernel's error; TCX came with Linux 6.6.
    pub fn attach(device_index: u32, losses: &Losses<'_>) -> io::Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let mut open = LossSkelBuilder::default().open(&mut storage).map_err(refused)?;
        let data = open.maps.rodata_data.as_deref_mut().expect("the object has constants");
        data.seed = losses.seed;
        data.threshold = losses.threshold;
        data.ranges = losses.ranges.len().min(RANGES_MAX) as u32;
        for (to, (first, last)) in data.lost_ranges.iter_mut().zip(losses.ranges) {
            (to.first, to.last) = (*first, *last);
        }
        let skel = unsignalled(|| open.load()).map_err(refused)?;
        let counters = MapHandle::try_from(&skel.maps.bss).map_err(refused)?;
        let program = skel.progs.lose.as_fd().as_raw_fd();
        // SAFETY: the program's descriptor is open, the target is a number, and no options are passed.
        let link = unsafe {
            let target = device_index as libc::c_int;
            libbpf_sys::bpf_link_create(program, target, libbpf_sys::BPF_TCX_INGRESS, std::ptr::null())
        };
        if link < 0 {
            return Err(io::Error::from_raw_os_error(-link));
        }
        // SAFETY: the call returned a new descriptor, and nothing else owns it. The link keeps the program alive.
        Ok(Self { _link: unsafe { OwnedFd::from_raw_fd(link) }, counters })
    }

    /// Begins to count packets from 1 again.
    pub fn restart(&self) -> io::Result<()> {
        let zeroes = vec![0; self.counters.value_size() as usize];
        self.counters.update(&0_u32.to_ne_bytes(), &zeroes, MapFlags::ANY).map_err(refused)
    }

    /// IP packets that have arrived since the start, and those of them that were lost.
    pub fn counts(&self) -> io::Result<(u64, u64)> {
        let value = self.counters.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).map_err(refused)?;
        let number = |at: usize| {
            let bytes = value.as_deref().and_then(|value| value.get(at..at + 8)).unwrap_or_default();
            bytes.try_into().map_or(0, u64::from_ne_bytes)
        };
        // The fields of `struct counts`, which has the section to itself.
        Ok((number(0), number(8)))
    }
}
