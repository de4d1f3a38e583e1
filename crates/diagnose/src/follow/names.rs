//! Names of threads, processes and descriptors that occur in the timeline, read when they first occur: threads end, and
//! descriptors are closed.
use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use parshall_core::observe::follow::title::title;
use parshall_evidence::timeline::{Names, Timeline};
use parshall_host::bounded_file;
use parshall_host::proc_fs;

/// Threads, and descriptors, that are named at most.
const NAMES_MAX: usize = 8_192;
/// Characters of a path that are kept.
const PATH_MAX: usize = 256;

/// The names that have been read so far, and those that are still to be read.
#[derive(Debug, Default)]
pub struct KnownNames {
    /// None for a thread that ended before it could be read.
    threads: HashMap<u32, Option<Names>>,
    files: HashMap<(u32, i32), String>,
    /// Process and name of threads that ended long waits, as the probes saw them: such a thread may have ended since.
    wakers: HashMap<u32, (u32, String)>,
    /// Names of UNIX sockets, their own or the other end's, by inode.
    unix: HashMap<u64, String>,
    /// How often each process was seen with each of its titles.
    titles: HashMap<u32, HashMap<String, u32>>,
    new_threads: HashSet<u32>,
    new_files: HashSet<(u32, i32)>,
}

impl KnownNames {
    /// A thread occurs in a record; 0 is the idle thread.
    pub fn see_thread(&mut self, tid: u32) {
        let space = self.threads.len() + self.new_threads.len() < NAMES_MAX;
        if tid != 0 && space && !self.threads.contains_key(&tid) {
            self.new_threads.insert(tid);
        }
    }

    /// A thread ended a long wait, and had this name when it did.
    pub fn see_waker(&mut self, tid: u32, pid: u32, comm: &[u8; 16]) {
        if tid != 0 && self.wakers.len() < NAMES_MAX {
            self.wakers.entry(tid).or_insert_with(|| (pid, parshall_bpf::comm(comm)));
        }
    }

    /// A thread of `pid` waited for a descriptor; -1 for none.
    pub fn see_file(&mut self, pid: u32, fd: i32) {
        let space = self.files.len() + self.new_files.len() < NAMES_MAX;
        if fd >= 0 && space && !self.files.contains_key(&(pid, fd)) {
            self.new_files.insert((pid, fd));
        }
    }

    /// Reads what has occurred, for at most `time`.
    pub fn read(&mut self, time: Duration) {
        let begun = Instant::now();
        let (threads, files) = (std::mem::take(&mut self.new_threads), std::mem::take(&mut self.new_files));
        let (mut threads, mut files) = (threads.into_iter(), files.into_iter());
        for tid in threads.by_ref() {
            self.threads.insert(tid, thread_names(tid));
            if begun.elapsed() > time {
                break;
            }
        }
        for (pid, fd) in files.by_ref() {
            self.files.insert((pid, fd), link(pid, fd));
            if begun.elapsed() > time {
                break;
            }
        }
        self.new_threads.extend(threads);
        self.new_files.extend(files);
    }

    /// The process of a thread whose names were read.
    pub fn process_of(&self, tid: u32) -> Option<u32> {
        Some(self.threads.get(&tid)?.as_ref()?.pid)
    }

    /// Whether a thread is still to be read.
    pub fn is_new(&self, tid: u32) -> bool {
        self.new_threads.contains(&tid)
    }

    /// A UNIX socket's name, or that of the socket it is connected to.
    pub fn name_unix_socket(&mut self, inode: u64, name: &[u8]) {
        if self.unix.len() < NAMES_MAX && !name.is_empty() {
            // An abstract name begins with a zero, for which tools write @.
            let text = String::from_utf8_lossy(name).replace('\0', "@");
            self.unix.entry(inode).or_insert_with(|| text.chars().take(PATH_MAX).collect());
        }
    }

    /// Reads the title that a process has now, if it has given itself one.
    pub fn see_title(&mut self, pid: u32) {
        let bytes = proc_fs::command_line(pid);
        if let Some(title) = title(&bytes) {
            *self.titles.entry(pid).or_default().entry(title).or_default() += 1;
        }
    }

    /// The title that a process was seen with most often; empty when it has none.
    pub fn title(&self, pid: u32) -> String {
        title_of(&self.titles, pid)
    }

    /// All titles that were seen, by process.
    pub fn titles(&self) -> impl Iterator<Item = (u32, &str)> {
        self.titles.iter().flat_map(|(pid, titles)| titles.keys().map(move |title| (*pid, title.as_str())))
    }

    /// Adds what the timeline does not know from the probes.
    pub fn complete(self, timeline: &mut Timeline) {
        for (tid, names) in self.threads.iter().filter_map(|(tid, names)| Some((*tid, names.clone()?))) {
            let known = timeline.names.entry(tid).or_insert_with(|| names.clone());
            if known.pid == names.pid {
                for (kept, read) in [(&mut known.thread, names.thread), (&mut known.process, names.process)] {
                    if kept.is_empty() {
                        *kept = read;
                    }
                }
            }
        }
        for (tid, (pid, thread)) in self.wakers {
            if !timeline.names.contains_key(&tid) {
                let leader = timeline.names.get(&pid).map(|names| names.thread.clone());
                let process = if pid == tid { thread.clone() } else { leader.unwrap_or_else(|| comm(pid)) };
                timeline.names.insert(tid, Names { pid, thread, process });
            }
        }
        let titles: Vec<(u32, String)> = self.titles.keys().map(|&pid| (pid, title_of(&self.titles, pid))).collect();
        timeline.titles.extend(titles);
        let unix = self.unix;
        let path = |link: String| match proc_fs::inode_in(&link, "socket") {
            Some(inode) => unix.get(&inode).cloned(),
            None => Some(link).filter(|link| !link.is_empty()),
        };
        timeline.files.extend(self.files.into_iter().filter_map(|(fd, link)| Some((fd, path(link)?))));
    }
}

fn title_of(titles: &HashMap<u32, HashMap<String, u32>>, pid: u32) -> String {
    let most = titles.get(&pid).and_then(|titles| titles.iter().max_by_key(|(title, count)| (**count, *title)));
    most.map(|(title, _)| title.clone()).unwrap_or_default()
}

fn thread_names(tid: u32) -> Option<Names> {
    let status = bounded_file::text(format!("/proc/{tid}/status")).ok()?;
    let pid = proc_fs::status_field(&status, "Tgid")?.parse().ok()?;
    let thread = proc_fs::whole_name(tid, proc_fs::status_field(&status, "Name")?);
    let process = if pid == tid { thread.clone() } else { comm(pid) };
    Some(Names { pid, thread, process })
}

/// The name of a process; empty when it is gone.
pub fn comm(pid: u32) -> String {
    proc_fs::comm(pid).unwrap_or_default()
}

/// The object behind a descriptor, as the kernel names it; empty when it is closed.
fn link(pid: u32, fd: i32) -> String {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap_or_default();
    link.to_string_lossy().chars().take(PATH_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn names_are_kept_of_threads_that_end() {
        let (own, file) = (std::process::id(), tempfile::NamedTempFile::new().expect("a file"));
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("reads".into()).spawn(move || {
            let link = fs::read_link("/proc/thread-self").expect("/proc");
            tell.send(link.file_name().and_then(|tid| tid.to_str()?.parse::<u32>().ok()).expect("a number"))
                .expect("sent");
            let _ = ended.recv();
        });
        let tid = told.recv().expect("its id");
        let mut known = KnownNames::default();
        known.see_thread(tid);
        known.see_thread(u32::MAX >> 1);
        known.see_file(own, file.as_file().as_raw_fd());
        assert!(known.is_new(tid));
        known.read(Duration::from_secs(5));
        drop(end);
        thread.expect("started").join().expect("it ends");
        assert_eq!((known.process_of(tid), known.is_new(tid)), (Some(own), false));
        let mut timeline = Timeline::default();
        timeline.names.insert(tid, Names { pid: own, thread: "later".into(), process: String::new() });
        let (path, fd) = (file.path().to_str().expect("UTF-8").to_owned(), file.as_file().as_raw_fd());
        drop(file);
        known.complete(&mut timeline);
        let names = &timeline.names[&tid];
        assert_eq!((names.thread.as_str(), names.process.is_empty()), ("later", false));
        assert_eq!((timeline.names.len(), timeline.files.get(&(own, fd))), (1, Some(&path)));
    }

    #[test]
    fn no_more_than_there_is_time_for() {
        let mut known = KnownNames::default();
        (1..100).for_each(|tid| known.see_thread(tid));
        known.read(Duration::ZERO);
        assert_eq!((known.threads.len(), known.new_threads.len()), (1, 98));
        (100..20_000).for_each(|tid| known.see_thread(tid));
        assert_eq!(known.threads.len() + known.new_threads.len(), NAMES_MAX);
    }
}
