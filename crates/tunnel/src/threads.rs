//! The system call loop on several threads, which use more than one core for the packets of one peer.
//!
//! Half of the threads seal and half open. Those that seal hand the reading of frames over to each other ([`HandOver`]); each seals what it has read
//! by itself, which is the longest part, and sends it after what was read before. So packets leave in the order in which they were read,
//! and none is passed between threads. Receiving is the same. A TUN device with several queues would spread one flow over them and
//! reorder it.
//!
//! The device is behind a lock, which is taken for handshakes, timers and packets without a session. The thread that began the others
//! does what is due by time and what clients of the configuration protocol ask for.
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use parshall_core::tunnel::Endpoint;
use parshall_sys::eventfd;
use parshall_sys::udp_batch::{DatagramBatch, Received, SEGMENTS_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::counts::Count;
use crate::data_path::{HostDataPath, Left, Opened};
use crate::frames::{Frame, Frames};
use crate::gso_sender::{GsoSender, Target};
use crate::hand_over::{HandOver, Ticket};
use crate::receive_queue::ReceiveQueue;
use crate::sockets::Sockets;
use crate::syscall::{BatchedSender, CALL_MESSAGES};
use crate::worker::Worker;

/// The most bytes and frames that a thread seals with one ticket: a superframe, or many small ones. With four superframes, later tickets
/// waited 4 ms longer for a thread that the scheduler had stopped, where there are more threads than CPUs.
const TICKET_BYTES: usize = 1 << 16;
const TICKET_FRAMES: usize = 64;

/// The loop with what its threads share.
pub struct Threads {
    worker: Mutex<Worker>,
    data_path: Arc<HostDataPath>,
    /// For each direction.
    count: usize,
    /// The sources of frames and of datagrams.
    reading: HandOver<Frames<Box<[u8]>>>,
    receiving: HandOver<ReceiveQueue>,
    /// The sockets were replaced.
    replaced: OwnedFd,
    /// The device is due earlier than before.
    hurry: OwnedFd,
    quit: OwnedFd,
}

/// Sends GSO batches after those of all earlier tickets.
struct OrderedSender<'a> {
    sender: &'a mut BatchedSender,
    ticket: &'a Ticket<'a>,
}

impl GsoSender for OrderedSender<'_> {
    fn queue(
        &mut self,
        sockets: &Arc<Sockets>,
        target: Target,
        segment: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) {
        if !self.sender.takes(&target.to) {
            self.flush(sockets);
        }
        self.sender.queue(sockets, target, segment, write);
    }

    fn flush(&mut self, sockets: &Arc<Sockets>) {
        if !self.sender.is_empty() {
            self.ticket.wait();
            self.sender.flush(sockets);
        }
    }
}

/// A received message.
struct Message {
    from: Endpoint,
    segment: usize,
    slot: usize,
    /// Of each chunk of [`SEGMENTS_MAX`] datagrams.
    opened: Vec<Opened>,
}

impl Threads {
    /// `count` threads seal, and as many open.
    pub fn new(worker: Worker, count: usize) -> io::Result<Self> {
        Ok(Self {
            data_path: Arc::clone(worker.data_path()),
            worker: Mutex::new(worker),
            count: count.max(1),
            reading: HandOver::default(),
            receiving: HandOver::default(),
            replaced: eventfd::new()?,
            hurry: eventfd::new()?,
            quit: eventfd::new()?,
        })
    }

    /// Moves packets until `stop` is readable. Fails when the TUN device does.
    pub fn run(&self, stop: BorrowedFd<'_>) -> io::Result<()> {
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for n in 0..2 * self.count {
                let (name, work): (_, fn(&Self) -> io::Result<()>) =
                    if n % 2 == 0 { ("tunnel-seal", Self::seal) } else { ("tunnel-open", Self::open) };
                let run = move || {
                    // Without one of them the tunnel would stand still at its ticket.
                    let _ends = Ends(self);
                    work(self)
                };
                threads.push(std::thread::Builder::new().name(name.into()).spawn_scoped(scope, run)?);
            }
            let ended = self.attend(stop);
            eventfd::signal(&self.quit);
            threads.into_iter().fold(ended, |ended, thread| {
                ended.and(thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
            })
        })
    }

    fn worker(&self) -> MutexGuard<'_, Worker> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the device, and sends what it puts out. A thread that has a ticket must have waited for it: one that waits with the lock
    /// would hold up those before it.
    fn with_worker<T: GsoSender>(&self, sender: &mut T, work: impl FnOnce(&mut Worker, &mut T)) {
        let mut worker = self.worker();
        let before = worker.deadline();
        work(&mut worker, sender);
        worker.put_out(sender);
        sender.flush(&self.data_path.sockets());
        if before.is_none() || worker.deadline() < before {
            eventfd::signal(&self.hurry);
        }
    }

    /// Does what is due by time and what clients ask for.
    fn attend(&self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let mut sender = BatchedSender::new(&self.data_path);
        let requests = self.worker().requests_fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let requests = requests.as_ref().map_or_else(|| self.hurry.as_fd(), AsFd::as_fd);
        loop {
            let wait = {
                let mut worker = self.worker();
                worker.end_round(&mut sender);
                worker.wait()
            };
            let [stopped, asked, hurried, quit] =
                ready([stop, requests, self.hurry.as_fd(), self.quit.as_fd()], Some(wait))?;
            if hurried {
                eventfd::reset(&self.hurry);
            }
            if stopped || quit {
                return Ok(());
            }
            if asked && self.worker().serve_requests(&mut sender) {
                eventfd::signal(&self.replaced);
            }
        }
    }

    /// Reads frames from the TUN device, seals the packets of those that are next, and sends them.
    fn seal(&self) -> io::Result<()> {
        let mut sender = BatchedSender::new(&self.data_path);
        let mut taken = Vec::with_capacity(TICKET_FRAMES);
        loop {
            let mut frames = self.reading.acquire();
            taken.drain(..).for_each(|frame| frames.sealed(frame));
            let wait = (!frames.is_empty()).then_some(Duration::ZERO);
            let [readable, quit] = ready([self.data_path.tun.as_fd(), self.quit.as_fd()], wait)?;
            if quit {
                return Ok(());
            }
            if readable {
                frames.read(&self.data_path)?;
            }
            let mut bytes = 0;
            while bytes < TICKET_BYTES && taken.len() < TICKET_FRAMES {
                let Some(frame) = frames.pop(&self.data_path) else { break };
                bytes += frame.bytes().len();
                taken.push(frame);
            }
            let ticket = frames.pass_on();
            let mut sender = OrderedSender { sender: &mut sender, ticket: &ticket };
            for bytes in taken.iter().map(Frame::bytes) {
                let left = self.data_path.frame(&mut sender, bytes);
                if left != Left::Nothing {
                    ticket.wait();
                    self.with_worker(&mut sender, |worker, sender| worker.finish_frame(sender, bytes, left));
                }
            }
            sender.flush(&self.data_path.sockets());
        }
    }

    /// Receives datagrams, opens them and writes their packets to the TUN device.
    fn open(&self) -> io::Result<()> {
        let mut sender = BatchedSender::new(&self.data_path);
        let mut incoming = DatagramBatch::new(CALL_MESSAGES);
        let mut messages = Vec::with_capacity(CALL_MESSAGES);
        loop {
            let mut receiving = self.receiving.acquire();
            let sockets = Arc::clone(&self.data_path.sockets());
            // In place of a socket that the host lacks, a descriptor is waited for twice.
            let of = |ipv6| sockets.receiving(ipv6).map_or(self.quit.as_fd(), AsFd::as_fd);
            let fds = [of(false), of(true), self.replaced.as_fd(), self.quit.as_fd()];
            let [v4, v6, replaced, quit] = ready(fds, None)?;
            if quit {
                return Ok(());
            }
            if replaced {
                eventfd::reset(&self.replaced);
                continue;
            }
            incoming.clear();
            messages.clear();
            for (ipv6, readable) in [(false, v4), (true, v6)] {
                if readable {
                    self.data_path.counts().add(Count::ReceiveCalls, 1);
                    // An error is that of an earlier send to some peer (ECONNREFUSED), and says nothing about this socket.
                    incoming.receive(sockets.of(ipv6).as_fd(), true).ok();
                }
            }
            let congested: Vec<bool> =
                incoming.received().iter().map(|of| receiving.is_congested(of.bytes, of.segment, of.arrived)).collect();
            let ticket = receiving.pass_on();
            for (slot, mut congested) in congested.into_iter().enumerate() {
                let Received { segment, peer, local, interface, ecn, .. } = incoming.received()[slot];
                let from = Endpoint { remote: peer, local, interface };
                self.data_path.counts().add(Count::MessagesReceived, 1);
                let chunks = incoming.payload_mut(slot).chunks_mut(segment * SEGMENTS_MAX);
                let opened = chunks
                    .map(|bytes| self.data_path.open(bytes, segment, &from, ecn, std::mem::take(&mut congested)))
                    .collect();
                messages.push(Message { from, segment, slot, opened });
            }
            ticket.wait();
            for message in &messages {
                let chunks = incoming.payload_mut(message.slot).chunks_mut(message.segment * SEGMENTS_MAX);
                for (bytes, opened) in chunks.zip(&message.opened) {
                    if opened.attend || !opened.handshakes.is_empty() {
                        self.with_worker(&mut sender, |worker, _| {
                            worker.finish_datagrams(bytes, opened, &message.from)
                        });
                    }
                    self.data_path.write(bytes, opened);
                }
            }
        }
    }
}

/// Ends the other threads when one has ended.
struct Ends<'a>(&'a Threads);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        eventfd::signal(&self.0.quit);
    }
}

/// Waits, and returns which are readable.
fn ready<const N: usize>(fds: [BorrowedFd<'_>; N], wait: Option<Duration>) -> io::Result<[bool; N]> {
    let wait = wait.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut fds, wait.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(fds.map(|fd| !fd.revents().is_empty()))
}
