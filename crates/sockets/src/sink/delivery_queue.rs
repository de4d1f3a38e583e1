//! The queue of a slow sink: bounded memory, a spool on disk for what does not fit, and a thread that delivers.
//!
//! Chunks are delivered oldest first. From the oldest to the newest they are in the delivery, in `front`, in the spool and in
//! `back`. A second thread writes `back` to the spool, so that a disk that hangs does not block the collector. If there is no
//! space the newest chunk is dropped, and its rows are counted.
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parshall_core::sockets::retry::Retry;

use super::delivery::{Chunk, Delivery, Refusal, Rejected};
use serde::Deserialize;

use super::account::{Account, Fault};
use super::spool::{Level, Next, Spool, SpoolConfig};

/// The pause after a failed write to the spool.
const SPOOL_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long closing waits for a busy thread after the deadline.
const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// The size of a spool's segments. Disk space is freed one segment at a time.
const SEGMENT_BYTES: u64 = 16 << 20;

/// The limits of a delivery queue.
#[derive(Debug, Clone)]
pub struct QueueConfig {
    /// The maximum number of waiting bytes in memory. With a spool, the same number again may wait for its disk.
    pub queue_bytes: usize,
    /// The files in which chunks are stored when memory is full. Without a spool they are dropped.
    pub spool: Option<SpoolConfig>,
    /// Pauses after failed attempts to deliver.
    pub retry: Retry,
}

/// The `spool` of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SpoolTable {
    directory: PathBuf,
    #[serde(deserialize_with = "super::table::size")]
    size: u64,
}

impl QueueConfig {
    /// The limits in a table.
    pub fn of_table(queue_bytes: u64, spool: Option<SpoolTable>) -> Self {
        let spool = spool.map(|table| SpoolConfig {
            directory: table.directory,
            max_bytes: table.size,
            // At most a quarter of the spool, so that space is freed before all of it is used.
            segment_bytes: SEGMENT_BYTES.min(table.size / 4).max(1),
        });
        Self { queue_bytes: queue_bytes as usize, spool, retry: Retry::default() }
    }
}

/// The default of [`QueueConfig::queue_bytes`].
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
    /// Rows of the chunk that is being delivered, if it is not from the spool.
    delivering_rows: u64,
    /// Time of the chunk that is being delivered.
    delivering_at_unix_ns: Option<u64>,
    /// Rows of the chunk that is being written to the spool.
    spooling: Option<u64>,
    /// The content of the spool.
    spooled: Level,
    /// A caller has waited for space without success, and nothing was delivered since.
    stalled: bool,
    /// The kind of error because of which the spool takes no chunks.
    spool_error: Option<&'static str>,
    /// The last failure of the receiver or the spool, unless something was delivered since: why the queue is full, or is not
    /// empty at the end.
    obstacle: Option<String>,
    account: Account,
    /// The deadline for deliveries, once the queue is being closed.
    deadline: Option<Instant>,
    /// Running threads.
    running: u32,
}

#[derive(Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

impl Queue {
    /// An empty queue has space for a chunk of any size.
    fn has_space(&self, chunk: &Chunk, limit: usize) -> bool {
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
enum Source {
    Memory(Chunk),
    /// The chunk stays in the spool until it is delivered.
    Spool(Chunk),
}

impl Source {
    fn chunk(&self) -> &Chunk {
        let (Self::Memory(chunk) | Self::Spool(chunk)) = self;
        chunk
    }
}

/// The result of all attempts to deliver a chunk.
#[derive(Debug)]
enum Outcome {
    /// The receiver may have rejected some of its rows.
    Delivered(Option<Rejected>),
    /// The receiver refused it for good.
    Dropped(Refusal),
    /// The queue was closed before an attempt succeeded.
    Interrupted,
}

impl DeliveryQueue {
    /// Starts the threads. Chunks of an earlier process in the spool are delivered first, and their rows count as received.
    ///
    /// # Errors
    /// The spool cannot be opened, or a thread cannot be started.
    pub fn start(name: &str, config: QueueConfig, mut delivery: Box<dyn Delivery>) -> anyhow::Result<Self> {
        let mut state = State::default();
        state.count_faults(delivery.faults());
        let spool = match &config.spool {
            None => None,
            Some(spool) => {
                let (spool, faults) = Spool::open(spool)?;
                state.spooled = spool.level();
                state.account.rows_in += state.spooled.rows;
                state.count_faults(faults);
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
            // Decrements `running` also after a panic, so that closing does not wait for this thread.
            let running = Running(shared);
            work(&running.0);
        });
        if let Err(error) = started {
            let mut state = self.shared.lock();
            state.running -= 1;
            state.deadline = Some(Instant::now());
            self.shared.changed.notify_all();
            return Err(anyhow::Error::new(error).context("cannot start a thread"));
        }
        Ok(())
    }

    /// Adds a chunk, or drops it and counts its rows. Never waits for the network or the disk.
    pub fn offer(&self, chunk: Chunk) {
        self.offer_within(chunk, Duration::ZERO);
    }

    /// Like [`Self::offer`], but waits for space for at most `timeout`. After a timeout it does not wait again until something
    /// was delivered, so that a sink that hangs blocks its caller only once.
    pub fn offer_within(&self, chunk: Chunk, timeout: Duration) {
        let shared = &self.shared;
        let mut state = shared.lock();
        state.account.rows_in += u64::from(chunk.rows);
        let mut space = shared.space_for(&state, &chunk);
        if space == Space::None && !timeout.is_zero() && !state.stalled {
            let began = Instant::now();
            while space == Space::None && began.elapsed() < timeout {
                state = shared.wait(state, timeout.saturating_sub(began.elapsed()));
                space = shared.space_for(&state, &chunk);
            }
            state.stalled = space == Space::None;
            state.account.held_up_ms += u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        }
        match space {
            Space::Front => state.front.push(chunk),
            Space::Back => state.back.push(chunk),
            Space::None => {
                let kind = state.spool_error.unwrap_or("queue-full");
                state.lost(u64::from(chunk.rows), kind, "the receiver was too slow, and the queue is full");
            }
        }
        drop(state);
        shared.changed.notify_all();
    }

    /// Counts rows that never became a chunk (because they are too large for a message) as received and dropped.
    pub fn count_dropped(&self, rows: u64, refusal: Refusal) {
        let mut state = self.shared.lock();
        state.account.rows_in += rows;
        state.account.lost(rows, refusal.kind, refusal.text);
    }

    /// The account of the rows so far.
    pub fn account(&self) -> Account {
        self.shared.lock().account()
    }

    /// Delivers waiting chunks for at most `timeout`, and moves the others to the spool. Without a spool, or if that is full,
    /// their rows are dropped and counted.
    pub fn close(self, timeout: Duration) -> Account {
        let shared = &self.shared;
        let deadline = Instant::now() + timeout;
        let mut state = shared.lock();
        state.deadline = Some(deadline);
        shared.changed.notify_all();
        while state.running > 0 {
            let left = (deadline + CLOSE_GRACE).saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let ended = state.running == 0;
        shared.spool_rest(state);
        // A thread that has ended may not have dropped its reference to the spool yet, so the lock is released here.
        if ended && let Some(mut spool) = shared.spool() {
            spool.unlock();
        }
        self.account()
    }
}

/// Decrements the number of running threads when it is dropped.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        if std::thread::panicking() {
            state.obstructed("internal", "a thread of the sink ended with a panic".to_owned());
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

impl State {
    /// Counts a failure after which chunks wait.
    fn obstructed(&mut self, kind: &'static str, text: String) {
        self.obstacle = Some(text.clone());
        self.account.failed(kind, text);
    }

    /// Counts rows that had to be dropped. The reason is what obstructs the queue, or else `otherwise`.
    fn lost(&mut self, rows: u64, kind: &'static str, otherwise: &str) {
        let text = self.obstacle.clone().unwrap_or_else(|| otherwise.to_owned());
        self.account.lost(rows, kind, text);
    }

    /// Counts failures of a disk.
    fn count_faults(&mut self, faults: Vec<Fault>) {
        faults.into_iter().for_each(|fault| self.account.fault(fault));
    }

    fn account(&self) -> Account {
        let mut account = self.account.clone();
        account.rows_waiting = self.delivering_rows
            + self.front.rows()
            + self.spooled.rows
            + self.spooling.unwrap_or_default()
            + self.back.rows();
        account.spool_bytes = self.spooled.bytes;
        let first = |queue: &Queue| queue.chunks.front().map(|c| c.at_unix_ns);
        let oldest = self.delivering_at_unix_ns.or_else(|| first(&self.front)).or_else(|| first(&self.back));
        account.lag_ms = oldest.map_or(0, |at| unix_now_ns().saturating_sub(at) / 1_000_000);
        account
    }

    /// Whether the deadline has passed.
    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn is_empty(&self) -> bool {
        self.front.chunks.is_empty()
            && self.back.chunks.is_empty()
            && self.spooling.is_none()
            && self.spooled.chunks == 0
    }
}

/// The queue that has space for a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    Front,
    Back,
    None,
}

impl Shared {
    fn space_for(&self, state: &State, chunk: &Chunk) -> Space {
        let spool_in_use = state.spooled.chunks > 0 || state.spooling.is_some() || !state.back.chunks.is_empty();
        if !spool_in_use && state.front.has_space(chunk, self.queue_bytes) {
            Space::Front
        } else if self.spool.is_some() && state.back.has_space(chunk, self.queue_bytes) {
            Space::Back
        } else {
            Space::None
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spool(&self) -> Option<MutexGuard<'_, Spool>> {
        self.spool.as_ref().map(|spool| spool.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, timeout: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The thread that delivers.
    fn deliver(&self, mut delivery: Box<dyn Delivery>) {
        while let Some(source) = self.next() {
            self.deliver_chunk(&mut *delivery, source);
        }
        let deadline = self.lock().deadline;
        let left = deadline.map_or(Duration::ZERO, |d| d.saturating_duration_since(Instant::now()));
        delivery.close(left.max(CLOSE_GRACE / 2));
        self.lock().count_faults(delivery.faults());
    }

    /// Waits for the oldest chunk. `None` ends the thread.
    fn next(&self) -> Option<Source> {
        let mut state = self.lock();
        loop {
            if state.is_over() || state.deadline.is_some() && state.is_empty() {
                return None;
            }
            if let Some(chunk) = state.front.shift() {
                return Some(state.begin_delivery(chunk));
            }
            if state.spooled.chunks > 0 {
                drop(state);
                if let Some(chunk) = self.peek_spool() {
                    self.lock().delivering_at_unix_ns = Some(chunk.at_unix_ns);
                    return Some(Source::Spool(chunk));
                }
                state = self.lock();
                continue;
            }
            if state.spooling.is_none()
                && let Some(chunk) = state.back.shift()
            {
                return Some(state.begin_delivery(chunk));
            }
            let timeout =
                state.deadline.map_or(Duration::from_secs(3600), |d| d.saturating_duration_since(Instant::now()));
            state = self.wait(state, timeout);
        }
    }

    /// Reads the oldest chunk of the spool. Damaged rows are counted.
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
                state.account.bytes_lost += bytes;
                state.account.lost(rows, "spool-damaged", text);
                None
            }
        }
    }

    /// Delivers one chunk, and retries after errors that may be temporary.
    fn deliver_chunk(&self, delivery: &mut dyn Delivery, source: Source) {
        let mut failures = 0;
        let outcome = loop {
            let answer = delivery.deliver(source.chunk());
            let faults = delivery.faults();
            if !faults.is_empty() {
                self.lock().count_faults(faults);
            }
            match answer {
                Ok(rejected) => break Outcome::Delivered(rejected),
                Err(refusal) if !refusal.retriable => break Outcome::Dropped(refusal),
                Err(refusal) => {
                    let mut state = self.lock();
                    state.obstructed(refusal.kind, refusal.text);
                    failures += 1;
                    if !self.pause(state, failures) {
                        break Outcome::Interrupted;
                    }
                }
            }
        };
        self.finish_delivery(source, outcome);
    }

    /// Waits before the next attempt. Returns false once the deadline has passed.
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
            let end = state.deadline.map_or(until, |deadline| deadline.min(until));
            state = self.wait(state, end.saturating_duration_since(now));
        }
    }

    /// Counts the rows of a chunk. An interrupted chunk from memory returns to the front of the queue.
    fn finish_delivery(&self, source: Source, outcome: Outcome) {
        let mut advanced = None;
        if matches!(source, Source::Spool(_))
            && !matches!(outcome, Outcome::Interrupted)
            && let Some(mut spool) = self.spool()
        {
            let before = spool.level();
            spool.advance();
            advanced = Some((before, spool.level(), spool.faults()));
        }
        let mut state = self.lock();
        if let Some((before, after, faults)) = advanced {
            state.spooled = state.spooled.changed(before, after);
            state.count_faults(faults);
        }
        state.delivering_rows = 0;
        state.delivering_at_unix_ns = None;
        if !matches!(outcome, Outcome::Interrupted) {
            (state.stalled, state.obstacle) = (false, None);
        }
        let rows = u64::from(source.chunk().rows);
        match (outcome, source) {
            (Outcome::Delivered(rejected), _) => {
                let refused = rejected.as_ref().map_or(0, |rejected| rejected.rows.min(rows));
                state.account.rows_out += rows - refused;
                if let Some(Rejected { text, .. }) = rejected {
                    state.account.lost(refused, "partial", text);
                }
            }
            (Outcome::Dropped(refusal), _) => state.account.lost(rows, refusal.kind, refusal.text),
            (Outcome::Interrupted, Source::Memory(chunk)) => state.front.unshift(chunk),
            (Outcome::Interrupted, Source::Spool(_)) => {}
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The thread that writes `back` to the spool.
    fn write_spool(&self) {
        let mut state = self.lock();
        loop {
            if state.is_over() || state.deadline.is_some() && state.is_empty() {
                return;
            }
            let Some(chunk) = state.back.shift() else {
                let left = state.deadline.map(|d| d.saturating_duration_since(Instant::now()));
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
            state.count_faults(faults);
            state.spooling = None;
            state.spooled = state.spooled.changed(before, after);
            match done {
                Ok(()) => state.spool_error = None,
                Err(fault) => {
                    // The chunk stays the oldest of `back`. When `back` is full, the newest chunks are dropped.
                    state.back.unshift(chunk);
                    if state.spool_error != Some(fault.kind) {
                        state.obstructed(fault.kind, fault.text);
                    }
                    state.spool_error = Some(fault.kind);
                    self.changed.notify_all();
                    state = self.wait_for_spool(state);
                    continue;
                }
            }
            self.changed.notify_all();
        }
    }

    /// Waits until the spool may have space again.
    fn wait_for_spool<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let until = Instant::now() + SPOOL_RETRY_PAUSE;
        let before = state.spooled.bytes;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.is_over() || state.spooled.bytes < before {
                return state;
            }
            state = self.wait(state, left);
        }
    }

    /// Moves the chunks in memory to the spool: `front` before its chunks, `back` after them.
    fn spool_rest(&self, mut state: MutexGuard<'_, State>) {
        let front: Vec<Chunk> = std::mem::take(&mut state.front).chunks.into();
        let back: Vec<Chunk> = std::mem::take(&mut state.back).chunks.into();
        // These are in a thread that did not end. Whether they are delivered will not be known.
        let abandoned = std::mem::take(&mut state.delivering_rows) + state.spooling.take().unwrap_or_default();
        state.delivering_at_unix_ns = None;
        if abandoned > 0 {
            state.lost(abandoned, "abandoned", "the receiver had not answered when the time to close was over");
        }
        drop(state);
        let mut faults = Vec::new();
        let mut lost = 0;
        // A thread that still holds the lock is blocked by a disk that hangs.
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
        // A spool that did not take the rest is the reason.
        if let Some(fault) = faults.last().filter(|_| lost > 0) {
            state.obstacle = Some(fault.text.clone());
        }
        state.count_faults(faults);
        if lost > 0 {
            state.lost(lost, "ended", "the receiver did not take the rest before the time to close was over");
        }
    }
}

impl State {
    fn begin_delivery(&mut self, chunk: Chunk) -> Source {
        self.delivering_rows = u64::from(chunk.rows);
        self.delivering_at_unix_ns = Some(chunk.at_unix_ns);
        Source::Memory(chunk)
    }
}

fn unix_now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
