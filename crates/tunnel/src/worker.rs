//! What all loops do with frames of the TUN device and with datagrams of peers. How both are moved is the loop's.
//!
//! One thread moves all packets. The design for several, which is not built: threads take turns at reading. A thread reads one frame
//! under a lock, takes its counters and a ticket there, and lets the next one read. It seals by itself, which is the longest part,
//! waits until its ticket is due, and sends. So one peer's packets leave in the order in which they were read, use every core,
//! and no packet is passed between threads. Receiving is the same: tickets order the replay window and the writes to the TUN
//! device. A multi-queue TUN device is no way to it, because it spreads one flow over its queues and reorders.
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parshall_core::tunnel::{
    DATA_OVERHEAD, DataPath, Datagram, Device, DeviceChange, Endpoint, Event, HEADER_LEN, Link, Outcome, Output,
    PeerId, Plan, QUEUED_PACKETS_MAX, Refusal, Superframe, TOO_BIG_LEN_MAX, TRAIN_MAX, Time, VirtioHeader, clamp_mss,
    datagram_len, destination, has_push, join, prepare_first, too_big,
};
use parshall_sys::clock::monotonic_ns;
use parshall_sys::tun;
use parshall_sys::udp_batch::{DATAGRAM_MAX, SEGMENTS_MAX};

use crate::control::Requests;
use crate::counts::{Count, Counts};
use crate::sockets::Sockets;
use crate::trains::Trains;

const _: () = assert!(TRAIN_MAX <= SEGMENTS_MAX);

/// A loop waits no longer than this.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// What a user may choose about packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The MTU of the TUN device: padding does not make datagrams longer than it and [`DATA_OVERHEAD`].
    pub mtu: usize,
    /// Lower the MSS of TCP connections to what the path to the peer takes.
    pub clamp_mss: bool,
}

/// A tunnel: its device, its interface and its sockets.
pub struct Worker {
    device: Device,
    path: Arc<DataPath>,
    pub tun: File,
    /// The TUN device takes superframes of UDP.
    joins_udp: bool,
    settings: Settings,
    pub sockets: Sockets,
    /// Packets that wait for a session.
    queued: HashMap<PeerId, VecDeque<Vec<u8>>>,
    out: Output,
    /// From clients of the configuration protocol.
    requests: Option<Requests>,
    counts: Arc<Counts>,
}

fn time() -> Time {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time { now: monotonic_ns(), unix }
}

impl Worker {
    /// Takes a configured device and a TUN device with virtio headers, and opens the sockets.
    pub fn new(mut device: Device, tun: File, settings: Settings, requests: Option<Requests>) -> io::Result<Self> {
        let sockets = Sockets::open(device.listen_port(), device.fwmark())?;
        let port = DeviceChange { listen_port: Some(sockets.port()?), ..DeviceChange::default() };
        let mut out = Output::default();
        device.configure(&port, &mut out);
        // Kernels before 6.2 have no superframes of UDP.
        let joins_udp = tun::offload_udp(&tun).is_ok();
        Ok(Self {
            path: device.data_path(),
            device,
            tun,
            joins_udp,
            settings,
            sockets,
            queued: HashMap::new(),
            out,
            requests,
            counts: Arc::default(),
        })
    }

    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// The shared state of a peer.
    pub fn link(&self, peer: PeerId) -> Option<&Arc<Link>> {
        self.device.link(peer)
    }

    /// What is readable when clients of the configuration protocol ask for something.
    pub fn requests_fd(&self) -> Option<BorrowedFd<'_>> {
        self.requests.as_ref().map(Requests::fd)
    }

    /// Does what clients have asked for. Returns whether the sockets were replaced, by ones that the loop has to watch.
    pub fn serve_requests(&mut self, trains: &mut impl Trains) -> bool {
        let Some(requests) = &mut self.requests else { return false };
        trains.flush(&self.sockets);
        let (sockets, mut replaced) = (&mut self.sockets, false);
        requests.serve(&mut self.device, &mut self.out, &self.counts.read(), |port, fwmark| {
            replaced |= sockets.listen(port, fwmark)?;
            sockets.port()
        });
        replaced
    }

    /// How long the loop may wait for packets.
    pub fn wait(&self) -> Duration {
        let wait = self.device.deadline().map_or(u64::MAX, |due| due.saturating_sub(monotonic_ns()));
        Duration::from_nanos(wait).min(WAIT_MAX)
    }

    /// Does what is due by time, and sends all that waits. A loop calls it before it waits.
    pub fn end_turn(&mut self, trains: &mut impl Trains) {
        if self.device.deadline().is_some_and(|due| due <= monotonic_ns()) {
            self.device.tick(time(), &mut self.out);
        }
        self.put_out(trains);
        trains.flush(&self.sockets);
    }

    /// Seals the packets of a frame that was read from the TUN device, its header included.
    pub fn frame(&mut self, trains: &mut impl Trains, bytes: &[u8]) {
        self.counts.add(Count::FramesRead, 1);
        let parsed = bytes
            .split_first_chunk()
            .and_then(|(header, frame)| Some((frame, Superframe::new(VirtioHeader::from_bytes(*header), frame).ok()?)));
        let Some((frame, superframe)) = parsed else { return self.counts.add(Count::BadFrame, 1) };
        let packets = superframe.packets();
        self.counts.add(Count::PacketsRead, packets);
        let routes = self.path.routes();
        let link = destination(frame).and_then(|ip| routes.get(ip)).map(Arc::clone);
        drop(routes);
        let Some(link) = link else { return self.counts.add(Count::NoPeer, packets) };
        let attend = match self.send_frame(trains, &link, &superframe) {
            Ok(attend) => attend,
            Err(Refusal::NoSession { attend }) => {
                let queued = self.queued.entry(link.id()).or_default();
                queued.extend((0..packets).map(|n| packet(&superframe, n)));
                let excess = queued.len().saturating_sub(QUEUED_PACKETS_MAX);
                queued.drain(..excess);
                self.counts.add(Count::Discarded, excess);
                attend
            }
            Err(Refusal::NoEndpoint) => {
                self.counts.add(Count::NoEndpoint, packets);
                false
            }
        };
        if attend {
            self.device.attend(time(), &mut self.out);
        }
    }

    /// Opens datagrams of `segment` bytes, of which the last may be shorter, and writes their packets to the TUN device.
    pub fn datagrams(&mut self, bytes: &mut [u8], segment: usize, from: &Endpoint) {
        self.counts.add(Count::MessagesReceived, 1);
        for bytes in bytes.chunks_mut(segment * SEGMENTS_MAX) {
            self.open(bytes, segment, from);
        }
    }

    /// Opens at most [`SEGMENTS_MAX`] datagrams.
    fn open(&mut self, bytes: &mut [u8], segment: usize, from: &Endpoint) {
        let count = bytes.len().div_ceil(segment);
        self.counts.add(Count::DatagramsReceived, count);
        let mut chunks = bytes.chunks_mut(segment);
        let mut batch: [Datagram<'_>; SEGMENTS_MAX] =
            std::array::from_fn(|_| Datagram::new(chunks.next().unwrap_or_default(), from));
        let mut attend = self.path.open(monotonic_ns(), &mut batch[..count]);
        // Where each packet lies.
        let mut packets = [(0, 0); SEGMENTS_MAX];
        let mut found = 0;
        for (n, datagram) in batch[..count].iter_mut().enumerate() {
            match datagram.outcome {
                Outcome::Packet { peer, len } => {
                    if let Some(mtu) = self.clamp_to(peer) {
                        clamp_mss(&mut datagram.bytes[HEADER_LEN..HEADER_LEN + len], mtu);
                    }
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
        self.write_packets(bytes, &packets[..found]);
        if attend {
            self.device.attend(time(), &mut self.out);
        }
    }

    /// The MTU that an MSS is to fit, if it is to be lowered at all.
    fn clamp_to(&self, peer: PeerId) -> Option<usize> {
        let link = self.settings.clamp_mss.then(|| self.device.link(peer))??;
        let to = link.endpoint()?;
        Some(self.plan(link, &to, DATAGRAM_MAX, monotonic_ns()).inner_mtu.min(self.settings.mtu))
    }

    /// Queues what the device has put out, and the packets that can be sent now.
    fn put_out(&mut self, trains: &mut impl Trains) {
        while !(self.out.messages.is_empty() && self.out.events.is_empty()) {
            for message in self.out.messages.drain(..) {
                let bytes = message.bytes();
                trains.queue(&self.sockets, None, &message.to, bytes.len(), |buffer| {
                    buffer[..bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                });
            }
            let mut attend = false;
            for event in std::mem::take(&mut self.out.events) {
                let (peer, flush) = match event {
                    Event::Flush(peer) => (peer, true),
                    Event::Discard(peer) => (peer, false),
                };
                let waiting = self.queued.remove(&peer).unwrap_or_default();
                let Some(link) = self.device.link(peer).filter(|_| flush).map(Arc::clone) else {
                    self.counts.add(Count::Discarded, waiting.len());
                    continue;
                };
                for packet in &waiting {
                    let frame = Superframe::new(VirtioHeader::default(), packet).expect("a packet without offloads");
                    match self.send_frame(trains, &link, &frame) {
                        Ok(more) => attend |= more,
                        Err(_) => self.counts.add(Count::Discarded, 1),
                    }
                }
            }
            if attend {
                self.device.attend(time(), &mut self.out);
            }
        }
    }

    /// Seals a frame into as few trains as the path takes. Returns whether the device is to be called.
    fn send_frame(
        &mut self,
        trains: &mut impl Trains,
        link: &Arc<Link>,
        frame: &Superframe<'_>,
    ) -> Result<bool, Refusal> {
        let now = monotonic_ns();
        let (packets, len) = (frame.packets(), frame.packet_len());
        let to = link.endpoint().ok_or(Refusal::NoEndpoint)?;
        let plan = self.plan(link, &to, if self.settings.clamp_mss { DATAGRAM_MAX } else { len }, now);
        let fits = len <= plan.inner_mtu;
        if !fits && self.refuse_too_big(link, frame, plan.inner_mtu, now) {
            return Ok(false);
        }
        let mut sealer = link.sealer(now, packets as u32)?;
        let mtu = self.settings.mtu.min(plan.inner_mtu);
        let stride = datagram_len(len).min(mtu.max(len) + DATA_OVERHEAD);
        let train_max = if fits { plan.train_max } else { 1 };
        let per_train = (DATAGRAM_MAX / stride).clamp(1, train_max);
        for first in (0..packets).step_by(per_train) {
            let count = per_train.min(packets - first);
            let last_len = if first + count == packets { frame.last_len() } else { len };
            trains.queue(&self.sockets, Some(link), &to, stride, |train| {
                for n in 0..count {
                    let packet = &mut train[n * stride + HEADER_LEN..];
                    let len = frame.write_packet(first + n, packet);
                    if self.settings.clamp_mss {
                        clamp_mss(&mut packet[..len], mtu);
                    }
                }
                sealer.seal_train(train, stride, count, len, last_len)
            });
        }
        Ok(sealer.finish(now))
    }

    /// How packets of this length are sent to a peer.
    fn plan(&self, link: &Link, to: &Endpoint, len: usize, now: u64) -> Plan {
        let plan = link.path().plan(now, to.remote, len);
        if !plan.ask_mtu {
            return plan;
        }
        let mtu = self.sockets.path_mtu(to);
        let mut path = link.path();
        path.set_mtu(now, to.remote, mtu);
        path.plan(now, to.remote, len)
    }

    /// Handles a frame whose packets are too long for the path. Returns whether it is done with: its sender was sent a message,
    /// or no datagram can hold it. Otherwise the kernel sends its datagrams in fragments.
    fn refuse_too_big(&mut self, link: &Link, frame: &Superframe<'_>, inner_mtu: usize, now: u64) -> bool {
        let mut message = [0; TOO_BIG_LEN_MAX];
        let told = too_big(frame.head(), frame.packet_len(), inner_mtu, &mut message);
        if let Some(len) = told.filter(|_| link.path().may_send_message(now)) {
            self.write_frame(&VirtioHeader::default().to_bytes(), &[&message[..len]], 1);
            self.counts.add(Count::TooBig, frame.packets());
            return true;
        }
        let too_long = frame.packet_len() + DATA_OVERHEAD > DATAGRAM_MAX;
        self.counts.add(if too_long { Count::TooLong } else { Count::Fragmented }, frame.packets());
        too_long
    }

    /// Writes packets, which lie at these places, to the TUN device: neighbours that fit together as one frame.
    fn write_packets(&mut self, bytes: &mut [u8], packets: &[(usize, usize)]) {
        let mut rest = packets;
        while let Some(joined) = join(rest.iter().map(|(at, len)| &bytes[*at..*at + *len]), self.joins_udp) {
            let (frame, others) = rest.split_at(joined.packets);
            rest = others;
            let (first_at, first_len) = frame[0];
            if let [_, .., (last_at, last_len)] = frame {
                let frame_len = first_len + frame[1..].iter().map(|(_, len)| len - joined.payload_at).sum::<usize>();
                let pushed = has_push(&bytes[*last_at..*last_at + *last_len], &joined);
                prepare_first(&mut bytes[first_at..first_at + first_len], &joined, frame_len, pushed);
            }
            let mut parts: [&[u8]; SEGMENTS_MAX] = [&[]; SEGMENTS_MAX];
            parts[0] = &bytes[first_at..first_at + first_len];
            for (part, (at, len)) in parts[1..].iter_mut().zip(&frame[1..]) {
                *part = &bytes[*at + joined.payload_at..*at + *len];
            }
            self.write_frame(&joined.header.to_bytes(), &parts[..joined.packets], joined.packets);
        }
    }

    /// Writes a frame of `packets` packets. That the device is gone is known by reading.
    fn write_frame(&mut self, header: &[u8], parts: &[&[u8]], packets: usize) {
        let mut slices = [IoSlice::new(&[]); SEGMENTS_MAX + 1];
        slices[0] = IoSlice::new(header);
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        match self.tun.write_vectored(&slices[..=parts.len()]) {
            Ok(written) => {
                debug_assert_eq!(
                    written,
                    slices.iter().map(|slice| slice.len()).sum::<usize>(),
                    "a frame is taken as a whole"
                );
                self.counts.add(Count::FramesWritten, 1);
                self.counts.add(Count::PacketsWritten, packets);
            }
            // The kernel refuses what it cannot parse or has no memory for, and drops while the interface is down.
            Err(error) => {
                tracing::debug!(%error, "the TUN device took no frame");
                self.counts.add(Count::FrameRefused, 1);
            }
        }
    }
}

/// Packet `n` of a frame by itself.
fn packet(frame: &Superframe<'_>, n: usize) -> Vec<u8> {
    let mut packet = vec![0; frame.packet_len()];
    let len = frame.write_packet(n, &mut packet);
    packet.truncate(len);
    packet
}
