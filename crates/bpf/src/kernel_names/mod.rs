//! Names of kernel functions, one by one.
//!
//! /proc/kallsyms has all names at once: the kernel formats 150,000 lines, 60 ms of CPU time, for a few dozen addresses. A BPF
//! program has them looked up by `bpf_snprintf("%ps")` instead.
use std::io;
use std::mem::MaybeUninit;

use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::load::{refused, unsignalled};

#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/kernel_names.skel.rs"));
}
use skel::KernelNamesSkelBuilder;

/// The names of addresses of kernel code, in order: of functions without their modules and without the offset. None where there is
/// no function.
///
/// # Errors
/// If the program cannot be loaded: without CAP_BPF and CAP_PERFMON, and before Linux 5.14.
pub fn names(addresses: &[u64]) -> io::Result<Vec<Option<String>>> {
    let mut object = MaybeUninit::uninit();
    let open = KernelNamesSkelBuilder::default().open(&mut object).map_err(refused)?;
    let mut skel = unsignalled(|| open.load()).map_err(refused)?;
    let mut names = Vec::with_capacity(addresses.len());
    let at_once = skel.maps.bss_data.as_deref().map_or(1, |data| data.job.addresses.len());
    for part in addresses.chunks(at_once) {
        if let Some(data) = skel.maps.bss_data.as_deref_mut() {
            data.job.addresses.fill(0);
            data.job.addresses[..part.len()].copy_from_slice(part);
        }
        skel.progs.name_all.test_run(ProgramInput::default()).map_err(refused)?;
        let data = skel.maps.bss_data.as_deref().ok_or(io::ErrorKind::NotFound)?;
        names.extend(data.job.names[..part.len()].iter().map(|name| decode(&name.map(|c| c as u8))));
    }
    Ok(names)
}

/// `function` or `function [module]`; an address that is none is printed as a number.
fn decode(printed: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(printed.split(|byte| *byte == 0).next()?).into_owned();
    let name = text.split(' ').next()?;
    (!name.is_empty() && !name.starts_with("0x")).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_without_modules_and_numbers_are_none() {
        assert_eq!(decode(b"tcp_sendmsg\0garbage").as_deref(), Some("tcp_sendmsg"));
        assert_eq!(decode(b"veth_xmit [veth]\0").as_deref(), Some("veth_xmit"));
        assert_eq!(decode(b"0xffffffff81000001\0"), None);
        assert_eq!(decode(b"\0"), None);
    }

    #[test]
    fn the_names_are_those_of_kallsyms() {
        const WHAT: &str = "names of kernel functions by BPF";
        if !parshall_testkit::root(WHAT) {
            return;
        }
        let text = std::fs::read_to_string("/proc/kallsyms").expect("readable");
        let of = |name: &str| {
            let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let line = lines.find(|fields| fields.get(2) == Some(&name)).expect("a function of every kernel");
            u64::from_str_radix(line[0], 16).expect("an address")
        };
        let wanted = ["tcp_sendmsg", "tcp_recvmsg", "tcp_v4_rcv"];
        // More than one run has room for.
        let functions = wanted.map(|name| of(name) + 4);
        let addresses: Vec<u64> = functions.into_iter().cycle().take(300).chain([16]).collect();
        let found = names(&addresses).expect("loads");
        for (name, found) in wanted.iter().cycle().zip(&found[..300]) {
            assert_eq!(found.as_deref(), Some(*name));
        }
        assert_eq!(found[300], None);
    }
}
