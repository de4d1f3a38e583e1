//! Links with delay, for hosts without netem: a TUN device in each namespace, and one thread that carries the packets of all such
//! links of a testbed. The devices end with their descriptors, so nothing is left when the process is killed.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use parshall_core::testbed::{Counts, Direction, Fate};
use parshall_sys::clock::{monotonic_ns, thread_cpu_ns};
use parshall_sys::epoll::{Epoll, Events, READABLE};
use parshall_sys::{child, tun};

/// The most bytes under way in one direction; further packets are lost, and counted as `overrun`.
const UNDER_WAY_MAX: usize = 64 << 20;
/// Packets read from a device before the others get their turn.
const BATCH: usize = 64;
/// The largest frame: 64 KiB and the virtio header.
const FRAME_MAX: usize = 65_536 + tun::VNET_HDR_LEN;
/// How often the end is looked for.
const CHECK: Duration = Duration::from_millis(50);

/// A link to carry: the TUN devices of the ends, and what each sends passes its direction.
pub struct Line {
    pub ends: [File; 2],
    pub directions: [Direction; 2],
}

/// The thread that carries the packets. Dropping it ends the thread and with it the devices.
pub struct DelayLine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

struct Shared {
    stop: AtomicBool,
    cpu_ns: AtomicU64,
    /// Packets lost because too many were under way.
    overrun: AtomicU64,
    directions: Mutex<Vec<[Direction; 2]>>,
}

impl Shared {
    fn directions(&self) -> MutexGuard<'_, Vec<[Direction; 2]>> {
        self.directions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DelayLine {
    /// Starts to carry packets.
    pub fn start(lines: Vec<Line>) -> anyhow::Result<Self> {
        let (mut ends, mut directions) = (Vec::new(), Vec::new());
        for line in lines {
            ends.extend(line.ends);
            directions.push(line.directions);
        }
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            cpu_ns: AtomicU64::new(0),
            overrun: AtomicU64::new(0),
            directions: Mutex::new(directions),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("delay-line".into())
            .spawn(move || Carrier::new(&ends)?.run(&of_thread))
            .context("starting the delay line")?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// CPU time of the thread, in s.
    pub fn cpu_s(&self) -> f64 {
        self.shared.cpu_ns.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// Packets lost because too many were under way.
    pub fn overrun(&self) -> u64 {
        self.shared.overrun.load(Ordering::Relaxed)
    }

    /// The counts of a direction (0: from a) of the line with this index.
    pub fn counts(&self, line: usize, from: usize) -> Counts {
        self.shared.directions()[line][from].counts
    }

    /// Begins to count from packet 1 again in all directions.
    pub fn restart(&self) {
        self.shared.directions().iter_mut().flatten().for_each(Direction::restart);
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => tracing::warn!("the delay line of the testbed failed: {error}"),
            Some(Err(_)) => tracing::warn!("the delay line of the testbed panicked"),
            Some(Ok(Ok(()))) | None => {}
        }
    }
}

/// When a packet leaves: ns, and its place among those that leave at the same time.
type Due = (u64, u64);

/// The devices of all lines, two for each, and what is under way between them.
struct Carrier<'a> {
    ends: &'a [File],
    epoll: Epoll,
    /// The first to leave is on top; then the device it leaves by, and its index in `frames`.
    queue: BinaryHeap<Reverse<(Due, usize, usize)>>,
    frames: Vec<Vec<u8>>,
    /// Indices of `frames` that hold nothing.
    free: Vec<usize>,
    /// Receive buffer.
    buffer: Vec<u8>,
    /// Bytes under way to each device.
    under_way: Vec<usize>,
    sequence: u64,
}

impl<'a> Carrier<'a> {
    fn new(ends: &'a [File]) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        for (token, end) in (0..).zip(ends) {
            epoll.add(end, token, READABLE)?;
        }
        Ok(Self {
            ends,
            epoll,
            queue: BinaryHeap::new(),
            frames: Vec::new(),
            free: Vec::new(),
            buffer: vec![0; FRAME_MAX],
            under_way: vec![0; ends.len()],
            sequence: 0,
        })
    }

    fn run(mut self, shared: &Shared) -> io::Result<()> {
        child::set_timer_slack_ns(1);
        let mut events = Events::with_capacity(self.ends.len());
        while !shared.stop.load(Ordering::Relaxed) {
            let due_ns = self.queue.peek().map(|Reverse((due, ..))| due.0);
            let wait = due_ns.map_or(CHECK, |due| Duration::from_nanos(due.saturating_sub(monotonic_ns())).min(CHECK));
            self.epoll.wait(&mut events, wait)?;
            if !events.is_empty() {
                let mut directions = shared.directions();
                for (end, _) in events.iter() {
                    let end = end as usize;
                    let direction = &mut directions[end / 2][end % 2];
                    let overrun = self.fill(end, direction)?;
                    shared.overrun.fetch_add(overrun, Ordering::Relaxed);
                }
            }
            self.deliver(monotonic_ns());
            shared.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes packets from a device. Returns how many were lost because too many are under way.
    fn fill(&mut self, from: usize, direction: &mut Direction) -> io::Result<u64> {
        let to = from ^ 1;
        let mut overrun = 0;
        for _ in 0..BATCH {
            let length = match (&self.ends[from]).read(&mut self.buffer) {
                Ok(length) => length,
                Err(error) => {
                    // EIO: the device is not up yet.
                    let again = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                    return if again || error.raw_os_error() == Some(5) { Ok(overrun) } else { Err(error) };
                }
            };
            let packet = self.buffer.get(tun::VNET_HDR_LEN..length).unwrap_or_default();
            let (leaves_ns, copies) = match direction.pass(monotonic_ns(), packet) {
                Fate::Lost => (0, 0),
                Fate::Leaves(at) => (at, 1),
                Fate::LeavesTwice(at) => (at, 2),
            };
            for _ in 0..copies {
                if self.under_way[to] + length > UNDER_WAY_MAX {
                    overrun += 1;
                } else {
                    self.push(leaves_ns, to, self.buffer[..length].to_vec());
                }
            }
        }
        Ok(overrun)
    }

    fn push(&mut self, leaves_ns: u64, to: usize, frame: Vec<u8>) {
        self.under_way[to] += frame.len();
        self.sequence += 1;
        let index = match self.free.pop() {
            Some(index) => {
                self.frames[index] = frame;
                index
            }
            None => {
                self.frames.push(frame);
                self.frames.len() - 1
            }
        };
        self.queue.push(Reverse(((leaves_ns, self.sequence), to, index)));
    }

    fn deliver(&mut self, now_ns: u64) {
        while let Some(Reverse((due, to, index))) = self.queue.peek().copied() {
            if due.0 > now_ns {
                break;
            }
            self.queue.pop();
            let frame = std::mem::take(&mut self.frames[index]);
            self.free.push(index);
            self.under_way[to] -= frame.len();
            // A packet that the device refuses counts as lost: TCP retransmits it.
            (&self.ends[to]).write_all(&frame).ok();
        }
    }
}
