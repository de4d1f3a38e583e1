//! The loop with read, writev, recvmmsg and sendmmsg: one thread moves all packets of a tunnel and does its handshakes.
//!
//! A superframe is read from the TUN device, its packets are written into a train and sealed there, and the train leaves in one
//! message (UDP_SEGMENT). Datagrams arrive gathered (UDP_GRO), are opened where they lie, and go to the device as superframes.
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parshall_core::tunnel::{
    DATA_OVERHEAD, DataPath, Datagram, Device, DeviceChange, Endpoint, Event, HEADER_LEN, Link, Outcome, Output,
    PeerId, QUEUED_PACKETS_MAX, Refusal, Superframe, Time, VIRTIO_HEADER_LEN, VirtioHeader, datagram_len, destination,
    has_push, join, prepare_first,
};
use parshall_sys::clock::monotonic_ns;
use parshall_sys::epoll::{Epoll, Events, READABLE};
use parshall_sys::udp_batch::{DATAGRAM_MAX, DatagramBatch, Received, SEGMENTS_MAX};

use crate::control::Requests;
use crate::counters::Counters;
use crate::sockets::Sockets;

const TUN: u64 = 0;
const V4: u64 = 1;
const V6: u64 = 2;
const STOP: u64 = 3;
const REQUESTS: u64 = 4;

/// Frames that are read, and messages that are received, before the other direction gets its turn.
const TURN: usize = 16;

/// The longest frame that a TUN device passes, with its header.
const FRAME_BYTES: usize = 65_536 + VIRTIO_HEADER_LEN;

/// A tunnel and what its packets pass.
pub struct Plain {
    device: Device,
    path: Arc<DataPath>,
    tun: File,
    /// The MTU of the TUN device: padding does not make datagrams longer than it and [`DATA_OVERHEAD`].
    mtu: usize,
    sockets: Sockets,
    incoming: DatagramBatch,
    frame: Box<[u8]>,
    /// Packets that wait for a session.
    queued: HashMap<PeerId, VecDeque<Vec<u8>>>,
    out: Output,
    /// From clients of the configuration protocol.
    requests: Option<Requests>,
    counters: Counters,
}

fn time() -> Time {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time { now: monotonic_ns(), unix }
}

impl Plain {
    /// Takes a configured device, a non-blocking TUN device with virtio headers and its MTU, and opens the sockets.
    pub fn new(mut device: Device, tun: File, mtu: usize, requests: Option<Requests>) -> io::Result<Self> {
        let sockets = Sockets::open(device.listen_port(), device.fwmark())?;
        let port = DeviceChange { listen_port: Some(sockets.port()?), ..DeviceChange::default() };
        let mut out = Output::default();
        device.configure(&port, &mut out);
        Ok(Self {
            path: device.data_path(),
            device,
            tun,
            mtu,
            sockets,
            incoming: DatagramBatch::new(TURN),
            frame: vec![0; FRAME_BYTES].into(),
            queued: HashMap::new(),
            out,
            requests,
            counters: Counters::default(),
        })
    }

    /// The port of the sockets.
    pub fn port(&self) -> io::Result<u16> {
        self.sockets.port()
    }

    /// Moves packets until `stop` is readable. Fails when the TUN device or epoll does.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let epoll = Epoll::new()?;
        epoll.add(&self.tun, TUN, READABLE)?;
        watch(&epoll, &self.sockets)?;
        epoll.add(&stop, STOP, READABLE)?;
        if let Some(requests) = &self.requests {
            epoll.add(&requests.fd(), REQUESTS, READABLE)?;
        }
        let mut events = Events::with_capacity(5);
        loop {
            let now = monotonic_ns();
            let wait = self.device.deadline().map_or(u64::MAX, |due| due.saturating_sub(now));
            epoll.wait(&mut events, Duration::from_nanos(wait).min(Duration::from_secs(3600)))?;
            for (token, _) in events.iter() {
                match token {
                    TUN => self.read_frames()?,
                    STOP => return Ok(()),
                    REQUESTS => self.serve_requests(&epoll),
                    family => self.receive(family)?,
                }
            }
            if self.device.deadline().is_some_and(|due| due <= monotonic_ns()) {
                self.device.tick(time(), &mut self.out);
            }
            self.put_out();
            self.sockets.flush();
        }
    }

    fn serve_requests(&mut self, epoll: &Epoll) {
        let Some(requests) = &mut self.requests else { return };
        let sockets = &mut self.sockets;
        let counters = sockets.add_to(self.counters);
        requests.serve(&mut self.device, &mut self.out, &counters, |port, fwmark| {
            if sockets.listen(port, fwmark)? {
                watch(epoll, sockets)?;
            }
            sockets.port()
        });
    }

    /// Reads frames from the TUN device and queues them as trains.
    fn read_frames(&mut self) -> io::Result<()> {
        for _ in 0..TURN {
            let len = match self.tun.read(&mut self.frame) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let Some((header, frame)) = self.frame[..len].split_first_chunk() else { continue };
            let Ok(superframe) = Superframe::new(VirtioHeader::from_bytes(*header), frame) else { continue };
            let routes = self.path.routes();
            let packets = superframe.packets() as u64;
            self.counters.frames_read += 1;
            self.counters.packets_read += packets;
            let Some(link) = destination(frame).and_then(|ip| routes.get(ip)) else {
                self.counters.packets_without_peer += packets;
                continue;
            };
            let now = monotonic_ns();
            let (attend, refused) = match send_frame(&mut self.sockets, link, &superframe, self.mtu, now) {
                Ok(attend) => (attend, false),
                Err(Refusal::NoSession { attend }) => (attend, true),
                Err(Refusal::NoEndpoint) => {
                    self.counters.packets_without_endpoint += packets;
                    (false, false)
                }
            };
            if refused {
                let queued = self.queued.entry(link.id()).or_default();
                queued.extend((0..superframe.packets()).map(|n| packet(&superframe, n)));
                let too_many = queued.len().saturating_sub(QUEUED_PACKETS_MAX);
                queued.drain(..too_many);
                self.counters.packets_without_session += too_many as u64;
            }
            if attend {
                self.device.attend(time(), &mut self.out);
            }
        }
        Ok(())
    }

    /// Receives what has come to one socket.
    fn receive(&mut self, family: u64) -> io::Result<()> {
        let socket = if family == V4 { &self.sockets.v4 } else { &self.sockets.v6 };
        self.incoming.clear();
        // An error is that of an earlier send to some peer (ECONNREFUSED), and says nothing about this socket.
        let count = self.incoming.receive(socket.as_fd(), true).unwrap_or(0);
        for slot in 0..count {
            let Received { segment, peer, local, .. } = self.incoming.received()[slot];
            let from = Endpoint { remote: peer, local, interface: 0 };
            let len = self.incoming.payload(slot).len();
            self.counters.trains_received += 1;
            self.counters.datagrams_received += len.div_ceil(segment.max(1)) as u64;
            for start in (0..len).step_by(segment * SEGMENTS_MAX) {
                let end = len.min(start + segment * SEGMENTS_MAX);
                self.open(slot, start..end, segment, &from)?;
            }
        }
        Ok(())
    }

    /// Opens at most [`SEGMENTS_MAX`] datagrams of a slot and writes their packets to the TUN device.
    fn open(&mut self, slot: usize, range: std::ops::Range<usize>, segment: usize, from: &Endpoint) -> io::Result<()> {
        let bytes = &mut self.incoming.payload_mut(slot)[range];
        let count = bytes.len().div_ceil(segment);
        let mut chunks = bytes.chunks_mut(segment);
        let mut batch: [Datagram<'_>; SEGMENTS_MAX] =
            std::array::from_fn(|_| Datagram::new(chunks.next().unwrap_or_default(), from));
        let mut attend = self.path.open(monotonic_ns(), &mut batch[..count]);
        // Where each packet lies.
        let mut packets = [(0, 0); SEGMENTS_MAX];
        let mut found = 0;
        for (n, datagram) in batch[..count].iter().enumerate() {
            match datagram.outcome {
                Outcome::Packet { len, .. } => {
                    packets[found] = (n * segment + HEADER_LEN, len);
                    found += 1;
                }
                Outcome::Handshake => {
                    // The cause of a failure has been counted.
                    let _ = self.device.receive(time(), datagram.bytes, from, &mut self.out);
                    attend = true;
                }
                Outcome::Keepalive | Outcome::Dropped(_) | Outcome::Unopened => {}
            }
        }
        write_frames(&mut self.tun, bytes, &packets[..found], &mut self.counters)?;
        if attend {
            self.device.attend(time(), &mut self.out);
        }
        Ok(())
    }

    /// Queues what the device has put out, and the packets that can be sent now.
    fn put_out(&mut self) {
        while !(self.out.messages.is_empty() && self.out.events.is_empty()) {
            for message in self.out.messages.drain(..) {
                let bytes = message.bytes();
                self.sockets.queue(&message.to, bytes.len(), |buffer| {
                    buffer[..bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                });
            }
            let mut attend = false;
            for event in self.out.events.drain(..) {
                let (peer, flush) = match event {
                    Event::Flush(peer) => (peer, true),
                    Event::Discard(peer) => (peer, false),
                };
                let waiting = self.queued.remove(&peer).unwrap_or_default();
                let Some(link) = self.device.link(peer).filter(|_| flush) else {
                    self.counters.packets_without_session += waiting.len() as u64;
                    continue;
                };
                for packet in &waiting {
                    let frame = Superframe::new(VirtioHeader::default(), packet).expect("a packet without offloads");
                    attend |= matches!(send_frame(&mut self.sockets, link, &frame, self.mtu, monotonic_ns()), Ok(true));
                }
            }
            if attend {
                self.device.attend(time(), &mut self.out);
            }
        }
    }
}

/// Has epoll watch new sockets. Old ones leave it when they are closed.
fn watch(epoll: &Epoll, sockets: &Sockets) -> io::Result<()> {
    epoll.add(&sockets.v4, V4, READABLE)?;
    epoll.add(&sockets.v6, V6, READABLE)
}

/// Packet `n` of a frame by itself.
fn packet(frame: &Superframe<'_>, n: usize) -> Vec<u8> {
    let mut packet = vec![0; frame.packet_len()];
    let len = frame.write_packet(n, &mut packet);
    packet.truncate(len);
    packet
}

/// Seals a frame into as few trains as the kernel allows. Returns whether the device is to be called.
fn send_frame(
    sockets: &mut Sockets,
    link: &Link,
    frame: &Superframe<'_>,
    mtu: usize,
    now: u64,
) -> Result<bool, Refusal> {
    let (packets, len) = (frame.packets(), frame.packet_len());
    let mut sealer = link.sealer(now, packets as u32)?;
    let to = link.endpoint().ok_or(Refusal::NoEndpoint)?;
    let stride = datagram_len(len).min(mtu.max(len) + DATA_OVERHEAD);
    let per_train = (DATAGRAM_MAX / stride).clamp(1, SEGMENTS_MAX);
    for first in (0..packets).step_by(per_train) {
        let count = per_train.min(packets - first);
        let last_len = if first + count == packets { frame.last_len() } else { len };
        sockets.queue(&to, stride, |train| {
            for n in 0..count {
                frame.write_packet(first + n, &mut train[n * stride + HEADER_LEN..]);
            }
            sealer.seal_train(train, stride, count, len, last_len)
        });
    }
    Ok(sealer.finish(now))
}

/// Writes packets, which lie at these places, to the TUN device: neighbours that fit together as one frame.
fn write_frames(
    tun: &mut File,
    bytes: &mut [u8],
    packets: &[(usize, usize)],
    counters: &mut Counters,
) -> io::Result<()> {
    let mut rest = packets;
    while let Some(joined) = join(rest.iter().map(|(at, len)| &bytes[*at..*at + *len])) {
        let (frame, others) = rest.split_at(joined.packets);
        rest = others;
        let (first_at, first_len) = frame[0];
        if let [_, .., (last_at, last_len)] = frame {
            let frame_len = first_len + frame[1..].iter().map(|(_, len)| len - joined.payload_at).sum::<usize>();
            let pushed = has_push(&bytes[*last_at..*last_at + *last_len], &joined);
            prepare_first(&mut bytes[first_at..first_at + first_len], &joined, frame_len, pushed);
        }
        let header = joined.header.to_bytes();
        let mut slices = [IoSlice::new(&[]); SEGMENTS_MAX + 1];
        slices[0] = IoSlice::new(&header);
        slices[1] = IoSlice::new(&bytes[first_at..first_at + first_len]);
        for (slice, (at, len)) in slices[2..].iter_mut().zip(&frame[1..]) {
            *slice = IoSlice::new(&bytes[*at + joined.payload_at..*at + *len]);
        }
        match tun.write_vectored(&slices[..=joined.packets]) {
            Ok(_) => {
                counters.frames_written += 1;
                counters.packets_written += joined.packets as u64;
            }
            // The kernel refuses what it cannot parse or has no memory for, and drops while the interface is down.
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::BADFD.raw_os_error()) => {
                counters.frames_refused += 1;
                tracing::debug!(%error, "the TUN device took no frame");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
