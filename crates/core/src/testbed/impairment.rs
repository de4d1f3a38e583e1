//! The fate of packets on a link: which are lost, duplicated or reordered, and how late each leaves.
//!
//! Chance is a function of the seed, the direction and the packet's number, not of a generator's state. So the same file gives the
//! same losses by whatever means they are made ([`Means`]), and a packet's fate can be known before it is sent.
use std::ops::RangeInclusive;

/// One in a million.
pub const MILLION: u32 = 1_000_000;

/// Impairments of one direction of a link. The default impairs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Impairment {
    /// How long each packet is under way, in ns.
    pub delay_ns: u64,
    /// The delay of each packet differs from `delay_ns` by up to this, either way and evenly distributed, in ns. Packets overtake
    /// each other by it.
    pub jitter_ns: u64,
    /// Lost packets in a million.
    pub loss_ppm: u32,
    /// Packets that arrive twice, in a million.
    pub duplicate_ppm: u32,
    /// Packets that are not delayed and so overtake those before them, in a million.
    pub reorder_ppm: u32,
    /// Bytes of IP packets per second; None for no limit.
    pub rate: Option<u64>,
    /// Bytes that may wait for their turn where `rate` is set. Packets beyond are lost.
    pub queue: u64,
    /// The numbers of packets that are lost besides, from 1, ascending.
    pub drop: Vec<RangeInclusive<u64>>,
    /// Larger IP packets are lost, in bytes; None for no limit.
    pub largest_packet: Option<u32>,
    /// Lost TCP segments with SYN in a million, besides `loss_ppm`.
    pub syn_loss_ppm: u32,
}

/// The means by which a direction is impaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Means {
    /// None are needed.
    Nothing,
    /// A BPF program at the receiver's ingress, on a veth pair: it can lose packets and nothing else.
    Ingress,
    /// A line in user space between two TUN devices.
    DelayLine,
}

impl Impairment {
    /// The least means that this needs.
    pub fn means(&self) -> Means {
        let lossy = Self { loss_ppm: self.loss_ppm, drop: self.drop.clone(), queue: self.queue, ..Self::default() };
        if *self != lossy {
            Means::DelayLine
        } else if self.loss_ppm > 0 || !self.drop.is_empty() {
            Means::Ingress
        } else {
            Means::Nothing
        }
    }

    /// Whether a packet must be a single segment: otherwise a loss takes forty at once, and a rate or a size is not that of packets
    /// on a wire.
    pub fn needs_single_segments(&self) -> bool {
        let only_delay = Self { delay_ns: self.delay_ns, queue: self.queue, ..Self::default() };
        *self != only_delay
    }
}

/// A chance that is asked about a packet. Each is independent of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Chance {
    Loss = 1,
    Duplicate = 2,
    Reorder = 3,
    Jitter = 4,
    Syn = 5,
}

/// The seed of a direction (`from` is 0 for a, 1 for b) of the link with this index.
pub fn direction_seed(seed: u64, link: usize, from: usize) -> u64 {
    mix(seed ^ mix((link as u64) << 1 | (from as u64 & 1)))
}

/// 32 random bits for a packet, by its number from 1. `crates/bpf/src/lab/loss.bpf.c` computes the same.
fn random(direction_seed: u64, chance: Chance, number: u64) -> u32 {
    let golden = 0x9e37_79b9_7f4a_7c15_u64;
    (mix(direction_seed.wrapping_add(number.wrapping_mul(golden)) ^ (chance as u64) << 56) >> 32) as u32
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The bound below which `ppm` of a million values of `random` are; 2^32 for all of them.
pub fn threshold(ppm: u32) -> u64 {
    (u64::from(ppm.min(MILLION)) << 32) / u64::from(MILLION)
}

/// Whether the packet with this number, from 1, is lost by chance or by the list.
pub fn is_lost(impairment: &Impairment, direction_seed: u64, number: u64) -> bool {
    happens(direction_seed, Chance::Loss, number, impairment.loss_ppm)
        || impairment.drop.iter().any(|range| range.contains(&number))
}

fn happens(direction_seed: u64, chance: Chance, number: u64, ppm: u32) -> bool {
    ppm > 0 && u64::from(random(direction_seed, chance, number)) < threshold(ppm)
}

/// One direction of a link over time.
#[derive(Debug, Clone)]
pub struct Direction {
    impairment: Impairment,
    seed: u64,
    /// Packets that have arrived.
    number: u64,
    /// Until when the wire is busy with earlier packets, in ns.
    busy_until_ns: u64,
    /// The counts so far.
    pub counts: Counts,
}

/// Counts of the packets of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets that arrived.
    pub packets: u64,
    /// Packets lost by chance, by the list or by their size.
    pub lost: u64,
    /// Packets lost because the queue before the rate limit was full.
    pub queue_full: u64,
    /// Packets that were sent twice.
    pub duplicated: u64,
    /// Packets that were not delayed.
    pub reordered: u64,
}

/// The fate of a packet. Times are in ns of the same clock as its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives nowhere.
    Lost,
    /// It leaves the line at this time.
    Leaves(u64),
    /// It leaves at this time, and so does a copy.
    LeavesTwice(u64),
}

impl Direction {
    /// A direction that no packet has passed.
    pub fn new(impairment: Impairment, direction_seed: u64) -> Self {
        Self { impairment, seed: direction_seed, number: 0, busy_until_ns: 0, counts: Counts::default() }
    }

    /// Begins to count from 1 again, so that probes before a run change nothing in it.
    pub fn restart(&mut self) {
        *self = Self::new(self.impairment.clone(), self.seed);
    }

    /// The fate of an IP packet that arrives now.
    pub fn pass(&mut self, now_ns: u64, packet: &[u8]) -> Fate {
        self.number += 1;
        self.counts.packets += 1;
        let wanted = &self.impairment;
        let (seed, number) = (self.seed, self.number);
        let vanishes = wanted.largest_packet.is_some_and(|largest| packet.len() > largest as usize);
        let syn_lost = || is_syn(packet) && happens(seed, Chance::Syn, number, wanted.syn_loss_ppm);
        if vanishes || is_lost(wanted, seed, number) || syn_lost() {
            self.counts.lost += 1;
            return Fate::Lost;
        }
        let mut sent_ns = now_ns;
        if let Some(rate) = wanted.rate {
            let time_ns = |bytes: u64| (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64;
            let begin_ns = self.busy_until_ns.max(now_ns);
            if begin_ns - now_ns > time_ns(wanted.queue) {
                self.counts.queue_full += 1;
                return Fate::Lost;
            }
            sent_ns = begin_ns.saturating_add(time_ns(packet.len() as u64));
            self.busy_until_ns = sent_ns;
        }
        let leaves_ns = if happens(seed, Chance::Reorder, number, wanted.reorder_ppm) {
            self.counts.reordered += 1;
            sent_ns
        } else {
            sent_ns.saturating_add(self.delay_ns())
        };
        if happens(seed, Chance::Duplicate, number, wanted.duplicate_ppm) {
            self.counts.duplicated += 1;
            return Fate::LeavesTwice(leaves_ns);
        }
        Fate::Leaves(leaves_ns)
    }

    fn delay_ns(&self) -> u64 {
        let Impairment { delay_ns, jitter_ns, .. } = self.impairment;
        let chance = u128::from(random(self.seed, Chance::Jitter, self.number));
        let spread = (chance * (2 * u128::from(jitter_ns) + 1)) >> 32;
        (delay_ns + spread as u64).saturating_sub(jitter_ns)
    }
}

/// Whether it is an IP packet with a TCP segment with SYN, behind no extension header.
fn is_syn(packet: &[u8]) -> bool {
    const TCP: u8 = 6;
    const SYN: u8 = 2;
    let (protocol, header) = match packet.first() {
        Some(first) if first >> 4 == 4 => (9, usize::from(first & 0xf) * 4),
        Some(first) if first >> 4 == 6 => (6, 40),
        _ => return false,
    };
    packet.get(protocol) == Some(&TCP) && packet.get(header + 13).is_some_and(|flags| flags & SYN != 0)
}
