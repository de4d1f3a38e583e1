//! io_uring: one multishot receive per direction, sends in batches, one system call for many of both.
//!
//! A direction is armed once and then reported in [`Engine::completed`], in which the worker also waits: the ring polls the
//! worker's epoll, so that a busy turn needs no extra call.
//!
//! - A receive takes provided buffers only when bytes arrive, so an idle connection holds none.
//! - Sends do not wait (MSG_DONTWAIT): they complete at submission. So provided buffers are held within one turn only, and a
//!   full sink cannot starve other connections.
//! - Bytes that a full sink does not take are copied to the heap and sent by a request that waits until the sink is writable.
//!   Until then the receive is cancelled, so that the source's receive buffer fills and its peer has to wait.
//! - Buffers come in groups and a direction uses one group, which bounds what it can receive in one turn.
//!
//! Receives use bundles of buffers. For sends, bundles would need a buffer list per direction; one sendmsg does the same.
mod core;
mod transfer;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use parshall_sys::stream_socket::peer_ip;
use parshall_sys::uring::Request;

use self::core::Core;
use super::{Done, Engine, Job, Outcome, Store};
use crate::stats::{EngineKind, Fallback};

/// A connection that the ring has accepted, or the error instead.
#[derive(Debug)]
pub struct Accepted {
    /// The listener's index in the worker.
    pub listener: u32,
    /// The request, which has ended.
    pub request: Request,
    /// The client and its address, which is None when it is not an IP address.
    pub client: io::Result<(OwnedFd, Option<SocketAddr>)>,
}

#[derive(Debug, Default)]
pub struct UringEngine {
    state: State,
}

/// A ring is bound to the thread that opens it (IORING_SETUP_SINGLE_ISSUER), so it is opened by the worker when the first
/// listener or direction needs it.
#[derive(Debug, Default)]
enum State {
    #[default]
    Untried,
    Open(Box<Core>),
    Refused(Fallback),
}

impl UringEngine {
    /// Opens the ring, or returns the reason why directions are copied instead.
    pub fn open(&mut self) -> Result<(), Fallback> {
        if let State::Untried = self.state {
            self.state = match Core::open() {
                Ok(core) => State::Open(Box::new(core)),
                Err(error) => State::Refused(Fallback::of(&error)),
            };
        }
        match self.state {
            State::Refused(why) => Err(why),
            _ => Ok(()),
        }
    }

    /// Whether the ring is open: then the worker waits in it.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    fn core(&mut self) -> Option<&mut Core> {
        match &mut self.state {
            State::Open(core) => Some(core),
            _ => None,
        }
    }

    /// Polls a descriptor: a wait ends when it becomes readable.
    pub fn watch(&mut self, fd: RawFd) {
        if let Some(core) = self.core() {
            core.watch(fd);
        }
    }

    /// Whether the descriptor became readable since the last call.
    pub fn watched_is_readable(&mut self) -> bool {
        self.core().is_some_and(Core::take_readable)
    }

    /// Begins to accept one client; None without a ring.
    pub fn accept(&mut self, socket: RawFd, listener: u32) -> Option<Request> {
        self.core().map(|core| core.accept(socket, listener))
    }

    /// Cancels an accept. The listener may be closed when this returns.
    pub fn stop_accepting(&mut self, accept: Request) {
        if let Some(core) = self.core() {
            core.stop_accepting(accept);
        }
    }

    /// Appends the accepted connections.
    pub fn accepted(&mut self, out: &mut Vec<Accepted>) {
        if let Some(core) = self.core() {
            for core::Accept { listener, request, client } in core.take_accepted() {
                let client = client.map(|c| {
                    let peer = peer_ip(&c);
                    (c, peer)
                });
                out.push(Accepted { listener, request, client });
            }
        }
    }
}

impl Engine for UringEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Uring
    }

    fn pump(&mut self, jobs: &mut [Job]) {
        let opened = self.open();
        for job in jobs {
            job.outcome = match (&opened, self.core()) {
                (Ok(()), Some(core)) => {
                    // An armed direction is reported by its completions.
                    if job.store.is_empty() {
                        let Some(id) = core.arm(job.id, job.source, job.sink) else {
                            job.outcome = Outcome::Refused(Fallback::Other);
                            continue;
                        };
                        job.store = Store::Armed(id);
                    }
                    Outcome::Armed
                }
                (Err(why), _) => Outcome::Refused(*why),
                (Ok(()), None) => Outcome::Refused(Fallback::Other),
            };
        }
    }

    fn discard(&mut self, store: Store) {
        if let (Store::Armed(id), Some(core)) = (store, self.core()) {
            core.abandon(id);
        }
    }

    fn completed(&mut self, wait: Option<Duration>, out: &mut Vec<Done>) -> io::Result<()> {
        match self.core() {
            Some(core) => core.turn(wait, out),
            None => Ok(()),
        }
    }

    #[cfg(test)]
    fn in_use(&mut self) -> usize {
        self.core().map_or(0, Core::in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::TURN_BYTES;

    #[test]
    fn without_a_ring_directions_are_refused_with_the_reason_and_nothing_is_read() {
        let error = |code| Fallback::of(&io::Error::from_raw_os_error(code));
        assert_eq!(
            [error(libc::EPERM), error(libc::ENOSYS), error(libc::EINVAL), error(libc::EMFILE), error(libc::ENOMEM)],
            [
                Fallback::NotPermitted,
                Fallback::Unsupported,
                Fallback::Unsupported,
                Fallback::NoDescriptors,
                Fallback::Other
            ]
        );
        let mut engine = UringEngine { state: State::Refused(Fallback::NotPermitted) };
        let mut job = Job {
            id: 0,
            source: -1,
            sink: -1,
            allowance: TURN_BYTES,
            granted: TURN_BYTES,
            ceiling: 4096,
            source_ended: false,
            adaptive: false,
            store: Store::Empty,
            rhythm: Default::default(),
            moved: 0,
            outcome: Outcome::Again,
        };
        engine.pump(std::slice::from_mut(&mut job));
        assert_eq!(job.outcome, Outcome::Refused(Fallback::NotPermitted));
        assert!(job.store.is_empty() && !engine.is_open());
        assert!(engine.accept(-1, 0).is_none(), "the listener stays with epoll");
    }
}
