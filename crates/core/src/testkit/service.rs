//! Services made by hand, for tests: a number of requests, and shares of their time that went one way each.
use std::net::{Ipv4Addr, SocketAddr};

use parshall_evidence::{Capture, Hop, HopKind, Object, PathPart, Runner, Service, Stopper, Transport};

use super::{ThreadBuilder, WINDOW_NS, capture};

/// A capture of one service and an idle thread.
pub fn with(service: ServiceBuilder) -> Capture {
    let mut capture = capture(vec![], vec![ThreadBuilder::new(101).samples(100, 0)]);
    capture.threads[0].cpu_ns = 0;
    capture.services = vec![service.build()];
    capture
}

/// Hops under construction.
#[derive(Debug, Clone, Default)]
pub struct Hops {
    hops: Vec<Hop>,
    thread: (u32, u32, String, String),
}

impl Hops {
    /// None yet.
    pub fn new() -> Hops {
        Hops::default()
    }

    /// The thread of the next hops.
    pub fn thread(mut self, pid: u32, tid: u32, process: &str) -> Hops {
        self.thread = (pid, tid, process.to_string(), process.to_string());
        self
    }

    /// The name of this thread.
    pub fn named(mut self, thread: &str) -> Hops {
        self.thread.3 = thread.to_string();
        self
    }

    /// A hop of it.
    pub fn on(mut self, kind: HopKind, syscall: &str) -> Hops {
        let (pid, tid, process, thread) = self.thread.clone();
        self.hops.push(Hop {
            title: String::new(),
            pid,
            tid,
            threads: 1,
            thread,
            process,
            kind,
            syscall: syscall.to_string(),
            target: String::new(),
            object: Object::None,
            stack: None,
        });
        self
    }

    /// The object of the last hop's wait: a file, or the address of a peer.
    pub fn target(self, target: &str) -> Hops {
        self.object(target.parse().map_or(Object::None, Object::Peer), target)
    }

    /// The thread that has the CPU for which the last hop waits.
    pub fn runs(self, process: &str, pid: u32) -> Hops {
        let words = if pid == 0 { process.to_string() } else { format!("{process} {pid}") };
        self.object(Object::Thread(Runner { pid, process: process.to_string() }), &words)
    }

    /// The one that stopped the process of the last hop.
    pub fn stopped_by(self, stopper: Stopper) -> Hops {
        let words = stopper.to_string();
        self.object(Object::Stopper(stopper), &words)
    }

    fn object(mut self, object: Object, words: &str) -> Hops {
        let hop = self.hops.last_mut().expect("a hop");
        (hop.object, hop.target) = (object, words.to_string());
        self
    }

    /// The stack of the last hop.
    pub fn stack(mut self, index: u32) -> Hops {
        self.hops.last_mut().expect("a hop").stack = Some(index);
        self
    }
}

/// A service under construction, observed for the whole window.
#[derive(Debug, Clone)]
pub struct ServiceBuilder {
    /// The service so far.
    pub record: Service,
    parts: Vec<(Hops, f64)>,
}

impl ServiceBuilder {
    /// A service of process 100 that served nothing yet.
    pub fn new(port: u16) -> ServiceBuilder {
        let record = Service {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            transport: Transport::Tcp,
            outbound: false,
            followed: false,
            waited: false,
            pids: vec![100],
            requests: 0,
            unanswered: 0,
            unanswered_longest_ns: 0,
            abandoned: 0,
            connections: 4,
            opened: 0,
            moved: 0,
            overlapping: 0,
            in_pieces: 0,
            continued: 0,
            continued_ns: 0,
            observed_ns: WINDOW_NS,
            p50_ns: None,
            p99_ns: None,
            outstanding_ns: 0,
            working_ns: WINDOW_NS,
            worked_ns: 0,
            reply_gap_p10_ns: 0,
            reply_gap_p50_ns: 0,
            reply_gap_p90_ns: 0,
            limits: Vec::new(),
            workers: 1,
            followed_requests: 0,
            followed_ns: 0,
            path: Vec::new(),
            tail: None,
        };
        ServiceBuilder { record, parts: Vec::new() }
    }

    /// So many requests that took `p50_ms` each.
    pub fn requests(mut self, n: u64, p50_ms: f64) -> ServiceBuilder {
        let ns = (p50_ms * 1e6) as u64;
        let record = &mut self.record;
        (record.requests, record.followed_requests) = (n, n);
        (record.p50_ns, record.p99_ns) = (Some(ns), Some(ns * 2));
        record.outstanding_ns += n * ns;
        record.worked_ns = record.outstanding_ns;
        self
    }

    /// Further requests that had waited `ms` each when the window ended.
    pub fn unanswered(mut self, n: u64, ms: f64) -> ServiceBuilder {
        let record = &mut self.record;
        (record.unanswered, record.unanswered_longest_ns) = (n, (ms * 1e6) as u64);
        record.followed_requests += n;
        record.outstanding_ns += n * record.unanswered_longest_ns;
        self
    }

    /// Threads that read or answered.
    pub fn workers(mut self, n: u32) -> ServiceBuilder {
        self.record.workers = n;
        self
    }

    /// 10th percentile, median and 90th percentile of the time between replies.
    pub fn gaps(mut self, p10_ns: u64, p50_ns: u64, p90_ns: u64) -> ServiceBuilder {
        let record = &mut self.record;
        (record.reply_gap_p10_ns, record.reply_gap_p50_ns, record.reply_gap_p90_ns) = (p10_ns, p50_ns, p90_ns);
        self
    }

    /// A share of the requests' time that went this way.
    pub fn part(mut self, hops: Hops, share: f64) -> ServiceBuilder {
        self.parts.push((hops, share));
        self
    }

    /// A share of it on a CPU, in thread 101.
    pub fn cpu(self, share: f64) -> ServiceBuilder {
        let name = self.parts.iter().flat_map(|(h, _)| &h.hops).find(|h| h.pid == 100).map(|h| h.process.clone());
        let hops = Hops::new().thread(100, 101, &name.unwrap_or_else(|| "app".to_string())).on(HopKind::OnCpu, "");
        self.part(hops, share)
    }

    /// The record.
    pub fn build(mut self) -> Service {
        let (all, n) = (self.record.outstanding_ns, self.record.followed_requests);
        let part = |(hops, share): (Hops, f64)| {
            let ns = (all as f64 * share) as u64;
            PathPart { hops: hops.hops, ns, requests: n, longest_ns: ns / n.max(1) * 2, setup: false }
        };
        self.record.followed_ns = all;
        self.record.path = self.parts.into_iter().map(part).collect();
        self.record
    }
}
