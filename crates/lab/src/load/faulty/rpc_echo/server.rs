//! The server end of `rpc-echo`: one epoll thread, or a thread per connection when it has to sleep like a blocking
//! service.
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parshall_sys::epoll::{Epoll, Events, READABLE};

use super::super::super::common::Clock;
use super::super::burn::Burn;
use super::args::{Args, REPLY, REPLY_HEAD, REQUEST};

/// Totals of a server.
#[derive(Debug, Default)]
pub struct Stats {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Stats {
    /// Requests answered and bytes moved.
    pub fn read(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    fn add(&self, requests: u64, received: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.bytes.fetch_add(received + requests * REPLY as u64, Ordering::Relaxed);
    }
}

/// A server that listens and does not accept yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    service: Service,
    blocking: bool,
}

/// How a request is processed.
#[derive(Debug, Clone, Copy)]
struct Service {
    think: Duration,
    burn: Burn,
    reply_in_two: bool,
}

impl Service {
    fn answer(&self, mut stream: &TcpStream) -> io::Result<()> {
        const REPLY_BYTES: [u8; REPLY] = [b'r'; REPLY];
        self.burn.run();
        if !self.think.is_zero() {
            std::thread::sleep(self.think);
        }
        if self.reply_in_two {
            stream.write_all(&REPLY_BYTES[..REPLY_HEAD])?;
            stream.write_all(&REPLY_BYTES[REPLY_HEAD..])
        } else {
            stream.write_all(&REPLY_BYTES)
        }
    }
}

impl Server {
    /// Listens, and calibrates the work for `--burn-ms`.
    pub fn bind(args: &Args, address: SocketAddr) -> anyhow::Result<Self> {
        let listener = args.socket.listen(address)?;
        let address = listener.local_addr()?;
        let service =
            Service { think: args.think_ms, burn: Burn::calibrate(args.burn_ms), reply_in_two: args.reply_in_two };
        Ok(Self { listener, address, service, blocking: !args.think_ms.is_zero() })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves on a thread until it is time to end.
    pub fn start(self, clock: Clock, stats: Arc<Stats>) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("rpc-server".into()).spawn(move || {
            let served = if self.blocking { self.serve_blocking(&clock, &stats) } else { self.serve(&clock, &stats) };
            if let Err(error) = served {
                tracing::warn!("rpc-echo server: {error}");
                clock.stop();
            }
        })
    }

    fn serve(self, clock: &Clock, stats: &Stats) -> io::Result<()> {
        const LISTENER: u64 = u64::MAX;
        let epoll = Epoll::new()?;
        self.listener.set_nonblocking(true)?;
        epoll.add(&self.listener, LISTENER, READABLE)?;
        let mut connections: Vec<Option<(TcpStream, usize)>> = Vec::new();
        let mut events = Events::with_capacity(256);
        while !clock.over() {
            epoll.wait(&mut events, Duration::from_millis(100))?;
            for (token, _) in events.iter() {
                if token == LISTENER {
                    while let Ok((stream, _)) = self.listener.accept() {
                        stream.set_nonblocking(true)?;
                        epoll.add(&stream, connections.len() as u64, READABLE)?;
                        connections.push(Some((stream, 0)));
                    }
                } else if let Some(slot) = connections.get_mut(token as usize)
                    && let Some((stream, got)) = slot
                    && !self.service.on_readable(stream, got, stats)
                {
                    *slot = None; // Closing a descriptor also removes it from epoll.
                }
            }
        }
        Ok(())
    }

    fn serve_blocking(self, clock: &Clock, stats: &Arc<Stats>) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        let epoll = Epoll::new()?;
        epoll.add(&self.listener, 0, READABLE)?;
        let mut events = Events::with_capacity(1);
        while !clock.over() {
            epoll.wait(&mut events, Duration::from_millis(100))?;
            while let Ok((stream, _)) = self.listener.accept() {
                stream.set_nonblocking(false)?;
                let (service, stats) = (self.service, Arc::clone(stats));
                std::thread::Builder::new().name("rpc-worker".into()).spawn(move || {
                    let mut got = 0;
                    while service.on_readable(&stream, &mut got, &stats) {}
                })?;
            }
        }
        Ok(())
    }
}

impl Service {
    /// Reads once and answers every request that is complete. False: the connection is finished.
    fn on_readable(&self, mut stream: &TcpStream, got: &mut usize, stats: &Stats) -> bool {
        let mut buf = [0u8; 1024];
        let n = match stream.read(&mut buf) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(error) => return matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        };
        *got += n;
        let mut answered = 0;
        while *got >= REQUEST {
            *got -= REQUEST;
            if self.answer(stream).is_err() {
                return false;
            }
            answered += 1;
        }
        stats.add(answered, n as u64);
        true
    }
}
