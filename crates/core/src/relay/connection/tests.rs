//! Connections in virtual time. A tape of choices decides what peers, targets and engines do: all short tapes, and random long
//! ones. [`World::step`] and [`World::perform`] check the invariants for every order of events.
use proptest::prelude::*;

use super::*;

const MS: Ns = 1_000_000;
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    idle: Duration::from_secs(600),
    linger: Duration::from_secs(60),
    header: Duration::from_secs(3),
};

/// Choices: the first ones are given, and the others are 0. `arity` records the number of alternatives of each.
struct Tape<'a> {
    given: &'a [u8],
    arity: Vec<u8>,
}

impl Tape<'_> {
    fn choose(&mut self, among: u8) -> u8 {
        let choice = self.given.get(self.arity.len()).copied().unwrap_or(0) % among;
        self.arity.push(among);
        choice
    }

    fn is_over(&self) -> bool {
        self.arity.len() >= self.given.len()
    }
}

/// The actual state of one direction, which the connection knows by events only.
#[derive(Debug, Clone, Copy, Default)]
struct Truth {
    /// Unread bytes in the source's socket, and whether its end follows them.
    waiting: u32,
    eof: bool,
    source_reset: bool,
    sink_full: bool,
    sink_failed: bool,
    /// Read by the engine and not yet written.
    held: u32,
    /// The end of data was reported when nothing was held.
    eof_reported: bool,
    ended: bool,
    asked: bool,
}

struct World<'a> {
    tape: Tape<'a>,
    now: Ns,
    connection: Connection,
    drain_until: Option<Ns>,
    keepalive: bool,
    directions: PerDirection<Truth>,
    /// Addresses of the current target that are being connected to.
    attempts: Vec<usize>,
    header_done: bool,
    connected: bool,
    timer: Option<Ns>,
    /// Connections counted against the limit of the source.
    counted: i32,
    shut: [bool; 2],
    probing: bool,
    closed: Option<Close>,
    /// No further failures: all bytes can be delivered.
    calm: bool,
}

impl<'a> World<'a> {
    fn new(given: &'a [u8]) -> Self {
        let mut tape = Tape { given, arity: Vec::new() };
        let expects_header = tape.choose(2) == 1;
        let keepalive = given.len().is_multiple_of(2);
        let mut world = Self {
            tape,
            now: 1000 * MS,
            connection: Connection::new(1000 * MS, expects_header),
            drain_until: None,
            keepalive,
            directions: PerDirection::default(),
            attempts: Vec::new(),
            header_done: !expects_header,
            connected: false,
            timer: None,
            counted: i32::from(!expects_header),
            shut: [false; 2],
            probing: false,
            closed: None,
            calm: false,
        };
        world.poll_all();
        world
    }

    fn rules(&self) -> Rules<'static> {
        let keepalive = self.keepalive.then_some(Duration::from_secs(10));
        Rules { timeouts: &TIMEOUTS, keepalive, drain_until: self.drain_until }
    }

    fn handle(&mut self, event: Event) {
        let rules = self.rules();
        self.connection.handle(event, self.now, &rules);
        self.poll_all();
    }

    fn poll_all(&mut self) {
        for _ in 0..100 {
            let rules = self.rules();
            let Some(action) = self.connection.poll(self.now, &rules) else {
                assert!(
                    self.closed.is_some() || self.timer.is_some(),
                    "neither closed nor with a timer: {:?}",
                    self.connection
                );
                return;
            };
            assert!(self.closed.is_none(), "{action:?} after the end");
            if let Some(answer) = self.perform(action) {
                self.connection.handle(answer, self.now, &rules);
            }
        }
        panic!("it asks for actions without end: {:?}", self.connection);
    }

    fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::ReadHeader | Action::CountSource | Action::ReleaseSource | Action::Admit => {
                assert!(!self.header_done || action == Action::Admit || action == Action::ReleaseSource);
                self.perform_header(action)
            }
            Action::OrderTargets | Action::UseTarget(_) | Action::Connect(_) | Action::AbandonTarget(_) => {
                assert!(self.header_done && !self.connected);
                self.perform_connect(action)
            }
            Action::Run(direction) => {
                assert!(self.connected && !self.directions[direction].ended, "a turn of a direction that has ended");
                assert!(!std::mem::replace(&mut self.directions[direction].asked, true), "asked for twice");
                None
            }
            Action::ShutdownWrite(peer) => {
                let direction = Direction::from(peer).reverse();
                let truth = self.directions[direction];
                assert!(truth.eof_reported && truth.held == 0 && truth.waiting == 0, "bytes are left: {truth:?}");
                assert!(!std::mem::replace(&mut self.shut[direction as usize], true), "shut down twice");
                None
            }
            Action::CheckDelivered(_) => Some(Event::Delivered(self.calm || self.tape.choose(2) == 0)),
            Action::CheckFailure(peer) => {
                let sent = &self.directions[Direction::from(peer)];
                assert!(sent.ended && sent.source_reset, "a direction that is open reads the error: {sent:?}");
                self.directions[Direction::from(peer).reverse()].ended = true;
                Some(Event::PeerFailed(peer, Failure::Reset))
            }
            Action::StartKeepalive(_) => {
                assert!(self.connected && !std::mem::replace(&mut self.probing, true), "probed twice");
                None
            }
            Action::ArmTimer(at) => {
                self.timer = Some(at);
                None
            }
            Action::Close(close) => {
                self.counted -= i32::from(close.release_source);
                assert_eq!(self.counted, 0, "limits are released exactly once");
                assert!(!close.reset_attempts || !self.connected);
                if close.reason == CloseReason::Finished {
                    let over = |t: &Truth| t.eof_reported && t.held == 0 && t.waiting == 0;
                    assert!(self.directions.iter().all(over), "bytes are lost: {:?}", self.directions);
                    assert_eq!(close.reset, None);
                }
                self.closed = Some(close);
                None
            }
        }
    }

    fn perform_header(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::ReadHeader => Some(match self.tape.choose(3) {
                0 => Event::HeaderIncomplete,
                1 => {
                    self.header_done = true;
                    Event::HeaderComplete
                }
                _ => Event::Failed(CloseReason::BadHeader),
            }),
            Action::CountSource => {
                assert_eq!(self.counted, 0);
                let admitted = self.tape.choose(2) == 0;
                self.counted += i32::from(admitted);
                Some(Event::SourceCounted(admitted))
            }
            Action::ReleaseSource => {
                self.counted -= 1;
                assert_eq!(self.counted, 0);
                None
            }
            _ => {
                assert_eq!(self.counted, 0, "the proxy's address is still counted");
                if self.tape.choose(2) == 1 {
                    return Some(Event::Admitted(Err(CloseReason::Denied)));
                }
                self.counted += 1;
                Some(Event::Admitted(Ok(())))
            }
        }
    }

    fn perform_connect(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::OrderTargets => Some(Event::TargetsOrdered(usize::from(self.tape.choose(3)))),
            Action::UseTarget(position) => {
                assert!(position < 2 && self.attempts.is_empty());
                Some(Event::AddressesKnown(usize::from(self.tape.choose(3))))
            }
            Action::Connect(address) => match self.tape.choose(4) {
                0 => {
                    assert!(!self.attempts.contains(&address) && self.attempts.len() < usize::from(ATTEMPTS_AT_ONCE));
                    self.attempts.push(address);
                    None
                }
                1 => Some(Event::AttemptFailed(address)),
                2 => Some(self.connect()),
                _ => Some(Event::Failed(CloseReason::RelayFailed)),
            },
            _ => {
                self.attempts.clear();
                None
            }
        }
    }

    fn connect(&mut self) -> Event {
        self.connected = true;
        self.attempts.clear();
        let held = u32::from(self.tape.choose(2));
        self.directions[Direction::ClientToTarget].held = held;
        Event::Connected(if held > 0 { Held::Bytes } else { Held::Nothing })
    }

    /// An engine's turn with a direction.
    fn turn(&mut self, direction: Direction) {
        let truth = &mut self.directions[direction];
        truth.asked = false;
        if !self.connection.begin_turn(direction) {
            return;
        }
        let moved = truth.held + truth.waiting > 0 && !truth.sink_full && !truth.sink_failed;
        let turn = if truth.sink_failed && truth.held + truth.waiting > 0 {
            Turn::Ended(Ended::SinkFailed(Failure::Reset))
        } else if truth.sink_full && truth.held + truth.waiting > 0 {
            (truth.held, truth.waiting) = (truth.held + truth.waiting, 0);
            Turn::SinkFull
        } else {
            (truth.held, truth.waiting) = (0, 0);
            match (truth.source_reset, truth.eof) {
                (true, _) => Turn::Ended(Ended::SourceFailed(Failure::Reset)),
                (_, true) => Turn::Ended(Ended::Eof),
                _ if self.calm => Turn::SourceEmpty,
                _ => match self.tape.choose(3) {
                    0 => Turn::SourceEmpty,
                    1 => Turn::OutOfBandwidth(self.now + 7 * MS),
                    _ => Turn::Again,
                },
            }
        };
        truth.eof_reported |= turn == Turn::Ended(Ended::Eof);
        truth.ended |= matches!(turn, Turn::Ended(_));
        let held = if truth.held > 0 { Held::Bytes } else { Held::Nothing };
        if moved {
            self.handle(Event::Progress);
        }
        self.handle(Event::Turn(direction, held, turn));
    }

    fn run_asked(&mut self) {
        for _ in 0..10 {
            for direction in Direction::ALL {
                if self.directions[direction].asked && self.closed.is_none() {
                    self.turn(direction);
                }
            }
        }
    }

    /// The timer is due.
    fn pass_time(&mut self) {
        if let Some(at) = self.timer.take() {
            self.now = self.now.max(at);
            self.handle(Event::Timer);
        }
    }

    fn socket(&mut self, peer: Peer, state: SocketState) {
        if self.connected || peer == Peer::Client {
            self.handle(Event::Socket(peer, state));
        }
    }

    /// One event that the tape chooses.
    fn step(&mut self) {
        let readable = SocketState { readable: true, ..SocketState::default() };
        match self.tape.choose(8) {
            0 => self.pass_time(),
            1 if !self.attempts.is_empty() => {
                let address = self.attempts.remove(0);
                let connects = self.tape.choose(2) == 0;
                let event = if connects { self.connect() } else { Event::AttemptFailed(address) };
                self.handle(event);
            }
            1 => self.run_asked(),
            choice @ (2 | 3) => {
                let peer = if choice == 2 { Peer::Client } else { Peer::Target };
                let what = self.tape.choose(3);
                let source = &mut self.directions[Direction::from(peer)];
                let silent = source.eof || source.source_reset;
                match what {
                    0 if !silent => source.waiting += 1,
                    1 if !silent => source.eof = true,
                    _ => source.source_reset = true,
                }
                let (ended, failed) = (what > 0, source.source_reset);
                self.directions[Direction::from(peer).reverse()].sink_failed |= failed;
                self.socket(peer, SocketState { ended, failed, ..readable });
            }
            4 => self.directions[Direction::ClientToTarget].sink_full = true,
            5 => self.drain_sinks(),
            6 => {
                self.drain_until = Some(self.now + 50 * MS);
                self.handle(Event::RulesChanged);
            }
            _ => self.handle(Event::Failed(CloseReason::Drained)),
        }
    }

    fn drain_sinks(&mut self) {
        for peer in Peer::ALL {
            self.directions[Direction::from(peer).reverse()].sink_full = false;
            self.socket(peer, SocketState { writable: true, ..SocketState::default() });
        }
    }

    /// From here on nothing fails and both peers send their end: all bytes and both ends arrive.
    fn finish_calmly(&mut self) {
        self.calm = true;
        self.drain_sinks();
        for peer in Peer::ALL {
            self.directions[Direction::from(peer)].eof = true;
            self.socket(peer, SocketState { readable: true, ended: true, ..SocketState::default() });
            self.run_asked();
        }
        let failed = self.directions.iter().any(|t| t.source_reset || t.sink_failed);
        for _ in 0..10 {
            if self.closed.is_none() {
                self.pass_time();
                self.run_asked();
            }
        }
        let close = self.closed.expect("both peers have ended");
        assert!(failed || close.reason == CloseReason::Finished || self.drain_until.is_some(), "{close:?}");
    }

    /// In every state the drain timeout closes the connection.
    fn time_out(&mut self) {
        self.drain_until = Some(self.now + 1000 * MS);
        self.handle(Event::RulesChanged);
        for _ in 0..100 {
            if self.closed.is_some() {
                return;
            }
            self.pass_time();
        }
        panic!("it is not closed: {:?}", self.connection);
    }

    /// After the close no event leads to an action.
    fn check_closed(&mut self) {
        assert!(self.closed.is_some());
        let state = SocketState { readable: true, writable: true, ended: true, failed: true };
        let rules = self.rules();
        for direction in Direction::ALL {
            assert!(!self.connection.begin_turn(direction));
            let turn = Event::Turn(direction, Held::Nothing, Turn::Ended(Ended::Eof));
            for event in [Event::Timer, Event::Socket(direction.source(), state), turn, Event::RulesChanged] {
                self.connection.handle(event, self.now, &rules);
                assert_eq!(self.connection.poll(self.now, &rules), None, "{event:?}");
            }
        }
        assert_eq!(self.connection.next_timer(self.now, &rules), None);
    }
}

/// Plays a tape to the end of the connection. Returns the number of alternatives of each choice, and the reason of the close.
fn play(given: &[u8]) -> (Vec<u8>, Option<CloseReason>) {
    let mut world = World::new(given);
    while !world.tape.is_over() && world.closed.is_none() {
        world.step();
    }
    let arity = world.tape.arity.clone();
    if world.closed.is_none() {
        // The tape is over: one of two ways to end the connection follows.
        if world.connected && given.iter().map(|&c| u32::from(c)).sum::<u32>().is_multiple_of(2) {
            world.finish_calmly();
        } else {
            world.time_out();
        }
    }
    world.check_closed();
    (arity, world.closed.map(|close| close.reason))
}

#[test]
fn every_short_order_of_events_closes_once_and_loses_nothing() {
    const LENGTH: usize = 9;
    let mut reasons = std::collections::HashSet::new();
    let mut tape = vec![0; LENGTH];
    loop {
        let (arity, reason) = play(&tape);
        reasons.extend(reason);
        // The next tape, like counting with a base per digit. Choices that were not made are skipped.
        let Some(last) = (0..LENGTH.min(arity.len())).rev().find(|&i| tape[i] + 1 < arity[i]) else { break };
        tape[last] += 1;
        tape[last + 1..].fill(0);
    }
    for reason in CloseReason::ALL {
        // Reasons from before a connection exists, or of failures that the engines of this test do not report.
        let elsewhere = [
            CloseReason::UntrustedProxy,
            CloseReason::ClientLost,
            CloseReason::TargetLost,
            // Of UDP sessions.
            CloseReason::Evicted,
            CloseReason::TargetGone,
        ];
        assert!(reasons.contains(&reason) || elsewhere.contains(&reason), "{reason:?} was never reached");
    }
}

proptest! {
    #[test]
    fn random_long_orders_of_events_close_once_and_lose_nothing(tape in prop::collection::vec(any::<u8>(), 10..200)) {
        play(&tape);
    }
}

/// A connection in [`Stage::Transferring`], and the actions that it has asked for since it connected.
fn connected(rules: &Rules<'_>, held: Held) -> (Connection, Vec<Action>) {
    let mut connection = Connection::new(0, false);
    let mut answers = [Event::TargetsOrdered(1), Event::AddressesKnown(1), Event::Connected(held)].into_iter();
    let mut asked = Vec::new();
    while let Some(action) = connection.poll(0, rules) {
        match answers.next() {
            Some(answer) => connection.handle(answer, 0, rules),
            None => asked.push(action),
        }
    }
    (connection, asked)
}

fn transferring(rules: &Rules<'_>) -> Connection {
    connected(rules, Held::Nothing).0
}

/// A PROXY header for the target must not wait until the client sends: in many protocols the server speaks first.
#[test]
fn what_is_held_when_it_connects_is_sent_at_once() {
    let rules = Rules { timeouts: &TIMEOUTS, keepalive: None, drain_until: None };
    let run = Action::Run(Direction::ClientToTarget);
    assert!(connected(&rules, Held::Bytes).1.contains(&run));
    assert!(!connected(&rules, Held::Nothing).1.contains(&run));
}

#[test]
fn a_full_sink_is_tried_again_when_it_is_writable_and_not_when_more_arrives() {
    let rules = Rules { timeouts: &TIMEOUTS, keepalive: None, drain_until: None };
    let mut connection = transferring(&rules);
    let direction = Direction::ClientToTarget;
    let readable = SocketState { readable: true, ..SocketState::default() };
    let writable = SocketState { writable: true, ..SocketState::default() };
    connection.handle(Event::Socket(Peer::Client, readable), 0, &rules);
    assert_eq!(connection.poll(0, &rules), Some(Action::Run(direction)));
    assert!(connection.begin_turn(direction));
    connection.handle(Event::Turn(direction, Held::Nothing, Turn::SinkFull), 0, &rules);
    connection.handle(Event::Socket(Peer::Client, readable), 0, &rules);
    assert_eq!(connection.poll(0, &rules), None);
    connection.handle(Event::Socket(Peer::Target, writable), 0, &rules);
    assert_eq!(connection.poll(0, &rules), Some(Action::Run(direction)), "the source is still ready");
}

#[test]
fn an_idle_connection_is_probed_once_and_closed_in_time() {
    let rules = Rules { timeouts: &TIMEOUTS, keepalive: Some(Duration::from_secs(60)), drain_until: None };
    let mut connection = transferring(&rules);
    assert_eq!(connection.next_timer(0, &rules), Some(5000 * MS));
    connection.handle(Event::Timer, 5000 * MS, &rules);
    assert_eq!(connection.poll(5000 * MS, &rules), Some(Action::StartKeepalive(Duration::from_secs(60))));
    assert_eq!(connection.poll(5000 * MS, &rules), Some(Action::ArmTimer(600_000 * MS)));
    connection.handle(Event::Progress, 6000 * MS, &rules);
    connection.handle(Event::Timer, 600_000 * MS, &rules);
    assert_eq!(connection.poll(600_000 * MS, &rules), Some(Action::ArmTimer(606_000 * MS)), "it has made progress");
    connection.handle(Event::Timer, 606_000 * MS, &rules);
    let close = Close { reason: CloseReason::IdleTimeout, reset: None, reset_attempts: false, release_source: true };
    assert_eq!(connection.poll(606_000 * MS, &rules), Some(Action::Close(close)));
}

/// The actions that follow.
fn actions(connection: &mut Connection, rules: &Rules<'_>) -> Vec<Action> {
    std::iter::from_fn(|| connection.poll(0, rules)).collect()
}

#[test]
fn a_reset_by_the_peer_that_has_half_closed_reaches_the_other_peer_at_once() {
    let rules = Rules { timeouts: &TIMEOUTS, keepalive: None, drain_until: None };
    let failed = SocketState { readable: true, ended: true, failed: true, ..SocketState::default() };
    for peer in Peer::ALL {
        let sends = Direction::from(peer);
        let reason = if peer == Peer::Client { CloseReason::ClientReset } else { CloseReason::TargetReset };
        for together in [false, true] {
            let mut connection = transferring(&rules);
            let first = if together { failed } else { SocketState { failed: false, ..failed } };
            connection.handle(Event::Socket(peer, first), 0, &rules);
            assert!(actions(&mut connection, &rules).contains(&Action::Run(sends)) && connection.begin_turn(sends));
            // The end of data comes first, also where the kernel has the reset already.
            connection.handle(Event::Turn(sends, Held::Nothing, Turn::Ended(Ended::Eof)), 0, &rules);
            let mut asked = actions(&mut connection, &rules);
            assert!(asked.contains(&Action::ShutdownWrite(peer.other())));
            assert_eq!(asked.contains(&Action::CheckFailure(peer)), together);
            if !together {
                connection.handle(Event::Socket(peer, failed), 0, &rules);
                asked = actions(&mut connection, &rules);
                assert!(asked.contains(&Action::CheckFailure(peer)));
            }
            connection.handle(Event::PeerFailed(peer, Failure::Reset), 0, &rules);
            assert_eq!(actions(&mut connection, &rules), [Action::CheckDelivered(peer.other())]);
            connection.handle(Event::Delivered(true), 0, &rules);
            let close = Close { reason, reset: Some(peer.other()), reset_attempts: false, release_source: true };
            assert_eq!(actions(&mut connection, &rules), [Action::Close(close)]);
        }
    }
}

#[test]
fn a_lack_of_local_ports_is_not_the_refusal_of_a_target() {
    let rules = Rules { timeouts: &TIMEOUTS, keepalive: None, drain_until: None };
    for (event, expected) in [
        (Event::AttemptFailed(0), CloseReason::ConnectRefused),
        (Event::AttemptImpossible(0), CloseReason::RelayFailed),
    ] {
        let mut connection = Connection::new(0, false);
        let mut answers = [Event::TargetsOrdered(1), Event::AddressesKnown(1), event].into_iter();
        let mut closed = None;
        while let Some(action) = connection.poll(0, &rules) {
            match action {
                Action::Close(close) => closed = Some(close.reason),
                _ => answers.next().into_iter().for_each(|answer| connection.handle(answer, 0, &rules)),
            }
        }
        assert_eq!(closed, Some(expected));
    }
}
