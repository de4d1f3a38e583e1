//! UDP packets: sent in batches (sendmmsg, and UDP_SEGMENT where nothing limits the rate), received in batches (recvmmsg, UDP_GRO).
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use parshall_core::load::{Arrivals, Pattern};
use parshall_sys::epoll::{Epoll, Events, READABLE, WRITABLE};
use parshall_sys::udp_batch::{DATAGRAM_MAX, DatagramBatch, SEGMENTS_MAX, options};

use super::super::common::Clock;
use super::phase::{Counter, Counters, Counts, Phase};

/// Messages of one sendmmsg or recvmmsg.
const BATCH: usize = 64;
/// Larger messages carry enough for one call: a batch of 8 is half a megabyte.
const SEGMENTED_BATCH: usize = 8;
/// The kernel drops what arrives while this is full. It is cut to net.core.rmem_max.
const RECEIVE_BUFFER: usize = 4 << 20;

/// The packets to send.
#[derive(Debug, Clone, Copy)]
pub struct Packets {
    pub bytes: usize,
    /// Packets per second of all threads; None for as many as the sender can.
    pub schedule: Option<(Pattern, f64)>,
    /// Each packet takes its own way through the stack, without UDP_SEGMENT.
    pub single: bool,
}

/// Opens a UDP port beside a connection, says which, and counts what arrives there until the load ends.
pub fn serve(mut control: &TcpStream, counters: &Counters, clock: &Clock) -> io::Result<()> {
    let socket = UdpSocket::bind((control.local_addr()?.ip(), 0))?;
    socket2::SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER)?;
    // Kernels before 5.0 have none.
    options::gather_on_receive(socket.as_fd()).ok();
    let port = socket.local_addr()?.port();
    let (counter, clock) = (counters.register(), clock.clone());
    std::thread::Builder::new().name("load-packets".into()).spawn(move || {
        if let Err(error) = receive(&socket, &counter, &clock) {
            tracing::warn!("receiving packets: {error}");
        }
    })?;
    control.write_all(&port.to_be_bytes())
}

fn receive(socket: &UdpSocket, counter: &Counter, clock: &Clock) -> io::Result<()> {
    let mut batch = DatagramBatch::new(BATCH);
    let epoll = Epoll::new()?;
    epoll.add(socket, 0, READABLE)?;
    let mut events = Events::with_capacity(1);
    while !clock.over() {
        batch.clear();
        match batch.receive(socket.as_fd(), false) {
            Ok(_) => {
                let mut counts = Counts::default();
                for received in batch.received() {
                    counts.operations += received.datagrams() as u64;
                    counts.received += received.bytes as u64;
                }
                counter.add(counts);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                epoll.wait(&mut events, Duration::from_millis(100))?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// One thread of `threads` that sends.
pub fn send(
    target: SocketAddr,
    packets: Packets,
    (thread, threads): (u32, u32),
    counter: &Arc<Counter>,
    phase: &Phase,
) -> io::Result<()> {
    let local: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(local)?;
    socket.connect(target)?;
    let mut sender = Sender::new(socket, packets)?;
    match packets.schedule {
        Some((pattern, per_s)) => {
            parshall_sys::child::set_timer_slack_ns(1);
            let arrivals = Arrivals::share(pattern, per_s, u64::from(std::process::id()), thread, threads);
            sender.paced(arrivals, counter, phase)
        }
        None => sender.flood(counter, phase),
    }
}

/// A socket, and messages that are made once and sent again and again.
struct Sender {
    socket: UdpSocket,
    batch: DatagramBatch,
    epoll: Epoll,
    events: Events,
}

impl Sender {
    fn new(socket: UdpSocket, packets: Packets) -> io::Result<Self> {
        let segments = (DATAGRAM_MAX / packets.bytes).clamp(1, SEGMENTS_MAX);
        let (messages, segments) = match packets.single || packets.schedule.is_some() || segments == 1 {
            true => (BATCH, 1),
            false => (SEGMENTED_BATCH, segments),
        };
        let mut batch = DatagramBatch::new(messages);
        while let Some(slot) = batch.take_slot() {
            batch.payload_mut(slot)[..packets.bytes * segments].fill(b'p');
            batch.begin(None, None, 0);
            batch.attach(slot, packets.bytes * segments);
            batch.end(packets.bytes);
        }
        let epoll = Epoll::new()?;
        epoll.add(&socket, 0, WRITABLE)?;
        Ok(Self { socket, batch, epoll, events: Events::with_capacity(1) })
    }

    /// Sends as much as the socket takes.
    fn flood(&mut self, counter: &Counter, phase: &Phase) -> io::Result<()> {
        while !phase.over(phase.now_ns()) {
            self.transmit(0, counter)?;
        }
        Ok(())
    }

    /// Sends each packet when it is due. Packets that are due at once go with one call.
    fn paced(&mut self, mut arrivals: Arrivals, counter: &Counter, phase: &Phase) -> io::Result<()> {
        loop {
            let now = phase.now_ns();
            if phase.over(now) {
                return Ok(());
            }
            let due = (0..BATCH).take_while(|_| arrivals.take(now).is_some()).count();
            if due > 0 {
                self.transmit(BATCH - due, counter)?;
            } else {
                std::thread::sleep(Duration::from_nanos(arrivals.next_ns().saturating_sub(now).min(100_000_000)));
            }
        }
    }

    /// Sends the messages from this index on.
    fn transmit(&mut self, from: usize, counter: &Counter) -> io::Result<()> {
        let mut from = from;
        let all = self.batch.messages().len();
        while from < all {
            match self.batch.transmit(self.socket.as_fd(), from) {
                Ok(sent) => {
                    let mut counts = Counts::default();
                    for message in &self.batch.messages()[from..from + sent] {
                        counts.operations += message.datagrams() as u64;
                        counts.sent += message.bytes as u64;
                    }
                    counter.add(counts);
                    from += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.epoll.wait(&mut self.events, Duration::from_millis(100))?;
                    if self.events.is_empty() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
