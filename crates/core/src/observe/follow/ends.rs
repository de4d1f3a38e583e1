//! The other end of a descriptor: from the tables of sockets, and which of the two ends serves the other.
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;

use parshall_evidence::FollowReason;

use crate::sock_diag::UnixSocket;
use crate::sorting::StableSort as _;

/// One end of a socket or pipe, as it stands in /proc/PID/fd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// A socket, by its inode.
    Socket(u64),
    /// The end of a pipe that is read.
    PipeReader(u64),
    /// The end of a pipe that is written.
    PipeWriter(u64),
}

/// A TCP socket of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpEnd {
    /// Inode of its network namespace.
    pub netns: u64,
    /// Its cookie.
    pub cookie: u64,
    /// Inode of its descriptor; 0 while it waits to be accepted.
    pub inode: u64,
    /// Its own address, v4-mapped ones as IPv4.
    pub local: SocketAddr,
    /// The other end's.
    pub remote: SocketAddr,
    /// It is a listener.
    pub listening: bool,
}

/// The part of an end of a connection in its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// This end asks.
    Calls,
    /// This end answers.
    Serves,
    /// A pair of sockets that nobody listened for.
    Either,
}

/// The other end of a socket, as far as it is on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherEnd {
    /// Cookie of the end that was asked about.
    pub own_cookie: u64,
    /// Inode of the other end, 0 when it was not found or waits to be accepted.
    pub inode: u64,
    /// The direction of requests, seen from the end that was asked about.
    pub direction: Direction,
    /// Inodes of the listeners on which this end's calls arrive.
    pub listeners: Vec<u64>,
    /// How whoever holds the other end was found.
    pub reason: FollowReason,
    /// The address of the other end; None for a UNIX socket.
    pub address: Option<SocketAddr>,
}

/// The sockets of some network namespaces at one moment.
#[derive(Debug, Default)]
pub struct Tables {
    /// In the order of (local, remote).
    tcp: Vec<TcpEnd>,
    /// Indices into `tcp`, in the order of the inodes.
    by_inode: Vec<u32>,
    listeners: HashMap<(u64, u16), Vec<u64>>,
    unix: HashMap<u64, UnixSocket>,
    unix_listeners: HashMap<Vec<u8>, Vec<u64>>,
}

impl Tables {
    /// Sorts what was read.
    pub fn new(mut tcp: Vec<TcpEnd>, unix: Vec<UnixSocket>) -> Self {
        tcp.sort_unstable_by_key(|end| (end.local, end.remote, end.netns));
        let mut by_inode: Vec<u32> = (0..tcp.len() as u32).filter(|&i| tcp[i as usize].inode != 0).collect();
        by_inode.sort_unstable_by_key(|&i| tcp[i as usize].inode);
        let mut tables = Self { tcp, by_inode, ..Self::default() };
        for end in tables.tcp.iter().filter(|end| end.listening) {
            tables.listeners.entry((end.netns, end.local.port())).or_default().push(end.inode);
        }
        for end in unix {
            if end.listening {
                tables.unix_listeners.entry(end.name.clone()).or_default().push(end.inode);
            }
            if end.inode != 0 {
                tables.unix.insert(end.inode, end);
            }
        }
        tables
    }

    /// With further TCP sockets, of other namespaces.
    #[must_use]
    pub fn with(self, more: Vec<TcpEnd>) -> Self {
        let mut tcp = self.tcp;
        tcp.extend(more);
        Self::new(tcp, self.unix.into_values().collect())
    }

    /// The listeners: namespace, port, and the inodes of the sockets.
    pub fn listeners(&self) -> impl Iterator<Item = ((u64, u16), &[u64])> + '_ {
        self.listeners.iter().map(|(&at, inodes)| (at, inodes.as_slice()))
    }

    /// The TCP socket with this inode.
    pub fn tcp(&self, inode: u64) -> Option<&TcpEnd> {
        let at = self.by_inode.binary_search_by_key(&inode, |&i| self.tcp[i as usize].inode).ok()?;
        self.tcp.get(self.by_inode[at] as usize)
    }

    /// The UNIX socket with this inode.
    pub fn unix(&self, inode: u64) -> Option<&UnixSocket> {
        self.unix.get(&inode)
    }

    /// The name of a UNIX socket, or of the socket that it is connected to; empty where neither has one.
    pub fn unix_name(&self, inode: u64) -> &[u8] {
        let own = self.unix(inode);
        let other = own.and_then(|own| self.unix(own.peer_inode));
        let mut names = [own, other].into_iter().flatten().map(|end| end.name.as_slice());
        names.find(|name| !name.is_empty()).unwrap_or_default()
    }

    /// The other end of a connected socket, by its inode; None when that is not on this host.
    pub fn other_end(&self, inode: u64) -> Option<OtherEnd> {
        match (self.tcp(inode), self.unix(inode)) {
            (Some(tcp), _) => self.other_tcp_end(tcp),
            (None, Some(unix)) => self.other_unix_end(unix),
            (None, None) => None,
        }
    }

    /// Whether a connection of this host leads from `own` to a TCP socket that none of the tables holds.
    pub fn misses_other_end(&self, inode: u64) -> bool {
        self.tcp(inode).is_some_and(|own| !own.listening && !is_local(own) && self.tcp_peer(own).is_none())
    }

    /// Inodes of the listeners that take connections to `remote`, an address of this host, in a network namespace.
    pub fn listeners_at(&self, netns: u64, remote: SocketAddr) -> &[u64] {
        self.listeners.get(&(netns, remote.port())).map_or(&[], Vec::as_slice)
    }

    fn other_tcp_end(&self, own: &TcpEnd) -> Option<OtherEnd> {
        if own.listening {
            return None;
        }
        let other = self.tcp_peer(own);
        if other.is_none() && !is_local(own) {
            return None;
        }
        let listeners = self.listeners_at(other.map_or(own.netns, |end| end.netns), own.remote);
        let (ours, theirs) = (!self.listeners_at(own.netns, own.local).is_empty(), !listeners.is_empty());
        // Both, or none any more: ports of clients are the high ones.
        let calls = if ours == theirs { own.remote.port() < own.local.port() } else { theirs };
        Some(OtherEnd {
            own_cookie: own.cookie,
            inode: other.map_or(0, |end| end.inode),
            direction: if calls { Direction::Calls } else { Direction::Serves },
            listeners: if calls { listeners.to_vec() } else { Vec::new() },
            reason: FollowReason::TcpServer,
            address: Some(own.remote),
        })
    }

    /// The socket with the addresses exchanged.
    fn tcp_peer(&self, own: &TcpEnd) -> Option<&TcpEnd> {
        let wanted = (own.remote, own.local);
        let begin = self.tcp.partition_point(|end| (end.local, end.remote) < wanted);
        let end = begin + self.tcp[begin..].partition_point(|end| (end.local, end.remote) == wanted);
        other_end(&self.tcp[begin..end], |end| end.netns, own.netns, own.remote)
    }

    fn other_unix_end(&self, own: &UnixSocket) -> Option<OtherEnd> {
        if own.listening || own.peer_inode == 0 {
            return None;
        }
        let other = self.unix(own.peer_inode);
        let direction = unix_direction(own, other, &self.unix_listeners);
        let listeners = match (direction, other) {
            (Direction::Calls, Some(other)) => self.unix_listeners.get(&other.name).cloned().unwrap_or_default(),
            _ => Vec::new(),
        };
        Some(OtherEnd {
            own_cookie: own.cookie,
            inode: own.peer_inode,
            direction,
            listeners,
            reason: FollowReason::UnixSocket,
            address: None,
        })
    }
}

/// The other end of a connection among the sockets with its addresses exchanged: `netns` and `remote` are those of the own
/// end. Loopback addresses mean another host in each namespace; others are the same everywhere, unless two containers of
/// different networks have the same, which then tells nothing.
pub fn other_end<T>(found: &[T], netns_of: impl Fn(&T) -> u64, netns: u64, remote: SocketAddr) -> Option<&T> {
    let here = found.iter().find(|end| netns_of(end) == netns);
    let elsewhere = || match found {
        [only] if !remote.ip().is_loopback() => Some(only),
        _ => None,
    };
    here.or_else(elsewhere)
}

/// The connection ends on this host, whatever the tables hold.
fn is_local(own: &TcpEnd) -> bool {
    own.remote.ip().is_loopback() || own.remote.ip() == own.local.ip()
}

/// An accepted socket has the name of its listener; a client has one only where it bound itself.
fn unix_direction(own: &UnixSocket, other: Option<&UnixSocket>, listeners: &HashMap<Vec<u8>, Vec<u64>>) -> Direction {
    if own.datagram {
        // The connected socket sends; the receiver of datagrams is connected to nobody, as a rule.
        return if other.is_some_and(|end| end.peer_inode == own.inode) { Direction::Either } else { Direction::Calls };
    }
    let others_name = other.map_or(&[][..], |end| end.name.as_slice());
    match (listeners.contains_key(&own.name), listeners.contains_key(others_name)) {
        (true, false) => Direction::Serves,
        (false, true) => Direction::Calls,
        _ => match (own.name.is_empty(), others_name.is_empty()) {
            (false, true) => Direction::Serves,
            (true, false) => Direction::Calls,
            _ => Direction::Either,
        },
    }
}

/// One descriptor of an observed process leads to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lead {
    /// The observed process.
    pub from: u32,
    /// The other one.
    pub to: u32,
    /// How.
    pub reason: FollowReason,
    /// It holds the very other end; otherwise the listener on which such connections arrive.
    pub connected: bool,
}

/// The other ends of the descriptors of observed processes.
#[derive(Debug, Default)]
pub struct Leads {
    /// Processes that the observed ones may wait for.
    pub leads: Vec<Lead>,
    /// Processes that are served by observed ones.
    pub clients: HashSet<u32>,
    /// Cookies of sockets of observed processes, with the holder of the other end.
    pub holders: Vec<(u64, u32)>,
    /// Other ends whose holders are not known, those that observed processes may wait for first.
    pub unknown: Vec<Unknown>,
}

/// An end whose holder is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown {
    /// The end.
    pub end: End,
    /// An observed process may wait for its holder.
    pub awaited: bool,
    /// Its address, for people.
    pub address: Option<SocketAddr>,
}

/// A descriptor of an observed process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The process.
    pub pid: u32,
    /// Its ends of sockets and pipes.
    pub ends: Vec<End>,
}

/// Processes with which one talks through pipes, at most: beyond, it is a supervisor that holds pipes of all its children.
const PIPES_MAX: usize = 4;

/// Finds where descriptors lead. `holders` are the processes that hold an end, the observer excepted; `awaited` are inodes of
/// pipes that an observed thread was seen waiting for.
///
/// A process that is given work through one pipe answers through another. A single pipe is mostly inherited (standard input,
/// output and errors), and then leads to shells and supervisors: it counts only once somebody waits for it.
pub fn leads<'a>(
    observed: &[Held],
    tables: &Tables,
    awaited: &HashSet<u64>,
    holders: &dyn Fn(End) -> &'a [u32],
) -> Leads {
    let mut found = Leads::default();
    for held in observed {
        let (mut readers, mut writers) = (BTreeSet::new(), BTreeSet::new());
        for &end in &held.ends {
            let (others, all, inode) = match end {
                End::Socket(inode) => {
                    found.take_socket(held.pid, tables.other_end(inode), holders);
                    continue;
                }
                End::PipeWriter(inode) => (holders(End::PipeReader(inode)), &mut readers, inode),
                End::PipeReader(inode) => (holders(End::PipeWriter(inode)), &mut writers, inode),
            };
            let others = others.iter().copied().filter(|pid| *pid != held.pid);
            if awaited.contains(&inode) {
                found.leads.extend(others.clone().map(|to| pipe_lead(held.pid, to)));
            }
            all.extend(others);
        }
        let partners: Vec<u32> = readers.intersection(&writers).copied().collect();
        if partners.len() <= PIPES_MAX {
            found.leads.extend(partners.into_iter().map(|to| pipe_lead(held.pid, to)));
        }
    }
    found.unknown.stable_sort_by_key(|unknown| !unknown.awaited);
    found
}

fn pipe_lead(from: u32, to: u32) -> Lead {
    Lead { from, to, reason: FollowReason::Pipe, connected: true }
}

impl Leads {
    fn take_socket<'a>(&mut self, from: u32, other: Option<OtherEnd>, holders: &dyn Fn(End) -> &'a [u32]) {
        let Some(other) = other else { return };
        let awaited = other.direction != Direction::Serves;
        let connected = if other.inode == 0 { &[][..] } else { holders(End::Socket(other.inode)) };
        if let Some(&holder) = connected.first() {
            self.holders.push((other.own_cookie, holder));
        } else if other.inode != 0 {
            self.unknown.push(Unknown { end: End::Socket(other.inode), awaited, address: other.address });
        }
        if !awaited {
            self.clients.extend(connected.iter().filter(|pid| **pid != from));
            return;
        }
        let lead = |to: u32, connected| Lead { from, to, reason: other.reason, connected };
        self.leads.extend(connected.iter().map(|&pid| lead(pid, true)));
        for listener in &other.listeners {
            let accepting = holders(End::Socket(*listener));
            if accepting.is_empty() && connected.is_empty() {
                self.unknown.push(Unknown { end: End::Socket(*listener), awaited, address: other.address });
            }
            self.leads.extend(accepting.iter().map(|&pid| lead(pid, false)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(netns: u64, inode: u64, local: &str, remote: &str) -> TcpEnd {
        let address = |text: &str| text.parse().expect("an address");
        let listening = remote.is_empty();
        let remote = if listening { "0.0.0.0:0" } else { remote };
        TcpEnd { netns, cookie: inode + 1000, inode, local: address(local), remote: address(remote), listening }
    }

    fn unix(inode: u64, peer_inode: u64, name: &str) -> UnixSocket {
        UnixSocket {
            cookie: inode + 1000,
            inode,
            peer_inode,
            listening: peer_inode == 0,
            datagram: false,
            name: name.as_bytes().to_vec(),
        }
    }

    #[test]
    fn the_end_at_a_listener_serves() {
        let tables = Tables::new(
            vec![
                tcp(1, 10, "0.0.0.0:5432", ""),
                tcp(1, 11, "127.0.0.1:5432", "127.0.0.1:40000"),
                tcp(1, 12, "127.0.0.1:40000", "127.0.0.1:5432"),
            ],
            vec![],
        );
        let asks = tables.other_end(12).expect("both ends are here");
        assert_eq!((asks.direction, asks.inode, asks.own_cookie), (Direction::Calls, 11, 1012));
        assert_eq!(asks.listeners, [10]);
        let answers = tables.other_end(11).expect("both ends are here");
        assert_eq!((answers.direction, answers.inode), (Direction::Serves, 12));
        assert!(answers.listeners.is_empty());
        assert_eq!(tables.other_end(10), None, "a listener has no other end");
    }

    #[test]
    fn a_listener_stands_for_an_end_that_is_gone_or_not_accepted() {
        let tables = Tables::new(
            vec![
                tcp(1, 10, "0.0.0.0:80", ""),
                tcp(1, 0, "127.0.0.1:80", "127.0.0.1:40000"),
                tcp(1, 12, "127.0.0.1:40000", "127.0.0.1:80"),
                tcp(1, 13, "10.0.0.1:40001", "10.0.0.1:80"),
            ],
            vec![],
        );
        for inode in [12, 13] {
            let other = tables.other_end(inode).expect("of this host");
            assert_eq!((other.inode, &other.listeners[..]), (0, &[10][..]));
        }
    }

    #[test]
    fn other_namespaces_are_searched_except_for_loopback() {
        let tables = Tables::new(
            vec![
                tcp(1, 11, "10.0.0.1:40000", "10.0.0.2:80"),
                tcp(2, 12, "10.0.0.2:80", "10.0.0.1:40000"),
                tcp(2, 13, "0.0.0.0:80", ""),
                tcp(1, 14, "127.0.0.1:40000", "127.0.0.1:80"),
                tcp(2, 15, "127.0.0.1:80", "127.0.0.1:40000"),
                tcp(1, 16, "10.0.0.1:40001", "10.0.0.9:80"),
                tcp(1, 17, "10.0.0.1:40002", "10.0.0.2:80"),
                tcp(2, 18, "10.0.0.2:80", "10.0.0.1:40002"),
                tcp(3, 19, "10.0.0.2:80", "10.0.0.1:40002"),
            ],
            vec![],
        );
        let across = tables.other_end(11).expect("in the other namespace");
        assert_eq!((across.inode, across.direction, &across.listeners[..]), (12, Direction::Calls, &[13][..]));
        assert_eq!(tables.other_end(14).expect("loopback").inode, 0, "another namespace's loopback is another host");
        assert_eq!(tables.other_end(16), None, "of another host");
        assert_eq!(tables.other_end(17), None, "two containers with the same address");
        assert!(tables.misses_other_end(16) && !tables.misses_other_end(11) && !tables.misses_other_end(14));
    }

    #[test]
    fn ends_of_unix_sockets_by_their_names() {
        let log = UnixSocket { datagram: true, listening: false, ..unix(30, 0, "/dev/log") };
        let logs = UnixSocket { datagram: true, ..unix(31, 30, "") };
        let tables = Tables::new(
            vec![],
            vec![unix(20, 0, "/db"), unix(21, 22, "/db"), unix(22, 21, ""), log, logs, unix(40, 41, "")],
        );
        let directions = [21, 22, 31, 40].map(|inode| tables.other_end(inode).map(|other| other.direction));
        let wanted = [Direction::Serves, Direction::Calls, Direction::Calls, Direction::Either];
        assert_eq!(directions, wanted.map(Some));
        assert_eq!(tables.other_end(22).expect("connected").listeners, [20]);
        assert_eq!(
            [21, 22, 31, 40, 99].map(|inode| tables.unix_name(inode)),
            [&b"/db"[..], b"/db", b"/dev/log", b"", b""]
        );
        assert_eq!(tables.other_end(20), None);
        assert_eq!(tables.other_end(30), None);
    }

    fn holders_of(all: &[(End, &'static [u32])]) -> impl Fn(End) -> &'static [u32] {
        let all: HashMap<End, &'static [u32]> = all.iter().copied().collect();
        move |end| all.get(&end).copied().unwrap_or_default()
    }

    #[test]
    fn servers_are_leads_and_clients_are_not() {
        let tables = Tables::new(
            vec![
                tcp(1, 10, "0.0.0.0:80", ""),
                tcp(1, 11, "127.0.0.1:80", "127.0.0.1:40000"),
                tcp(1, 12, "127.0.0.1:40000", "127.0.0.1:80"),
                tcp(1, 20, "0.0.0.0:5432", ""),
                tcp(1, 21, "127.0.0.1:5432", "127.0.0.1:40001"),
                tcp(1, 22, "127.0.0.1:40001", "127.0.0.1:5432"),
                tcp(1, 23, "127.0.0.1:5432", "127.0.0.1:40002"),
                tcp(1, 24, "127.0.0.1:40002", "127.0.0.1:5432"),
            ],
            vec![],
        );
        let holders = holders_of(&[
            (End::Socket(10), &[100]),
            (End::Socket(11), &[100]),
            (End::Socket(12), &[7]),
            (End::Socket(20), &[200]),
            (End::Socket(21), &[201]),
            (End::Socket(22), &[100]),
            (End::Socket(24), &[100]),
        ]);
        let ends = [10, 11, 22, 24].map(End::Socket).to_vec();
        let found = leads(&[Held { pid: 100, ends }], &tables, &HashSet::new(), &holders);
        let lead = |to, connected| Lead { from: 100, to, reason: FollowReason::TcpServer, connected };
        assert_eq!(found.leads, [lead(201, true), lead(200, false), lead(200, false)]);
        assert_eq!(found.clients, HashSet::from([7]));
        assert_eq!(found.holders, [(1011, 7), (1022, 201)]);
        assert_eq!(found.unknown.iter().map(|u| (u.end, u.awaited)).collect::<Vec<_>>(), [(End::Socket(23), true)]);
    }

    #[test]
    fn a_pipe_leads_to_who_answers_and_to_who_is_awaited() {
        let holders = holders_of(&[
            (End::PipeWriter(1), &[1]),
            (End::PipeReader(1), &[2]),
            (End::PipeWriter(4), &[1, 2]),
            (End::PipeReader(5), &[3]),
        ]);
        let ends = vec![End::PipeWriter(1), End::PipeReader(4), End::PipeWriter(5)];
        let to = |awaited: &[u64]| {
            let awaited = awaited.iter().copied().collect();
            let found = leads(&[Held { pid: 1, ends: ends.clone() }], &Tables::default(), &awaited, &holders);
            found.leads.iter().map(|lead| lead.to).collect::<Vec<_>>()
        };
        assert_eq!(to(&[]), [2], "3 does not answer: it may be the log");
        assert_eq!(to(&[5]), [3, 2]);
    }

    #[test]
    fn pipes_of_a_supervisor_lead_nowhere() {
        let holders = |end: End| match end {
            End::PipeReader(_) | End::PipeWriter(_) => &[10, 11, 12, 13, 14][..],
            End::Socket(_) => &[],
        };
        let held = Held { pid: 1, ends: vec![End::PipeReader(1), End::PipeWriter(2)] };
        assert_eq!(leads(&[held], &Tables::default(), &HashSet::new(), &holders).leads, []);
    }
}
