//! A reader thread: it takes jobs of a dump until none is left, and opens a socket in the namespace of each.
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError};

use parshall_core::sock_diag::{DumpRequest, Message, Messages, Reading, decode, push_dump};
use parshall_evidence::socket::{Completeness, Group, SocketRecord};
use parshall_host::{diag_module, proc_net};
use parshall_sys::netns;
use parshall_sys::sock_diag::{DiagSocket, Reader};

use super::once::Once;
use super::task::{Job, Portion, Reply, Shared, Task};

/// Records in a portion: about 150 KiB.
const PORTION: usize = 256;

/// The maximum number of attempts at a dump that is interrupted.
const ATTEMPTS: u32 = 4;

/// The outcome of an attempt.
enum Outcome {
    Complete,
    /// The tables changed meanwhile, or a part of the answer was lost. The text is the kind of the error.
    Incomplete(&'static str),
    /// The kernel refused the request with this errno.
    Refused(i32),
}

/// A reader that works on the jobs of one dump.
pub(super) struct Worker<'a> {
    pub(super) reader: &'a mut dyn Reader,
    pub(super) once: &'a mut Once,
    pub(super) shared: &'a Arc<Shared>,
    pub(super) task: &'a Task,
    pub(super) replies: &'a SyncSender<Reply>,
    portion: Portion,
    request: Vec<u8>,
    /// The namespace of the attached socket.
    namespace: Option<u32>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        reader: &'a mut dyn Reader,
        once: &'a mut Once,
        shared: &'a Arc<Shared>,
        task: &'a Task,
        replies: &'a SyncSender<Reply>,
    ) -> Self {
        let portion = shared.portion();
        Self { reader, once, shared, task, replies, portion, request: Vec::new(), namespace: None }
    }

    /// Takes jobs until none is left.
    pub(super) fn work(mut self) {
        while let Some(job) = self.task.next() {
            let mut account = Completeness::default();
            let outcome = self.job(job, &mut account);
            match &outcome {
                Ok(true) => {}
                Ok(false) => self.shared.count("unsupported"),
                Err(error) => {
                    self.shared.count(kind(error));
                    self.task.mark_lost(job);
                    self.drop_socket();
                }
            }
            self.flush();
            let unsupported = matches!(outcome, Ok(false));
            if self.replies.send(Reply::Ended { account, unsupported }).is_err() {
                break;
            }
        }
        self.put_back();
        self.shared.recycle(self.portion);
    }

    /// Reads one dump, with several attempts if it is interrupted. Returns false if the kernel does not know this kind of socket.
    fn job(&mut self, job: Job, account: &mut Completeness) -> io::Result<bool> {
        self.once.clear();
        for attempt in 1..=ATTEMPTS {
            self.attach(job.namespace)?;
            let filtered = self.shared.filtered.load(Relaxed);
            let why = match self.read(job, filtered, account)? {
                Outcome::Complete => return Ok(true),
                // The kernel does not know this bytecode. Records are tested in user space anyway.
                Outcome::Refused(libc::EINVAL) if filtered => {
                    self.shared.filtered.store(false, Relaxed);
                    continue;
                }
                Outcome::Refused(libc::ENOENT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => {
                    if attempt == 1 && self.shared.falls_back.load(Relaxed) && diag_module::load(job.asked.table) {
                        continue;
                    }
                    return Ok(self.shared.falls_back.load(Relaxed) && self.read_proc(job, account));
                }
                Outcome::Refused(errno) => return Err(io::Error::from_raw_os_error(errno)),
                Outcome::Incomplete(why) => why,
            };
            self.shared.count(why);
            if attempt < ATTEMPTS {
                account.interrupted += 1;
                self.once.restart();
            }
            self.drop_socket();
        }
        // The rows that were read are sent already. Which ones are missing is not known.
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Attaches a socket of this namespace to the reader, unless one is attached.
    fn attach(&mut self, namespace: usize) -> io::Result<()> {
        let found = &self.task.namespaces[namespace];
        if self.namespace == Some(found.inode) {
            return Ok(());
        }
        self.put_back();
        let socket = if found.inode == self.shared.own {
            let kept = self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
            kept.map_or_else(DiagSocket::open, Ok)?
        } else {
            self.shared.opener.open(OwnedFd::from(found.open()?))?
        };
        self.reader.attach(socket);
        self.namespace = Some(found.inode);
        Ok(())
    }

    /// Keeps a socket of the own namespace for reuse, and closes another one. Its answer must have been read to the end.
    fn put_back(&mut self) {
        if let (Some(netns), Some(socket)) = (self.namespace.take(), self.reader.detach())
            && netns == self.shared.own
        {
            self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        }
    }

    fn drop_socket(&mut self) {
        self.namespace = None;
        drop(self.reader.detach());
    }

    /// Sends the request, and reads the answer to its end.
    fn read(&mut self, job: Job, filtered: bool, account: &mut Completeness) -> io::Result<Outcome> {
        let sequence = self.shared.sequence.fetch_add(1, Relaxed);
        self.request.clear();
        push_dump(&mut self.request, sequence, job.asked, &self.task.selection, filtered);
        self.reader.ask(&self.request)?;
        let mut answer = Answer {
            netns: self.task.namespaces[job.namespace].inode,
            asked: job.asked,
            sequence,
            task: self.task,
            shared: self.shared,
            replies: self.replies,
            once: self.once,
            portion: &mut self.portion,
            account,
            interrupted: false,
            broken: false,
            ended: None,
        };
        while answer.ended.is_none() {
            match self.reader.receive(&mut |bytes| answer.take(bytes)) {
                Ok(()) if answer.broken => return Ok(Outcome::Incomplete("broken")),
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Ok(Outcome::Incomplete("no-buffers"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(match answer.ended {
            Some(errno) if errno != 0 => Outcome::Refused(errno),
            _ if answer.interrupted => Outcome::Incomplete("interrupted"),
            _ => Outcome::Complete,
        })
    }

    /// Reads the job's sockets from /proc/net, where the kernel cannot dump them. Returns whether it could.
    fn read_proc(&mut self, job: Job, account: &mut Completeness) -> bool {
        let namespace = &self.task.namespaces[job.namespace];
        let mut found: Vec<(SocketRecord, String)> = Vec::new();
        let mut read = || {
            proc_net::each(job.asked.table, namespace.inode, &mut |record, name| {
                if job.asked.includes(&record) {
                    found.push((record, name.to_owned()));
                }
            })
        };
        let done = if namespace.inode == self.shared.own {
            read()
        } else {
            namespace.open().and_then(|file| netns::run_in(file.as_fd(), read)).and_then(|done| done)
        };
        if done.is_err() {
            return false;
        }
        self.shared.count("proc-net");
        for (mut record, name) in found {
            account.expected += 1;
            if !self.task.selection.holds(&record) {
                account.filtered += 1;
                continue;
            }
            account.emitted += 1;
            (record.name_at, record.name_len) = (self.portion.names.len() as u32, name.len() as u16);
            self.portion.names.extend_from_slice(name.as_bytes());
            // The kernel writes `@` for the NUL that an abstract name begins with.
            if name.starts_with('@') {
                let first = record.name_at as usize;
                self.portion.names[first] = 0;
            }
            self.portion.records.push(record);
            if self.portion.records.len() >= PORTION {
                self.flush();
            }
        }
        true
    }

    fn flush(&mut self) {
        send(&mut self.portion, self.shared, self.replies);
    }
}

/// Sends a portion, unless it is empty, and begins another one. If the collector has gone, it is dropped.
fn send(portion: &mut Portion, shared: &Shared, replies: &SyncSender<Reply>) {
    if !portion.records.is_empty() {
        let full = std::mem::replace(portion, shared.portion());
        let _ = replies.send(Reply::Records(full));
    }
}

/// The kind under which an error is counted.
fn kind(error: &io::Error) -> &'static str {
    match (error.raw_os_error(), error.kind()) {
        (_, io::ErrorKind::NotFound) => "vanished",
        (_, io::ErrorKind::PermissionDenied) => "refused",
        (_, io::ErrorKind::TimedOut) => "timeout",
        (_, io::ErrorKind::Interrupted) => "unsettled",
        (Some(libc::EMFILE | libc::ENFILE), _) => "no-descriptors",
        (Some(libc::ENOMEM | libc::ENOBUFS), _) => "no-memory",
        _ => "other",
    }
}

/// An answer that is being read.
struct Answer<'a> {
    netns: u32,
    asked: DumpRequest,
    sequence: u32,
    task: &'a Task,
    shared: &'a Shared,
    replies: &'a SyncSender<Reply>,
    once: &'a mut Once,
    portion: &'a mut Portion,
    account: &'a mut Completeness,
    interrupted: bool,
    broken: bool,
    /// The errno that the answer ended with.
    ended: Option<i32>,
}

impl Answer<'_> {
    fn take(&mut self, bytes: &[u8]) {
        let mut messages = Messages::new(bytes, self.sequence);
        for message in messages.by_ref() {
            match message {
                Message::Socket(payload) => self.socket(payload),
                Message::Done(errno) | Message::Refused(errno) => self.ended = Some(errno),
            }
        }
        self.interrupted |= messages.interrupted();
        self.broken |= messages.broken();
    }

    #[inline]
    fn socket(&mut self, payload: &[u8]) {
        let Portion { records, names } = &mut *self.portion;
        let names_before = names.len();
        records.push(SocketRecord::default());
        let Some(record) = records.last_mut() else { return };
        let read = decode(self.asked.table, payload, &self.task.reading, record, names);
        record.netns = self.netns;
        if read.is_some() && !self.once.is_new(record.cookie) {
            records.pop();
            names.truncate(names_before);
            return;
        }
        self.account.expected += 1;
        if read.is_some() && self.task.selection.holds(record) {
            self.account.emitted += 1;
            if !self.task.selection.groups.has(Group::Cgroup) {
                // It was read only to apply the selection.
                record.cgroup_id = 0;
            }
        } else {
            *(if read.is_some() { &mut self.account.filtered } else { &mut self.account.dropped }) += 1;
            records.pop();
            names.truncate(names_before);
        }
        if records.len() >= PORTION {
            send(self.portion, self.shared, self.replies);
        }
    }
}

/// The fields to read: the selected ones, and those that the selection tests.
pub(super) fn reading(
    selection: &parshall_evidence::socket::Selection,
    layout: parshall_core::sock_diag::Layout,
) -> Reading {
    let mut groups = selection.groups;
    if !selection.cgroups.is_empty() {
        groups = groups.with(Group::Cgroup);
    }
    Reading { groups, layout }
}
