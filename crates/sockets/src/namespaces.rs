//! The network namespaces of the host, and how each is opened. Their names are in `names`.
//!
//! Before Linux 6.19 (`listns`) the kernel has no list of them. They are found by what keeps them alive: processes, threads in
//! another namespace than their process, bind mounts in this and in other mount namespaces, and sockets that the caller
//! knows. After the first scan, each scan reads only a part of the threads and of the mount tables of other mount namespaces,
//! so that it costs one or two reads for each process.
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parshall_bpf::sockets::owners::ForeignSocket;
use parshall_host::mountinfo::{self, Mount};
use parshall_host::proc_fs;
use parshall_sys::nsfs;
use parshall_sys::pidfd::Pidfd;
use parshall_sys::socket_netns::of_socket;

/// Threads read in one scan, after the first.
const THREADS_PER_SCAN: usize = 2048;
/// Mount tables of other mount namespaces read in one scan, after the first.
const TABLES_PER_SCAN: usize = 16;
/// Bytes of mount tables of other mount namespaces read in one scan: an unprivileged user may have 100,000 mounts (fs.mount-max)
/// in each of many mount namespaces.
const TABLE_BYTES_PER_SCAN: u64 = 64 << 20;
/// The maximum number of namespaces. Further ones are counted as lost.
const NAMESPACES_MAX: usize = 65_536;
/// Places stored for each namespace: the second is used if a process ends meanwhile.
const PLACES: usize = 2;

/// Something that keeps a namespace alive, and through which it can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A bind mount in our own mount namespace.
    Mount(PathBuf),
    /// A bind mount in another mount namespace, in which another user may control what the path leads to.
    MountOf {
        /// A process in that mount namespace.
        pid: u32,
        /// The path, below the root of that process.
        path: PathBuf,
    },
    /// A process id.
    Process(u32),
    /// A thread in another namespace than its process.
    Thread { pid: u32, tid: u32 },
    /// A socket, by a descriptor of a process.
    Socket { pid: u32, fd: u32 },
}

impl Place {
    /// The link to the namespace in /proc, for a process or thread.
    fn link(&self) -> Option<PathBuf> {
        match self {
            Self::Process(pid) => Some(PathBuf::from(format!("/proc/{pid}/ns/net"))),
            Self::Thread { pid, tid } => Some(PathBuf::from(format!("/proc/{pid}/task/{tid}/ns/net"))),
            Self::Mount(_) | Self::MountOf { .. } | Self::Socket { .. } => None,
        }
    }

    /// The root directory of a mount, and the path below it.
    fn mounted(&self) -> Option<io::Result<(OwnedFd, &Path)>> {
        let (root, path) = match self {
            Self::Mount(path) => (PathBuf::from("/"), path),
            Self::MountOf { pid, path } => (PathBuf::from(format!("/proc/{pid}/root")), path),
            _ => return None,
        };
        Some(nsfs::root(&root).map(|root| (root, path.as_path())))
    }

    /// Opens the namespace with this inode. If the place leads to anything else, that is not opened.
    fn open(&self, inode: u32) -> io::Result<File> {
        if let Some(mounted) = self.mounted() {
            let (root, path) = mounted?;
            return nsfs::open_mounted(root.as_fd(), path, inode.into());
        }
        let file = match self {
            Self::Socket { pid, fd } => {
                let copy: OwnedFd = Pidfd::open(*pid)?.get_socket(RawFd::try_from(*fd).unwrap_or(-1))?;
                of_socket(copy.as_fd()).map(File::from)?
            }
            // In procfs such a link always leads to a namespace.
            _ => File::open(self.link().unwrap_or_default())?,
        };
        // The process id may have been reused.
        if file.metadata()?.ino() == u64::from(inode) { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Whether it still leads to the namespace with this inode.
    pub fn leads_to(&self, inode: u32) -> bool {
        match self.mounted() {
            Some(mounted) => mounted.is_ok_and(|(root, path)| nsfs::is_mounted(root.as_fd(), path, inode.into())),
            None => self.link().and_then(|link| net_inode(&link).ok()) == Some(inode),
        }
    }
}

/// A network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its inode, which is `netns` of a record.
    pub inode: u32,
    /// One or two places, those first that likely exist for longer.
    pub places: Vec<Place>,
}

impl Namespace {
    /// Opens it for `parshall_sys::netns::run_in`. The error is `NotFound` if it has ended.
    pub fn open(&self) -> io::Result<File> {
        let mut why = io::Error::from(io::ErrorKind::NotFound);
        for place in &self.places {
            match place.open(self.inode) {
                Ok(file) => return Ok(file),
                Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EBADF)) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

/// The result of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Sorted by inode, without duplicates.
    pub namespaces: Vec<Namespace>,
    /// Processes whose namespace this process may not see, and namespaces beyond the limit.
    pub lost: u64,
}

/// Scans for namespaces, and stores what a scan of a part must know of earlier ones.
#[derive(Debug, Default)]
pub struct Discovery {
    scanned: bool,
    /// Namespaces that were found by threads and other mount namespaces, which not every scan reads.
    kept: BTreeMap<u32, Place>,
    /// The next scan of threads begins after this process.
    threads_after: u32,
    /// The next scan of mount tables begins after this mount namespace.
    tables_after: u64,
}

/// A scan in progress.
#[derive(Default)]
struct Scan {
    places: BTreeMap<u32, Vec<Place>>,
    lost: u64,
}

impl Scan {
    fn add(&mut self, inode: u32, place: Place) {
        if self.places.len() >= NAMESPACES_MAX && !self.places.contains_key(&inode) {
            self.lost += 1;
            return;
        }
        let places = self.places.entry(inode).or_default();
        if places.len() < PLACES && !places.contains(&place) {
            places.push(place);
        }
    }

    fn knows(&self, inode: u32) -> bool {
        self.places.contains_key(&inode)
    }
}

impl Discovery {
    /// Scans the host. `foreign_sockets` are open sockets outside the namespaces of their processes. They are the only way to
    /// find a namespace that its processes have left.
    pub fn scan(&mut self, foreign_sockets: &[ForeignSocket]) -> Found {
        let mut scan = Scan::default();
        if let Ok(table) = File::open("/proc/self/mountinfo") {
            mountinfo::for_each(BufReader::new(table), &mut |mount| {
                if let Some((inode, path)) = namespace_mount(mount) {
                    scan.add(inode, Place::Mount(path));
                }
            });
        }
        let pids = proc_fs::pids();
        for &pid in &pids {
            let place = Place::Process(pid);
            match net_inode(&place.link().unwrap_or_default()) {
                Ok(inode) => scan.add(inode, place),
                Err(error) => scan.lost += u64::from(hidden(pid, &error)),
            }
        }
        self.kept.retain(|inode, place| place.leads_to(*inode));
        for (inode, place) in &self.kept {
            scan.add(*inode, place.clone());
        }
        self.threads(&pids, &mut scan);
        self.tables(&pids, &mut scan);
        for &ForeignSocket { netns, pid, fd } in foreign_sockets {
            if !scan.knows(netns) {
                scan.add(netns, Place::Socket { pid, fd });
            }
        }
        self.scanned = true;
        let namespaces = scan.places.into_iter().map(|(inode, places)| Namespace { inode, places }).collect();
        Found { namespaces, lost: scan.lost }
    }

    /// Scans threads, beginning where the last scan stopped.
    fn threads(&mut self, pids: &[u32], scan: &mut Scan) {
        let mut budget = if self.scanned { THREADS_PER_SCAN } else { usize::MAX };
        for pid in in_turn(pids, self.threads_after) {
            if budget == 0 {
                return;
            }
            self.threads_after = pid;
            let tasks = PathBuf::from(format!("/proc/{pid}/task"));
            // The link count of the directory shows the number of threads, and most processes have one.
            if !fs::metadata(&tasks).is_ok_and(|directory| directory.nlink() > 3) {
                continue;
            }
            for tid in proc_fs::threads(pid).into_iter().filter(|tid| *tid != pid) {
                budget = budget.saturating_sub(1);
                let place = Place::Thread { pid, tid };
                let inode = net_inode(&place.link().unwrap_or_default());
                if let Some(inode) = inode.ok().filter(|inode| !scan.knows(*inode)) {
                    self.kept.insert(inode, place.clone());
                    scan.add(inode, place);
                }
            }
        }
    }

    /// Scans mount tables of other mount namespaces, beginning where the last scan stopped.
    fn tables(&mut self, pids: &[u32], scan: &mut Scan) {
        let mount_namespace = |pid: u32| inode_of_link(Path::new(&format!("/proc/{pid}/ns/mnt")), "mnt").ok();
        let own = mount_namespace(std::process::id());
        let mut others = BTreeMap::new();
        for &pid in pids {
            if let Some(inode) = mount_namespace(pid).filter(|inode| Some(*inode) != own) {
                others.entry(u64::from(inode)).or_insert(pid);
            }
        }
        let inodes: Vec<u64> = others.keys().copied().collect();
        let budget = if self.scanned { TABLES_PER_SCAN } else { usize::MAX };
        let mut bytes = TABLE_BYTES_PER_SCAN;
        for inode in in_turn(&inodes, self.tables_after).take(budget) {
            if bytes == 0 {
                scan.lost += u64::from(!self.scanned);
                return;
            }
            self.tables_after = inode;
            let pid = others[&inode];
            let Ok(table) = File::open(format!("/proc/{pid}/mountinfo")) else { continue };
            let table = BufReader::new(table.take(bytes));
            bytes -= mountinfo::for_each(table, &mut |mount| {
                if let Some((inode, path)) = namespace_mount(mount).filter(|(inode, _)| !scan.knows(*inode)) {
                    let place = Place::MountOf { pid, path };
                    if self.kept.len() < NAMESPACES_MAX {
                        self.kept.insert(inode, place.clone());
                    }
                    scan.add(inode, place);
                }
            });
        }
    }
}

/// The items greater than `after`, then the others.
fn in_turn<T: Copy + Ord>(sorted: &[T], after: T) -> impl Iterator<Item = T> {
    let (first, then) = sorted.split_at(sorted.partition_point(|item| *item <= after));
    then.iter().chain(first).copied()
}

/// The inode in a link of /proc to a namespace of this kind.
fn inode_of_link(path: &Path, kind: &str) -> io::Result<u32> {
    let target = fs::read_link(path)?;
    target
        .to_str()
        .and_then(|text| u32::try_from(proc_fs::inode_in(text, kind)?).ok())
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

fn net_inode(path: &Path) -> io::Result<u32> {
    inode_of_link(path, "net")
}

/// Whether the error hides the namespace of a running process. Kernel threads are in the initial namespace.
fn hidden(pid: u32, error: &io::Error) -> bool {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return false; // It has ended.
    }
    proc_fs::stat(pid).is_some_and(|stat| !stat.kernel_thread)
}

/// The inode and the mount point of a mounted network namespace. The type of the file system is tested, because a directory
/// of any file system may have such a name.
fn namespace_mount(mount: &Mount<'_>) -> Option<(u32, PathBuf)> {
    let inode = proc_fs::inode_in(std::str::from_utf8(mount.root).ok()?, "net")?;
    (mount.kind == b"nsfs").then_some((u32::try_from(inode).ok()?, mount.point()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::BufRead;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use parshall_sys::netns::NetNs;

    use super::*;
    use parshall_testkit::root;

    fn inode(file: &File) -> u32 {
        file.metadata().unwrap().ino() as u32
    }

    fn own() -> u32 {
        inode(&File::open("/proc/self/ns/net").unwrap())
    }

    #[test]
    fn the_own_namespace_is_found_and_opens() {
        let found = Discovery::default().scan(&[]);
        let ours = found.namespaces.iter().find(|namespace| namespace.inode == own()).expect("the own namespace");
        assert_eq!(inode(&ours.open().unwrap()), own());
        let inodes: BTreeSet<u32> = found.namespaces.iter().map(|namespace| namespace.inode).collect();
        assert_eq!(inodes.len(), found.namespaces.len(), "no duplicates");
    }

    #[test]
    fn turns_reach_every_item() {
        assert_eq!(in_turn(&[1, 3, 5], 3).collect::<Vec<_>>(), [5, 1, 3]);
        assert_eq!(in_turn(&[1, 3, 5], 9).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!(in_turn(&[1, 3, 5], 0).collect::<Vec<_>>(), [1, 3, 5]);
    }

    #[test]
    fn a_named_namespace_is_found_until_it_ends() {
        if !root("namespaces with a name") {
            return;
        }
        let mut discovery = Discovery::default();
        let netns = NetNs::create("names").unwrap();
        let inode = inode(&File::from(netns.as_fd().try_clone_to_owned().unwrap()));
        let find = |found: Found| found.namespaces.into_iter().find(|namespace| namespace.inode == inode);
        let found = find(discovery.scan(&[])).expect("it has a name");
        assert_eq!(found.places[0], Place::Mount(Path::new("/run/netns").join(netns.name())));
        assert!(found.open().is_ok());
        drop(netns);
        assert_eq!(found.open().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(find(discovery.scan(&[])), None);
    }

    /// Runs `work` in a thread, and panics if it does not return: opening a FIFO blocks until a writer opens it.
    fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, wait) = mpsc::channel();
        std::thread::spawn(move || done.send(work()));
        wait.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{what} does not return"))
    }

    #[test]
    fn a_fifo_in_the_place_of_a_mount_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        if !made.is_ok_and(|status| status.success()) {
            return parshall_testkit::skip("a FIFO in the place of a namespace", "needs mkfifo");
        }
        let inode = fs::symlink_metadata(&fifo).unwrap().ino() as u32;
        let pid = std::process::id();
        for place in [Place::Mount(fifo.clone()), Place::MountOf { pid, path: fifo.clone() }] {
            let namespace = Namespace { inode, places: vec![place.clone()] };
            let opened = in_time("opening a FIFO", move || namespace.open().map(drop));
            assert_eq!(
                opened.unwrap_err().kind(),
                io::ErrorKind::NotFound,
                "its inode is right, but it is not a namespace"
            );
            assert!(!in_time("testing a FIFO", move || place.leads_to(inode)));
        }
    }

    /// A process in its own mount namespace, in which a network namespace without processes is mounted on a file. It ends when
    /// this is dropped.
    struct Elsewhere {
        process: std::process::Child,
        inode: u32,
        _directory: tempfile::TempDir,
    }

    impl Elsewhere {
        /// Runs the shell command `then` in it, with a FIFO `fifo` beside the mount point `point`.
        fn start(then: &str) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let script = format!(
                "cd \"$0\" && touch point && mkfifo fifo && \
                 unshare --net sh -c 'readlink /proc/self/ns/net && mount --bind /proc/self/ns/net point' && \
                 {then} && echo ready && read x"
            );
            let mut process = std::process::Command::new("unshare")
                .args(["--mount", "--propagation", "private", "sh", "-c", &script])
                .arg(directory.path())
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .expect("root can unshare");
            let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
            let link = said.next().unwrap().unwrap();
            let inode = link.strip_prefix("net:[").and_then(|rest| rest.strip_suffix(']')).unwrap().parse().unwrap();
            assert_eq!(said.next().unwrap().unwrap(), "ready");
            Self { process, inode, _directory: directory }
        }
    }

    impl Drop for Elsewhere {
        fn drop(&mut self) {
            drop(self.process.stdin.take());
            let _ = self.process.wait();
        }
    }

    #[test]
    fn a_mount_of_another_user_that_hides_a_fifo_is_not_opened() {
        if !root("a FIFO mounted over a namespace") {
            return;
        }
        // The mount table lists both mounts.
        let elsewhere = Elsewhere::start("mount --bind fifo point");
        let inode = elsewhere.inode;
        let opened = in_time("scanning for namespaces", move || {
            let found = Discovery::default().scan(&[]).namespaces;
            found.into_iter().find(|namespace| namespace.inode == inode).map(|namespace| namespace.open())
        });
        let opened = opened.expect("its mount is listed");
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::NotFound, "the FIFO that hides it is not opened");
    }

    #[test]
    fn a_mount_of_another_mount_namespace_opens() {
        if !root("a namespace that is mounted elsewhere") {
            return;
        }
        let elsewhere = Elsewhere::start("true");
        let found = Discovery::default().scan(&[]).namespaces;
        let found = found.iter().find(|namespace| namespace.inode == elsewhere.inode).expect("it is listed");
        assert!(matches!(found.places[..], [Place::MountOf { .. }]), "{found:?}");
        assert_eq!(inode(&found.open().unwrap()), found.inode);
        assert!(found.places[0].leads_to(found.inode) && !found.places[0].leads_to(found.inode + 1));
    }

    #[test]
    fn a_namespace_that_only_a_thread_or_a_socket_keeps_alive_is_found() {
        if !root("namespaces without a process") {
            return;
        }
        let (done, wait) = mpsc::channel::<()>();
        let (made, is_made) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let netns = NetNs::create("thread").unwrap();
            let file = File::from(netns.as_fd().try_clone_to_owned().unwrap());
            parshall_sys::netns::enter(file.as_fd()).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            drop(netns);
            made.send((inode(&file), socket)).unwrap();
            drop(file);
            let _ = wait.recv();
        });
        let (inode, socket) = is_made.recv().unwrap();
        let mut discovery = Discovery::default();
        // The second scan finds it in `kept`.
        for _ in 0..2 {
            let found = discovery.scan(&[]).namespaces;
            let found = found.iter().find(|namespace| namespace.inode == inode).expect("a thread is in it");
            assert!(matches!(found.places[0], Place::Thread { .. }), "{found:?}");
            assert!(found.open().is_ok());
        }
        drop(done);
        thread.join().unwrap();
        let here = ForeignSocket { netns: inode, pid: std::process::id(), fd: socket.as_raw_fd() as u32 };
        let found = discovery.scan(&[here]).namespaces;
        let found = found.iter().find(|namespace| namespace.inode == inode).expect("its socket is given");
        assert!(matches!(found.places[..], [Place::Socket { .. }]), "{found:?}");
        assert_eq!(self::inode(&found.open().unwrap()), inode);
        drop(socket);
        assert!(found.open().is_err());
        // The thread's directory may outlive the thread for a moment.
        let give_up = Instant::now() + Duration::from_secs(5);
        while discovery.scan(&[]).namespaces.iter().any(|namespace| namespace.inode == inode) {
            assert!(Instant::now() < give_up, "it is still found");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
