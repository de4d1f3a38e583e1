//! Decodes the records of the ring buffer by their kind.
use zerocopy::FromBytes;

use super::record_head::RecordHead;
use super::{flow, interpreter, lifecycle, sample, signal, thread, timeline, udp};
use crate::bytes::read;

/// A decoded record. Times are CLOCK_MONOTONIC nanoseconds.
#[derive(Debug, Clone)]
pub enum Event {
    /// A flow made no progress for 1 ms or longer.
    FlowStall(flow::FlowStallWire),
    /// A thread was off the CPU for 1 ms or longer.
    ThreadStall(Box<thread::ThreadStallWire>),
    /// The user stack of the stall that has the same thread and sequence number.
    UserStack(Box<thread::UserStackWire>),
    /// A sample of a CPU.
    Sample(Box<sample::SampleWire>),
    /// A socket was closed; its final ledger.
    FlowEnd(Box<lifecycle::FlowDump>),
    /// A thread has exited; its final ledger.
    ThreadEnd(Box<thread::ThreadDump>),
    /// A thread was off the CPU for any time.
    OffCpu(timeline::OffCpuWire),
    /// A call sent or received data on a TCP socket, or accepted a connection.
    Call(timeline::CallWire),
    /// A datagram was received or sent.
    UdpCall(udp::UdpCallWire),
    /// A signal was sent that stops a process.
    StopSignal(signal::StopSignalWire),
    /// The memory of the user stack that has the same thread and sequence number.
    UserMemory(Box<thread::UserMemoryWire>),
    /// The functions that a thread runs in an interpreter, before the sample or behind the user stack that they belong to.
    Interpreted(Box<interpreter::InterpretedWire>),
}

/// Decodes one record. Returns `None` if its kind or length is unknown.
pub fn decode(bytes: &[u8]) -> Option<Event> {
    let (head, _) = RecordHead::read_from_prefix(bytes).ok()?;
    let event = match head.kind {
        1 => Event::FlowStall(read(bytes)?),
        2 => Event::ThreadStall(Box::new(read(bytes)?)),
        3 => Event::UserStack(Box::new(read(bytes)?)),
        4 => Event::Sample(Box::new(read(bytes)?)),
        5 => Event::FlowEnd(Box::new(read::<lifecycle::FlowEndWire>(bytes)?.dump)),
        6 => Event::ThreadEnd(Box::new(read::<thread::ThreadEndWire>(bytes)?.dump)),
        7 => Event::OffCpu(read(bytes)?),
        8 => Event::Call(read(bytes)?),
        9 => Event::UdpCall(read(bytes)?),
        10 => Event::FlowEnd(Box::new(read::<lifecycle::ShortFlowEndWire>(bytes)?.dump())),
        11 => Event::StopSignal(read(bytes)?),
        12 => Event::UserMemory(Box::new(read(bytes)?)),
        13 => Event::Interpreted(Box::new(read(bytes)?)),
        _ => return None,
    };
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_truncated_records_are_rejected() {
        assert!(decode(&[]).is_none());
        assert!(decode(&[99; 16]).is_none());
        let mut bytes = vec![0u8; size_of::<flow::FlowStallWire>() - 1];
        bytes[0] = 1;
        assert!(decode(&bytes).is_none());
        bytes.push(0);
        assert!(matches!(decode(&bytes), Some(Event::FlowStall(_))));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for len in 0..4096 {
            let bytes: Vec<u8> = (0..len)
                .map(|i| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(i as u64 | 1);
                    if i == 0 {
                        (seed % 14) as u8
                    } else if i < 4 {
                        0
                    } else {
                        (seed >> 33) as u8
                    }
                })
                .collect();
            if let Some(event) = decode(&bytes) {
                match event {
                    Event::FlowStall(s) => drop(s.decode()),
                    Event::ThreadStall(s) => drop((s.stack().len(), s.waker_stack().len())),
                    Event::UserStack(s) => drop(s.stack().len()),
                    Event::Sample(s) => drop((s.kernel_stack().len(), s.user_stack().len())),
                    Event::FlowEnd(d) => drop(d.cells()),
                    Event::UserMemory(m) => drop(m.memory().len()),
                    Event::Interpreted(i) => drop(i.frames().len()),
                    Event::OffCpu(o) => assert!(format!("{:?}", o.waker_context()).len() > 3),
                    Event::UdpCall(u) => assert_eq!(u.addresses().0.port(), u.sport),
                    Event::ThreadEnd(_) | Event::Call(_) | Event::StopSignal(_) => {}
                }
            }
        }
    }
}
