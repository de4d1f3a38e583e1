//! Socket tables of the network namespaces in which observed processes have sockets.
use std::collections::{BTreeMap, BTreeSet, HashMap};

use parshall_core::observe::follow::ends::{End, Held, Tables, TcpEnd};
use parshall_core::sock_diag::UnixSocket;
use parshall_evidence::socket::selection::state::LISTEN;
use parshall_evidence::socket::{Groups, Selection};
use parshall_host::tcp_diag::{TcpDiag, TcpSocket, states};
use parshall_host::unix_diag::UnixDiag;

use crate::subject::Namespace;

/// TCP sockets that are kept of one dump: 88 bytes each.
const SOCKETS_MAX: usize = 400_000;
/// Namespaces whose sockets stay open for the next dump: two descriptors each.
const OPEN_MAX: usize = 64;

/// Open SOCK_DIAG sockets, by the namespace that they show.
#[derive(Debug, Default)]
pub struct Sockets {
    open: HashMap<u64, (TcpDiag, Option<UnixDiag>)>,
    refused: BTreeSet<u64>,
}

impl Sockets {
    /// The sockets of the namespaces `own`; of those of `elsewhere`; and of all others of `known`, if a connection of `held` leads
    /// there. `known` has a process for each namespace.
    pub fn read(
        &mut self,
        own: &BTreeSet<u64>,
        known: &BTreeMap<u64, u32>,
        held: &[Held],
        elsewhere: &BTreeSet<u64>,
    ) -> Tables {
        let (mut tcp, mut unix) = (Vec::new(), Vec::new());
        for &netns in own {
            self.dump(netns, known, &mut tcp, Some(&mut unix));
        }
        let tables = Tables::new(tcp, unix);
        let sockets = held.iter().flat_map(|held| &held.ends);
        let leaves = |end: &End| matches!(*end, End::Socket(inode) if tables.misses_other_end(inode));
        let all = sockets.into_iter().any(leaves);
        if known.keys().all(|netns| own.contains(netns)) || !all && elsewhere.is_empty() {
            return tables;
        }
        let mut others = Vec::new();
        let wanted = |netns: &&u64| !own.contains(netns) && (all || elsewhere.contains(netns));
        for &netns in known.keys().filter(wanted) {
            self.dump(netns, known, &mut others, None);
        }
        tables.with(others)
    }

    /// How many namespaces could not be entered.
    pub fn refused(&self) -> usize {
        self.refused.len()
    }

    fn dump(
        &mut self,
        netns: u64,
        known: &BTreeMap<u64, u32>,
        tcp: &mut Vec<TcpEnd>,
        unix: Option<&mut Vec<UnixSocket>>,
    ) {
        let opened = match self.open.remove(&netns) {
            Some(open) => Some(open),
            None => known.get(&netns).and_then(|&pid| open(netns, pid)),
        };
        let Some((mut tcp_diag, mut unix_diag)) = opened else {
            self.refused.insert(netns);
            return;
        };
        let selection =
            Selection { groups: Groups::IDENTITY, states: states::CONNECTED | states::LISTEN, ..Selection::default() };
        let mut take = |socket: &TcpSocket| {
            if tcp.len() < SOCKETS_MAX {
                tcp.push(tcp_end(netns, socket));
            }
        };
        // A dump that fails half way leaves its socket unusable.
        let whole = tcp_diag.each(&selection, &mut take).is_ok();
        if let (Some(unix), Some(diag)) = (unix, &mut unix_diag) {
            match diag.dump() {
                Ok(found) => unix.extend(found),
                Err(_) => unix_diag = None,
            }
        }
        if whole && self.open.len() < OPEN_MAX {
            self.open.insert(netns, (tcp_diag, unix_diag));
        }
    }
}

fn open(netns: u64, pid: u32) -> Option<(TcpDiag, Option<UnixDiag>)> {
    let namespace = Namespace::of_process(pid, netns)?;
    Some((namespace.open_diag().ok()?, namespace.open_unix_diag().ok()))
}

fn tcp_end(netns: u64, socket: &TcpSocket) -> TcpEnd {
    TcpEnd {
        netns,
        cookie: socket.record.cookie,
        inode: u64::from(socket.record.inode),
        local: socket.local(),
        remote: socket.remote(),
        listening: socket.record.state == LISTEN,
    }
}
