//! The two UDP sockets of a tunnel, one for each family, on one port. A host may lack a family.
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use parshall_core::tunnel::Endpoint;
use parshall_sys::udp_batch::options;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Buffers of each socket, in bytes: some milliseconds at 10 Gbit/s, and more than the window of a TCP connection, so that one
/// connection cannot make them overflow.
const BUFFER_BYTES: usize = 8 << 20;

/// How long a full send buffer is waited for; then what it holds up is dropped.
const SEND_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// How often the kernel is asked for a port until it chooses one that both families have free.
const PORT_TRIES: usize = 128;

/// A value for each family: IPv4, IPv6.
type PerFamily<T> = [T; 2];

pub struct Sockets {
    /// None of a family that the host lacks; one of them is there.
    listening: PerFamily<Option<UdpSocket>>,
    port: u16,
    /// Sockets that ask for the MTU of paths.
    asking: Mutex<PerFamily<Option<UdpSocket>>>,
}

impl Sockets {
    /// Opens both on `port`, or with 0 on one that the kernel chooses. `fwmark` is the mark of what they send; 0 for none.
    pub fn open(port: u16, fwmark: u32) -> io::Result<Self> {
        let asking = [present(open_asking(Domain::IPV4, fwmark))?, present(open_asking(Domain::IPV6, fwmark))?];
        let mut tries = 1..PORT_TRIES;
        let (listening, port) = loop {
            match open_both(port, fwmark) {
                // The kernel chose a port for IPv4 that a program has for IPv6.
                Err(error) if port == 0 && error.kind() == io::ErrorKind::AddrInUse && tries.next().is_some() => {}
                opened => break opened?,
            }
        };
        Ok(Self { listening, port, asking: Mutex::new(asking) })
    }

    /// Marks what is sent from now on, if the port stays the same. Returns other sockets for another port; with 0, one that the kernel
    /// chooses.
    pub fn listen(&self, port: u16, fwmark: u32) -> io::Result<Option<Self>> {
        if port != self.port {
            return Self::open(port, fwmark).map(Some);
        }
        for socket in self.listening.iter().chain(&*self.asking()).flatten() {
            SockRef::from(socket).set_mark(fwmark)?;
        }
        Ok(None)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The mark of what is sent; 0 for none.
    pub fn mark(&self) -> u32 {
        // The kernel fails for no socket of this kind.
        SockRef::from(self.of(false)).mark().unwrap_or(0)
    }

    fn asking(&self) -> MutexGuard<'_, PerFamily<Option<UdpSocket>>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket that receives what comes over a family.
    pub fn receiving(&self, ipv6: bool) -> Option<&UdpSocket> {
        self.listening[usize::from(ipv6)].as_ref()
    }

    /// The socket that sends to addresses of a family. Of a family that the host lacks it is the other one, which refuses such
    /// addresses (EAFNOSUPPORT), so that the datagrams are dropped and counted as any others that cannot be sent.
    pub fn of(&self, ipv6: bool) -> &UdpSocket {
        let either = || self.listening.iter().flatten().next();
        self.receiving(ipv6).or_else(either).expect("a host has one family at least")
    }

    /// Waits for space in a send buffer, and returns whether there is some.
    pub fn wait_for_space(&self, ipv6: bool) -> bool {
        poll(&mut [PollFd::new(self.of(ipv6), PollFlags::OUT)], Some(&SEND_WAIT)) == Ok(1)
    }

    /// The kernel's MTU of the path to an endpoint; `None` without a route.
    ///
    /// Only connected sockets are answered, and an answer stays that of the route at the time of connecting.
    pub fn path_mtu(&self, to: &Endpoint) -> Option<usize> {
        let ask = || {
            let ipv6 = to.remote.is_ipv6();
            let asking = self.asking();
            let socket = asking[usize::from(ipv6)].as_ref().ok_or(Errno::AFNOSUPPORT)?;
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

/// Whether packets of IPv6 can come to or leave this network namespace: the kernel has IPv6, and an interface other than loopback may
/// have addresses of it, or one that is yet to come.
pub fn host_has_ipv6() -> bool {
    if present(Socket::new(Domain::IPV6, Type::DGRAM, None)).is_ok_and(|socket| socket.is_none()) {
        return false;
    }
    let Ok(entries) = fs::read_dir("/proc/sys/net/ipv6/conf") else { return true };
    let others = entries.flatten().filter(|entry| entry.file_name() != "all" && entry.file_name() != "lo");
    let enabled = |value: io::Result<String>| value.map_or(true, |value| value.trim() != "1");
    others.map(|entry| fs::read_to_string(entry.path().join("disable_ipv6"))).any(enabled)
}

/// None if the host lacks the family of a socket.
fn present<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Err(error) if error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Opens the sockets of both families, and returns their port.
fn open_both(port: u16, fwmark: u32) -> io::Result<(PerFamily<Option<UdpSocket>>, u16)> {
    let v4 = present(open((Ipv4Addr::UNSPECIFIED, port).into(), fwmark))?;
    let port = v4.as_ref().map_or(Ok(port), |v4| v4.local_addr().map(|address| address.port()))?;
    let v6 = present(open((Ipv6Addr::UNSPECIFIED, port).into(), fwmark))?;
    let port = match v4.as_ref().or(v6.as_ref()) {
        Some(socket) => socket.local_addr()?.port(),
        None => return Err(Errno::AFNOSUPPORT.into()),
    };
    Ok(([v4, v6], port))
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
    options::report_ecn(socket.as_fd(), address.is_ipv6())?;
    options::report_arrival(socket.as_fd())?;
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

/// The limits of the host (net.core.rmem_max, 208 KiB unless it was raised) are a few GSO batches only. CAP_NET_ADMIN may go beyond.
fn set_buffers(socket: &Socket) -> io::Result<()> {
    sockopt::set_socket_recv_buffer_size_force(socket, BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, BUFFER_BYTES))?;
    sockopt::set_socket_send_buffer_size(socket, BUFFER_BYTES)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tunnel up` without ListenPort does this on a host where other programs have ports of IPv6.
    #[test]
    fn a_port_that_the_kernel_chooses_is_free_for_both_families() {
        let taken: Vec<UdpSocket> = (0..400)
            .filter_map(|n| {
                let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).ok()?;
                socket.set_only_v6(true).ok()?;
                let port = 32_768 + n * 70;
                socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into()).ok()?;
                Some(socket.into())
            })
            .collect();
        for _ in 0..200 {
            let sockets = Sockets::open(0, 0).unwrap();
            let ports: Vec<u16> = sockets.listening.iter().flatten().map(|s| s.local_addr().unwrap().port()).collect();
            assert!(ports.iter().all(|port| *port == sockets.port() && *port != 0));
        }
        drop(taken);
    }

    #[test]
    fn a_family_that_the_host_lacks_is_left_out() {
        let lacks = || io::Error::from(Errno::AFNOSUPPORT);
        assert!(present(Err::<(), _>(lacks())).unwrap().is_none());
        assert!(present(Err::<(), _>(Errno::ADDRINUSE.into())).is_err());
        let mut sockets = Sockets::open(0, 0).unwrap();
        sockets.listening[1] = None;
        sockets.asking.get_mut().unwrap()[1] = None;
        assert!(sockets.receiving(true).is_none() && sockets.receiving(false).is_some());
        let to: SocketAddr = "[::1]:9".parse().unwrap();
        assert!(sockets.of(true).send_to(b"x", to).is_err(), "the other socket refuses it");
        assert_eq!(sockets.path_mtu(&to.into()), None);
        assert!(sockets.listen(sockets.port(), 0).unwrap().is_none());
    }
}
