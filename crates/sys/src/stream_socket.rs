//! Stream sockets of a forwarder: listeners that share a port, and connections that are accepted and opened without
//! blocking.
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::sock_view::buffer_locks;
use crate::stream_io::set_int;

/// Options of a listener or a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// SO_RCVBUF in bytes.
    pub receive_buffer: Option<u32>,
    /// SO_SNDBUF in bytes.
    pub send_buffer: Option<u32>,
    /// TCP_USER_TIMEOUT.
    pub user_timeout: Option<Duration>,
    /// IPPROTO_MPTCP instead of TCP. Falls back to TCP on kernels without MPTCP.
    pub mptcp: bool,
    /// TCP_FASTOPEN on listeners, TCP_FASTOPEN_CONNECT on connections.
    pub fast_open: bool,
    /// IP_TRANSPARENT: may bind to addresses that are not this host's.
    pub transparent: bool,
}

/// A stream address: TCP or Unix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StreamAddr {
    /// An address and port.
    Ip(SocketAddr),
    /// A path, or an abstract name after `@`.
    Unix(String),
}

/// Displays the address as users write it: `127.0.0.1:9000`, `unix:/run/x.sock`.
impl std::fmt::Display for StreamAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

impl StreamAddr {
    fn domain(&self) -> Domain {
        match self {
            Self::Ip(address) => Domain::for_address(*address),
            Self::Unix(_) => Domain::UNIX,
        }
    }

    fn sockaddr(&self) -> io::Result<SockAddr> {
        match self {
            Self::Ip(address) => Ok((*address).into()),
            // An abstract name begins with a zero byte.
            Self::Unix(path) => {
                SockAddr::unix(path.strip_prefix('@').map_or_else(|| path.clone(), |n| format!("\0{n}")))
            }
        }
    }
}

fn stream(address: &StreamAddr, mptcp: bool) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    if mptcp
        && matches!(address, StreamAddr::Ip(_))
        && let Ok(socket) = Socket::new(address.domain(), kind, Some(Protocol::MPTCP))
    {
        return Ok(socket);
    }
    Socket::new(address.domain(), kind, None)
}

fn apply(socket: &Socket, address: &StreamAddr, options: &Options) -> io::Result<()> {
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes as usize)?;
    }
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes as usize)?;
    }
    let StreamAddr::Ip(ip) = address else { return Ok(()) };
    if options.nodelay {
        socket.set_tcp_nodelay(true)?;
    }
    if options.user_timeout.is_some() {
        socket.set_tcp_user_timeout(options.user_timeout)?;
    }
    if options.transparent {
        if ip.is_ipv4() { socket.set_ip_transparent_v4(true)? } else { socket.set_ip_transparent_v6(true)? }
    }
    Ok(())
}

/// A socket with the options of a listener.
fn with_options(address: &StreamAddr, backlog: u32, options: &Options) -> io::Result<Socket> {
    let socket = stream(address, options.mptcp)?;
    apply(&socket, address, options)?;
    if options.fast_open && matches!(address, StreamAddr::Ip(_)) {
        set_int(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_FASTOPEN, backlog as libc::c_int)?;
    }
    Ok(socket)
}

/// Makes an unbound socket with the options of a listener, to find out whether the kernel permits them.
pub fn try_options(address: &StreamAddr, backlog: u32, options: &Options) -> io::Result<OwnedFd> {
    with_options(address, backlog, options).map(OwnedFd::from)
}

/// Whether a socket was made for MPTCP. That cannot change while it lives.
pub fn is_mptcp(socket: &OwnedFd) -> bool {
    SockRef::from(socket).protocol().is_ok_and(|protocol| protocol == Some(Protocol::MPTCP))
}

/// Opens a non-blocking listener. Accepted connections inherit its options, so that accepting needs no further call.
/// `share` is SO_REUSEPORT: the kernel distributes connections among several listeners on one port.
pub fn listen(address: &StreamAddr, backlog: u32, share: bool, options: &Options) -> io::Result<OwnedFd> {
    let socket = with_options(address, backlog, options)?;
    if let StreamAddr::Ip(ip) = address {
        socket.set_reuse_address(true)?;
        if share {
            socket.set_reuse_port(true)?;
        }
        if ip.is_ipv6() {
            // So that `[::]` and `0.0.0.0` can be bound at the same time.
            socket.set_only_v6(true)?;
        }
    }
    socket.bind(&address.sockaddr()?)?;
    socket.listen(backlog.min(i32::MAX as u32) as i32)?;
    Ok(socket.into())
}

/// Changes the options of a listener from `before`. All but `mptcp` can change while it listens.
pub fn adjust(
    listener: &OwnedFd,
    address: &StreamAddr,
    backlog: u32,
    before: &Options,
    options: &Options,
) -> io::Result<()> {
    let socket = SockRef::from(listener);
    let no_longer = |before: Option<u32>, now: Option<u32>| before.is_some() && now.is_none();
    if no_longer(before.receive_buffer, options.receive_buffer) || no_longer(before.send_buffer, options.send_buffer) {
        unfix_buffers(&socket, address, options)?;
    }
    apply(&socket, address, options)?;
    if !matches!(address, StreamAddr::Ip(_)) {
        return socket.listen(backlog.min(i32::MAX as u32) as i32);
    }
    socket.set_tcp_nodelay(options.nodelay)?;
    socket.set_tcp_user_timeout(options.user_timeout)?;
    let queue = if options.fast_open { backlog as libc::c_int } else { 0 };
    // Turning it off may fail on a kernel without fast open, where it is off.
    let fast_open = set_int(listener.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_FASTOPEN, queue);
    if options.fast_open {
        fast_open?;
    }
    socket.listen(backlog.min(i32::MAX as u32) as i32)
}

/// The buffer sizes that a process set on a socket, for [`adjust`]. None before Linux 5.14, which does not report that they
/// were set.
pub fn fixed_buffers(socket: &OwnedFd) -> Options {
    // SOCK_SNDBUF_LOCK and SOCK_RCVBUF_LOCK of the kernel's net/sock.h.
    let locks = buffer_locks(socket.as_fd()).unwrap_or(0);
    let socket = SockRef::from(socket);
    // The kernel reports twice what is set (sock_setsockopt() of net/core/sock.c).
    let set = |size: io::Result<usize>| size.ok().and_then(|size| u32::try_from(size / 2).ok());
    Options {
        send_buffer: (locks & 1 != 0).then(|| set(socket.send_buffer_size())).flatten(),
        receive_buffer: (locks & 2 != 0).then(|| set(socket.recv_buffer_size())).flatten(),
        ..Options::default()
    }
}

/// Resets both buffers to the sizes of a new socket and turns the kernel's auto-tuning on again, which setting a size turns
/// off. Needs SO_BUF_LOCK (Linux 5.14).
fn unfix_buffers(socket: &SockRef<'_>, address: &StreamAddr, options: &Options) -> io::Result<()> {
    let new = stream(address, options.mptcp)?;
    // The kernel reports twice what is set (sock_setsockopt() of net/core/sock.c).
    socket.set_recv_buffer_size(new.recv_buffer_size()? / 2)?;
    socket.set_send_buffer_size(new.send_buffer_size()? / 2)?;
    set_int(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0)
}

/// Turns on keepalive probes after this idle time, which counts from the last received segment also when that was long
/// before this call. After `probes` of them, `interval` apart, the peer is lost. Has no effect on Unix sockets.
pub fn keep_alive(socket: &OwnedFd, idle: Duration, interval: Duration, probes: u32) -> io::Result<()> {
    // SO_KEEPALIVE before TCP_KEEPIDLE: only for a running timer does the kernel count the time from the last segment
    // (tcp_sock_set_keepidle_locked() of net/ipv4/tcp.c).
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// A socket that this process inherited or received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The local address.
    pub address: StreamAddr,
    /// Whether it is a datagram socket.
    pub datagrams: bool,
    /// Whether it shares its port (SO_REUSEPORT).
    pub shares: bool,
}

/// Describes a socket. None if it is not a bound IP or Unix socket, or if it is a stream socket that does not listen.
pub fn describe(socket: &OwnedFd) -> Option<Found> {
    let socket = SockRef::from(socket);
    let datagrams = match socket.r#type().ok()? {
        Type::STREAM if socket.is_listener().ok()? => false,
        Type::DGRAM => true,
        _ => return None,
    };
    let bound = socket.local_addr().ok()?;
    let address = match bound.as_socket() {
        Some(ip) => StreamAddr::Ip(ip),
        None => StreamAddr::Unix(match (bound.as_pathname(), bound.as_abstract_namespace()) {
            (Some(path), _) => path.to_str()?.to_owned(),
            (None, Some(name)) => format!("@{}", std::str::from_utf8(name).ok()?),
            (None, None) => return None,
        }),
    };
    let shares = matches!(address, StreamAddr::Ip(_)) && socket.reuse_port().unwrap_or(false);
    Some(Found { address, datagrams, shares })
}

/// The local address of a socket, if it is an IP address.
pub fn local_ip(fd: RawFd) -> io::Result<Option<SocketAddr>> {
    // SAFETY: the socket is only borrowed: it is forgotten below and so not closed.
    let socket = std::mem::ManuallyDrop::new(unsafe { Socket::from_raw_fd(fd) });
    Ok(socket.local_addr()?.as_socket())
}

/// The address of the peer, if it is an IP address: the same that `accept` returns, also after the peer has reset the
/// connection.
pub fn peer_ip(socket: &impl AsRawFd) -> Option<SocketAddr> {
    // SAFETY: all-zero bytes are a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the storage, and the length.
    if unsafe { libc::getpeername(socket.as_raw_fd(), (&raw mut storage).cast(), &raw mut len) } == 0 {
        return ip_of(&storage);
    }
    // getpeername() gives ENOTCONN for a socket that was reset, SO_PEERNAME does not (inet_getname in net/ipv4/af_inet.c). It
    // wants no more bytes than the address has.
    [size_of::<libc::sockaddr_in6>(), size_of::<libc::sockaddr_in>()].into_iter().find_map(|bytes| {
        let mut len = bytes as libc::socklen_t;
        let place = (&raw mut storage).cast();
        // SAFETY: as above; the storage is larger than both kinds of address.
        let ret =
            unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERNAME, place, &raw mut len) };
        if ret == 0 { ip_of(&storage) } else { None }
    })
}

/// Accepts one connection, non-blocking and close-on-exec. The peer is None if it has no IP address.
pub fn accept(listener: RawFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    // SAFETY: all-zero bytes are a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the storage, and the length.
    let fd = unsafe {
        libc::accept4(listener, (&raw mut storage).cast(), &raw mut len, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok((unsafe { OwnedFd::from_raw_fd(fd) }, ip_of(&storage)))
}

fn ip_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that the storage holds a sockaddr_in, which is smaller.
            let v4 = unsafe { *std::ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that the storage holds a sockaddr_in6, which is smaller.
            let v6 = unsafe { *std::ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            // An IPv4 client of a dual-stack listener comes as an IPv4-mapped IPv6 address.
            Some(match ip.to_ipv4_mapped() {
                Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
                None => SocketAddr::V6(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id)),
            })
        }
        _ => None,
    }
}

/// Starts to connect without blocking. Returns true if the socket is already connected (Unix sockets, fast open).
pub fn connect(address: &StreamAddr, from: Option<SocketAddr>, options: &Options) -> io::Result<(OwnedFd, bool)> {
    let socket = stream(address, options.mptcp)?;
    apply(&socket, address, options)?;
    if options.fast_open && matches!(address, StreamAddr::Ip(_)) {
        set_int(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1)?;
    }
    if let Some(from) = from {
        if from.port() == 0 {
            // connect() then chooses the port when the destination is known: one port serves connections to several destinations.
            set_int(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
        }
        socket.bind(&from.into())?;
    }
    match socket.connect(&address.sockaddr()?) {
        Ok(()) => Ok((socket.into(), true)),
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => Ok((socket.into(), false)),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream_io::{recv, send};

    #[test]
    fn two_listeners_share_a_port_and_accept_without_waiting() {
        let options = Options { nodelay: true, ..Options::default() };
        let any = StreamAddr::Ip("127.0.0.1:0".parse().expect("an address"));
        let first = listen(&any, 16, true, &options).expect("a listener");
        let address = StreamAddr::Ip(local_ip(first.as_raw_fd()).expect("bound").expect("IP"));
        let second = listen(&address, 16, true, &options).expect("shared");
        for l in [&first, &second] {
            assert_eq!(accept(l.as_raw_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        let (client, _) = connect(&address, None, &options).expect("begun");
        let accepted = [&first, &second].iter().find_map(|l| accept(l.as_raw_fd()).ok());
        let (server, peer) = accepted.expect("one of them accepts");
        assert_eq!(peer, local_ip(client.as_raw_fd()).expect("bound"));
        assert_eq!(send(client.as_raw_fd(), b"x").expect("room"), 1);
        assert_eq!(recv(server.as_raw_fd(), &mut [0; 4]).expect("data"), 1);
    }

    #[test]
    fn inherited_sockets_are_described() {
        let options = Options::default();
        let any = StreamAddr::Ip("[::1]:0".parse().expect("an address"));
        let shared = listen(&any, 4, true, &options).expect("a listener");
        let found = describe(&shared).expect("listens");
        assert!(found.shares && !found.datagrams && matches!(found.address, StreamAddr::Ip(ip) if ip.port() > 0));
        let name = StreamAddr::Unix(format!("@parshall-found-{}", std::process::id()));
        let unix = listen(&name, 4, true, &options).expect("a listener");
        assert_eq!(describe(&unix), Some(Found { address: name.clone(), datagrams: false, shares: false }));
        let (client, _) = connect(&name, None, &options).expect("connected");
        assert_eq!(describe(&client), None, "no listener");
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert!(describe(&udp.into()).expect("bound").datagrams);
    }

    #[test]
    fn a_listener_can_be_adjusted() {
        let any = StreamAddr::Ip("127.0.0.1:0".parse().expect("an address"));
        let listener = listen(&any, 4, true, &Options { nodelay: true, ..Options::default() }).expect("a listener");
        let options = Options { user_timeout: Some(Duration::from_secs(9)), ..Options::default() };
        adjust(&listener, &any, 8, &Options::default(), &options).expect("adjusted");
        let socket = SockRef::from(&listener);
        assert!(!socket.tcp_nodelay().expect("known"));
        assert_eq!(socket.tcp_user_timeout().expect("known"), options.user_timeout);
    }

    #[test]
    fn a_buffer_without_a_size_is_tuned_by_the_kernel_again() {
        let any = StreamAddr::Ip("127.0.0.1:0".parse().expect("an address"));
        let sizes = |listener: &OwnedFd| {
            let socket = SockRef::from(listener);
            let size = [socket.recv_buffer_size(), socket.send_buffer_size()].map(|size| size.expect("known"));
            (size, buffer_locks(listener.as_fd()).expect("SO_BUF_LOCK needs Linux 5.14"))
        };
        let untouched = sizes(&listen(&any, 4, true, &Options::default()).expect("a listener"));
        let fixed = Options { receive_buffer: Some(20_000), send_buffer: Some(20_000), ..Options::default() };
        let listener = listen(&any, 4, true, &fixed).expect("a listener");
        assert_ne!(sizes(&listener), untouched);
        let found = fixed_buffers(&listener);
        assert_eq!((found.receive_buffer, found.send_buffer), (fixed.receive_buffer, fixed.send_buffer));
        adjust(&listener, &any, 4, &fixed, &Options::default()).expect("adjusted");
        assert_eq!(sizes(&listener), untouched);
        let receive_only = Options { send_buffer: None, ..fixed };
        adjust(&listener, &any, 4, &Options::default(), &fixed).expect("adjusted");
        adjust(&listener, &any, 4, &fixed, &receive_only).expect("adjusted");
        assert_eq!(sizes(&listener), ([40_000, untouched.0[1]], 2));
        let found = fixed_buffers(&listener);
        assert_eq!((found.receive_buffer, found.send_buffer), (Some(20_000), None));
    }

    #[test]
    fn abstract_unix_sockets_have_no_ip() {
        let address = StreamAddr::Unix(format!("@parshall-test-{}", std::process::id()));
        let listener = listen(&address, 4, true, &Options::default()).expect("a listener");
        let (_client, made) = connect(&address, None, &Options::default()).expect("connected");
        assert!(made);
        let (_server, peer) = accept(listener.as_raw_fd()).expect("accepted");
        assert_eq!((peer, local_ip(listener.as_raw_fd()).expect("bound")), (None, None));
    }
}
