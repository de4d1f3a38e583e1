//! Sockets of kinds that are not observed. They are named, so that nobody takes what they carry and wait for as nothing.
use std::collections::BTreeMap;
use std::path::Path;

use parshall_core::units;
use parshall_host::proc_fs;
use parshall_sys::sock_view;

use super::process::Process;
use super::resolved::DESCRIPTORS_FIRST;

/// Sockets that are looked at: each takes some 10 us.
const SOCKETS_MAX: usize = 1_024;
/// Names of protocols as the kernel has them, by their beginnings: those that are observed, and those that carry no requests.
const KNOWN: [&str; 11] = ["TCP", "MPTCP", "UDP", "UNIX", "NETLINK", "PACKET", "RAW", "PING", "ALG", "XDP", "KEY"];

/// The note on the other sockets of these processes.
pub fn note(processes: &[Process]) -> Option<String> {
    let mut by_protocol: BTreeMap<String, u64> = BTreeMap::new();
    let sockets = processes.iter().flat_map(|process| {
        let (sockets, _) = proc_fs::first_sockets(process.pid, DESCRIPTORS_FIRST);
        sockets.into_iter().map(|(fd, _)| format!("/proc/{}/fd/{fd}", process.pid))
    });
    for path in sockets.take(SOCKETS_MAX) {
        if let Ok(name) = sock_view::protocol_name(Path::new(&path)) {
            *by_protocol.entry(name).or_default() += 1;
        }
    }
    sentence(&by_protocol)
}

fn sentence(by_protocol: &BTreeMap<String, u64>) -> Option<String> {
    let others = by_protocol.iter().filter(|(name, _)| !KNOWN.iter().any(|known| name.starts_with(known)));
    let counts: Vec<String> =
        others.map(|(name, n)| format!("{} of {name}", units::plural(*n, "socket", "sockets"))).collect();
    (!counts.is_empty()).then(|| {
        let all = counts.join(" and ");
        format!(
            "{all} could not be observed, nor what waits for them: only TCP, MPTCP, UDP and UNIX sockets are known here"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_named() {
        let of = |names: &[&str]| sentence(&names.iter().map(|name| ((*name).to_owned(), 2)).collect());
        assert_eq!(of(&["TCP", "TCPv6", "MPTCPv6", "UDP", "UNIX-STREAM", "NETLINK", "PACKET"]), None);
        let note = of(&["SMC", "TCP", "AF_VSOCK"]).expect("a note");
        assert!(note.starts_with("2 sockets of AF_VSOCK and 2 sockets of SMC could not be observed"), "{note}");
    }

    #[test]
    fn a_socket_of_another_family_is_found() {
        // SMC, VSOCK, TIPC: what this kernel has.
        let socket = [43, 40, 30].into_iter().find_map(|family| {
            let socket = socket2::Socket::new(family.into(), socket2::Type::STREAM, None);
            socket.ok()
        });
        let Some(socket) = socket else {
            return parshall_testkit::skip(
                "sockets that are not observed",
                "this kernel has neither SMC nor VSOCK nor TIPC",
            );
        };
        let own = Process { pid: std::process::id(), ..Process::default() };
        let note = note(&[own]).expect("a note");
        assert!(note.contains("could not be observed"), "{note}");
        drop(socket);
    }
}
