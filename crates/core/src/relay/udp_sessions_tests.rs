//! Sessions against a plain model, and each rule by itself.
use super::*;
use Direction::{ClientToTarget, TargetToClient};
use proptest::prelude::*;

const RULES: Rules = Rules { idle: 60 * SECOND, per_source: None, rate: None, limited: false };

fn key(host: u8, port: u16) -> Key {
    Key { listener: 0, client: SocketAddr::from(([10, 0, 0, host], port)), local: None }
}

#[test]
fn traffic_keeps_a_session_and_silence_ends_it() {
    let mut table = UdpSessions::new(vec![RULES], 10);
    let id = table.open(key(1, 1), 0).expect("below the limit");
    table.touch(id, 50 * SECOND, ClientToTarget);
    assert_eq!(table.expired(60 * SECOND), None);
    assert_eq!(table.next_expiry(), Some(110 * SECOND));
    assert_eq!(table.expired(110 * SECOND), Some(id));
    assert_eq!(table.close(id), Some(key(1, 1)));
    assert_eq!((table.close(id), table.find(&key(1, 1)), table.len()), (None, None, 0));
}

#[test]
fn a_stale_id_does_not_reach_the_session_that_took_its_place() {
    let mut table = UdpSessions::new(vec![RULES], 1);
    let old = table.open(key(1, 1), 0).expect("below the limit");
    table.close(old);
    let new = table.open(key(2, 2), 0).expect("below the limit");
    assert_eq!(new.slot, old.slot);
    table.touch(old, 59 * SECOND, ClientToTarget);
    assert_eq!(table.key(old), None);
    assert_eq!(table.close(old), None);
    assert_eq!(table.expired(60 * SECOND), Some(new));
}

#[test]
fn a_full_table_refuses_and_ends_nobody() {
    let mut table = UdpSessions::new(vec![RULES], 2);
    let first = table.open(key(1, 1), 0).expect("below the limit");
    table.open(key(2, 1), 0).expect("below the limit");
    assert_eq!(table.open(key(3, 1), 1), Err(Refusal::Full));
    assert_eq!(table.find(&key(1, 1)), Some(first));
    table.close(first);
    assert!(table.open(key(3, 1), 2).is_ok());
    table.drain();
    assert_eq!(table.open(key(4, 1), 3), Err(Refusal::Draining));
}

#[test]
fn the_longest_idle_session_makes_room_and_a_waiting_client_goes_last() {
    let limited = Rules { limited: true, ..RULES };
    let mut table = UdpSessions::new(vec![limited, limited], 100);
    assert_eq!(table.dispensable(None, 0), None);
    let open = |table: &mut UdpSessions, listener, port, now| {
        table.open(Key { listener, ..key(1, port) }, now).expect("below the limit")
    };
    let (a, b, c) = (open(&mut table, 0, 1, 0), open(&mut table, 0, 2, 1), open(&mut table, 1, 3, 2));
    let all = |table: &UdpSessions, now| [None, Some(0), Some(1)].map(|of| table.dispensable(of, now));
    assert_eq!(all(&table, 3), [Some(a), Some(a), Some(c)], "all wait");
    table.touch(b, 4, TargetToClient);
    assert_eq!(all(&table, 5), [Some(b), Some(b), Some(c)], "the only one that was answered");
    table.touch(c, 6, TargetToClient);
    table.touch(a, 7, TargetToClient);
    assert_eq!(all(&table, 8), [Some(b), Some(b), Some(c)], "the longest idle one");
    table.touch(b, 9, ClientToTarget);
    assert_eq!(all(&table, 9 + ANSWER_MAX - 1), [Some(c), Some(a), Some(c)]);
    assert!(table.waits(b, 8 + ANSWER_MAX) && !table.waits(b, 9 + ANSWER_MAX) && !table.waits(a, 10));
    table.close(c);
    table.touch(a, 10, TargetToClient);
    assert_eq!(
        all(&table, 9 + ANSWER_MAX),
        [Some(b), Some(b), None],
        "it is not answered any more, and idle for longer"
    );
    table.set(0, RULES);
    assert_eq!(table.dispensable(Some(0), SECOND), None, "without a limit nobody has to make room in it");
    table.set(0, limited);
    assert_eq!(all(&table, 9 + ANSWER_MAX), [Some(b), Some(b), None], "a reload keeps the order");
    table.close(b);
    table.close(a);
    assert_eq!(all(&table, SECOND), [None; 3]);
}

#[test]
fn a_source_has_its_share_whichever_family_it_is_written_in() {
    let mut table = UdpSessions::new(vec![Rules { per_source: Some(2), ..RULES }], 100);
    let id = table.open(key(1, 1), 0).expect("below the limit");
    let mapped = Key { client: "[::ffff:10.0.0.1]:2".parse().expect("an address"), ..key(1, 2) };
    table.open(mapped, 0).expect("below the limit");
    assert_eq!(table.open(key(1, 3), 0), Err(Refusal::PerSource));
    assert!(table.open(key(2, 3), 0).is_ok());
    table.close(id);
    assert!(table.open(key(1, 3), 0).is_ok());
}

#[test]
fn an_ipv6_source_is_its_64() {
    let from = |text: &str| Key { client: text.parse().expect("an address"), ..key(1, 1) };
    let mut table = UdpSessions::new(vec![Rules { per_source: Some(2), rate: Some(10), ..RULES }], 100);
    let id = table.open(from("[2001:db8:1:2::1]:1"), 0).expect("below the limit");
    table.open(from("[2001:db8:1:2:ffff::2]:1"), 0).expect("below the limit");
    assert_eq!(table.open(from("[2001:db8:1:2::3]:1"), 0), Err(Refusal::PerSource));
    assert!(table.open(from("[2001:db8:1:3::3]:1"), 0).is_ok(), "another /64");
    table.close(id);
    assert!(table.open(from("[2001:db8:1:2::3]:1"), 0).is_ok());
    let mut passed = |text: &str| table.pass(&from(text), 8, SECOND);
    assert_eq!(["[2001:db8:1:2::1]:1", "[2001:db8:1:2::9]:1", "[2001:db8:1:3::1]:1"].map(&mut passed), [8, 2, 8]);
}

#[test]
fn local_addresses_and_listeners_divide_sessions() {
    let mut table = UdpSessions::new(vec![RULES, RULES], 100);
    let one = Key { local: Some(IpAddr::from([127, 0, 0, 1])), ..key(1, 1) };
    let two = Key { local: Some(IpAddr::from([127, 0, 0, 2])), ..one };
    let other = Key { listener: 1, ..one };
    let ids = [one, two, other].map(|key| table.open(key, 0).expect("below the limit"));
    assert_eq!([one, two, other].map(|key| table.find(&key)), ids.map(Some));
}

#[test]
fn strangers_do_not_grow_the_table_of_sources() {
    let mut table = UdpSessions::new(vec![Rules { rate: Some(1), ..RULES }], 1);
    for n in 0..100_000_u32 {
        let client = SocketAddr::from((n.to_be_bytes(), 1));
        table.pass(&Key { client, ..key(1, 1) }, 1, 1);
    }
    assert!(table.sources.len() <= 1026);
    assert_eq!(table.pass(&key(77, 1), 1, 5 * SECOND), 1, "old ones are swept");
}

proptest! {
    #[test]
    fn a_source_never_passes_more_than_its_rate(
        rate in 1_u32..10_000,
        sends in prop::collection::vec((0_u64..SECOND / 2, 1_u32..5000), 1..60),
    ) {
        let mut table = UdpSessions::new(vec![Rules { rate: Some(rate), ..RULES }], 4);
        // The clock begins at one second: what may come at once is what a second's wait would have brought.
        let (mut now, mut passed) = (SECOND, 0_u64);
        for (gap, datagrams) in sends {
            now += gap;
            let n = table.pass(&key(1, 1), datagrams, now);
            prop_assert!(n <= datagrams);
            passed += u64::from(n);
            // A second's worth at once, the rate from then on; each datagram's time is rounded down.
            let each = SECOND / u64::from(rate);
            prop_assert!(passed <= now / each);
        }
    }

    #[test]
    fn it_agrees_with_a_plain_model(
        steps in prop::collection::vec((0_u8..5, 0_u8..6, 0_u64..40 * SECOND), 1..300),
        most in 1_u32..8,
    ) {
        let mut table = UdpSessions::new(vec![Rules { per_source: Some(1), ..RULES }], most);
        let mut model: Vec<(u8, SlotId, Ns)> = Vec::new();
        let mut now = 0;
        for (what, host, gap) in steps {
            let known = model.iter().position(|(h, ..)| *h == host);
            match (what, known) {
                (0 | 1, None) => match table.open(key(host, 9), now) {
                    Ok(id) => model.push((host, id, now)),
                    Err(refusal) => prop_assert_eq!((refusal, model.len()), (Refusal::Full, most as usize)),
                },
                (0, Some(_)) => prop_assert_eq!(table.open(Key { listener: 0, ..key(host, 10) }, now).is_err(), true),
                (1 | 2, Some(at)) => {
                    table.touch(model[at].1, now, ClientToTarget);
                    model[at].2 = now;
                }
                (3, Some(at)) => {
                    prop_assert!(table.close(model.remove(at).1).is_some());
                }
                _ => now += gap,
            }
            while let Some(id) = table.expired(now) {
                let at = model.iter().position(|(_, i, _)| *i == id).expect("only live sessions end");
                prop_assert!(model[at].2 + RULES.idle <= now, "not before its time");
                table.close(id);
                model.remove(at);
            }
            prop_assert!(model.iter().all(|(_, _, last)| last + RULES.idle > now), "none is forgotten");
            prop_assert_eq!(table.len(), model.len());
            prop_assert!(model.iter().all(|(h, id, _)| table.find(&key(*h, 9)) == Some(*id)));
            prop_assert!(table.expiries.len() <= 2 * table.len() + 65 && table.entries.len() <= most as usize);
            prop_assert!(table.sources.len() <= 6);
        }
    }
}

#[test]
fn new_rules_hold_for_sessions_that_are_there() {
    let mut table = UdpSessions::new(vec![Rules { idle: 100, ..RULES }, RULES], 10);
    let (a, b) = (table.open(key(1, 1), 0).unwrap(), table.open(key(1, 2), 0).unwrap());
    table.touch(a, 50, ClientToTarget);
    table.set(0, Rules { idle: 1000, per_source: Some(3), ..RULES });
    assert_eq!(table.expired(999), None, "the old idle time is forgotten");
    assert_eq!(table.expired(1000), Some(b));
    table.close(b);
    assert_eq!(table.expired(1000), None);
    // One is there, and counts.
    table.open(key(1, 3), 1000).unwrap();
    table.open(key(1, 4), 1000).unwrap();
    assert_eq!(table.open(key(1, 5), 1000), Err(Refusal::PerSource));
    table.set(0, Rules { idle: 0, ..RULES });
    assert_eq!(table.expired(Ns::MAX), None, "for ever");
}

#[test]
fn a_listener_that_is_shut_keeps_what_it_has_and_its_number_serves_again() {
    let mut table = UdpSessions::new(vec![RULES], 10);
    let a = table.open(key(1, 1), 0).unwrap();
    table.shut(0);
    assert_eq!((table.open(key(1, 2), 0), table.begins(0), table.begins(9)), (Err(Refusal::Draining), false, false));
    assert_eq!((table.find(&key(1, 1)), table.any_of(0), table.any_of(1)), (Some(a), Some(a), None));
    table.set(1, RULES);
    assert!(table.open(Key { listener: 1, ..key(1, 2) }, 0).is_ok());
    table.set(0, RULES);
    assert!(table.begins(0) && table.open(key(1, 2), 0).is_ok());
    table.drain();
    assert!(!table.begins(0));
}
