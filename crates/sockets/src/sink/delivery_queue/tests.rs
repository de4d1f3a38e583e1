//! Receivers that refuse, hang and recover: every row is delivered once, waits, or is counted as dropped.
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use proptest::prelude::*;

use super::*;

/// What the receiver does with the next chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Take,
    Fail,
    Never,
}

/// A receiver with scripted answers. It takes every chunk once the script is dropped.
struct Scripted {
    answers: Receiver<Answer>,
    taken: Sender<u64>,
}

impl Delivery for Scripted {
    fn deliver(&mut self, chunk: &Chunk) -> Result<(), Refusal> {
        let refusal = |kind, retriable| Err(Refusal { kind, text: kind.to_owned(), retriable });
        match self.answers.recv().unwrap_or(Answer::Take) {
            Answer::Take => {
                let _ = self.taken.send(chunk.sequence);
                Ok(())
            }
            Answer::Fail => refusal("refused", true),
            Answer::Never => refusal("too-large", false),
        }
    }

    fn close(&mut self, _: Duration) {}
}

struct Bench {
    queue: DeliveryQueue,
    answers: Sender<Answer>,
    taken: Receiver<u64>,
}

const SOON: Duration = Duration::from_secs(20);

fn bench(spool: Option<&Path>, queue_bytes: usize, max_bytes: u64) -> Bench {
    let (answers, script) = channel();
    let (took, taken) = channel();
    let spool = spool.map(|d| SpoolConfig { directory: d.to_owned(), max_bytes, segment_bytes: 1000 });
    let retry = Retry { first_ns: 1000, longest_ns: 1_000_000 };
    let delivery = Scripted { answers: script, taken: took };
    let queue =
        DeliveryQueue::start("t", QueueConfig { queue_bytes, spool, retry }, Box::new(delivery)).expect("starts");
    Bench { queue, answers, taken }
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

fn sums(account: &Account) -> bool {
    account.rows_in == account.rows_out + account.rows_waiting + account.rows_dropped
}

#[test]
fn in_order_and_counted() {
    let bench = bench(None, 10_000, 0);
    drop(bench.answers);
    (1..=20).for_each(|n| bench.queue.offer(chunk(n)));
    let account = bench.queue.close(SOON);
    assert_eq!((account.rows_in, account.rows_out), (200, 200), "{account:?}");
    assert_eq!(bench.taken.iter().collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
}

#[test]
fn a_refusal_is_tried_again_or_dropped_as_it_says() {
    let bench = bench(None, 10_000, 0);
    for answer in [Answer::Fail, Answer::Fail, Answer::Take, Answer::Never, Answer::Take] {
        bench.answers.send(answer).unwrap();
    }
    drop(bench.answers);
    (1..=3).for_each(|n| bench.queue.offer(chunk(n)));
    let account = bench.queue.close(SOON);
    assert_eq!((account.rows_out, account.rows_dropped, account.rows_waiting), (20, 10, 0));
    assert_eq!((account.errors["refused"], account.errors["too-large"]), (2, 1));
    assert_eq!(bench.taken.iter().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn without_a_spool_the_newest_is_refused_and_counted() {
    let bench = bench(None, 250, 0);
    bench.queue.offer(chunk(1));
    until(&bench.queue, "the first is being delivered", |_| bench.queue.shared.lock().delivering_rows == 10);
    (2..=6).for_each(|n| bench.queue.offer(chunk(n)));
    let account = bench.queue.account();
    assert_eq!((account.rows_waiting, account.rows_dropped), (30, 30), "{account:?}");
    assert_eq!(account.errors["queue-full"], 3);
    assert!((5_000..60_000).contains(&account.lag_ms), "{account:?}");
    drop(bench.answers);
    assert!(sums(&bench.queue.close(SOON)));
    assert_eq!(bench.taken.iter().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_sink_that_hangs_holds_up_its_giver_once() {
    let bench = bench(None, 100, 0);
    bench.queue.offer(chunk(1));
    until(&bench.queue, "the first is being delivered", |_| bench.queue.shared.lock().delivering_rows == 10);
    bench.queue.offer(chunk(2));
    (3..=6).for_each(|n| bench.queue.offer_within(chunk(n), Duration::from_millis(50)));
    let account = bench.queue.account();
    assert_eq!(account.rows_dropped, 40);
    assert!((50..200).contains(&account.held_up_ms) || account.held_up_ms < 20_000, "{account:?}");
    let before = account.held_up_ms;
    bench.queue.offer_within(chunk(7), SOON);
    assert_eq!(bench.queue.account().held_up_ms, before, "it does not wait again");
    bench.answers.send(Answer::Take).unwrap();
    until(&bench.queue, "one is delivered", |a| a.rows_out == 10);
    drop(bench.answers);
    bench.queue.offer_within(chunk(8), SOON);
    assert_eq!(bench.queue.close(SOON).rows_dropped, 50);
}

#[test]
fn what_memory_cannot_hold_goes_through_the_spool_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let bench = bench(Some(directory.path()), 250, 1 << 20);
    for n in 1..=40 {
        bench.queue.offer(chunk(n));
        until(&bench.queue, "there is room again", |_| bench.queue.shared.lock().back.chunks.is_empty());
    }
    let account = bench.queue.account();
    assert_eq!((account.rows_waiting, account.rows_dropped), (400, 0));
    assert!(account.spool_bytes > 3000, "{account:?}");
    drop(bench.answers);
    let account = bench.queue.close(SOON);
    assert_eq!((account.rows_out, account.rows_waiting, account.spool_bytes), (400, 0, 0), "{account:?}");
    assert_eq!(bench.taken.iter().collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
}

#[test]
fn a_full_spool_refuses_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    let bench = bench(Some(directory.path()), 250, 2000);
    for n in 1..=40 {
        bench.queue.offer(chunk(n));
        let settled = |_: &Account| {
            let state = bench.queue.shared.lock();
            state.spool_error.is_some() || state.back.chunks.is_empty() && state.spooling.is_none()
        };
        until(&bench.queue, "it has settled", settled);
    }
    let account = bench.queue.account();
    assert!(account.rows_dropped > 0 && sums(&account), "{account:?}");
    assert!(account.spool_bytes <= 2000);
    drop(bench.answers);
    let account = bench.queue.close(SOON);
    assert!(account.errors["spool-full"] > 0, "{account:?}");
    let taken: Vec<u64> = bench.taken.iter().collect();
    assert_eq!(taken, (1..=account.rows_out / 10).collect::<Vec<_>>(), "the oldest, without a gap");
}

#[test]
fn what_was_not_delivered_waits_for_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let first = bench(Some(directory.path()), 250, 1 << 20);
    for n in 1..=10 {
        first.queue.offer(chunk(n));
        until(&first.queue, "there is room again", |_| first.queue.shared.lock().back.chunks.is_empty());
    }
    first.answers.send(Answer::Take).unwrap();
    until(&first.queue, "one is delivered", |a| a.rows_out == 10);
    (0..1000).for_each(|_| first.answers.send(Answer::Fail).unwrap());
    // As a thread that has ended, but has not yet let go of it.
    let kept = Arc::clone(&first.queue.shared);
    let account = first.queue.close(Duration::ZERO);
    assert_eq!((account.rows_out, account.rows_dropped, account.rows_waiting), (10, 0, 90), "{account:?}");
    let second = bench(Some(directory.path()), 250, 1 << 20);
    assert_eq!(second.queue.account().rows_in, 90, "what was left counts as given");
    second.queue.offer(chunk(11));
    drop(second.answers);
    let account = second.queue.close(SOON);
    assert_eq!((account.rows_in, account.rows_out), (100, 100), "{account:?}");
    assert_eq!(second.taken.iter().collect::<Vec<_>>(), (2..=11).collect::<Vec<_>>());
    drop(kept);
}

#[test]
fn a_sink_that_hangs_does_not_hold_up_the_end() {
    let bench = bench(None, 10_000, 0);
    (1..=3).for_each(|n| bench.queue.offer(chunk(n)));
    until(&bench.queue, "the first is being delivered", |_| bench.queue.shared.lock().delivering_rows == 10);
    let account = bench.queue.close(Duration::from_millis(10));
    assert_eq!((account.rows_in, account.rows_dropped, account.rows_waiting), (30, 30, 0), "{account:?}");
    assert_eq!((account.errors["abandoned"], account.errors["ended"]), (1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn no_row_is_unaccounted_for(
        answers in prop::collection::vec(prop::sample::select(vec![Answer::Take, Answer::Fail, Answer::Never]), 0..30),
        sizes in prop::collection::vec(1usize..400, 1..30),
        spooled: bool,
        max_bytes in 0u64..4000,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let bench = bench(spooled.then_some(directory.path()), 500, max_bytes);
        for answer in answers {
            let _ = bench.answers.send(answer);
        }
        let count = sizes.len() as u64;
        for (n, size) in sizes.into_iter().enumerate() {
            bench.queue.offer(Chunk { bytes: vec![1; size].into(), ..chunk(n as u64) });
            prop_assert!(sums(&bench.queue.account()));
        }
        drop(bench.answers);
        let account = bench.queue.close(SOON);
        prop_assert_eq!(account.rows_in, count * 10);
        prop_assert_eq!(account.rows_waiting, 0);
        prop_assert!(sums(&account), "{:?}", account);
        let taken: Vec<u64> = bench.taken.iter().collect();
        prop_assert_eq!(account.rows_out, taken.len() as u64 * 10);
        prop_assert!(taken.is_sorted_by(|a, b| a < b), "in order, nothing twice: {:?}", taken);
    }
}
