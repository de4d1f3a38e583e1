//! Bulk transfers: each direction of a connection has a thread with blocking calls, at both ends.
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::sync::Arc;

use parshall_core::load::Mode;
use socket2::SockRef;

use super::super::common::Clock;
use super::phase::{Counter, Counters, Counts};

/// `MSG_TRUNC`: on TCP, take the data out of the queue without copying it.
const MSG_TRUNC: i32 = 0x20;

/// The sizes of the calls.
#[derive(Debug, Clone, Copy)]
pub struct BulkCalls {
    pub write_bytes: usize,
    pub read_bytes: usize,
    /// Received data is thrown away in the kernel.
    pub discard: bool,
}

/// Sends until the connection or the load ends.
pub fn send(mut stream: &TcpStream, calls: BulkCalls, counter: &Counter, over: impl Fn() -> bool) -> io::Result<()> {
    let buf = vec![b'b'; calls.write_bytes];
    while !over() {
        let sent = stream.write(&buf)?;
        counter.add(Counts { operations: 1, sent: sent as u64, received: 0 });
    }
    Ok(())
}

/// Memory that is received into, or none where received data is thrown away.
pub struct Receiver {
    buf: Vec<u8>,
    discarded: Vec<MaybeUninit<u8>>,
}

impl Receiver {
    pub fn new(read_bytes: usize, discard: bool) -> Self {
        let (kept, thrown) = if discard { (0, read_bytes) } else { (read_bytes, 0) };
        Self { buf: vec![0; kept], discarded: vec![MaybeUninit::uninit(); thrown] }
    }

    /// Receives once; 0 bytes are the end.
    pub fn receive(&mut self, mut stream: &TcpStream) -> io::Result<usize> {
        match self.discarded.is_empty() {
            true => stream.read(&mut self.buf),
            false => SockRef::from(stream).recv_with_flags(&mut self.discarded, MSG_TRUNC),
        }
    }
}

/// Receives until the connection ends.
pub fn receive(stream: &TcpStream, calls: BulkCalls, counter: &Counter) -> io::Result<()> {
    let mut receiver = Receiver::new(calls.read_bytes, calls.discard);
    loop {
        let received = receiver.receive(stream)?;
        if received == 0 {
            return Ok(());
        }
        counter.add(Counts { operations: 1, received: received as u64, sent: 0 });
    }
}

/// The server's end.
pub fn serve(stream: &TcpStream, mode: Mode, calls: BulkCalls, counters: &Counters, clock: &Clock) -> io::Result<()> {
    let sender = match mode {
        Mode::Upload => None,
        _ => {
            let (stream, counter, clock) = (stream.try_clone()?, counters.register(), clock.clone());
            let send = move || send(&stream, calls, &counter, || clock.over());
            Some(std::thread::Builder::new().name("load-send".into()).spawn(send)?)
        }
    };
    // It ends when the client closes, also where the client sends nothing.
    let received = receive(stream, calls, &counters.register());
    stream.shutdown(std::net::Shutdown::Both).ok();
    if let Some(sender) = sender {
        sender.join().ok();
    }
    received
}

/// The client's end of a connection: its threads, which end when it is shut down.
pub fn start(
    stream: &TcpStream,
    mode: Mode,
    calls: BulkCalls,
    counters: &Arc<Counters>,
    clock: &Clock,
) -> io::Result<()> {
    if mode != Mode::Download {
        let (stream, counter, clock) = (stream.try_clone()?, counters.register(), clock.clone());
        let send = move || send(&stream, calls, &counter, || clock.stopped());
        std::thread::Builder::new().name("load-send".into()).spawn(send)?;
    }
    if mode != Mode::Upload {
        let (stream, counter) = (stream.try_clone()?, counters.register());
        let receive = move || receive(&stream, calls, &counter);
        std::thread::Builder::new().name("load-receive".into()).spawn(receive)?;
    }
    Ok(())
}
