//! Does as many handshakes with a WireGuard server as it takes: `bench/tunnel/handshakes` runs it.
//!
//! `handshakes keys COUNT` prints the public keys of the clients. `handshakes run COUNT SERVER KEY SECONDS` does handshakes with the
//! server at this address and of this key, and prints how many ended with a session, and how long one took (p50 and p99, in
//! microseconds). Each client sends from an address of its own (198.18.0.0/16, which must be local), since servers limit how many a
//! source may do. Its clock jumps ahead after each one, so that it need not wait for the next.
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

use parshall_core::tunnel::{
    Device, DeviceChange, Endpoint, Event, KeyText, Limits, Output, PeerChange, PrivateKey, PublicKey, Time,
};
use parshall_tunnel::system_random::SystemBytes;

/// Handshakes at a time.
const THREADS: usize = 32;
/// A response or a cookie that has not come by then is lost.
const WAIT: Duration = Duration::from_millis(200);
/// By how much a client's clock jumps: more than sessions last.
const JUMP: Duration = Duration::from_secs(200);
/// And after a cookie: more than the time between two initiations.
const JUMP_AFTER_COOKIE: Duration = Duration::from_secs(6);

fn private_key(client: usize) -> PrivateKey {
    let mut bytes = [77; 32];
    bytes[8..16].copy_from_slice(&(client as u64).to_be_bytes());
    PrivateKey::new(bytes)
}

struct Client {
    device: Device,
    socket: UdpSocket,
    server: SocketAddr,
    time: Time,
    out: Output,
}

impl Client {
    fn new(n: usize, server: SocketAddr, key: PublicKey) -> Result<Self, Box<dyn Error>> {
        let mut device = Device::new(Limits::default(), Box::new(SystemBytes));
        let peer = PeerChange { endpoint: Some(server), ..PeerChange::new(key) };
        let change = DeviceChange { private_key: Some(private_key(n)), peers: vec![peer], ..DeviceChange::default() };
        let mut out = Output::default();
        device.configure(&change, &mut out);
        let socket = UdpSocket::bind((Ipv4Addr::new(198, 18, (n >> 8) as u8, n as u8), 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(WAIT))?;
        let time = Time { now: 1, unix: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)? };
        Ok(Self { device, socket, server, time, out })
    }

    fn jump(&mut self, by: Duration) {
        self.time.now += by.as_nanos() as u64;
        self.time.unix += by;
    }

    /// Sends what the device has put out. Returns whether a session has come about.
    fn send(&mut self) -> Result<bool, Box<dyn Error>> {
        for message in &self.out.messages {
            self.socket.send(message.bytes())?;
        }
        let done = self.out.events.iter().any(|event| matches!(event, Event::Flush(_)));
        self.out.clear();
        Ok(done)
    }

    /// Does a handshake, and returns whether it ended with a session.
    fn shake(&mut self) -> Result<bool, Box<dyn Error>> {
        self.jump(JUMP);
        let peer = self.device.state().peers[0].id;
        // A packet to seal asks for it.
        let link = self.device.link(peer).ok_or("no peer")?.clone();
        drop(link.sealer(self.time.now, 1));
        self.device.tick(self.time, &mut self.out);
        self.send()?;
        let mut datagram = [0; 256];
        let begun = Instant::now();
        while begun.elapsed() < WAIT {
            let Ok(len) = self.socket.recv(&mut datagram) else { break };
            let is_cookie = datagram[0] == 3;
            let from = Endpoint::from(self.server);
            if self.device.receive(self.time, &datagram[..len], &from, &mut self.out).is_err() {
                continue;
            }
            if is_cookie {
                self.jump(JUMP_AFTER_COOKIE);
                self.device.tick(self.time, &mut self.out);
            }
            if self.send()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn run(count: usize, server: SocketAddr, key: PublicKey, length: Duration) -> Result<(), Box<dyn Error>> {
    let mut clients = (0..count).map(|n| Client::new(n, server, key)).collect::<Result<Vec<_>, _>>()?;
    let begun = Instant::now();
    let each = count.div_ceil(THREADS);
    let mut took = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .chunks_mut(each)
            .map(|clients| {
                scope.spawn(move || {
                    let mut took = Vec::new();
                    for n in (0..clients.len()).cycle() {
                        if begun.elapsed() >= length {
                            break;
                        }
                        let at = Instant::now();
                        if clients[n].shake().map_err(|error| error.to_string())? {
                            took.push(at.elapsed());
                        }
                    }
                    Ok::<_, String>(took)
                })
            })
            .collect();
        let all = threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?);
        all.collect::<Result<Vec<_>, String>>().map(|all| all.concat())
    })?;
    let elapsed = begun.elapsed();
    took.sort_unstable();
    let quantile = |of: usize| took.get(took.len() * of / 100).map_or(0, Duration::as_micros);
    let per_s = took.len() as f64 / elapsed.as_secs_f64();
    println!("{{\"handshakes_per_s\":{per_s:.1},\"p50_us\":{},\"p99_us\":{}}}", quantile(50), quantile(99));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["keys", count] => (0..count.parse()?).for_each(|n| println!("{}", private_key(n).public())),
        ["run", count, server, key, seconds] => {
            run(
                count.parse()?,
                server.parse()?,
                PublicKey::from_base64(key).map_err(|error| error.to_string())?,
                Duration::from_secs_f64(seconds.parse()?),
            )?;
        }
        _ => return Err("usage: handshakes keys COUNT | handshakes run COUNT SERVER KEY SECONDS".into()),
    }
    Ok(())
}
