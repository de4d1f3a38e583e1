//! The data path of a tunnel on this host: seals frames of the TUN device and opens datagrams of peers, on any thread. The caller does
//! what needs the device, which one thread at a time has ([`crate::worker`]).
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::{ArcSwap, Guard};
use parshall_core::tunnel::{
    CE, DATA_OVERHEAD, DataPath, Datagram, DropCause, Endpoint, GSO_DATAGRAMS_MAX, HEADER_LEN, ICMP_LEN_MAX, Link,
    Outcome, Plan, Refusal, Superframe, VirtioHeader, clamp_mss, datagram_len, destination, ecn, has_push, join,
    prepare_first, source, take_mark, too_big, udp_ports, unreachable,
};
use parshall_sys::clock::boottime_ns;
use parshall_sys::udp_batch::{DATAGRAM_MAX, SEGMENTS_MAX};
use parshall_sys::{eventfd, tun};

use crate::counts::{Count, Counts};
use crate::gso_sender::{GsoSender, Target};
use crate::sockets::Sockets;

const _: () = assert!(GSO_DATAGRAMS_MAX <= SEGMENTS_MAX);

/// Choices of the user about packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The MTU of the TUN device: padding does not make datagrams longer than it and [`DATA_OVERHEAD`].
    pub mtu: usize,
    /// Lower the MSS of TCP connections to what the path to the peer takes.
    pub clamp_mss: bool,
}

/// The work that a frame leaves for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Nothing,
    /// A handshake is due: the device is to be called.
    Attend,
    /// It was not sent. There is no session, or earlier packets still wait for one. With `attend`, as above.
    Frame {
        attend: bool,
    },
}

/// The result of opening at most [`SEGMENTS_MAX`] datagrams.
pub struct Opened {
    /// The packets' offsets and lengths.
    packets: [(usize, usize); SEGMENTS_MAX],
    found: usize,
    /// The ranges of handshake messages, which are passed to the device.
    pub handshakes: Vec<Range<usize>>,
    /// A handshake is due, or a session has been confirmed: the device is to be called.
    pub attend: bool,
}

/// The part of a tunnel that all threads share: [`DataPath`], which is pure, with the TUN device and the sockets.
pub struct HostDataPath {
    path: Arc<DataPath>,
    pub tun: File,
    /// The TUN device takes superframes of UDP.
    joins_udp: bool,
    settings: Settings,
    sockets: ArcSwap<Sockets>,
    /// Those that were replaced while requests of a ring used them. They have their port until these have ended.
    replaced: Mutex<Vec<Weak<Sockets>>>,
    counts: Arc<Counts>,
    /// Readable after a peer wrote from or to another address.
    roamed: OwnedFd,
    loop_is_reported: AtomicBool,
}

impl HostDataPath {
    pub fn new(path: Arc<DataPath>, tun: File, settings: Settings, sockets: Sockets) -> io::Result<Self> {
        // Kernels before 6.2 have no superframes of UDP.
        let joins_udp = tun::offload_udp(&tun).is_ok();
        let (sockets, counts) = (ArcSwap::from_pointee(sockets), Arc::default());
        let (replaced, loop_is_reported) = (Mutex::default(), AtomicBool::new(false));
        let roamed = eventfd::new()?;
        Ok(Self { path, tun, joins_udp, settings, sockets, replaced, counts, roamed, loop_is_reported })
    }

    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// The pure part, which the device shares. It counts what is dropped.
    pub fn path(&self) -> &Arc<DataPath> {
        &self.path
    }

    /// Readable after a peer wrote from or to another address ([`HostDataPath::signal_roaming`]).
    pub fn roamed(&self) -> &OwnedFd {
        &self.roamed
    }

    /// Makes [`HostDataPath::roamed`] readable if peers were noticed at another address.
    pub fn signal_roaming(&self) {
        if self.path.take_roamed() {
            eventfd::signal(&self.roamed);
        }
    }

    /// The sockets of this moment.
    pub fn sockets(&self) -> Guard<Arc<Sockets>> {
        self.sockets.load()
    }

    /// Listens on a port and marks what is sent; returns whether the sockets were replaced. If it fails, they are as before.
    pub fn listen(&self, port: u16, fwmark: u32) -> io::Result<bool> {
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.sockets.load_full();
        let back = replaced.iter().filter_map(Weak::upgrade).find(|sockets| sockets.port() == port);
        let from = back.unwrap_or_else(|| Arc::clone(&before));
        let now = from.listen(port, fwmark)?.map_or(from, Arc::new);
        if Arc::ptr_eq(&now, &before) {
            return Ok(false);
        }
        replaced.retain(|sockets| sockets.strong_count() > 0 && sockets.as_ptr() != Arc::as_ptr(&now));
        replaced.push(Arc::downgrade(&before));
        self.sockets.store(now);
        Ok(true)
    }

    /// Seals the packets of a frame that was read from the TUN device, its header included.
    pub fn frame(&self, sender: &mut impl GsoSender, bytes: &[u8]) -> Left {
        self.counts.add(Count::FramesRead, 1);
        let Some((frame, superframe)) = parse(bytes) else {
            self.path.count_drops(None, DropCause::BadFrame, 1);
            return Left::Nothing;
        };
        self.counts.add(Count::PacketsRead, superframe.packets());
        let Some(link) = self.link(frame) else {
            self.refuse(None, &superframe);
            return Left::Nothing;
        };
        if self.is_loop(&link, frame) {
            self.path.count_drops(Some(&link), DropCause::RoutingLoop, superframe.packets());
            return Left::Nothing;
        }
        if link.has_waiting() {
            return Left::Frame { attend: false };
        }
        match self.send_frame(sender, &link, &superframe) {
            Ok(false) => Left::Nothing,
            Ok(true) => Left::Attend,
            Err(Refusal::NoSession { attend }) => Left::Frame { attend },
            Err(Refusal::NoEndpoint) => {
                self.refuse(Some(&link), &superframe);
                Left::Nothing
            }
        }
    }

    /// Counts a frame that is dropped for others.
    pub fn drop_frame(&self, bytes: &[u8]) {
        if let Some((frame, superframe)) = parse(bytes) {
            self.path.count_drops(self.link(frame).as_deref(), DropCause::QueueFull, superframe.packets());
        }
    }

    /// The peer that a packet is for.
    pub fn link(&self, packet: &[u8]) -> Option<Arc<Link>> {
        destination(packet).and_then(|ip| self.path.routes().get(ip).map(Arc::clone))
    }

    /// Opens datagrams of `segment` bytes, of which the last may be shorter: at most [`SEGMENTS_MAX`]. `mark` are their bits of ECN. If `congested`, the sender of the first packet is
    /// notified: by ECN, or by the loss of the packet.
    pub fn open(&self, bytes: &mut [u8], segment: usize, from: &Endpoint, mark: u8, mut congested: bool) -> Opened {
        let count = bytes.len().div_ceil(segment);
        self.counts.add(Count::DatagramsReceived, count);
        let mut chunks = bytes.chunks_mut(segment);
        let mut batch: [Datagram<'_>; SEGMENTS_MAX] =
            std::array::from_fn(|_| Datagram::new(chunks.next().unwrap_or_default(), from));
        let attend = self.path.open(boottime_ns(), &mut batch[..count]);
        self.signal_roaming();
        let mut opened = Opened { packets: [(0, 0); SEGMENTS_MAX], found: 0, handshakes: Vec::new(), attend };
        for (n, datagram) in batch[..count].iter_mut().enumerate() {
            match datagram.outcome {
                Outcome::Packet { len, .. } => {
                    let packet = &mut datagram.bytes[HEADER_LEN..HEADER_LEN + len];
                    let (mark, cause) = if std::mem::take(&mut congested) {
                        (CE, DropCause::QueueFull)
                    } else {
                        (mark, DropCause::Congested)
                    };
                    if !take_mark(packet, mark) {
                        let link = source(packet).and_then(|ip| self.path.routes().get(ip).map(Arc::clone));
                        self.path.count_drops(link.as_deref(), cause, 1);
                        continue;
                    }
                    if self.settings.clamp_mss {
                        self.clamp(packet);
                    }
                    opened.packets[opened.found] = (n * segment + HEADER_LEN, len);
                    opened.found += 1;
                }
                Outcome::Handshake => {
                    let begin = n * segment;
                    opened.handshakes.push(begin..begin + datagram.bytes.len());
                }
                Outcome::Keepalive | Outcome::Dropped(_) | Outcome::Unopened => {}
            }
        }
        opened
    }

    /// Lowers the MSS of a packet from a peer to what fits the path back to it.
    fn clamp(&self, packet: &mut [u8]) {
        let link = source(packet).and_then(|ip| self.path.routes().get(ip).map(Arc::clone));
        let Some((link, to)) = link.and_then(|link| link.endpoint().map(|to| (link, to))) else { return };
        let plan = self.plan(&link, &to, DATAGRAM_MAX, boottime_ns());
        clamp_mss(packet, plan.inner_mtu.min(self.settings.mtu));
    }

    /// Whether a frame is what this tunnel sent to the very peer that it would be sealed for. It would come back longer each time.
    fn is_loop(&self, link: &Link, frame: &[u8]) -> bool {
        let own = udp_ports(frame).filter(|(port, _)| *port == self.sockets().port());
        let Some((_, to)) = own.filter(|(_, to)| link.endpoint().is_some_and(|endpoint| endpoint.remote == *to)) else {
            return false;
        };
        if !self.loop_is_reported.swap(true, Relaxed) {
            tracing::warn!(%to, "the routes lead this tunnel's own datagrams into the tunnel; hint: a route to the endpoint by another interface, or FwMark and a rule");
        }
        true
    }

    /// Seals a frame into as few GSO batches as the path takes. Returns whether the device is to be called.
    pub fn send_frame(
        &self,
        sender: &mut impl GsoSender,
        link: &Arc<Link>,
        frame: &Superframe<'_>,
    ) -> Result<bool, Refusal> {
        let now = boottime_ns();
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
        let gso_max = if fits { plan.gso_max } else { 1 };
        let per_batch = (DATAGRAM_MAX / stride).clamp(1, gso_max);
        for first in (0..packets).step_by(per_batch) {
            let count = per_batch.min(packets - first);
            let last_len = if first + count == packets { frame.last_len() } else { len };
            let target = Target { link: Some(Arc::clone(link)), to, ecn: ecn(frame.head()) };
            sender.queue(&self.sockets(), target, stride, |batch| {
                for n in 0..count {
                    let packet = &mut batch[n * stride + HEADER_LEN..];
                    let len = frame.write_packet(first + n, packet);
                    if self.settings.clamp_mss {
                        clamp_mss(&mut packet[..len], mtu);
                    }
                }
                sealer.seal_gso_batch(batch, stride, count, len, last_len)
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
        let mtu = self.sockets().path_mtu(to);
        let mut path = link.path();
        path.set_mtu(now, to.remote, mtu);
        path.plan(now, to.remote, len)
    }

    /// Handles a frame whose packets are too long for the path. Returns whether it is done with: its sender was sent a message,
    /// or no datagram can hold it. Otherwise the kernel sends its datagrams in fragments.
    fn refuse_too_big(&self, link: &Link, frame: &Superframe<'_>, inner_mtu: usize, now: u64) -> bool {
        let mut message = [0; ICMP_LEN_MAX];
        let reply = too_big(frame.head(), frame.packet_len(), inner_mtu, &mut message);
        if let Some(len) = reply.filter(|_| link.path().may_send_message(now)) {
            self.write_frame(&VirtioHeader::default().to_bytes(), &[&message[..len]], 1);
            self.path.count_drops(Some(link), DropCause::TooBig, frame.packets());
            return true;
        }
        let too_long = frame.packet_len() + DATA_OVERHEAD > DATAGRAM_MAX;
        if too_long {
            self.path.count_drops(Some(link), DropCause::TooLong, frame.packets());
        } else {
            self.counts.add(Count::Fragmented, frame.packets());
        }
        too_long
    }

    /// Drops a frame that is no peer's, or whose peer has no address, and tells its sender that the host is unreachable.
    fn refuse(&self, link: Option<&Link>, frame: &Superframe<'_>) {
        let now = boottime_ns();
        let (cause, may_send) = match link {
            Some(link) => (DropCause::NoEndpoint, link.path().may_send_message(now)),
            None => (DropCause::NoPeer, self.path.may_send_message(now)),
        };
        self.path.count_drops(link, cause, frame.packets());
        let mut message = [0; ICMP_LEN_MAX];
        if let Some(len) = unreachable(frame.head(), &mut message).filter(|_| may_send) {
            self.write_frame(&VirtioHeader::default().to_bytes(), &[&message[..len]], 1);
        }
    }

    /// Writes the packets of datagrams that were opened to the TUN device.
    pub fn write(&self, bytes: &mut [u8], opened: &Opened) {
        self.write_packets(bytes, &opened.packets[..opened.found]);
    }

    /// Writes packets, which lie at these places, to the TUN device: neighbours that fit together as one frame.
    fn write_packets(&self, bytes: &mut [u8], packets: &[(usize, usize)]) {
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
    fn write_frame(&self, header: &[u8], parts: &[&[u8]], packets: usize) {
        let mut slices = [IoSlice::new(&[]); SEGMENTS_MAX + 1];
        slices[0] = IoSlice::new(header);
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        match (&self.tun).write_vectored(&slices[..=parts.len()]) {
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
                self.path.count_drops(None, DropCause::DeviceRefused, packets);
            }
        }
    }
}

/// A frame without its header, and what the header says of it.
pub fn parse(bytes: &[u8]) -> Option<(&[u8], Superframe<'_>)> {
    let (header, frame) = bytes.split_first_chunk()?;
    Some((frame, Superframe::new(VirtioHeader::from_bytes(*header), frame).ok()?))
}

/// Packet `n` of a frame by itself.
pub fn packet(frame: &Superframe<'_>, n: usize) -> Vec<u8> {
    let mut packet = vec![0; frame.packet_len()];
    let len = frame.write_packet(n, &mut packet);
    packet.truncate(len);
    packet
}
