//! The two builds of `walk.bpf.c`: by casts (Linux 6.2 and newer), and by copies. Only loading differs; both have the same maps
//! and the same job.
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapImpl, OpenObject};

use crate::kernel_types::{self, KernelTypes};
use crate::load::unsignalled;

/// The request to the program, and the results of a run.
pub use casts::skel::types::walk_job as Job;

/// The maps that both builds have.
pub struct Maps<'a> {
    pub records: &'a MapImpl<'a>,
    pub names: &'a MapImpl<'a>,
    pub ports: &'a MapImpl<'a>,
    pub namespaces_read: &'a MapImpl<'a>,
    pub found: &'a MapImpl<'a>,
    pub wanted_namespaces: &'a MapImpl<'a>,
    pub wanted_cgroups: &'a MapImpl<'a>,
    pub local_prefixes: &'a MapImpl<'a>,
    pub remote_prefixes: &'a MapImpl<'a>,
}

/// A loaded build.
pub trait Program: Send {
    fn maps(&self) -> Maps<'_>;

    /// Descriptor of the program.
    fn fd(&self) -> RawFd;

    fn job(&mut self) -> &mut Job;
}

macro_rules! build {
    ($module:ident, $skel:ident, $builder:ident, $file:literal, $set_ids:expr) => {
        mod $module {
            use super::*;

            #[allow(warnings, clippy::undocumented_unsafe_blocks)]
            pub(super) mod skel {
                include!(concat!(env!("OUT_DIR"), "/", $file));
            }
            use skel::{$builder, $skel};

            // The same C structure, for which each skeleton has a type.
            const _: () = assert!(size_of::<skel::types::walk_job>() == size_of::<Job>());

            impl Program for $skel<'static> {
                fn maps(&self) -> Maps<'_> {
                    let maps = &self.maps;
                    Maps {
                        records: &maps.records,
                        names: &maps.names,
                        ports: &maps.ports,
                        namespaces_read: &maps.namespaces_read,
                        found: &maps.found,
                        wanted_namespaces: &maps.wanted_namespaces,
                        wanted_cgroups: &maps.wanted_cgroups,
                        local_prefixes: &maps.local_prefixes,
                        remote_prefixes: &maps.remote_prefixes,
                    }
                }

                fn fd(&self) -> RawFd {
                    self.progs.walk.as_fd().as_raw_fd()
                }

                fn job(&mut self) -> &mut Job {
                    let job = &mut self.maps.bss_data.as_deref_mut().expect("the object has global data").job;
                    // SAFETY: a job is plain integers, in the layout of the one C structure of both builds (size asserted above).
                    unsafe { &mut *(&raw mut *job).cast::<Job>() }
                }
            }

            pub fn load(batch_max: u32) -> Result<Box<dyn Program>, libbpf_rs::Error> {
                // Leaked, so that the skeleton needs no lifetime: a page, normally once per process.
                let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
                let types = super::super::kernel_types();
                let path = types.and_then(KernelTypes::path);
                let mut open = $builder::default().open_opts(kernel_types::options(path.as_ref()), object)?;
                let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
                let tick = super::super::Tick::of_kernel();
                rodata.batch_max = batch_max;
                let set_ids: fn(&mut skel::types::rodata, &[u32]) = $set_ids;
                set_ids(rodata, types.map_or(&[][..], KernelTypes::ids));
                (rodata.socket_tick_hz, rodata.socket_tick_us, rodata.socket_tick_ms) = (tick.hz, tick.us, tick.ms);
                Ok(Box::new(unsignalled(|| open.load())?))
            }
        }
    };
}

build!(casts, WalkSkel, WalkSkelBuilder, "walk.skel.rs", |rodata, ids| {
    rodata.followed_ids.iter_mut().zip(ids).for_each(|(to, id)| *to = *id);
});
build!(copies, WalkCopiesSkel, WalkCopiesSkelBuilder, "walk_copies.skel.rs", |_, _| {});

/// Loads the build that follows pointers by casts.
pub use casts::load as by_casts;
/// Loads the build that copies structures.
pub use copies::load as by_copies;
