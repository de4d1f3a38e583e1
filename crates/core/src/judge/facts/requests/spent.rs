//! The uses of a part of the requests' time.

/// The uses of time. Causes are found by them: each belongs to at most one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spent {
    /// Work that is cheap, or time that nobody owes: the client still sends, or another request must come first. Not lost.
    Work,
    /// On the account of the flow that carried it. Not counted as lost here.
    Flow,
    /// Not seen.
    Unseen,
    /// For a lock whose holder did something that does not explain it by itself.
    Lock,
    /// For a file or a block device.
    Disk,
    /// For the reply of a server that was not observed.
    Downstream,
    /// For a name server.
    Dns,
    /// For a timer.
    Timer,
    /// For their turn: a process passes no more than a few at a time on to the server that it asks.
    Turn,
    /// Behind other requests: one is served at a time.
    Serial,
    /// Behind other requests: all workers are blocked.
    Workers,
    /// For a garbage collector that has stopped all threads.
    StopTheWorld,
    /// Behind other requests of a thread that is never idle, while other serving threads are.
    HotThread,
    /// For a CPU on which another process ran.
    RunQueue,
    /// Out of CPU quota.
    Throttled,
    /// Computing in user mode.
    CpuUser,
    /// Computing in the kernel.
    CpuKernel,
    /// In page faults, mapping and unmapping.
    PageFaults,
    /// For memory to be reclaimed or read back.
    Memory,
    /// For a log, a pipe or a terminal to take what was written.
    Log,
    /// Stopped by a signal, a debugger or the freezer.
    Stopped,
    /// For a connection to be established.
    Connect,
    /// For what is asked on a new connection before the request that it was opened for.
    Setup,
    /// In the accept queue of a process that has hardly a descriptor left.
    Descriptors,
    /// In the accept queue, and no thread was seen that would take it from there.
    NotAccepted,
    /// For a connection to a server of this host whose full accept queue has turned it away before.
    TurnedAway,
    /// For the rest of a request, while its client waits for the service: neither goes on.
    Mutual,
    /// In the socket of who wrote it, until an earlier write is acknowledged.
    Held,
    /// On the way between sockets.
    Network,
    /// For something that no cause claims.
    Other,
}

impl Spent {
    /// Counted as lost, if the service is slow at all.
    pub fn is_lost(self) -> bool {
        !matches!(self, Spent::Work | Spent::Flow | Spent::Unseen)
    }

    /// The cause that claims it, if one does.
    pub fn cause(self) -> Option<&'static str> {
        Some(match self {
            Spent::Lock => "lock-contention",
            Spent::Disk => "blocking-disk-io",
            Spent::Downstream => "blocking-downstream-call",
            Spent::Dns => "blocking-dns",
            Spent::Timer => "timer-wait",
            Spent::Turn => "concurrency-limit",
            Spent::Serial => "serialized-service",
            Spent::Workers => "workers-exhausted",
            Spent::StopTheWorld => "stop-the-world",
            Spent::HotThread => "hot-thread",
            Spent::RunQueue => "run-queue-latency",
            Spent::Throttled => "cpu-throttled",
            Spent::CpuUser => "user-cpu-bound",
            Spent::CpuKernel => "kernel-cpu-bound",
            Spent::PageFaults => "page-fault-churn",
            Spent::Memory => "memory-reclaim",
            Spent::Log => "blocking-log-write",
            Spent::Stopped => "process-stopped",
            Spent::Setup => "connection-per-request",
            Spent::NotAccepted | Spent::TurnedAway => "accept-queue-overflow",
            Spent::Descriptors => "fd-limit",
            Spent::Held => "nagle-delayed-ack",
            Spent::Work
            | Spent::Flow
            | Spent::Unseen
            | Spent::Connect
            | Spent::Mutual
            | Spent::Network
            | Spent::Other => return None,
        })
    }

    /// Its name for people.
    pub fn label(self) -> &'static str {
        match self {
            Spent::Work => "work",
            Spent::Flow => "waiting for the network",
            Spent::Unseen => "not seen",
            Spent::Lock => "waiting for a lock",
            Spent::Disk => "waiting for the disk",
            Spent::Downstream => "waiting for another server",
            Spent::Dns => "waiting for a name server",
            Spent::Timer => "waiting for a timer",
            Spent::Turn => "waiting for their turn",
            Spent::Serial => "behind another request",
            Spent::Workers => "waiting for a worker",
            Spent::StopTheWorld => "stopped for garbage collection",
            Spent::HotThread => "waiting for one busy thread",
            Spent::RunQueue => "run queue",
            Spent::Throttled => "CPU quota",
            Spent::CpuUser => "computing",
            Spent::CpuKernel => "kernel at work",
            Spent::PageFaults => "page faults",
            Spent::Memory => "waiting for memory",
            Spent::Log => "writing a log or pipe",
            Spent::Stopped => "process stopped",
            Spent::Connect => "connecting",
            Spent::Setup => "opening connections",
            Spent::Descriptors => "waiting for a descriptor",
            Spent::NotAccepted => "in the accept queue",
            Spent::TurnedAway => "turned away by a full accept queue",
            Spent::Mutual => "each side waiting for the other",
            Spent::Held => "held by Nagle's algorithm",
            Spent::Network => "on the way on this host",
            Spent::Other => "blocked otherwise",
        }
    }
}
