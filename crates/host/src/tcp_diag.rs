//! State and counters of the TCP sockets of one network namespace, by SOCK_DIAG. For callers that need few sockets; `parshall sockets` reads whole hosts with several threads.
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use parshall_core::sock_diag::{Layout, Message, Messages, Reading, SocketId, Table, decode, push_get, tables};
use parshall_evidence::socket::selection::state as number;
use parshall_evidence::socket::{Group, Groups, Kind, Kinds, Selection, SocketRecord};
use parshall_sys::sock_diag::Reader;

use crate::sock_diag_dump::Dumper;

/// TCP states (net/tcp_states.h) as bits of [`Selection::states`].
pub mod states {
    use super::number;

    /// All states in which a connection has a full socket: all except TIME_WAIT, NEW_SYN_RECV, LISTEN and CLOSE.
    pub const CONNECTED: u32 = 1 << number::ESTABLISHED
        | 1 << number::SYN_SENT
        | 1 << number::SYN_RECV
        | 1 << number::FIN_WAIT1
        | 1 << number::FIN_WAIT2
        | 1 << number::CLOSE_WAIT
        | 1 << number::LAST_ACK
        | 1 << number::CLOSING;
    /// Listening sockets.
    pub const LISTEN: u32 = 1 << number::LISTEN;
}

/// Requests sent at once by [`TcpDiag::get`]. Each answer is charged about 2 KiB against the socket's receive buffer
/// (208 KiB by default), and the kernel drops what does not fit.
const GET_BATCH: usize = 32;

/// End of `snd_wnd` in `struct tcp_info` (Linux 5.4).
const SND_WND_END: usize = 232;

/// A socket as SOCK_DIAG reports it: TCP, or UDP where that was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpSocket {
    /// Its fields; those that were not requested are 0.
    pub record: SocketRecord,
    /// Length of the kernel's `struct tcp_info`; 0 when there was none.
    pub tcp_info_bytes: usize,
    /// It is a listener that a process holds as MPTCP, or a subflow of such a connection.
    pub mptcp: bool,
}

impl TcpSocket {
    /// The identity of the socket in SOCK_DIAG requests.
    pub fn id(&self) -> SocketId {
        SocketId::of(&self.record)
    }

    /// The local address, with v4-mapped IPv6 addresses as IPv4.
    pub fn local(&self) -> SocketAddr {
        canonical(self.id().local)
    }

    /// The peer's address, with v4-mapped IPv6 addresses as IPv4.
    pub fn remote(&self) -> SocketAddr {
        canonical(self.id().remote)
    }

    /// The peer's receive window in bytes; `None` where the kernel does not report it.
    pub fn snd_wnd(&self) -> Option<u32> {
        (self.tcp_info_bytes >= SND_WND_END).then_some(self.record.snd_wnd)
    }

    fn decode(table: Table, payload: &[u8], groups: Groups) -> Option<Self> {
        let mut record = SocketRecord::default();
        // AccECN, the one group whose layout depends on the release, is not among those that callers ask for.
        let reading = Reading { groups, layout: Layout::default() };
        let tcp_info_bytes = decode(table, payload, &reading, &mut record, &mut Vec::new())?;
        Some(Self { record, tcp_info_bytes, mptcp: false })
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// An open SOCK_DIAG socket that reads the TCP sockets of the network namespace it was opened in.
#[derive(Debug)]
pub struct TcpDiag {
    dumper: Dumper,
    /// The namespace has sockets of MPTCP.
    mptcp: bool,
}

/// Sockets that processes have open as MPTCP. TCP's tables have the subflows, which no process holds itself.
#[derive(Debug, Default)]
struct Mptcp {
    /// Inodes of listeners by local address.
    listeners: HashMap<SocketAddr, u32>,
    /// Of connections the memory of unread data, by inode: the kernel takes the data of subflows as it arrives.
    unread: HashMap<u32, u32>,
}

impl Mptcp {
    fn add(&mut self, record: &SocketRecord) {
        if record.state == number::LISTEN {
            self.listeners.insert(canonical(SocketId::of(record).local), record.inode);
        } else {
            self.unread.insert(record.inode, record.rqueue_bytes);
        }
    }

    /// Gives the socket of a subflow what the process sees of it.
    fn complete(&self, socket: &mut TcpSocket) {
        let local = socket.local();
        let record = &mut socket.record;
        if record.state == number::LISTEN {
            if let Some(inode) = self.listeners.get(&local) {
                (record.inode, socket.mptcp) = (*inode, true);
            }
        } else if let Some(unread) = self.unread.get(&record.inode) {
            record.rqueue_bytes = record.rqueue_bytes.max(*unread);
            socket.mptcp = true;
        }
    }
}

impl TcpDiag {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel has no SOCK_DIAG, or no descriptor is left.
    pub fn open() -> io::Result<Self> {
        Ok(Self { dumper: Dumper::open()?, mptcp: false })
    }

    /// Appends the TCP sockets of a selection, or its UDP sockets if it selects those, to `out`. Its fields, states and ports are
    /// applied by the kernel, its other rules are ignored. Returns whether the tables changed during the dump so that sockets may
    /// be missing.
    ///
    /// # Errors
    /// The kernel refused the request, or dropped a part of the reply (ENOBUFS).
    pub fn dump(&mut self, selection: &Selection, out: &mut Vec<TcpSocket>) -> io::Result<bool> {
        self.each(selection, &mut |socket| out.push(*socket))
    }

    /// As [`TcpDiag::dump`], one by one: a record takes half a kilobyte, and hosts have hundreds of thousands.
    ///
    /// # Errors
    /// As [`TcpDiag::dump`].
    pub fn each(&mut self, selection: &Selection, take: &mut dyn FnMut(&TcpSocket)) -> io::Result<bool> {
        let mut interrupted = false;
        let mptcp = self.mptcp(selection);
        for asked in tables(selection).into_iter().filter(|asked| matches!(asked.table, Table::Tcp | Table::Udp)) {
            interrupted |= self.dumper.dump(asked, selection, &mut |payload| {
                if let Some(mut socket) = TcpSocket::decode(asked.table, payload, selection.groups) {
                    mptcp.complete(&mut socket);
                    take(&socket);
                }
            })?;
        }
        Ok(interrupted)
    }

    /// The sockets of MPTCP that a selection of TCP's subflows needs; asked for again and again only where there were some.
    fn mptcp(&mut self, selection: &Selection) -> Mptcp {
        let mut found = Mptcp::default();
        let asks = self.mptcp || selection.states & states::LISTEN != 0;
        if !selection.kinds.has(Kind::Tcp) || !asks {
            return found;
        }
        let of_mptcp = Selection {
            kinds: Kinds::of([Kind::Mptcp]),
            groups: Groups::of([Group::Queues]),
            states: states::CONNECTED | states::LISTEN,
            ports: selection.ports.clone(),
            ..Selection::default()
        };
        for asked in tables(&of_mptcp) {
            let mut add = |payload: &[u8]| {
                if let Some(socket) = TcpSocket::decode(Table::Mptcp, payload, of_mptcp.groups) {
                    found.add(&socket.record);
                    self.mptcp = true;
                }
            };
            // Kernels without MPTCP, or that do not tell of it, refuse.
            self.dumper.dump(asked, &of_mptcp, &mut add).ok();
        }
        found
    }

    /// Looks up single sockets without a dump of the tables. Appends a result for each of `ids`, `None` if it is gone.
    ///
    /// # Errors
    /// As [`TcpDiag::dump`].
    pub fn get(&mut self, ids: &[SocketId], groups: Groups, out: &mut Vec<Option<TcpSocket>>) -> io::Result<()> {
        let Dumper { reader, sequence, request } = &mut self.dumper;
        for batch in ids.chunks(GET_BATCH) {
            let first = sequence.wrapping_add(1);
            request.clear();
            for id in batch {
                *sequence = sequence.wrapping_add(1);
                push_get(request, *sequence, id, groups);
            }
            reader.ask(request)?;
            let begin = out.len();
            out.resize(begin + batch.len(), None);
            let mut missing = batch.len();
            while missing > 0 {
                reader.receive(&mut |part| {
                    let mut messages = Messages::of_requests(part, first, batch.len() as u32);
                    while let Some(message) = messages.next() {
                        missing = missing.saturating_sub(1);
                        if let Message::Socket(payload) = message {
                            out[begin + messages.request() as usize] = TcpSocket::decode(Table::Tcp, payload, groups);
                        }
                    }
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use parshall_evidence::socket::Side;

    use super::*;

    fn pair() -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let (server, _) = listener.accept().expect("a connection waits");
        (listener, client, server)
    }

    fn of_port(port: u16, states: u32, groups: Groups) -> Selection {
        Selection { groups, states, ports: vec![(Side::Either, port)], ..Selection::default() }
    }

    #[test]
    fn dumps_both_ends_of_a_connection_by_port() {
        let (listener, mut client, _server) = pair();
        let port = listener.local_addr().expect("bound").port();
        client.write_all(b"twelve bytes").expect("loopback");
        let mut diag = TcpDiag::open().expect("SOCK_DIAG needs no privilege");
        let mut found = Vec::new();
        let selection = of_port(port, states::CONNECTED | states::LISTEN, Groups::ALL);
        diag.dump(&selection, &mut found).expect("a dump");
        assert_eq!(found.len(), 3, "listener and two ends: {found:?}");
        let server = found.iter().find(|s| s.record.state == 1 && s.local().port() == port).expect("the server's end");
        assert_eq!(server.record.rqueue_bytes, 12);
        assert_ne!(server.record.inode, 0);
        assert_ne!(server.record.cookie, 0);
        assert_eq!((server.record.state, server.record.bytes_received), (1, 12));
        assert!(server.record.rcvbuf_bytes > 0);
        assert_ne!(server.record.congestion[0], 0);
        let client = found.iter().find(|s| s.remote().port() == port && s.record.state == 1).expect("the client's end");
        assert!(client.tcp_info_bytes > 0 && client.snd_wnd().is_none_or(|wnd| wnd > 0));
    }

    #[test]
    fn a_listener_of_mptcp_is_that_which_its_process_holds() {
        use socket2::{Domain, Protocol, Socket, Type};
        let Ok(listener) = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)) else {
            return parshall_testkit::skip("listeners of MPTCP", "this kernel has no MPTCP");
        };
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        listener.listen(8).expect("a listener");
        let port = listener.local_addr().expect("bound").as_socket().expect("IPv4").port();
        let held = crate::proc_fs::sockets(std::process::id());
        let (_, inode) = held.iter().find(|(fd, _)| *fd == listener.as_raw_fd()).expect("our descriptor");
        let _client = TcpStream::connect(("127.0.0.1", port)).expect("loopback");
        let (server, _) = listener.accept().expect("a connection waits");
        let mut diag = TcpDiag::open().expect("SOCK_DIAG needs no privilege");
        let mut found = Vec::new();
        let selection = of_port(port, states::CONNECTED | states::LISTEN, Groups::IDENTITY);
        diag.dump(&selection, &mut found).expect("a dump");
        let listening: Vec<u64> =
            found.iter().filter(|s| s.record.state == number::LISTEN).map(|s| s.record.inode.into()).collect();
        assert_eq!(listening, [*inode], "{found:?}");
        assert_eq!(found.len(), 3, "a client of plain TCP has a connection of plain TCP");
        drop(server);
    }

    #[test]
    fn gets_single_sockets_and_none_for_those_that_are_gone() {
        let (listener, client, server) = pair();
        let port = listener.local_addr().expect("bound").port();
        let mut diag = TcpDiag::open().expect("SOCK_DIAG needs no privilege");
        let mut found = Vec::new();
        diag.dump(&of_port(port, states::CONNECTED, Groups::IDENTITY), &mut found).expect("a dump");
        let mut ids: Vec<SocketId> = found.iter().map(TcpSocket::id).collect();
        assert_eq!(ids.len(), 2);
        ids.push(SocketId { cookie: ids[0].cookie + 1_000_000, ..ids[0] });
        let mut got = Vec::new();
        diag.get(&ids, Groups::of([Group::Rtt]), &mut got).expect("lookups");
        assert_eq!(got.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(got[0].map(|socket| socket.id()), Some(ids[0]));
        drop((client, server, listener));
    }
}
