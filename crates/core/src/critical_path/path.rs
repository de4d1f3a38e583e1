//! Pieces of many requests, added up by the way they went.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use parshall_evidence::{Hop, HopKind, Object, PathPart, Runner, Stopper};

use super::index::Index;
use super::step::{Piece, Step, Target};
use crate::sorting::{IntoOrdered as _, StableSort as _};
use crate::text::without_numbers;

/// A part smaller than this share of the whole is added to the step before its last one.
const SMALL: f64 = 0.002;
/// Parts kept at most.
const PARTS_MAX: usize = 96;

/// Two steps are the same for a reader of the report if these are. Workers are told apart by neither their ids nor the numbers
/// in their names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    process: String,
    thread: String,
    kind: HopKind,
    syscall: String,
    target: String,
    /// The other end of the connection that it waited on.
    peer: Option<SocketAddr>,
}

#[derive(Debug, Clone, Default)]
struct Sum {
    ns: u64,
    requests: u64,
    longest_ns: u64,
    /// By step: time of each thread, and a stack with the time that has it.
    threads: Vec<BTreeMap<u32, u64>>,
    stacks: Vec<BTreeMap<u32, u64>>,
    /// By step: time of each thread that it waited for.
    targets: Vec<BTreeMap<u32, u64>>,
}

/// The parts so far.
pub struct Paths<'a> {
    index: &'a Index<'a>,
    sums: BTreeMap<Vec<Key>, Sum>,
}

impl<'a> Paths<'a> {
    /// None yet.
    pub fn new(index: &'a Index<'a>) -> Paths<'a> {
        Paths { index, sums: BTreeMap::new() }
    }

    /// Adds a request's pieces.
    pub fn add(&mut self, pieces: &[Piece]) {
        let mut own: BTreeMap<Vec<Key>, Sum> = BTreeMap::new();
        for piece in pieces {
            let mut keyed: Vec<(Key, Step)> = piece.steps.iter().map(|step| (self.key(step), *step)).collect();
            // In a queue for one lock each waits for the one before it: the last of them waits for the holder. In a deadlock
            // there is no last one.
            if piece.steps.last().is_some_and(|leaf| leaf.kind != HopKind::Deadlock) {
                keyed.dedup_by(|next, before| next.0 == before.0);
            }
            let (keys, steps): (Vec<Key>, Vec<Step>) = keyed.into_iter().unzip();
            own.entry(keys).or_default().take(&steps, piece.ns);
        }
        for (keys, mut sum) in own {
            sum.requests = 1;
            sum.longest_ns = sum.ns;
            self.sums.entry(keys).or_default().join(sum);
        }
    }

    /// The parts, the largest first.
    pub fn finish(mut self) -> Vec<PathPart> {
        self.fold();
        let index = self.index;
        let mut parts: Vec<PathPart> = self.sums.into_iter().map(|(keys, sum)| part(index, keys, &sum)).collect();
        parts.stable_sort_by_key(|part| std::cmp::Reverse(part.ns));
        parts
    }

    fn key(&self, step: &Step) -> Key {
        let names = self.index.names(step.tid);
        Key {
            process: names.map_or_else(String::new, |n| n.process.clone()),
            thread: names.map_or_else(String::new, |n| without_numbers(&n.thread)),
            kind: step.kind,
            syscall: self.index.timeline.syscalls.get(&step.syscall).cloned().unwrap_or_default(),
            target: self.target(step),
            peer: match step.target {
                // The clients of a service are not told apart; the server that a client polls is one.
                Target::Remote(id) => {
                    let socket = self.index.socket(id).filter(|s| step.kind != HopKind::OtherRequest || !s.serves);
                    socket.map(|s| s.remote)
                }
                _ => None,
            },
        }
    }

    fn target(&self, step: &Step) -> String {
        match step.target {
            Target::None if step.kind == HopKind::Stopped => {
                stopper(self.index, step.tid).map(ToString::to_string).unwrap_or_default()
            }
            Target::None => String::new(),
            Target::Remote(id) => self.index.socket(id).map_or_else(String::new, |s| match step.kind {
                // The clients of a service differ in nothing but their ports.
                HopKind::OtherRequest => String::new(),
                HopKind::Client => match self.index.peer(id) {
                    Some(peer) if !peer.process.is_empty() => format!("{} ({} {})", s.remote, peer.process, peer.pid),
                    _ => s.remote.to_string(),
                },
                // The destination of a datagram that is sent with its address is not seen.
                _ if s.remote.port() == 0 || s.remote.ip().is_unspecified() => String::new(),
                _ => s.remote.to_string(),
            }),
            Target::File(fd) => {
                let pid = self.index.names(step.tid).map_or(0, |n| n.pid);
                self.index.timeline.files.get(&(pid, fd)).cloned().unwrap_or_default()
            }
            // Which of them it was is added at the end.
            Target::Thread(tid) => match self.index.names(tid) {
                Some(names) if names.thread == names.process || names.thread.is_empty() => names.process.clone(),
                Some(names) => format!("{} of {}", without_numbers(&names.thread), names.process),
                // The threads that ran are gone by now: they are many, and none of them matters by itself.
                None if step.kind == HopKind::RunQueue => "other processes".to_string(),
                None => format!("thread {tid}"),
            },
        }
    }

    /// Adds the small parts to what they are a part of, from the innermost steps outwards.
    fn fold(&mut self) {
        let total: u64 = self.sums.values().map(|sum| sum.ns).sum();
        let mut sizes: Vec<u64> = self.sums.values().map(|sum| sum.ns).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let least = ((total as f64 * SMALL) as u64).max(sizes.get(PARTS_MAX).map_or(0, |ns| ns + 1));
        let deepest = self.sums.keys().map(Vec::len).max().unwrap_or(0);
        for depth in (2..=deepest).rev() {
            let small = |(keys, sum): &(&Vec<Key>, &Sum)| keys.len() == depth && sum.ns < least;
            let found: Vec<Vec<Key>> = self.sums.iter().filter(small).map(|(keys, _)| keys.clone()).collect();
            for mut keys in found {
                let Some(mut sum) = self.sums.remove(&keys) else { continue };
                keys.pop();
                sum.threads.truncate(keys.len());
                sum.stacks.truncate(keys.len());
                sum.targets.truncate(keys.len());
                self.sums.entry(keys).or_default().join(sum);
            }
        }
    }
}

impl Sum {
    fn take(&mut self, steps: &[Step], ns: u64) {
        self.threads.resize_with(steps.len(), BTreeMap::new);
        self.stacks.resize_with(steps.len(), BTreeMap::new);
        self.targets.resize_with(steps.len(), BTreeMap::new);
        for (i, step) in steps.iter().enumerate() {
            *self.threads[i].entry(step.tid).or_default() += ns;
            if let Some(stack) = step.stack {
                *self.stacks[i].entry(stack).or_default() += ns;
            }
            if let Target::Thread(tid) = step.target {
                *self.targets[i].entry(tid).or_default() += ns;
            }
        }
        self.ns += ns;
    }

    fn join(&mut self, other: Sum) {
        self.ns += other.ns;
        // A request may have come to the same part twice after folding: that it counts twice then does no harm.
        self.requests += other.requests;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.threads.resize_with(self.threads.len().max(other.threads.len()), BTreeMap::new);
        self.stacks.resize_with(self.stacks.len().max(other.stacks.len()), BTreeMap::new);
        add_all(&mut self.threads, other.threads);
        self.targets.resize_with(self.targets.len().max(other.targets.len()), BTreeMap::new);
        add_all(&mut self.stacks, other.stacks);
        add_all(&mut self.targets, other.targets);
    }
}

fn add_all(sums: &mut [BTreeMap<u32, u64>], others: Vec<BTreeMap<u32, u64>>) {
    for (sum, other) in sums.iter_mut().zip(others) {
        for (key, ns) in other {
            *sum.entry(key).or_default() += ns;
        }
    }
}

fn most(sums: Option<&BTreeMap<u32, u64>>) -> Option<u32> {
    sums?.iter().max_by_key(|(key, ns)| (**ns, std::cmp::Reverse(**key))).map(|(key, _)| *key)
}

fn part(index: &Index<'_>, keys: Vec<Key>, sum: &Sum) -> PathPart {
    let hops = keys.into_iter().enumerate().map(|(i, key)| {
        let tid = most(sum.threads.get(i)).unwrap_or(0);
        let names = index.names(tid);
        let targets = sum.targets.get(i).filter(|tids| !tids.is_empty());
        Hop {
            pid: names.map_or(0, |n| n.pid),
            tid,
            threads: sum.threads.get(i).map_or(0, BTreeMap::len) as u32,
            thread: names.map_or_else(String::new, |n| n.thread.clone()),
            title: names.and_then(|n| index.timeline.titles.get(&n.pid)).cloned().unwrap_or_default(),
            process: key.process,
            kind: key.kind,
            syscall: key.syscall,
            object: match (key.peer, targets) {
                (Some(peer), _) => Object::Peer(peer),
                (None, Some(tids)) => Object::Thread(runner(index, tids)),
                (None, None) if key.kind == HopKind::Stopped => {
                    stopper(index, tid).map_or(Object::None, |stopper| Object::Stopper(stopper.clone()))
                }
                (None, None) => Object::None,
            },
            target: match targets {
                Some(tids) => numbered(index, &key.target, tids),
                None => key.target,
            },
            stack: most(sum.stacks.get(i)),
        }
    });
    PathPart { hops: hops.collect(), ns: sum.ns, requests: sum.requests, longest_ns: sum.longest_ns, setup: false }
}

fn stopper<'t>(index: &Index<'t>, tid: u32) -> Option<&'t Stopper> {
    index.timeline.stopped_by.get(&index.names(tid)?.pid)
}

fn runner(index: &Index<'_>, tids: &BTreeMap<u32, u64>) -> Runner {
    let mut names = tids.keys().filter_map(|tid| index.names(*tid)).peekable();
    let process = names.peek().map_or_else(String::new, |names| names.process.clone());
    let pids: BTreeSet<u32> = names.map(|names| names.pid).filter(|pid| *pid != 0).into_set();
    Runner { pid: if pids.len() == 1 { pids.first().copied().unwrap_or(0) } else { 0 }, process }
}

/// `sh 812`, `worker-3 of app 311`; without a number where the threads of several processes had the same name.
fn numbered(index: &Index<'_>, name: &str, tids: &BTreeMap<u32, u64>) -> String {
    let named = tids.keys().filter_map(|tid| Some((*tid, index.names(*tid)?)));
    let pids: BTreeSet<u32> = named.clone().map(|(_, names)| names.pid).filter(|pid| *pid != 0).into_set();
    match (pids.len(), named.clone().next()) {
        (1, Some((tid, names))) if tids.len() == 1 && names.thread != names.process && !names.thread.is_empty() => {
            format!("{} of {} {}", names.thread, names.process, if names.pid == 0 { tid } else { names.pid })
        }
        (1, Some((_, names))) => format!("{name} {}", names.pid),
        _ => name.to_string(),
    }
}

/// At most `most` of all, evenly chosen.
pub fn evenly<T>(all: &[T], most: usize) -> impl Iterator<Item = &T> {
    let step = all.len().div_ceil(most.max(1)).max(1);
    all.iter().step_by(step)
}
