//! The order in which frames of the TUN device are sealed when they come faster than that: flows take turns, and one that has sent
//! nothing for a while goes first (FQ-CoDel, RFC 8290). So a bulk transfer has a queue of its own, in which nothing else waits.
//!
//! A TUN device takes what it is given and never stops its senders: its own queue holds 500 superframes, which are tens of megabytes.
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use super::codel::Codel;
use super::data_path::{destination, source};
use super::{Ns, SECOND};

/// Frames of a [`FairQueue`] at most. Of small frames it is this that limits what is read.
const FRAMES_MAX: usize = 256;

/// Bytes of a queue at most. A connection may send a whole window at once, such as 4 MiB, and nothing of it needs to be lost.
const BYTES_MAX: usize = 8 << 20;

/// How long frames of a flow wait in the long run. At 6 Gbit/s that is 1.5 MB, which stay in the caches: with 4 MiB a transfer was 3 %
/// slower.
const TARGET: Ns = 2 * SECOND / 1000;

/// The quantum of a flow in bytes: a superframe.
const QUANTUM: isize = 1 << 16;

/// Flows are told apart by a hash of this range.
const FLOWS: usize = 1024;

/// A frame in a buffer of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    slot: usize,
    bytes: usize,
    read: Ns,
}

#[derive(Debug, Clone)]
struct Flow {
    frames: VecDeque<Frame>,
    bytes: usize,
    deficit: isize,
    /// It is in one of the two lists.
    is_listed: bool,
    codel: Codel,
}

/// Frames that wait to be sealed, by the numbers of the buffers that hold them.
#[derive(Debug)]
pub struct FairQueue {
    hasher: RandomState,
    flows: Vec<Flow>,
    /// Flows that were idle before, and the others. Both are served from their front.
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    frames: usize,
    bytes: usize,
}

impl Default for FairQueue {
    fn default() -> Self {
        let idle = Flow { frames: VecDeque::new(), bytes: 0, deficit: 0, is_listed: false, codel: Codel::new(TARGET) };
        let (new, old) = (VecDeque::new(), VecDeque::new());
        Self { hasher: RandomState::new(), flows: vec![idle; FLOWS], new, old, frames: 0, bytes: 0 }
    }
}

impl FairQueue {
    #[allow(missing_docs)]
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Whether another frame can be read: the device keeps the others.
    pub fn takes(&self) -> bool {
        self.frames < FRAMES_MAX
    }

    /// Adds the frame in buffer `slot`, which has `bytes` bytes and begins with `packet`. Returns the buffer of a frame that is dropped
    /// for it, where there is no more space: the first one of the flow that has the most bytes, so that its sender soon notices.
    pub fn push(&mut self, now: Ns, slot: usize, bytes: usize, packet: &[u8]) -> Option<usize> {
        let at = self.flow_of(packet);
        let flow = &mut self.flows[at];
        flow.frames.push_back(Frame { slot, bytes, read: now });
        flow.bytes += bytes;
        if !flow.is_listed {
            (flow.is_listed, flow.deficit) = (true, QUANTUM);
            self.new.push_back(at);
        }
        self.frames += 1;
        self.bytes += bytes;
        (self.bytes > BYTES_MAX).then(|| self.drop_one()).flatten()
    }

    /// Takes the next frame, and returns its buffer. Those of frames before it that are dropped, because their flow's queue stays too
    /// long, are added to `dropped`.
    pub fn pop(&mut self, now: Ns, dropped: &mut Vec<usize>) -> Option<usize> {
        loop {
            let from_new = !self.new.is_empty();
            let list = if from_new { &mut self.new } else { &mut self.old };
            let at = *list.front()?;
            let flow = &mut self.flows[at];
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                list.pop_front();
                self.old.push_back(at);
                continue;
            }
            if let Some(frame) = self.take(at) {
                let flow = &mut self.flows[at];
                // The last superframe of a flow is no queue.
                let waited = if flow.bytes > QUANTUM as usize { now.saturating_sub(frame.read) } else { 0 };
                if flow.codel.notifies(now, waited) {
                    dropped.push(frame.slot);
                    continue;
                }
                flow.deficit -= frame.bytes as isize;
                return Some(frame.slot);
            }
            // A flow that has become empty waits behind the old ones once, or it could keep them waiting by coming back.
            if from_new {
                self.new.pop_front();
                self.old.push_back(at);
            } else {
                self.old.pop_front();
                self.flows[at].is_listed = false;
            }
        }
    }

    /// Takes the first frame of a flow.
    fn take(&mut self, at: usize) -> Option<Frame> {
        let flow = &mut self.flows[at];
        let frame = flow.frames.pop_front()?;
        flow.bytes -= frame.bytes;
        self.frames -= 1;
        self.bytes -= frame.bytes;
        Some(frame)
    }

    fn drop_one(&mut self) -> Option<usize> {
        let longest = (0..self.flows.len()).max_by_key(|at| self.flows[*at].bytes)?;
        self.take(longest).map(|frame| frame.slot)
    }

    fn flow_of(&self, packet: &[u8]) -> usize {
        let (protocol, transport_at) = match packet.first().map(|first| first >> 4) {
            // Only the first fragment has ports: they are left out of all.
            Some(4) if packet.len() >= 20 && packet[6] & 0x3f == 0 && packet[7] == 0 => {
                (packet[9], usize::from(packet[0] & 15) * 4)
            }
            Some(6) if packet.len() >= 40 => (packet[6], 40),
            _ => (0, packet.len()),
        };
        // TCP, UDP and SCTP have their ports in the same place.
        let ports =
            packet.get(transport_at..).filter(|_| [6, 17, 132].contains(&protocol)).and_then(|rest| rest.get(..4));
        let key = (source(packet), destination(packet), protocol, ports);
        (self.hasher.hash_one(key) % FLOWS as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The beginning of a UDP packet of flow `port`.
    fn packet(port: u16) -> Vec<u8> {
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[9] = 17;
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet
    }

    fn pop(queue: &mut FairQueue) -> Option<usize> {
        let mut dropped = Vec::new();
        let popped = queue.pop(0, &mut dropped);
        assert!(dropped.is_empty(), "no time has passed");
        popped
    }

    fn drained(queue: &mut FairQueue) -> Vec<usize> {
        std::iter::from_fn(|| pop(queue)).collect()
    }

    /// Ports whose flows have different numbers.
    fn ports(queue: &FairQueue, count: usize) -> Vec<u16> {
        let mut found: Vec<u16> = Vec::new();
        for port in 0..u16::MAX {
            if found.iter().all(|other| queue.flow_of(&packet(*other)) != queue.flow_of(&packet(port))) {
                found.push(port);
            }
            if found.len() == count {
                break;
            }
        }
        found
    }

    #[test]
    fn a_small_packet_does_not_wait_behind_bulk() {
        let mut queue = FairQueue::default();
        let ports = ports(&queue, 3);
        for slot in 0..20 {
            assert_eq!(queue.push(0, slot, 65_000, &packet(ports[slot % 2])), None);
        }
        assert_eq!([(); 3].map(|()| pop(&mut queue)), [Some(0), Some(2), Some(1)], "a quantum each");
        queue.push(0, 99, 84, &packet(ports[2]));
        assert_eq!(pop(&mut queue), Some(3), "the turn that has begun is ended");
        let rest = drained(&mut queue);
        assert!(rest.iter().position(|slot| *slot == 99) <= Some(1), "{rest:?}");
        let of_first: Vec<_> = rest.iter().filter(|slot| **slot != 99 && *slot % 2 == 0).collect();
        assert!(of_first.is_sorted(), "the order within a flow stays");
    }

    #[test]
    fn the_longest_flow_loses_its_first_frame() {
        let mut queue = FairQueue::default();
        let ports = ports(&queue, 2);
        queue.push(0, 1000, 84, &packet(ports[1]));
        let dropped: Vec<usize> = (0..200).filter_map(|slot| queue.push(0, slot, 65_536, &packet(ports[0]))).collect();
        assert_eq!(dropped, (0..dropped.len()).collect::<Vec<_>>());
        assert_eq!(dropped.len(), 200 - BYTES_MAX / 65_536 + 1, "84 bytes of another flow are there too");
        assert_eq!(drained(&mut queue).len(), 1 + 200 - dropped.len());
    }

    #[test]
    fn a_burst_passes_whole_and_a_flow_that_stays_too_long_loses_frames() {
        const MS: Ns = SECOND / 1000;
        let mut queue = FairQueue::default();
        let (mut dropped, mut slots) = (Vec::new(), 0..);
        let mut push = |queue: &mut FairQueue, now, count| {
            (0..count).for_each(|_| assert_eq!(queue.push(now, slots.next().unwrap(), 65_536, &packet(1)), None));
        };
        push(&mut queue, 0, 60);
        assert_eq!((0..60).filter_map(|n| queue.pop(n * MS / 2, &mut dropped)).count(), 60);
        assert!(dropped.is_empty(), "it was empty within an interval");
        // Frames come as fast as they are taken, and each waits for 10 ms.
        push(&mut queue, SECOND, 10);
        for n in 0..1000 {
            let now = SECOND + 10 * MS + n * MS;
            queue.pop(now, &mut dropped).unwrap();
            let missing = 10 - queue.frames;
            push(&mut queue, now, missing);
        }
        assert!((10..100).contains(&dropped.len()), "{} of 1000", dropped.len());
        assert!(dropped.is_sorted());
    }

    #[test]
    fn it_takes_so_many_small_frames() {
        let mut queue = FairQueue::default();
        for slot in 0..FRAMES_MAX {
            assert!(queue.takes());
            queue.push(0, slot, 60, &packet(slot as u16));
        }
        assert!(!queue.takes());
        assert_eq!(drained(&mut queue).len(), FRAMES_MAX);
        assert!(queue.is_empty() && queue.takes());
    }

    proptest! {
        #[test]
        fn every_frame_comes_out_once_and_in_the_order_of_its_flow(
            steps in prop::collection::vec((0u16..5, 1usize..70_000, prop::bool::weighted(0.6)), 0..300),
        ) {
            let mut queue = FairQueue::default();
            let flows: Vec<usize> = (0..5).map(|port| queue.flow_of(&packet(port))).collect();
            let mut waiting: Vec<VecDeque<usize>> = vec![VecDeque::new(); FLOWS];
            let gone = |waiting: &mut Vec<VecDeque<usize>>, slot: usize, port: u16| {
                waiting[flows[usize::from(port)]].pop_front() == Some(slot)
            };
            let mut of_slot = Vec::new();
            for (slot, (port, bytes, push)) in steps.into_iter().enumerate() {
                of_slot.push(port);
                if push {
                    waiting[queue.flow_of(&packet(port))].push_back(slot);
                    if let Some(dropped) = queue.push(0, slot, bytes, &packet(port)) {
                        prop_assert!(gone(&mut waiting, dropped, of_slot[dropped]));
                    }
                    prop_assert!(queue.bytes <= BYTES_MAX);
                } else if let Some(slot) = pop(&mut queue) {
                    prop_assert!(gone(&mut waiting, slot, of_slot[slot]));
                }
            }
            for slot in drained(&mut queue) {
                prop_assert!(gone(&mut waiting, slot, of_slot[slot]));
            }
            prop_assert!(waiting.iter().all(VecDeque::is_empty) && queue.bytes == 0);
        }

        #[test]
        fn any_bytes_belong_to_a_flow(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(FairQueue::default().flow_of(&bytes) < FLOWS);
        }
    }
}
