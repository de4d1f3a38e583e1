//! The loop with io_uring: one ring for one thread. Each iteration is one system call, which submits the sends and reads of the last
//! one and waits.
//!
//! Datagrams arrive by multishot requests in buffers of the ring, gathered (UDP_GRO), and are opened there. A few reads of the TUN
//! device are in flight: each that waits costs a wake-up for every frame. Frames are written by `writev`, because a write to a TUN
//! device does all its work in the call. Sends are linked, so that one that waits for space is not overtaken.
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use parshall_core::tunnel::{DataPath, Endpoint};
use parshall_sys::udp_batch::DatagramBatch;
use parshall_sys::uring::{Completion, DATAGRAM_HEADER_LEN, ReadBuffer, Request, Ring, Sizes};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::counts::{Count, Counts};
use crate::data_path::HostDataPath;
use crate::frames::{Frame, Frames};
use crate::gso_sender::{GsoSender, Target, count_sent, send_failed};
use crate::sockets::Sockets;
use crate::worker::Worker;

const TUN: u64 = 0;
const TUN_READY: u64 = 1;
const STOP: u64 = 2;
const REQUESTS: u64 = 3;
/// And the next one for IPv6.
const RECEIVE: u64 = 4;
/// The number of the slot is added.
const SEND: u64 = 1 << 32;

/// Buffers for received messages, of both sockets.
const RECEIVE_BUFFERS: u16 = 32;
const RECEIVE_BYTES: u32 = (DATAGRAM_HEADER_LEN + 65_536) as u32;
/// How long the thread of SQPOLL stays awake without work, in milliseconds.
const SQPOLL_IDLE_MS: u32 = 10;
/// How often sends that wait for space are waited for, 10 ms each; then they are cancelled.
const SEND_WAITS: u32 = 5;
const SEND_WAIT: Duration = Duration::from_millis(10);

/// The most bytes that are sealed, and that are opened, in one iteration. They are fewer than those of the system call loop, because an
/// iteration costs a single system call.
const ITERATION_BYTES: usize = 2 << 16;
/// The most bytes that are read and opened before frames are sealed, as long as the device may have more: so packets wait in the fair
/// queue.
const UNSEALED_BYTES: usize = 2 * ITERATION_BYTES;

/// Choices of the user about the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunables {
    /// Entries of the submission queue, at least. There are always enough for all slots.
    pub entries: u32,
    /// Reads of the TUN device in flight.
    pub tun_slots: usize,
    /// GSO batches in flight.
    pub send_slots: usize,
    /// A kernel thread submits.
    pub sqpoll: bool,
    /// GSO batches are sent without copying them into the kernel.
    pub zero_copy: bool,
    /// The TUN device is in blocking mode.
    pub blocking_tun: bool,
}

impl Default for Tunables {
    fn default() -> Self {
        Self { entries: 64, tun_slots: 4, send_slots: 16, sqpoll: false, zero_copy: false, blocking_tun: false }
    }
}

/// The loop with its ring. It belongs to the thread that made it.
pub struct Uring {
    worker: Worker,
    sender: RingSender,
    tunables: Tunables,
    frames: Frames<ReadBuffer>,
    /// Reads of the TUN device in flight.
    reads: usize,
    /// Bytes that were read or opened since frames were sealed.
    unsealed: usize,
    /// Received messages that wait until what was read is sealed.
    deferred: Vec<Completion>,
    /// The requests that receive over IPv4 and IPv6.
    receives: [Option<Request>; 2],
    /// All requests that receive, with their sockets, which stay open until they have ended.
    receiving: Vec<(Request, Arc<Sockets>)>,
    /// A read of the TUN device found nothing, and the kernel did not let it wait. Poll tells when the next one is due.
    drained: bool,
    polls_tun: bool,
    /// Used again in every iteration.
    done: Vec<Completion>,
}

impl Uring {
    /// Opens a ring for the calling thread. ENOSYS, EPERM, EINVAL: the host has none, or an old one.
    pub fn new(worker: Worker, tunables: Tunables) -> io::Result<Self> {
        let slots = tunables.send_slots + tunables.tun_slots + 8;
        let requests = tunables.entries.max(slots as u32);
        let completions = 4 * requests + u32::from(RECEIVE_BUFFERS);
        let sizes = Sizes { requests, completions, groups: 1, buffers: RECEIVE_BUFFERS, buffer_bytes: RECEIVE_BYTES };
        let ring = if tunables.sqpoll { Ring::open_polled(sizes, SQPOLL_IDLE_MS)? } else { Ring::open(sizes)? };
        if tunables.blocking_tun {
            let tun = &worker.data_path().tun;
            fcntl_setfl(tun, fcntl_getfl(tun)? - OFlags::NONBLOCK)?;
        }
        let sender = RingSender::new(ring, worker.data_path(), &tunables);
        Ok(Self {
            worker,
            sender,
            tunables,
            receives: [None; 2],
            receiving: Vec::new(),
            frames: Frames::default(),
            reads: 0,
            unsealed: 0,
            deferred: Vec::new(),
            drained: false,
            polls_tun: false,
            done: Vec::new(),
        })
    }

    /// Moves packets until `stop` is readable. Fails when the TUN device or the ring does.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        self.sender.ring.poll(stop.as_raw_fd(), STOP);
        self.poll_requests();
        (0..2).for_each(|family| self.begin_to_receive(family));
        loop {
            self.read();
            self.worker.end_round(&mut self.sender);
            self.sender.ring.publish();
            let idle = self.frames.is_empty() && self.deferred.is_empty() && self.sender.others.is_empty();
            let wait = if idle { self.worker.wait() } else { Duration::ZERO };
            self.worker.data_path().counts().add(Count::ReceiveCalls, 1);
            self.sender.ring.enter(Some(wait))?;
            self.sender.reap();
            let mut done = std::mem::replace(&mut self.deferred, std::mem::take(&mut self.done));
            done.append(&mut self.sender.others);
            let (mut opened, reads) = (0, self.reads);
            for completion in done.drain(..) {
                match completion.tag {
                    STOP => return Ok(()),
                    RECEIVE.. if opened >= ITERATION_BYTES => self.deferred.push(completion),
                    RECEIVE.. => opened += self.receive(completion)?,
                    _ => self.complete(completion)?,
                }
            }
            self.done = done;
            self.unsealed += opened;
            let may_have_more = reads - self.reads == self.tunables.tun_slots && !self.drained && self.frames.takes();
            if !may_have_more || self.unsealed >= UNSEALED_BYTES {
                self.unsealed = 0;
                self.seal_frames();
            }
        }
    }

    /// Seals the frames that are next.
    fn seal_frames(&mut self) {
        let mut bytes = 0;
        while bytes < ITERATION_BYTES {
            let Some(frame) = self.frames.pop(self.worker.data_path()) else { return };
            bytes += frame.bytes().len();
            self.worker.frame(&mut self.sender, frame.bytes());
            self.frames.sealed(frame);
        }
    }

    fn complete(&mut self, completion: Completion) -> io::Result<()> {
        match completion.tag {
            TUN => self.finish_read(completion),
            TUN_READY => {
                (self.drained, self.polls_tun) = (false, completion.more);
                Ok(())
            }
            REQUESTS => {
                if self.worker.serve_requests(&mut self.sender) {
                    for family in 0..2 {
                        self.receives[family].into_iter().for_each(|old| self.sender.ring.cancel(old));
                        self.begin_to_receive(family);
                    }
                }
                if !completion.more {
                    self.poll_requests();
                }
                Ok(())
            }
            tag => unreachable!("the loop has no request {tag}"),
        }
    }

    fn poll_requests(&mut self) {
        if let Some(requests) = self.worker.requests_fd() {
            self.sender.ring.poll(requests.as_raw_fd(), REQUESTS);
        }
    }

    fn begin_to_receive(&mut self, family: usize) {
        let sockets = Arc::clone(&self.worker.data_path().sockets());
        let socket = sockets.receiving(family == 1).map(AsRawFd::as_raw_fd);
        self.receives[family] = socket.map(|fd| self.sender.ring.recv_datagrams(fd, 0, RECEIVE + family as u64));
        self.receiving.extend(self.receives[family].map(|request| (request, sockets)));
    }

    /// Opens what has come to one socket. Returns how many bytes that was.
    fn receive(&mut self, completion: Completion) -> io::Result<usize> {
        let mut bytes = 0;
        let datagrams = completion.chunk.as_ref().and_then(|chunk| self.sender.ring.datagrams(chunk));
        if let Some((received, payload)) = datagrams {
            let from = Endpoint { remote: received.peer, local: received.local, interface: received.interface };
            bytes += payload.len();
            self.worker.datagrams(payload, received.segment, &from, received.ecn, received.arrived);
        }
        self.sender.ring.recycle(completion.chunk);
        let family = (completion.tag - RECEIVE) as usize;
        if !completion.more {
            self.receiving.retain(|(request, _)| *request != completion.request);
        }
        // Requests of replaced sockets end for good.
        if completion.more || self.receives[family] != Some(completion.request) {
            return Ok(bytes);
        }
        match errno(completion.result) {
            None | Some(Errno::NOBUFS | Errno::AGAIN | Errno::INTR) => {
                self.begin_to_receive(family);
                Ok(bytes)
            }
            Some(errno) => Err(errno.into()),
        }
    }

    /// Takes what was read from the TUN device.
    fn finish_read(&mut self, completion: Completion) -> io::Result<()> {
        let Some(buffer) = completion.read else { return Ok(()) };
        self.reads -= 1;
        match errno(completion.result) {
            None => {
                let frame = Frame::new(buffer, completion.result as usize);
                self.unsealed += frame.bytes().len();
                self.frames.push(self.worker.data_path(), frame);
                return Ok(());
            }
            Some(Errno::INTR) => {}
            // Before kernel 6.4 a read of a non-blocking TUN device does not wait.
            Some(Errno::AGAIN) => {
                self.drained = true;
                if !std::mem::replace(&mut self.polls_tun, true) {
                    self.sender.ring.poll(self.worker.data_path().tun.as_raw_fd(), TUN_READY);
                }
            }
            Some(errno) => return Err(errno.into()),
        }
        self.frames.give_back(buffer);
        Ok(())
    }

    /// Queues reads of the TUN device in the ring.
    fn read(&mut self) {
        while self.reads < self.tunables.tun_slots && self.frames.takes() && !self.drained {
            let buffer = self.frames.buffer();
            self.sender.ring.read(self.worker.data_path().tun.as_raw_fd(), buffer, TUN);
            self.reads += 1;
        }
    }
}

/// The error of a result.
fn errno(result: i32) -> Option<Errno> {
    (result < 0).then(|| Errno::from_raw_os_error(-result))
}

/// A GSO batch in flight.
struct InFlight {
    target: Target,
    /// The sockets by which it leaves. The kernel looks a descriptor up only when a linked send begins: until it has ended, the sockets
    /// must stay open, or its datagrams would be lost, or would leave by whatever has got the number then.
    sockets: Arc<Sockets>,
    request: Request,
    /// Its buffer comes back only when the kernel needs it no more.
    zero_copy: bool,
    /// Of the send; a zero-copy send has one before its buffer comes back.
    result: Option<i32>,
}

/// GSO batches that are sent by the ring, each from a batch of its own.
struct RingSender {
    ring: Ring,
    zero_copy: bool,
    #[expect(clippy::vec_box, reason = "they move into requests and back")]
    free: Vec<Box<DatagramBatch>>,
    waiting: Vec<(Box<DatagramBatch>, Target)>,
    in_flight: Vec<Option<InFlight>>,
    /// GSO batches in flight without a result.
    unsent: usize,
    /// Completions of other requests, for the loop.
    others: Vec<Completion>,
    /// Used again by [`RingSender::reap`].
    reaped: Vec<Completion>,
    counts: Arc<Counts>,
    path: Arc<DataPath>,
}

impl RingSender {
    fn new(ring: Ring, data_path: &HostDataPath, tunables: &Tunables) -> Self {
        let slots = tunables.send_slots.max(1);
        Self {
            ring,
            zero_copy: tunables.zero_copy,
            free: (0..slots).map(|_| Box::new(DatagramBatch::new(1))).collect(),
            waiting: Vec::with_capacity(slots),
            in_flight: (0..slots).map(|_| None).collect(),
            unsent: 0,
            others: Vec::new(),
            reaped: Vec::new(),
            counts: Arc::clone(data_path.counts()),
            path: Arc::clone(data_path.path()),
        }
    }

    /// Takes a completion of a send.
    fn finish(&mut self, completion: Completion) {
        let slot = &mut self.in_flight[(completion.tag - SEND) as usize];
        let Some(batch) = slot else { return };
        if batch.result.is_none() {
            batch.result = Some(completion.result);
            self.unsent -= 1;
        }
        let Some(mut batch) = completion.batch else { return };
        let InFlight { target, sockets, result, .. } = slot.take().expect("found above");
        match errno(result.unwrap_or(completion.result)) {
            None => count_sent(&self.counts, &batch.messages()[..1]),
            Some(errno) => {
                send_failed(&self.counts, &self.path, &sockets, &mut batch, 0, &target, &errno.into());
            }
        }
        self.free.push(batch);
    }

    /// Waits once for completions.
    fn wait(&mut self) {
        // An error of the ring shows again when the loop enters it.
        let _ = self.ring.enter(Some(SEND_WAIT));
        self.reap();
    }

    /// Takes all completions that there are. Those of sends come first, because others need their batches.
    fn reap(&mut self) {
        let mut done = std::mem::take(&mut self.reaped);
        self.ring.reap(&mut done);
        for completion in done.drain(..) {
            if completion.tag >= SEND {
                self.finish(completion);
            } else {
                self.others.push(completion);
            }
        }
        self.reaped = done;
    }

    /// Waits until the GSO batches in flight have been sent: later ones may not overtake them.
    fn settle(&mut self) {
        for waited in 0.. {
            if self.unsent == 0 {
                return;
            }
            if waited == SEND_WAITS {
                for batch in self.in_flight.iter().flatten().filter(|batch| batch.result.is_none()) {
                    self.ring.cancel(batch.request);
                }
            }
            self.wait();
        }
    }

    /// How many GSO batches may be sent now without copying them. The kernel has the memory of one as long as its datagrams wait, seconds
    /// where a neighbour does not answer: they hold half of the slots at most, so that other GSO batches go on.
    fn uncopied(&self) -> usize {
        let held = self.in_flight.iter().flatten().filter(|batch| batch.zero_copy).count();
        if self.zero_copy { (self.in_flight.len() / 2).saturating_sub(held) } else { 0 }
    }

    fn fd(sockets: &Sockets, to: &Endpoint) -> RawFd {
        sockets.of(to.remote.is_ipv6()).as_raw_fd()
    }
}

impl GsoSender for RingSender {
    fn queue(
        &mut self,
        sockets: &Arc<Sockets>,
        target: Target,
        segment: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) {
        if self.free.is_empty() {
            self.flush(sockets);
        }
        while self.free.is_empty() {
            self.wait();
        }
        let mut batch = self.free.pop().expect("waited for");
        batch.clear();
        let slot = batch.take_slot().expect("a batch has one slot");
        let bytes = write(batch.payload_mut(slot));
        batch.begin(Some(&target.to.remote), target.to.local, 0);
        batch.set_ecn(target.ecn);
        batch.attach(slot, bytes);
        batch.end(segment);
        self.waiting.push((batch, target));
    }

    /// Queues the sends in the ring, which is entered at the end of the iteration.
    fn flush(&mut self, sockets: &Arc<Sockets>) {
        if self.waiting.is_empty() {
            return;
        }
        self.settle();
        self.counts.add(Count::SendCalls, 1);
        let count = self.waiting.len();
        let uncopied = self.uncopied();
        for (n, (batch, target)) in self.waiting.drain(..).enumerate() {
            let zero_copy = n < uncopied;
            let slot = self.in_flight.iter().position(Option::is_none).expect("there are as many slots as batches");
            let fd = Self::fd(sockets, &target.to);
            let request = self.ring.send_message(fd, batch, n + 1 < count, zero_copy, SEND + slot as u64);
            self.in_flight[slot] =
                Some(InFlight { target, sockets: Arc::clone(sockets), request, zero_copy, result: None });
            self.unsent += 1;
        }
    }
}
