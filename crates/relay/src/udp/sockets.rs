//! UDP sockets and their options.
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use parshall_core::relay::config::SocketOptions;
use parshall_sys::udp_batch::options;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Default buffers of a listener, which takes the bursts of all clients; capped by net.core.rmem_max and wmem_max.
const LISTENER_BUFFER: usize = 4 << 20;
/// Both buffers of a socket to a target: a burst of 64 full datagrams at 2 kB each of kernel memory, several times.
const TARGET_BUFFER: usize = 1 << 20;

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
pub fn steer_by_source(socket: &UdpSocket, workers: u32) -> io::Result<()> {
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

/// A socket connected to a target: its port stays for the whole session.
pub(super) fn connect(to: SocketAddr, from: From, set: &SocketOptions) -> io::Result<UdpSocket> {
    let socket = datagram_socket(&to)?;
    buffers(&socket, set, TARGET_BUFFER, TARGET_BUFFER);
    match from {
        From::Anywhere => {}
        From::Address(ip) => socket.bind(&SocketAddr::new(ip, 0).into())?,
        From::Client(client) => {
            let client = SocketAddr::new(client.ip().to_canonical(), client.port());
            options::any_source(socket.as_fd(), client.is_ipv6())?;
            // Several listeners may serve one client, whose address is then bound more than once.
            socket.set_reuse_address(true)?;
            socket.bind(&client.into())?;
        }
    }
    socket.connect(&to.into())?;
    Ok(socket.into())
}
