//! Tests of the aggregator. Those of labels and metrics are in their files.
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn settings(series_max: usize) -> Settings {
    let labels = Labels { chosen: vec![Label::LocalPort], ..Labels::default() };
    Settings { labels, series_max, sockets_max: 100, idle_dumps: 2 }
}

fn record(port: u16, bytes_sent: u64) -> SocketRecord {
    SocketRecord { family: 2, protocol: 6, state: 1, local_port: port, bytes_sent, rtt_us: 50, ..Default::default() }
}

fn add(to: &mut Aggregator, socket: u64, seen: Seen, record: SocketRecord) {
    to.add(&Row { socket, seen, ..Row::bare(&record) });
}

/// Ends a complete dump. Dumps are a second apart.
fn end(it: &mut Aggregator) -> Snapshot {
    let at_unix_ns = (u64::from(it.dump) + 1) * S;
    it.end(at_unix_ns, &Completeness::default())
}

const S: u64 = 1_000_000_000;

/// Open sockets and bytes sent by label.
fn open_and_sent(snapshot: &Snapshot) -> BTreeMap<String, (u64, u64)> {
    snapshot.series.iter().map(|s| (s.labels[0].to_string(), (s.open(), s.counters[0]))).collect()
}

fn expect(snapshot: &Snapshot, series: &[(&str, u64, u64)]) {
    let expected = series.iter().map(|(label, open, sent)| ((*label).to_owned(), (*open, *sent))).collect();
    assert_eq!(open_and_sent(snapshot), expected);
}

#[test]
fn counters_stay_when_sockets_end_or_are_reused() {
    let mut it = Aggregator::new(settings(10));
    add(&mut it, 1, Seen::Open, record(80, 1000));
    expect(&end(&mut it), &[("80", 1, 0), ("other", 0, 0)]);
    add(&mut it, 1, Seen::Open, record(80, 1500));
    add(&mut it, 2, Seen::New, record(80, 70));
    expect(&end(&mut it), &[("80", 2, 570), ("other", 0, 0)]);
    add(&mut it, 1, Seen::Closed, record(80, 1600));
    let snapshot = end(&mut it);
    expect(&snapshot, &[("80", 0, 670), ("other", 0, 0)]);
    assert_eq!(snapshot.series[0].counters[CLOSED], 1);
    // Socket 2 was torn in the last dump and is back; the kernel reused the structure of socket 1 under another key.
    add(&mut it, 2, Seen::Open, record(80, 80));
    add(&mut it, 3, Seen::New, record(80, 5));
    expect(&end(&mut it), &[("80", 2, 685), ("other", 0, 0)]);
    // A socket whose counter decreased is another one.
    add(&mut it, 3, Seen::Open, record(80, 2));
    expect(&end(&mut it), &[("80", 1, 687), ("other", 0, 0)]);
    // A socket that opened and closed between two dumps is counted by its last row.
    add(&mut it, 9, Seen::Closed, record(80, 13));
    let snapshot = end(&mut it);
    expect(&snapshot, &[("80", 0, 700), ("other", 0, 0)]);
    assert_eq!(snapshot.series[0].counters[OPENED], 3);
    for _ in 0..3 {
        end(&mut it);
    }
    assert_eq!(end(&mut it).limits.sockets_followed, 0);
}

#[test]
fn series_with_the_most_sockets_get_slots_and_keep_them() {
    let mut it = Aggregator::new(settings(2));
    let mut socket = 0;
    let mut many = |it: &mut Aggregator, port: u16, n: usize| {
        for _ in 0..n {
            socket += 1;
            add(it, socket, Seen::Open, record(port, 10));
        }
    };
    many(&mut it, 1, 1);
    many(&mut it, 2, 3);
    many(&mut it, 3, 2);
    let first = end(&mut it);
    expect(&first, &[("2", 3, 0), ("3", 2, 0), ("other", 1, 0)]);
    assert_eq!(first.limits.rows_in_other, 1);
    // A larger candidate does not replace a series that has sockets.
    many(&mut it, 4, 9);
    many(&mut it, 3, 1);
    expect(&end(&mut it), &[("2", 0, 0), ("3", 1, 10), ("other", 9, 90)]);
    many(&mut it, 3, 1);
    end(&mut it);
    // Port 2 was idle for long enough, so the next candidate gets its slot.
    many(&mut it, 4, 1);
    many(&mut it, 3, 1);
    let last = end(&mut it);
    expect(&last, &[("3", 1, 30), ("4", 1, 10), ("other", 0, 90)]);
    assert_eq!((last.limits.series_replaced, last.limits.rows_in_other), (1, 10));
}

#[test]
fn without_slots_all_rows_go_to_other() {
    let mut it = Aggregator::new(Settings { sockets_max: 2, ..settings(0) });
    for socket in 1..=5 {
        add(&mut it, socket, Seen::Open, record(80, 10));
    }
    let first = end(&mut it);
    assert_eq!((first.series.len(), first.series[0].open(), first.limits.rows_unfollowed), (1, 5, 3));
    for socket in 1..=5 {
        add(&mut it, socket, Seen::Open, record(80, 30));
    }
    assert_eq!(end(&mut it).series[0].counters[0], 40, "the two that are followed");
    add(&mut it, 0, Seen::Open, record(80, 30));
    assert_eq!(end(&mut it).limits.rows_unfollowed, 7, "no identity");
}

#[test]
fn distributions_and_levels() {
    let mut it = Aggregator::new(settings(10));
    let listener = SocketRecord {
        family: 2,
        protocol: 6,
        state: 10,
        local_port: 80,
        accept_queue: 129,
        accept_limit: 128,
        rqueue_bytes: 129,
        ..Default::default()
    };
    let slow = SocketRecord { rtt_us: u32::MAX, rqueue_bytes: 1, snd_cwnd: 4096, ..record(80, 0) };
    let at_the_bound = SocketRecord { rtt_us: 32, ..record(80, 0) };
    for (socket, r) in [listener, slow, at_the_bound].into_iter().enumerate() {
        add(&mut it, socket as u64 + 1, Seen::Open, r);
    }
    let snapshot = end(&mut it);
    let series = &snapshot.series[0];
    let rtt = &series.histograms[0];
    assert_eq!((rtt.buckets[0], rtt.buckets.last(), rtt.buckets.iter().sum()), (1, Some(&1), 2u64));
    assert_eq!(rtt.sum, u64::from(u32::MAX) + 32);
    assert_eq!(series.histograms[2].buckets[..2], [1, 1]);
    assert_eq!((series.levels[0], series.levels[8], series.levels[9], series.levels[10]), (1, 129, 128, 1));
    assert_eq!((series.sockets[0][1], series.sockets[0][10]), (2, 1));
}

#[test]
fn what_the_kernel_keeps_of_a_socket_is_no_new_socket() {
    let mut it = Aggregator::new(settings(10));
    end(&mut it);
    let request = SocketRecord { state: NEW_SYN_RECV, ..record(80, 0) };
    let open = SocketRecord { segs_out: 3, segs_in: 3, ..record(80, 70) };
    let half_closed = SocketRecord { state: FIN_WAIT2, ..open };
    let late = |state| SocketRecord { state, ..record(80, 0) };
    // Each has a key of its own, except where the kernel keeps the socket.
    for (key, seen, record) in [
        (1, Seen::New, request),
        (2, Seen::New, open),
        (2, Seen::Changed, half_closed),
        (2, Seen::Closed, half_closed),
        (3, Seen::New, late(FIN_WAIT2)),
        (3, Seen::Changed, late(TIME_WAIT)),
    ] {
        add(&mut it, key, seen, record);
        let snapshot = end(&mut it);
        assert_eq!(snapshot.series.iter().map(Series::open).sum::<u64>(), u64::from(seen != Seen::Closed));
    }
    let counters = end(&mut it).series[0].counters;
    assert_eq!((counters[OPENED], counters[CLOSED], counters[0]), (1, 1, 70));
}

#[test]
fn a_datagram_socket_that_connects_is_the_same_socket() {
    let mut it = Aggregator::new(settings(10));
    end(&mut it);
    let bound = SocketRecord { protocol: 17, sock_type: 2, state: 7, inode: 9, ..record(53, 0) };
    add(&mut it, 1, Seen::New, bound);
    end(&mut it);
    add(&mut it, 2, Seen::New, SocketRecord { state: 1, remote_port: 5, drops: 4, ..bound });
    let counters = end(&mut it).series[0].counters;
    assert_eq!((counters[OPENED], counters[7]), (1, 4));
}

#[test]
fn sockets_that_a_dump_could_not_read_do_not_count_as_new_in_the_next() {
    let mut it = Aggregator::new(settings(10));
    add(&mut it, 1, Seen::Open, record(80, 1000));
    end(&mut it);
    let lost = Completeness { namespaces_lost: 1, ..Completeness::default() };
    (0..2).for_each(|n| drop(it.end((9 + n) * S, &lost)));
    add(&mut it, 1, Seen::Open, record(80, 1200));
    let counters = end(&mut it).series[0].counters;
    assert_eq!((counters[OPENED], counters[0]), (0, 200));
    // A namespace that can never be read does not keep them for ever.
    (0..9).for_each(|n| drop(it.end((20 + n) * S, &lost)));
    assert!(it.sockets.is_empty());
}

#[test]
fn a_series_that_got_a_slot_again_counts_from_a_later_time() {
    let mut it = Aggregator::new(Settings { idle_dumps: 1, ..settings(1) });
    let starts = |snapshot: &Snapshot| -> Vec<(String, u64)> {
        snapshot.series.iter().map(|s| (s.labels[0].to_string(), s.start_unix_ns / S)).collect()
    };
    add(&mut it, 1, Seen::Open, record(80, 10));
    assert_eq!(starts(&end(&mut it)), [("80".to_owned(), 1), ("other".to_owned(), 1)], "the time of the first dump");
    end(&mut it);
    // Port 81 takes the slot, and port 80 takes it back.
    for (socket, port, start) in [(2, 81, 2), (3, 80, 4)] {
        add(&mut it, socket, Seen::New, record(port, 5));
        let snapshot = end(&mut it);
        assert_eq!(starts(&snapshot)[0], (port.to_string(), start), "that of the dump before its first");
        assert_eq!(snapshot.series[0].counters[0], 5, "from 0");
        end(&mut it);
    }
}

proptest! {
    /// For all rows: the limit holds, every open socket is counted, and no counter of a series that stays decreases.
    #[test]
    fn limits_hold_and_counters_grow(dumps in prop::collection::vec(
        prop::collection::vec((0u64..12, 0u16..9, 0u64..100, any::<bool>()), 0..40), 1..12
    )) {
        let mut it = Aggregator::new(settings(3));
        let mut before: BTreeMap<String, [u64; COUNTERS.len()]> = BTreeMap::new();
        let mut replaced = 0;
        for rows in dumps {
            let mut open = 0;
            for (socket, port, bytes, closed) in rows {
                add(&mut it, socket, if closed { Seen::Closed } else { Seen::Open }, record(port, bytes));
                open += u64::from(!closed);
            }
            let snapshot = end(&mut it);
            prop_assert!(snapshot.series.len() <= 4);
            prop_assert_eq!(snapshot.series.iter().map(Series::open).sum::<u64>(), open);
            let now: BTreeMap<String, [u64; COUNTERS.len()]> =
                snapshot.series.iter().map(|s| (s.labels[0].to_string(), s.counters)).collect();
            if snapshot.limits.series_replaced == replaced {
                for (label, counters) in &before {
                    let grown = now[label].iter().zip(counters).all(|(now, then)| now >= then);
                    prop_assert!(grown, "{}: {:?} {:?}", label, counters, now[label]);
                }
            }
            replaced = snapshot.limits.series_replaced;
            before = now;
        }
    }
}
