//! sockmap: the kernel redirects what one TCP socket receives to the other, and this process sees none of it. Opt-in: it
//! was not the fastest engine wherever it was measured, and it has no back-pressure of its own.
//!
//! - **One direction of a connection.** The kernel keeps what passes to a socket and what is redirected to it in one queue.
//!   With both directions in it, one that stands would hold up the other one, and what waits there is counted against no
//!   window (measured: 128 MiB taken for two ends of which neither read).
//! - **Start.** A program sees what arrives after it was attached. So the direction is copied until its source is empty,
//!   then joined, and then the kernel is made to announce what arrived in between as if it had arrived just now.
//! - **A slow sink.** The program stops redirecting when too much is on its redirection; the direction is copied from then on,
//!   after what is on its redirection has been written.
//! - **The end.** The end of data is not redirected, nor is a reset: events of the source tell of them, and they are passed
//!   on when the sink has been written as many bytes as were redirected.
//!
//! What it has moved is known when it is asked: on events of the sockets and at deadlines.
use std::collections::HashMap;
use std::os::fd::RawFd;

use parshall_bpf::relay::{Redirect, Redirected};
use parshall_core::relay::connection::{Ended, Failure};
use parshall_core::relay::slots::{SlotId, Slots};
use parshall_core::sock_diag::tcp_info::Progress;
use parshall_host::tcp_diag::progress;
use parshall_sys::stream_io::{take_error, unread};
use parshall_sys::tcp_progress::{announce_unread, at_urgent_mark, cookie};

use super::copy::CopyEngine;
use super::{Engine, Job, Outcome, Store, failure};
use crate::stats::{EngineKind, Fallback};

/// Bytes on their redirection from which on a sink is too slow: what the kernel holds for a direction beside socket buffers.
const ON_THE_WAY_MAX: u32 = 4 << 20;

/// Redirects in the kernel.
#[derive(Debug)]
pub struct SockmapEngine {
    copy: CopyEngine,
    state: State,
    redirections: Slots<Redirection>,
    /// The sinks of the directions that the kernel moves, by source.
    moved: HashMap<RawFd, RawFd>,
    /// Directions that the program lets pass and others copy, by source.
    passing: HashMap<RawFd, Passing>,
}

/// A direction whose sink was too slow. The kernel puts what passes into the source's queue a moment later, from a work
/// queue, and reports the end of data without regard to what is still on its redirection there.
#[derive(Debug, Clone, Copy)]
struct Passing {
    cookie: u64,
    /// Bytes that the direction had delivered when copying began.
    before: u64,
}

#[derive(Debug)]
enum State {
    Untried,
    Loaded(Box<Redirect>),
    Refused(Fallback),
}

/// A direction that the kernel moves.
#[derive(Debug)]
struct Redirection {
    cookie: u64,
    source: RawFd,
    sink: RawFd,
    /// Bytes written to the sink before the first redirected one.
    before: u64,
    /// Redirected bytes that were reported as delivered.
    reported: u64,
}

impl SockmapEngine {
    /// An engine that copies with buffers of at most `ceiling` bytes before it redirects.
    pub fn new(ceiling: usize) -> Self {
        Self {
            copy: CopyEngine::new(ceiling),
            state: State::Untried,
            redirections: Slots::default(),
            moved: HashMap::new(),
            passing: HashMap::new(),
        }
    }

    /// Copies with larger buffers from now on.
    pub fn grow(&mut self, ceiling: usize) {
        self.copy = CopyEngine::new(ceiling);
    }

    /// Loads what redirects, unless that was tried before: best before connections have taken the descriptors.
    pub fn prepare(&mut self) {
        // Why it cannot is said of each direction that then is copied.
        let _refused = self.redirect().err();
    }

    fn redirect(&mut self) -> Result<&Redirect, Fallback> {
        if let State::Untried = self.state {
            self.state = match Redirect::load(ON_THE_WAY_MAX) {
                Ok(redirect) => State::Loaded(Box::new(redirect)),
                Err(error) => State::Refused(Fallback::of(&error)),
            };
        }
        match &self.state {
            State::Loaded(redirect) => Ok(redirect),
            State::Refused(why) => Err(*why),
            State::Untried => Err(Fallback::Other),
        }
    }

    /// Copies until the source is empty, then hands it to the kernel.
    fn begin(&mut self, job: &mut Job) -> Outcome {
        if let Err(why) = self.redirect() {
            return Outcome::Refused(why);
        }
        if self.passing.contains_key(&job.sink) || self.moved.get(&job.sink) == Some(&job.source) {
            return Outcome::Refused(Fallback::OtherDirection);
        }
        // The kernel redirects between Unix sockets too, but has nothing to say of how far they are.
        if let Err(error) = progress(job.source).and_then(|_| progress(job.sink)) {
            return Outcome::Refused(Fallback::of(&error));
        }
        self.copy.pump(std::slice::from_mut(job));
        if job.outcome != Outcome::SourceEmpty || !job.store.is_empty() {
            return job.outcome;
        }
        match self.join(job) {
            Ok(id) => {
                job.store = Store::Armed(id);
                Outcome::Armed
            }
            Err(why) => Outcome::Refused(why),
        }
    }

    fn join(&mut self, job: &Job) -> Result<SlotId, Fallback> {
        let (source, sink) = (job.source, job.sink);
        let cookie = cookie(source).map_err(|e| Fallback::of(&e))?;
        let before = progress(sink).map_err(|e| Fallback::of(&e))?.written;
        // An urgent byte waits in a segment that was read up to it, and the program would be given all of that again.
        if at_urgent_mark(source).map_err(|e| Fallback::of(&e))? {
            return Err(Fallback::BytesQueued);
        }
        self.redirect()?.join(cookie, source, sink).map_err(|e| Fallback::of(&e))?;
        // It cannot fail for a TCP socket, and this is one by now.
        let _announced = announce_unread(source);
        let redirection = Redirection { cookie, source, sink, before, reported: 0 };
        let id = self.redirections.insert(redirection).ok_or(Fallback::Other)?;
        self.moved.insert(source, sink);
        Ok(id)
    }

    /// What has become of a direction.
    fn look(&mut self, id: SlotId, job: &mut Job) -> Outcome {
        let Some(redirection) = self.redirections.get_mut(id) else { return Outcome::Armed };
        let (source, sink, before, cookie, reported) =
            (redirection.source, redirection.sink, redirection.before, redirection.cookie, redirection.reported);
        // In this order: what the source has received when its end is seen is redirected when the program is asked.
        let (Ok(from), waiting) = (progress(source), unread(source).unwrap_or(0)) else {
            return Outcome::Ended(Ended::SourceFailed(Failure::Reset));
        };
        let direction = self.redirect().ok().and_then(|r| r.look(cookie));
        let to = progress(sink);
        let (Some(direction), Ok(to)) = (direction, to) else {
            return Outcome::Ended(Ended::SinkFailed(Failure::Reset));
        };
        // A dead socket counts no more, and what it counted may never have left; then nothing is certain but what was reported.
        let delivered = if to.closed { reported } else { to.written.saturating_sub(before).min(direction.redirected) };
        if let Some(redirection) = self.redirections.get_mut(id) {
            job.moved += delivered.saturating_sub(redirection.reported);
            redirection.reported = redirection.reported.max(delivered);
        }
        Self::judge((source, from, waiting), (sink, to), &direction, delivered)
    }

    fn judge(
        (source, from, waiting): (RawFd, Progress, usize),
        (sink, to): (RawFd, Progress),
        direction: &Redirected,
        delivered: u64,
    ) -> Outcome {
        if delivered < direction.redirected {
            if to.closed {
                return Outcome::Ended(Ended::SinkFailed(what_killed(sink).unwrap_or(Failure::Reset)));
            }
            return if from.peer_ended || direction.passing != 0 { Outcome::Leaving } else { Outcome::Armed };
        }
        if direction.passing != 0 {
            return Outcome::Refused(Fallback::SlowSink);
        }
        if !from.peer_ended {
            return Outcome::Armed;
        }
        if let (true, Some(failure)) = (from.closed, what_killed(source)) {
            return Outcome::Ended(Ended::SourceFailed(failure));
        }
        if waiting > 0 {
            let _announced = announce_unread(source);
            return Outcome::Leaving;
        }
        Outcome::Ended(Ended::Eof)
    }

    /// Forgets a direction, or what it has to do with this engine when the program lets it pass.
    fn release(&mut self, id: SlotId, passes: bool) {
        let Some(Redirection { cookie, source, .. }) = self.redirections.remove(id) else { return };
        self.moved.remove(&source);
        match &self.state {
            _ if passes => drop(self.passing.insert(source, Passing { cookie, before: 0 })),
            State::Loaded(redirect) => redirect.part(cookie),
            _ => {}
        }
    }
}

/// What killed a socket; None if it ended in good order.
fn what_killed(fd: RawFd) -> Option<Failure> {
    match take_error(fd) {
        // Not of the source's making: it had sent its end before it was reset.
        Err(error) if error.raw_os_error() == Some(libc::EPIPE) => None,
        Err(error) => Some(failure(&error)),
        Ok(()) => None,
    }
}

impl Engine for SockmapEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Sockmap
    }

    fn pump(&mut self, jobs: &mut [Job]) {
        for job in jobs {
            job.outcome = match job.store {
                Store::Armed(id) => {
                    let outcome = self.look(id, job);
                    if !matches!(outcome, Outcome::Armed | Outcome::Leaving) {
                        self.release(id, outcome == Outcome::Refused(Fallback::SlowSink));
                        job.store = Store::Empty;
                    }
                    outcome
                }
                _ => self.begin(job),
            };
        }
    }

    fn discard(&mut self, store: Store) {
        match store {
            Store::Armed(id) => self.release(id, false),
            other => self.copy.discard(other),
        }
    }

    fn unreported(&mut self, store: &Store) -> u64 {
        let Store::Armed(id) = store else { return 0 };
        let Some((sink, before, cookie, reported)) =
            self.redirections.get(*id).map(|w| (w.sink, w.before, w.cookie, w.reported))
        else {
            return 0;
        };
        let redirected = self.redirect().ok().and_then(|r| r.look(cookie)).map_or(0, |d| d.redirected);
        let written = progress(sink).map_or(0, |p| p.written.saturating_sub(before));
        written.min(redirected).saturating_sub(reported)
    }

    fn copied_from(&mut self, source: RawFd, delivered: u64) {
        if let Some(passing) = self.passing.get_mut(&source) {
            passing.before = delivered;
        }
    }

    fn has_more(&mut self, source: RawFd, delivered: u64) -> bool {
        let Some(Passing { cookie, before }) = self.passing.get(&source).copied() else { return false };
        let passed = self.redirect().ok().and_then(|r| r.look(cookie)).map_or(0, |d| d.passed);
        delivered.saturating_sub(before) < passed
    }

    fn forget(&mut self, socket: RawFd) {
        if let (Some(passing), State::Loaded(redirect)) = (self.passing.remove(&socket), &self.state) {
            redirect.part(passing.cookie);
        }
    }

    #[cfg(test)]
    fn in_use(&mut self) -> usize {
        let known = self.redirect().map_or(0, Redirect::known);
        known + self.passing.len() + self.moved.len() + self.redirections.len()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::*;
    use parshall_testkit::skip;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let a = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
        (a, listener.accept().expect("a connection").0)
    }

    #[test]
    fn bytes_that_arrive_between_the_last_copy_and_the_program_are_redirected_first() {
        let mut engine = SockmapEngine::new(4096);
        if let Err(e) = engine.redirect() {
            return skip("bytes that arrive while a pair joins the sockmap", &format!("{e:?}"));
        }
        for _ in 0..50 {
            let ((mut client, source), (mut server, sink)) = (pair(), pair());
            client.write_all(b"between ").expect("room");
            while unread(source.as_raw_fd()).expect("a socket") < 8 {
                std::thread::yield_now();
            }
            let cookie = cookie(source.as_raw_fd()).expect("a socket");
            engine.redirect().expect("loaded").join(cookie, source.as_raw_fd(), sink.as_raw_fd()).expect("joined");
            announce_unread(source.as_raw_fd()).expect("TCP");
            client.write_all(b"and after").expect("room");
            let mut got = [0; 17];
            server.read_exact(&mut got).expect("all of it");
            assert_eq!(&got, b"between and after");
            let seen = engine.redirect().expect("loaded").look(cookie).expect("known");
            assert_eq!((seen.redirected, seen.passed), (17, 0));
        }
    }

    /// The kernel takes a piece without bytes for a broken pipe, and says so at the socket in whose queue it was.
    #[test]
    fn the_end_of_data_breaks_no_pipe() {
        let mut engine = SockmapEngine::new(4096);
        let redirect = match engine.redirect() {
            Ok(redirect) => redirect,
            Err(e) => return skip("the end of data in a sockmap", &format!("{e:?}")),
        };
        let ((mut client, source), (mut server, sink)) = (pair(), pair());
        let cookie = cookie(source.as_raw_fd()).expect("a socket");
        redirect.join(cookie, source.as_raw_fd(), sink.as_raw_fd()).expect("joined");
        client.write_all(b"all").expect("room");
        client.shutdown(Shutdown::Write).expect("a connection");
        let mut got = [0; 3];
        server.read_exact(&mut got).expect("all of it");
        while !progress(source.as_raw_fd()).expect("TCP").peer_ended {
            std::thread::yield_now();
        }
        // It would be said by a work queue, soon.
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(1));
            take_error(sink.as_raw_fd()).expect("no error at the sink");
            take_error(source.as_raw_fd()).expect("no error at the source");
        }
    }
}
