//! Whether a service is healthy, as a proof: all time in which requests, clients and service threads were seen to wait is put into one of
//! three kinds by what it was spent on, and nearly all of it must be harmless. Where somebody waits and no cause holds, this says who,
//! for what and for how long; where it was not seen what they wait for, this says what to observe.
//!
//! This module has the table, and the sentences. [`crate::judge::facts`] decides which time was lost.
#[cfg(test)]
mod tests;

use parshall_evidence::{FdKind, FlowRecord, FlowState, HopKind, Transport};

use crate::critical_path::clients::{Awaits, ClientWait};
use crate::judge::chain;
use crate::judge::facts::requests::{FLOOR_NS, PartFact, ServiceFact};
use crate::judge::facts::{Facts, Shape, Spent, ThreadFact};
use crate::judge::ledger::flow_rules::serves;
use crate::judge::ledger::thread::State;
use crate::stats::ratio;
use crate::units;

/// At least this share of what waits must be harmless.
pub const PROVEN: f64 = 0.90;
/// A connection that has been under way for longer is waited for.
const CONNECTING_NS: u64 = 500_000_000;
/// Reading bulk data and passing it on costs a few nanoseconds a byte, decryption included; from here on it is the reader that is slow.
const READING_NS_PER_BYTE: f64 = 8.0;
/// A reader that runs, or could, for this share of its time has no time left.
const FULL: f64 = 0.85;

/// The kinds of time for which somebody waited, by what each says of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nobody owes it.
    Harmless,
    /// Somebody waited for what could have come.
    Lost,
    /// The object of the wait was not seen.
    Unknown,
}

/// The kind of a request's time that was spent on this, and the reason.
pub fn fate(spent: Spent) -> (Fate, &'static str) {
    use Fate::{Harmless, Lost, Unknown};
    match spent {
        Spent::Work => (
            Harmless,
            "a CPU at a cost that such a request needs, a client that still sends, or a request that must come first",
        ),
        Spent::Flow => (Harmless, "its flow has it on its own account, and loses it there if anybody does"),
        Spent::Unseen => (Unknown, "what it was for was not seen"),
        Spent::Lock => (Lost, "somebody holds the lock"),
        Spent::Disk => (Lost, "the disk answers late"),
        Spent::Downstream => (Lost, "the server that was asked answers late"),
        Spent::Dns => (Lost, "the name server answers late"),
        Spent::Timer => (Lost, "the timer could be shorter, or an event"),
        Spent::Turn => (Lost, "more could be passed on at a time"),
        Spent::Serial => (Lost, "other requests are served first, one at a time"),
        Spent::Workers => (Lost, "all workers are blocked"),
        Spent::StopTheWorld => (Lost, "all threads stand still meanwhile"),
        Spent::HotThread => (Lost, "other threads are idle meanwhile"),
        Spent::RunQueue => (Lost, "other programs use the CPU"),
        Spent::Throttled => (Lost, "CPUs may be idle meanwhile"),
        Spent::CpuUser | Spent::CpuKernel | Spent::PageFaults => (Lost, "it costs more than such a request needs"),
        Spent::Memory => (Lost, "memory is short"),
        Spent::Log => (Lost, "whoever should take the line is slow"),
        Spent::Stopped => (Lost, "somebody stopped the process"),
        Spent::Connect | Spent::Setup => (Lost, "the connection could be kept"),
        Spent::Descriptors => (Lost, "a limit on descriptors keeps it from being accepted"),
        Spent::NotAccepted => (Lost, "nobody takes the connection"),
        Spent::TurnedAway => (Lost, "the queue of the server is full"),
        Spent::Mutual => (Lost, "each side waits for the other"),
        Spent::Network => (Lost, "the receiver does not take it"),
        Spent::Held => (Lost, "it lies in a socket that Nagle's algorithm keeps back"),
        Spent::Other => (Lost, "no cause claims it"),
    }
}

/// Why a service is not called healthy although no cause holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Doubt {
    /// Somebody waits: who, for what, how long.
    Waits(String),
    /// It was not seen what somebody waits for, and what to do about it.
    Unseen(String),
}

/// The reason not to call the subject healthy; None where at least [`PROVEN`] of the waits is known to be harmless, or the rest would not
/// be felt. `unseen` is the share of the requests' time that was not seen, as far as it would be felt.
pub fn doubt(facts: &Facts<'_>, unseen: f64) -> Option<Doubt> {
    let connecting = connecting(facts);
    if clients_share(facts) > 1.0 - PROVEN {
        return Some(Doubt::Waits(clients(facts, &connecting)));
    }
    if let Some(reader) = slow_reader(facts) {
        return Some(Doubt::Waits(reader));
    }
    if let Some((exchanges, _)) = unpaired(facts).filter(|(_, requests)| *requests == 0.0) {
        return Some(Doubt::Unseen(format!(
            "{} seen on the service's connections, and none could be made into a request with its reply: how long they take \
             is not known.",
            units::plural_f(exchanges, "exchange was", "exchanges were")
        )));
    }
    if unseen > 1.0 - PROVEN {
        return Some(Doubt::Unseen(unseen_words(facts, unseen)));
    }
    never_open(facts)
}

/// All connections were opening, closing or waiting to be accepted as long as they were seen, and moved nothing: whoever serves them is not
/// the subject.
fn never_open(facts: &Facts<'_>) -> Option<Doubt> {
    let passing =
        |rec: &FlowRecord| !rec.cells.is_empty() && rec.cells.iter().all(|cell| cell.state == FlowState::Other);
    let open = facts.flows.iter().any(|flow| flow.shape != Shape::Idle || !passing(flow.rec));
    let count = facts.flows.iter().map(|flow| flow.rec.connections()).sum();
    (facts.requests.is_empty() && !facts.flows.is_empty() && !open).then(|| {
        Doubt::Unseen(format!(
            "{} opening, closing or waiting to be accepted, and the subject had no open one: does another process serve them?",
            units::plural(count, "connection was", "connections were")
        ))
    })
}

/// Fewer exchanges may be those of handshakes.
const EXCHANGES_MIN: f64 = 20.0;
/// A request may take several exchanges (a handshake, its parts, pings), and not as many.
const PER_REQUEST: f64 = 8.0;

/// The exchanges on the connections of services, and the requests that were answered there, where far fewer requests were found than that:
/// the account of requests is not the service's.
pub fn unpaired(facts: &Facts<'_>) -> Option<(f64, f64)> {
    let services = || facts.requests.counted().filter(|s| !s.rec.outbound && !s.rec.waited);
    let (mut exchanges, mut found) = (0.0, 0.0);
    for flow in facts.flows.iter().filter(|flow| serves(flow.rec)) {
        if services().any(|s| s.rec.address.port() == flow.rec.local.port()) {
            exchanges += flow.rec.calls.exchanges as f64 * flow.ledger.scale;
        }
    }
    for service in services() {
        let scale = ratio(facts.capture.window_ns as f64, service.rec.observed_ns as f64).max(1.0);
        found += service.rec.requests as f64 * scale;
    }
    (exchanges >= EXCHANGES_MIN && exchanges > found * PER_REQUEST).then_some((exchanges, found))
}

/// The port of a service of datagrams none of whose clients is on this host, as far as was seen: what they wait for beyond its replies, the
/// kernel does not know either. TCP's connections have their round trip.
pub fn unseen_distance(facts: &Facts<'_>) -> Option<u16> {
    let timeline = facts.capture.timeline.as_ref()?;
    let is_near = |port: u16| timeline.sockets.values().any(|s| s.udp && !s.serves && s.remote.port() == port);
    let served = facts.requests.counted().filter(|service| !service.rec.outbound && service.rec.requests > 0);
    let mut ports = served.filter(|service| service.rec.transport == Transport::Udp).map(|s| s.rec.address.port());
    ports.find(|port| !is_near(*port))
}

/// Of all that clients waited, the share outside of their requests.
pub fn clients_share(facts: &Facts<'_>) -> f64 {
    let ns = waits_ns(facts, &connecting(facts));
    ratio(ns, facts.requests.time_ns() + ns)
}

fn waits_ns(facts: &Facts<'_>, connecting: &Connecting<'_>) -> f64 {
    client_waits_ns(facts, counts(facts)) + connecting.ns
}

/// Whether a client that waits for this waits for the service.
fn counts(facts: &Facts<'_>) -> impl Fn(Awaits) -> bool {
    let connects = !opens_for_itself(facts);
    move |awaits| connects || awaits != Awaits::Connect
}

/// The subject serves requests, and no port was asked for: a connection that it opens is on their path, or no request waits for it.
fn opens_for_itself(facts: &Facts<'_>) -> bool {
    facts.capture.subject.ports.is_empty() && facts.requests.counted().any(|service| !service.rec.outbound)
}

/// Time that observed clients waited for this outside of their requests, scaled to the window.
pub fn client_waits_ns(facts: &Facts<'_>, counts: impl Fn(Awaits) -> bool) -> f64 {
    let waits = facts.clients.iter().filter(|wait| counts(wait.awaits));
    let observed = facts.capture.slices.observed_ns as f64;
    let scale = if observed > 0.0 { ratio(facts.capture.window_ns as f64, observed).max(1.0) } else { 1.0 };
    waits.map(|wait| wait.ns as f64).sum::<f64>() * scale
}

/// Connections of clients that are still being opened when the window ends.
struct Connecting<'f> {
    ns: f64,
    count: u64,
    longest_ns: u64,
    flow: Option<&'f parshall_evidence::FlowRecord>,
}

fn connecting<'f>(facts: &'f Facts<'_>) -> Connecting<'f> {
    let mut found = Connecting { ns: 0.0, count: 0, longest_ns: 0, flow: None };
    let ports = &facts.capture.subject.ports;
    let asked = |flow: &parshall_evidence::FlowRecord| match ports.is_empty() {
        true => !opens_for_itself(facts),
        false => ports.contains(&flow.remote.port()),
    };
    for flow in facts.flows.iter().map(|flow| flow.rec).filter(|flow| !serves(flow) && asked(flow)) {
        let ns = flow.end_ns.saturating_sub(flow.begin_ns);
        if flow.last.state == parshall_evidence::socket::selection::state::SYN_SENT && ns >= CONNECTING_NS {
            found.ns += ns as f64;
            found.count += flow.connections();
            if ns > found.longest_ns {
                (found.longest_ns, found.flow) = (ns, Some(flow));
            }
        }
    }
    found
}

/// Says which client waits for what.
fn clients(facts: &Facts<'_>, connecting: &Connecting<'_>) -> String {
    let counts = counts(facts);
    let worst = facts.clients.iter().filter(|wait| counts(wait.awaits)).max_by_key(|wait| wait.ns);
    let worst = worst.filter(|wait| wait.ns as f64 >= connecting.ns);
    match (worst, connecting.flow) {
        (Some(wait), _) => client(wait),
        (None, Some(flow)) => format!(
            "{} to {} being opened and not answered (the longest for {}): whoever should answer does not, or is not there.",
            units::plural(connecting.count, "connection is", "connections are"),
            flow.remote,
            units::duration(connecting.longest_ns as f64)
        ),
        (None, None) => "Clients wait for connections that are being opened.".to_owned(),
    }
}

fn client(wait: &ClientWait) -> String {
    let who = match wait.process.as_str() {
        "" => "A client".to_owned(),
        process => format!("{process} {}", wait.pid),
    };
    let each = units::duration(ratio(wait.ns as f64, wait.count as f64));
    let times = units::plural(wait.count, "time", "times");
    let longest = units::duration(wait.longest_ns as f64);
    match wait.awaits {
        Awaits::Close => format!(
            "{who} has its reply from {}, and reads on until the service closes the connection: {times}, {each} on average (the longest \
             {longest}). Either the reply does not tell its length, or the client does not heed it; the service closes when its timeout \
             for idle connections ends.",
            wait.remote
        ),
        Awaits::Reply => format!(
            "{who} gave up waiting for replies of {}: {times}, after {each} on average (the longest {longest}). The service has read what \
             was asked, and none of its threads that were seen works on it: it is kept somewhere inside, for a limit, a quota or another \
             client.",
            wait.remote
        ),
        Awaits::Connect => format!(
            "{who} waited for connections to {} to be opened: {times}, {each} on average (the longest {longest}), and no cause known here \
             accounts for it.",
            wait.remote
        ),
    }
}

/// A thread that lives for a shorter share of the window, such as one of a process for each connection, takes in no bulk data.
const LIVES_MIN: f64 = 0.1;

/// A thread that takes in bulk data has no time left and spends far more on each byte than reading it needs, while its senders wait.
fn slow_reader(facts: &Facts<'_>) -> Option<String> {
    let cost = |t: &ThreadFact<'_>| ratio(t.ledger.on_cpu(), t.bytes);
    let full = |t: &&ThreadFact<'_>| {
        if t.ledger.wall_ns < LIVES_MIN * facts.capture.window_ns as f64 {
            return false;
        }
        let (on_cpu, runnable) = (t.ledger.on_cpu(), t.ledger.of(State::Runnable));
        ratio(on_cpu + runnable.min(on_cpu), t.ledger.wall_ns) >= FULL && cost(t) >= READING_NS_PER_BYTE
    };
    let reads = |t: &&ThreadFact<'_>| {
        facts.flows.iter().any(|flow| {
            let waits = flow.ledger.of(crate::judge::ledger::flow::State::ReaderWaiting) >= 0.5 * flow.ledger.wall_ns;
            flow.shape == Shape::StreamIn && flow.rec.last_tid == t.rec.tid && waits
        })
    };
    let worst = facts.threads.iter().filter(full).filter(reads).max_by(|a, b| cost(a).total_cmp(&cost(b)))?;
    Some(format!(
        "thread {} ({}) is busy for {} of the time with the data that it reads, {} of CPU time a kilobyte, and its senders wait for it: no \
         cause known here says why that is as much.",
        worst.rec.tid,
        worst.rec.comm,
        units::percent(ratio(worst.ledger.on_cpu(), worst.ledger.wall_ns)),
        units::duration(cost(worst) * 1e3)
    ))
}

/// Sending bulk data costs the kernel less than a nanosecond a byte, the way to a receiver on this host included; from here on something
/// else works on each segment (a packet filter, a tunnel).
const SENDING_NS_PER_BYTE: f64 = 8.0;
/// Calls that send less are not bulk: their cost is that of a call.
const BULK_BYTES: u64 = 16_384;
/// Share of its time that a thread spends in calls that send before it matters.
const SENDING: f64 = 0.3;

/// The thread that is kept busy by sending although the kernel should need far less for it, and what a byte costs, in nanoseconds.
pub fn slow_sending(facts: &Facts<'_>) -> Option<(String, f64)> {
    let sends = |name: &str| name.starts_with("send") || name.starts_with("write") || name == "splice";
    let found = facts.threads.iter().filter_map(|thread| {
        let calls = thread.rec.syscalls.iter().filter(|call| call.fd == FdKind::Tcp && sends(&call.name));
        let bulk = calls.filter(|call| call.bytes >= BULK_BYTES.saturating_mul(call.count));
        let (ns, bytes) = bulk.fold((0.0, 0.0), |sum, call| (sum.0 + call.on_cpu_ns as f64, sum.1 + call.bytes as f64));
        let much = ns >= SENDING * thread.rec.observed_ns as f64 && ns >= SENDING_NS_PER_BYTE * bytes && bytes > 0.0;
        much.then(|| (format!("{} {}", thread.rec.comm, thread.rec.tid), ns / bytes, ns))
    });
    found.max_by(|a, b| a.2.total_cmp(&b.2)).map(|(who, each_ns, _)| (who, each_ns))
}

/// Advice where much of the requests' time was not seen.
pub fn unseen_words(facts: &Facts<'_>, share: f64) -> String {
    let (mut clients, mut others) = (0.0, 0.0);
    for part in facts.requests.counted().flat_map(|s| &s.parts).filter(|p| p.spent == Spent::Unseen) {
        *(if is_of_client(part) { &mut clients } else { &mut others }) += part.ns;
    }
    if clients > others {
        return format!(
            "{} of the requests' time went by between two parts of a request, and whether their clients waited for the service meanwhile \
             was not seen: observe the port and not the process where the clients run on this host, and the clients themselves where \
             they do not.",
            units::percent(share)
        );
    }
    format!(
        "{} of the requests' time was spent where this observation did not reach: {}observe the processes that the service asks, too.",
        units::percent(share),
        facts.advice("run it as root, or ", "")
    )
}

fn is_of_client(part: &PartFact<'_>) -> bool {
    part.rec.hops.iter().rev().nth(1).is_some_and(|hop| hop.kind == HopKind::Client)
}

/// Says who waits for what in most of the time that these services lost, in a sentence; empty where they lost none.
pub fn who<'f, 'a: 'f>(facts: &Facts<'_>, services: impl Iterator<Item = &'f ServiceFact<'a>>) -> String {
    let lost = services.filter(|s| s.slow || s.rec.waited).flat_map(|s| s.parts.iter().map(move |part| (s, part)));
    let most = lost.filter(|(_, part)| fate(part.spent).0 == Fate::Lost).max_by(|a, b| a.1.ns.total_cmp(&b.1.ns));
    let Some((service, part)) = most else { return String::new() };
    let chain = chain::of(facts, service, part.spent);
    let steps: Vec<String> = chain
        .iter()
        .filter(|hop| !hop.process.is_empty())
        .map(|hop| format!("{} {} {}", hop.process, hop.pid, hop.text))
        .collect();
    if steps.is_empty() {
        return String::new();
    }
    let each = ratio(part.rec.ns as f64, part.rec.requests.max(1) as f64).max(FLOOR_NS);
    let hint = if part.spent == Spent::Mutual {
        ". The client expects an interim answer (100 Continue) that does not come, or they differ about the length of the request"
    } else {
        ""
    };
    format!(" {}, {} a request{hint}.", steps.join("; "), units::duration(each))
}
