//! A connection's life in the relay, from accept to close.
//!
//! [`Connection`] does no I/O and allocates nothing. The worker passes it each [`Event`] with the time, and performs the
//! actions that [`Connection::poll`] returns until it returns none. Some actions have a result, which the worker passes as the
//! next event. [`Action::Close`] comes exactly once and is the last action.
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
//! - `timers`: when a connection's timer is due, and what follows.
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

/// The most attempts to connect to one target that run at a time.
const ATTEMPTS_AT_ONCE: u8 = 3;

/// The part of the configuration that a connection depends on.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The timeouts of its listener.
    pub timeouts: &'a Timeouts,
    /// How long a peer is idle before the kernel sends it a keepalive probe; None for no probes.
    pub keepalive: Option<Duration>,
    /// When the connection is closed because the relay stops or its listener was removed.
    pub drain_until: Option<Ns>,
}

/// The bytes that an engine has read from a direction's source and not yet written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Held {
    /// No bytes.
    #[default]
    Nothing,
    /// Bytes that the sink did not accept.
    Bytes,
}

/// The state of a socket that epoll reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketState {
    /// Data, an end or an error can be read.
    pub readable: bool,
    /// The send buffer has space.
    pub writable: bool,
    /// An end, an error or an urgent byte is pending: a short read does not mean that the socket is empty.
    pub ended: bool,
    /// The socket has failed.
    pub failed: bool,
}

/// The result of an engine's turn with a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The source has nothing more to read.
    SourceEmpty,
    /// The sink's send buffer is full.
    SinkFull,
    /// The engine stopped before it was done: the direction gets another turn.
    Again,
    /// The direction has used up its bandwidth until this time.
    OutOfBandwidth(Ns),
    /// The direction has ended.
    Ended(Ended),
}

/// An event of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Part of the PROXY header was read, and no more of it has arrived.
    HeaderIncomplete,
    /// The whole PROXY header was read.
    HeaderComplete,
    /// Whether the limit of its source address admits the connection: the result of [`Action::CountSource`].
    SourceCounted(bool),
    /// Whether the client that the header names may connect, which is then counted: the result of [`Action::Admit`].
    Admitted(Result<(), CloseReason>),
    /// The number of targets that can be tried: the result of [`Action::OrderTargets`].
    TargetsOrdered(usize),
    /// The number of the target's addresses: the result of [`Action::UseTarget`].
    AddressesKnown(usize),
    /// The attempt at this address has failed.
    AttemptFailed(usize),
    /// The attempt at this address has failed for want of a local port, address or memory, which is not the target's fault.
    AttemptImpossible(usize),
    /// An attempt has connected. Bytes may be held that the target gets before anything else, such as a PROXY header.
    Connected(Held),
    /// epoll has reported a socket.
    Socket(Peer, SocketState),
    /// Bytes were delivered.
    Progress,
    /// An engine's turn with a direction is over.
    Turn(Direction, Held, Turn),
    /// Whether a peer has acknowledged all its data: the result of [`Action::CheckDelivered`].
    Delivered(bool),
    /// The error of this peer's socket: the result of [`Action::CheckFailure`].
    PeerFailed(Peer, Failure),
    /// The timer is due.
    Timer,
    /// The [`Rules`] have changed.
    RulesChanged,
    /// The connection must end, for this reason.
    Failed(CloseReason),
}

/// An action that the worker performs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read what has arrived of the PROXY header.
    ReadHeader,
    /// Count the connection against the limit of its source address.
    CountSource,
    /// Uncount it from the limit of its source address.
    ReleaseSource,
    /// Check whether the client that the header names may connect.
    Admit,
    /// Order the targets, the first to try first.
    OrderTargets,
    /// Try the target at this index of that order.
    UseTarget(usize),
    /// Begin to connect to this address of the target.
    Connect(usize),
    /// The target cannot be reached: report that, and close the sockets of the attempts.
    AbandonTarget(Outcome),
    /// Queue the direction for a turn. When it begins, [`Connection::begin_turn`] returns whether it is still needed.
    Run(Direction),
    /// Send the end of data to this peer.
    ShutdownWrite(Peer),
    /// Check whether this peer has acknowledged all its data.
    CheckDelivered(Peer),
    /// Ask the socket of this peer, which has sent its end of data, for an error: no direction reads it any more.
    CheckFailure(Peer),
    /// Set up keepalive: the kernel probes both peers once they are idle for this long.
    StartKeepalive(Duration),
    /// Pass [`Event::Timer`] at this time, instead of the time asked for before.
    ArmTimer(Ns),
    /// Close the sockets and free the connection.
    Close(Close),
}

/// How a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close {
    /// Why it ended.
    pub reason: CloseReason,
    /// The peer whose socket is closed with a reset.
    pub reset: Option<Peer>,
    /// The attempts to connect are closed with a reset, because a target may have accepted one already.
    pub reset_attempts: bool,
    /// The connection is counted against the limit of its source address and must be uncounted.
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
    /// The index of the current target in their order.
    position: u32,
    attempts: HappyEyeballs,
    /// When the next attempt begins, or the target is abandoned.
    due_at: Ns,
    /// The last abandoned target did not answer in time.
    timed_out: bool,
    /// The last attempt failed on this host.
    impossible: bool,
}

/// Whether a direction can move bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Readiness {
    source_ready: bool,
    source_ended: bool,
    /// epoll has reported a failure of the source's socket.
    source_failed: bool,
    sink_full: bool,
    /// A turn was asked for and has not begun.
    queued: bool,
    held: Held,
    /// It gets no turn before this time; 0 if it is not paused.
    paused_until: Ns,
}

impl Readiness {
    fn runnable(&self) -> bool {
        match self.held {
            Held::Bytes => !self.sink_full,
            Held::Nothing => self.source_ready && !self.sink_full,
        }
    }
}

/// Actions that [`Connection::poll`] returns next, the lowest bit first.
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
    const CHECK_FAILURE: u16 = 1 << 13;
    const ARM_TIMER: u16 = 1 << 14;
    const CLOSE: u16 = 1 << 15;
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
    /// A connection that was accepted. With `expects_header` its client sends a PROXY header first; otherwise it was already
    /// counted against the limit of its source address.
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

    /// Whether an end or an urgent byte of the source is pending: a short read does not mean that it is empty.
    pub fn source_ended(&self, direction: Direction) -> bool {
        self.directions[direction].source_ended
    }

    /// Begins a turn of [`Action::Run`]. False if the direction has ended since.
    pub fn begin_turn(&mut self, direction: Direction) -> bool {
        self.directions[direction].queued = false;
        self.stage == Stage::Transferring && self.closing.is_open(direction)
    }

    /// Updates the state with an event. [`Self::poll`] returns the actions that follow.
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
            Event::PeerFailed(peer, failure) => {
                // Bytes that it would have been sent are lost.
                self.direction_ended(Direction::from(peer).reverse(), Ended::SinkFailed(failure), now);
            }
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

    /// The next action; None if there is none before the next event.
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
            Pending::CHECK_FAILURE => {
                let ended = |direction: &Direction| !self.closing.is_open(*direction);
                Action::CheckFailure(Direction::ALL.into_iter().find(ended)?.source())
            }
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

    /// Ends the connection and drops the pending actions.
    fn close(&mut self, reason: CloseReason, reset: Option<Peer>) {
        let connecting = matches!(self.stage, Stage::Connecting(_));
        let reset_attempts = connecting && reason == CloseReason::ClientGone;
        self.stage = Stage::Closed(Close { reason, reset, reset_attempts, release_source: self.source_counted });
        self.pending.0 = Pending::CLOSE;
    }

    fn header_event(&mut self, event: Event, now: Ns) {
        match event {
            // A connection whose header arrives with it is never counted against the limit of its proxy's address.
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
        let connecting =
            Connecting { targets: 0, position: 0, attempts, due_at: now, timed_out: false, impossible: false };
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
            Event::AttemptFailed(address) | Event::AttemptImpossible(address) => {
                connecting.impossible = matches!(event, Event::AttemptImpossible(_));
                connecting.attempts.failed(address);
                self.ask(Pending::CONNECT);
            }
            Event::Connected(held) => {
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
        let reason = match connecting {
            Connecting { timed_out: true, .. } => CloseReason::ConnectTimeout,
            Connecting { impossible: true, .. } => CloseReason::RelayFailed,
            _ => CloseReason::ConnectRefused,
        };
        self.close(reason, Some(Peer::Client));
    }

    /// Begins the next attempt; if there is none, arms the timer or abandons the target.
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
            self.directions[sends].source_failed |= failed;
        }
        if writable || failed {
            self.directions[receives].sink_full = false;
        }
        match self.stage {
            // The client has reset the connection: no target is needed.
            Stage::Header | Stage::Connecting(_) if failed && peer == Peer::Client => {
                self.close(CloseReason::ClientGone, None);
            }
            Stage::Header => self.ask(Pending::READ_HEADER),
            Stage::Transferring => {
                Direction::ALL.into_iter().for_each(|direction| self.run(direction));
                self.check_half_closed();
            }
            _ => {}
        }
    }

    /// A peer that has sent its end of data may still reset the connection. No direction reads its socket any more, and nothing may be
    /// sent to it for long, so that the other peer would not learn of it.
    fn check_half_closed(&mut self) {
        let failed =
            |direction: Direction| !self.closing.is_open(direction) && self.directions[direction].source_failed;
        if self.closing.is_half_closed() && Direction::ALL.into_iter().any(failed) {
            self.ask(Pending::CHECK_FAILURE);
        }
    }

    /// Asks for a turn of a direction if it can move bytes.
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
            Next::HalfClose(peer) => {
                let shutdown = if peer == Peer::Client { Pending::SHUTDOWN_CLIENT } else { Pending::SHUTDOWN_TARGET };
                self.ask(shutdown | Pending::ARM_TIMER);
                self.check_half_closed();
            }
            Next::Close(reason) => self.close(reason, None),
            Next::Reset(peer, reason) => {
                self.stage = Stage::Resetting(peer, reason);
                self.pending.0 = Pending::CHECK_DELIVERED;
            }
        }
    }
}
