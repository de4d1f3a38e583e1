//! A soak test: connections that stream, stall and end in every way while the configuration is reloaded. A connection's seed
//! determines what both ends do, so every byte is checked, and a failure prints the seed.
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::scope;
use std::time::{Duration, Instant};

use super::bed::{Bed, Plan, Relay};
use super::net::{Conn, End, Random, Tape, Target, pause};

/// Connections that are open at a time.
const CONCURRENT: u64 = 12;
/// The share of the time after which memory is first measured, because pools are filled by then.
const WARM: f64 = 0.3;
/// The growth of resident memory that is allowed for pools and the allocator.
const GROWTH_MAX_KIB: u64 = 8 * 1024;
/// The most descriptors of unused pipes: two threads keep 16 pipes each.
const PIPE_ENDS_MAX: usize = 2 * 2 * 16;
/// The number of failures after which it stops.
const FAILURES_MAX: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Client,
    Target,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    /// Both sides stream at once and end.
    Both,
    /// This side sends and half-closes first, then the other.
    HalfClose(Side),
    /// This side resets the connection once all that it has sent is acknowledged.
    Reset(Side),
    /// This side closes without reading.
    Drop(Side),
}

/// The behaviour of both ends of a connection.
#[derive(Debug, Clone)]
struct Script {
    seed: u64,
    ending: Ending,
    /// The bytes from the client and from the target.
    bytes: [usize; 2],
    /// The time that each side waits before it reads.
    stalls_ms: [u64; 2],
}

impl Script {
    fn of(seed: u64) -> Self {
        use Side::{Client, Target};
        let mut random = Random::new(seed);
        let ending = match random.within(0, 15) {
            0 | 1 => Ending::HalfClose(Client),
            2 | 3 => Ending::HalfClose(Target),
            4 => Ending::Reset(Client),
            5 => Ending::Reset(Target),
            6 => Ending::Drop(Client),
            7 => Ending::Drop(Target),
            _ => Ending::Both,
        };
        let mut size = || match random.within(0, 40) {
            0 => random.within(1 << 20, 4 << 20),
            _ => {
                let ceiling = 1 << random.within(0, 18);
                random.within(0, ceiling)
            }
        };
        let bytes = [size(), size()];
        let mut stall = || if random.within(0, 20) == 0 { random.within(1, 300) as u64 } else { 0 };
        Self { seed, ending, bytes, stalls_ms: [stall(), stall()] }
    }

    fn tape(&self, from: Side) -> Tape {
        Tape::new(self.seed.wrapping_mul(2).wrapping_add(from as u64))
    }

    fn send_all(&self, conn: &Conn, me: Side) {
        let mut random = Random::new(self.seed ^ 0xfeed);
        let (mut tape, mut left) = (self.tape(me), self.bytes[me as usize]);
        while left > 0 {
            let ceiling = 1 << random.within(0, 17);
            let n = left.min(random.within(1, ceiling));
            conn.send(&tape.next(n));
            left -= n;
            if random.within(0, 200) == 0 {
                pause(5);
            }
        }
    }

    /// Reads all that the other side sends, and its end.
    fn take_all(&self, conn: &Conn, me: Side) {
        pause(self.stalls_ms[me as usize]);
        let from = if me == Side::Client { Side::Target } else { Side::Client };
        conn.expect(&mut self.tape(from), self.bytes[from as usize]);
        conn.expect_end();
    }

    /// Reads what the other side sent before it closed. Returns the number of bytes and how the stream ended.
    fn take_some(&self, conn: &Conn, me: Side) -> (usize, End) {
        pause(self.stalls_ms[me as usize]);
        let from = if me == Side::Client { Side::Target } else { Side::Client };
        let (got, end) = conn.rest();
        assert!(got.len() <= self.bytes[from as usize], "{} bytes more than were sent", got.len());
        let mut tape = self.tape(from);
        assert!(got.chunks(1 << 20).all(|piece| tape.is(piece)), "wrong bytes among {}", got.len());
        (got.len(), end)
    }

    /// Sends until an error.
    fn send_some(&self, conn: &Conn, me: Side) {
        let (mut tape, mut left) = (self.tape(me), self.bytes[me as usize]);
        while left > 0 {
            let n = left.min(50_000);
            if conn.try_send(&tape.next(n)).is_err() {
                return;
            }
            left -= n;
        }
    }

    /// Runs one side to its end.
    fn play(&self, conn: Conn, me: Side) {
        match self.ending {
            Ending::Both => scope(|s| {
                s.spawn(|| {
                    self.send_all(&conn, me);
                    conn.end();
                });
                self.take_all(&conn, me);
            }),
            Ending::HalfClose(first) if first == me => {
                self.send_all(&conn, me);
                conn.end();
                self.take_all(&conn, me);
            }
            Ending::HalfClose(_) => {
                self.take_all(&conn, me);
                self.send_all(&conn, me);
                conn.end();
            }
            Ending::Reset(who) if who == me => {
                self.send_all(&conn, me);
                conn.flushed();
                conn.reset();
            }
            Ending::Drop(who) if who == me => self.send_some(&conn, me),
            Ending::Reset(who) => scope(|s| {
                s.spawn(|| self.send_some(&conn, me));
                let (got, _) = self.take_some(&conn, me);
                assert_eq!(got, self.bytes[who as usize], "bytes that were acknowledged before the reset are missing");
            }),
            Ending::Drop(_) => scope(|s| {
                s.spawn(|| self.send_some(&conn, me));
                self.take_some(&conn, me);
            }),
        }
    }
}

/// The results so far.
#[derive(Default)]
struct Log {
    failures: Mutex<Vec<String>>,
    done: Mutex<BTreeMap<Ending, u64>>,
    bytes: AtomicU64,
    stop: AtomicBool,
}

impl Log {
    /// Runs a side and records the result.
    fn record(&self, script: &Script, me: Side, play: impl FnOnce()) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(play)) else {
            if me == Side::Client {
                *self.done.lock().unwrap_or_else(PoisonError::into_inner).entry(script.ending).or_default() += 1;
                self.bytes.fetch_add(script.bytes.iter().sum::<usize>() as u64, Ordering::Relaxed);
            }
            return;
        };
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.push(format!("{me:?} of {script:?}: {text}"));
        if failures.len() >= FAILURES_MAX {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Accepts connections, and runs the script of the seed that each client sends first.
fn serve(target: &Target, log: &Log) {
    scope(|s| {
        while !log.stopped() {
            let Some(conn) = target.try_accept(Duration::from_millis(50)) else { continue };
            s.spawn(move || {
                let mut seed = [0; 8];
                if conn.read(&mut seed).is_ok_and(|n| n == 8) {
                    let script = Script::of(u64::from_le_bytes(seed));
                    log.record(&script, Side::Target, || {
                        conn.send(b"!");
                        script.play(conn, Side::Target);
                    });
                }
            });
        }
    });
}

/// Makes one connection after the other until the time is over.
fn connect_again_and_again(address: &str, log: &Log, thread: u64, seed: u64, until: Instant) {
    let mut random = Random::new(seed.wrapping_mul(CONCURRENT).wrapping_add(thread));
    while Instant::now() < until && !log.stopped() {
        let script = Script::of(random.next());
        log.record(&script, Side::Client, || {
            let conn = Conn::to(address);
            conn.send(&script.seed.to_le_bytes());
            // Both ends must be connected before one of them resets.
            assert_eq!(conn.take(1), b"!");
            script.play(conn, Side::Client);
        });
    }
}

/// Reloads the configuration, with another target each time.
fn reload(bed: &Bed, relay: &Relay, targets: &[Target; 2], log: &Log, until: Instant) -> u64 {
    let mut count = 0;
    while Instant::now() < until && !log.stopped() {
        pause(250);
        let plan = Plan { targets: vec![targets[count as usize % 2].address.clone()], ..Plan::default() };
        // Replaces the file atomically, so that the relay never reads an incomplete one.
        let fresh = relay.file.with_extension("new");
        std::fs::write(&fresh, bed.text(&plan, &relay.address)).expect("a file in /tmp");
        std::fs::rename(&fresh, &relay.file).expect("a file in /tmp");
        relay.signal("-HUP");
        count += 1;
    }
    count
}

/// Runs for this long; returns a summary, or the failures.
pub fn churn(engine: &'static str, seed: u64, time: Duration) -> Result<String, String> {
    let bed = Bed::new(engine);
    let targets = [Target::new(), Target::new()];
    let relay = bed.relay(&targets[0], "");
    let reloads = relay.catches(1);
    let (sockets, others) = (relay.sockets(), relay.descriptors().len() - relay.sockets());
    let log = Log::default();
    let until = Instant::now() + time;
    let (mut warm_kib, mut reloaded) = (0, 0);
    scope(|s| {
        let servers: Vec<_> = targets.iter().map(|target| s.spawn(|| serve(target, &log))).collect();
        let clients: Vec<_> = (0..CONCURRENT)
            .map(|thread| {
                let (address, log) = (&relay.address, &log);
                s.spawn(move || connect_again_and_again(address, log, thread, seed, until))
            })
            .collect();
        let reloader = s.spawn(|| if reloads { reload(&bed, &relay, &targets, &log, until) } else { 0 });
        std::thread::sleep(time.mul_f64(WARM));
        warm_kib = relay.resident_kib();
        clients.into_iter().for_each(|client| client.join().unwrap());
        reloaded = reloader.join().unwrap();
        log.stop.store(true, Ordering::Relaxed);
        servers.into_iter().for_each(|server| server.join().unwrap());
    });
    let failures = log.failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failures.is_empty() {
        return Err(format!("engine {engine}, seed {seed}: {} failures:\n{}", failures.len(), failures.join("\n")));
    }
    relay.settles_to(sockets);
    let (now, kib) = (relay.descriptors().len() - relay.sockets(), relay.resident_kib());
    if now > others + PIPE_ENDS_MAX {
        return Err(format!("engine {engine}, seed {seed}: {others} other descriptors before, {now} after"));
    }
    if kib > warm_kib + GROWTH_MAX_KIB {
        return Err(format!("engine {engine}, seed {seed}: {warm_kib} KiB when warm, {kib} KiB after"));
    }
    let done = log.done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (count, mib) = (done.values().sum::<u64>(), log.bytes.into_inner() >> 20);
    Ok(format!("{engine}: {count} connections, {mib} MiB, {reloaded} reloads, {warm_kib} then {kib} KiB: {done:?}"))
}
