//! Each test runs every engine, on Unix socket pairs and on TCP over loopback.
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use parshall_core::relay::connection::{Ended, Failure};
use parshall_sys::stream_io::{reset_on_close, shutdown_write};

use super::copy::CopyEngine;
use super::splice::SpliceEngine;
use super::{Engine, Job, Outcome, Store, TURN_BYTES};
use crate::stats::EngineKind;

/// No test takes longer; none is expected to take a tenth of it.
const TIMEOUT: Duration = Duration::from_secs(30);
const CEILING: usize = 64 * 1024;

/// One direction as the worker would keep it.
struct Transfer {
    source: usize,
    sink: usize,
    store: Store,
    rhythm: parshall_core::relay::streaming::Rhythm,
    moved: u64,
    ended: Option<Ended>,
}

/// A worker in small: an engine, sockets, and two directions per pair of them.
struct Rig {
    kind: EngineKind,
    engine: Box<dyn Engine>,
    sockets: Vec<OwnedFd>,
    transfers: Vec<Transfer>,
}

impl Rig {
    fn new(kind: EngineKind) -> Self {
        let engine: Box<dyn Engine> = match kind {
            EngineKind::Copy => Box::new(CopyEngine::new(CEILING)),
            EngineKind::Splice => Box::new(SpliceEngine::new(16)),
        };
        Self { kind, engine, sockets: Vec::new(), transfers: Vec::new() }
    }

    /// Relays between two sockets; the number of the direction from the first to the second, the next one leads back.
    fn join(&mut self, a: OwnedFd, b: OwnedFd) -> usize {
        let at = self.sockets.len();
        self.sockets.extend([a, b]);
        for (source, sink) in [(at, at + 1), (at + 1, at)] {
            self.transfers.push(Transfer {
                source,
                sink,
                store: Store::Empty,
                rhythm: Default::default(),
                moved: 0,
                ended: None,
            });
        }
        self.transfers.len() - 2
    }

    /// One turn of everything that is open; whether anything moved.
    fn turn(&mut self) -> bool {
        let mut progress = false;
        for index in 0..self.transfers.len() {
            let transfer = &mut self.transfers[index];
            if transfer.ended.is_some() {
                continue;
            }
            let mut jobs = [Job {
                id: index as u64,
                source: self.sockets[transfer.source].as_raw_fd(),
                sink: self.sockets[transfer.sink].as_raw_fd(),
                allowance: TURN_BYTES,
                granted: TURN_BYTES,
                ceiling: CEILING,
                source_ended: true,
                adaptive: false,
                store: std::mem::take(&mut transfer.store),
                rhythm: transfer.rhythm,
                moved: 0,
                outcome: Outcome::Again,
            }];
            self.engine.pump(&mut jobs);
            let [job] = jobs;
            transfer.store = job.store;
            transfer.rhythm = job.rhythm;
            progress |= self.record(index, job.moved, job.outcome);
        }
        progress
    }

    fn record(&mut self, index: usize, moved: u64, outcome: Outcome) -> bool {
        let transfer = &mut self.transfers[index];
        transfer.moved += moved;
        match outcome {
            Outcome::Ended(how) => {
                assert!(transfer.ended.replace(how).is_none(), "an end is reported once");
                if how == Ended::Eof {
                    // A sink that is gone is found by its own direction.
                    let _gone = shutdown_write(self.sockets[transfer.sink].as_raw_fd());
                }
            }
            Outcome::Refused(why) => panic!("{:?}: {why:?}", self.kind),
            Outcome::SourceEmpty | Outcome::SinkFull | Outcome::Again => {}
        }
        moved > 0 || matches!(outcome, Outcome::Ended(_))
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(began.elapsed() < TIMEOUT, "{:?}: {what} does not happen", self.kind);
            if !self.turn() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    fn until_all_ended(&mut self) {
        self.until("the end of every direction", |rig| rig.transfers.iter().all(|l| l.ended.is_some()));
    }

    /// As the worker ends a connection: what is held goes back, then the sockets close.
    fn end(&mut self) {
        for transfer in &mut self.transfers {
            self.engine.discard(std::mem::take(&mut transfer.store));
            transfer.ended = Some(Ended::Eof);
        }
        self.sockets.clear();
    }
}

/// A connected pair, blocking, with a limit on every wait.
fn pair(tcp: bool) -> (Peer, OwnedFd) {
    if !tcp {
        let (a, b) = UnixStream::pair().expect("a pair");
        a.set_read_timeout(Some(TIMEOUT)).expect("an option");
        a.set_write_timeout(Some(TIMEOUT)).expect("an option");
        b.set_nonblocking(true).expect("an option");
        return (Peer::Unix(a), b.into());
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let a = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
    let (b, _) = listener.accept().expect("a connection");
    a.set_read_timeout(Some(TIMEOUT)).expect("an option");
    a.set_write_timeout(Some(TIMEOUT)).expect("an option");
    a.set_nodelay(true).expect("an option");
    b.set_nodelay(true).expect("an option");
    b.set_nonblocking(true).expect("an option");
    (Peer::Tcp(a), b.into())
}

/// A client or a target of the relay.
enum Peer {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Read for Peer {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(s) => s.read(buffer),
            Self::Tcp(s) => s.read(buffer),
        }
    }
}

impl Write for Peer {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(s) => s.write(buffer),
            Self::Tcp(s) => s.write(buffer),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl AsRawFd for Peer {
    fn as_raw_fd(&self) -> i32 {
        match self {
            Self::Unix(s) => s.as_raw_fd(),
            Self::Tcp(s) => s.as_raw_fd(),
        }
    }
}

impl Peer {
    fn finish_writing(&self) {
        shutdown_write(self.as_raw_fd()).expect("open");
    }

    fn read_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.read_to_end(&mut all).expect("all bytes and the end");
        all
    }
}

/// The byte at a place of a stream: position-dependent, so that a lost, doubled or moved piece shows.
fn byte_at(stream: u64, place: u64) -> u8 {
    let mixed = (place / 8 + stream * 0x9e37_79b9).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> (8 * (place % 8))) as u8
}

fn bytes_of(stream: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|place| byte_at(stream, place)).collect()
}

/// Random numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Writes in pieces of random size with random pauses, then half-closes.
fn write_slowly(peer: &mut Peer, stream: u64, len: usize) {
    let (all, mut dice, mut at) = (bytes_of(stream, len), Dice(stream + 88_172_645), 0);
    while at < len {
        let scale = dice.below(18).max(1);
        let piece = (1 + dice.below(1 << scale) as usize).min(len - at);
        peer.write_all(&all[at..at + piece]).expect("taken");
        at += piece;
        if dice.below(16) == 0 {
            std::thread::sleep(Duration::from_micros(dice.below(1500)));
        }
    }
    peer.finish_writing();
}

/// Reads to the end in pieces of random size with random pauses, and checks every byte.
fn read_slowly(peer: &mut Peer, stream: u64, len: usize) {
    let (mut dice, mut at, mut buffer) = (Dice(stream + 362_436), 0u64, vec![0; 1 << 17]);
    loop {
        let most = 1 + dice.below(1 << 17) as usize;
        match peer.read(&mut buffer[..most]).expect("data or the end") {
            0 => break,
            n => {
                let wrong = (0..n).find(|&i| buffer[i] != byte_at(stream, at + i as u64));
                assert_eq!(wrong, None, "the byte after {at}");
                at += n as u64;
            }
        }
        if dice.below(16) == 0 {
            std::thread::sleep(Duration::from_micros(dice.below(3000)));
        }
    }
    assert_eq!(at, len as u64, "bytes before the end");
}

/// Runs a test for every engine and kind of socket.
fn each(test: impl Fn(EngineKind, bool)) {
    for kind in EngineKind::ALL {
        for tcp in [false, true] {
            test(kind, tcp);
        }
    }
}

#[test]
fn all_bytes_arrive_in_order_in_both_directions() {
    each(|kind, tcp| {
        const PAIRS: u64 = 4;
        const LEN: usize = 3 << 20;
        let mut rig = Rig::new(kind);
        let mut threads = Vec::new();
        for n in 0..PAIRS {
            let (client, a) = pair(tcp);
            let (server, b) = pair(tcp);
            rig.join(a, b);
            for (peer, out, back) in [(client, 2 * n, 2 * n + 1), (server, 2 * n + 1, 2 * n)] {
                let mut reader = clone(&peer);
                let mut writer = peer;
                threads.push(std::thread::spawn(move || write_slowly(&mut writer, out, LEN)));
                threads.push(std::thread::spawn(move || read_slowly(&mut reader, back, LEN)));
            }
        }
        rig.until_all_ended();
        for transfer in &rig.transfers {
            assert_eq!((transfer.ended, transfer.moved), (Some(Ended::Eof), LEN as u64), "{kind:?}");
        }
        for thread in threads {
            thread.join().expect("the peers saw every byte");
        }
        rig.end();
    });
}

fn clone(peer: &Peer) -> Peer {
    match peer {
        Peer::Unix(s) => Peer::Unix(s.try_clone().expect("a descriptor")),
        Peer::Tcp(s) => Peer::Tcp(s.try_clone().expect("a descriptor")),
    }
}

#[test]
fn the_end_comes_after_the_last_byte_and_late_replies_arrive() {
    each(|kind, tcp| {
        let (mut client, a) = pair(tcp);
        let (mut server, b) = pair(tcp);
        let mut rig = Rig::new(kind);
        let there = rig.join(a, b);
        let question = bytes_of(1, 700_000);
        let asked = question.clone();
        let asks = std::thread::spawn(move || {
            client.write_all(&asked).expect("taken");
            client.finish_writing();
            client.read_all()
        });
        let answers = std::thread::spawn(move || {
            let heard = server.read_all();
            // The other direction has been over for a while.
            std::thread::sleep(Duration::from_millis(30));
            server.write_all(&bytes_of(2, 900_000)).expect("taken");
            server.finish_writing();
            heard
        });
        rig.until_all_ended();
        assert_eq!([rig.transfers[there].ended, rig.transfers[there + 1].ended], [Some(Ended::Eof); 2]);
        assert!(answers.join().expect("heard") == question, "{kind:?}");
        assert!(asks.join().expect("answered") == bytes_of(2, 900_000), "{kind:?}");
        rig.end();
    });
}

#[test]
fn bytes_sent_before_the_relay_begins_are_not_lost() {
    each(|kind, tcp| {
        let mut rig = Rig::new(kind);
        for round in 0..50u64 {
            let (mut client, a) = pair(tcp);
            let (mut server, b) = pair(tcp);
            let len = 1 + (round as usize * 97) % 30_000;
            let all = bytes_of(round, len * 3);
            client.write_all(&all[..len]).expect("sent");
            rig.join(a, b);
            let rest = all[len..].to_vec();
            let writer = std::thread::spawn(move || {
                for piece in rest.chunks(1 + rest.len() / 7) {
                    client.write_all(piece).expect("taken");
                    std::thread::sleep(Duration::from_micros(100 * (round % 5)));
                }
                client.finish_writing();
                client
            });
            let reader = std::thread::spawn(move || {
                let all = server.read_all();
                server.finish_writing();
                all
            });
            rig.until_all_ended();
            writer.join().expect("written");
            assert!(reader.join().expect("read") == all, "{kind:?} round {round}");
            rig.end();
            rig.transfers.clear();
        }
    });
}

#[test]
fn a_reset_of_the_source_ends_the_direction_as_failed() {
    each(|kind, tcp| {
        if !tcp {
            return;
        }
        let (mut client, a) = pair(true);
        let (mut server, b) = pair(true);
        let mut rig = Rig::new(kind);
        let there = rig.join(a, b);
        client.write_all(b"last words").expect("sent");
        rig.until("delivery", |rig| rig.transfers[there].moved == 10);
        reset_on_close(client.as_raw_fd()).expect("an option");
        drop(client);
        rig.until("the reset", |rig| rig.transfers[there].ended.is_some());
        assert_eq!(rig.transfers[there].ended, Some(Ended::SourceFailed(Failure::Reset)), "{kind:?}");
        let mut heard = [0; 10];
        server.read_exact(&mut heard).expect("what came before the reset");
        assert_eq!(&heard, b"last words");
        rig.end();
    });
}

#[test]
fn a_dead_sink_ends_the_direction_as_failed() {
    each(|kind, tcp| {
        let (mut client, a) = pair(tcp);
        let (server, b) = pair(tcp);
        let mut rig = Rig::new(kind);
        let there = rig.join(a, b);
        rig.turn();
        if tcp {
            reset_on_close(server.as_raw_fd()).expect("an option");
        }
        drop(server);
        set_nonblocking(&client);
        rig.until("the failure", |rig| {
            // Bytes written after the sink died have nowhere to go.
            let _full = client.write(&[1; 1000]);
            rig.transfers[there].ended.is_some()
        });
        assert!(
            matches!(rig.transfers[there].ended, Some(Ended::SinkFailed(_))),
            "{kind:?} {:?}",
            rig.transfers[there].ended
        );
        rig.end();
    });
}

fn set_nonblocking(peer: &Peer) {
    match peer {
        Peer::Unix(s) => s.set_nonblocking(true).expect("an option"),
        Peer::Tcp(s) => s.set_nonblocking(true).expect("an option"),
    }
}

#[test]
fn a_sink_that_is_never_read_stops_the_source() {
    /// The bytes that all socket buffers between the peers hold with the limits set below, and the buffer of the engine.
    const MOST: usize = 8 << 20;
    each(|kind, tcp| {
        let (mut client, a) = pair(tcp);
        let (server, b) = pair(tcp);
        for fd in [client.as_raw_fd(), a.as_raw_fd(), b.as_raw_fd(), server.as_raw_fd()] {
            for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
                parshall_sys::stream_io::set_int(fd, libc::SOL_SOCKET, option, 256 * 1024).expect("an option");
            }
        }
        let mut rig = Rig::new(kind);
        rig.join(a, b);
        set_nonblocking(&client);
        let (mut taken, mut refused) = (0, 0);
        let piece = vec![3; 64 * 1024];
        rig.until("a full relay", |_| {
            match client.write(&piece) {
                Ok(n) => (taken, refused) = (taken + n, 0),
                Err(e) if e.kind() == ErrorKind::WouldBlock => refused += 1,
                Err(e) => panic!("{e}"),
            }
            assert!(taken < MOST, "{kind:?} takes more and more");
            refused > 200
        });
        // And what was taken arrives once it is read.
        let mut server = server;
        let reader = std::thread::spawn(move || server.read_all().len());
        client.finish_writing();
        rig.until("the rest", |rig| rig.transfers[0].ended.is_some());
        rig.end();
        assert_eq!(reader.join().expect("read"), taken, "{kind:?}");
        drop(client);
    });
}

#[test]
fn thousands_of_small_messages_go_back_and_forth() {
    const CONNECTIONS: u64 = 20;
    const MESSAGES: u64 = 200;
    each(|kind, tcp| {
        let mut rig = Rig::new(kind);
        let mut threads = Vec::new();
        for n in 0..CONNECTIONS {
            let (mut client, a) = pair(tcp);
            let (mut server, b) = pair(tcp);
            rig.join(a, b);
            threads.push(std::thread::spawn(move || {
                for i in 0..MESSAGES {
                    let message = bytes_of(n * MESSAGES + i, 32);
                    client.write_all(&message).expect("sent");
                    let mut echo = [0; 32];
                    client.read_exact(&mut echo).expect("an echo");
                    assert_eq!(echo[..], message[..]);
                }
                client.finish_writing();
            }));
            threads.push(std::thread::spawn(move || {
                let mut message = [0; 32];
                while server.read_exact(&mut message).is_ok() {
                    server.write_all(&message).expect("sent");
                }
            }));
        }
        rig.until_all_ended();
        threads.into_iter().for_each(|t| t.join().expect("every echo came"));
        rig.end();
    });
}

#[test]
fn a_connection_closed_during_a_transfer_leaks_nothing() {
    each(|kind, tcp| {
        let mut rig = Rig::new(kind);
        for round in 0..20 {
            let (mut client, a) = pair(tcp);
            let (mut server, b) = pair(tcp);
            rig.join(a, b);
            set_nonblocking(&client);
            // From idle to full, in both directions.
            for _ in 0..round {
                let _full = client.write(&[5; 50_000]);
                let _full = server.write(&[6; 100]);
                rig.turn();
            }
            rig.end();
            rig.transfers.clear();
            // The kernel has let go of the sockets too: the peers see it.
            assert!(closed(&mut client) && closed(&mut server), "{kind:?} round {round}");
        }
    });
}

/// Whether the other end of a peer is gone, however much it had sent.
fn closed(peer: &mut Peer) -> bool {
    match peer {
        Peer::Unix(s) => s.set_nonblocking(false).expect("an option"),
        Peer::Tcp(s) => s.set_nonblocking(false).expect("an option"),
    }
    let mut buffer = vec![0; 1 << 16];
    loop {
        match peer.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) => return matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        }
    }
}
