//! Receivers that fail, hang and recover: every row is delivered once, waits in the queue, or is counted as dropped.
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use proptest::prelude::*;

use super::*;

/// The answer of the receiver to the next chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Accept,
    /// An error after which the queue retries.
    Fail,
    /// An error after which the queue drops the chunk.
    Reject,
    /// The receiver accepts the chunk without four of its rows.
    Part,
}

/// A receiver with scripted answers. It accepts every chunk after the script was dropped.
struct Scripted {
    answers: Receiver<Answer>,
    taken: Sender<u64>,
}

impl Delivery for Scripted {
    fn deliver(&mut self, chunk: &Chunk) -> Result<Option<Rejected>, Refusal> {
        let refusal = |kind, retriable| Err(Refusal { kind, text: kind.to_owned(), retriable });
        match self.answers.recv().unwrap_or(Answer::Accept) {
            Answer::Accept => {
                let _ = self.taken.send(chunk.sequence);
                Ok(None)
            }
            Answer::Part => Ok(Some(Rejected { rows: 4, text: "too old".to_owned() })),
            Answer::Fail => refusal("refused", true),
            Answer::Reject => refusal("too-large", false),
        }
    }

    fn close(&mut self, _: Duration) {}
}

struct Fixture {
    queue: DeliveryQueue,
    answers: Sender<Answer>,
    taken: Receiver<u64>,
}

const SOON: Duration = Duration::from_secs(20);

fn fixture(spool: Option<&Path>, queue_bytes: usize, max_bytes: u64) -> Fixture {
    let (answers, script) = channel();
    let (took, taken) = channel();
    let spool = spool.map(|d| SpoolConfig { directory: d.to_owned(), max_bytes, segment_bytes: 1000 });
    let retry = Retry { first_ns: 1000, longest_ns: 1_000_000 };
    let delivery = Scripted { answers: script, taken: took };
    let queue =
        DeliveryQueue::start("t", QueueConfig { queue_bytes, spool, retry }, Box::new(delivery)).expect("starts");
    Fixture { queue, answers, taken }
}

fn chunk(sequence: u64) -> Chunk {
    Chunk { sequence, at_unix_ns: unix_now_ns() - 5_000_000_000, rows: 10, bytes: vec![7; 100].into() }
}

/// Waits until `wanted` holds for the account.
fn until(queue: &DeliveryQueue, what: &str, wanted: impl Fn(&Account) -> bool) -> Account {
    let end = Instant::now() + SOON;
    loop {
        let account = queue.account();
        if wanted(&account) {
            return account;
        }
        assert!(Instant::now() < end, "{what}: {account:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether every row is delivered, waiting or dropped.
fn adds_up(account: &Account) -> bool {
    account.rows_in == account.rows_out + account.rows_waiting + account.rows_dropped
}

#[test]
fn chunks_are_delivered_in_order_and_counted() {
    let fixture = fixture(None, 10_000, 0);
    drop(fixture.answers);
    (1..=20).for_each(|n| fixture.queue.offer(chunk(n)));
    let account = fixture.queue.close(SOON);
    assert_eq!((account.rows_in, account.rows_out), (200, 200), "{account:?}");
    assert_eq!(fixture.taken.iter().collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
}

#[test]
fn a_failed_chunk_is_retried_and_a_rejected_one_is_dropped() {
    let fixture = fixture(None, 10_000, 0);
    for answer in [Answer::Fail, Answer::Fail, Answer::Accept, Answer::Reject, Answer::Accept] {
        fixture.answers.send(answer).unwrap();
    }
    drop(fixture.answers);
    (1..=3).for_each(|n| fixture.queue.offer(chunk(n)));
    let account = fixture.queue.close(SOON);
    assert_eq!((account.rows_out, account.rows_dropped, account.rows_waiting), (20, 10, 0));
    assert_eq!((account.errors["refused"], account.errors["too-large"]), (2, 1));
    assert_eq!(fixture.taken.iter().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_loss_keeps_the_reason_that_led_to_it() {
    // The receiver's answer is the reason for the rows that wait at the end, until it takes something.
    let fixture_ = fixture(None, 10_000, 0);
    (0..100).for_each(|_| fixture_.answers.send(Answer::Fail).unwrap());
    (1..=3).for_each(|n| fixture_.queue.offer(chunk(n)));
    until(&fixture_.queue, "it failed", |account| account.errors.contains_key("refused"));
    let account = fixture_.queue.close(Duration::ZERO);
    assert_eq!((account.rows_dropped, account.loss.as_deref()), (30, Some("refused")), "{account:?}");
    assert!(account.errors.contains_key("ended") || account.errors.contains_key("abandoned"), "{account:?}");
    // A receiver that only hangs has given no reason, not even a former one.
    let fixture_ = fixture(None, 10_000, 0);
    [Answer::Fail, Answer::Accept].into_iter().for_each(|answer| fixture_.answers.send(answer).unwrap());
    fixture_.queue.offer(chunk(1));
    until(&fixture_.queue, "it is delivered", |account| account.rows_out == 10);
    fixture_.queue.offer(chunk(2));
    let account = fixture_.queue.close(Duration::ZERO);
    assert!(account.loss.as_ref().is_some_and(|why| why.contains("time to close")), "{account:?}");
}

#[test]
fn rows_that_a_receiver_rejects_are_lost_with_its_reason() {
    let fixture = fixture(None, 10_000, 0);
    [Answer::Part, Answer::Accept].into_iter().for_each(|answer| fixture.answers.send(answer).unwrap());
    (1..=2).for_each(|n| fixture.queue.offer(chunk(n)));
    drop(fixture.answers);
    let account = fixture.queue.close(SOON);
    assert_eq!((account.rows_out, account.rows_dropped, account.errors["partial"]), (16, 4, 1), "{account:?}");
    assert_eq!((account.loss.as_deref(), account.last_error.as_deref()), (Some("too old"), Some("too old")));
}

#[test]
fn without_a_spool_a_full_queue_drops_the_newest_chunks_and_counts_them() {
    let fixture = fixture(None, 250, 0);
    fixture.queue.offer(chunk(1));
    until(&fixture.queue, "the first is being delivered", |_| fixture.queue.shared.lock().delivering_rows == 10);
    (2..=6).for_each(|n| fixture.queue.offer(chunk(n)));
    let account = fixture.queue.account();
    assert_eq!((account.rows_waiting, account.rows_dropped), (30, 30), "{account:?}");
    assert_eq!(account.errors["queue-full"], 3);
    assert!((5_000..60_000).contains(&account.lag_ms), "{account:?}");
    drop(fixture.answers);
    assert!(adds_up(&fixture.queue.close(SOON)));
    assert_eq!(fixture.taken.iter().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_sink_that_hangs_blocks_the_collector_only_once() {
    let fixture = fixture(None, 100, 0);
    fixture.queue.offer(chunk(1));
    until(&fixture.queue, "the first is being delivered", |_| fixture.queue.shared.lock().delivering_rows == 10);
    fixture.queue.offer(chunk(2));
    (3..=6).for_each(|n| fixture.queue.offer_within(chunk(n), Duration::from_millis(50)));
    let account = fixture.queue.account();
    assert_eq!(account.rows_dropped, 40);
    assert!((50..200).contains(&account.held_up_ms) || account.held_up_ms < 20_000, "{account:?}");
    let before = account.held_up_ms;
    fixture.queue.offer_within(chunk(7), SOON);
    assert_eq!(fixture.queue.account().held_up_ms, before, "it does not wait again");
    fixture.answers.send(Answer::Accept).unwrap();
    until(&fixture.queue, "one is delivered", |a| a.rows_out == 10);
    drop(fixture.answers);
    fixture.queue.offer_within(chunk(8), SOON);
    assert_eq!(fixture.queue.close(SOON).rows_dropped, 50);
}

#[test]
fn chunks_beyond_the_memory_limit_pass_through_the_spool_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = fixture(Some(directory.path()), 250, 1 << 20);
    for n in 1..=40 {
        fixture.queue.offer(chunk(n));
        until(&fixture.queue, "the chunk is spooled", |_| fixture.queue.shared.lock().back.chunks.is_empty());
    }
    let account = fixture.queue.account();
    assert_eq!((account.rows_waiting, account.rows_dropped), (400, 0));
    assert!(account.spool_bytes > 3000, "{account:?}");
    drop(fixture.answers);
    let account = fixture.queue.close(SOON);
    assert_eq!((account.rows_out, account.rows_waiting, account.spool_bytes), (400, 0, 0), "{account:?}");
    assert_eq!(fixture.taken.iter().collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
}

#[test]
fn a_full_spool_drops_the_newest_chunks() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = fixture(Some(directory.path()), 250, 2000);
    for n in 1..=40 {
        fixture.queue.offer(chunk(n));
        let settled = |_: &Account| {
            let state = fixture.queue.shared.lock();
            state.spool_error.is_some() || state.back.chunks.is_empty() && state.spooling.is_none()
        };
        until(&fixture.queue, "the chunk is spooled or dropped", settled);
    }
    let account = fixture.queue.account();
    assert!(account.rows_dropped > 0 && adds_up(&account), "{account:?}");
    assert!(account.spool_bytes <= 2000);
    drop(fixture.answers);
    let account = fixture.queue.close(SOON);
    assert!(account.errors["spool-full"] > 0, "{account:?}");
    let taken: Vec<u64> = fixture.taken.iter().collect();
    assert_eq!(taken, (1..=account.rows_out / 10).collect::<Vec<_>>(), "the oldest, without a gap");
}

#[test]
fn undelivered_chunks_are_delivered_by_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let first = fixture(Some(directory.path()), 250, 1 << 20);
    for n in 1..=10 {
        first.queue.offer(chunk(n));
        let spooled = |_: &Account| {
            let state = first.queue.shared.lock();
            state.back.chunks.is_empty() && state.spooling.is_none()
        };
        until(&first.queue, "the chunk is spooled", spooled);
    }
    first.answers.send(Answer::Accept).unwrap();
    until(&first.queue, "one is delivered", |a| a.rows_out == 10);
    (0..1000).for_each(|_| first.answers.send(Answer::Fail).unwrap());
    // A reference of a thread that has not dropped it yet. It must not keep the spool locked.
    let kept = Arc::clone(&first.queue.shared);
    let account = first.queue.close(Duration::ZERO);
    assert_eq!((account.rows_out, account.rows_dropped, account.rows_waiting), (10, 0, 90), "{account:?}");
    let second = fixture(Some(directory.path()), 250, 1 << 20);
    assert_eq!(second.queue.account().rows_in, 90, "rows of the spool count as received");
    second.queue.offer(chunk(11));
    drop(second.answers);
    let account = second.queue.close(SOON);
    assert_eq!((account.rows_in, account.rows_out), (100, 100), "{account:?}");
    assert_eq!(second.taken.iter().collect::<Vec<_>>(), (2..=11).collect::<Vec<_>>());
    drop(kept);
}

#[test]
fn a_sink_that_hangs_does_not_delay_the_close() {
    let fixture = fixture(None, 10_000, 0);
    (1..=3).for_each(|n| fixture.queue.offer(chunk(n)));
    until(&fixture.queue, "the first is being delivered", |_| fixture.queue.shared.lock().delivering_rows == 10);
    let account = fixture.queue.close(Duration::from_millis(10));
    assert_eq!((account.rows_in, account.rows_dropped, account.rows_waiting), (30, 30, 0), "{account:?}");
    assert_eq!((account.errors["abandoned"], account.errors["ended"]), (1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_row_is_delivered_waiting_or_dropped(
        answers in prop::collection::vec(prop::sample::select(vec![Answer::Accept, Answer::Fail, Answer::Reject]), 0..30),
        sizes in prop::collection::vec(1usize..400, 1..30),
        spooled: bool,
        max_bytes in 0u64..4000,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let fixture = fixture(spooled.then_some(directory.path()), 500, max_bytes);
        for answer in answers {
            let _ = fixture.answers.send(answer);
        }
        let count = sizes.len() as u64;
        for (n, size) in sizes.into_iter().enumerate() {
            fixture.queue.offer(Chunk { bytes: vec![1; size].into(), ..chunk(n as u64) });
            prop_assert!(adds_up(&fixture.queue.account()));
        }
        drop(fixture.answers);
        let account = fixture.queue.close(SOON);
        prop_assert_eq!(account.rows_in, count * 10);
        prop_assert_eq!(account.rows_waiting, 0);
        prop_assert!(adds_up(&account), "{:?}", account);
        let taken: Vec<u64> = fixture.taken.iter().collect();
        prop_assert_eq!(account.rows_out, taken.len() as u64 * 10);
        prop_assert!(taken.is_sorted_by(|a, b| a < b), "in order, nothing twice: {:?}", taken);
    }
}
