//! UDP sockets and their options.
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use parshall_core::relay::config::SocketOptions;
use parshall_core::relay::local_ports::{Local, LocalPorts};
use parshall_sys::limits::{exhausted, is_local};
use parshall_sys::udp_batch::options;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Default buffers of a listener, which takes the bursts of all clients; capped by net.core.rmem_max and wmem_max.
const LISTENER_BUFFER: usize = 4 << 20;
/// Both buffers of a socket to a target: a burst of 64 full datagrams at 2 kB each of kernel memory, several times.
const TARGET_BUFFER: usize = 1 << 20;
/// Ports that are tried when the kernel has no free one.
const SHARED_TRIES: usize = 16;
/// Datagrams of others that a new socket drops; one that gets more is given up.
const DRAINED_MAX: usize = 64;

fn datagram_socket(address: &SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(*address), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    // Before Linux 5.0 there is no UDP_GRO: each datagram is received by itself.
    options::gather_on_receive(socket.as_fd()).ok();
    Ok(socket)
}

/// Sets the buffers of a listener: as configured, or the default.
pub fn set_listener_buffers(socket: &impl AsFd, set: &SocketOptions) {
    buffers(&SockRef::from(socket), set, LISTENER_BUFFER, LISTENER_BUFFER);
}

fn buffers(socket: &Socket, set: &SocketOptions, receive: usize, send: usize) {
    // The kernel caps what is over its limit; a smaller buffer is no error.
    socket.set_recv_buffer_size(set.receive_buffer.map_or(receive, |bytes| bytes as usize)).ok();
    socket.set_send_buffer_size(set.send_buffer.map_or(send, |bytes| bytes as usize)).ok();
}

fn listening_socket(address: &SocketAddr) -> io::Result<Socket> {
    let socket = datagram_socket(address)?;
    if address.is_ipv6() {
        // So that `[::]` and `0.0.0.0` can be bound side by side, as for TCP.
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Prepares a listening socket that another process has opened, as [`listen`] does with its own. Its buffers are set with the
/// other options of the listener.
pub fn adopt(socket: &impl AsFd, address: &SocketAddr) -> io::Result<()> {
    let shared = SockRef::from(socket);
    shared.set_nonblocking(true)?;
    // systemd sets it only with `ReusePort=`. Set later, it lets the other workers' sockets join, of the same user.
    shared.set_reuse_port(true)?;
    options::gather_on_receive(socket.as_fd()).ok();
    if address.ip().is_unspecified() {
        options::report_local_address(socket.as_fd(), address.is_ipv6())?;
    }
    Ok(())
}

/// The address with the port that the kernel chooses for port 0, or the error if another socket is bound there. Sockets of
/// [`listen`] share their port with any process of the same user, so they do not notice another one.
pub fn free_address(address: SocketAddr) -> io::Result<SocketAddr> {
    let alone = listening_socket(&address)?;
    alone.bind(&address.into())?;
    UdpSocket::from(alone).local_addr()
}

/// A listening socket for one worker; others may listen on the same address (SO_REUSEPORT).
pub fn listen(address: SocketAddr, set: &SocketOptions) -> io::Result<UdpSocket> {
    let socket = listening_socket(&address)?;
    socket.set_reuse_port(true)?;
    set_listener_buffers(&socket, set);
    // On a wildcard address the kernel must report where each datagram was sent to (IP_PKTINFO), so that the answer leaves
    // from there.
    if address.ip().is_unspecified() {
        options::report_local_address(socket.as_fd(), address.is_ipv6())?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Sends all datagrams of a source address to the same worker, which keeps its limits. It is set on one of the `workers`
/// sockets for all.
pub fn steer_by_source(socket: &impl AsFd, workers: u32) -> io::Result<()> {
    options::steer_by_source(socket.as_fd(), workers)
}

/// The local address of a session's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// The kernel's choice.
    Anywhere,
    /// This address of the host.
    Address(IpAddr),
    /// The client's own address and port.
    Client(SocketAddr),
}

/// The local ports of the sessions of all threads. It is locked when a session begins and ends.
#[derive(Debug, Default)]
pub struct SharedPorts(Mutex<LocalPorts>);

impl SharedPorts {
    fn lock(&self) -> MutexGuard<'_, LocalPorts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session ends; its socket is closed after this.
    pub(super) fn release(&self, local: Local, target: SocketAddr) {
        self.lock().release(local, target);
    }
}

/// A socket connected to a target: its port stays for the whole session. With it comes the port that the caller releases at the
/// end, if it is one of `ports`.
pub(super) fn connect(
    to: SocketAddr,
    from: From,
    set: &SocketOptions,
    ports: &SharedPorts,
) -> io::Result<(UdpSocket, Option<Local>)> {
    let ip = match from {
        From::Client(client) => return Ok((connect_as(client, to, set)?, None)),
        From::Address(ip) => Some(ip),
        From::Anywhere => None,
    };
    let error = match connect_alone(ip, to, set) {
        Ok(socket) => {
            let local = (ip, SockRef::from(&socket).local_addr()?.as_socket().map_or(0, |address| address.port()));
            let taken = ports.lock().take(local, to);
            return Ok((socket.into(), taken.then_some(local)));
        }
        Err(error) => error,
    };
    if !is_local(&error) || exhausted(&error) {
        return Err(error);
    }
    for _ in 0..SHARED_TRIES {
        let Some(port) = ports.lock().share(ip, to) else { break };
        match connect_shared(ip, port, to, set) {
            Ok(socket) => return Ok((socket.into(), Some((ip, port)))),
            // A program of another user has the port on another address, or the kernel has none for this one.
            Err(_) => ports.release((ip, port), to),
        }
    }
    Err(error)
}

/// Connects from a port that no other socket has.
fn connect_alone(ip: Option<IpAddr>, to: SocketAddr, set: &SocketOptions) -> io::Result<Socket> {
    let socket = datagram_socket(&to)?;
    buffers(&socket, set, TARGET_BUFFER, TARGET_BUFFER);
    if let Some(ip) = ip {
        socket.bind(&SocketAddr::new(ip, 0).into())?;
    }
    socket.connect(&to.into())?;
    // Set behind the choice of the port: from now on sessions to other targets, of the same user, may have it too.
    socket.set_reuse_port(true)?;
    Ok(socket)
}

/// Connects from a port that sessions to other targets use.
pub(super) fn connect_shared(ip: Option<IpAddr>, port: u16, to: SocketAddr, set: &SocketOptions) -> io::Result<Socket> {
    let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = datagram_socket(&to)?;
    buffers(&socket, set, TARGET_BUFFER, TARGET_BUFFER);
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::new(ip.unwrap_or(any), port).into())?;
    socket.connect(&to.into())?;
    // Between the two calls the socket could get datagrams from anybody. Its target has not been sent anything yet.
    for _ in 0..DRAINED_MAX {
        match socket.recv(&mut [std::mem::MaybeUninit::uninit()]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(socket),
            _ => {}
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Connects from the client's own address and port.
fn connect_as(client: SocketAddr, to: SocketAddr, set: &SocketOptions) -> io::Result<UdpSocket> {
    let socket = datagram_socket(&to)?;
    buffers(&socket, set, TARGET_BUFFER, TARGET_BUFFER);
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    options::any_source(socket.as_fd(), client.is_ipv6())?;
    // Several listeners may serve one client, whose address is then bound more than once.
    socket.set_reuse_address(true)?;
    socket.bind(&client.into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}
