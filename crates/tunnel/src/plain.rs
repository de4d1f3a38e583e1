//! The loop with read, writev, recvmmsg and sendmmsg: one thread moves all packets of a tunnel and does its handshakes.
//!
//! Superframes are read from the TUN device and sealed in an order that is fair to flows ([`FairQueue`]): the packets of each are written
//! into a train and sealed there, and the train leaves in one message (UDP_SEGMENT). Datagrams arrive gathered (UDP_GRO), are opened where they lie, and go to the device as superframes.
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use parshall_core::tunnel::{DataPath, DropCause, Endpoint, FairQueue, VIRTIO_HEADER_LEN};
use parshall_sys::clock::boottime_ns;
use parshall_sys::epoll::{Epoll, Events, READABLE};
use parshall_sys::udp_batch::{DatagramBatch, Received};

use crate::counts::{Count, Counts};
use crate::mover::Mover;
use crate::sockets::Sockets;
use crate::trains::{Target, Trains, count_sent, send_failed};
use crate::worker::Worker;

const TUN: u64 = 0;
const V4: u64 = 1;
const V6: u64 = 2;
const STOP: u64 = 3;
const REQUESTS: u64 = 4;

/// Messages that are received, and trains that are sent, with one system call.
pub const TURN: usize = 16;

/// What is sealed, and what is opened, before the other direction gets its turn. Bytes are what takes time: acknowledgements are many and
/// small, and where as many of them as of superframes were taken, they waited for each other until a connection's whole window did.
const TURN_BYTES: usize = 4 << 16;
/// The same for small ones.
const TURN_MESSAGES: usize = 16 * TURN;

/// Bytes of frames that are read before [`TURN_BYTES`] are sealed. It is more, so that what waits does so in the fair queue and not in the
/// device, and not much more: reading what is dropped then costs time.
const READ_BYTES: usize = 2 * TURN_BYTES;

/// The longest frame that a TUN device passes, with its header.
pub const FRAME_BYTES: usize = 65_536 + VIRTIO_HEADER_LEN;

/// The loop with its buffers.
pub struct Plain {
    worker: Worker,
    mover: Arc<Mover>,
    trains: BatchedTrains,
    incoming: DatagramBatch,
    frames: Frames,
}

/// Frames that were read and are not sealed.
#[derive(Default)]
struct Frames {
    queue: FairQueue,
    /// With the lengths of their frames. There are as many as were needed at once, and the system gives memory only to what was used.
    buffers: Vec<(Box<[u8]>, usize)>,
    /// Buffers without a frame. The last one that became free is used first: it is in the CPU's cache.
    free: Vec<usize>,
    /// Used again by [`Plain::seal_frames`].
    dropped: Vec<usize>,
}

impl Frames {
    /// Reads a frame, and returns its length and the buffer of one that is dropped for it.
    fn read(&mut self, tun: &mut impl Read) -> io::Result<(usize, Option<usize>)> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.buffers.push((vec![0; FRAME_BYTES].into(), 0));
            self.buffers.len() - 1
        });
        let (buffer, len) = &mut self.buffers[slot];
        *len = match tun.read(buffer) {
            Ok(len) => len,
            Err(error) => {
                self.free.push(slot);
                return Err(error);
            }
        };
        let dropped =
            self.queue.push(boottime_ns(), slot, *len, buffer[..*len].get(VIRTIO_HEADER_LEN..).unwrap_or_default());
        self.free.extend(dropped);
        Ok((*len, dropped))
    }

    fn bytes(&self, slot: usize) -> &[u8] {
        let (buffer, len) = &self.buffers[slot];
        &buffer[..*len]
    }
}

impl Plain {
    pub fn new(worker: Worker) -> Self {
        let mover = Arc::clone(worker.mover());
        Self {
            trains: BatchedTrains::new(&mover),
            worker,
            mover,
            incoming: DatagramBatch::new(TURN),
            frames: Frames::default(),
        }
    }

    /// Moves packets until `stop` is readable. Fails when the TUN device or epoll does.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let epoll = Epoll::new()?;
        epoll.add(&self.mover.tun, TUN, READABLE)?;
        watch(&epoll, &self.mover.sockets())?;
        epoll.add(&stop, STOP, READABLE)?;
        if let Some(requests) = self.worker.requests_fd() {
            epoll.add(&requests, REQUESTS, READABLE)?;
        }
        let mut events = Events::with_capacity(5);
        loop {
            let wait = if self.frames.queue.is_empty() { self.worker.wait() } else { Duration::ZERO };
            epoll.wait(&mut events, wait)?;
            for (token, _) in events.iter() {
                match token {
                    TUN => self.read_frames()?,
                    STOP => return Ok(()),
                    REQUESTS => {
                        if self.worker.serve_requests(&mut self.trains) {
                            watch(&epoll, &self.mover.sockets())?;
                        }
                    }
                    family => self.receive(family == V6),
                }
            }
            self.seal_frames();
            self.worker.end_turn(&mut self.trains);
        }
    }

    /// Seals the frames whose turn it is, and queues them as trains.
    fn seal_frames(&mut self) {
        let (mut bytes, mut frames) = (0, 0);
        let now = boottime_ns();
        while bytes < TURN_BYTES && frames < TURN_MESSAGES {
            let mut dropped = std::mem::take(&mut self.frames.dropped);
            let next = self.frames.queue.pop(now, &mut dropped);
            dropped.iter().for_each(|slot| self.mover.drop_frame(self.frames.bytes(*slot)));
            self.frames.free.append(&mut dropped);
            self.frames.dropped = dropped;
            let Some(slot) = next else { return };
            let frame = self.frames.bytes(slot);
            bytes += frame.len();
            frames += 1;
            self.worker.frame(&mut self.trains, frame);
            self.frames.free.push(slot);
        }
    }

    /// Reads frames from the TUN device.
    fn read_frames(&mut self) -> io::Result<()> {
        let mut bytes = 0;
        while bytes < READ_BYTES && self.frames.queue.takes() {
            match self.frames.read(&mut &self.mover.tun) {
                Ok((len, dropped)) => {
                    bytes += len;
                    dropped.iter().for_each(|slot| self.mover.drop_frame(self.frames.bytes(*slot)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives what has come to one socket.
    fn receive(&mut self, ipv6: bool) {
        let (mut bytes, mut messages) = (0, 0);
        while bytes < TURN_BYTES && messages < TURN_MESSAGES {
            self.incoming.clear();
            self.mover.counts().add(Count::ReceiveCalls, 1);
            // An error is that of an earlier send to some peer (ECONNREFUSED), and says nothing about this socket.
            let count = self.incoming.receive(self.mover.sockets().of(ipv6).as_fd(), true).unwrap_or(0);
            for slot in 0..count {
                let Received { bytes: len, segment, peer, local, interface, ecn, arrived, .. } =
                    self.incoming.received()[slot];
                let from = Endpoint { remote: peer, local, interface };
                self.worker.datagrams(self.incoming.payload_mut(slot), segment, &from, ecn, arrived);
                bytes += len;
            }
            if count < TURN {
                return;
            }
            messages += count;
        }
    }
}

/// Has epoll watch new sockets. Old ones leave it when they are closed.
fn watch(epoll: &Epoll, sockets: &Sockets) -> io::Result<()> {
    for (ipv6, token) in [(false, V4), (true, V6)] {
        if let Some(socket) = sockets.receiving(ipv6) {
            match epoll.add(socket, token, READABLE) {
                // Sockets that were replaced a moment ago are back.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                added => added?,
            }
        }
    }
    Ok(())
}

/// Trains that are sent by sendmmsg, all of one family together.
pub struct BatchedTrains {
    batch: DatagramBatch,
    /// Of each message of the batch.
    targets: Vec<Target>,
    /// The family of the trains that wait.
    to_v6: bool,
    counts: Arc<Counts>,
    path: Arc<DataPath>,
}

impl BatchedTrains {
    pub fn new(mover: &Mover) -> Self {
        Self {
            batch: DatagramBatch::new(TURN),
            targets: Vec::with_capacity(TURN),
            to_v6: false,
            counts: Arc::clone(mover.counts()),
            path: Arc::clone(mover.path()),
        }
    }
}

impl BatchedTrains {
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Whether another train can be queued without sending those that wait.
    pub fn takes(&self, to: &Endpoint) -> bool {
        self.to_v6 == to.remote.is_ipv6() && self.targets.len() < TURN
    }
}

impl Trains for BatchedTrains {
    fn queue(
        &mut self,
        sockets: &Arc<Sockets>,
        target: Target,
        segment: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let to = &target.to;
        if self.to_v6 != to.remote.is_ipv6() {
            self.flush(sockets);
            self.to_v6 = to.remote.is_ipv6();
        }
        let slot = match self.batch.take_slot() {
            Some(slot) => slot,
            None => {
                self.flush(sockets);
                self.batch.take_slot().expect("a flush empties all slots")
            }
        };
        let bytes = write(self.batch.payload_mut(slot));
        self.batch.begin(Some(&to.remote), to.local, 0);
        self.batch.set_ecn(target.ecn);
        self.batch.attach(slot, bytes);
        self.batch.end(segment);
        self.targets.push(target);
    }

    /// What cannot be sent is dropped and counted.
    fn flush(&mut self, sockets: &Arc<Sockets>) {
        let mut next = 0;
        while next < self.batch.messages().len() {
            self.counts.add(Count::SendCalls, 1);
            match self.batch.transmit(sockets.of(self.to_v6).as_fd(), next) {
                Ok(sent) => {
                    count_sent(&self.counts, &self.batch.messages()[next..next + sent]);
                    next += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !sockets.wait_for_space(self.to_v6) {
                        for (message, target) in self.batch.messages()[next..].iter().zip(&self.targets[next..]) {
                            let (peer, cause) = (target.link.as_deref(), DropCause::SendBufferFull);
                            self.path.count_drops(peer, cause, message.datagrams());
                        }
                        break;
                    }
                }
                Err(error) => {
                    let target = &self.targets[next];
                    send_failed(&self.counts, &self.path, sockets, &mut self.batch, next, target, &error);
                    next += 1;
                }
            }
        }
        self.batch.clear();
        self.targets.clear();
    }
}
