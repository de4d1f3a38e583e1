//! Clients and targets with timeouts, and streams of known bytes. Anything unexpected is a panic.
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

/// The longest wait, after which a test fails. It is long because the machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// The period of the stream of bytes: a prime, so that a lost, duplicated or reordered buffer is found.
const PERIOD: usize = 1_048_573;

static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random::new(1);
    (0..PERIOD).map(|_| random.next() as u8).collect()
});

/// Bytes from `at` to `at + len` of the periodic stream. `len` is at most a period.
fn slices(at: usize, len: usize) -> (&'static [u8], &'static [u8]) {
    let first = len.min(PERIOD - at);
    (&BYTES[at..at + first], &BYTES[..len - first])
}

/// A stream of bytes that depends only on the seed.
#[derive(Debug, Clone)]
pub struct Tape {
    at: usize,
    /// The number of bytes that were taken from it.
    pub moved: u64,
}

impl Tape {
    pub fn new(seed: u64) -> Self {
        Self { at: (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % PERIOD as u64) as usize, moved: 0 }
    }

    /// The next bytes.
    pub fn next(&mut self, len: usize) -> Vec<u8> {
        let (a, b) = slices(self.at, len);
        self.advance(len);
        [a, b].concat()
    }

    /// Whether these are the next bytes.
    pub fn is(&mut self, bytes: &[u8]) -> bool {
        let (a, b) = slices(self.at, bytes.len());
        self.advance(bytes.len());
        bytes[..a.len()] == *a && bytes[a.len()..] == *b
    }

    fn advance(&mut self, len: usize) {
        self.at = (self.at + len) % PERIOD;
        self.moved += len as u64;
    }
}

/// A generator of random numbers (xorshift64*), which depend only on the seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// From `low` to `high`, both included.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }
}

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// End of file: the peer sent a FIN.
    Data,
    Reset,
}

/// A TCP or Unix connection with timeouts.
#[derive(Debug)]
pub struct Conn(pub Socket);

fn parse_address(text: &str) -> (Domain, SockAddr) {
    match text.strip_prefix("unix:") {
        // `@` stands for the NUL with which an abstract name begins.
        Some(path) => (Domain::UNIX, SockAddr::unix(path.replacen('@', "\0", 1)).expect("a path")),
        None => {
            let ip: SocketAddr = text.parse().expect("an address");
            (Domain::for_address(ip), ip.into())
        }
    }
}

impl Conn {
    pub fn to(address: &str) -> Self {
        Self::try_to(address).unwrap_or_else(|e| panic!("cannot connect to {address}: {e}"))
    }

    pub fn try_to(address: &str) -> std::io::Result<Self> {
        let (domain, to) = parse_address(address);
        let socket = Socket::new(domain, Type::STREAM, None)?;
        socket.connect(&to)?;
        Ok(Self::of(socket))
    }

    /// Connects from this source address.
    pub fn from_to(source: &str, address: &str) -> Self {
        let (domain, to) = parse_address(address);
        let socket = Socket::new(domain, Type::STREAM, None).expect("a socket");
        socket.bind(&parse_address(&format!("{source}:0")).1).expect("ours");
        socket.connect(&to).unwrap_or_else(|e| panic!("cannot connect to {address}: {e}"));
        Self::of(socket)
    }

    /// Connects with socket buffers of this size, so that a sender soon blocks when the reader stops.
    pub fn narrow_to(address: &str, buffer: usize) -> Self {
        let (domain, to) = parse_address(address);
        let socket = Socket::new(domain, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(buffer).expect("allowed");
        socket.set_send_buffer_size(buffer).expect("allowed");
        socket.connect(&to).unwrap_or_else(|e| panic!("cannot connect to {address}: {e}"));
        Self::of(socket)
    }

    fn of(socket: Socket) -> Self {
        socket.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        socket.set_write_timeout(Some(TIMEOUT)).expect("a socket");
        // A Unix socket refuses it.
        let _ = socket.set_tcp_nodelay(true);
        Self(socket)
    }

    /// The address and port at this end.
    pub fn local(&self) -> SocketAddr {
        self.0.local_addr().expect("bound").as_socket().expect("IP")
    }

    pub fn send(&self, bytes: &[u8]) {
        self.try_send(bytes).unwrap_or_else(|e| panic!("cannot send: {e}"));
    }

    pub fn try_send(&self, bytes: &[u8]) -> std::io::Result<()> {
        (&self.0).write_all(bytes)
    }

    /// Sends the next `total` bytes in pieces of this size.
    pub fn send_tape(&self, tape: &mut Tape, total: usize, piece: usize) {
        let mut left = total;
        while left > 0 {
            let n = left.min(piece);
            self.send(&tape.next(n));
            left -= n;
        }
    }

    /// Sends the next `total` bytes in pieces of random sizes.
    pub fn send_pieces(&self, tape: &mut Tape, total: usize, random: &mut Random) {
        let mut left = total;
        while left > 0 {
            // Small sizes as often as large ones.
            let ceiling = 1 << random.within(0, 16);
            let n = left.min(random.within(1, ceiling));
            self.send(&tape.next(n));
            left -= n;
        }
    }

    /// Reads what has arrived, at least one byte. Returns 0 at the end of data.
    pub fn read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match (&self.0).read(buffer) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Reads exactly this many bytes.
    pub fn take(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut got = 0;
        while got < len {
            match self.read(&mut bytes[got..]) {
                Ok(0) => panic!("end of data after {got} of {len} bytes"),
                Ok(n) => got += n,
                Err(e) => panic!("{e} after {got} of {len} bytes"),
            }
        }
        bytes
    }

    /// Reads until the end, or a reset.
    pub fn rest(&self) -> (Vec<u8>, End) {
        let mut bytes = Vec::new();
        let mut piece = vec![0; 65536];
        loop {
            match self.read(&mut piece) {
                Ok(0) => return (bytes, End::Data),
                Ok(n) => bytes.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return (bytes, End::Reset),
                Err(e) => panic!("{e} after {} bytes", bytes.len()),
            }
        }
    }

    /// Reads the next `total` bytes of a tape.
    pub fn expect(&self, tape: &mut Tape, total: usize) {
        self.expect_by(tape, total, 256 * 1024);
    }

    /// Reads the next `total` bytes of a tape, at most `piece` at once.
    pub fn expect_by(&self, tape: &mut Tape, total: usize, piece: usize) {
        let mut buffer = vec![0; piece];
        let mut left = total;
        while left > 0 {
            let max = left.min(piece);
            match self.read(&mut buffer[..max]) {
                Ok(0) => panic!("end of data with {left} bytes missing"),
                Ok(n) => {
                    assert!(tape.is(&buffer[..n]), "wrong bytes within {n} after {}", total - left);
                    left -= n;
                }
                Err(e) => panic!("{e}, {left} of {total} bytes missing"),
            }
        }
    }

    /// Expects the end of data, without further bytes.
    pub fn expect_end(&self) {
        let (bytes, end) = self.rest();
        assert!(bytes.is_empty() && end == End::Data, "not the end of data: {} more bytes, {end:?}", bytes.len());
    }

    /// Expects a reset; data before it is ignored.
    pub fn expect_reset(&self) {
        let (bytes, end) = self.rest();
        assert_eq!(end, End::Reset, "the end of data after {} bytes", bytes.len());
    }

    /// Expects the end of data or a reset, without further bytes.
    pub fn expect_gone(&self) {
        let (bytes, _) = self.rest();
        assert!(bytes.is_empty(), "{} bytes", bytes.len());
    }

    /// Expects that neither data nor an end arrives within this time.
    pub fn expect_silence(&self, time: Duration) {
        self.0.set_read_timeout(Some(time)).expect("a socket");
        match self.read(&mut [0]) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            other => panic!("unexpected: {other:?}"),
        }
        self.0.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    }

    /// Half-closes the connection.
    pub fn end(&self) {
        self.0.shutdown(Shutdown::Write).unwrap_or_else(|e| panic!("cannot half-close: {e}"));
    }

    /// Waits for a reset after the end of data, which reads do not report: recv(2) goes on returning the end.
    pub fn expect_reset_after_end(&self) {
        let limit = Instant::now() + TIMEOUT;
        while self.0.take_error().expect("a socket").is_none() {
            assert!(Instant::now() < limit, "no reset after the end of data");
            pause(1);
        }
    }

    /// Closes with a reset.
    pub fn reset(self) {
        self.0.set_linger(Some(Duration::ZERO)).expect("a socket");
    }

    /// Waits until all that was sent is acknowledged.
    pub fn flushed(&self) {
        use std::os::fd::AsRawFd;
        soon("what was sent is acknowledged", || {
            parshall_sys::stream_io::unsent(self.0.as_raw_fd()).expect("a socket") == 0
        });
    }

    /// Sends at most `max` bytes, until the connection has accepted none for 200 ms. Returns the number of bytes sent.
    pub fn fill(&self, tape: &mut Tape, max: usize) -> usize {
        self.0.set_write_timeout(Some(Duration::from_millis(200))).expect("a socket");
        let mut sent = 0;
        while sent < max {
            let mut ahead = tape.clone();
            let piece = ahead.next((max - sent).min(65536));
            match (&self.0).write(&piece) {
                Ok(n) => {
                    tape.advance(n);
                    sent += n;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("cannot send after {sent} bytes: {e}"),
            }
        }
        self.0.set_write_timeout(Some(TIMEOUT)).expect("a socket");
        sent
    }
}

/// A server that the test controls.
#[derive(Debug)]
pub struct Target {
    listener: Socket,
    /// Its address in the form of the configuration.
    pub address: String,
}

impl Target {
    pub fn new() -> Self {
        Self::at("127.0.0.1:0", None, 1024)
    }

    /// A target whose connections have socket buffers of this size.
    pub fn narrow(buffer: usize) -> Self {
        Self::at("127.0.0.1:0", Some(buffer), 1024)
    }

    /// A target at this address.
    pub fn at(address: &str, buffer: Option<usize>, backlog: i32) -> Self {
        let (domain, at) = parse_address(address);
        let listener = Socket::new(domain, Type::STREAM, None).expect("a socket");
        if let Some(bytes) = buffer {
            listener.set_recv_buffer_size(bytes).expect("allowed");
            listener.set_send_buffer_size(bytes).expect("allowed");
        }
        listener.bind(&at).expect("a free address");
        listener.listen(backlog).expect("bound");
        listener.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let bound = listener.local_addr().expect("bound").as_socket();
        Self { listener, address: bound.map_or(address.to_owned(), |ip| ip.to_string()) }
    }

    /// An address that refuses connections as long as the returned socket exists.
    pub fn refusing() -> (Socket, String) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&parse_address("127.0.0.1:0").1).expect("a free address");
        let address = socket.local_addr().expect("bound").as_socket().expect("IP").to_string();
        (socket, address)
    }

    /// A target whose accept queue is full of the returned connections, so that the kernel drops SYNs.
    pub fn unresponsive() -> (Self, Vec<Conn>) {
        let target = Self::at("127.0.0.1:0", None, 0);
        let (domain, at) = parse_address(&target.address);
        let mut fillers = Vec::new();
        for _ in 0..8 {
            let socket = Socket::new(domain, Type::STREAM, None).expect("a socket");
            if socket.connect_timeout(&at, Duration::from_millis(150)).is_err() {
                return (target, fillers);
            }
            fillers.push(Conn(socket));
        }
        panic!("the queue of {} does not fill", target.address);
    }

    pub fn accept(&self) -> Conn {
        Conn::of(self.listener.accept().unwrap_or_else(|e| panic!("no connection to the target: {e}")).0)
    }

    /// A connection that arrives within this time.
    pub fn try_accept(&self, time: Duration) -> Option<Conn> {
        self.listener.set_read_timeout(Some(time)).expect("a socket");
        let accepted = self.listener.accept();
        self.listener.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        accepted.ok().map(|(socket, _)| Conn::of(socket))
    }

    /// Whether no connection arrives within this time.
    pub fn gets_none(&self, time: Duration) -> bool {
        self.try_accept(time).is_none()
    }

    /// Echoes all data on every connection until the target is dropped.
    pub fn echo(&self) {
        let listener = self.listener.try_clone().expect("a descriptor");
        listener.set_read_timeout(None).expect("a socket");
        std::thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                std::thread::spawn(move || echo(&Conn::of(socket)));
            }
        });
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Ends the thread of `echo`, which blocks in accept().
        let _ = self.listener.shutdown(Shutdown::Both);
    }
}

fn echo(conn: &Conn) {
    let mut buffer = vec![0; 65536];
    let _ = conn.0.set_read_timeout(None);
    while let Ok(n) = conn.read(&mut buffer) {
        if n == 0 || conn.try_send(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = conn.0.shutdown(Shutdown::Write);
}

/// Sends a message, which the server sends back.
pub fn exchange(client: &Conn, server: &Conn, tape: &mut Tape, len: usize) {
    let (mut there, mut back) = (tape.clone(), tape.clone());
    let piece = tape.next(len);
    client.send(&piece);
    server.expect(&mut there, len);
    server.send(&piece);
    client.expect(&mut back, len);
}

/// Waits until a condition is true. Fails after [`TIMEOUT`].
pub fn soon(what: &str, mut condition: impl FnMut() -> bool) {
    let give_up = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < give_up, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
