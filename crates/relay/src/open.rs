//! Listening sockets: opened here, or inherited from systemd or from the process before an upgrade.
//!
//! Each worker has a socket of its own on each port (SO_REUSEPORT). Unix sockets and sockets that systemd opened without
//! SO_REUSEPORT are one socket that all workers watch.
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parshall_core::relay::config::{Endpoint, Listener, Protocol};
use parshall_sys::stream_socket::{self, Found, StreamAddr};

use super::service::options;
use super::udp;
use parshall_host::control_socket;
use parshall_host::error::UserError;

/// The sockets of a listener, by worker. The workers and the main thread, which hands them to a successor, share each
/// descriptor: a range of ports needs one for each port and thread.
pub type Sockets = Vec<Vec<Arc<OwnedFd>>>;

/// Tries to bind an address in use, [`RETRY_PAUSE`] apart: the last owner may be closing it, or have been killed, and the
/// kernel frees the sockets of a ring in the background.
const RETRIES: u32 = 10;
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Inherited sockets that no listener has taken yet.
#[derive(Debug, Default)]
pub struct Pool(Vec<(Found, OwnedFd)>);

impl Pool {
    /// Keeps the listening sockets and closes the others.
    pub fn new(inherited: Vec<OwnedFd>) -> Self {
        Self(inherited.into_iter().filter_map(|s| stream_socket::describe(&s).map(|found| (found, s))).collect())
    }

    /// Takes the sockets bound to this address.
    fn take(&mut self, address: &StreamAddr, datagrams: bool) -> Vec<(Found, OwnedFd)> {
        let matches = |f: &Found| f.address == *address && f.datagrams == datagrams;
        let (taken, left) = std::mem::take(&mut self.0).into_iter().partition(|(found, _)| matches(found));
        self.0 = left;
        taken
    }

    /// Takes a TCP listener on this address.
    pub fn take_tcp(&mut self, address: SocketAddr) -> Option<OwnedFd> {
        self.take(&StreamAddr::Ip(address), false).pop().map(|(_, socket)| socket)
    }

    /// How many sockets are left to take.
    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    /// Whether a Unix socket of this path was inherited.
    pub fn has_unix(&self, path: &str) -> bool {
        self.0.iter().any(|(found, _)| matches!(&found.address, StreamAddr::Unix(theirs) if theirs == path))
    }

    /// Takes a listening Unix socket whose path is `wanted`, with its path.
    pub fn take_unix(&mut self, wanted: impl Fn(&str) -> bool) -> Option<(String, OwnedFd)> {
        let place = self.0.iter().position(
            |(found, _)| matches!(&found.address, StreamAddr::Unix(path) if !found.datagrams && wanted(path)),
        )?;
        match self.0.swap_remove(place) {
            (Found { address: StreamAddr::Unix(path), .. }, socket) => Some((path, socket)),
            _ => None,
        }
    }

    /// The addresses of the sockets that were not taken, which are closed.
    pub fn rest(self) -> Vec<String> {
        let mut rest: Vec<String> = self.0.iter().map(|(found, _)| found.address.to_string()).collect();
        rest.dedup();
        rest
    }
}

/// The address of a listener, with the port that the kernel chose for port 0.
pub fn bound(sockets: &Sockets, listener: &Listener) -> String {
    let first = sockets.iter().flatten().next();
    let ip = first.and_then(|s| stream_socket::local_ip(s.as_raw_fd()).ok().flatten());
    let suffix = if listener.protocol == Protocol::Udp { "/udp" } else { "" };
    ip.map_or_else(|| listener.listen.to_string(), |ip| format!("{ip}{suffix}"))
}

/// Opens the sockets of a listener, or takes them from the inherited ones.
pub fn open(listener: &Listener, workers: usize, pool: &mut Pool) -> anyhow::Result<Sockets> {
    let address = match &listener.listen {
        Endpoint::Ip(ip) => StreamAddr::Ip(*ip),
        Endpoint::Unix(path) => StreamAddr::Unix(path.clone()),
        Endpoint::Name(name, port) => StreamAddr::Ip(first_address(name, *port)?),
    };
    if listener.protocol == Protocol::Udp {
        return open_datagrams(listener, &address, workers, pool);
    }
    let found = pool.take(&address, false);
    let refused = |e: std::io::Error| refusal(listener, &e);
    match (found.first().map(|(found, _)| found.shares), &address) {
        (Some(true), _) => {
            let mut sockets = deal(found.into_iter().map(|(_, socket)| socket), workers);
            for place in 0..workers {
                if sockets[place].is_empty() {
                    let added = share_instead(listen(&address, listener, true).map(Arc::new), &sockets);
                    sockets[place].push(added.map_err(refused)?);
                }
            }
            Ok(sockets)
        }
        (Some(false), _) => Ok(for_all(found.into_iter().map(|(_, socket)| socket).collect(), workers)),
        (None, StreamAddr::Unix(path)) => {
            remove_stale(path);
            Ok(for_all(vec![listen(&address, listener, false).map_err(refused)?], workers))
        }
        (None, StreamAddr::Ip(ip)) => {
            // SO_REUSEPORT also shares the port with other processes of this user: bind without it first, to see them.
            let alone = first(&address, listener).map_err(refused)?;
            let ip = stream_socket::local_ip(alone.as_raw_fd())?.unwrap_or(*ip);
            drop(alone);
            let one = |_| listen(&StreamAddr::Ip(ip), listener, true).map(|s| vec![Arc::new(s)]).map_err(refused);
            Ok((0..workers).map(one).collect::<Result<_, _>>()?)
        }
    }
}

/// Deals sockets out to workers. None is closed: it may have clients in its queue, and the process that it comes from may keep
/// it open, so that the kernel goes on choosing it.
fn deal(sockets: impl Iterator<Item = OwnedFd>, workers: usize) -> Sockets {
    let mut dealt: Sockets = (0..workers).map(|_| Vec::new()).collect();
    for (number, socket) in sockets.enumerate() {
        dealt[number % workers].push(Arc::new(socket));
    }
    dealt
}

/// A socket that was to be added to inherited ones; or one of these, which several workers then watch.
fn share_instead(added: std::io::Result<Arc<OwnedFd>>, inherited: &Sockets) -> std::io::Result<Arc<OwnedFd>> {
    match (added, inherited.iter().flatten().next()) {
        (Err(error), Some(socket)) if cannot_join(&error) => Ok(socket.clone()),
        (added, _) => added,
    }
}

/// Whether a socket cannot be added to inherited ones because another user has opened them: only sockets of one user share a
/// port, and a relay that has become another user may not be allowed to open the port at all.
fn cannot_join(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRINUSE | libc::EACCES))
}

/// Opens a UDP socket per worker. The kernel sends the datagrams of a client always to the same one.
fn open_datagrams(
    listener: &Listener,
    address: &StreamAddr,
    workers: usize,
    pool: &mut Pool,
) -> anyhow::Result<Sockets> {
    let StreamAddr::Ip(mut ip) = *address else { anyhow::bail!("{} is no address for datagrams", listener.listen) };
    let found = pool.take(address, true);
    let refused = |e: std::io::Error| refusal(listener, &e);
    for (_, socket) in &found {
        udp::sockets::adopt(socket, &ip).map_err(refused)?;
    }
    let inherited = !found.is_empty();
    let mut sockets = deal(found.into_iter().map(|(_, socket)| socket), workers);
    if !inherited {
        // As for TCP: without SO_REUSEPORT, to see other processes.
        ip = udp::sockets::free_address(ip).map_err(refused)?;
    }
    for own in sockets.iter_mut().filter(|own| own.is_empty()) {
        match udp::sockets::listen(ip, &listener.sockets) {
            Ok(socket) => own.push(Arc::new(socket.into())),
            // A client's datagrams must not be read by several workers, so this one gets none.
            Err(error) if inherited && cannot_join(&error) => {}
            Err(error) => return Err(refused(error).into()),
        }
    }
    // The limits of a source are kept by one thread, so all datagrams of a source must come to that thread.
    if let (true, Some(first)) = (limits_sources(listener), sockets.iter().flatten().next()) {
        steer_by_source(first, sockets.iter().flatten().count())?;
    }
    Ok(sockets)
}

/// Whether a UDP listener has limits of a source, which one thread keeps.
pub fn limits_sources(listener: &Listener) -> bool {
    listener.limits.per_source.is_some() || listener.limits.rate.is_some()
}

/// Sends all datagrams of a source to one of the `sockets` that share this socket's port.
pub fn steer_by_source(socket: &OwnedFd, sockets: usize) -> anyhow::Result<()> {
    udp::sockets::steer_by_source(socket, sockets as u32).context("the kernel cannot steer datagrams by source")
}

fn listen(address: &StreamAddr, listener: &Listener, share: bool) -> std::io::Result<OwnedFd> {
    stream_socket::listen(address, listener.sockets.backlog, share, &options(listener))
}

/// Binds without SO_REUSEPORT, and retries while the address is in use.
fn first(address: &StreamAddr, listener: &Listener) -> std::io::Result<OwnedFd> {
    let mut tries = RETRIES;
    loop {
        match listen(address, listener, false) {
            Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) && tries > 0 => tries -= 1,
            result => return result,
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

/// All sockets for every worker.
fn for_all(sockets: Vec<OwnedFd>, workers: usize) -> Sockets {
    let sockets: Vec<Arc<OwnedFd>> = sockets.into_iter().map(Arc::new).collect();
    vec![sockets; workers]
}

/// Removes the path of a Unix socket on which no process listens: a relay that was killed leaves it behind. If it cannot be
/// removed, bind(2) fails and that is reported.
pub fn remove_stale(path: &str) {
    // An abstract name ends with its socket.
    if !path.starts_with('@') {
        control_socket::remove_if_unserved(Path::new(path));
    }
}

fn refusal(listener: &Listener, e: &std::io::Error) -> UserError {
    let hint = match (&listener.listen, e.raw_os_error()) {
        (_, Some(libc::EMFILE | libc::ENFILE)) => {
            "raise the limit of open files: `ulimit -n`, or LimitNOFILE= of the service"
        }
        (Endpoint::Unix(path), code) => unix_hint(path, code),
        (_, Some(libc::EADDRINUSE)) => match listener.protocol {
            Protocol::Tcp => "another program listens there: `ss -ltnp` names it; or choose another port",
            Protocol::Udp => "another program listens there: `ss -lunp` names it; or choose another port",
        },
        (_, Some(libc::EADDRNOTAVAIL)) => "no interface of this host has that address: `ip address` lists them",
        (_, Some(libc::EACCES)) => "ports below 1024 need root or CAP_NET_BIND_SERVICE, also at a reload",
        (_, Some(libc::EAFNOSUPPORT)) => "this host has no IPv6: write 0.0.0.0 for every IPv4 address",
        _ => "`parshall relay --help` shows how addresses are written",
    };
    UserError::new(format!("cannot listen on {}: {e}", listener.listen), hint)
}

/// The hint for a path that cannot be bound. For any existing file bind(2) fails with EADDRINUSE.
fn unix_hint(path: &str, code: Option<i32>) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match code {
        Some(libc::EADDRINUSE) => match std::fs::symlink_metadata(path).map(|m| m.file_type()) {
            Ok(kind) if kind.is_dir() => "that path is a directory: write the path of a socket in it",
            Ok(kind) if !kind.is_socket() => {
                "that path is a file and no socket: choose another path, or remove the file"
            }
            _ => "another program listens there: `ss -lxp` names it; or choose another path",
        },
        Some(libc::ENOENT | libc::ENOTDIR) => {
            "its directory does not exist: make it with `mkdir -p`, or choose another path"
        }
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
            "this user cannot write to its directory: choose another path, or change the directory's owner"
        }
        _ => "`parshall relay --help` shows how addresses are written",
    }
}

fn first_address(name: &str, port: u16) -> anyhow::Result<SocketAddr> {
    use std::net::ToSocketAddrs;
    let unknown =
        || UserError::new(format!("the name {name} has no address"), "check the spelling, or write an address");
    Ok((name, port).to_socket_addrs().map_err(|_| unknown())?.next().ok_or_else(unknown)?)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use parshall_core::relay::config::Target;

    use super::*;

    fn listener(listen: Endpoint) -> Listener {
        let target = Target { endpoint: Endpoint::Ip("127.0.0.1:1".parse().expect("an address")), weight: 1 };
        Listener::new(Protocol::Tcp, listen, vec![target])
    }

    fn on(port: u16) -> Listener {
        listener(Endpoint::Ip(SocketAddr::from(([127, 0, 0, 1], port))))
    }

    #[test]
    fn inherited_sockets_are_distributed_to_workers() {
        let first = open(&on(0), 3, &mut Pool::default()).expect("opened");
        let port = stream_socket::local_ip(first[0][0].as_raw_fd()).expect("bound").expect("IP").port();
        let inodes = |sockets: &Sockets| -> Vec<_> {
            let link = |s: &Arc<OwnedFd>| std::fs::read_link(format!("/proc/self/fd/{}", s.as_raw_fd())).expect("open");
            let mut inodes: Vec<_> = sockets.iter().flatten().map(link).collect();
            inodes.sort();
            inodes
        };
        let before = inodes(&first);
        let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let place = elsewhere.local_addr().expect("bound");
        let mut pool = Pool::new(handed_over(first).chain([elsewhere.into()]).collect());
        // With fewer workers one gets two sockets: none is closed with clients in its queue.
        let second = open(&on(port), 2, &mut pool).expect("taken over");
        assert_eq!(second.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(inodes(&second), before);
        assert_eq!(pool.rest(), [place.to_string()]);
    }

    /// The sockets as a successor gets them.
    fn handed_over(sockets: Sockets) -> impl Iterator<Item = OwnedFd> {
        sockets.into_iter().flatten().map(|socket| socket.try_clone().expect("a descriptor"))
    }

    fn udp_on(address: SocketAddr) -> Listener {
        Listener { protocol: Protocol::Udp, ..listener(Endpoint::Ip(address)) }
    }

    #[test]
    fn datagram_sockets_of_more_threads_all_have_a_worker() {
        let first = open(&udp_on(SocketAddr::from(([127, 0, 0, 1], 0))), 4, &mut Pool::default()).expect("opened");
        let place = stream_socket::local_ip(first[0][0].as_raw_fd()).expect("bound").expect("IP");
        let mut pool = Pool::new(handed_over(first).collect());
        let second = open(&udp_on(place), 3, &mut pool).expect("taken over");
        assert_eq!(second.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1]);
    }

    #[test]
    fn a_datagram_socket_of_systemd_serves_several_workers_as_our_own() {
        let theirs = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let place = theirs.local_addr().expect("bound");
        let sockets = open(&udp_on(place), 3, &mut Pool::new(vec![theirs.into()])).expect("taken");
        assert_eq!(sockets.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
        let all: Vec<UdpSocket> = handed_over(sockets).map(UdpSocket::from).collect();
        // The kernel chooses by the client's port.
        let heard = (0..200).find(|_| {
            UdpSocket::bind("127.0.0.1:0").expect("a socket").send_to(b"x", place).expect("loopback");
            std::thread::sleep(Duration::from_millis(1));
            all[1..].iter().any(|socket| socket.recv(&mut [0; 1]).is_ok())
        });
        assert!(heard.is_some(), "the added sockets get datagrams, too");
    }

    #[test]
    fn a_socket_that_cannot_share_is_watched_by_all() {
        let theirs = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let port = theirs.local_addr().expect("bound").port();
        let sockets = open(&on(port), 2, &mut Pool::new(vec![theirs.into()])).expect("taken");
        assert_eq!(sockets.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
        assert!(open(&on(port), 2, &mut Pool::default()).expect_err("in use").to_string().contains("in use"));
    }

    #[test]
    fn the_path_of_a_dead_relay_is_replaced_and_that_of_a_live_one_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s").to_str().expect("UTF-8").to_owned();
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        let unix = listener(Endpoint::Unix(path));
        let _live = open(&unix, 1, &mut Pool::default()).expect("the stale path is removed");
        assert!(hint(&unix).contains("`ss -lxp`"));
    }

    #[test]
    fn a_path_whose_listener_accepts_nothing_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let busy =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM.nonblocking(), None).expect("made");
        let address = socket2::SockAddr::unix(&path).expect("short");
        busy.bind(&address).expect("bound");
        busy.listen(0).expect("it listens");
        let queued = |_| {
            let client = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM.nonblocking(), None);
            client.and_then(|client| client.connect(&address).map(|()| client)).ok()
        };
        let _full: Vec<_> = (0..10).map_while(queued).collect();
        remove_stale(path.to_str().expect("UTF-8"));
        assert!(path.exists());
    }

    /// The hint for a listener that cannot be opened.
    fn hint(listener: &Listener) -> String {
        let error = open(listener, 1, &mut Pool::default()).expect_err("cannot be opened");
        error.downcast_ref::<UserError>().expect("a user's error").hint.clone()
    }

    #[test]
    fn hints_name_the_obstacle() {
        let dir = tempfile::tempdir().expect("a directory");
        let unix = |name: &str| listener(Endpoint::Unix(dir.path().join(name).to_str().expect("UTF-8").to_owned()));
        std::fs::write(dir.path().join("file"), "precious").expect("written");
        std::fs::create_dir(dir.path().join("folder")).expect("made");
        for (name, words) in
            [("file", "remove the file"), ("folder", "is a directory"), ("no/s", "does not exist"), ("file/s", "exist")]
        {
            assert!(hint(&unix(name)).contains(words), "{name}: {}", hint(&unix(name)));
        }
        assert_eq!(std::fs::read(dir.path().join("file")).expect("still there"), b"precious");
        let theirs = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let mut udp = on(theirs.local_addr().expect("bound").port());
        udp.protocol = Protocol::Udp;
        assert!(hint(&udp).contains("`ss -lunp`"));
    }

    #[test]
    fn every_address_of_both_families_can_be_listened_on_with_one_port() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let at = |ip: &str, port| {
                let address = SocketAddr::new(ip.parse().expect("an address"), port);
                let mut listener = listener(Endpoint::Ip(address));
                listener.protocol = protocol;
                listener
            };
            // Another program may use the port that the kernel chose for IPv4 with IPv6.
            let both = (0..10).find_map(|_| {
                let v4 = open(&at("0.0.0.0", 0), 2, &mut Pool::default()).expect("IPv4");
                let port = stream_socket::local_ip(v4[0][0].as_raw_fd()).expect("bound").expect("IP").port();
                let v6 = open(&at("::", port), 2, &mut Pool::default()).ok()?;
                Some((v4, v6))
            });
            let (v4, v6) = both.expect("both at once");
            assert_eq!([v4.len(), v6.len()], [2, 2], "{protocol:?}");
        }
    }
}
