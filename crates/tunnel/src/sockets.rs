//! The two UDP sockets of a tunnel, one for each family, on one port; and the trains that wait to be sent.
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use parshall_core::tunnel::Endpoint;
use parshall_sys::udp_batch::{DatagramBatch, options};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::counters::Counters;

/// Buffers of each socket, in bytes: some milliseconds at 10 Gbit/s. The kernel lowers it to its limits.
const BUFFER_BYTES: usize = 4 << 20;

/// Trains that are sent together.
const TRAINS: usize = 16;

/// How long a full send buffer is waited for; then what it holds up is dropped.
const SEND_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

pub struct Sockets {
    pub v4: UdpSocket,
    pub v6: UdpSocket,
    trains: DatagramBatch,
    /// The family of the trains that wait.
    to_v6: bool,
    /// Datagrams that could not be sent.
    unsent: u64,
    trains_sent: u64,
    datagrams_sent: u64,
}

impl Sockets {
    /// Opens both on `port`, or with 0 on one that the kernel chooses. `fwmark` is the mark of what they send; 0 for none.
    pub fn open(port: u16, fwmark: u32) -> io::Result<Self> {
        let (v4, v6) = open_both(port, fwmark)?;
        Ok(Self {
            v4,
            v6,
            trains: DatagramBatch::new(TRAINS),
            to_v6: false,
            unsent: 0,
            trains_sent: 0,
            datagrams_sent: 0,
        })
    }

    pub fn port(&self) -> io::Result<u16> {
        Ok(self.v4.local_addr()?.port())
    }

    /// Marks what is sent from now on, and listens on `port`; with 0 on another one that the kernel chooses. Returns whether
    /// the sockets were replaced. If it fails, they are as before.
    pub fn listen(&mut self, port: u16, fwmark: u32) -> io::Result<bool> {
        if port == self.port()? {
            for socket in [&self.v4, &self.v6] {
                SockRef::from(socket).set_mark(fwmark)?;
            }
            return Ok(false);
        }
        let sockets = open_both(port, fwmark)?;
        self.flush();
        (self.v4, self.v6) = sockets;
        Ok(true)
    }

    /// Adds what was sent to the counts of a loop.
    pub fn add_to(&self, counters: Counters) -> Counters {
        Counters {
            trains_sent: self.trains_sent,
            datagrams_sent: self.datagrams_sent,
            datagrams_refused: self.unsent,
            ..counters
        }
    }

    /// Has `write` fill a buffer with datagrams of `segment` bytes, of which the last may be shorter, and return their length.
    /// They are sent with the next [`Sockets::flush`] at the latest.
    pub fn queue(&mut self, to: &Endpoint, segment: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        if self.to_v6 != to.remote.is_ipv6() {
            self.flush();
            self.to_v6 = to.remote.is_ipv6();
        }
        let slot = match self.trains.take_slot() {
            Some(slot) => slot,
            None => {
                self.flush();
                self.trains.take_slot().expect("a flush empties all slots")
            }
        };
        let bytes = write(self.trains.payload_mut(slot));
        self.trains.begin(Some(&to.remote), to.local, 0);
        self.trains.attach(slot, bytes);
        self.trains.end(segment);
    }

    /// Sends all that waits. What cannot be sent is dropped, as a network would.
    pub fn flush(&mut self) {
        let socket = if self.to_v6 { &self.v6 } else { &self.v4 };
        self.trains_sent += self.trains.messages().len() as u64;
        self.datagrams_sent += self.trains.messages().iter().map(|m| m.datagrams() as u64).sum::<u64>();
        let mut next = 0;
        while next < self.trains.messages().len() {
            match self.trains.transmit(socket.as_fd(), next) {
                Ok(sent) => next += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
                    if poll(&mut fds, Some(&SEND_WAIT)) != Ok(1) {
                        self.unsent += self.trains.messages()[next..].iter().map(|m| m.datagrams() as u64).sum::<u64>();
                        break;
                    }
                }
                Err(error) => {
                    self.unsent += send_apart(&mut self.trains, socket, next, &error);
                    next += 1;
                }
            }
        }
        self.trains.clear();
    }
}

/// Sends the datagrams of a train one by one: the route or the device may not take trains (EIO, EINVAL), or may have a smaller
/// MTU (EMSGSIZE). Returns how many could not be sent.
fn send_apart(trains: &mut DatagramBatch, socket: &UdpSocket, train: usize, error: &io::Error) -> u64 {
    let count = trains.messages()[train].datagrams();
    tracing::debug!(%error, count, "a train was not sent");
    let unsent = (0..count).filter(|part| trains.transmit_part(socket.as_fd(), train, *part).is_err());
    unsent.count() as u64
}

fn open_both(port: u16, fwmark: u32) -> io::Result<(UdpSocket, UdpSocket)> {
    let v4 = open((Ipv4Addr::UNSPECIFIED, port).into(), fwmark)?;
    let port = v4.local_addr()?.port();
    let v6 = open((Ipv6Addr::UNSPECIFIED, port).into(), fwmark)?;
    Ok((v4, v6))
}

fn open(address: SocketAddr, fwmark: u32) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if fwmark != 0 {
        socket.set_mark(fwmark)?;
    }
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.set_send_buffer_size(BUFFER_BYTES)?;
    options::report_local_address(socket.as_fd(), address.is_ipv6())?;
    // Kernels before 5.0 lack it, and then each datagram is received by itself.
    options::gather_on_receive(socket.as_fd()).ok();
    socket.bind(&address.into())?;
    Ok(socket.into())
}
