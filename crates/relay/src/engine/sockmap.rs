//! sockmap: the kernel redirects the bytes that one TCP socket receives to the other. Opt-in: it was not the fastest engine
//! in any measurement, and it has no back-pressure of its own.
//!
//! - **One direction of a connection.** The kernel has one queue for the bytes that pass to a socket and those redirected to
//!   it. With both directions redirected, a blocked one would block the other, and queued bytes count against no window
//!   (measured: 128 MiB queued between two peers that did not read).
//! - **Start.** The program sees bytes that arrive after it was attached. So the direction is copied until its source is
//!   empty, then redirected, and then the kernel is made to announce bytes that arrived in between.
//! - **A slow sink.** The program stops redirecting when too many bytes are in flight. Once those are written, the direction
//!   is copied.
//! - **The end.** FIN and RST are not redirected. Epoll reports them at the source, and they are passed on once as many bytes
//!   were written to the sink as were redirected.
//!
//! Progress is read from the kernel on events of the sockets and at deadlines.
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

/// Redirected bytes not yet written to the sink from which on it is too slow. The kernel holds them beside socket buffers.
const IN_FLIGHT_MAX: u32 = 4 << 20;

#[derive(Debug)]
pub struct SockmapEngine {
    copy: CopyEngine,
    state: State,
    redirections: Slots<Redirection>,
    /// The sinks of redirected directions, by source.
    moved: HashMap<RawFd, RawFd>,
    /// Directions that are copied after redirection, by source: the program lets their bytes pass.
    passing: HashMap<RawFd, Passing>,
}

/// A direction whose sink was too slow. The kernel puts bytes that pass into the source's queue later, from a workqueue, and
/// may report the end of data before them.
#[derive(Debug, Clone, Copy)]
struct Passing {
    cookie: u64,
    /// Bytes that were delivered when copying began.
    before: u64,
}

#[derive(Debug)]
enum State {
    Untried,
    Loaded(Box<Redirect>),
    Refused(Fallback),
}

/// A redirected direction.
#[derive(Debug)]
struct Redirection {
    cookie: u64,
    source: RawFd,
    sink: RawFd,
    /// Bytes written to the sink before redirection began.
    before: u64,
    /// Redirected bytes that were reported as delivered.
    reported: u64,
}

impl SockmapEngine {
    /// Copies use buffers of at most `ceiling` bytes.
    pub fn new(ceiling: usize) -> Self {
        Self {
            copy: CopyEngine::new(ceiling),
            state: State::Untried,
            redirections: Slots::default(),
            moved: HashMap::new(),
            passing: HashMap::new(),
        }
    }

    /// Uses larger copy buffers from now on.
    pub fn grow(&mut self, ceiling: usize) {
        self.copy = CopyEngine::new(ceiling);
    }

    /// Loads the BPF program, unless that was tried before. It needs descriptors, so it is called before connections open.
    pub fn prepare(&mut self) {
        // If it fails, each direction that is copied instead counts the reason.
        let _refused = self.redirect().err();
    }

    fn redirect(&mut self) -> Result<&Redirect, Fallback> {
        if let State::Untried = self.state {
            self.state = match Redirect::load(IN_FLIGHT_MAX) {
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

    /// Copies until the source is empty, then redirects.
    fn begin(&mut self, job: &mut Job) -> Outcome {
        if let Err(why) = self.redirect() {
            return Outcome::Refused(why);
        }
        if self.passing.contains_key(&job.sink) || self.moved.get(&job.sink) == Some(&job.source) {
            return Outcome::Refused(Fallback::OtherDirection);
        }
        // The kernel redirects between Unix sockets too, but reports no progress of them.
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
        // A segment was read up to an urgent byte in it: the program would get the whole segment again.
        if at_urgent_mark(source).map_err(|e| Fallback::of(&e))? {
            return Err(Fallback::BytesQueued);
        }
        self.redirect()?.redirect(cookie, source, sink).map_err(|e| Fallback::of(&e))?;
        // This cannot fail for a TCP socket, which it is here.
        let _announced = announce_unread(source);
        let redirection = Redirection { cookie, source, sink, before, reported: 0 };
        let id = self.redirections.insert(redirection).ok_or(Fallback::Other)?;
        self.moved.insert(source, sink);
        Ok(id)
    }

    /// The state of a redirected direction.
    fn observe(&mut self, id: SlotId, job: &mut Job) -> Outcome {
        let Some(redirection) = self.redirections.get_mut(id) else { return Outcome::Armed };
        let (source, sink, before, cookie, reported) =
            (redirection.source, redirection.sink, redirection.before, redirection.cookie, redirection.reported);
        // The end of the source is read before the program's counters, so that these include all bytes before the end.
        let (Ok(from), waiting) = (progress(source), unread(source).unwrap_or(0)) else {
            return Outcome::Ended(Ended::SourceFailed(Failure::Reset));
        };
        let direction = self.redirect().ok().and_then(|r| r.counters(cookie));
        let to = progress(sink);
        let (Some(direction), Ok(to)) = (direction, to) else {
            return Outcome::Ended(Ended::SinkFailed(Failure::Reset));
        };
        // The counters of a closed socket stand still, and bytes that it counted may not have left: only what was reported
        // is certain.
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

    /// Removes a direction; one that is copied after redirection keeps its entry in `passing`.
    fn release(&mut self, id: SlotId, passes: bool) {
        let Some(Redirection { cookie, source, .. }) = self.redirections.remove(id) else { return };
        self.moved.remove(&source);
        match &self.state {
            _ if passes => drop(self.passing.insert(source, Passing { cookie, before: 0 })),
            State::Loaded(redirect) => redirect.forget(cookie),
            _ => {}
        }
    }
}

/// The error of a socket; None if it was closed without one.
fn what_killed(fd: RawFd) -> Option<Failure> {
    match take_error(fd) {
        // The source had sent its FIN before it was reset.
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
                    let outcome = self.observe(id, job);
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
        let redirected = self.redirect().ok().and_then(|r| r.counters(cookie)).map_or(0, |d| d.redirected);
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
        let passed = self.redirect().ok().and_then(|r| r.counters(cookie)).map_or(0, |d| d.passed);
        delivered.saturating_sub(before) < passed
    }

    fn forget(&mut self, socket: RawFd) {
        if let (Some(passing), State::Loaded(redirect)) = (self.passing.remove(&socket), &self.state) {
            redirect.forget(passing.cookie);
        }
    }

    #[cfg(test)]
    fn in_use(&mut self) -> usize {
        let directions = self.redirect().map_or(0, Redirect::directions);
        directions + self.passing.len() + self.moved.len() + self.redirections.len()
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
    fn bytes_that_arrive_between_the_last_copy_and_the_attachment_are_redirected_first() {
        let mut engine = SockmapEngine::new(4096);
        if let Err(e) = engine.redirect() {
            return skip("bytes that arrive while a pair joins the sockmap", &format!("{e:?}"));
        }
        for _ in 0..50 {
            let ((mut client, source), (mut server, sink)) = (pair(), pair());
            client.write_all(b"between ").expect("sent");
            while unread(source.as_raw_fd()).expect("a socket") < 8 {
                std::thread::yield_now();
            }
            let cookie = cookie(source.as_raw_fd()).expect("a socket");
            engine.redirect().expect("loaded").redirect(cookie, source.as_raw_fd(), sink.as_raw_fd()).expect("joined");
            announce_unread(source.as_raw_fd()).expect("TCP");
            client.write_all(b"and after").expect("sent");
            let mut got = [0; 17];
            server.read_exact(&mut got).expect("all of it");
            assert_eq!(&got, b"between and after");
            let seen = engine.redirect().expect("loaded").counters(cookie).expect("known");
            assert_eq!((seen.redirected, seen.passed), (17, 0));
        }
    }

    /// The kernel takes a buffer without bytes for a broken pipe, and sets that error at the socket in whose queue it was.
    #[test]
    fn the_end_of_data_causes_no_epipe() {
        let mut engine = SockmapEngine::new(4096);
        let redirect = match engine.redirect() {
            Ok(redirect) => redirect,
            Err(e) => return skip("the end of data in a sockmap", &format!("{e:?}")),
        };
        let ((mut client, source), (mut server, sink)) = (pair(), pair());
        let cookie = cookie(source.as_raw_fd()).expect("a socket");
        redirect.redirect(cookie, source.as_raw_fd(), sink.as_raw_fd()).expect("joined");
        client.write_all(b"all").expect("sent");
        client.shutdown(Shutdown::Write).expect("a connection");
        let mut got = [0; 3];
        server.read_exact(&mut got).expect("all of it");
        while !progress(source.as_raw_fd()).expect("TCP").peer_ended {
            std::thread::yield_now();
        }
        // A workqueue would set the error soon.
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(1));
            take_error(sink.as_raw_fd()).expect("no error at the sink");
            take_error(source.as_raw_fd()).expect("no error at the source");
        }
    }
}
