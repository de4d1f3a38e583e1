//! The calls that the threads of a process are in, and the ends of connections that they wait for.
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;

use parshall_core::observe::follow::title::title;
use parshall_core::proc_net;
use parshall_core::sock_diag::{Table, UnixSocket};
use parshall_core::sorting::IntoOrdered as _;
use parshall_evidence::socket::selection::address;
use parshall_evidence::timeline::NAMES_PORT;
use parshall_evidence::{FdKind, FlowId, NO_SYSCALL, Stopper, WaitingEnd, WaitingThread};
use parshall_host::{bounded_file, proc_fs};

use super::awaited::{Awaited, awaited};
use super::sockets::Row;
use crate::follow::sessions;
use crate::follow::stopped::stopped_by;
use crate::mutex::Mutexes;
use crate::procfs::blocked_in::{SyscallFile, call_of_wchan, kind_of, parse_syscall, takes_descriptor};
use crate::procfs::thread_account::UNKNOWN_CALL;
use crate::subject::{DESCRIPTORS_FIRST, Holders, Namespace, Process};
use crate::syscall_name::syscall_name;

/// Threads that are read at most, of one process and of all.
const THREADS_OF_ONE_MAX: usize = 512;
const THREADS_MAX: usize = 4_096;
/// Characters of a path that are kept.
const PATH_MAX: usize = 256;

/// How often the threads of some processes have been given a CPU so far.
pub fn timeslices(processes: &[Process]) -> HashMap<u32, u64> {
    let threads = processes.iter().flat_map(|p| p.threads.iter().take(THREADS_OF_ONE_MAX).map(|tid| (p.pid, *tid)));
    threads.take(THREADS_MAX).filter_map(|(pid, tid)| Some((tid, timeslices_of(pid, tid)?))).collect()
}

fn timeslices_of(pid: u32, tid: u32) -> Option<u64> {
    let text = bounded_file::text(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    // A kernel without CONFIG_SCHED_INFO shows zeros.
    text.split_whitespace().nth(2)?.parse().ok().filter(|count| *count > 0)
}

/// The processes that hold the locks of files for which this one waits, from /proc/locks (man 5 proc_locks): those that wait stand
/// behind the holder, with its number and an arrow.
fn lock_holders(locks: &str, pid: u32) -> Vec<u32> {
    let mut holder = (String::new(), 0);
    let mut found = Vec::new();
    for line in locks.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let waits = words.get(1) == Some(&"->");
        let Some(owner) = words.get(if waits { 5 } else { 4 }).and_then(|word| word.parse().ok()) else { continue };
        if !waits {
            holder = (words[0].to_owned(), owner);
        } else if owner == pid && holder.0 == words[0] && holder.1 != pid {
            found.push(holder.1);
        }
    }
    found
}

/// Reads threads; knows the ends that matter.
pub struct Reader<'a> {
    by_inode: HashMap<u64, &'a Row>,
    kept: HashSet<FlowId>,
    first: &'a HashMap<u32, u64>,
    left: usize,
    /// UNIX sockets by network namespace.
    unix: HashMap<u64, UnixSockets>,
    /// UNIX sockets for whose data a thread that was read waits.
    unix_awaited: HashSet<u64>,
    /// Other ends of the UNIX sockets for which event loops wait, by thread.
    unix_calls: Vec<(u32, u64)>,
    mutexes: Mutexes,
}

/// The UNIX sockets of a network namespace.
#[derive(Debug, Default)]
struct UnixSockets {
    sockets: HashMap<u64, UnixSocket>,
    listeners: HashSet<Vec<u8>>,
}

impl UnixSockets {
    fn read(netns: u64, pid: u32) -> Self {
        let namespace = Namespace::of_process(pid, netns);
        let found = namespace.and_then(|namespace| namespace.open_unix_diag().ok()?.dump().ok()).unwrap_or_default();
        let listeners = found.iter().filter(|s| s.listening && !s.name.is_empty()).map(|s| s.name.clone()).collect();
        Self { sockets: found.into_iter().map(|socket| (socket.inode, socket)).collect(), listeners }
    }

    /// The other end of a socket that asks. An accepted one has the name of its listener: it serves, and waits for its client.
    fn asked(&self, inode: u64) -> Option<u64> {
        let own = self.sockets.get(&inode).filter(|socket| !socket.listening && socket.peer_inode != 0)?;
        (!self.listeners.contains(&own.name)).then_some(own.peer_inode)
    }

    fn name(&self, inode: u64) -> String {
        let name = self.sockets.get(&inode).map(|socket| String::from_utf8_lossy(&socket.name).replace('\0', "@"));
        name.unwrap_or_default().chars().take(PATH_MAX).collect()
    }
}

impl<'a> Reader<'a> {
    /// `first` is what [`timeslices`] returned when the window began.
    pub fn new(ends: &[WaitingEnd], rows: &[&'a Row], first: &'a HashMap<u32, u64>) -> Self {
        Self {
            by_inode: rows.iter().filter(|row| row.inode != 0).map(|row| (row.inode, *row)).collect(),
            kept: ends.iter().map(|end| end.id).collect(),
            first,
            left: THREADS_MAX,
            unix: HashMap::new(),
            unix_awaited: HashSet::new(),
            unix_calls: Vec::new(),
            mutexes: Mutexes::default(),
        }
    }

    /// The threads of a process.
    pub fn process(&mut self, pid: u32) -> Vec<WaitingThread> {
        let Some(stat) = proc_fs::stat(pid).filter(|stat| !stat.kernel_thread && stat.state != 'Z') else {
            return Vec::new();
        };
        let tids: Vec<u32> = proc_fs::threads(pid).into_iter().take(THREADS_OF_ONE_MAX.min(self.left)).collect();
        self.left -= tids.len();
        let sockets: HashMap<i32, u64> = proc_fs::first_sockets(pid, DESCRIPTORS_FIRST).0.into_iter().collect();
        let title = title(&proc_fs::command_line(pid)).unwrap_or_default();
        let stopper = stopped_by(pid);
        let common = WaitingThread {
            pid,
            process: stat.comm,
            session_lock: sessions::holder(pid, &title).unwrap_or(0),
            title,
            // A frozen thread sleeps, as far as its own state tells.
            state: if matches!(stopper, Some(Stopper::Freezer { .. })) { 'T' } else { '\0' },
            stopped_by: stopper,
            ..WaitingThread::default()
        };
        tids.into_iter().filter_map(|tid| self.thread(&common, tid, &sockets)).collect()
    }

    /// The holders of the other ends of the UNIX sockets for which event loops wait.
    pub fn unix_partners(&self) -> BTreeSet<u32> {
        let peers: HashSet<u64> = self.unix_calls.iter().map(|(_, peer)| *peer).collect();
        if peers.is_empty() {
            return BTreeSet::new();
        }
        let holders = Holders::of_inodes(&peers);
        peers.iter().flat_map(|peer| holders.pids(*peer)).into_set()
    }

    /// Notes at the event loops among `threads` the processes to which they have passed something on: those that hold the other end
    /// of a UNIX socket and do not wait for the next request there.
    pub fn note_partners(&self, threads: &mut [WaitingThread]) {
        let open: Vec<(u32, u64)> =
            self.unix_calls.iter().filter(|(_, peer)| !self.unix_awaited.contains(peer)).copied().collect();
        if open.is_empty() {
            return;
        }
        let read: HashSet<u32> = threads.iter().map(|thread| thread.pid).collect();
        let holders = Holders::of_inodes(&open.iter().map(|(_, peer)| *peer).collect());
        for (tid, peer) in open {
            let Some(thread) = threads.iter_mut().find(|thread| thread.tid == tid) else { continue };
            let own = thread.pid;
            thread.partners.extend(holders.pids(peer).filter(|pid| *pid != own && read.contains(pid)));
            thread.partners.sort_unstable();
            thread.partners.dedup();
        }
    }

    fn thread(&mut self, common: &WaitingThread, tid: u32, sockets: &HashMap<i32, u64>) -> Option<WaitingThread> {
        let pid = common.pid;
        let directory = format!("/proc/{pid}/task/{tid}");
        let stat = proc_fs::parse_stat(&bounded_file::text(format!("{directory}/stat")).ok()?)?;
        let still = self.first.get(&tid).and_then(|first| Some(*first == timeslices_of(pid, tid)?));
        let mut thread = WaitingThread {
            tid,
            thread: stat.comm,
            state: if common.state == 'T' { 'T' } else { stat.state },
            still,
            syscall: NO_SYSCALL,
            lock_owner: self.mutexes.owner(pid, tid).unwrap_or(0),
            ..common.clone()
        };
        match bounded_file::text(format!("{directory}/syscall")).ok().as_deref().and_then(parse_syscall) {
            Some(SyscallFile::In { nr, args }) => {
                thread.seen = true;
                self.take_call(&mut thread, nr, args, sockets);
            }
            Some(SyscallFile::Running | SyscallFile::Outside) => thread.seen = true,
            None => {
                let wchan = bounded_file::text(format!("{directory}/wchan")).unwrap_or_default();
                let call = call_of_wchan(wchan.trim());
                if call != UNKNOWN_CALL {
                    (thread.syscall, thread.fd) = (call.syscall, call.fd);
                    thread.syscall_name = syscall_name(call.syscall).into_owned();
                }
            }
        }
        Some(thread)
    }

    fn take_call(&mut self, thread: &mut WaitingThread, nr: i32, args: [u64; 2], sockets: &HashMap<i32, u64>) {
        thread.syscall = nr;
        thread.syscall_name = syscall_name(nr).into_owned();
        match awaited(thread.pid, &thread.syscall_name, args) {
            Awaited::Nothing => {}
            Awaited::Unknown => thread.awaits_any = true,
            Awaited::Descriptors(fds) => {
                let ends = fds.iter().filter_map(|fd| self.by_inode.get(sockets.get(fd)?));
                thread.awaits = ends.map(|row| row.cookie).filter(|id| self.kept.contains(id)).collect();
                thread.awaits.sort_unstable();
                self.take_unix(thread, &fds, sockets);
                take_name_server(thread, &fds, sockets);
            }
        }
        if !takes_descriptor(&thread.syscall_name) {
            return;
        }
        let fd = args[0] as i32;
        thread.fd = kind_of(thread.pid, fd);
        thread.target = match sockets.get(&fd).and_then(|inode| self.by_inode.get(inode)) {
            Some(row) => row.remote.to_string(),
            None if matches!(thread.fd, FdKind::File | FdKind::Block | FdKind::Char | FdKind::Pipe) => {
                let link = fs::read_link(format!("/proc/{}/fd/{fd}", thread.pid)).unwrap_or_default();
                link.to_string_lossy().chars().take(PATH_MAX).collect()
            }
            None => std::mem::take(&mut thread.target),
        };

        if thread.syscall_name.contains("send") || thread.syscall_name.contains("write") {
            self.take_unix(thread, &HashSet::from([fd]), sockets);
        }
        if matches!(thread.syscall_name.as_str(), "flock" | "fcntl") {
            let locks = bounded_file::text("/proc/locks").unwrap_or_default();
            thread.partners = lock_holders(&locks, thread.pid);
        }
    }

    /// Notes the UNIX sockets for which a thread waits. One that waits for a single one alone is blocked by who holds its other end.
    fn take_unix(&mut self, thread: &mut WaitingThread, fds: &HashSet<i32>, sockets: &HashMap<i32, u64>) {
        let others = fds.iter().filter_map(|fd| sockets.get(fd)).filter(|inode| !self.by_inode.contains_key(inode));
        let others: Vec<u64> = others.copied().collect();
        let Some(netns) = proc_fs::netns_ino(thread.pid).filter(|_| !others.is_empty()) else { return };
        let unix = self.unix.entry(netns).or_insert_with(|| UnixSockets::read(netns, thread.pid));
        for inode in others {
            self.unix_awaited.insert(inode);
            let Some(peer) = unix.asked(inode) else { continue };
            if thread.syscall_name.starts_with("epoll") {
                self.unix_calls.push((thread.tid, peer));
            } else if fds.len() == 1 {
                thread.target = unix.name(peer);
                let holders = Holders::of_inodes(&HashSet::from([peer]));
                thread.partners = holders.pids(peer).filter(|pid| *pid != thread.pid).collect();
            }
        }
    }
}

/// Notes the name server whose answer a thread waits for: on the only descriptor of its call, which is a UDP socket that is connected to one.
fn take_name_server(thread: &mut WaitingThread, fds: &HashSet<i32>, sockets: &HashMap<i32, u64>) {
    let only = fds.iter().next().filter(|_| fds.len() == 1 && !thread.syscall_name.starts_with("epoll"));
    let Some(inode) = only.and_then(|fd| sockets.get(fd)).filter(|_| thread.awaits.is_empty()) else { return };
    let tables = proc_net::files(Table::Udp).iter();
    let texts = tables.filter_map(|file| bounded_file::text(format!("/proc/{}/net/{file}", thread.pid)).ok());
    if let Some(server) = texts.into_iter().find_map(|text| name_server(&text, *inode)) {
        (thread.fd, thread.target) = (FdKind::Udp, server.to_string());
    }
}

/// The remote address of the socket with this inode, if it is connected to the port of name servers.
fn name_server(table: &str, inode: u64) -> Option<SocketAddr> {
    let mut records = table.lines().filter_map(|line| Some(proc_net::record(Table::Udp, line, 0)?.0));
    let record = records.find(|record| u64::from(record.inode) == inode && record.remote_port == NAMES_PORT)?;
    Some(SocketAddr::new(address(&record, true).to_canonical(), record.remote_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_connected_to_a_name_server_tells_its_address() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
                     \x20 12: 0100007F:A1B2 3500007F:0035 01 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0\n\
                     \x20 13: 0100007F:A1B3 3500007F:1FBD 01 00000000:00000000 00:00000000 00000000     0        0 4712 2 0 0\n";
        assert_eq!(name_server(table, 4711), Some("127.0.0.53:53".parse().unwrap()));
        assert_eq!(name_server(table, 4712), None);
        assert_eq!(name_server(table, 4713), None);
    }

    #[test]
    fn who_waits_for_a_lock_stands_behind_its_holder() {
        let locks = "1: POSIX  ADVISORY  WRITE 812 fe:00:1 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 900 fe:00:2 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 901 fe:00:2 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 901 fe:00:3 0 EOF\nx\n";
        assert_eq!(lock_holders(locks, 901), [900]);
        assert!(lock_holders(locks, 900).is_empty() && lock_holders("", 1).is_empty());
    }
}
