//! A wire with delay and loss between two namespaces, for hosts without netem: a TUN device in each, packets held in
//! queues between them.
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use parshall_sys::epoll::{Epoll, Events, READABLE};
use parshall_sys::{child, netns, tun};

use super::{Clock, Common, Outcome, print_ready};
use crate::units;

/// The TUN device's name in both namespaces.
pub const DEVICE: &str = "dl0";
/// Packets that one direction holds; further ones are dropped, as by a router.
const QUEUE_MAX: usize = 8192;
/// The largest frame: 64 KiB and the virtio header.
const FRAME_MAX: usize = 65_536 + tun::VNET_HDR_LEN;

/// `parshall lab load delay-line`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// One namespace
    #[arg(long)]
    netns_a: String,
    /// The other
    #[arg(long)]
    netns_b: String,
    /// Delay each way
    #[arg(long, value_name = "MS", default_value = "0", value_parser = units::milliseconds)]
    delay_ms: Duration,
    /// Packets lost each way, in per cent
    #[arg(long, default_value_t = 0.0)]
    loss_percent: f64,
    #[command(flatten)]
    pub common: Common,
}

/// One direction.
#[derive(Default)]
struct Queue {
    packets: VecDeque<(Instant, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    packets_in: u64,
    bytes: u64,
}

/// Carries packets until the time is over.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let clock = Clock::start(&args.common)?;
    // With loss every packet must be one segment: a dropped super-frame would be a burst of forty.
    let frames = if args.loss_percent > 0.0 { tun::Frames::Packets } else { tun::Frames::SuperFrames };
    let ends = [device_in(&args.netns_a, frames)?, device_in(&args.netns_b, frames)?];
    child::set_timer_slack_ns(1);
    let epoll = Epoll::new()?;
    epoll.add(&ends[0], 0, READABLE)?;
    epoll.add(&ends[1], 1, READABLE)?;
    print_ready("delay-line", "relay", None);

    let mut queues = [Queue::default(), Queue::default()];
    let mut events = Events::with_capacity(2);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let loss_ppm = (args.loss_percent.clamp(0.0, 100.0) * 1e4) as u64;
    while !clock.over() {
        let due = queues.iter().filter_map(|queue| queue.packets.front().map(|(due, _)| *due)).min();
        let wait = due.map_or(Duration::from_millis(100), |due| due.saturating_duration_since(Instant::now()));
        epoll.wait(&mut events, wait.min(Duration::from_millis(100)))?;
        for (from, _) in events.iter() {
            queues[from as usize].fill(&ends[from as usize], args.delay_ms, || random.below(1_000_000) < loss_ppm)?;
        }
        let now = Instant::now();
        queues[0].deliver(&ends[1], now);
        queues[1].deliver(&ends[0], now);
    }
    let total = |field: fn(&Queue) -> u64| queues.iter().map(field).sum::<u64>();
    Ok(Outcome::new("delay-line", "relay", None, &clock, total(|queue| queue.packets_in), total(|queue| queue.bytes)))
}

/// The descriptor of a TUN device works from any namespace; only making it needs a thread inside.
fn device_in(name: &str, frames: tun::Frames) -> anyhow::Result<File> {
    use std::os::fd::AsFd;
    let namespace = netns::open(name).with_context(|| format!("opening the namespace {name}"))?;
    let made = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            netns::enter(namespace.as_fd())?;
            tun::create(DEVICE, frames)
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    });
    made.with_context(|| format!("making a TUN device in {name}"))
}

impl Queue {
    fn fill(&mut self, mut from: &File, delay: Duration, mut lost: impl FnMut() -> bool) -> io::Result<()> {
        for _ in 0..64 {
            let mut buf = self.spare.pop().unwrap_or_default();
            buf.resize(FRAME_MAX, 0);
            match from.read(&mut buf) {
                Ok(n) => {
                    self.packets_in += 1;
                    self.bytes += n as u64;
                    if self.packets.len() >= QUEUE_MAX || lost() {
                        self.spare.push(buf);
                        continue;
                    }
                    // Small packets keep small buffers: a full queue of them is not half a gigabyte.
                    let packet = if n < 2048 {
                        let copy = buf[..n].to_vec();
                        self.spare.push(buf);
                        copy
                    } else {
                        buf.truncate(n);
                        buf
                    };
                    self.packets.push_back((Instant::now() + delay, packet));
                }
                Err(error) => {
                    self.spare.push(buf);
                    // EIO: the device is not up yet.
                    let again = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                    return if again || error.raw_os_error() == Some(5) { Ok(()) } else { Err(error) };
                }
            }
        }
        Ok(())
    }

    fn deliver(&mut self, mut to: &File, now: Instant) {
        while self.packets.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, packet)) = self.packets.pop_front() {
                // A packet that the device refuses counts as lost: TCP retransmits it.
                to.write_all(&packet).ok();
                if packet.capacity() >= FRAME_MAX && self.spare.len() < 64 {
                    self.spare.push(packet);
                }
            }
        }
    }
}

/// xorshift64*: good enough for random loss.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }
}
