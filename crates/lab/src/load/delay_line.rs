//! A wire with delay and loss between two namespaces, for hosts without netem: a TUN device in each namespace, and queues
//! between them.
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
/// The most packets in one direction; further packets are dropped, as by a router.
const QUEUE_MAX: usize = 8192;
/// The most bytes in the queue before a wire with a rate limit; further packets are dropped.
const LIMITED_QUEUE_BYTES: usize = 262_144;
/// The largest frame: 64 KiB and the virtio header.
const FRAME_MAX: usize = 65_536 + tun::VNET_HDR_LEN;

/// `parshall lab load delay-line`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// One namespace
    #[arg(long)]
    netns_a: String,
    /// The other namespace
    #[arg(long)]
    netns_b: String,
    /// Delay in each direction
    #[arg(long, value_name = "MS", default_value = "0", value_parser = units::milliseconds)]
    delay_ms: Duration,
    /// Packets lost in each direction, in per cent
    #[arg(long, default_value_t = 0.0)]
    loss_percent: f64,
    /// Rate in each direction in Mbit/s, behind a queue of 256 KiB; 0 is no limit
    #[arg(long, default_value_t = 0.0)]
    mbit: f64,
    /// IP packets with more bytes are dropped silently; 0 is no limit
    #[arg(long, default_value_t = 0)]
    largest_packet: usize,
    /// TCP segments with SYN that are lost in each direction, in per cent
    #[arg(long, default_value_t = 0.0)]
    syn_loss_percent: f64,
    #[command(flatten)]
    pub common: Common,
}

impl Args {
    /// Single packets if a loss must drop one of them or a rate or size limit applies to them; otherwise TSO's large segments.
    fn frames(&self) -> tun::Frames {
        let single = self.loss_percent > 0.0 || self.mbit > 0.0 || self.largest_packet > 0;
        if single { tun::Frames::Packets } else { tun::Frames::SuperFrames }
    }
}

/// One direction.
#[derive(Default)]
struct Queue {
    packets: VecDeque<(Instant, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    packets_in: u64,
    bytes: u64,
    /// Until when the wire is busy with earlier packets.
    busy_until: Option<Instant>,
}

/// Carries packets until the time is over.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let clock = Clock::start(&args.common)?;
    let frames = args.frames();
    let ends = [device_in(&args.netns_a, frames)?, device_in(&args.netns_b, frames)?];
    child::set_timer_slack_ns(1);
    let epoll = Epoll::new()?;
    epoll.add(&ends[0], 0, READABLE)?;
    epoll.add(&ends[1], 1, READABLE)?;
    print_ready("delay-line", "relay", None);

    let mut queues = [Queue::default(), Queue::default()];
    let mut events = Events::with_capacity(2);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let ppm = |percent: f64| (percent.clamp(0.0, 100.0) * 1e4) as u64;
    let (loss_ppm, syn_ppm) = (ppm(args.loss_percent), ppm(args.syn_loss_percent));
    let mut lost = |packet: &[u8]| {
        let vanishes = args.largest_packet > 0 && packet.len() > args.largest_packet;
        vanishes
            || random.below(1_000_000) < loss_ppm
            || (syn_ppm > 0 && is_syn(packet) && random.below(1_000_000) < syn_ppm)
    };
    while !clock.over() {
        let due = queues.iter().filter_map(|queue| queue.packets.front().map(|(due, _)| *due)).min();
        let wait = due.map_or(Duration::from_millis(100), |due| due.saturating_duration_since(Instant::now()));
        epoll.wait(&mut events, wait.min(Duration::from_millis(100)))?;
        for (from, _) in events.iter() {
            queues[from as usize].fill(&ends[from as usize], args, &mut lost)?;
        }
        let now = Instant::now();
        queues[0].deliver(&ends[1], now);
        queues[1].deliver(&ends[0], now);
    }
    let total = |field: fn(&Queue) -> u64| queues.iter().map(field).sum::<u64>();
    Ok(Outcome::new("delay-line", "relay", None, &clock, total(|queue| queue.packets_in), total(|queue| queue.bytes)))
}

/// The descriptor of a TUN device works from any namespace; only creating the device needs a thread in it.
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
    fn fill(&mut self, mut from: &File, args: &Args, lost: &mut impl FnMut(&[u8]) -> bool) -> io::Result<()> {
        for _ in 0..64 {
            let mut buf = self.spare.pop().unwrap_or_default();
            buf.resize(FRAME_MAX, 0);
            match from.read(&mut buf) {
                Ok(n) => {
                    self.packets_in += 1;
                    self.bytes += n as u64;
                    let packet = buf.get(tun::VNET_HDR_LEN..n).unwrap_or_default();
                    let sent_at = self.sent_at(packet.len(), args.mbit);
                    if self.packets.len() >= QUEUE_MAX || lost(packet) || sent_at.is_none() {
                        self.spare.push(buf);
                        continue;
                    }
                    // Small packets get small buffers, or a full queue of them would take half a gigabyte.
                    let packet = if n < 2048 {
                        let copy = buf[..n].to_vec();
                        self.spare.push(buf);
                        copy
                    } else {
                        buf.truncate(n);
                        buf
                    };
                    let sent_at = sent_at.unwrap_or_else(Instant::now);
                    self.packets.push_back((sent_at + args.delay_ms, packet));
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

    /// When a packet that arrives now will have left a wire of this rate; None if the queue before the wire is full.
    fn sent_at(&mut self, bytes: usize, mbit: f64) -> Option<Instant> {
        let now = Instant::now();
        if mbit <= 0.0 {
            return Some(now);
        }
        let time = |bytes: usize| Duration::from_secs_f64(bytes as f64 * 8.0 / (mbit * 1e6));
        let begin = self.busy_until.map_or(now, |until| until.max(now));
        if begin.duration_since(now) > time(LIMITED_QUEUE_BYTES) {
            return None;
        }
        self.busy_until = Some(begin + time(bytes));
        self.busy_until
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

/// Whether it is an IPv4 packet with a TCP segment with SYN.
fn is_syn(packet: &[u8]) -> bool {
    const TCP: u8 = 6;
    const SYN: u8 = 2;
    let header = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
    packet.get(9) == Some(&TCP) && packet.get(header + 13).is_some_and(|flags| flags & SYN != 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syns_are_distinguished_from_other_packets() {
        let packet = |protocol: u8, flags: u8| {
            let mut packet = vec![0; 40];
            (packet[0], packet[9], packet[33]) = (0x45, protocol, flags);
            packet
        };
        assert!(is_syn(&packet(6, 0x02)) && is_syn(&packet(6, 0x12)));
        assert!(!is_syn(&packet(6, 0x10)) && !is_syn(&packet(17, 0x02)));
        assert!(!is_syn(&[0x45; 20]) && !is_syn(&[]));
    }

    #[test]
    fn a_wire_with_a_rate_sends_one_packet_after_the_other() {
        let mut queue = Queue::default();
        let begin = Instant::now();
        let sent: Vec<_> = (0..400).map_while(|_| queue.sent_at(1250, 10.0)).collect();
        // A millisecond each, and 262144 bytes in the queue.
        assert!((200..230).contains(&sent.len()), "{}", sent.len());
        assert!(sent[9].duration_since(begin) >= Duration::from_millis(10));
        assert!(Queue::default().sent_at(1250, 0.0).is_some());
    }
}
