//! Calls the device: for handshakes, timers, changes of the configuration, and packets that wait for a session. All else is done by
//! [`crate::data_path`].
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parshall_core::tunnel::{
    Device, DeviceChange, DropCause, Endpoint, Event, Link, NOT_ECT, Output, PeerId, QUEUED_PACKETS_MAX, Refusal,
    Superframe, Time, VirtioHeader,
};
use parshall_sys::clock::boottime_ns;
use parshall_sys::tun;
use parshall_sys::udp_batch::SEGMENTS_MAX;

use crate::control::Requests;
use crate::counts::Count;
use crate::data_path::{HostDataPath, Left, Opened, Settings, packet, parse};
use crate::gso_sender::{GsoSender, Target};
use crate::receive_queue::ReceiveQueue;
use crate::sockets::Sockets;

/// A loop waits no longer than this.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// A tunnel as the thread has it that calls its device.
pub struct Worker {
    device: Device,
    data_path: Arc<HostDataPath>,
    /// Packets that wait for a session. Their links say that they have some.
    queued: HashMap<PeerId, VecDeque<Vec<u8>>>,
    out: Output,
    receive_queue: ReceiveQueue,
    /// From clients of the configuration protocol.
    requests: Option<Requests>,
}

fn time() -> Time {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time { now: boottime_ns(), unix }
}

impl Worker {
    /// Takes a configured device and a TUN device with virtio headers, and opens the sockets.
    pub fn new(mut device: Device, tun: File, settings: Settings, requests: Option<Requests>) -> io::Result<Self> {
        let sockets = Sockets::open(device.listen_port(), device.fwmark())?;
        let port = DeviceChange { listen_port: Some(sockets.port()), ..DeviceChange::default() };
        let mut out = Output::default();
        device.configure(&port, &mut out);
        let data_path = Arc::new(HostDataPath::new(device.data_path(), tun, settings, sockets)?);
        let receive_queue = ReceiveQueue::default();
        Ok(Self { device, data_path, queued: HashMap::new(), out, receive_queue, requests })
    }

    pub fn data_path(&self) -> &Arc<HostDataPath> {
        &self.data_path
    }

    /// The shared state of a peer.
    pub fn link(&self, peer: PeerId) -> Option<&Arc<Link>> {
        self.device.link(peer)
    }

    /// Readable when clients of the configuration protocol ask for something.
    pub fn requests_fd(&self) -> Option<BorrowedFd<'_>> {
        self.requests.as_ref().map(Requests::fd)
    }

    /// Does what clients have asked for. Returns whether the sockets were replaced, by ones that the loop has to watch.
    pub fn serve_requests(&mut self, sender: &mut impl GsoSender) -> bool {
        let Some(requests) = &mut self.requests else { return false };
        sender.flush(&self.data_path.sockets());
        let (data_path, mut replaced) = (&self.data_path, false);
        requests.serve(boottime_ns(), &mut self.device, &mut self.out, &data_path.counts().read(), |port, fwmark| {
            replaced |= data_path.listen(port, fwmark)?;
            Ok(data_path.sockets().port())
        });
        replaced
    }

    /// When the device is due, in nanoseconds of the monotonic clock.
    pub fn deadline(&self) -> Option<u64> {
        self.device.deadline()
    }

    /// How long the loop may wait for packets.
    pub fn wait(&self) -> Duration {
        let wait = self.device.deadline().map_or(u64::MAX, |due| due.saturating_sub(boottime_ns()));
        Duration::from_nanos(wait).min(WAIT_MAX)
    }

    /// Does what is due by time, and sends all that waits. A loop calls it before it waits.
    pub fn end_round(&mut self, sender: &mut impl GsoSender) {
        if self.device.deadline().is_some_and(|due| due <= boottime_ns()) {
            self.see_state();
            self.device.tick(time(), &mut self.out);
        }
        self.put_out(sender);
        sender.flush(&self.data_path.sockets());
    }

    /// Seals the packets of a frame that was read from the TUN device, its header included.
    pub fn frame(&mut self, sender: &mut impl GsoSender, bytes: &[u8]) {
        let left = self.data_path.frame(sender, bytes);
        self.finish_frame(sender, bytes, left);
    }

    /// Does what a frame has left to do.
    pub fn finish_frame(&mut self, sender: &mut impl GsoSender, bytes: &[u8], left: Left) {
        let attend = match left {
            Left::Nothing => false,
            Left::Attend => true,
            Left::Frame { attend } => attend | self.send_or_hold(sender, bytes),
        };
        if attend {
            self.see_state();
            self.device.attend(time(), &mut self.out);
        }
    }

    /// Tells the device whether the interface is up, before it may send something by itself.
    fn see_state(&mut self) {
        self.device.set_up(tun::is_up(&self.data_path.tun), &mut self.out);
    }

    /// Sends a frame behind the packets that wait, or has it wait too. Returns whether the device is to be called.
    fn send_or_hold(&mut self, sender: &mut impl GsoSender, bytes: &[u8]) -> bool {
        let Some((frame, superframe)) = parse(bytes) else { return false };
        let Some(link) = self.data_path.link(frame) else { return false };
        let mut attend = self.flush_peer(sender, &link);
        if link.has_waiting() {
            self.hold(&link, &superframe);
            return attend;
        }
        match self.data_path.send_frame(sender, &link, &superframe) {
            Ok(more) => attend |= more,
            Err(Refusal::NoSession { attend: more }) => {
                attend |= more;
                self.hold(&link, &superframe);
            }
            Err(Refusal::NoEndpoint) => {
                self.data_path.path().count_drops(Some(&link), DropCause::NoEndpoint, superframe.packets());
            }
        }
        attend
    }

    /// Keeps the newest packets.
    fn hold(&mut self, link: &Link, frame: &Superframe<'_>) {
        let queued = self.queued.entry(link.id()).or_default();
        queued.extend((0..frame.packets()).map(|n| packet(frame, n)));
        let excess = queued.len().saturating_sub(QUEUED_PACKETS_MAX);
        queued.drain(..excess);
        self.data_path.path().count_drops(Some(link), DropCause::NoSession, excess);
        link.set_waiting(true);
    }

    /// Opens datagrams of `segment` bytes, of which the last may be shorter, and writes their packets to the TUN device. `mark` are
    /// their bits of ECN, and `arrived` is when they did, since 1970.
    pub fn datagrams(
        &mut self,
        bytes: &mut [u8],
        segment: usize,
        from: &Endpoint,
        mark: u8,
        arrived: Option<Duration>,
    ) {
        self.data_path.counts().add(Count::MessagesReceived, 1);
        let mut congested = self.receive_queue.is_congested(bytes.len(), segment, arrived);
        for bytes in bytes.chunks_mut(segment * SEGMENTS_MAX) {
            let opened = self.data_path.open(bytes, segment, from, mark, std::mem::take(&mut congested));
            self.finish_datagrams(bytes, &opened, from);
            self.data_path.write(bytes, &opened);
        }
    }

    /// Does what datagrams have left to do.
    pub fn finish_datagrams(&mut self, bytes: &[u8], opened: &Opened, from: &Endpoint) {
        if !opened.attend && opened.handshakes.is_empty() {
            return;
        }
        self.see_state();
        for place in &opened.handshakes {
            // The cause of a failure has been counted.
            let _ = self.device.receive(time(), &bytes[place.clone()], from, &mut self.out);
        }
        self.device.attend(time(), &mut self.out);
        self.data_path.signal_roaming();
    }

    /// Queues what the device has put out, and the packets that can be sent now.
    pub fn put_out(&mut self, sender: &mut impl GsoSender) {
        while !(self.out.messages.is_empty() && self.out.events.is_empty()) {
            for message in self.out.messages.drain(..) {
                let bytes = message.bytes();
                let target = Target { link: None, to: message.to, ecn: NOT_ECT };
                sender.queue(&self.data_path.sockets(), target, bytes.len(), |buffer| {
                    buffer[..bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                });
            }
            let mut attend = false;
            for event in std::mem::take(&mut self.out.events) {
                match event {
                    Event::Flush(peer) => {
                        let link = self.device.link(peer).map(Arc::clone);
                        attend |= link.is_some_and(|link| self.flush_peer(sender, &link));
                    }
                    Event::Discard(peer) => self.discard(peer),
                }
            }
            if attend {
                self.device.attend(time(), &mut self.out);
            }
        }
        for lookup in self.out.lookups.drain(..) {
            self.requests.iter_mut().for_each(|requests| requests.look_up(lookup.clone()));
        }
    }

    /// Sends the packets that wait, as far as there is a session. Returns whether the device is to be called.
    fn flush_peer(&mut self, sender: &mut impl GsoSender, link: &Arc<Link>) -> bool {
        let Some(mut waiting) = self.queued.remove(&link.id()) else { return false };
        let mut attend = false;
        while let Some(packet) = waiting.front() {
            let frame = Superframe::new(VirtioHeader::default(), packet).expect("a packet without offloads");
            match self.data_path.send_frame(sender, link, &frame) {
                Ok(more) => attend |= more,
                Err(Refusal::NoSession { attend: more }) => {
                    attend |= more;
                    break;
                }
                Err(Refusal::NoEndpoint) => self.data_path.path().count_drops(Some(link), DropCause::NoEndpoint, 1),
            }
            waiting.pop_front();
        }
        link.set_waiting(!waiting.is_empty());
        if !waiting.is_empty() {
            self.queued.insert(link.id(), waiting);
        }
        attend
    }

    /// Drops the packets that wait for a peer.
    fn discard(&mut self, peer: PeerId) {
        let waiting = self.queued.remove(&peer).unwrap_or_default();
        let link = self.device.link(peer);
        self.data_path.path().count_drops(link.map(|link| &**link), DropCause::NoSession, waiting.len());
        if let Some(link) = link {
            link.set_waiting(false);
        }
    }
}
