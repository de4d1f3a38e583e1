//! The emulator against its file, before anything is measured over it: which probes arrive, how late, and how many fit through.
//! A testbed that does something else than its file says is refused.
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use parshall_core::testbed::{Impairment, Link, MILLION, Means, Testbed, direction_seed, is_lost};
use parshall_core::units;
use parshall_host::error::UserError;
use parshall_sys::clock::monotonic_ns;

use super::Network;
use crate::interrupt::Interrupt;

/// A direction that fails is checked again: a host that is busy for a moment is no wrong emulator.
const ATTEMPTS: u32 = 3;
/// Probes fit into the smallest receive buffer, so that none is lost there.
const PROBES_MAX: u64 = 500;
const PROBES_MIN: u64 = 20;
const PROBE_BYTES: usize = 64;
/// IPv4 and UDP headers.
const HEADERS: usize = 28;
const PACE_MIN: Duration = Duration::from_micros(200);
/// How long probes are sent at most, and packets of the full rate at least.
const PROBES_TIME: Duration = Duration::from_secs(1);
const RATE_TIME: Duration = Duration::from_millis(150);
/// The most time that a wake-up may take, and a share of the delay beside it.
const DELAY_SLACK_MS: f64 = 0.5;
const DELAY_SLACK_SHARE: f64 = 0.05;
const RATE_SLACK_SHARE: f64 = 0.1;

/// Checks all impaired directions, and begins to count packets anew. Returns a line for each.
pub fn check(network: &Network, interrupt: &Interrupt) -> anyhow::Result<Vec<String>> {
    let testbed = network.testbed();
    let mut lines = Vec::new();
    for (index, link) in testbed.links.iter().enumerate() {
        for from in 0..2 {
            if link.impairments[from].means() == Means::Nothing {
                continue;
            }
            let probe = Probe::new(network, testbed, index, from)?;
            let mut attempt = 1;
            loop {
                interrupt.check()?;
                network.restart()?;
                match probe.check(link)? {
                    Ok(line) => break lines.push(line),
                    Err(_) if attempt < ATTEMPTS => attempt += 1,
                    Err(what) => {
                        let hint =
                            "the host is too busy or too slow for this testbed: end other programs, or ask for less";
                        return Err(UserError::new(what, hint).into());
                    }
                }
            }
        }
    }
    network.restart()?;
    Ok(lines)
}

/// The sockets of one direction.
struct Probe<'a> {
    impairment: &'a Impairment,
    seed: u64,
    /// `client → server`, for people.
    name: String,
    /// Whether the devices send nothing by themselves, so that the numbers of the probes are known.
    silent: bool,
    sender: UdpSocket,
    receiver: UdpSocket,
}

/// The probes that arrived.
#[derive(Default)]
struct Arrived {
    numbers: BTreeSet<u64>,
    /// From the sender's call to the receiver's, in ms.
    delays_ms: Vec<f64>,
}

impl<'a> Probe<'a> {
    fn new(network: &Network, testbed: &'a Testbed, index: usize, from: usize) -> io::Result<Self> {
        let link = &testbed.links[index];
        let [sending, receiving] = [&link.ends[from], &link.ends[1 - from]];
        let (source, target) = neighbours(link, from);
        let sender = network.namespaces()[sending.namespace].run(|| UdpSocket::bind((source, 0)))?;
        let receiver = network.namespaces()[receiving.namespace].run(|| UdpSocket::bind((target, 0)))?;
        socket2::SockRef::from(&receiver).set_recv_buffer_size(8 << 20)?;
        sender.connect(SocketAddr::new(target, receiver.local_addr()?.port()))?;
        let names = [sending, receiving].map(|end| testbed.namespaces[end.namespace].name.as_str());
        Ok(Self {
            impairment: &link.impairments[from],
            seed: direction_seed(testbed.seed, index, from),
            name: format!("{} → {}", names[0], names[1]),
            silent: !link.ends.iter().any(parshall_core::testbed::End::has_ipv6),
            sender,
            receiver,
        })
    }

    /// Checks loss, delay and rate. The inner error says what differs.
    fn check(&self, link: &Link) -> io::Result<Result<String, String>> {
        let count = self.probes();
        let arrived = self.send_probes(count)?;
        let mut said = Vec::new();
        let results = [self.judge_loss(&arrived, count), self.judge_delay(arrived.delays_ms)];
        for result in results.into_iter().flatten() {
            match result {
                Ok(text) => said.push(text),
                Err(what) => return Ok(Err(format!("{}: {what}", self.name))),
            }
        }
        if let Some(rate) = self.impairment.rate {
            match self.judge_rate(rate, link)? {
                Ok(text) => said.push(text),
                Err(what) => return Ok(Err(format!("{}: {what}", self.name))),
            }
        }
        Ok(Ok(format!("{}: {}", self.name, said.join(", "))))
    }

    /// So slow that half of the rate is free.
    fn pace(&self) -> Duration {
        let slow = self.impairment.rate.map(|rate| 2.0 * (PROBE_BYTES + HEADERS) as f64 / rate as f64);
        PACE_MIN.max(Duration::from_secs_f64(slow.unwrap_or_default()))
    }

    fn probes(&self) -> u64 {
        ((PROBES_TIME.as_secs_f64() / self.pace().as_secs_f64()) as u64).clamp(PROBES_MIN, PROBES_MAX)
    }

    /// How long after the last probe one may still arrive.
    fn last_wait(&self) -> Duration {
        Duration::from_nanos(self.impairment.delay_ns + self.impairment.jitter_ns) + Duration::from_millis(150)
    }

    /// Sends numbered probes with the time, from number 1. The first packet of all resolves the address, and is not counted.
    fn send_probes(&self, count: u64) -> io::Result<Arrived> {
        let mut arrived = Arrived::default();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                for number in 1..=count {
                    let mut probe = [0; PROBE_BYTES];
                    probe[..8].copy_from_slice(&number.to_ne_bytes());
                    probe[8..16].copy_from_slice(&monotonic_ns().to_ne_bytes());
                    self.sender.send(&probe)?;
                    std::thread::sleep(self.pace());
                }
                io::Result::Ok(())
            });
            let mut buffer = [0; PROBE_BYTES];
            let mut give_up = monotonic_ns() + self.last_wait().as_nanos() as u64;
            loop {
                self.receiver.set_read_timeout(Some(Duration::from_millis(20)))?;
                match self.receiver.recv(&mut buffer) {
                    Ok(PROBE_BYTES) => {
                        let word = |at: usize| u64::from_ne_bytes(buffer[at..at + 8].try_into().expect("8 bytes"));
                        arrived.delays_ms.push(monotonic_ns().saturating_sub(word(8)) as f64 / 1e6);
                        arrived.numbers.insert(word(0));
                    }
                    Ok(_) => {}
                    Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                    Err(error) => return Err(error),
                }
                if !sender.is_finished() {
                    give_up = monotonic_ns() + self.last_wait().as_nanos() as u64;
                } else if monotonic_ns() > give_up {
                    break;
                }
            }
            sender.join().unwrap_or_else(|_| Err(io::Error::other("the sender of probes panicked")))
        })?;
        Ok(arrived)
    }

    /// Exactly the packets whose numbers say so are lost.
    fn judge_loss(&self, arrived: &Arrived, count: u64) -> Option<Result<String, String>> {
        let lost_of = |number: u64| is_lost(self.impairment, self.seed, number);
        let expected = (1..=count).filter(|&number| lost_of(number)).count();
        let lost = count as usize - arrived.numbers.len();
        let exact = (1..=count).all(|number| arrived.numbers.contains(&number) != lost_of(number));
        let chance = f64::from(self.impairment.loss_ppm) / f64::from(MILLION);
        let near = (lost as f64 - expected as f64).abs() <= 1.0 + 5.0 * (count as f64 * chance).sqrt();
        if if self.silent { exact } else { near } {
            return (expected > 0 || chance > 0.0).then(|| Ok(format!("{lost} of {count} probes lost, as computed")));
        }
        Some(Err(format!("{lost} of {count} probes were lost, and {expected} should have been")))
    }

    fn judge_delay(&self, mut delays_ms: Vec<f64>) -> Option<Result<String, String>> {
        if delays_ms.is_empty() {
            return None;
        }
        delays_ms.sort_by(f64::total_cmp);
        let at = |share: f64| delays_ms[((delays_ms.len() - 1) as f64 * share) as usize];
        let sending_ms = self.impairment.rate.map_or(0.0, |rate| (PROBE_BYTES + HEADERS) as f64 * 1e3 / rate as f64);
        let (wanted_ms, jitter_ms) =
            (self.impairment.delay_ns as f64 / 1e6 + sending_ms, self.impairment.jitter_ns as f64 / 1e6);
        let slack_ms = DELAY_SLACK_MS + (wanted_ms + jitter_ms) * DELAY_SLACK_SHARE;
        let (median_ms, spread_ms) = (at(0.5), at(0.9) - at(0.1));
        if (median_ms - wanted_ms).abs() > slack_ms {
            return Some(Err(format!("packets take {median_ms:.2} ms, and should take {wanted_ms:.2} ms")));
        }
        // Of an even distribution over twice the jitter, four fifths.
        if jitter_ms > 0.0 && (spread_ms - 1.6 * jitter_ms).abs() > DELAY_SLACK_MS + 0.4 * jitter_ms {
            let wanted = 1.6 * jitter_ms;
            return Some(Err(format!(
                "the delays of 80 % of packets span {spread_ms:.2} ms, and should span {wanted:.2} ms"
            )));
        }
        (wanted_ms > 0.0).then(|| Ok(format!("delay {median_ms:.2} ms")))
    }

    /// Sends more than fits and counts what arrives.
    fn judge_rate(&self, rate: u64, link: &Link) -> io::Result<Result<String, String>> {
        let largest = self.impairment.largest_packet.unwrap_or(u32::MAX).min(link.mtu) as usize;
        let payload = vec![0; (largest - HEADERS.min(largest)).clamp(PROBE_BYTES + 1, 1472)];
        let bytes = (payload.len() + HEADERS) as f64;
        let kept = 1.0 - f64::from(self.impairment.loss_ppm) / f64::from(MILLION);
        let twice = 1.0 + f64::from(self.impairment.duplicate_ppm) / f64::from(MILLION);
        let time_s = RATE_TIME.as_secs_f64().max(20.0 * bytes / rate as f64);
        let per_s = 1.3 * rate as f64 / bytes / kept.max(0.1);
        let mut arrivals: Vec<u64> = Vec::new();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let begin = monotonic_ns();
                let mut sent = 0_u64;
                while sent < (time_s * per_s) as u64 {
                    let due = ((monotonic_ns() - begin) as f64 / 1e9 * per_s) as u64;
                    while sent < due {
                        self.sender.send(&payload).ok();
                        sent += 1;
                    }
                    std::thread::sleep(PACE_MIN);
                }
            });
            let mut buffer = [0; 2048];
            let mut last = monotonic_ns();
            self.receiver.set_read_timeout(Some(Duration::from_millis(20)))?;
            while !sender.is_finished() || monotonic_ns() - last < self.last_wait().as_nanos() as u64 {
                if self.receiver.recv(&mut buffer).is_ok_and(|length| length == payload.len()) {
                    last = monotonic_ns();
                    arrivals.push(last);
                }
            }
            io::Result::Ok(())
        })?;
        let span_s = arrivals.last().zip(arrivals.first()).map_or(0.0, |(last, first)| (last - first) as f64 / 1e9);
        let measured = (arrivals.len().max(1) - 1) as f64 * bytes / twice / span_s.max(1e-9);
        let text = |rate: f64| units::bit_rate(rate);
        if (measured / rate as f64 - 1.0).abs() > RATE_SLACK_SHARE {
            return Ok(Err(format!("{} fit through, and {} should", text(measured), text(rate as f64))));
        }
        Ok(Ok(format!("rate {}", text(measured))))
    }
}

/// Addresses of both ends in one network, that of the sending end first.
fn neighbours(link: &Link, from: usize) -> (IpAddr, IpAddr) {
    let [sending, receiving] = [&link.ends[from].addresses, &link.ends[1 - from].addresses];
    let pairs = sending.iter().flat_map(|a| receiving.iter().map(move |b| (a, b)));
    let mut shared = pairs.filter(|(a, b)| a.trunc() == b.trunc()).map(|(a, b)| (a.addr(), b.addr()));
    shared.next().expect("a checked link has a network that both ends share")
}
