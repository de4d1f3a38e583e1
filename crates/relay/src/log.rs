//! The log of ended connections: one JSON line each (`parshall.relay-log/1` in docs/json.md), written by a thread of its
//! own. Where the log is slow or cannot be written, lines are lost and counted; neither traffic nor the end of the relay waits
//! for it.
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use parshall_core::relay::config::{LogTo, Protocol};
use parshall_core::relay::direction::Direction;
use serde::Serialize;

use super::record::{Closed, Transferred};
use super::stats::EngineKind;
use parshall_host::error::UserError;
use parshall_host::utc::iso;

/// Bytes after which lines are written although more are queued.
const BUFFER: usize = 64 * 1024;
/// PIPE_BUF (pipe(7)): a pipe that poll(2) finds writable takes this much without waiting.
const PIPE_BYTES: usize = 4096;
/// How often a log whose reader does not read is looked at, and how long it is waited for at the end and when another log takes
/// its place.
const LOOK: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long the end waits for the thread: it may be in write(2) to a file system that does not answer.
const END_MAX: Duration = Duration::from_secs(3);

/// State that the log thread shares with others.
#[derive(Debug, Default)]
struct Shared {
    /// The sink to switch to, which the log thread takes.
    next: Mutex<Option<Sink>>,
    /// The relay ends.
    ending: AtomicBool,
    written: AtomicU64,
    lost: AtomicU64,
}

impl Shared {
    fn next(&self) -> MutexGuard<'_, Option<Sink>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the present sink is not waited for much longer: another one is to take its place, or the relay ends.
    fn is_leaving(&self) -> bool {
        self.ending.load(Ordering::Relaxed) || self.next().is_some()
    }
}

/// A handle of the log thread.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    wake: SyncSender<Vec<Closed>>,
    thread: JoinHandle<()>,
    /// Disconnected when the thread has ended.
    ended: Receiver<Infallible>,
}

#[derive(Debug, Clone)]
pub struct LogCounts(Arc<Shared>);

impl LogCounts {
    pub fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub enum Sink {
    Nowhere,
    /// A regular file, opened to append.
    File(File),
    /// A pipe, FIFO, socket or terminal, whose reader may not read; and since when it has been waited for while it is left.
    Pipe(File, Option<Instant>),
}

impl Sink {
    pub fn open(to: &LogTo) -> anyhow::Result<Self> {
        let file = match to {
            LogTo::Nowhere => return Ok(Self::Nowhere),
            LogTo::Stdout => File::from(io::stdout().as_fd().try_clone_to_owned()?),
            LogTo::File(path) => open(path).map_err(|e| {
                let what = format!("cannot write the log {path}: {e}");
                UserError::new(what, "check the path and its rights, or set another one")
            })?,
        };
        Ok(if file.metadata()?.is_file() { Self::File(file) } else { Self::Pipe(file, None) })
    }

    /// Writes whole lines. Where a reader does not read, it waits while `leaving` is false, and [`WAIT_MAX`] longer.
    fn write(&mut self, lines: &[u8], leaving: impl Fn() -> bool) -> io::Result<()> {
        match self {
            Self::Nowhere => Ok(()),
            Self::File(file) => file.write_all(lines),
            Self::Pipe(pipe, left_at) => in_pieces(lines, leaving, pipe, left_at),
        }
    }
}

/// Opens a file to append to it. A FIFO without a reader is refused (ENXIO): opening it would block until one comes.
fn open(path: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path)?;
    if !file.metadata()?.file_type().is_fifo() {
        return Ok(file);
    }
    // It has a reader: writes wait for it from now on.
    OpenOptions::new().append(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Writes to a pipe. A thread in write(2) cannot be stopped, so it only writes what is taken at once.
fn in_pieces(
    mut lines: &[u8],
    leaving: impl Fn() -> bool,
    mut pipe: &File,
    left_at: &mut Option<Instant>,
) -> io::Result<()> {
    while !lines.is_empty() {
        if !is_writable(pipe)? {
            if leaving() && left_at.get_or_insert_with(Instant::now).elapsed() >= WAIT_MAX {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "its reader does not read"));
            }
            continue;
        }
        match pipe.write(&lines[..lines.len().min(PIPE_BYTES)]) {
            Ok(written) => lines = &lines[written..],
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits for at most [`LOOK`] until the log takes bytes, or fails.
fn is_writable(log: &File) -> io::Result<bool> {
    let mut asked = [rustix::event::PollFd::new(log, rustix::event::PollFlags::OUT)];
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    match rustix::event::poll(&mut asked, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Log {
    /// Starts the thread, which writes the batches of `ended`. `wake` is a sender of that queue.
    pub fn start(sink: Sink, wake: SyncSender<Vec<Closed>>, ended: Receiver<Vec<Closed>>) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut writer =
            Writer { sink, buffer: Vec::new(), lines: 0, torn: false, failing: false, shared: shared.clone() };
        let (running, has_ended) = channel();
        let thread = std::thread::Builder::new()
            .name("relay-log".into())
            .spawn(move || {
                let _running = running;
                writer.run(&ended);
            })
            .context("no thread for the log")?;
        Ok(Self { shared, wake, thread, ended: has_ended })
    }

    pub fn counts(&self) -> LogCounts {
        LogCounts(self.shared.clone())
    }

    /// Writes to another sink from now on.
    pub fn switch(&self, sink: Sink) {
        *self.shared.next() = Some(sink);
        // If the queue is full, the thread is awake.
        self.wake.try_send(Vec::new()).ok();
    }

    /// Waits until all lines are written or lost. The workers must have ended. A log that is stuck is left behind.
    pub fn finish(self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        drop(self.wake);
        match self.ended.recv_timeout(END_MAX) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("the log is stuck: its last lines are lost");
            }
            _ => {
                if self.thread.join().is_err() {
                    tracing::error!("the log thread panicked");
                }
            }
        }
    }
}

struct Writer {
    sink: Sink,
    buffer: Vec<u8>,
    /// Lines in the buffer.
    lines: u64,
    /// The last write may have ended inside a line.
    torn: bool,
    failing: bool,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(&mut self, ended: &Receiver<Vec<Closed>>) {
        while let Ok(first) = ended.recv() {
            let mut batch = first;
            loop {
                self.switch_sink();
                self.add(&batch, SystemTime::now());
                if self.buffer.len() >= BUFFER {
                    self.flush();
                }
                match ended.try_recv() {
                    Ok(more) => batch = more,
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                }
            }
            self.flush();
        }
    }

    fn switch_sink(&mut self) {
        if self.shared.next().is_none() {
            return;
        }
        // First, because this one is not waited for as long as there is a next one.
        self.flush();
        if let Some(next) = self.shared.next().take() {
            self.sink = next;
            self.torn = false;
        }
    }

    fn add(&mut self, batch: &[Closed], now: SystemTime) {
        if matches!(self.sink, Sink::Nowhere) || batch.is_empty() {
            return;
        }
        let time = iso(now);
        for closed in batch {
            if std::mem::take(&mut self.torn) {
                self.buffer.push(b'\n');
            }
            // A line has string keys and finite numbers, and memory takes all bytes: this cannot fail.
            serde_json::to_writer(&mut self.buffer, &Line::new(closed, &time)).ok();
            self.buffer.push(b'\n');
            self.lines += 1;
        }
    }

    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let result = self.sink.write(&self.buffer, || self.shared.is_leaving());
        self.buffer.clear();
        let lines = std::mem::take(&mut self.lines);
        match result {
            Ok(()) => {
                self.shared.written.fetch_add(lines, Ordering::Relaxed);
                if std::mem::take(&mut self.failing) {
                    tracing::info!(
                        "the log is written again; {} lines were lost",
                        self.shared.lost.load(Ordering::Relaxed)
                    );
                }
            }
            Err(error) => {
                self.torn = true;
                self.shared.lost.fetch_add(lines, Ordering::Relaxed);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(
                        "cannot write the log: {error}; its lines are lost and counted until it works again"
                    );
                }
            }
        }
    }
}

/// A line of `parshall.relay-log/1`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    schema: &'static str,
    time: &'a str,
    listener: &'a str,
    protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    duration_ms: f64,
    up: DirectionLine,
    down: DirectionLine,
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct DirectionLine {
    bytes: u64,
    engines: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<&'static str>,
}

impl DirectionLine {
    fn new(moved: &Transferred) -> Self {
        let used = EngineKind::ALL.iter().filter(|kind| moved.engines & (1 << **kind as u8) != 0);
        Self {
            bytes: moved.bytes,
            engines: used.map(|k| k.name()).collect(),
            fallback: moved.fallback.map(|f| f.name()),
        }
    }
}

impl<'a> Line<'a> {
    fn new(closed: &'a Closed, time: &'a str) -> Self {
        let config = &closed.service.config;
        Self {
            schema: "parshall.relay-log/1",
            time,
            listener: &config.name,
            protocol: protocol(config.protocol),
            client: closed.client.map(|c| c.to_string()),
            target: closed.target.and_then(|t| config.targets.get(t)).map(|t| t.endpoint.to_string()),
            address: closed.address.as_ref().map(ToString::to_string),
            // In whole microseconds.
            duration_ms: (closed.duration_ns / 1000) as f64 / 1000.0,
            up: DirectionLine::new(&closed.transferred[Direction::ClientToTarget]),
            down: DirectionLine::new(&closed.transferred[Direction::TargetToClient]),
            reason: closed.reason.name(),
        }
    }
}

/// The name in logs and metrics.
pub fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use parshall_core::relay::config::{Endpoint, Listener, Target};
    use parshall_core::relay::connection::CloseReason;
    use parshall_core::relay::direction::PerDirection;
    use parshall_sys::stream_socket::StreamAddr;

    use super::*;
    use crate::service::Service;
    use crate::stats::Fallback;

    /// Each has more than 300 bytes.
    const LINES: u64 = 1000;

    fn closed() -> Closed {
        let target = Target { endpoint: Endpoint::Name("db.example".into(), 5432), weight: 1 };
        let listen = Endpoint::Ip("127.0.0.1:9000".parse().expect("an address"));
        let listener = Listener::new(Protocol::Tcp, listen, vec![target]);
        Closed {
            service: Arc::new(Service::new(listener, Vec::new(), None, 0)),
            client: Some("192.0.2.7:4711".parse().expect("an address")),
            target: Some(0),
            address: Some(StreamAddr::Ip("192.0.2.9:5432".parse().expect("an address"))),
            duration_ns: 1_234_567_890,
            transferred: PerDirection::from([
                Transferred { bytes: 7, engines: 0b11, fallback: None },
                Transferred { bytes: 9, engines: 0b1, fallback: Some(Fallback::NoPipes) },
            ]),
            reason: CloseReason::Finished,
        }
    }

    #[test]
    fn a_line_has_the_documented_fields() {
        let text = serde_json::to_string(&Line::new(&closed(), "2026-01-02T03:04:05.678Z")).expect("JSON");
        assert_eq!(
            text,
            r#"{"schema":"parshall.relay-log/1","time":"2026-01-02T03:04:05.678Z","listener":"127.0.0.1:9000","#
                .to_owned()
                + r#""protocol":"tcp","client":"192.0.2.7:4711","target":"db.example:5432","address":"192.0.2.9:5432","#
                + r#""duration_ms":1234.567,"up":{"bytes":7,"engines":["copy","splice"]},"#
                + r#""down":{"bytes":9,"engines":["copy"],"fallback":"no-pipes"},"reason":"finished"}"#
        );
    }

    fn log_to(path: &str) -> (Log, SyncSender<Vec<Closed>>) {
        let (sender, receiver) = sync_channel(8);
        let sink = Sink::open(&LogTo::File(path.to_owned())).expect("a file");
        (Log::start(sink, sender.clone(), receiver).expect("a thread"), sender)
    }

    fn until(condition: impl Fn() -> bool) {
        let limit = std::time::Instant::now() + Duration::from_secs(20);
        while !condition() {
            assert!(std::time::Instant::now() < limit, "timed out");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_rotated_file_is_opened_anew_and_no_line_is_lost() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log").to_str().expect("UTF-8").to_owned();
        let (log, sender) = log_to(&path);
        let counts = log.counts();
        sender.send(vec![closed(), closed()]).expect("it runs");
        until(|| counts.written() == 2);
        std::fs::rename(&path, format!("{path}.1")).expect("renamed");
        log.switch(Sink::open(&LogTo::File(path.clone())).expect("a new file"));
        sender.send(vec![closed()]).expect("it runs");
        drop(sender);
        log.finish();
        let lines = |p: String| std::fs::read_to_string(p).expect("readable").lines().count();
        assert_eq!((lines(format!("{path}.1")), lines(path), counts.lost()), (2, 1, 0));
    }

    #[test]
    fn a_fifo_without_a_reader_is_refused_and_one_with_a_reader_is_written_to() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("fifo").to_str().expect("UTF-8").to_owned();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        if !made.is_ok_and(|status| status.success()) {
            return parshall_testkit::skip("a log that is a FIFO", "needs mkfifo");
        }
        let (answer, answers) = std::sync::mpsc::channel();
        let to = LogTo::File(path.clone());
        std::thread::spawn(move || answer.send(Sink::open(&to).is_err()));
        let refused = answers.recv_timeout(Duration::from_secs(20)).expect("it does not wait for a reader");
        assert!(refused);
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).expect("a reader");
        let (log, sender) = log_to(&path);
        sender.send(vec![closed()]).expect("it runs");
        drop(sender);
        let counts = log.counts();
        log.finish();
        assert_eq!(counts.written(), 1);
        let mut bytes = [0; 100];
        assert!(io::Read::read(&mut &reader, &mut bytes).expect("a line") > 0);
    }

    #[test]
    fn a_reader_that_does_not_read_holds_up_neither_the_end_nor_the_next_log() {
        for ends in [true, false] {
            let (reader, writer) = io::pipe().expect("a pipe");
            let (sender, receiver) = sync_channel(LINES as usize);
            let sink = Sink::Pipe(File::from(std::os::fd::OwnedFd::from(writer)), None);
            let log = Log::start(sink, sender.clone(), receiver).expect("a thread");
            let counts = log.counts();
            // Far more than the 64 KiB of a pipe.
            (0..LINES).for_each(|_| sender.send(vec![closed()]).expect("it runs"));
            until(|| rustix::io::ioctl_fionread(&reader).is_ok_and(|bytes| bytes > 32 * 1024));
            let (ended, end) = channel();
            std::thread::spawn(move || {
                if !ends {
                    log.switch(Sink::Nowhere);
                    let limit = Instant::now() + Duration::from_secs(20);
                    while log.shared.next().is_some() && Instant::now() < limit {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    ended.send(log.shared.next().is_none()).ok();
                }
                drop(sender);
                log.finish();
                ended.send(true).ok();
            });
            assert!(end.recv_timeout(Duration::from_secs(30)).expect("it does not wait for the reader"));
            assert!(counts.lost() > 0, "what is not written is counted: {}", counts.written());
            drop(reader);
        }
    }

    #[test]
    fn a_slow_reader_gets_every_line() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let (sender, receiver) = sync_channel(LINES as usize);
        let sink = Sink::Pipe(File::from(std::os::fd::OwnedFd::from(writer)), None);
        let log = Log::start(sink, sender.clone(), receiver).expect("a thread");
        let counts = log.counts();
        (0..LINES).for_each(|_| sender.send(vec![closed()]).expect("it runs"));
        drop(sender);
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            io::Read::read_to_string(&mut reader, &mut text).expect("text");
            text.lines().count() as u64
        });
        until(|| counts.written() == LINES);
        log.finish();
        assert_eq!((read.join().expect("read"), counts.lost()), (LINES, 0));
    }

    #[test]
    fn a_full_disk_is_counted_and_the_thread_goes_on() {
        let (log, sender) = log_to("/dev/full");
        let counts = log.counts();
        sender.send(vec![closed(), closed(), closed()]).expect("it runs");
        until(|| counts.lost() == 3);
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log").to_str().expect("UTF-8").to_owned();
        log.switch(Sink::open(&LogTo::File(path.clone())).expect("a file"));
        sender.send(vec![closed()]).expect("it runs");
        drop(sender);
        log.finish();
        assert_eq!((counts.written(), counts.lost()), (1, 3));
        assert!(std::fs::read_to_string(path).expect("readable").starts_with("{\"schema\""));
    }
}
