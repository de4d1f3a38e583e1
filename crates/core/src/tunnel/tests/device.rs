//! The reactions of a device to messages and to time.
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::super::*;
use super::{Host, exchange, packet, time};

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Two hosts that know each other; only the first knows the address of the other.
fn pair_with(limits: Limits) -> (Host, Host) {
    let (mut a, mut b) = (Host::new(1, Limits::default()), Host::new(2, limits));
    a.add_peer(2, Some(b.endpoint.remote));
    b.add_peer(1, None);
    (a, b)
}

/// Two hosts with a session that the first has begun at time 0.
fn connected() -> (Host, Host) {
    let (mut a, mut b) = pair_with(Limits::default());
    assert_eq!(a.send(0, &packet(1, 2, b"")), Err(Refusal::NoSession { attend: true }));
    assert_eq!(exchange(0, &mut a, &mut b), 3, "initiation, response, keepalive");
    assert_eq!((a.take_events(), b.take_events()), (vec![Event::Flush(PeerId(1))], vec![Event::Flush(PeerId(1))]));
    (a, b)
}

#[test]
fn packets_go_both_ways_after_a_handshake() {
    let (mut a, mut b) = connected();
    for len in [0, 1, 15, 16, 17, 1400] {
        let (there, back) = (packet(1, 2, &vec![7; len]), packet(2, 1, &vec![8; len]));
        let datagram = a.send(SECOND, &there).unwrap();
        assert_eq!(datagram.len() % 16, 0);
        assert_eq!(b.receive(SECOND, &datagram, &a.endpoint.clone()), Ok(there));
        let datagram = b.send(SECOND, &back).unwrap();
        assert_eq!(a.receive(SECOND, &datagram, &b.endpoint.clone()), Ok(back));
    }
    let state = a.device.state();
    assert_eq!((state.peers[0].handshakes, state.peers[0].last_handshake), (1, Some(time(0).unix)));
    assert_eq!(state.peers[0].traffic, b.device.state().peers[0].traffic_swapped());
}

impl PeerState {
    /// The traffic as the other end counts it.
    fn traffic_swapped(&self) -> Traffic {
        let Traffic { received_bytes, sent_bytes, received_packets, sent_packets, received_batches, sent_batches } =
            self.traffic;
        Traffic {
            received_bytes: sent_bytes,
            sent_bytes: received_bytes,
            received_packets: sent_packets,
            sent_packets: received_packets,
            received_batches: sent_batches,
            sent_batches: received_batches,
        }
    }
}

#[test]
fn a_gso_batch_is_a_row_of_datagrams() {
    let (a, mut b) = connected();
    let (len, last) = (20 + 100, 20 + 3);
    let stride = datagram_len(len);
    let mut slots = vec![0xee; 4 * stride];
    for n in 0..4u8 {
        let inner = packet(1, 2, &vec![n; if n < 3 { 100 } else { 3 }]);
        slots[usize::from(n) * stride + HEADER_LEN..][..inner.len()].copy_from_slice(&inner);
    }
    let link = a.link();
    let mut sealer = link.sealer(SECOND, 4).unwrap();
    let batch_len = sealer.seal_gso_batch(&mut slots, stride, 4, len, last);
    assert!(!sealer.finish(SECOND));
    assert_eq!(batch_len, 3 * stride + datagram_len(last));
    let from = a.endpoint;
    let mut batch: Vec<_> = slots[..batch_len].chunks_mut(stride).map(|bytes| Datagram::new(bytes, &from)).collect();
    assert!(!b.path.open(SECOND, &mut batch));
    for (n, datagram) in batch.iter_mut().enumerate() {
        assert_eq!(datagram.packet().unwrap()[20..], vec![n as u8; if n < 3 { 100 } else { 3 }]);
    }
    assert_eq!(
        b.device.state().peers[0].traffic.received_packets,
        5,
        "the keepalive of the handshake and four packets"
    );
    // A datagram that was decrypted in place is none any more.
    assert_eq!(b.receive(SECOND, batch[0].bytes, &from), Err(Outcome::Dropped(DropCause::Forged)));
}

#[test]
fn padding_ends_with_the_slot() {
    let (a, mut b) = connected();
    let inner = packet(1, 2, &[5; 1405]);
    let mut slot = vec![0xee; inner.len() + 3 + DATA_OVERHEAD];
    slot[HEADER_LEN..HEADER_LEN + inner.len()].copy_from_slice(&inner);
    let link = a.link();
    let mut sealer = link.sealer(SECOND, 1).unwrap();
    assert_eq!(inner.len() % 16, 1);
    assert_eq!(sealer.seal(&mut slot, inner.len()), inner.len() + 3 + DATA_OVERHEAD);
    sealer.finish(SECOND);
    assert_eq!(b.receive(SECOND, &slot, &a.endpoint), Ok(inner));
}

#[test]
fn what_is_not_a_fresh_packet_of_the_peer_is_dropped_and_counted() {
    let (mut a, mut b) = connected();
    let from = a.endpoint;
    let datagram = a.send(SECOND, &packet(1, 2, b"text")).unwrap();
    let mut forged = datagram.clone();
    *forged.last_mut().unwrap() ^= 1;
    let dropped = |cause| Err(Outcome::Dropped(cause));
    assert_eq!(b.receive(SECOND, &forged, &from), dropped(DropCause::Forged));
    assert!(b.receive(SECOND, &datagram, &from).is_ok());
    assert_eq!(b.receive(SECOND, &datagram, &from), dropped(DropCause::Replayed));
    let mut unknown = datagram.clone();
    unknown[4] ^= 1;
    assert_eq!(b.receive(SECOND, &unknown, &from), dropped(DropCause::UnknownSession));
    assert_eq!(b.receive(SECOND, &[], &from), dropped(DropCause::NotWireguard));
    let spoofed = a.send(SECOND, &packet(9, 2, b"text")).unwrap();
    assert_eq!(b.receive(SECOND, &spoofed, &from), dropped(DropCause::WrongSource));
    let mut long = packet(1, 2, b"text");
    long[3] += 20;
    let long = a.send(SECOND, &long).unwrap();
    assert_eq!(b.receive(SECOND, &long, &from), dropped(DropCause::NotIp));
    let late = a.send(SECOND, &packet(1, 2, b"text")).unwrap();
    assert_eq!(b.receive(REJECT_AFTER_TIME, &late, &from), dropped(DropCause::ExpiredSession));
    let expected = DropCause::ALL.iter().map(|cause| (*cause, 1));
    let all: Vec<_> = expected.take_while(|(cause, _)| *cause != DropCause::UnknownPeer).collect();
    assert!(b.path.drops().seen().eq(all.iter().copied()), "{:?}", b.path.drops());
    // Their peer is known only with a session.
    assert!(b.link().drops().seen().eq(all[2..].iter().copied()), "{:?}", b.link().drops());
}

#[test]
fn only_authenticated_new_packets_move_the_endpoint() {
    let (mut a, mut b) = connected();
    let elsewhere = Endpoint::from(address("198.51.100.7:1000"));
    let at = |host: &Host| host.link().endpoint().unwrap().remote;
    assert_eq!(at(&b), a.endpoint.remote, "it was learnt from the initiation");
    let [first, second, third] = [1, 2, 3].map(|n| a.send(n * SECOND, &packet(1, 2, b"x")).unwrap());
    let mut forged = third.clone();
    forged[20] ^= 1;
    let _ = b.receive(SECOND, &forged, &elsewhere);
    assert_eq!(at(&b), a.endpoint.remote);
    assert!(b.receive(SECOND, &second, &elsewhere).is_ok());
    assert_eq!(at(&b), elsewhere.remote);
    assert!(b.receive(SECOND, &first, &a.endpoint.clone()).is_ok(), "it is late and counts");
    assert_eq!(at(&b), elsewhere.remote, "but says nothing about where the peer is now");
    let _ = b.receive(SECOND, &second, &a.endpoint.clone());
    assert_eq!(at(&b), elsewhere.remote, "a replayed packet neither");
    assert!(b.receive(SECOND, &third, &a.endpoint.clone()).is_ok());
    assert_eq!(at(&b), a.endpoint.remote);
}

#[test]
fn a_host_under_load_asks_for_a_cookie_and_no_peer_roams_on_it() {
    let (mut a, mut b) = pair_with(Limits { initiations_per_s: 0, initiation_burst: 0, cookie_replies_per_s: 1000 });
    let _ = a.send(0, &packet(1, 2, b""));
    let initiation = a.take_messages().remove(0);
    assert_eq!(b.receive(0, &initiation, &a.endpoint), Err(Outcome::Dropped(DropCause::NoCookie)));
    let reply = b.take_messages().remove(0);
    assert_eq!(Kind::of(&reply), Some(Kind::CookieReply));
    assert_eq!(a.receive(0, &reply, &Endpoint::from(address("198.51.100.7:1"))), Err(Outcome::Handshake));
    assert_eq!(a.link().endpoint().unwrap().remote, b.endpoint.remote);
    assert_eq!(a.tick(5 * SECOND + JITTER_MAX).map(|next| next > 5 * SECOND + JITTER_MAX), Some(true));
    let retry = a.take_messages().remove(0);
    let elsewhere = Endpoint::from(SocketAddr::new(a.endpoint.remote.ip(), 1));
    let dropped = Err(Outcome::Dropped(DropCause::NoCookie));
    assert_eq!(b.receive(6 * SECOND, &retry, &elsewhere), dropped, "a cookie holds for one port");
    b.take_messages();
    assert_eq!(b.receive(6 * SECOND, &retry, &a.endpoint.clone()), Err(Outcome::Handshake));
    assert_eq!(exchange(6 * SECOND, &mut a, &mut b), 2);
    assert_eq!(a.take_events(), [Event::Flush(PeerId(1))]);
}

#[test]
fn cookie_replies_are_limited() {
    let (mut a, mut b) = pair_with(Limits { initiations_per_s: 0, initiation_burst: 0, cookie_replies_per_s: 100 });
    let _ = a.send(0, &packet(1, 2, b""));
    let initiation = a.take_messages().remove(0);
    for n in 0..10_000u64 {
        let from = Endpoint::from(SocketAddr::from(([198, 51, 100, 1], n as u16)));
        assert_eq!(b.receive(n * SECOND / 10_000, &initiation, &from), Err(Outcome::Dropped(DropCause::NoCookie)));
    }
    assert!((100..=110).contains(&b.take_messages().len()));
}

/// A host that has sent an initiation to a peer, and `count` responses to it that are forged, with a right MAC1.
fn forged_responses(a: &mut Host, count: u8) -> Vec<Vec<u8>> {
    let initiation = a.take_messages().remove(0);
    let mut signer = super::super::cookie::Signer::new(&a.key.public());
    let forge = |n| {
        let mut message = vec![n; 92];
        message[..4].copy_from_slice(&2u32.to_le_bytes());
        message[8..12].copy_from_slice(&initiation[4..8]);
        signer.sign(0, &mut message);
        message
    };
    (0..count).map(forge).collect()
}

#[test]
fn forged_responses_have_a_limit_and_the_right_one_passes_with_a_cookie() {
    let limits = Limits { initiations_per_s: 10, initiation_burst: 20, cookie_replies_per_s: 100 };
    let (mut a, mut b) = (Host::new(1, limits), Host::new(2, Limits::default()));
    a.add_peer(2, Some(b.endpoint.remote));
    b.add_peer(1, None);
    let _ = a.send(0, &packet(1, 2, b""));
    let initiation = a.out.messages[0].bytes().to_vec();
    let forged = forged_responses(&mut a, 200);
    let from = Endpoint::from(address("198.51.100.7:1"));
    let outcomes: Vec<_> = forged.iter().map(|message| a.receive(0, message, &from)).collect();
    let count = |cause| outcomes.iter().filter(|outcome| **outcome == Err(Outcome::Dropped(cause))).count();
    assert_eq!((count(DropCause::Forged), count(DropCause::NoCookie)), (21, 179));
    assert_eq!(a.take_messages().len(), 10, "cookie replies have their own limit");

    // The peer's own response needs a cookie too, and gets one with the next handshake.
    assert_eq!(b.receive(SECOND / 2, &initiation, &a.endpoint), Err(Outcome::Handshake));
    let response = b.take_messages().remove(0);
    let dropped = Err(Outcome::Dropped(DropCause::NoCookie));
    assert_eq!(a.receive(SECOND / 2, &response, &b.endpoint), dropped);
    let reply = a.take_messages().remove(0);
    assert_eq!(b.receive(SECOND / 2, &reply, &a.endpoint), Err(Outcome::Handshake));
    let now = REKEY_TIMEOUT + JITTER_MAX;
    a.tick(now);
    let retry = a.out.messages[0].bytes().to_vec();
    for message in forged_responses(&mut a, 30) {
        let _ = a.receive(now, &message, &from);
    }
    a.take_messages();
    assert_eq!(b.receive(now, &retry, &a.endpoint), Err(Outcome::Handshake));
    assert_eq!(exchange(now, &mut a, &mut b), 2, "the response with its cookie, and the keepalive");
    assert_eq!(a.take_events(), [Event::Flush(PeerId(1))]);
}

#[test]
fn responses_of_peers_need_no_cookie_however_many_begin_at_once() {
    let mut a = Host::new(1, Limits { initiations_per_s: 0, initiation_burst: 0, cookie_replies_per_s: 100 });
    for n in 2..10 {
        let mut b = Host::new(n, Limits::default());
        a.add_peer(n, Some(b.endpoint.remote));
        b.add_peer(1, None);
        let _ = a.send(0, &packet(1, n, b""));
        assert_eq!(exchange(0, &mut a, &mut b), 3);
    }
}

#[test]
fn an_initiation_counts_once_and_no_more_than_fifty_a_second() {
    let (mut a, mut b) = pair_with(Limits::default());
    let _ = a.send(0, &packet(1, 2, b""));
    let first = a.take_messages().remove(0);
    a.tick(6 * SECOND);
    let second = a.take_messages().remove(0);
    let from = a.endpoint;
    let dropped = |cause| Err(Outcome::Dropped(cause));
    assert_eq!(b.receive(6 * SECOND, &second, &from), Err(Outcome::Handshake));
    assert_eq!(b.receive(7 * SECOND, &second, &from), dropped(DropCause::Replayed));
    assert_eq!(b.receive(7 * SECOND, &first, &from), dropped(DropCause::Replayed), "an older one");
    a.tick(12 * SECOND);
    let third = a.take_messages().remove(0);
    a.tick(18 * SECOND);
    let fourth = a.take_messages().remove(0);
    assert_eq!(b.receive(20 * SECOND, &third, &from), Err(Outcome::Handshake));
    assert_eq!(b.receive(20 * SECOND + 1, &fourth, &from), dropped(DropCause::RateLimited));
    let unknown = Host::new(3, Limits::default()).key;
    b.configure(DeviceChange { private_key: Some(unknown), ..DeviceChange::default() });
    assert_eq!(b.receive(30 * SECOND, &fourth, &from), dropped(DropCause::Forged), "it is for another key");
}

#[test]
fn a_handshake_without_an_answer_is_given_up_and_can_be_asked_for_again() {
    let (mut a, _) = pair_with(Limits::default());
    assert_eq!(a.send(0, &packet(1, 2, b"")), Err(Refusal::NoSession { attend: true }));
    assert_eq!(a.send(0, &packet(1, 2, b"")), Err(Refusal::NoSession { attend: false }));
    let (mut now, mut count) = (0, a.take_messages().len());
    while let Some(next) = a.tick(now) {
        assert!(next > now && next <= now + REKEY_TIMEOUT + JITTER_MAX);
        let sent = a.take_messages().len();
        assert!(sent <= 1);
        count += sent;
        now = next;
    }
    assert_eq!(a.take_events(), [Event::Discard(PeerId(1))]);
    assert!((90..=96).contains(&(now / SECOND)), "{now}");
    assert!((17..=19).contains(&count), "{count}");
    assert_eq!(a.send(now, &packet(1, 2, b"")), Err(Refusal::NoSession { attend: true }));
    assert_eq!(a.take_messages().len(), 1, "the last initiation was more than 5 s ago");
}

#[test]
fn the_initiator_renews_the_session_when_it_sends() {
    let (mut a, mut b) = connected();
    let at = REKEY_AFTER_TIME;
    let datagram = b.send(at, &packet(2, 1, b"x")).unwrap();
    assert!(a.receive(at, &datagram, &b.endpoint.clone()).is_ok());
    assert_eq!(a.take_messages().len() + b.take_messages().len(), 0, "the responder does not renew by age");
    let datagram = a.send(at, &packet(1, 2, b"x")).unwrap();
    let _ = a.send(at, &packet(1, 2, b"x")).unwrap();
    assert_eq!(a.out.messages.len(), 1, "one initiation");
    assert_eq!(exchange(at, &mut a, &mut b), 3);
    assert!(b.receive(at, &datagram, &a.endpoint.clone()).is_ok(), "what was under way comes in the previous session");
    assert_eq!(a.device.state().peers[0].handshakes, 2);
    let datagram = a.send(at + SECOND, &packet(1, 2, b"x")).unwrap();
    assert!(b.receive(at + SECOND, &datagram, &a.endpoint.clone()).is_ok());
}

#[test]
fn the_initiator_renews_the_session_when_it_only_receives() {
    let (mut a, mut b) = connected();
    for at_s in [100, 164, 166, 167] {
        let datagram = b.send(at_s * SECOND, &packet(2, 1, b"x")).unwrap();
        assert!(a.receive(at_s * SECOND, &datagram, &b.endpoint.clone()).is_ok());
        assert_eq!(a.take_messages().len(), usize::from(at_s == 166), "at {at_s} s, and once");
    }
}

#[test]
fn a_session_ends_by_time_and_by_messages() {
    let (mut a, mut b) = connected();
    a.link().current().unwrap().set_counter(REKEY_AFTER_MESSAGES + 1);
    let datagram = a.send(SECOND, &packet(1, 2, b"x")).unwrap();
    assert!(b.receive(SECOND, &datagram, &a.endpoint.clone()).is_ok());
    assert_eq!(a.take_messages().len(), 0, "the last initiation is too recent");
    a.tick(REKEY_TIMEOUT);
    assert_eq!(a.take_messages().len(), 1, "too many messages");
    a.link().current().unwrap().set_counter(REJECT_AFTER_MESSAGES - 1);
    assert!(a.send(6 * SECOND, &packet(1, 2, b"x")).is_ok());
    assert_eq!(a.send(6 * SECOND, &packet(1, 2, b"x")), Err(Refusal::NoSession { attend: false }));
    let (mut a, _b) = connected();
    assert!(a.send(REJECT_AFTER_TIME - 1, &packet(1, 2, b"x")).is_ok());
    a.take_messages();
    assert!(matches!(a.send(REJECT_AFTER_TIME, &packet(1, 2, b"x")), Err(Refusal::NoSession { .. })));
    let session = Arc::downgrade(&a.link().current().unwrap());
    a.tick(REJECT_AFTER_TIME);
    assert!(session.upgrade().is_none(), "its keys are erased");
}

#[test]
fn data_is_answered_with_a_keepalive_after_ten_seconds() {
    let (mut a, mut b) = connected();
    let mut deliver = |a: &mut Host, now| {
        let datagram = a.send(now, &packet(1, 2, b"x")).unwrap();
        assert!(b.receive(now, &datagram, &a.endpoint.clone()).is_ok());
    };
    deliver(&mut a, SECOND);
    deliver(&mut a, 5 * SECOND);
    b.tick(11 * SECOND - 1);
    assert_eq!(b.take_messages().len(), 0);
    b.tick(11 * SECOND);
    let keepalive = b.take_messages();
    assert_eq!(keepalive.iter().map(Vec::len).collect::<Vec<_>>(), [32]);
    assert_eq!(a.receive(11 * SECOND, &keepalive[0], &b.endpoint.clone()), Err(Outcome::Keepalive));
    b.tick(21 * SECOND);
    assert_eq!(b.take_messages().len(), 1, "more data had come before the first keepalive");
    b.tick(60 * SECOND);
    assert_eq!(b.take_messages().len(), 0, "a keepalive is not answered");
    a.tick(60 * SECOND);
    assert_eq!(a.take_messages().len(), 0);
}

#[test]
fn data_without_an_answer_begins_a_handshake() {
    let (mut a, _) = connected();
    a.send(SECOND, &packet(1, 2, b"x")).unwrap();
    a.send(10 * SECOND, &packet(1, 2, b"x")).unwrap();
    a.tick(16 * SECOND - 1);
    assert_eq!(a.take_messages().len(), 0);
    a.tick(16 * SECOND + JITTER_MAX);
    let messages = a.take_messages();
    assert_eq!(Kind::of(&messages[0]), Some(Kind::Initiation));
}

#[test]
fn a_name_is_asked_for_until_it_is_found_and_the_handshake_begins_at_once() {
    let (mut a, mut b) = pair_with(Limits::default());
    let name = HostPort { host: "vpn.example.com".to_owned(), port: 51820 };
    a.configure(DeviceChange { replace_peers: true, ..DeviceChange::default() });
    a.change_peer(PeerChange {
        endpoint_name: Some(name.clone()),
        persistent_keepalive_s: Some(25),
        allowed_ips: vec![PrefixChange::Add(IpNet::new_assert([10, 0, 0, 2].into(), 32))],
        ..PeerChange::new(b.key.public())
    });
    let (mut now, mut asked) = (SECOND, Vec::new());
    while asked.len() < 4 {
        let next = a.tick(now).unwrap();
        assert!(next > now, "the device does not spin");
        if let Some(lookup) = a.out.lookups.pop() {
            asked.push(now / SECOND);
            if asked.len() < 4 {
                a.device.resolved(now, &lookup, &[], &mut a.out);
            } else {
                a.device.resolved(now, &lookup, &[b.endpoint.remote], &mut a.out);
            }
        } else {
            now = next;
        }
    }
    assert_eq!(asked, [1, 2, 4, 8]);
    assert_eq!(a.device.deadline(), Some(0), "the keepalive is due");
    a.tick(now);
    assert_eq!(exchange(now, &mut a, &mut b), 3);
}

#[test]
fn a_name_is_asked_for_when_handshakes_go_unanswered() {
    let (mut a, mut b) = pair_with(Limits::default());
    let name = HostPort { host: "vpn.example.com".to_owned(), port: 51820 };
    let change = PeerChange { endpoint_name: Some(name), ..PeerChange::new(b.key.public()) };
    a.change_peer(PeerChange { endpoint: Some(b.endpoint.remote), ..change.clone() });
    let _ = a.send(0, &packet(1, 2, b""));
    exchange(0, &mut a, &mut b);
    a.tick(100 * SECOND);
    assert_eq!(a.out.lookups, [], "the peer answers");

    // The peer has moved: the session ends, and an initiation goes unanswered.
    let moved = Endpoint::from(address("198.51.100.7:51820"));
    let _ = a.send(200 * SECOND, &packet(1, 2, b""));
    a.take_messages();
    let retry = 200 * SECOND + REKEY_TIMEOUT + JITTER_MAX;
    a.tick(retry);
    let lookup = a.out.lookups.pop().expect("a question");
    assert_eq!(a.link().endpoint().unwrap().remote, b.endpoint.remote, "it is tried meanwhile");
    a.device.resolved(retry, &lookup, &[moved.remote], &mut a.out);
    a.take_messages();
    assert_eq!(a.device.deadline(), Some(retry), "the new address is tried at once");
    a.tick(retry);
    assert_eq!((a.out.messages[0].to.remote, a.out.lookups.len()), (moved.remote, 0));
    a.tick(retry + REKEY_TIMEOUT + JITTER_MAX);
    assert_eq!(a.out.lookups.len(), 1, "the new address has not answered either");

    // Another address that is set takes the place of the name; the same one does not.
    let lookup = a.out.lookups.pop().unwrap();
    a.change_peer(PeerChange { endpoint: Some(moved.remote), ..PeerChange::new(b.key.public()) });
    a.device.resolved(retry, &lookup, &[b.endpoint.remote], &mut a.out);
    assert_eq!(a.link().endpoint().unwrap().remote, b.endpoint.remote);
    a.change_peer(PeerChange { endpoint: Some(moved.remote), ..PeerChange::new(b.key.public()) });
    a.device.resolved(retry, &lookup, &[b.endpoint.remote], &mut a.out);
    assert_eq!(a.link().endpoint().unwrap().remote, moved.remote);
}

#[test]
fn a_name_is_asked_for_when_data_in_a_session_goes_unanswered() {
    let (mut a, b) = connected();
    let name = HostPort { host: "vpn.example.com".to_owned(), port: 51820 };
    a.change_peer(PeerChange { endpoint_name: Some(name), ..PeerChange::new(b.key.public()) });
    a.send(SECOND, &packet(1, 2, b"x")).unwrap();
    a.tick(16 * SECOND - 1);
    assert_eq!(a.out.lookups.len(), 0);
    a.tick(16 * SECOND + JITTER_MAX);
    assert_eq!(a.out.lookups.len(), 1);
}

#[test]
fn a_peer_that_answers_keeps_its_address_whatever_its_name_says() {
    let (mut a, mut b) = pair_with(Limits::default());
    let name = HostPort { host: "vpn.example.com".to_owned(), port: 51820 };
    a.change_peer(PeerChange { endpoint_name: Some(name), ..PeerChange::new(b.key.public()) });
    let _ = a.send(0, &packet(1, 2, b""));
    a.take_messages();
    let retry = REKEY_TIMEOUT + JITTER_MAX;
    a.tick(retry);
    let lookup = a.out.lookups.pop().expect("a question");
    assert_eq!(exchange(retry, &mut a, &mut b), 3);
    a.device.resolved(retry, &lookup, &[address("198.51.100.7:51820")], &mut a.out);
    assert_eq!(a.link().endpoint().unwrap().remote, b.endpoint.remote);
}

#[test]
fn persistent_keepalives_begin_at_once_and_keep_their_interval() {
    let (mut a, mut b) = pair_with(Limits::default());
    let key = b.key.public();
    a.change_peer(PeerChange { persistent_keepalive_s: Some(25), ..PeerChange::new(key) });
    a.tick(SECOND);
    assert_eq!(a.out.messages.len(), 1, "an initiation, since there is no session");
    exchange(SECOND, &mut a, &mut b);
    let mut sent_at = Vec::new();
    let mut now = SECOND;
    while now < 110 * SECOND {
        let next = a.tick(now).unwrap();
        if !a.take_messages().is_empty() {
            sent_at.push(now / SECOND);
        }
        now = next;
    }
    assert_eq!(sent_at, [26, 51, 76, 101]);
    a.change_peer(PeerChange { persistent_keepalive_s: Some(0), ..PeerChange::new(key) });
    a.tick(130 * SECOND);
    assert_eq!(a.take_messages().len(), 0);
}

#[test]
fn an_interface_that_is_down_forgets_its_sessions_and_is_silent() {
    let (mut a, mut b) = pair_with(Limits::default());
    b.add_peer(1, Some(a.endpoint.remote));
    let key = b.key.public();
    a.device.set_up(false, &mut a.out);
    a.change_peer(PeerChange { persistent_keepalive_s: Some(25), ..PeerChange::new(key) });
    assert_eq!(a.tick(SECOND), Some(2 * SECOND), "it is looked again");
    assert!(a.take_messages().is_empty());
    assert!(b.send(SECOND, &packet(2, 1, b"")).is_err());
    let initiation = b.take_messages().remove(0);
    let refused = a.receive(SECOND, &initiation, &b.endpoint);
    assert_eq!(refused, Err(Outcome::Dropped(DropCause::InterfaceDown)));
    assert!(a.take_messages().is_empty());

    a.device.set_up(true, &mut a.out);
    assert_eq!(a.device.deadline(), Some(0));
    a.tick(2 * SECOND);
    exchange(2 * SECOND, &mut a, &mut b);
    let sent = a.send(3 * SECOND, &packet(1, 2, b"x")).unwrap();
    assert!(b.receive(3 * SECOND, &sent, &a.endpoint).is_ok());

    let late = b.send(4 * SECOND, &packet(2, 1, b"x")).unwrap();
    a.device.set_up(false, &mut a.out);
    assert_eq!(a.receive(4 * SECOND, &late, &b.endpoint), Err(Outcome::Dropped(DropCause::UnknownSession)));
    assert!(a.send(4 * SECOND, &packet(1, 2, b"")).is_err());
    assert_eq!(a.tick(40 * SECOND), Some(41 * SECOND));
    assert!(a.take_messages().is_empty());
}

#[test]
fn both_may_initiate_at_once() {
    let (mut a, mut b) = pair_with(Limits::default());
    b.add_peer(1, Some(a.endpoint.remote));
    let _ = (a.send(0, &packet(1, 2, b"")), b.send(0, &packet(2, 1, b"")));
    exchange(0, &mut a, &mut b);
    for now in [SECOND, 2 * SECOND] {
        let there = a.send(now, &packet(1, 2, b"x")).unwrap();
        let back = b.send(now, &packet(2, 1, b"x")).unwrap();
        assert!(b.receive(now, &there, &a.endpoint.clone()).is_ok());
        assert!(a.receive(now, &back, &b.endpoint.clone()).is_ok());
    }
}

#[test]
fn configuration_is_what_was_set() {
    let (mut a, b) = connected();
    let key = b.key.public();
    let prefix = |text: &str| text.parse::<IpNet>().unwrap();
    a.configure(DeviceChange { listen_port: Some(7), fwmark: Some(8), ..DeviceChange::default() });
    a.change_peer(PeerChange {
        preshared_key: Some(PresharedKey::new([4; 32])),
        allowed_ips: vec![PrefixChange::Add(prefix("fd00::/8")), PrefixChange::Remove(prefix("10.0.0.2/32"))],
        ..PeerChange::new(key)
    });
    let state = a.device.state();
    assert_eq!((state.listen_port, state.fwmark, state.private_key), (7, 8, Some(a.key.clone())));
    assert_eq!(state.peers[0].allowed_ips, [prefix("fd00::/8")]);
    assert_eq!(state.peers[0].preshared_key, PresharedKey::new([4; 32]));
    a.change_peer(PeerChange { update_only: true, ..PeerChange::new(PublicKey([1; 32])) });
    a.change_peer(PeerChange::new(a.key.public()));
    assert_eq!(a.device.state().peers.len(), 1, "an unknown peer is not updated, and nobody is a peer of itself");
    let other = PublicKey([1; 32]);
    a.change_peer(PeerChange { allowed_ips: vec![PrefixChange::Add(prefix("fd00::/8"))], ..PeerChange::new(other) });
    a.change_peer(PeerChange { allowed_ips: vec![PrefixChange::Remove(prefix("fd00::/8"))], ..PeerChange::new(key) });
    let state = a.device.state();
    assert_eq!(state.peers[0].allowed_ips, [], "the other peer has the prefix");
    assert_eq!(state.peers[1].allowed_ips, [prefix("fd00::/8")]);
    a.change_peer(PeerChange { replace_allowed_ips: true, ..PeerChange::new(other) });
    assert!(a.device.state().peers[1].allowed_ips.is_empty());
    a.out.clear();
    a.change_peer(PeerChange { remove: true, ..PeerChange::new(key) });
    assert_eq!(a.take_events(), [Event::Discard(PeerId(1))]);
    a.configure(DeviceChange { replace_peers: true, ..DeviceChange::default() });
    assert!(a.device.state().peers.is_empty());
}

#[test]
fn routes_are_copied_only_when_they_change() {
    let (mut a, b) = connected();
    let prefix = |text: &str| PrefixChange::Add(text.parse::<IpNet>().unwrap());
    let set = |prefixes: &[PrefixChange]| PeerChange {
        replace_allowed_ips: true,
        allowed_ips: prefixes.to_vec(),
        ..PeerChange::new(b.key.public())
    };
    a.change_peer(set(&[prefix("10.0.0.2/32"), prefix("fd00::/8")]));
    let before = Arc::clone(&a.path.routes());
    a.change_peer(set(&[prefix("fd00::7/8"), prefix("10.0.0.2/32")]));
    a.change_peer(PeerChange { persistent_keepalive_s: Some(25), ..PeerChange::new(b.key.public()) });
    assert!(Arc::ptr_eq(&before, &a.path.routes()), "nothing has changed");
    a.change_peer(set(&[prefix("fd00::/8")]));
    assert!(a.path.routes().get("10.0.0.2".parse().unwrap()).is_none());
    let other = PublicKey([1; 32]);
    a.change_peer(PeerChange { allowed_ips: vec![prefix("fd00::/8")], ..PeerChange::new(other) });
    a.change_peer(set(&[]));
    assert_eq!(a.device.state().peers[1].allowed_ips.len(), 1, "the first peer had lost it before");
    a.change_peer(PeerChange { remove: true, ..PeerChange::new(other) });
    assert_eq!(a.path.routes().iter().count(), 0);
}

#[test]
fn a_change_in_parts_is_the_change() {
    let peers = (1..=10).map(|n| PeerChange {
        allowed_ips: vec![PrefixChange::Add(IpNet::new_assert([10, 0, 0, n % 7].into(), 32))],
        ..PeerChange::new(PublicKey([n; 32]))
    });
    let change =
        DeviceChange { replace_peers: true, listen_port: Some(7), peers: peers.collect(), ..DeviceChange::default() };
    let (mut whole, mut parts) = (Host::new(200, Limits::default()), Host::new(200, Limits::default()));
    whole.configure(change.clone());
    let (mut next, mut count) = (Some(change), 0);
    while let Some(mut part) = next {
        next = part.split(3);
        assert!(part.peers.len() <= 3 && part.replace_peers == (count == 0));
        parts.configure(part);
        count += 1;
    }
    assert_eq!((count, whole.device.state()), (4, parts.device.state()));
    assert_eq!(DeviceChange { fwmark: Some(1), ..DeviceChange::default() }.split(3), None);
}

#[test]
fn a_removed_peer_and_a_new_key_end_sessions() {
    let (mut a, mut b) = connected();
    let datagram = b.send(SECOND, &packet(2, 1, b"x")).unwrap();
    let link = Arc::downgrade(&a.link());
    a.change_peer(PeerChange { remove: true, ..PeerChange::new(b.key.public()) });
    assert!(link.upgrade().is_none(), "nothing of it is left");
    let unknown = Err(Outcome::Dropped(DropCause::UnknownSession));
    assert_eq!(a.receive(SECOND, &datagram, &b.endpoint), unknown);
    let (mut a, mut b) = connected();
    let datagram = b.send(SECOND, &packet(2, 1, b"x")).unwrap();
    a.configure(DeviceChange { private_key: Some(PrivateKey::new([0; 32])), ..DeviceChange::default() });
    assert_eq!(a.receive(SECOND, &datagram, &b.endpoint.clone()), unknown);
    assert_eq!(a.device.state().private_key, None);
    let _ = a.send(SECOND, &packet(1, 2, b"x"));
    assert_eq!(a.take_messages().len(), 0, "without a key there is no handshake");
    a.configure(DeviceChange { private_key: Some(a.key.clone()), ..DeviceChange::default() });
    let _ = a.send(10 * SECOND, &packet(1, 2, b"x"));
    assert_eq!(exchange(10 * SECOND, &mut a, &mut b), 3);
}
