//! The client end: connects, lets the threads of the load run, and reads both ends' use of the CPU where the measured window begins
//! and ends.
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};
use parshall_core::load::{Hello, Limit, Mode, Seen, limits};
use parshall_host::error::UserError;

use super::super::common::{Clock, print_ready};
use super::super::outcome::{Cpu, Generated, Outcome};
use super::load::Load;
use super::phase::{Counters, Counts, CpuUse, Phase, Tally};
use super::report::{Announcement, Report};
use super::{bulk, packets, requests};

/// The threads of the client and what they share.
struct Client<'a> {
    load: &'a Load,
    clock: &'a Clock,
    control: TcpStream,
    /// The destination of packets.
    packets_to: SocketAddr,
    /// Connections of each thread with requests.
    threads: Vec<Vec<TcpStream>>,
    bulk: Vec<TcpStream>,
    /// Counters of bulk transfers and packets.
    counters: Arc<Counters>,
    work: Arc<Work>,
}

/// Both ends where the window begins or ends.
struct Reading {
    at_ns: u64,
    cpu: CpuUse,
    counts: Counts,
    server: Report,
}

/// Runs the client end against a server.
pub fn run(load: &Load, role: &'static str, target: SocketAddr, clock: &Clock) -> anyhow::Result<Outcome> {
    let client = Client::connect(load, target, clock)?;
    print_ready(load.kind, role, Some(target.port()));
    let phase = Phase::begin(clock, load.warm_up, load.time);
    client.announce()?;
    let threads = client.start(target, &phase)?;
    let finished = || client.work.done.load(Ordering::Acquire) == threads.len();
    let all_lost = || !threads.is_empty() && finished();
    phase.sleep_until(phase.from_ns, all_lost);
    let before = client.read(&phase, load.packets.is_none())?;
    phase.sleep_until(phase.to_ns, all_lost);
    let after = client.read(&phase, true)?;
    client.work.read.store(true, Ordering::Release);
    phase.sleep_until(phase.drained_ns(), finished);
    clock.stop();
    client.shut_down();
    let mut tally = Tally::default();
    for thread in threads {
        match thread.join() {
            Ok(own) => tally.add(&own?),
            Err(_) => bail!("a thread of the load panicked"),
        }
    }
    let connections = load.requests.map_or(0, |requests| u64::from(requests.connections));
    if connections > 0 && tally.lost >= connections && tally.requests == 0 {
        return Err(UserError::new(
            format!("{target} closed the connections without a reply"),
            "the other end must be `parshall lab load` with --serve, of the same version",
        )
        .into());
    }
    Ok(client.outcome(role, target, &tally, &before, &after))
}

/// How far the threads with results are. Their CPU time can be read only while they exist.
#[derive(Debug, Default)]
struct Work {
    /// Threads that have done their work.
    done: AtomicUsize,
    /// Their CPU time was read, so they may end.
    read: AtomicBool,
}

impl Work {
    /// Called by a thread that has done its work.
    fn finish(&self) {
        self.done.fetch_add(1, Ordering::Release);
        while !self.read.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl<'a> Client<'a> {
    fn connect(load: &'a Load, target: SocketAddr, clock: &'a Clock) -> anyhow::Result<Self> {
        let open = |hello: Hello| -> anyhow::Result<TcpStream> {
            let mut stream = TcpStream::from(load.socket.connect(target, clock)?);
            stream.write_all(&hello.encode()).with_context(|| format!("writing to {target}"))?;
            Ok(stream)
        };
        let mode = if load.packets.is_some() { Mode::Packets } else { Mode::Report };
        let mut control = open(Hello { mode, alone: true, request: 1, reply: 1 })?;
        let mut packets_to = target;
        if load.packets.is_some() {
            let mut port = [0; 2];
            control.read_exact(&mut port).map_err(|error| no_server(target, &error))?;
            packets_to.set_port(u16::from_be_bytes(port));
        }
        let mut threads = Vec::new();
        if let Some(requests) = load.requests.filter(|requests| !requests.connect_each) {
            let hello = requests.hello(requests.alone(load.buffers_set()));
            threads.resize_with(usize::from(load.threads).min(requests.connections as usize), Vec::new);
            let count = threads.len();
            for connection in 0..requests.connections as usize {
                threads[connection % count].push(open(hello)?);
            }
        }
        let bulk = match load.bulk {
            Some(bulk) => {
                let hello = Hello { mode: bulk.mode, alone: true, request: 1, reply: 1 };
                (0..bulk.connections).map(|_| open(hello)).collect::<Result<_, _>>()?
            }
            None => Vec::new(),
        };
        Ok(Self { load, clock, control, packets_to, threads, bulk, counters: Arc::default(), work: Arc::default() })
    }

    /// Starts the threads with results; those of bulk transfers only count.
    fn start(&self, target: SocketAddr, phase: &Phase) -> anyhow::Result<Vec<JoinHandle<anyhow::Result<Tally>>>> {
        let mut handles = Vec::new();
        let mut spawn = |work: Box<dyn FnOnce() -> anyhow::Result<Tally> + Send>| -> io::Result<()> {
            let state = Arc::clone(&self.work);
            handles.push(std::thread::Builder::new().name("load-client".into()).spawn(move || {
                let tally = work();
                state.finish();
                tally
            })?);
            Ok(())
        };
        if let Some(bulk) = self.load.bulk {
            for stream in &self.bulk {
                bulk::start(stream, bulk.mode, self.load.calls, &self.counters, self.clock)?;
            }
        }
        let of = self.load.threads.into();
        if let Some(packets) = self.load.packets {
            for thread in 0..of {
                let (counter, phase, to) = (self.counters.register(), phase.clone(), self.packets_to);
                spawn(Box::new(move || {
                    packets::send(to, packets, (thread, of), &counter, &phase)
                        .map_err(|error| not_sent(packets.bytes, error))?;
                    Ok(Tally::default())
                }))?;
            }
        }
        let Some(requests) = self.load.requests else { return Ok(handles) };
        if requests.connect_each {
            for thread in 0..of {
                let (socket, phase) = (self.load.socket.clone(), phase.clone());
                spawn(Box::new(move || requests::connect_each(&requests, target, &socket, (thread, of), &phase)))?;
            }
            return Ok(handles);
        }
        let (alone, of) = (requests.alone(self.load.buffers_set()), self.threads.len() as u32);
        for (thread, streams) in (0..).zip(&self.threads) {
            let streams = streams.iter().map(TcpStream::try_clone).collect::<io::Result<Vec<_>>>()?;
            let phase = phase.clone();
            spawn(Box::new(move || Ok(requests::run(&requests, streams, (thread, of), alone, &phase)?)))?;
        }
        Ok(handles)
    }

    /// Says when packets are counted.
    fn announce(&self) -> anyhow::Result<()> {
        let (warm_up, time) = (self.load.warm_up, self.load.time);
        let (mut control, announcement) = (&self.control, Announcement { warm_up, time }.encode());
        match self.load.packets {
            Some(_) => control.write_all(&announcement).context("announcing the packets"),
            None => Ok(()),
        }
    }

    /// The counts so far; those of the server only if it is to be asked.
    fn read(&self, phase: &Phase, ask: bool) -> anyhow::Result<Reading> {
        let cpu = CpuUse::now();
        let (at_ns, counts) = (phase.now_ns(), self.counters.read());
        if !ask {
            return Ok(Reading { at_ns, cpu, counts, server: Report::default() });
        }
        let mut bytes = [0; Report::BYTES];
        let mut control = &self.control;
        let asked = control.write_all(b"?").and_then(|()| control.read_exact(&mut bytes));
        asked.context("asking the server for its CPU time")?;
        Ok(Reading { at_ns, cpu, counts, server: Report::decode(&bytes) })
    }

    /// Wakes threads that wait in a system call.
    fn shut_down(&self) {
        for stream in self.threads.iter().flatten().chain(&self.bulk) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn outcome(
        &self,
        role: &'static str,
        target: SocketAddr,
        tally: &Tally,
        before: &Reading,
        after: &Reading,
    ) -> Outcome {
        let load = self.load;
        let window_ns = after.at_ns.saturating_sub(before.at_ns);
        let seconds = window_ns as f64 / 1e9;
        let moved = after.counts.since(before.counts);
        let bulk_bytes = moved.sent + moved.received;
        let requests = if load.requests.is_some() { tally.requests } else { moved.operations };
        let bytes = tally.bytes + bulk_bytes;
        let outcome = Outcome::of_window(load.kind, role, Some(target.port()), seconds, requests, bytes)
            .with_latency(&tally.latencies);
        let cpu = |cpu_ns: u64, busiest_ns: u64| Cpu {
            busiest_thread: (window_ns > 0 && busiest_ns > 0).then(|| busiest_ns as f64 / window_ns as f64),
            ..Cpu::new(cpu_ns as f64 / 1e9, requests, bytes)
        };
        let (cpu_ns, busiest_ns) = after.cpu.since(&before.cpu);
        let client_cpu = cpu(cpu_ns, busiest_ns);
        let server_cpu = cpu(after.server.cpu_ns, after.server.busiest_ns);
        let offered_per_s = load.offered_per_s();
        let arrived = after.server.counts.since(before.server.counts).operations;
        let mut generated = Generated {
            offered_per_s,
            unanswered: load.requests.map(|_| tally.unanswered),
            send_lag: tally.send_lag.summary(),
            bulk_bytes_per_s: (load.requests.is_some() && load.bulk.is_some())
                .then(|| bulk_bytes as f64 / seconds.max(1e-9)),
            received_per_s: load.packets.map(|_| arrived as f64 / seconds.max(1e-9)),
            lost_share: load.packets.map(|_| 1.0 - arrived.min(requests) as f64 / requests.max(1) as f64),
            limits: Vec::new(),
        };
        generated.limits = limits(&Seen {
            client_thread: client_cpu.busiest_thread,
            server_thread: server_cpu.busiest_thread,
            offered_per_s,
            rate_per_s: outcome.rate_per_s,
            send_lag: generated.send_lag,
            latency: outcome.latency,
        });
        if load.packets.is_some() {
            // Packets wait for no connection: a sender that is behind is the limit itself.
            generated.limits.iter_mut().filter(|limit| **limit == Limit::Connections).for_each(|limit| {
                *limit = Limit::SendLag;
            });
        }
        Outcome { cpu: Some(client_cpu), server_cpu: Some(server_cpu), generated, errors: tally.lost, ..outcome }
    }
}

fn no_server(target: SocketAddr, error: &io::Error) -> UserError {
    UserError::new(
        format!("{target} does not answer as the server of a load: {error}"),
        "the other end must be `parshall lab load` with --serve, of the same version",
    )
}

fn not_sent(bytes: usize, error: io::Error) -> anyhow::Error {
    /// EMSGSIZE: with UDP_SEGMENT a packet that would have to be fragmented.
    const TOO_LARGE: i32 = 90;
    match error.raw_os_error() {
        Some(TOO_LARGE) => UserError::new(
            format!("packets of {bytes} B do not fit the path: {error}"),
            "choose a smaller --packet-bytes, or send fragments with --single",
        )
        .into(),
        _ => anyhow::Error::new(error).context("sending packets"),
    }
}

/// How long a server must live that serves one client.
pub fn server_life(load: &Load) -> Duration {
    const CONNECTING: Duration = Duration::from_secs(10);
    load.warm_up + load.time + CONNECTING
}
