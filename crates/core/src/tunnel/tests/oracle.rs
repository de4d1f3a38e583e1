//! Against boringtun: an implementation by others must understand every message, and be understood.
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;
use mock_instant::MockClock;

use super::super::*;
use super::{Host, packet};

/// The other host, number 2, run by boringtun.
struct Other {
    tunn: Tunn,
    /// Datagrams that it has sent.
    sent: Vec<Vec<u8>>,
    /// Packets that it has received.
    packets: Vec<Vec<u8>>,
}

impl Other {
    /// `limit` is how many handshakes a second it takes without a cookie.
    fn new(preshared: Option<[u8; 32]>, limit: u64) -> Self {
        let private = x25519::StaticSecret::from([2; 32]);
        let own = x25519::PublicKey::from(&private);
        let peer = x25519::PublicKey::from(PrivateKey::new([1; 32]).public().0);
        let limiter = Arc::new(RateLimiter::new(&own, limit));
        let tunn = Tunn::new(private, peer, preshared, None, 7, Some(limiter));
        Self { tunn, sent: Vec::new(), packets: Vec::new() }
    }

    fn send(&mut self, packet: &[u8]) {
        let mut buffer = [0; 2048];
        if let TunnResult::WriteToNetwork(datagram) = self.tunn.encapsulate(packet, &mut buffer) {
            self.sent.push(datagram.to_vec());
        }
    }

    fn receive(&mut self, datagram: &[u8]) {
        let from = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        let (mut buffer, mut input) = ([0; 2048], datagram);
        loop {
            match self.tunn.decapsulate(Some(from), input, &mut buffer) {
                TunnResult::WriteToNetwork(datagram) => {
                    let cookie = Kind::of(datagram) == Some(Kind::CookieReply);
                    self.sent.push(datagram.to_vec());
                    if cookie {
                        return;
                    }
                    input = &[];
                }
                TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                    return self.packets.push(packet.to_vec());
                }
                TunnResult::Done => return,
                TunnResult::Err(error) => panic!("{error:?} at {:?}", Kind::of(datagram)),
            }
        }
    }

    fn tick(&mut self) {
        let mut buffer = [0; 2048];
        if let TunnResult::WriteToNetwork(datagram) = self.tunn.update_timers(&mut buffer) {
            self.sent.push(datagram.to_vec());
        }
    }
}

/// Both hosts and the time.
struct Pair {
    ours: Host,
    other: Other,
    now: Ns,
    packets: Vec<Vec<u8>>,
    handshakes: u64,
}

impl Pair {
    fn new(preshared: Option<[u8; 32]>, limits: Limits, other_limit: u64) -> Self {
        MockClock::set_time(Duration::ZERO);
        let mut ours = Host::new(1, limits);
        let there = Host::new(2, limits).endpoint.remote;
        ours.add_peer(2, Some(there));
        let key = PrivateKey::new([2; 32]).public();
        ours.change_peer(PeerChange { preshared_key: preshared.map(PresharedKey::new), ..PeerChange::new(key) });
        Self { ours, other: Other::new(preshared, other_limit), now: 0, packets: Vec::new(), handshakes: 0 }
    }

    /// Passes messages on until neither has more.
    fn exchange(&mut self) {
        let from = self.ours.link().endpoint().unwrap();
        while !(self.ours.out.messages.is_empty() && self.other.sent.is_empty()) {
            for message in self.ours.take_messages() {
                self.handshakes += u64::from(Kind::of(&message) == Some(Kind::Initiation));
                self.other.receive(&message);
            }
            for message in std::mem::take(&mut self.other.sent) {
                match self.ours.receive(self.now, &message, &from) {
                    Ok(packet) => self.packets.push(packet),
                    Err(Outcome::Keepalive | Outcome::Handshake | Outcome::Dropped(DropCause::NoCookie)) => {}
                    Err(outcome) => panic!("{outcome:?} at {:?}", Kind::of(&message)),
                }
            }
        }
    }

    fn advance(&mut self, by: Ns) {
        self.now += by;
        MockClock::set_time(Duration::from_nanos(self.now));
        self.ours.tick(self.now);
        self.other.tick();
        self.exchange();
    }

    fn we_send(&mut self, packet: &[u8]) -> bool {
        let sent = self.ours.send(self.now, packet).map(|datagram| self.other.receive(&datagram)).is_ok();
        self.exchange();
        sent
    }

    /// A packet of each length in both directions.
    fn check_packets(&mut self) {
        for len in [0, 1, 11, 12, 13, 500, 1400] {
            let there = packet(1, 2, &vec![len as u8; len]);
            assert!(self.we_send(&there));
            assert_eq!(self.other.packets.pop(), Some(there));
            let back = packet(2, 1, &vec![len as u8; len]);
            self.other.send(&back);
            self.exchange();
            assert_eq!(self.packets.pop(), Some(back));
        }
    }
}

#[test]
fn our_handshake_is_answered() {
    for preshared in [None, Some([9; 32])] {
        let mut pair = Pair::new(preshared, Limits::default(), 1000);
        assert!(!pair.we_send(&packet(1, 2, b"")));
        assert_eq!(pair.ours.take_events(), [Event::Flush(PeerId(1))]);
        pair.check_packets();
    }
}

#[test]
fn we_answer_its_handshake() {
    for preshared in [None, Some([9; 32])] {
        let mut pair = Pair::new(preshared, Limits::default(), 1000);
        pair.other.send(&packet(2, 1, b"queued"));
        pair.exchange();
        assert_eq!(pair.packets.pop(), Some(packet(2, 1, b"queued")), "it sends what it has kept");
        assert_eq!(pair.ours.take_events(), [Event::Flush(PeerId(1))]);
        pair.check_packets();
    }
}

#[test]
fn keys_that_differ_give_no_session() {
    let mut pair = Pair::new(None, Limits::default(), 1000);
    let key = PrivateKey::new([2; 32]).public();
    let preshared_key = Some(PresharedKey::new([1; 32]));
    pair.ours.change_peer(PeerChange { preshared_key, ..PeerChange::new(key) });
    let _ = pair.ours.send(0, &packet(1, 2, b""));
    let initiation = pair.ours.take_messages().remove(0);
    pair.other.receive(&initiation);
    let response = pair.other.sent.remove(0);
    let from = pair.ours.link().endpoint().unwrap();
    assert_eq!(pair.ours.receive(0, &response, &from), Err(Outcome::Dropped(DropCause::Forged)));
}

#[test]
fn it_takes_our_cookie_and_we_take_its() {
    let loaded = Limits { initiations_per_s: 0, initiation_burst: 0, cookie_replies_per_s: 1000 };
    let mut pair = Pair::new(None, loaded, 1000);
    pair.other.send(&packet(2, 1, b"queued"));
    pair.exchange();
    assert!(pair.packets.is_empty(), "it got a cookie");
    pair.advance(6 * SECOND);
    assert_eq!(pair.packets.pop(), Some(packet(2, 1, b"queued")));
    pair.check_packets();

    let mut pair = Pair::new(None, Limits::default(), 0);
    assert!(!pair.we_send(&packet(1, 2, b"")));
    assert_eq!(pair.ours.take_events(), [], "we got a cookie");
    pair.advance(6 * SECOND);
    assert_eq!(pair.ours.take_events(), [Event::Flush(PeerId(1))]);
    pair.check_packets();
}

#[test]
fn ten_minutes_of_packets_lose_none_though_keys_change() {
    for we_begin in [true, false] {
        let mut pair = Pair::new(Some([3; 32]), Limits::default(), 1000);
        if we_begin {
            pair.we_send(&packet(1, 2, b""));
        } else {
            pair.other.send(&packet(2, 1, b""));
            pair.exchange();
            pair.packets.clear();
        }
        for n in 0..1200u32 {
            pair.advance(SECOND / 2);
            let (there, back) = (packet(1, 2, &n.to_be_bytes()), packet(2, 1, &n.to_be_bytes()));
            assert!(pair.we_send(&there), "packet {n}");
            assert_eq!(pair.other.packets.pop(), Some(there), "packet {n}");
            pair.other.send(&back);
            pair.exchange();
            assert_eq!(pair.packets.pop(), Some(back), "packet {n}");
        }
        let handshakes = pair.ours.device.state().peers[0].handshakes;
        assert!((5..=7).contains(&handshakes), "{handshakes}");
        assert_eq!(pair.handshakes >= 5, we_begin, "who has begun goes on: {} of ours", pair.handshakes);
    }
}
