//! A connection's life in the relay, from accept to close.
//!
//! [`Connection`] does no I/O. The worker passes it what happened ([`Event`]) and the time, and performs what it asks for
//! ([`Connection::poll`]) until it asks for nothing more; some actions have an answer, which is the next event. Nothing is
//! allocated. [`Action::Close`] comes exactly once and is the last action.
//!
//! ```text
//! Header ──────► Connecting ─────► Transferring ─────► Resetting
//! PROXY header   targets in turn,  both directions,    one peer is dead; the other is reset
//! of a client    happy eyeballs    half-close          once it has acknowledged its data
//!    └───────────────┴──────────────────┴───────────────────┴────► Close(reason)
//! ```
//!
//! - [`closing`]: half-close, resets and the reason a connection ended.
//! - [`happy_eyeballs`]: connecting to a target that has several addresses.
//! - `timers`: when a connection must be looked at without an event.
pub mod closing;
pub mod happy_eyeballs;
#[cfg(test)]
mod tests;
mod timers;

use std::time::Duration;

pub use closing::{CloseReason, Ended, Failure};
use closing::{Closing, Next};
use happy_eyeballs::{HappyEyeballs, Outcome, Step};

use super::config::Timeouts;
use super::direction::{Direction, Peer, PerDirection};
use super::{Ns, ns};

/// Attempts at the addresses of one target at a time.
const ATTEMPTS_AT_ONCE: u8 = 3;

/// What of the configuration a connection's life depends on.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The timeouts of its listener.
    pub timeouts: &'a Timeouts,
    /// How long a peer is idle before the kernel probes it; None if it never does.
    pub keepalive: Option<Duration>,
    /// When connections of a removed listener are closed.
    pub drain_until: Option<Ns>,
}

/// What a direction's engine holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Held {
    /// No bytes.
    #[default]
    Nothing,
    /// Bytes that the sink did not take.
    Bytes,
    /// The engine moves the direction by itself and holds what it needs for that.
    Armed,
}

/// What epoll reported of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketState {
    /// Data, an end or an error can be read.
    pub readable: bool,
    /// The socket buffer takes data.
    pub writable: bool,
    /// An end, an error or an urgent byte waits: a short read does not mean that the socket is empty.
    pub ended: bool,
    /// The socket has failed.
    pub failed: bool,
}

/// How an engine's turn with a direction went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The source has nothing more.
    SourceEmpty,
    /// The sink's socket buffer is full.
    SinkFull,
    /// There is more to do.
    Again,
    /// The direction has used up its bandwidth until this time.
    OutOfBandwidth(Ns),
    /// The source has ended and its last bytes are on their way to the sink, without an event when they arrive.
    Leaving,
    /// The direction is over.
    Ended(Ended),
}

/// What happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Part of the PROXY header is read, and no more of it has arrived.
    HeaderIncomplete,
    /// The whole PROXY header is read.
    HeaderComplete,
    /// Whether the limit of its source address admits the connection. Answers [`Action::CountSource`].
    SourceCounted(bool),
    /// Whether the client that the header names may connect; if so it is counted. Answers [`Action::Admit`].
    Admitted(Result<(), CloseReason>),
    /// This many targets can be tried. Answers [`Action::OrderTargets`].
    TargetsOrdered(usize),
    /// The target has this many addresses. Answers [`Action::UseTarget`].
    AddressesKnown(usize),
    /// The attempt at this address has failed.
    AttemptFailed(usize),
    /// An attempt has connected.
    Connected {
        /// What is to be sent to the target before anything else.
        held: Held,
        /// The engine moves directions by itself, and is given them before there are any bytes.
        arm: bool,
    },
    /// A socket has changed.
    Socket(Peer, SocketState),
    /// Bytes were delivered.
    Progress,
    /// An engine's turn with a direction is over.
    Turn(Direction, Held, Turn),
    /// Whether a peer has acknowledged all its data. Answers [`Action::CheckDelivered`].
    Delivered(bool),
    /// The timer is due.
    Timer,
    /// The rules have changed.
    RulesChanged,
    /// The connection must end, for a reason that the worker knows.
    Failed(CloseReason),
}

/// What the worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read what has arrived of the PROXY header.
    ReadHeader,
    /// Count the connection against the limit of its source address.
    CountSource,
    /// Undo that.
    ReleaseSource,
    /// Find out whether the client that the header names may connect.
    Admit,
    /// Order the targets, the best first.
    OrderTargets,
    /// Take the target at this place of the order.
    UseTarget(usize),
    /// Begin to connect to this address of the target.
    Connect(usize),
    /// The target cannot be reached: report that, and close the attempts.
    AbandonTarget(Outcome),
    /// Give the direction a turn. [`Connection::begin_turn`] says when it begins whether that is still wanted.
    Run(Direction),
    /// Send the end of data to this peer.
    ShutdownWrite(Peer),
    /// Find out whether this peer has acknowledged all its data.
    CheckDelivered(Peer),
    /// Have the kernel probe both peers once they are idle for this long.
    StartKeepalive(Duration),
    /// Pass [`Event::Timer`] at this time. It replaces the time before.
    ArmTimer(Ns),
    /// Close the sockets and forget the connection.
    Close(Close),
}

/// How a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close {
    /// Why it ended.
    pub reason: CloseReason,
    /// The peer whose socket is closed with a reset.
    pub reset: Option<Peer>,
    /// The attempts to connect are closed with a reset: a target may have accepted one already.
    pub reset_attempts: bool,
    /// The connection is counted against the limit of its source address, which ends.
    pub release_source: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Header,
    Connecting(Connecting),
    Transferring,
    Resetting(Peer, CloseReason),
    Closed(Close),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Connecting {
    targets: u32,
    /// The place of the current target in their order.
    position: u32,
    attempts: HappyEyeballs,
    /// When the next attempt begins, or the target is given up.
    due_at: Ns,
    /// The last target that was given up did not answer in time.
    timed_out: bool,
}

/// Whether a direction can move bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Readiness {
    source_ready: bool,
    source_ended: bool,
    sink_full: bool,
    /// A turn was asked for and has not begun.
    queued: bool,
    held: Held,
    /// It is looked at again at this time; 0 for none.
    paused_until: Ns,
}

impl Readiness {
    fn runnable(&self) -> bool {
        match self.held {
            Held::Armed => self.source_ready,
            Held::Bytes => !self.sink_full,
            Held::Nothing => self.source_ready && !self.sink_full,
        }
    }
}

/// Actions that were decided and not yet asked for; the lowest bit comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Pending(u16);

impl Pending {
    const READ_HEADER: u16 = 1;
    const COUNT_SOURCE: u16 = 1 << 1;
    const RELEASE_SOURCE: u16 = 1 << 2;
    const ADMIT: u16 = 1 << 3;
    const ORDER_TARGETS: u16 = 1 << 4;
    const USE_TARGET: u16 = 1 << 5;
    const CONNECT: u16 = 1 << 6;
    const SHUTDOWN_CLIENT: u16 = 1 << 7;
    const SHUTDOWN_TARGET: u16 = 1 << 8;
    const CHECK_DELIVERED: u16 = 1 << 9;
    const START_KEEPALIVE: u16 = 1 << 10;
    const RUN_TO_TARGET: u16 = 1 << 11;
    const RUN_TO_CLIENT: u16 = 1 << 12;
    const ARM_TIMER: u16 = 1 << 13;
    const CLOSE: u16 = 1 << 14;
}

/// A connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    stage: Stage,
    pending: Pending,
    closing: Closing,
    directions: PerDirection<Readiness>,
    accepted_at: Ns,
    /// When bytes were last delivered, or the stage changed.
    progress_at: Ns,
    keepalive_started: bool,
    /// It counts against the limit of its source address.
    source_counted: bool,
}

impl Connection {
    /// An accepted connection whose client sends a PROXY header first, or that was counted against the limit of its source.
    pub fn new(now: Ns, expects_header: bool) -> Self {
        let mut connection = Self {
            stage: Stage::Header,
            pending: Pending(Pending::READ_HEADER),
            closing: Closing::default(),
            directions: PerDirection::default(),
            accepted_at: now,
            progress_at: now,
            keepalive_started: false,
            source_counted: !expects_header,
        };
        if !expects_header {
            connection.connect(now);
        }
        connection
    }

    /// When it was accepted.
    pub fn accepted_at(&self) -> Ns {
        self.accepted_at
    }

    /// Whether the source has announced its end or an urgent byte: a short read does not mean that it is empty.
    pub fn source_ended(&self, direction: Direction) -> bool {
        self.directions[direction].source_ended
    }

    /// Begins a turn that was asked for. False if the direction has ended meanwhile.
    pub fn begin_turn(&mut self, direction: Direction) -> bool {
        self.directions[direction].queued = false;
        self.stage == Stage::Transferring && self.closing.is_open(direction)
    }

    /// Takes in what happened. What follows is in [`Self::poll`].
    pub fn handle(&mut self, event: Event, now: Ns, rules: &Rules<'_>) {
        if matches!(self.stage, Stage::Closed(_)) {
            return;
        }
        match event {
            Event::Socket(peer, state) => self.socket_changed(peer, state),
            Event::Progress => self.progress_at = now,
            Event::Turn(direction, held, turn) => self.turn_over(direction, held, turn, now),
            Event::Timer => self.timer_due(now, rules),
            Event::RulesChanged => self.ask(Pending::ARM_TIMER),
            Event::Failed(reason) => self.close(reason, None),
            event => match self.stage {
                Stage::Header => self.header_event(event, now),
                Stage::Connecting(connecting) => self.connecting_event(connecting, event, now, rules),
                Stage::Resetting(peer, reason) => match event {
                    Event::Delivered(true) => self.close(reason, Some(peer)),
                    Event::Delivered(false) => self.ask(Pending::ARM_TIMER),
                    _ => {}
                },
                Stage::Transferring | Stage::Closed(_) => {}
            },
        }
    }

    /// The next action; None until something else happens.
    pub fn poll(&mut self, now: Ns, rules: &Rules<'_>) -> Option<Action> {
        while self.pending.0 != 0 {
            if let Some(action) = self.next_action(now, rules) {
                return Some(action);
            }
        }
        None
    }

    fn next_action(&mut self, now: Ns, rules: &Rules<'_>) -> Option<Action> {
        let first = self.pending.0 & self.pending.0.wrapping_neg();
        self.pending.0 &= !first;
        Some(match first {
            Pending::READ_HEADER => Action::ReadHeader,
            Pending::COUNT_SOURCE => Action::CountSource,
            Pending::RELEASE_SOURCE => Action::ReleaseSource,
            Pending::ADMIT => Action::Admit,
            Pending::ORDER_TARGETS => Action::OrderTargets,
            Pending::USE_TARGET => match self.stage {
                Stage::Connecting(connecting) => Action::UseTarget(connecting.position as usize),
                _ => return None,
            },
            Pending::CONNECT => return self.next_attempt(now),
            Pending::SHUTDOWN_CLIENT => Action::ShutdownWrite(Peer::Client),
            Pending::SHUTDOWN_TARGET => Action::ShutdownWrite(Peer::Target),
            Pending::CHECK_DELIVERED => match self.stage {
                Stage::Resetting(peer, _) => Action::CheckDelivered(peer),
                _ => return None,
            },
            Pending::START_KEEPALIVE => {
                self.keepalive_started = true;
                Action::StartKeepalive(rules.keepalive?)
            }
            Pending::RUN_TO_TARGET => Action::Run(Direction::ClientToTarget),
            Pending::RUN_TO_CLIENT => Action::Run(Direction::TargetToClient),
            Pending::ARM_TIMER => Action::ArmTimer(self.next_timer(now, rules)?),
            _ => match self.stage {
                Stage::Closed(close) => Action::Close(close),
                _ => return None,
            },
        })
    }

    fn ask(&mut self, actions: u16) {
        self.pending.0 |= actions;
    }

    /// Ends the connection; what was asked for before is void.
    fn close(&mut self, reason: CloseReason, reset: Option<Peer>) {
        let connecting = matches!(self.stage, Stage::Connecting(_));
        let reset_attempts = connecting && reason == CloseReason::ClientGone;
        self.stage = Stage::Closed(Close { reason, reset, reset_attempts, release_source: self.source_counted });
        self.pending.0 = Pending::CLOSE;
    }

    fn header_event(&mut self, event: Event, now: Ns) {
        match event {
            // A connection that has its header with it is never counted against the limit of its proxy's address.
            Event::HeaderIncomplete if !self.source_counted => self.ask(Pending::COUNT_SOURCE),
            Event::SourceCounted(true) => {
                self.source_counted = true;
                self.ask(Pending::ARM_TIMER);
            }
            Event::SourceCounted(false) => self.close(CloseReason::Limited, None),
            Event::HeaderComplete => {
                if std::mem::take(&mut self.source_counted) {
                    self.ask(Pending::RELEASE_SOURCE);
                }
                self.ask(Pending::ADMIT);
            }
            Event::Admitted(Ok(())) => {
                self.source_counted = true;
                self.connect(now);
            }
            Event::Admitted(Err(reason)) => self.close(reason, None),
            _ => {}
        }
    }

    fn connect(&mut self, now: Ns) {
        let attempts = HappyEyeballs::new(0, now, 0, ATTEMPTS_AT_ONCE);
        let connecting = Connecting { targets: 0, position: 0, attempts, due_at: now, timed_out: false };
        self.stage = Stage::Connecting(connecting);
        self.progress_at = now;
        self.pending.0 = Pending::ORDER_TARGETS;
    }

    fn connecting_event(&mut self, mut connecting: Connecting, event: Event, now: Ns, rules: &Rules<'_>) {
        match event {
            Event::TargetsOrdered(targets) => {
                connecting.targets = u32::try_from(targets).unwrap_or(u32::MAX);
                return self.use_target(connecting);
            }
            Event::AddressesKnown(addresses) => {
                let timeout = ns(rules.timeouts.connect);
                connecting.attempts = HappyEyeballs::new(addresses, now, timeout, ATTEMPTS_AT_ONCE);
                self.ask(Pending::CONNECT);
            }
            Event::AttemptFailed(address) => {
                connecting.attempts.failed(address);
                self.ask(Pending::CONNECT);
            }
            Event::Connected { held, arm } => {
                for direction in Direction::ALL {
                    self.directions[direction].source_ready |= arm;
                }
                self.directions[Direction::ClientToTarget].held = held;
                self.stage = Stage::Transferring;
                self.progress_at = now;
                self.pending.0 = Pending::ARM_TIMER;
                return Direction::ALL.into_iter().for_each(|direction| self.run(direction));
            }
            _ => return,
        }
        self.stage = Stage::Connecting(connecting);
    }

    fn use_target(&mut self, connecting: Connecting) {
        if connecting.position < connecting.targets {
            self.stage = Stage::Connecting(connecting);
            self.ask(Pending::USE_TARGET);
            return;
        }
        let reason = if connecting.timed_out { CloseReason::ConnectTimeout } else { CloseReason::ConnectRefused };
        self.close(reason, Some(Peer::Client));
    }

    /// The next attempt, or what follows when there is none.
    fn next_attempt(&mut self, now: Ns) -> Option<Action> {
        let Stage::Connecting(connecting) = &mut self.stage else { return None };
        match connecting.attempts.next(now) {
            Step::Start(address) => {
                self.ask(Pending::CONNECT);
                Some(Action::Connect(address))
            }
            Step::WaitUntil(at) => {
                connecting.due_at = at;
                self.ask(Pending::ARM_TIMER);
                None
            }
            Step::GiveUp(why) => {
                connecting.timed_out = why == Outcome::TimedOut;
                connecting.position += 1;
                let connecting = *connecting;
                self.use_target(connecting);
                Some(Action::AbandonTarget(why))
            }
        }
    }

    fn socket_changed(&mut self, peer: Peer, state: SocketState) {
        let sends = Direction::from(peer);
        let receives = sends.reverse();
        let SocketState { readable, writable, ended, failed } = state;
        if readable {
            self.directions[sends].source_ready = true;
            self.directions[sends].source_ended |= ended;
        }
        if writable || failed {
            self.directions[receives].sink_full = false;
        }
        if failed && self.directions[receives].held == Held::Armed {
            // The relay writes nothing to this socket itself, so no write would find the error.
            self.directions[receives].source_ready = true;
        }
        match self.stage {
            // Nothing waits for a client that has reset its connection.
            Stage::Header | Stage::Connecting(_) if failed && peer == Peer::Client => {
                self.close(CloseReason::ClientGone, None);
            }
            Stage::Header => self.ask(Pending::READ_HEADER),
            Stage::Transferring => Direction::ALL.into_iter().for_each(|direction| self.run(direction)),
            _ => {}
        }
    }

    /// Asks for a turn of a direction that can do something.
    fn run(&mut self, direction: Direction) {
        let readiness = &mut self.directions[direction];
        if self.closing.is_open(direction) && readiness.runnable() && !readiness.queued {
            readiness.queued = true;
            self.ask(match direction {
                Direction::ClientToTarget => Pending::RUN_TO_TARGET,
                Direction::TargetToClient => Pending::RUN_TO_CLIENT,
            });
        }
    }

    fn turn_over(&mut self, direction: Direction, held: Held, turn: Turn, now: Ns) {
        let progress_at = self.progress_at;
        let readiness = &mut self.directions[direction];
        readiness.held = held;
        match turn {
            Turn::SourceEmpty => readiness.source_ready = false,
            Turn::SinkFull => readiness.sink_full = true,
            Turn::Again => {
                readiness.source_ready = true;
                if self.stage == Stage::Transferring {
                    self.run(direction);
                }
            }
            Turn::OutOfBandwidth(until) => {
                readiness.paused_until = until;
                self.ask(Pending::ARM_TIMER);
            }
            Turn::Leaving => {
                readiness.source_ready = held != Held::Armed;
                readiness.paused_until = timers::leaving(now, progress_at);
                self.ask(Pending::ARM_TIMER);
            }
            Turn::Ended(how) => self.direction_ended(direction, how, now),
        }
    }

    fn direction_ended(&mut self, direction: Direction, how: Ended, now: Ns) {
        if self.stage != Stage::Transferring {
            return;
        }
        self.progress_at = now;
        match self.closing.ended(direction, how) {
            Next::Wait => self.ask(Pending::ARM_TIMER),
            Next::HalfClose(Peer::Client) => self.ask(Pending::SHUTDOWN_CLIENT | Pending::ARM_TIMER),
            Next::HalfClose(Peer::Target) => self.ask(Pending::SHUTDOWN_TARGET | Pending::ARM_TIMER),
            Next::Close(reason) => self.close(reason, None),
            Next::Reset(peer, reason) => {
                self.stage = Stage::Resetting(peer, reason);
                self.pending.0 = Pending::CHECK_DELIVERED;
            }
        }
    }
}
