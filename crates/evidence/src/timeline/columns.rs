//! How the events of a timeline are written: a column for each field, times as differences. Such columns take about 10 bytes for an
//! event once they are compressed, a tenth of what objects would.
//!
//! The encoding cannot express events that overlap or run backwards, so whatever is read is in order.
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{EVENTS_MAX, Frame, OffCpu, Op, Protocol, SocketCall, Waker, Why};
use crate::flow::FlowId;
use crate::thread::FdKind;

/// Times beyond this (35 hours) are cut to it, so that sums of many do not overflow.
const TIME_MAX_NS: u64 = 1 << 47;

/// Times off the CPU, a column for each field.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct OffCpuColumns {
    /// Threads, with the number of rows of each.
    #[serde(deserialize_with = "bounded")]
    threads: Vec<(u32, usize)>,
    /// From the end of the row before (of the thread, else from 0) to this one's begin.
    #[serde(deserialize_with = "bounded")]
    ran_ns: Vec<u64>,
    /// From the begin to the wake-up.
    #[serde(deserialize_with = "bounded")]
    slept_ns: Vec<u64>,
    /// From the wake-up to the end.
    #[serde(deserialize_with = "bounded")]
    ready_ns: Vec<u64>,
    /// A letter for each: see [`why_letter`].
    why: String,
    #[serde(deserialize_with = "bounded")]
    syscall: Vec<i32>,
    #[serde(deserialize_with = "bounded")]
    fd: Vec<u8>,
    #[serde(deserialize_with = "bounded")]
    fd_number: Vec<i32>,
    #[serde(deserialize_with = "bounded")]
    target: Vec<u64>,
    /// A letter for each: see [`waker_letter`].
    waker: String,
    /// The waker's thread id, 0 for interrupts.
    #[serde(deserialize_with = "bounded")]
    waker_tid: Vec<u32>,
    #[serde(deserialize_with = "bounded")]
    ran_instead_tid: Vec<u32>,
    /// Row and stack of the rows that have one.
    #[serde(deserialize_with = "bounded")]
    stacks: Vec<(usize, u32)>,
}

fn why_letter(why: Why) -> char {
    match why {
        Why::Slept => 's',
        Why::SleptForIo => 'i',
        Why::SleptUninterruptibly => 'd',
        Why::Preempted => 'p',
        Why::Throttled => 'q',
        Why::Stopped => 't',
    }
}

fn why_of(letter: char) -> Option<Why> {
    let all = [Why::Slept, Why::SleptForIo, Why::SleptUninterruptibly, Why::Preempted, Why::Throttled, Why::Stopped];
    all.into_iter().find(|why| why_letter(*why) == letter)
}

fn waker_letter(waker: Waker) -> (char, u32) {
    match waker {
        Waker::Unknown => ('u', 0),
        Waker::Thread(tid) => ('t', tid),
        Waker::KernelThread(tid) => ('k', tid),
        Waker::SoftIrq => ('s', 0),
        Waker::HardIrq => ('h', 0),
    }
}

fn waker_of(letter: char, tid: u32) -> Option<Waker> {
    match letter {
        'u' => Some(Waker::Unknown),
        't' => Some(Waker::Thread(tid)),
        'k' => Some(Waker::KernelThread(tid)),
        's' => Some(Waker::SoftIrq),
        'h' => Some(Waker::HardIrq),
        _ => None,
    }
}

fn later(time: u64, by: u64) -> u64 {
    time.saturating_add(by).min(TIME_MAX_NS)
}

/// Checks that a table has as many rows as its keys say, in each column, and no more than a timeline holds.
fn check<E: Error>(keyed: impl Iterator<Item = usize>, columns: &[usize]) -> Result<(), E> {
    let rows = keyed.fold(0usize, usize::saturating_add);
    if rows > EVENTS_MAX {
        return Err(E::custom(format!("more than {EVENTS_MAX} events")));
    }
    match columns.iter().all(|column| *column == rows) {
        true => Ok(()),
        false => Err(E::custom("columns of different lengths")),
    }
}

/// Reads a column, which may not be longer than a timeline: the rows of a hostile case are not read into memory first.
fn bounded<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Column<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Column<T> {
        type Value = Vec<T>;
        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "a list of at most {EVENTS_MAX}")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut column = Vec::new();
            while let Some(item) = items.next_element()? {
                if column.len() >= EVENTS_MAX {
                    return Err(A::Error::invalid_length(column.len() + 1, &self));
                }
                column.push(item);
            }
            Ok(column)
        }
    }
    deserializer.deserialize_seq(Column(PhantomData))
}

/// Reads slices, and leaves those out that begin before the end of the one before.
pub fn slices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(u64, u64)>, D::Error> {
    let mut slices: Vec<(u64, u64)> = bounded(deserializer)?;
    let mut before = 0;
    slices.retain(|&(begin, end)| {
        let is_next = before <= begin && begin <= end && end <= TIME_MAX_NS;
        if is_next {
            before = end;
        }
        is_next
    });
    Ok(slices)
}

pub mod off_cpu {
    use super::*;

    /// Writes the columns.
    pub fn serialize<S: Serializer>(map: &BTreeMap<u32, Vec<OffCpu>>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut columns = OffCpuColumns::default();
        for (tid, offs) in map {
            columns.threads.push((*tid, offs.len()));
            let mut before = 0;
            for off in offs {
                columns.push(off, before);
                before = off.end_ns;
            }
        }
        columns.serialize(serializer)
    }

    /// Reads the columns.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u32, Vec<OffCpu>>, D::Error> {
        let columns = OffCpuColumns::deserialize(deserializer)?;
        columns.rows().map(|rows| rows.into_iter().collect())
    }
}

impl OffCpuColumns {
    fn push(&mut self, off: &OffCpu, before: u64) {
        let (letter, tid) = waker_letter(off.waker);
        if let Some(stack) = off.stack {
            self.stacks.push((self.ran_ns.len(), stack));
        }
        self.ran_ns.push(off.begin_ns.saturating_sub(before));
        self.slept_ns.push(off.wake_ns.saturating_sub(off.begin_ns));
        self.ready_ns.push(off.end_ns.saturating_sub(off.wake_ns));
        self.why.push(why_letter(off.why));
        self.syscall.push(off.syscall);
        self.fd.push(off.fd as u8);
        self.fd_number.push(off.fd_number);
        self.target.push(off.target);
        self.waker.push(letter);
        self.waker_tid.push(tid);
        self.ran_instead_tid.push(off.ran_instead_tid);
    }

    fn rows<E: Error>(self) -> Result<Vec<(u32, Vec<OffCpu>)>, E> {
        let lengths = [
            self.ran_ns.len(),
            self.slept_ns.len(),
            self.ready_ns.len(),
            self.why.len(),
            self.syscall.len(),
            self.fd.len(),
            self.fd_number.len(),
            self.target.len(),
            self.waker.len(),
            self.waker_tid.len(),
            self.ran_instead_tid.len(),
        ];
        check(self.threads.iter().map(|(_, rows)| *rows), &lengths)?;
        let stacks: BTreeMap<usize, u32> = self.stacks.into_iter().collect();
        let (mut letters, mut wakers) = (self.why.chars(), self.waker.chars());
        let mut row = 0;
        let mut all = Vec::with_capacity(self.threads.len());
        for (tid, rows) in self.threads {
            let mut offs = Vec::with_capacity(rows);
            let mut before = 0;
            for i in row..row + rows {
                let begin_ns = later(before, self.ran_ns[i]);
                let wake_ns = later(begin_ns, self.slept_ns[i]);
                before = later(wake_ns, self.ready_ns[i]);
                offs.push(OffCpu {
                    tid,
                    begin_ns,
                    wake_ns,
                    end_ns: before,
                    why: letters.next().and_then(why_of).ok_or_else(|| E::custom("an unknown reason"))?,
                    syscall: self.syscall[i],
                    fd: FdKind::ALL.get(usize::from(self.fd[i])).copied().unwrap_or_default(),
                    fd_number: self.fd_number[i],
                    target: self.target[i],
                    waker: wakers
                        .next()
                        .and_then(|letter| waker_of(letter, self.waker_tid[i]))
                        .ok_or_else(|| E::custom("an unknown waker"))?,
                    ran_instead_tid: self.ran_instead_tid[i],
                    stack: stacks.get(&i).copied(),
                });
            }
            row += rows;
            all.push((tid, offs));
        }
        Ok(all)
    }
}

/// Calls on sockets, a column for each field.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct CallColumns {
    /// Sockets, with the number of rows of each.
    #[serde(deserialize_with = "bounded")]
    sockets: Vec<(FlowId, usize)>,
    #[serde(deserialize_with = "bounded")]
    tid: Vec<u32>,
    /// A letter for each: receive, send, accept.
    op: String,
    /// From `at_ns` of the row before (of the socket, else from 0) to this one's.
    #[serde(deserialize_with = "bounded")]
    after_ns: Vec<u64>,
    /// From `since_ns` to `at_ns`.
    #[serde(deserialize_with = "bounded")]
    took_ns: Vec<u64>,
    #[serde(deserialize_with = "bounded")]
    bytes: Vec<u32>,
    /// Row and peer of the rows that have one.
    #[serde(deserialize_with = "bounded")]
    peers: Vec<(usize, u64)>,
    /// A letter for each: see [`protocol_letter`]. Empty where no row has a frame.
    #[serde(skip_serializing_if = "String::is_empty")]
    protocols: String,
    /// Of the rows that have a frame: kind, flags, length, stream.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded")]
    frames: Vec<(u8, u8, u32, u32)>,
}

fn protocol_letter(protocol: Option<Protocol>) -> char {
    match protocol {
        None => '-',
        Some(Protocol::Tls) => 't',
        Some(Protocol::Http1) => 'h',
        Some(Protocol::Http2) => '2',
        Some(Protocol::Postgres) => 'p',
        Some(Protocol::Mysql) => 'm',
        Some(Protocol::Redis) => 'r',
        Some(Protocol::Kafka) => 'k',
        Some(Protocol::Dns) => 'd',
        Some(Protocol::WebSocket) => 'w',
        Some(Protocol::Mqtt) => 'q',
    }
}

/// The protocol of a letter; None for one that a later version wrote, too.
fn protocol_of(letter: char) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| protocol_letter(Some(*protocol)) == letter)
}

fn op_letter(op: Op) -> char {
    match op {
        Op::Receive => 'r',
        Op::Send => 's',
        Op::Accept => 'a',
    }
}

fn op_of(letter: char) -> Option<Op> {
    [Op::Receive, Op::Send, Op::Accept].into_iter().find(|op| op_letter(*op) == letter)
}

pub mod calls {
    use super::*;

    /// Writes the columns.
    pub fn serialize<S: Serializer>(map: &BTreeMap<FlowId, Vec<SocketCall>>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut columns = CallColumns::default();
        for (socket, calls) in map {
            columns.sockets.push((*socket, calls.len()));
            let mut before = 0;
            for call in calls {
                if call.peer != 0 {
                    columns.peers.push((columns.tid.len(), call.peer));
                }
                columns.tid.push(call.tid);
                columns.op.push(op_letter(call.op));
                columns.after_ns.push(call.at_ns.saturating_sub(before));
                columns.took_ns.push(call.at_ns.saturating_sub(call.since_ns));
                columns.bytes.push(call.bytes);
                columns.protocols.push(protocol_letter(call.frame.map(|frame| frame.protocol)));
                columns.frames.extend(call.frame.map(|f| (f.kind, f.flags, f.length, f.stream)));
                before = call.at_ns;
            }
        }
        if columns.frames.is_empty() {
            columns.protocols.clear();
        }
        columns.serialize(serializer)
    }

    /// Reads the columns.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<FlowId, Vec<SocketCall>>, D::Error> {
        let columns = CallColumns::deserialize(deserializer)?;
        columns.rows().map(|rows| rows.into_iter().collect())
    }
}

impl CallColumns {
    fn rows<E: Error>(self) -> Result<Vec<(FlowId, Vec<SocketCall>)>, E> {
        let lengths = [self.tid.len(), self.op.len(), self.after_ns.len(), self.took_ns.len(), self.bytes.len()];
        check(self.sockets.iter().map(|(_, rows)| *rows), &lengths)?;
        let peers: BTreeMap<usize, u64> = self.peers.into_iter().collect();
        let mut frames = frames(&self.protocols, &self.frames, self.tid.len())?;
        let mut letters = self.op.chars();
        let mut row = 0;
        let mut all = Vec::with_capacity(self.sockets.len());
        for (socket, rows) in self.sockets {
            let mut calls = Vec::with_capacity(rows);
            let mut before = 0;
            for i in row..row + rows {
                before = later(before, self.after_ns[i]);
                calls.push(SocketCall {
                    socket,
                    tid: self.tid[i],
                    op: letters.next().and_then(op_of).ok_or_else(|| E::custom("an unknown call"))?,
                    since_ns: before.saturating_sub(self.took_ns[i]),
                    at_ns: before,
                    bytes: self.bytes[i],
                    peer: peers.get(&i).copied().unwrap_or(0),
                    frame: frames.next().flatten(),
                });
            }
            row += rows;
            all.push((socket, calls));
        }
        Ok(all)
    }
}

/// The frames of the rows, of which there are `rows`: none for a case that was written without.
fn frames<'a, E: Error>(
    protocols: &'a str,
    frames: &'a [(u8, u8, u32, u32)],
    rows: usize,
) -> Result<impl Iterator<Item = Option<Frame>> + use<'a, E>, E> {
    let with_frame = protocols.chars().filter(|letter| *letter != '-').count();
    if with_frame != frames.len() || !(protocols.is_empty() || protocols.chars().count() == rows) {
        return Err(E::custom("columns of frames of different lengths"));
    }
    let mut fields = frames.iter();
    Ok(protocols.chars().map(move |letter| {
        let &(kind, flags, length, stream) = if letter == '-' { None } else { fields.next() }?;
        Some(Frame { protocol: protocol_of(letter)?, kind, flags, length, stream })
    }))
}

pub mod files {
    use super::*;

    /// Writes a list: JSON has no keys of two numbers.
    pub fn serialize<S: Serializer>(map: &BTreeMap<(u32, i32), String>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map.iter().map(|((pid, fd), path)| (pid, fd, path)))
    }

    /// Reads the list.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<(u32, i32), String>, D::Error> {
        let list: Vec<(u32, i32, String)> = Vec::deserialize(deserializer)?;
        Ok(list.into_iter().map(|(pid, fd, path)| ((pid, fd), path)).collect())
    }
}
