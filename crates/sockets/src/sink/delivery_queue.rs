//! What stands before every slow sink: a bounded queue, a spool on disk behind it, and the thread that delivers.
//!
//! Chunks are delivered oldest first. They lie, in this order of age, in hand of the delivering thread, in `front`, in the
//! spool and in `back`. `back` is what a second thread writes to the spool, so that a disk that hangs does not hold up
//! whoever gives chunks. When nothing has room the newest chunk is refused, and its rows are counted.
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parshall_core::sockets::retry::Retry;

use super::delivery::{Chunk, Delivery, Refusal};
use serde::Deserialize;

use super::spool::{Level, Next, Spool, SpoolConfig};
use super::{Account, Fault};

/// After a failure of the spool's disk it is tried again this much later.
const SPOOL_PAUSE: Duration = Duration::from_secs(1);
/// How much longer than asked closing waits for a thread that is in the middle of something.
const GRACE: Duration = Duration::from_millis(500);

/// Space in a spool is given back in pieces of this size.
const SEGMENT_BYTES: u64 = 16 << 20;

/// Bounds of a delivery queue.
#[derive(Debug, Clone)]
pub struct QueueConfig {
    /// Bytes that may wait in memory. With a spool, as much again may wait for its disk.
    pub queue_bytes: usize,
    /// Where chunks go when memory is full; none: they are refused.
    pub spool: Option<SpoolConfig>,
    /// Pauses after failures.
    pub retry: Retry,
}

/// Where a sink's rows go while its receiver does not take them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SpoolTable {
    directory: PathBuf,
    #[serde(deserialize_with = "super::table::size")]
    size: u64,
}

impl QueueConfig {
    /// The bounds that a table sets.
    pub fn of_table(queue_bytes: u64, spool: Option<SpoolTable>) -> Self {
        let spool = spool.map(|table| SpoolConfig {
            directory: table.directory,
            max_bytes: table.size,
            // A quarter at most, so that space is given back before all of it is used.
            segment_bytes: SEGMENT_BYTES.min(table.size / 4).max(1),
        });
        Self { queue_bytes: queue_bytes as usize, spool, retry: Retry::default() }
    }
}

/// Bytes that wait in memory before the spool, or before rows are refused, if a table does not say.
pub fn queue_bytes() -> u64 {
    16 << 20
}

/// A queue of chunks, and the thread that delivers them.
pub struct DeliveryQueue {
    shared: Arc<Shared>,
}

struct Shared {
    queue_bytes: usize,
    retry: Retry,
    state: Mutex<State>,
    changed: Condvar,
    /// Never locked together with `state`.
    spool: Option<Mutex<Spool>>,
}

#[derive(Default)]
struct State {
    front: Queue,
    back: Queue,
    /// Rows and time of the chunk that is being delivered, if it is not one of the spool's.
    in_hand_rows: u64,
    in_hand_at_unix_ns: Option<u64>,
    /// Rows of the chunk that is being written to the spool.
    spooling: Option<u64>,
    /// What lies in the spool.
    spooled: Level,
    /// Somebody waited for room in vain, and nothing has been delivered since.
    stalled: bool,
    /// Why the spool takes nothing now.
    spool_stuck: Option<&'static str>,
    account: Account,
    /// When delivering ends.
    closing: Option<Instant>,
    /// Threads that still run.
    running: u32,
}

#[derive(Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

impl Queue {
    /// One chunk always has room, however large it is.
    fn has_room(&self, chunk: &Chunk, limit: usize) -> bool {
        self.chunks.is_empty() || self.bytes + chunk.bytes.len() <= limit
    }

    fn push(&mut self, chunk: Chunk) {
        self.bytes += chunk.bytes.len();
        self.chunks.push_back(chunk);
    }

    fn unshift(&mut self, chunk: Chunk) {
        self.bytes += chunk.bytes.len();
        self.chunks.push_front(chunk);
    }

    fn shift(&mut self) -> Option<Chunk> {
        let chunk = self.chunks.pop_front()?;
        self.bytes -= chunk.bytes.len();
        Some(chunk)
    }

    fn rows(&self) -> u64 {
        self.chunks.iter().map(|c| u64::from(c.rows)).sum()
    }
}

/// A chunk that is being delivered.
enum InHand {
    FromMemory(Chunk),
    /// It stays in the spool until it is delivered.
    FromSpool(Chunk),
}

impl DeliveryQueue {
    /// Starts the threads. What an earlier process left in the spool is delivered first, and counted as given.
    ///
    /// # Errors
    /// If the spool cannot be opened, or a thread not started.
    pub fn start(name: &str, config: QueueConfig, mut delivery: Box<dyn Delivery>) -> anyhow::Result<Self> {
        let mut state = State::default();
        state.note(delivery.faults());
        let spool = match &config.spool {
            None => None,
            Some(spool) => {
                let (spool, faults) = Spool::open(spool)?;
                state.spooled = spool.level();
                state.account.rows_in += state.spooled.rows;
                state.note(faults);
                Some(Mutex::new(spool))
            }
        };
        let shared = Arc::new(Shared {
            queue_bytes: config.queue_bytes,
            retry: config.retry,
            state: Mutex::new(state),
            changed: Condvar::new(),
            spool,
        });
        let queue = Self { shared: Arc::clone(&shared) };
        if shared.spool.is_some() {
            queue.spawn(&format!("{name}-spool"), Shared::write_spool)?;
        }
        queue.spawn(name, move |shared| shared.deliver(delivery))?;
        Ok(queue)
    }

    fn spawn(&self, name: &str, work: impl FnOnce(&Shared) + Send + 'static) -> anyhow::Result<()> {
        let shared = Arc::clone(&self.shared);
        shared.lock().running += 1;
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Counts itself out even when it panics, so that closing does not wait for it.
            let running = Running(shared);
            work(&running.0);
        });
        if let Err(error) = started {
            let mut state = self.shared.lock();
            state.running -= 1;
            state.closing = Some(Instant::now());
            self.shared.changed.notify_all();
            return Err(anyhow::Error::new(error).context("cannot start a thread"));
        }
        Ok(())
    }

    /// Takes a chunk, or refuses and counts it. Never waits for the network or the disk.
    pub fn offer(&self, chunk: Chunk) {
        self.offer_within(chunk, Duration::ZERO);
    }

    /// As [`Self::offer`], but waits for room for at most so long. When that was in vain, it waits no more until something
    /// has been delivered: a sink that hangs holds up its giver once.
    pub fn offer_within(&self, chunk: Chunk, timeout: Duration) {
        let shared = &self.shared;
        let mut state = shared.lock();
        state.account.rows_in += u64::from(chunk.rows);
        let mut room = shared.room(&state, &chunk);
        if room == Room::None && !timeout.is_zero() && !state.stalled {
            let began = Instant::now();
            while room == Room::None && began.elapsed() < timeout {
                state = shared.wait(state, timeout.saturating_sub(began.elapsed()));
                room = shared.room(&state, &chunk);
            }
            state.stalled = room == Room::None;
            state.account.held_up_ms += u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        }
        match room {
            Room::Front => state.front.push(chunk),
            Room::Back => state.back.push(chunk),
            Room::None => {
                let kind = state.spool_stuck.unwrap_or("queue-full");
                state.account.rows_dropped += u64::from(chunk.rows);
                state.failed(kind, format!("no room for {} rows", chunk.rows));
            }
        }
        drop(state);
        shared.changed.notify_all();
    }

    /// Counts rows that never became a chunk (larger than a message may be, not encodable) as given and given up.
    pub fn give_up(&self, rows: u64, refusal: Refusal) {
        let mut state = self.shared.lock();
        state.account.rows_in += rows;
        state.account.rows_dropped += rows;
        state.failed(refusal.kind, refusal.text);
    }

    /// What became of everything so far.
    pub fn account(&self) -> Account {
        self.shared.lock().account()
    }

    /// Delivers what waits for at most `timeout`, then puts what is left into the spool; without a spool, or where it has
    /// no room, the rows are dropped and counted.
    pub fn close(self, timeout: Duration) -> Account {
        let shared = &self.shared;
        let deadline = Instant::now() + timeout;
        let mut state = shared.lock();
        state.closing = Some(deadline);
        shared.changed.notify_all();
        while state.running > 0 {
            let left = (deadline + GRACE).saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let ended = state.running == 0;
        shared.put_away(state);
        // A thread that has counted itself out may still be about to let go of what is shared.
        if ended && let Some(mut spool) = shared.spool() {
            spool.leave();
        }
        self.account()
    }
}

/// Counts a thread out when it ends.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        if std::thread::panicking() {
            state.failed("internal", "a thread of the sink ended with a panic".to_owned());
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

impl State {
    fn failed(&mut self, kind: &'static str, text: String) {
        *self.account.errors.entry(kind).or_default() += 1;
        self.account.last_error = Some(text);
    }

    /// What went wrong with a disk. Rows of an earlier process that are lost by it count as given, too.
    fn note(&mut self, faults: Vec<Fault>) {
        for fault in faults {
            self.account.rows_in += fault.rows;
            self.account.rows_dropped += fault.rows;
            self.account.bytes_lost += fault.bytes;
            self.failed(fault.kind, fault.text);
        }
    }

    fn account(&self) -> Account {
        let mut account = self.account.clone();
        account.rows_waiting = self.in_hand_rows
            + self.front.rows()
            + self.spooled.rows
            + self.spooling.unwrap_or_default()
            + self.back.rows();
        account.spool_bytes = self.spooled.bytes;
        let first = |queue: &Queue| queue.chunks.front().map(|c| c.at_unix_ns);
        let oldest = self.in_hand_at_unix_ns.or_else(|| first(&self.front)).or_else(|| first(&self.back));
        account.lag_ms = oldest.map_or(0, |at| unix_now_ns().saturating_sub(at) / 1_000_000);
        account
    }

    /// Whether delivering must end now.
    fn is_over(&self) -> bool {
        self.closing.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn is_empty(&self) -> bool {
        self.front.chunks.is_empty()
            && self.back.chunks.is_empty()
            && self.spooling.is_none()
            && self.spooled.chunks == 0
    }
}

/// Where a chunk has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Front,
    Back,
    None,
}

impl Shared {
    fn room(&self, state: &State, chunk: &Chunk) -> Room {
        let spool_in_use = state.spooled.chunks > 0 || state.spooling.is_some() || !state.back.chunks.is_empty();
        if !spool_in_use && state.front.has_room(chunk, self.queue_bytes) {
            Room::Front
        } else if self.spool.is_some() && state.back.has_room(chunk, self.queue_bytes) {
            Room::Back
        } else {
            Room::None
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spool(&self) -> Option<MutexGuard<'_, Spool>> {
        self.spool.as_ref().map(|spool| spool.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, longest: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, longest).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The delivering thread.
    fn deliver(&self, mut delivery: Box<dyn Delivery>) {
        while let Some(in_hand) = self.next() {
            self.bring(&mut *delivery, in_hand);
        }
        let deadline = self.lock().closing;
        let left = deadline.map_or(Duration::ZERO, |d| d.saturating_duration_since(Instant::now()));
        delivery.close(left.max(GRACE / 2));
        self.lock().note(delivery.faults());
    }

    /// Waits for the oldest chunk; none when it is time to end.
    fn next(&self) -> Option<InHand> {
        let mut state = self.lock();
        loop {
            if state.is_over() || state.closing.is_some() && state.is_empty() {
                return None;
            }
            if let Some(chunk) = state.front.shift() {
                return Some(state.take_in_hand(chunk));
            }
            if state.spooled.chunks > 0 {
                drop(state);
                if let Some(chunk) = self.peek_spool() {
                    self.lock().in_hand_at_unix_ns = Some(chunk.at_unix_ns);
                    return Some(InHand::FromSpool(chunk));
                }
                state = self.lock();
                continue;
            }
            if state.spooling.is_none()
                && let Some(chunk) = state.back.shift()
            {
                return Some(state.take_in_hand(chunk));
            }
            let longest =
                state.closing.map_or(Duration::from_secs(3600), |d| d.saturating_duration_since(Instant::now()));
            state = self.wait(state, longest);
        }
    }

    /// The oldest chunk of the spool that can be read; what cannot is counted.
    fn peek_spool(&self) -> Option<Chunk> {
        let mut spool = self.spool()?;
        let before = spool.level();
        let next = spool.peek();
        let after = spool.level();
        drop(spool);
        let mut state = self.lock();
        state.spooled = state.spooled.changed(before, after);
        match next {
            Next::Chunk(chunk) => Some(chunk),
            Next::Nothing => None,
            Next::Damaged { rows, bytes, text } => {
                state.account.rows_dropped += rows;
                state.account.bytes_lost += bytes;
                state.failed("spool-damaged", text);
                None
            }
        }
    }

    /// Delivers one chunk, again and again if that can help.
    fn bring(&self, delivery: &mut dyn Delivery, in_hand: InHand) {
        let chunk = match &in_hand {
            InHand::FromMemory(chunk) | InHand::FromSpool(chunk) => chunk,
        };
        let mut failures = 0;
        let delivered = loop {
            let answer = delivery.deliver(chunk);
            let faults = delivery.faults();
            if !faults.is_empty() {
                self.lock().note(faults);
            }
            match answer {
                Ok(()) => break Some(true),
                Err(refusal) => {
                    let retriable = refusal.retriable;
                    let mut state = self.lock();
                    state.failed(refusal.kind, refusal.text);
                    if !retriable {
                        break Some(false);
                    }
                    failures += 1;
                    if !self.pause(state, failures) {
                        break None;
                    }
                }
            }
        };
        self.put_down(in_hand, delivered);
    }

    /// Waits before the next attempt; false when it is time to end.
    fn pause(&self, mut state: MutexGuard<'_, State>, failures: u32) -> bool {
        let random = RandomState::new().build_hasher().finish();
        let until = Instant::now() + Duration::from_nanos(self.retry.pause_ns(failures, random));
        loop {
            let now = Instant::now();
            if state.is_over() {
                return false;
            }
            if now >= until {
                return true;
            }
            let end = state.closing.map_or(until, |deadline| deadline.min(until));
            state = self.wait(state, end.saturating_duration_since(now));
        }
    }

    /// What became of the chunk in hand: delivered, given up (`false`), or neither.
    fn put_down(&self, in_hand: InHand, delivered: Option<bool>) {
        let mut left = None;
        if let (InHand::FromSpool(_), Some(_)) = (&in_hand, delivered)
            && let Some(mut spool) = self.spool()
        {
            let before = spool.level();
            spool.advance();
            left = Some((before, spool.level(), spool.faults()));
        }
        let mut state = self.lock();
        if let Some((before, after, faults)) = left {
            state.spooled = state.spooled.changed(before, after);
            state.note(faults);
        }
        state.in_hand_rows = 0;
        state.in_hand_at_unix_ns = None;
        state.stalled &= delivered.is_none();
        let (InHand::FromMemory(chunk) | InHand::FromSpool(chunk)) = &in_hand;
        match delivered {
            Some(true) => state.account.rows_out += u64::from(chunk.rows),
            Some(false) => state.account.rows_dropped += u64::from(chunk.rows),
            None => {}
        }
        if let (None, InHand::FromMemory(chunk)) = (delivered, in_hand) {
            state.front.unshift(chunk);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The thread that writes `back` to the spool.
    fn write_spool(&self) {
        let mut state = self.lock();
        loop {
            if state.is_over() || state.closing.is_some() && state.is_empty() {
                return;
            }
            let Some(chunk) = state.back.shift() else {
                let left = state.closing.map(|d| d.saturating_duration_since(Instant::now()));
                state = self.wait(state, left.unwrap_or(Duration::from_secs(3600)));
                continue;
            };
            state.spooling = Some(u64::from(chunk.rows));
            drop(state);
            let (done, before, after, faults) = {
                let Some(mut spool) = self.spool() else { return };
                let before = spool.level();
                (spool.append(&chunk), before, spool.level(), spool.faults())
            };
            state = self.lock();
            state.note(faults);
            state.spooling = None;
            state.spooled = state.spooled.changed(before, after);
            match done {
                Ok(()) => state.spool_stuck = None,
                Err(fault) => {
                    // It keeps its place; meanwhile `back` fills, and then the newest is refused.
                    state.back.unshift(chunk);
                    if state.spool_stuck != Some(fault.kind) {
                        state.failed(fault.kind, fault.text);
                    }
                    state.spool_stuck = Some(fault.kind);
                    self.changed.notify_all();
                    state = self.rest(state);
                    continue;
                }
            }
            self.changed.notify_all();
        }
    }

    /// Waits until the spool may have room again.
    fn rest<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let until = Instant::now() + SPOOL_PAUSE;
        let before = state.spooled.bytes;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.is_over() || state.spooled.bytes < before {
                return state;
            }
            state = self.wait(state, left);
        }
    }

    /// The end: what is left in memory goes to the spool, before and behind what is there already.
    fn put_away(&self, mut state: MutexGuard<'_, State>) {
        let front: Vec<Chunk> = std::mem::take(&mut state.front).chunks.into();
        let back: Vec<Chunk> = std::mem::take(&mut state.back).chunks.into();
        // A thread that did not come back holds these; whether they arrive will never be known.
        let abandoned = std::mem::take(&mut state.in_hand_rows) + state.spooling.take().unwrap_or_default();
        state.in_hand_at_unix_ns = None;
        if abandoned > 0 {
            state.account.rows_dropped += abandoned;
            state.failed("abandoned", format!("{abandoned} rows were under way when it had to end"));
        }
        drop(state);
        let mut faults = Vec::new();
        let mut lost = 0;
        // Somebody who still holds it sits in a disk that hangs.
        match self.spool.as_ref().and_then(|spool| spool.try_lock().ok()) {
            Some(mut spool) => {
                lost += spool.put_first(front, &mut faults);
                for chunk in back {
                    if let Err(fault) = spool.append(&chunk) {
                        lost += u64::from(chunk.rows);
                        faults.push(fault);
                    }
                }
                spool.sync();
                faults.extend(spool.faults());
                let level = spool.level();
                drop(spool);
                self.lock().spooled = level;
            }
            None => lost += front.iter().chain(&back).map(|c| u64::from(c.rows)).sum::<u64>(),
        }
        let mut state = self.lock();
        state.account.rows_dropped += lost;
        state.note(faults);
        if lost > 0 {
            state.failed("ended", format!("{lost} rows were not delivered in time"));
        }
    }
}

impl State {
    fn take_in_hand(&mut self, chunk: Chunk) -> InHand {
        self.in_hand_rows = u64::from(chunk.rows);
        self.in_hand_at_unix_ns = Some(chunk.at_unix_ns);
        InHand::FromMemory(chunk)
    }
}

fn unix_now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
