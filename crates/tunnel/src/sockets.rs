//! The two UDP sockets of a tunnel, one for each family, on one port.
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use parshall_core::tunnel::Endpoint;
use parshall_sys::udp_batch::options;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Buffers of each socket, in bytes: some milliseconds at 10 Gbit/s, and more than the window of a TCP connection, so that one
/// connection cannot make them overflow.
const BUFFER_BYTES: usize = 8 << 20;

/// How long a full send buffer is waited for; then what it holds up is dropped.
const SEND_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

pub struct Sockets {
    pub v4: UdpSocket,
    pub v6: UdpSocket,
    port: u16,
    /// Sockets that ask for the MTU of paths, for IPv4 and IPv6.
    asking: Mutex<[UdpSocket; 2]>,
}

impl Sockets {
    /// Opens both on `port`, or with 0 on one that the kernel chooses. `fwmark` is the mark of what they send; 0 for none.
    pub fn open(port: u16, fwmark: u32) -> io::Result<Self> {
        let v4 = open((Ipv4Addr::UNSPECIFIED, port).into(), fwmark)?;
        let port = v4.local_addr()?.port();
        let v6 = open((Ipv6Addr::UNSPECIFIED, port).into(), fwmark)?;
        let asking = [open_asking(Domain::IPV4, fwmark)?, open_asking(Domain::IPV6, fwmark)?];
        Ok(Self { v4, v6, port, asking: Mutex::new(asking) })
    }

    /// Marks what is sent from now on, if the port stays the same. Returns other sockets for another port; with 0, one that the kernel
    /// chooses.
    pub fn listen(&self, port: u16, fwmark: u32) -> io::Result<Option<Self>> {
        if port != self.port {
            return Self::open(port, fwmark).map(Some);
        }
        let asking = self.asking();
        for socket in [&self.v4, &self.v6, &asking[0], &asking[1]] {
            SockRef::from(socket).set_mark(fwmark)?;
        }
        Ok(None)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    fn asking(&self) -> MutexGuard<'_, [UdpSocket; 2]> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket of a family.
    pub fn of(&self, ipv6: bool) -> &UdpSocket {
        if ipv6 { &self.v6 } else { &self.v4 }
    }

    /// Waits for space in a send buffer, and returns whether there is some.
    pub fn wait_for_space(&self, ipv6: bool) -> bool {
        poll(&mut [PollFd::new(self.of(ipv6), PollFlags::OUT)], Some(&SEND_WAIT)) == Ok(1)
    }

    /// What the kernel knows of the path to an endpoint: the longest IP packet, or `None` without a route.
    ///
    /// Only connected sockets are answered, and an answer stays that of the route at the time of connecting.
    pub fn path_mtu(&self, to: &Endpoint) -> Option<usize> {
        let ask = || {
            let ipv6 = to.remote.is_ipv6();
            let asking = self.asking();
            let socket = &asking[usize::from(ipv6)];
            // Otherwise the local address of the last route would choose the next one.
            rustix::net::connect_unspec(socket)?;
            rustix::net::connect(socket, &to.remote)?;
            if ipv6 { sockopt::ipv6_mtu(socket) } else { sockopt::ip_mtu(socket) }
        };
        let mtu = ask();
        mtu.inspect_err(|error| tracing::debug!(%error, to = %to.remote, "the path's MTU is unknown"))
            .ok()
            .map(|mtu| mtu as usize)
    }
}

/// A socket that asks for the MTU of paths and sends nothing.
fn open_asking(domain: Domain, fwmark: u32) -> io::Result<UdpSocket> {
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    if fwmark != 0 {
        socket.set_mark(fwmark)?;
    }
    Ok(socket.into())
}

fn open(address: SocketAddr, fwmark: u32) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if fwmark != 0 {
        socket.set_mark(fwmark)?;
    }
    set_buffers(&socket)?;
    options::report_local_address(socket.as_fd(), address.is_ipv6())?;
    // Datagrams that the path takes whole, as far as the kernel knows, have DF set; longer ones are sent in fragments. A system may
    // be configured otherwise (ip_no_pmtu_disc).
    if address.is_ipv6() {
        sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::WANT)?;
    } else {
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::WANT)?;
    }
    // Kernels before 5.0 lack it, and then each datagram is received by itself.
    options::gather_on_receive(socket.as_fd()).ok();
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// The limits of the host (net.core.rmem_max, 208 KiB unless it was raised) are a few trains only. CAP_NET_ADMIN may go beyond.
fn set_buffers(socket: &Socket) -> io::Result<()> {
    sockopt::set_socket_recv_buffer_size_force(socket, BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, BUFFER_BYTES))?;
    sockopt::set_socket_send_buffer_size(socket, BUFFER_BYTES)?;
    Ok(())
}
