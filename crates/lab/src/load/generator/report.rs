//! Reports of the server: its use of the CPU, and what its connections moved.
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::phase::{Counters, Counts, CpuUse};

/// A report of the server: its use of the CPU since the last report, and what all its connections moved since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    pub cpu_ns: u64,
    /// Of the thread that used most of it.
    pub busiest_ns: u64,
    pub counts: Counts,
}

impl Report {
    pub const BYTES: usize = 40;

    fn encode(&self) -> [u8; Self::BYTES] {
        let numbers = [self.cpu_ns, self.busiest_ns, self.counts.operations, self.counts.received, self.counts.sent];
        let mut bytes = [0; Self::BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let number = |i| number(bytes, i);
        let counts = Counts { operations: number(2), received: number(3), sent: number(4) };
        Self { cpu_ns: number(0), busiest_ns: number(1), counts }
    }
}

/// The `i`th number of eight bytes, in network byte order.
fn number(bytes: &[u8], i: usize) -> u64 {
    bytes[8 * i..8 * (i + 1)].iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Sends a report for each byte that the client sends.
pub fn send_each(mut stream: &TcpStream, counters: &Counters) -> io::Result<()> {
    let mut before = CpuUse::now();
    let mut asked = [0];
    while stream.read(&mut asked)? > 0 {
        let now = CpuUse::now();
        let (cpu_ns, busiest_ns) = now.since(&before);
        stream.write_all(&Report { cpu_ns, busiest_ns, counts: counters.read() }.encode())?;
        before = now;
    }
    Ok(())
}

/// When the measured window of packets begins after the announcement, and how long it is. The server takes the time itself: a
/// question would wait behind the packets, for as long as they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    pub warm_up: Duration,
    pub time: Duration,
}

impl Announcement {
    const BYTES: usize = 16;

    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, time) in bytes.chunks_exact_mut(8).zip([self.warm_up, self.time]) {
            place.copy_from_slice(&(time.as_nanos() as u64).to_be_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let ns = |i| Duration::from_nanos(number(bytes, i));
        Self { warm_up: ns(0), time: ns(1) }
    }
}

/// Reads an announcement, and sends one report of that window when the client asks for it. A client that asks before its end gets it
/// then.
pub fn send_window(mut stream: &TcpStream, counters: &Counters) -> io::Result<()> {
    let mut bytes = [0; Announcement::BYTES];
    stream.read_exact(&mut bytes)?;
    let Announcement { warm_up, time } = Announcement::decode(&bytes);
    let mut asked = is_asked_within(stream, warm_up)?;
    let (cpu, counts) = (CpuUse::now(), counters.read());
    asked = asked || is_asked_within(stream, time)?;
    let ((cpu_ns, busiest_ns), counts) = (CpuUse::now().since(&cpu), counters.read().since(counts));
    if !asked {
        stream.set_read_timeout(None)?;
        stream.read_exact(&mut [0])?;
    }
    stream.write_all(&Report { cpu_ns, busiest_ns, counts }.encode())
}

/// Whether the client sends a byte within this time.
fn is_asked_within(mut stream: &TcpStream, time: Duration) -> io::Result<bool> {
    // A timeout of zero would be none.
    stream.set_read_timeout(Some(time.max(Duration::from_millis(1))))?;
    match stream.read_exact(&mut [0]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        read => read.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_back() {
        let counts = Counts { operations: 3, received: u64::MAX, sent: 5 };
        let report = Report { cpu_ns: 1 << 40, busiest_ns: 7, counts };
        assert_eq!(Report::decode(&report.encode()), report);
        let announcement = Announcement { warm_up: Duration::from_millis(3), time: Duration::from_secs(86_400) };
        assert_eq!(Announcement::decode(&announcement.encode()), announcement);
    }
}
