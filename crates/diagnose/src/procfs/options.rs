//! Reads what SOCK_DIAG does not report of a socket: whether Nagle's algorithm is on and which buffers are locked.
//!
//! The descriptor is duplicated for two getsockopt calls and closed at once (pidfd_getfd, Linux 5.6). It needs the right to
//! trace the process; without it the options stay unknown.
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use parshall_host::proc_fs;
use parshall_sys::pidfd::Pidfd;
use parshall_sys::sock_view;

use super::flow_track::Track;

/// Processes that are kept open.
const PROCESSES_MAX: usize = 64;

/// Reads socket options in other processes.
#[derive(Debug, Default)]
pub struct OptionReader {
    processes: HashMap<u32, Option<Pidfd>>,
    /// Number of refusals by the kernel.
    pub refused: u64,
}

impl OptionReader {
    /// Reads the options of a flow, if its owner and descriptor are known.
    pub fn read(&mut self, track: &mut Track) {
        if track.pid == 0 || track.fd < 0 || track.inode == 0 {
            return;
        }
        if self.processes.len() >= PROCESSES_MAX && !self.processes.contains_key(&track.pid) {
            return;
        }
        let open = || proc_fs::has_our_numbers().then(|| Pidfd::open(track.pid).ok()).flatten();
        let process = self.processes.entry(track.pid).or_insert_with(open);
        let Some(Ok(copy)) = process.as_ref().map(|process| process.get_socket(track.fd)) else {
            self.refused += 1;
            return;
        };
        let copy = File::from(copy);
        // The descriptor may have been closed and used again meanwhile.
        if copy.metadata().is_ok_and(|metadata| metadata.ino() == track.inode)
            && let Ok(nonagle) = sock_view::nonagle(copy.as_fd())
        {
            track.set_options(nonagle, sock_view::buffer_locks(copy.as_fd()).unwrap_or(0));
        }
    }
}
