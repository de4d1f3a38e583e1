//! The plain loop on several threads, which use more than one core for the packets of one peer.
//!
//! Half of the threads seal and half open. Those that seal take turns at reading frames ([`Turns`]); each seals what it has read by
//! itself, which is the longest part, and sends it when its turn is due. So packets leave in the order in which they were read,
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
use crate::frames::{Frame, Frames};
use crate::mover::{Left, Mover, Opened};
use crate::plain::{BatchedTrains, TURN};
use crate::receive_queue::ReceiveQueue;
use crate::sockets::Sockets;
use crate::trains::{Target, Trains};
use crate::turns::{Turn, Turns};
use crate::worker::Worker;

/// What a thread seals in one turn: a superframe, or so many small ones. With four superframes, those behind it waited 4 ms longer for a thread
/// that the scheduler had stopped at its turn, where there are more threads than CPUs.
const TURN_BYTES: usize = 1 << 16;
const TURN_FRAMES: usize = 64;

/// The loop with what its threads share.
pub struct Threads {
    worker: Mutex<Worker>,
    mover: Arc<Mover>,
    /// For each direction.
    count: usize,
    /// Turns at what was read, and at what the sockets have received.
    reading: Turns<Frames<Box<[u8]>>>,
    receiving: Turns<ReceiveQueue>,
    /// The sockets were replaced.
    replaced: OwnedFd,
    /// The device is due earlier than before.
    hurry: OwnedFd,
    quit: OwnedFd,
}

/// Trains that are sent when a turn is due.
struct InTurn<'a> {
    trains: &'a mut BatchedTrains,
    turn: &'a Turn<'a>,
}

impl Trains for InTurn<'_> {
    fn queue(
        &mut self,
        sockets: &Arc<Sockets>,
        target: Target,
        segment: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) {
        if !self.trains.takes(&target.to) {
            self.flush(sockets);
        }
        self.trains.queue(sockets, target, segment, write);
    }

    fn flush(&mut self, sockets: &Arc<Sockets>) {
        if !self.trains.is_empty() {
            self.turn.wait();
            self.trains.flush(sockets);
        }
    }
}

/// What was received with one message.
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
            mover: Arc::clone(worker.mover()),
            worker: Mutex::new(worker),
            count: count.max(1),
            reading: Turns::default(),
            receiving: Turns::default(),
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
                    // Without one of them the tunnel would stand still at its turn.
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

    /// Calls the device, and sends what it puts out. A thread that has a turn must have waited for it: one that waits with the lock
    /// would hold up those before it.
    fn with_worker<T: Trains>(&self, trains: &mut T, work: impl FnOnce(&mut Worker, &mut T)) {
        let mut worker = self.worker();
        let before = worker.deadline();
        work(&mut worker, trains);
        worker.put_out(trains);
        trains.flush(&self.mover.sockets());
        if before.is_none() || worker.deadline() < before {
            eventfd::signal(&self.hurry);
        }
    }

    /// Does what is due by time and what clients ask for.
    fn attend(&self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let mut trains = BatchedTrains::new(&self.mover);
        let requests = self.worker().requests_fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let requests = requests.as_ref().map_or_else(|| self.hurry.as_fd(), AsFd::as_fd);
        loop {
            let wait = {
                let mut worker = self.worker();
                worker.end_turn(&mut trains);
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
            if asked && self.worker().serve_requests(&mut trains) {
                eventfd::signal(&self.replaced);
            }
        }
    }

    /// Reads frames from the TUN device, seals the packets of those whose turn it is, and sends them.
    fn seal(&self) -> io::Result<()> {
        let mut trains = BatchedTrains::new(&self.mover);
        let mut taken = Vec::with_capacity(TURN_FRAMES);
        loop {
            let mut frames = self.reading.taking();
            taken.drain(..).for_each(|frame| frames.sealed(frame));
            let wait = (!frames.is_empty()).then_some(Duration::ZERO);
            let [readable, quit] = ready([self.mover.tun.as_fd(), self.quit.as_fd()], wait)?;
            if quit {
                return Ok(());
            }
            if readable {
                frames.read(&self.mover)?;
            }
            let mut bytes = 0;
            while bytes < TURN_BYTES && taken.len() < TURN_FRAMES {
                let Some(frame) = frames.pop(&self.mover) else { break };
                bytes += frame.bytes().len();
                taken.push(frame);
            }
            let turn = frames.take();
            let mut trains = InTurn { trains: &mut trains, turn: &turn };
            for bytes in taken.iter().map(Frame::bytes) {
                let left = self.mover.frame(&mut trains, bytes);
                if left != Left::Nothing {
                    turn.wait();
                    self.with_worker(&mut trains, |worker, trains| worker.finish_frame(trains, bytes, left));
                }
            }
            trains.flush(&self.mover.sockets());
        }
    }

    /// Receives datagrams, opens them and writes their packets to the TUN device.
    fn open(&self) -> io::Result<()> {
        let mut trains = BatchedTrains::new(&self.mover);
        let mut incoming = DatagramBatch::new(TURN);
        let mut messages = Vec::with_capacity(TURN);
        loop {
            let mut receiving = self.receiving.taking();
            let sockets = Arc::clone(&self.mover.sockets());
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
                    self.mover.counts().add(Count::ReceiveCalls, 1);
                    // An error is that of an earlier send to some peer (ECONNREFUSED), and says nothing about this socket.
                    incoming.receive(sockets.of(ipv6).as_fd(), true).ok();
                }
            }
            let tells: Vec<bool> =
                incoming.received().iter().map(|of| receiving.tells(of.bytes, of.segment, of.arrived)).collect();
            let turn = receiving.take();
            for (slot, mut tell) in tells.into_iter().enumerate() {
                let Received { segment, peer, local, interface, ecn, .. } = incoming.received()[slot];
                let from = Endpoint { remote: peer, local, interface };
                self.mover.counts().add(Count::MessagesReceived, 1);
                let chunks = incoming.payload_mut(slot).chunks_mut(segment * SEGMENTS_MAX);
                let opened = chunks
                    .map(|bytes| self.mover.open(bytes, segment, &from, ecn, std::mem::take(&mut tell)))
                    .collect();
                messages.push(Message { from, segment, slot, opened });
            }
            turn.wait();
            for message in &messages {
                let chunks = incoming.payload_mut(message.slot).chunks_mut(message.segment * SEGMENTS_MAX);
                for (bytes, opened) in chunks.zip(&message.opened) {
                    if opened.attend || !opened.handshakes.is_empty() {
                        self.with_worker(&mut trains, |worker, _| {
                            worker.finish_datagrams(bytes, opened, &message.from)
                        });
                    }
                    self.mover.write(bytes, opened);
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
