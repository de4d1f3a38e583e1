//! Tells the probes the kinds of the subject's descriptors: without BTF they cannot find the file of a descriptor.
//!
//! During a slice the probes follow accept, socket and close by themselves; this finds the rest.
use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};

use parshall_bpf::diagnose::classic::Classic;
use parshall_evidence::FdKind;
use parshall_sys::clock::thread_cpu_ns;

use crate::procfs::blocked_in::kind_of_link;
use crate::subject::Process;

/// The most descriptors that are read, of all processes together.
const FDS_MAX: usize = 8192;
/// The shortest time between two scans, and how many times the cost of a scan it is at least.
const EVERY_NS: u64 = 500_000_000;
const COST_FACTOR: u64 = 200;

/// The known descriptors.
#[derive(Debug, Default)]
pub struct Kinds {
    /// With a number that stands for what the descriptor was: a path may have 4 KiB.
    known: HashMap<(u32, u32), (u64, FdKind)>,
    numbers: RandomState,
    next_ns: u64,
}

impl Kinds {
    /// Prepares the next window, whose clock begins anew: a scan is due.
    pub fn renew(&mut self) {
        self.next_ns = 0;
    }

    /// Scans all descriptors, if a scan is due.
    pub fn refresh(&mut self, classic: &Classic, processes: &[Process], now_ns: u64) {
        if now_ns < self.next_ns {
            return;
        }
        let began = thread_cpu_ns();
        let before = std::mem::take(&mut self.known);
        for process in processes {
            let entries = fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten().flatten();
            for entry in entries {
                if self.known.len() >= FDS_MAX {
                    break;
                }
                let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
                let Ok(link) = fs::read_link(entry.path()) else { continue };
                let (key, number) = ((process.pid, fd), self.numbers.hash_one(&link));
                let kind = match before.get(&key) {
                    Some((same, kind)) if *same == number => *kind,
                    _ => kind_of_link(&entry.path().to_string_lossy(), &link.to_string_lossy()),
                };
                classic.set_kind(process.pid, fd, kind as u8);
                self.known.insert(key, (number, kind));
            }
        }
        self.next_ns = now_ns + EVERY_NS.max(thread_cpu_ns().saturating_sub(began) * COST_FACTOR);
    }
}
