//! What each reader thread does: one dump after another, as long as there are any, on whatever namespace's socket.
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError};

use parshall_core::sock_diag::{DumpRequest, Message, Messages, Reading, decode, push_dump};
use parshall_evidence::socket::{Completeness, Group, SocketRecord};
use parshall_sys::sock_diag::{DiagSocket, Reader};

use super::once::Once;
use super::{Job, Portion, Reply, Shared, Task};

/// Records in a portion: some 150 KiB.
const PORTION: usize = 256;

/// Times that a dump is read at most, if it is interrupted each time.
const READINGS: u32 = 4;

/// How a reading ended.
enum Ended {
    /// As it should.
    Whole,
    /// The tables changed under it, or a part of it was lost.
    Again(&'static str),
    /// The kernel does not know what was asked.
    Refused(i32),
}

/// A reader at work on the jobs of one dump.
pub(super) struct Worker<'a> {
    pub(super) reader: &'a mut dyn Reader,
    pub(super) once: &'a mut Once,
    pub(super) shared: &'a Arc<Shared>,
    pub(super) task: &'a Task,
    pub(super) replies: &'a SyncSender<Reply>,
    portion: Portion,
    request: Vec<u8>,
    /// The namespace of the attached socket.
    at: Option<u32>,
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
        Self { reader, once, shared, task, replies, portion, request: Vec::new(), at: None }
    }

    /// Does jobs until none is left.
    pub(super) fn work(mut self) {
        while let Some(job) = self.task.next() {
            let mut account = Completeness::default();
            let outcome = self.job(job, &mut account);
            match &outcome {
                Ok(true) => {}
                Ok(false) => self.shared.count("unsupported"),
                Err(error) => {
                    self.shared.count(kind(error));
                    self.task.lose(job);
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

    /// One dump. `false`: the kernel does not know this kind of socket.
    fn job(&mut self, job: Job, account: &mut Completeness) -> io::Result<bool> {
        self.once.clear();
        for reading in 1..=READINGS {
            self.go_to(job.namespace)?;
            let filtered = self.shared.filtered.load(Relaxed);
            let why = match self.read(job, filtered, account)? {
                Ended::Whole => return Ok(true),
                // A program that this kernel does not know: it is tested here anyway.
                Ended::Refused(libc::EINVAL) if filtered => {
                    self.shared.filtered.store(false, Relaxed);
                    continue;
                }
                Ended::Refused(libc::ENOENT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => return Ok(false),
                Ended::Refused(errno) => return Err(io::Error::from_raw_os_error(errno)),
                Ended::Again(why) => why,
            };
            self.shared.count(why);
            if reading < READINGS {
                account.interrupted += 1;
                self.once.again();
            }
            self.drop_socket();
        }
        // What was read has been given; what was missed, nobody knows.
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Sees to it that a socket of this namespace is attached.
    fn go_to(&mut self, namespace: usize) -> io::Result<()> {
        let found = &self.task.namespaces[namespace];
        if self.at == Some(found.inode) {
            return Ok(());
        }
        self.put_back();
        let kept = self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner).take(found.inode);
        let socket = match kept {
            Some(socket) => socket,
            None if found.inode == self.shared.own => DiagSocket::open()?,
            None => self.shared.opener.open(OwnedFd::from(found.open()?))?,
        };
        self.reader.attach(socket);
        self.at = Some(found.inode);
        Ok(())
    }

    /// A socket that was read to the end of its answer may be used again.
    fn put_back(&mut self) {
        if let (Some(netns), Some(socket)) = (self.at.take(), self.reader.detach()) {
            self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner).put(netns, socket);
        }
    }

    fn drop_socket(&mut self) {
        self.at = None;
        drop(self.reader.detach());
    }

    /// Asks, and reads the answer to its end.
    fn read(&mut self, job: Job, filtered: bool, account: &mut Completeness) -> io::Result<Ended> {
        let sequence = self.shared.sequence.fetch_add(1, Relaxed);
        self.request.clear();
        push_dump(&mut self.request, sequence, job.asked, &self.task.selection, filtered);
        self.reader.ask(&self.request)?;
        let mut part = Part {
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
        while part.ended.is_none() {
            match self.reader.receive(&mut |bytes| part.take(bytes)) {
                Ok(()) if part.broken => return Ok(Ended::Again("broken")),
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Ended::Again("no-buffers")),
                Err(error) => return Err(error),
            }
        }
        Ok(match part.ended {
            Some(errno) if errno != 0 => Ended::Refused(errno),
            _ if part.interrupted => Ended::Again("interrupted"),
            _ => Ended::Whole,
        })
    }

    fn flush(&mut self) {
        send(&mut self.portion, self.shared, self.replies);
    }
}

/// Gives a portion out, if it holds anything, and begins another. A receiver that has gone has lost interest.
fn send(portion: &mut Portion, shared: &Shared, replies: &SyncSender<Reply>) {
    if !portion.records.is_empty() {
        let full = std::mem::replace(portion, shared.portion());
        let _ = replies.send(Reply::Records(full));
    }
}

/// What error it was, as it is counted.
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
struct Part<'a> {
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

impl Part<'_> {
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
                // It was read for the selection only.
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

/// Fields that are read for a selection: those that it is decided by, too.
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
