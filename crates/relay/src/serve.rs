//! The running relay: its workers and listeners, which the main thread starts, reconfigures and drains.
//!
//! A configuration takes effect in two steps. [`Relay::prepare`] opens new listeners and changes nothing if it fails;
//! [`Relay::commit`] cannot fail.
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use parshall_core::relay::Ns;
use parshall_core::relay::backoff::{Capacity, Demand, listeners_fit};
use parshall_core::relay::config::{Config, Endpoint, Listener, Protocol, Target};
use parshall_core::units::plural;
use parshall_host::error::UserError;
use parshall_sys::clock::monotonic_ns;
use parshall_sys::eventfd;
use parshall_sys::stream_socket::StreamAddr;

use super::adjust::Adjustment;
use super::command::{Assigned, Command};
use super::connection_limit::ConnectionLimit;
use super::listener::RunningListener;
use super::open::{self, Pool, Sockets};
use super::own_address::leads_back;
use super::record::Closed;
use super::serve_udp::{UdpPrepared, UdpThreads};
use super::service::Service;
use super::service::balancing::Balancing;
use super::service::target::TargetState;
use super::stats::ListenerStats;
use super::worker::{Parts, Worker};

/// Batches of ended connections in the queue to the log thread: some seconds of them.
const LOG_QUEUE: usize = 256;

/// How long a commit waits for the workers. A worker applies a configuration between two waits, so within milliseconds.
const APPLY_MAX: Duration = Duration::from_secs(1);

/// A configuration whose listeners are open and not yet served. If it is dropped, they are closed and nothing has changed.
#[derive(Default)]
pub struct Prepared {
    running: Vec<RunningListener>,
    /// By listener, the sockets for the workers; None where they have theirs already.
    new_sockets: Vec<Option<Arc<Sockets>>>,
    /// Socket options of listeners that stay open or were inherited.
    adjustments: Vec<Adjustment>,
    /// None if the UDP listeners do not change.
    udp: Option<UdpPrepared>,
    /// The last field, because the sockets must be closed when it is dropped.
    paths: NewPaths,
}

/// Paths of Unix sockets that were created for a configuration. They are removed unless it is committed.
#[derive(Default)]
struct NewPaths(Vec<String>);

impl Drop for NewPaths {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| open::remove_stale(path));
    }
}

impl Prepared {
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.running.iter().map(|r| &r.service)
    }
}

/// How many listeners a new configuration has changed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Changes {
    pub added: usize,
    pub removed: usize,
    /// On the same address as before, with other settings.
    pub changed: usize,
}

#[derive(Debug)]
pub struct Relay {
    workers: Vec<Handle>,
    threads: usize,
    /// The listeners of the configuration in force.
    pub listeners: Vec<RunningListener>,
    /// Counters of removed listeners, by name: one that is added again continues them.
    gone: HashMap<String, Vec<Arc<ListenerStats>>>,
    udp: UdpThreads,
    /// Counts the TCP connections of all threads.
    connection_limit: Arc<ConnectionLimit>,
    /// Counts the UDP sessions of all threads.
    session_limit: Arc<ConnectionLimit>,
}

#[derive(Debug)]
struct Handle {
    inbox: Sender<Command>,
    wake: Arc<OwnedFd>,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Handle {
    fn send(&self, command: Command) {
        // A worker that has ended cannot be reached.
        let _ended = self.inbox.send(command);
        eventfd::signal(&self.wake);
    }
}

/// The limits on what the process has open.
#[derive(Debug, Clone, Copy)]
pub struct ProcessLimits {
    /// Of all workers.
    pub connections: u32,
    /// UDP sessions of all workers.
    pub sessions: u32,
    pub pipes_per_thread: usize,
}

impl ProcessLimits {
    /// The limits for `descriptors` (RLIMIT_NOFILE), of which the listeners need some.
    pub fn new(config: &Config, threads: usize, descriptors: u64) -> Self {
        // A socket per worker.
        let listening = config.listeners.len() as u64 * threads as u64;
        let demand = Demand {
            tcp: config.listeners.iter().any(|l| l.protocol == Protocol::Tcp),
            udp: config.listeners.iter().any(|l| l.protocol == Protocol::Udp),
            connections: config.global.max_connections,
            sessions: config.global.max_sessions,
        };
        let capacity = Capacity::from_nofile(descriptors.saturating_sub(listening), threads as u32, &demand);
        Self {
            connections: capacity.connections,
            sessions: capacity.sessions,
            pipes_per_thread: (capacity.pipes as usize).div_ceil(threads.max(1)),
        }
    }
}

impl Relay {
    /// A relay without listeners or threads.
    pub fn new(threads: usize) -> Self {
        Self {
            workers: Vec::new(),
            threads,
            listeners: Vec::new(),
            gone: HashMap::new(),
            udp: UdpThreads::default(),
            connection_limit: ConnectionLimit::new(None),
            session_limit: ConnectionLimit::new(None),
        }
    }

    /// Starts the workers. `on_end` is called in each worker's thread when it ends, also after a panic. Returns the queue of
    /// ended connections; an empty batch wakes its reader.
    #[allow(clippy::type_complexity)] // Both ends of one channel.
    pub fn start(
        &mut self,
        config: &Config,
        limits: ProcessLimits,
        on_end: impl Fn() + Clone + Send + 'static,
    ) -> anyhow::Result<(SyncSender<Vec<Closed>>, Receiver<Vec<Closed>>)> {
        let (closed, ended) = sync_channel(LOG_QUEUE);
        let buffer_max = config.listeners.iter().map(|l| l.buffer).max().unwrap_or(0);
        self.set_limits(limits);
        for number in 0..self.threads {
            let parts = (self.connection_limit.clone(), limits.pipes_per_thread, buffer_max);
            self.workers.push(spawn(number, parts, closed.clone(), on_end.clone())?);
        }
        if config.listeners.iter().any(|l| l.protocol == Protocol::Udp) {
            self.udp = UdpThreads::start(self.threads, &self.session_limit)?;
        }
        Ok((closed, ended))
    }

    /// Changes the limits of the process, which depend on the listeners. Pipes per thread stay.
    pub fn set_limits(&self, limits: ProcessLimits) {
        self.connection_limit.set_max(limits.connections);
        self.session_limit.set_max(limits.sessions);
    }

    /// Opens the listeners that a configuration adds, or takes them from `pool`, and tries the options that it changes. Listeners on the same address
    /// keep their sockets, their counters and the state of their targets. Nothing in use changes before [`Self::commit`].
    pub fn prepare(&self, config: &Config, pool: &mut Pool) -> anyhow::Result<Prepared> {
        enough_descriptors(config, self.threads)?;
        let mut before = by_address(&self.listeners);
        let named = self.listeners.iter().map(|r| (r.service.config.name.as_str(), r)).collect();
        let mut prepared = Prepared::default();
        for listener in &config.listeners {
            let old = before.get_mut(&address_key(listener)).and_then(VecDeque::pop_front);
            let (sockets, bound, new_sockets) = match old {
                Some(old) => {
                    prepared.adjustments.extend(Adjustment::prepare(old, listener)?);
                    (old.sockets.clone(), old.bound.clone(), None)
                }
                None => {
                    let inherited = pool.remaining();
                    let sockets = Arc::new(self.open_new(listener, pool, &mut prepared.paths)?);
                    let bound = open::bound(&sockets, listener);
                    if pool.remaining() < inherited {
                        prepared.adjustments.push(Adjustment::of_inherited(&sockets, &bound, listener)?);
                    }
                    (sockets.clone(), bound, Some(sockets))
                }
            };
            let stats = match old.filter(|o| o.service.config.name == listener.name) {
                Some(old) => old.stats.clone(),
                None => self.stats_of(&listener.name, &named),
            };
            let service = service(listener, old, &bound)?;
            prepared.running.push(RunningListener { service, stats, bound, sockets });
            prepared.new_sockets.push(new_sockets);
        }
        if self.udp_differs(&prepared) {
            let rows = prepared.running.iter().zip(&prepared.new_sockets).filter(|(row, _)| !row.is_tcp());
            let rows: Vec<_> = rows.map(|(row, new_sockets)| (row, new_sockets.is_some())).collect();
            // Before the relay is started no thread may run, because privileges are given up later.
            let session_limit = (!self.workers.is_empty()).then_some(&self.session_limit);
            prepared.udp = Some(self.udp.prepare(&rows, self.threads, session_limit)?);
        }
        Ok(prepared)
    }

    /// Opens a listener; the path of a Unix socket that this creates is added to `paths`.
    fn open_new(&self, listener: &Listener, pool: &mut Pool, paths: &mut NewPaths) -> anyhow::Result<Sockets> {
        let path = unix_path(&listener.listen).filter(|path| !pool.has_unix(path));
        let sockets = open::open(listener, self.threads, pool)?;
        paths.0.extend(path.map(str::to_owned));
        Ok(sockets)
    }

    /// The counters of this name, also of a removed listener, because counters must not go backwards; or new ones.
    fn stats_of(&self, name: &str, named: &HashMap<&str, &RunningListener>) -> Vec<Arc<ListenerStats>> {
        let now = named.get(name).map(|r| &r.stats);
        now.or_else(|| self.gone.get(name))
            .cloned()
            .unwrap_or_else(|| (0..self.threads).map(|_| Arc::default()).collect())
    }

    /// Puts a configuration into force. Connections of removed listeners may finish until `drain_until`.
    pub fn commit(&mut self, prepared: Prepared, drain_until: Ns) -> Changes {
        let Prepared { running, new_sockets, adjustments, udp, mut paths } = prepared;
        paths.0.clear();
        adjustments.iter().for_each(Adjustment::commit);
        let changes = self.changes(&running, &new_sockets);
        let left = self.paths_to_remove(&running);
        let names: HashSet<&str> = running.iter().map(|r| r.service.config.name.as_str()).collect();
        for old in self.listeners.iter().filter(|old| !names.contains(old.service.config.name.as_str())) {
            self.gone.insert(old.service.config.name.clone(), old.stats.clone());
        }
        self.gone.retain(|name, _| !names.contains(name.as_str()));
        // Drops the sockets of removed listeners here before the workers close them: no thread would accept from them.
        self.listeners = running;
        let (applied, all_have) = channel();
        for (number, worker) in self.workers.iter().enumerate() {
            let mut listeners = Vec::new();
            for (row, new_sockets) in self.listeners.iter().zip(&new_sockets).filter(|(row, _)| row.is_tcp()) {
                let stats = &row.stats[number];
                let assigned = |socket| Assigned { service: row.service.clone(), stats: stats.clone(), socket };
                match new_sockets {
                    Some(sockets) => {
                        listeners.extend(sockets[number].iter().map(|socket| assigned(Some(socket.clone()))));
                    }
                    None => listeners.extend(row.sockets[number].iter().map(|_| assigned(None))),
                }
            }
            worker.send(Command::Apply { listeners, drain_until, applied: applied.clone() });
        }
        drop(applied);
        // So that the listeners are in force when a reload is reported. A worker that is late applies them later.
        all_have.recv_timeout(APPLY_MAX).ok();
        // The sockets of these paths are closed.
        left.iter().for_each(|path| open::remove_stale(path));
        if let Some(udp) = udp {
            self.udp.serve(udp, drain_until).recv_timeout(APPLY_MAX).ok();
        }
        changes
    }

    /// The paths of Unix sockets of listeners in force that are not among the new ones.
    fn paths_to_remove(&self, running: &[RunningListener]) -> Vec<String> {
        let kept: HashSet<&str> = running.iter().filter_map(|r| unix_path(&r.service.config.listen)).collect();
        let now = self.listeners.iter().filter_map(|r| unix_path(&r.service.config.listen));
        now.filter(|path| !kept.contains(path)).map(str::to_owned).collect()
    }

    /// Whether the configuration changes a UDP listener.
    fn udp_differs(&self, Prepared { running, new_sockets, .. }: &Prepared) -> bool {
        let new: Vec<&Listener> = running.iter().filter(|r| !r.is_tcp()).map(|r| &r.service.config).collect();
        let old: Vec<&Listener> = self.listeners.iter().filter(|r| !r.is_tcp()).map(|r| &r.service.config).collect();
        let opened = running.iter().zip(new_sockets).any(|(row, new_sockets)| !row.is_tcp() && new_sockets.is_some());
        opened || new != old
    }

    pub fn udp_ended(&self) -> bool {
        self.udp.ended()
    }

    fn changes(&self, running: &[RunningListener], new_sockets: &[Option<Arc<Sockets>>]) -> Changes {
        let mut before = by_address(&self.listeners);
        let mut changes = Changes::default();
        let mut kept = 0;
        for (new, new_sockets) in running.iter().zip(new_sockets) {
            let old = before.get_mut(&address_key(&new.service.config)).and_then(VecDeque::pop_front);
            match old.filter(|_| new_sockets.is_none()) {
                Some(old) => {
                    kept += 1;
                    changes.changed += usize::from(old.service.config != new.service.config);
                }
                None => changes.added += 1,
            }
        }
        changes.removed = self.listeners.len() - kept;
        changes
    }

    /// The counters of removed listeners, by name.
    pub fn gone(&self) -> impl Iterator<Item = (&String, &Vec<Arc<ListenerStats>>)> {
        self.gone.iter()
    }

    /// All listening sockets, for a successor. One that several workers watch is passed on once.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let mut known = HashSet::new();
        let all = self.listeners.iter().flat_map(|r| r.sockets.iter().flatten());
        all.filter(move |socket| known.insert(socket.as_raw_fd())).map(AsFd::as_fd)
    }

    /// Stops accepting; connections may finish until `until`. `handed_over`: another process has the listening sockets.
    pub fn drain(&mut self, until: Ns, handed_over: bool) {
        // They would keep the ports open.
        for row in &mut self.listeners {
            row.sockets = Arc::default();
        }
        for worker in &self.workers {
            worker.send(Command::Drain { until });
        }
        self.udp.drain(until, handed_over);
    }

    /// Waits for the workers to end.
    pub fn join(self) -> anyhow::Result<()> {
        for worker in self.workers {
            match worker.thread.join() {
                Ok(result) => result.context("a worker of the relay failed")?,
                Err(_) => anyhow::bail!("a worker of the relay panicked"),
            }
        }
        self.udp.join()
    }

    /// All counters, also those of removed listeners.
    pub fn counts(&self) -> Vec<Arc<ListenerStats>> {
        self.listeners.iter().map(|r| &r.stats).chain(self.gone.values()).flatten().cloned().collect()
    }

    /// Open connections and sessions.
    pub fn active(&self) -> u64 {
        self.counts().iter().map(|s| s.active.get()).sum()
    }
}

/// Fails if the sockets of the listeners do not fit into the limit of open files.
fn enough_descriptors(config: &Config, threads: usize) -> anyhow::Result<()> {
    let (listeners, limit) = (config.listeners.len() as u64, parshall_sys::limits::descriptors());
    let Err(needed) = listeners_fit(limit, listeners, threads as u32) else { return Ok(()) };
    let sockets = listeners * threads as u64;
    let listeners = plural(listeners, "listener", "listeners");
    let threads = plural(threads as u64, "thread", "threads");
    let what = format!("{listeners} need {sockets} sockets with {threads}, but the limit is {limit} open files");
    let hint =
        format!("raise it to {needed} or more (`ulimit -n`, or LimitNOFILE= of the service), or set fewer `threads`");
    Err(UserError::new(what, hint).into())
}

fn address_key(listener: &Listener) -> (Protocol, Endpoint) {
    (listener.protocol, listener.listen.clone())
}

/// Listeners by address. Several can be on port 0; those are matched in their order.
fn by_address(listeners: &[RunningListener]) -> HashMap<(Protocol, Endpoint), VecDeque<&RunningListener>> {
    let mut all: HashMap<_, VecDeque<_>> = HashMap::new();
    for running in listeners {
        all.entry(address_key(&running.service.config)).or_default().push_back(running);
    }
    all
}

/// The service of a listener, with the limiter, the balancing and the targets' state of the one before a reload. Fails if one of
/// its targets is itself; names are looked at when they are resolved.
fn service(listener: &Listener, old: Option<&RunningListener>, bound: &str) -> anyhow::Result<Arc<Service>> {
    let limiter = old.filter(|o| o.service.config.limits == listener.limits).map(|o| o.service.limiter.clone());
    let targets = listener.targets.iter().map(|t| state_of(t, old)).collect();
    let mut service = Service::new(listener.clone(), targets, limiter, monotonic_ns());
    if let Some(old) = old.filter(|o| Balancing::serves_both(&o.service.config, listener)) {
        service.balancing = old.service.balancing.clone();
    }
    service.bound = bound.trim_end_matches("/udp").parse().ok();
    for target in &listener.targets {
        let (Endpoint::Ip(to), Some(own)) = (&target.endpoint, service.bound) else { continue };
        if leads_back(own, *to) {
            let what = format!("{}: {to} would forward to itself", listener.name);
            return Err(UserError::new(what, "name another target, or listen on another port").into());
        }
    }
    Ok(Arc::new(service))
}

/// The path or abstract name of a Unix socket.
pub fn unix_path(endpoint: &Endpoint) -> Option<&str> {
    if let Endpoint::Unix(path) = endpoint { Some(path) } else { None }
}

/// The state of a target: that from before a reload, if the listener had the target.
fn state_of(target: &Target, old: Option<&RunningListener>) -> Arc<TargetState> {
    let known = old.and_then(|old| {
        let place = old.service.config.targets.iter().position(|t| t.endpoint == target.endpoint);
        place.map(|place| old.service.targets[place].clone())
    });
    known.unwrap_or_else(|| {
        Arc::new(TargetState::new(match &target.endpoint {
            Endpoint::Ip(ip) => vec![StreamAddr::Ip(*ip)],
            Endpoint::Unix(path) => vec![StreamAddr::Unix(path.clone())],
            // The control thread resolves names.
            Endpoint::Name(..) => Vec::new(),
        }))
    })
}

fn spawn(
    number: usize,
    (connection_limit, pipes_max, buffer_max): (Arc<ConnectionLimit>, usize, usize),
    closed: SyncSender<Vec<Closed>>,
    on_end: impl Fn() + Send + 'static,
) -> anyhow::Result<Handle> {
    let (sender, inbox) = channel();
    let wake = Arc::new(eventfd::new().context("no descriptor for a worker")?);
    let parts = Parts { connection_limit, pipes_max, inbox, wake: wake.clone(), closed };
    let mut worker = Worker::new(parts, buffer_max).context("no descriptor for a worker")?;
    let at_end = AtEnd(on_end);
    let thread = std::thread::Builder::new()
        .name(format!("relay-{number}"))
        .spawn(move || {
            let _runs_on_panic_too = at_end;
            worker.run()
        })
        .context("no thread for a worker")?;
    Ok(Handle { inbox: sender, wake, thread })
}

struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use socket2::SockRef;

    use super::*;

    fn to(listen: Endpoint) -> Listener {
        let target = Target { endpoint: Endpoint::Ip("127.0.0.1:1".parse().expect("an address")), weight: 1 };
        Listener::new(Protocol::Tcp, listen, vec![target])
    }

    fn ip(text: &str) -> Endpoint {
        Endpoint::Ip(text.parse().expect("an address"))
    }

    fn config(listeners: Vec<Listener>) -> Config {
        Config { global: Default::default(), listeners }
    }

    #[test]
    fn a_refused_configuration_changes_nothing_and_a_committed_one_does() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = |name: &str| scratch.path().join(name).to_str().expect("UTF-8").to_owned();
        let mut pool = Pool::default();
        let mut relay = Relay::new(2);
        let kept = to(ip("127.0.0.1:0"));
        let unix = to(Endpoint::Unix(path("kept")));
        relay.commit(relay.prepare(&config(vec![kept.clone(), unix.clone()]), &mut pool).expect("opened"), 0);
        let sockets = relay.sockets().take(2).map(|s| s.try_clone_to_owned().expect("a descriptor"));
        let sockets: Vec<OwnedFd> = sockets.collect();
        let nodelay = || [0, 1].map(|n| SockRef::from(&sockets[n]).tcp_nodelay().expect("TCP"));
        assert_eq!(nodelay(), [true; 2]);
        let mut changed = kept.clone();
        changed.sockets.nodelay = false;
        let added = to(Endpoint::Unix(path("added")));
        let theirs = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let taken = to(Endpoint::Ip(theirs.local_addr().expect("bound")));
        let refused = config(vec![changed.clone(), added.clone(), taken]);
        assert!(relay.prepare(&refused, &mut pool).is_err(), "a port is in use");
        drop(relay.prepare(&config(vec![changed.clone(), added.clone()]), &mut pool).expect("prepared"));
        assert_eq!(nodelay(), [true; 2], "nothing was committed");
        assert!(!scratch.path().join("added").exists() && UnixStream::connect(path("kept")).is_ok());
        let prepared = relay.prepare(&config(vec![changed, added]), &mut pool).expect("prepared");
        let changes = relay.commit(prepared, 0);
        assert_eq!(changes, Changes { added: 1, removed: 1, changed: 1 });
        assert_eq!(nodelay(), [false; 2]);
        assert!(UnixStream::connect(path("added")).is_ok());
        assert!(!scratch.path().join("kept").exists(), "a removed listener leaves no path");
    }

    #[test]
    fn inherited_sockets_get_the_options_of_the_configuration_with_the_commit() {
        let theirs = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let socket = SockRef::from(&theirs);
        let options = || {
            let timeout = socket.tcp_user_timeout().expect("a timeout");
            (socket.tcp_nodelay().expect("a switch"), timeout, socket.recv_buffer_size().expect("a size"))
        };
        let untouched = options();
        socket.set_recv_buffer_size(20_000).expect("set");
        let timeout = Some(Duration::from_secs(9));
        let mut listener = to(Endpoint::Ip(theirs.local_addr().expect("bound")));
        listener.sockets.user_timeout = timeout;
        let listener = config(vec![listener]);
        let prepare = |relay: &Relay| {
            let mut pool = Pool::new(vec![theirs.try_clone().expect("a descriptor").into()]);
            relay.prepare(&listener, &mut pool).expect("taken over")
        };
        let mut relay = Relay::new(2);
        drop(prepare(&relay));
        assert_eq!(options(), (false, None, 40_000), "the process they come from may go on with them");
        let prepared = prepare(&relay);
        relay.commit(prepared, 0);
        assert_eq!(options(), (true, timeout, untouched.2));
    }

    #[test]
    fn inherited_datagram_sockets_get_the_configured_buffers() {
        let theirs = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let mut listener = to(Endpoint::Ip(theirs.local_addr().expect("bound")));
        listener.protocol = Protocol::Udp;
        listener.sockets.receive_buffer = Some(20_000);
        let mut pool = Pool::new(vec![theirs.try_clone().expect("a descriptor").into()]);
        let mut relay = Relay::new(1);
        relay.commit(relay.prepare(&config(vec![listener]), &mut pool).expect("taken over"), 0);
        assert_eq!(SockRef::from(&theirs).recv_buffer_size().expect("a size"), 40_000);
    }

    #[test]
    fn buffers_of_a_kept_listener_change_and_go_back_to_the_default() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut relay = Relay::new(1);
            let mut listener = to(ip("127.0.0.1:0"));
            listener.protocol = protocol;
            let mut load = |listener: &Listener| {
                let prepared = relay.prepare(&config(vec![listener.clone()]), &mut Pool::default()).expect("prepared");
                relay.commit(prepared, 0);
                let socket = relay.sockets().next().expect("a socket");
                let socket = SockRef::from(&socket);
                [socket.recv_buffer_size().expect("a size"), socket.send_buffer_size().expect("a size")]
            };
            let untouched = load(&listener);
            listener.sockets.receive_buffer = Some(20_000);
            listener.sockets.send_buffer = Some(20_000);
            assert_eq!(load(&listener), [40_000; 2], "{protocol:?}");
            listener.sockets = Default::default();
            assert_eq!(load(&listener), untouched, "{protocol:?}");
        }
    }
}
