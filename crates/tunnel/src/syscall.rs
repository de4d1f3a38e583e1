//! The loop with read, writev, recvmmsg and sendmmsg: one thread moves all packets of a tunnel and does its handshakes.
//!
//! Superframes are read from the TUN device and sealed in an order that is fair to flows ([`Frames`]): the packets of each are written
//! into a GSO batch and sealed there, and it leaves in one message (UDP_SEGMENT). Datagrams arrive gathered (UDP_GRO), are opened where they lie, and go to the device as superframes.
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use parshall_core::tunnel::{DataPath, DropCause, Endpoint};
use parshall_sys::epoll::{Epoll, Events, READABLE};
use parshall_sys::udp_batch::{DatagramBatch, Received};

use crate::counts::{Count, Counts};
use crate::data_path::HostDataPath;
use crate::frames::{Frames, SEAL_BYTES};
use crate::gso_sender::{GsoSender, Target, count_sent, send_failed};
use crate::sockets::Sockets;
use crate::worker::Worker;

const TUN: u64 = 0;
const V4: u64 = 1;
const V6: u64 = 2;
const STOP: u64 = 3;
const REQUESTS: u64 = 4;

/// Messages that are received, and GSO batches that are sent, with one system call.
pub const CALL_MESSAGES: usize = 16;

/// The most bytes that are opened before the other direction goes on.
const OPEN_BYTES: usize = SEAL_BYTES;
/// The most messages that are opened, or frames that are sealed, before the other direction goes on.
const ROUND_MESSAGES: usize = 16 * CALL_MESSAGES;

/// The loop with its buffers.
pub struct Syscall {
    worker: Worker,
    data_path: Arc<HostDataPath>,
    sender: BatchedSender,
    incoming: DatagramBatch,
    frames: Frames<Box<[u8]>>,
}

impl Syscall {
    pub fn new(worker: Worker) -> Self {
        let data_path = Arc::clone(worker.data_path());
        Self {
            sender: BatchedSender::new(&data_path),
            worker,
            data_path,
            incoming: DatagramBatch::new(CALL_MESSAGES),
            frames: Frames::default(),
        }
    }

    /// Moves packets until `stop` is readable. Fails when the TUN device or epoll does.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let epoll = Epoll::new()?;
        epoll.add(&self.data_path.tun, TUN, READABLE)?;
        watch(&epoll, &self.data_path.sockets())?;
        epoll.add(&stop, STOP, READABLE)?;
        if let Some(requests) = self.worker.requests_fd() {
            epoll.add(&requests, REQUESTS, READABLE)?;
        }
        let mut events = Events::with_capacity(5);
        loop {
            let wait = if self.frames.is_empty() { self.worker.wait() } else { Duration::ZERO };
            epoll.wait(&mut events, wait)?;
            for (token, _) in events.iter() {
                match token {
                    TUN => self.frames.read(&self.data_path)?,
                    STOP => return Ok(()),
                    REQUESTS => {
                        if self.worker.serve_requests(&mut self.sender) {
                            watch(&epoll, &self.data_path.sockets())?;
                        }
                    }
                    family => self.receive(family == V6),
                }
            }
            self.seal_frames();
            self.worker.end_round(&mut self.sender);
        }
    }

    /// Seals the frames that are next, and queues them as GSO batches.
    fn seal_frames(&mut self) {
        let (mut bytes, mut frames) = (0, 0);
        while bytes < SEAL_BYTES && frames < ROUND_MESSAGES {
            let Some(frame) = self.frames.pop(&self.data_path) else { return };
            bytes += frame.bytes().len();
            frames += 1;
            self.worker.frame(&mut self.sender, frame.bytes());
            self.frames.sealed(frame);
        }
    }

    /// Receives what has come to one socket.
    fn receive(&mut self, ipv6: bool) {
        let (mut bytes, mut messages) = (0, 0);
        while bytes < OPEN_BYTES && messages < ROUND_MESSAGES {
            self.incoming.clear();
            self.data_path.counts().add(Count::ReceiveCalls, 1);
            // An error is that of an earlier send to some peer (ECONNREFUSED), and says nothing about this socket.
            let count = self.incoming.receive(self.data_path.sockets().of(ipv6).as_fd(), true).unwrap_or(0);
            for slot in 0..count {
                let Received { bytes: len, segment, peer, local, interface, ecn, arrived, .. } =
                    self.incoming.received()[slot];
                let from = Endpoint { remote: peer, local, interface };
                self.worker.datagrams(self.incoming.payload_mut(slot), segment, &from, ecn, arrived);
                bytes += len;
            }
            if count < CALL_MESSAGES {
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

/// GSO batches that are sent by sendmmsg, all of one family together.
pub struct BatchedSender {
    batch: DatagramBatch,
    /// Of each message of the batch.
    targets: Vec<Target>,
    /// The family of the GSO batches that wait.
    to_v6: bool,
    counts: Arc<Counts>,
    path: Arc<DataPath>,
}

impl BatchedSender {
    pub fn new(data_path: &HostDataPath) -> Self {
        Self {
            batch: DatagramBatch::new(CALL_MESSAGES),
            targets: Vec::with_capacity(CALL_MESSAGES),
            to_v6: false,
            counts: Arc::clone(data_path.counts()),
            path: Arc::clone(data_path.path()),
        }
    }
}

impl BatchedSender {
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Whether another GSO batch can be queued without sending those that wait.
    pub fn takes(&self, to: &Endpoint) -> bool {
        self.to_v6 == to.remote.is_ipv6() && self.targets.len() < CALL_MESSAGES
    }
}

impl GsoSender for BatchedSender {
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

    /// Drops and counts datagrams that cannot be sent.
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
