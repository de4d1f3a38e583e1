//! The metrics of a series: tables of levels, counters and distributions, from which every sink of aggregates generates its own.
use parshall_evidence::socket::{Group, Groups, SocketRecord};

use parshall_evidence::socket::Kind;
use parshall_evidence::socket::selection::state::{ESTABLISHED, LISTEN};

/// A sum over the open sockets of a series in one dump.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// Its name, without prefix. A unit stands at the end.
    pub name: &'static str,
    /// Its unit in UCUM, as OTLP writes it: `By`, `{segment}`, ...
    pub unit: &'static str,
    /// The description for people (`HELP` in Prometheus).
    pub help: &'static str,
    /// The value of one socket.
    pub read: fn(&SocketRecord) -> u64,
}

/// A sum over all sockets that a series ever had. It only grows.
#[derive(Debug, Clone, Copy)]
pub struct Counter {
    /// Its name, without prefix and without `_total`. A unit stands at the end.
    pub name: &'static str,
    /// Its unit in UCUM.
    pub unit: &'static str,
    /// The description for people (`HELP` in Prometheus).
    pub help: &'static str,
}

/// A distribution. Each dump adds one observation for each established TCP socket.
#[derive(Debug, Clone, Copy)]
pub struct Distribution {
    /// Its name, without prefix. A unit stands at the end.
    pub name: &'static str,
    /// Its unit in UCUM.
    pub unit: &'static str,
    /// The description for people (`HELP` in Prometheus).
    pub help: &'static str,
    /// The value in `unit` is the value of the record divided by this.
    pub scale: f64,
    /// Inclusive upper bounds of the buckets, in the unit of the record. The last bucket has none.
    pub bounds: &'static [u64],
    /// The value of one socket; `None` if it has none.
    pub read: fn(&SocketRecord) -> Option<u64>,
}

/// Levels, in the order of [`Series::levels`](super::Series::levels).
pub const LEVELS: [Level; 11] = [
    Level {
        name: "receive_queue_bytes",
        unit: "By",
        help: "Bytes received and not read",
        read: |r| if listens(r) { 0 } else { r.rqueue_bytes.into() },
    },
    Level {
        name: "send_queue_bytes",
        unit: "By",
        help: "Bytes written and not acknowledged",
        read: |r| if listens(r) { 0 } else { r.wqueue_bytes.into() },
    },
    Level { name: "notsent_bytes", unit: "By", help: "Bytes written and not sent", read: |r| r.notsent_bytes.into() },
    Level {
        name: "receive_memory_bytes",
        unit: "By",
        help: "Memory of received packets",
        read: |r| r.rmem_alloc_bytes.into(),
    },
    Level {
        name: "send_memory_bytes",
        unit: "By",
        help: "Memory of send queues",
        read: |r| r.wmem_queued_bytes.into(),
    },
    Level {
        name: "forward_memory_bytes",
        unit: "By",
        help: "Memory reserved for later packets",
        read: |r| r.fwd_alloc_bytes.into(),
    },
    Level {
        name: "in_flight_segments",
        unit: "{segment}",
        help: "Segments sent and not acknowledged",
        read: |r| r.unacked.into(),
    },
    Level { name: "lost_segments", unit: "{segment}", help: "Segments considered lost", read: |r| r.lost.into() },
    Level {
        name: "accept_queue",
        unit: "{connection}",
        help: "Connections in accept queues",
        read: |r| r.accept_queue.into(),
    },
    Level {
        name: "accept_queue_limit",
        unit: "{connection}",
        help: "Limits of accept queues (backlog), summed over listeners",
        read: |r| r.accept_limit.into(),
    },
    Level {
        name: "accept_queues_full",
        unit: "{socket}",
        help: "Listeners whose accept queue is full: the kernel drops further connections",
        // A queue is full when it is longer than its limit (sk_acceptq_is_full).
        read: |r| u64::from(listens(r) && r.accept_limit > 0 && r.accept_queue > r.accept_limit),
    },
];

/// Counters, in the order of [`Series::counters`](super::Series::counters).
pub const COUNTERS: [Counter; 10] = [
    Counter { name: "sent_bytes", unit: "By", help: "Data bytes sent, retransmissions included" },
    Counter { name: "received_bytes", unit: "By", help: "Data bytes received in order" },
    Counter { name: "retransmitted_bytes", unit: "By", help: "Data bytes retransmitted" },
    Counter { name: "sent_segments", unit: "{segment}", help: "Segments sent" },
    Counter { name: "received_segments", unit: "{segment}", help: "Segments received" },
    Counter { name: "retransmitted_segments", unit: "{segment}", help: "Segments retransmitted" },
    Counter { name: "timeouts", unit: "{timeout}", help: "Retransmission timeouts" },
    Counter { name: "dropped_packets", unit: "{packet}", help: "Packets dropped at the socket" },
    Counter { name: "opened", unit: "{socket}", help: "Sockets that opened after the first dump" },
    Counter { name: "closed", unit: "{socket}", help: "Sockets that were reported as closed" },
];
/// The first of [`COUNTERS`]: those that the kernel counts for each socket.
pub(super) const PER_SOCKET: usize = 8;
/// Index of `opened` in [`COUNTERS`].
pub(super) const OPENED: usize = 8;
/// Index of `closed` in [`COUNTERS`].
pub(super) const CLOSED: usize = 9;

const QUEUE_BOUNDS: [u64; 10] = [0, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];

/// Distributions, in the order of [`Series::histograms`](super::Series::histograms).
pub const DISTRIBUTIONS: [Distribution; 4] = [
    Distribution {
        name: "rtt_seconds",
        unit: "s",
        help: "Smoothed round trip time",
        scale: 1e6,
        // Each twice the one before, from loopback to a satellite link with a full queue.
        bounds: &[
            32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288,
            1_048_576, 2_097_152,
        ],
        read: |r| (connected(r) && r.rtt_us > 0).then_some(r.rtt_us.into()),
    },
    Distribution {
        name: "cwnd_segments",
        unit: "{segment}",
        help: "Congestion window",
        scale: 1.0,
        bounds: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
        read: |r| (connected(r) && r.snd_cwnd > 0).then_some(r.snd_cwnd.into()),
    },
    Distribution {
        name: "receive_queue_size_bytes",
        unit: "By",
        help: "Bytes received and not read, by socket",
        scale: 1.0,
        bounds: &QUEUE_BOUNDS,
        read: |r| connected(r).then_some(r.rqueue_bytes.into()),
    },
    Distribution {
        name: "send_queue_size_bytes",
        unit: "By",
        help: "Bytes written and not acknowledged, by socket",
        scale: 1.0,
        bounds: &QUEUE_BOUNDS,
        read: |r| connected(r).then_some(r.wqueue_bytes.into()),
    },
];

/// The groups of fields that these metrics read.
pub fn groups() -> Groups {
    Groups::of([Group::Queues, Group::Rtt, Group::Cwnd, Group::Loss, Group::Traffic, Group::Memory, Group::Cgroup])
}

fn listens(record: &SocketRecord) -> bool {
    record.state == LISTEN
}

fn connected(record: &SocketRecord) -> bool {
    record.state == ESTABLISHED && Kind::of(record) == Kind::Tcp
}

/// The counters of one socket in a dump.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Last {
    long: [u64; 3],
    short: [u32; 5],
}

impl Last {
    pub fn of(r: &SocketRecord) -> Self {
        Self {
            long: [r.bytes_sent, r.bytes_received, r.bytes_retrans],
            short: [r.segs_out, r.segs_in, r.total_retrans, r.total_rto.into(), r.drops],
        }
    }

    /// The counters since the socket was opened, in the order of [`COUNTERS`].
    pub fn whole(&self) -> [u64; PER_SOCKET] {
        let [a, b, c] = self.long;
        let [d, e, f, g, h] = self.short.map(u64::from);
        [a, b, c, d, e, f, g, h]
    }

    /// The counts added since `before`. If a 64-bit counter decreased it is another socket, and all of its counts are new. The
    /// others wrap in the kernel at 32 bits; the count of timeouts has 16, and never gets that far.
    pub fn since(&self, before: &Self) -> [u64; PER_SOCKET] {
        if self.long.iter().zip(&before.long).any(|(now, then)| now < then) {
            return self.whole();
        }
        let mut delta = [0; PER_SOCKET];
        for (to, (now, then)) in delta.iter_mut().zip(self.long.iter().zip(&before.long)) {
            *to = now - then;
        }
        for (to, (now, then)) in delta[3..].iter_mut().zip(self.short.iter().zip(&before.short)) {
            let step = now.wrapping_sub(*then);
            // An increase by 2^31 or more is a decrease: a field that was read in one dump and not in the next.
            *to = if step < 1 << 31 { step.into() } else { 0 };
        }
        delta
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_grow_and_names_are_unique() {
        for distribution in DISTRIBUTIONS {
            assert!(distribution.bounds.is_sorted_by(|a, b| a < b), "{}", distribution.name);
        }
        let mut names: Vec<&str> = LEVELS.iter().map(|l| l.name).collect();
        names.extend(COUNTERS.iter().map(|c| c.name));
        names.extend(DISTRIBUTIONS.iter().map(|d| d.name));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert_eq!((COUNTERS[OPENED].name, COUNTERS[CLOSED].name), ("opened", "closed"));
    }

    #[test]
    fn counters_of_32_bits_wrap_and_those_of_64_do_not() {
        let last = |segs_out, bytes_sent| Last::of(&SocketRecord { segs_out, bytes_sent, ..Default::default() });
        assert_eq!(last(5, 100).since(&last(u32::MAX - 4, 90))[..4], [10, 0, 0, 10]);
        assert_eq!(last(5, 7).since(&last(3, 90))[..4], [7, 0, 0, 5]);
        assert_eq!(last(3, 90).since(&last(5, 90))[..4], [0, 0, 0, 0]);
    }
}
