//! io_uring for sockets: multishot accept and receive, sends, and nothing else.
//!
//! A [`Ring`] belongs to the thread that opened it. All memory that the kernel reads or writes is owned by the ring until
//! the kernel is done with it: receive buffers are the ring's own and lent to the caller as [`Chunk`]s, which cannot be
//! copied and are given back by [`Ring::recycle`]; what is sent is moved into the ring and comes back with its completion
//! (`requests`). Dropping the ring cancels what is in flight and waits for it; should that fail, the memory is leaked
//! rather than freed.
//!
//! Flags: SINGLE_ISSUER and DEFER_TASKRUN (kernel 6.1). Completions are then posted only inside `enter` by this thread: no
//! interrupt of its work, no lock against itself, and whatever came in meanwhile is handled in one go. A kernel without
//! them also lacks what makes the ring worth having, so it is refused.
mod buffers;
mod requests;

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring};

pub use buffers::Chunk;
use buffers::Group;
pub use requests::Request;
use requests::{AT_ONCE, Gather, Operation, Places, Requests};

/// Attempts to end what is in flight before the memory is given up.
const LAST_WAITS: u32 = 50;
/// Lists that are kept to be used again.
const SPARE_LISTS: usize = 256;

/// How large a ring is. Only the queues and the lists of buffers are pinned memory: some 100 KiB.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Requests between two calls.
    pub requests: u32,
    /// Completions that wait to be read.
    pub completions: u32,
    /// Groups of receive buffers.
    pub groups: u16,
    /// Buffers of a group; a power of two.
    pub buffers: u16,
    /// Bytes of a buffer.
    pub buffer_bytes: u32,
}

/// One completion. Those of cancellations are not reported.
#[derive(Debug)]
pub struct Completion {
    /// What the request was tagged with.
    pub tag: u64,
    /// The request.
    pub request: Request,
    /// The accepted connection.
    pub socket: Option<OwnedFd>,
    /// What the system call would have returned, or minus its errno.
    pub result: i32,
    /// The request goes on; without it this was its last completion.
    pub more: bool,
    /// The received bytes, in order; of [`Ring::send_chunks`], its chunks.
    pub chunks: Vec<Chunk>,
    /// The buffer of [`Ring::send_buffer`].
    pub buffer: Option<Vec<u8>>,
}

/// A ring with its buffers.
pub struct Ring {
    /// Tells its chunks from those of other rings.
    id: u32,
    ring: ManuallyDrop<IoUring>,
    groups: ManuallyDrop<Vec<Group>>,
    /// Requests whose last completion has not been read, with the memory that they need.
    requests: ManuallyDrop<Requests>,
    bundles: bool,
    no_iowait: bool,
    /// Lists for the chunks of completions, used again; and headers of gathered sends.
    lists: Vec<Vec<Chunk>>,
    #[expect(clippy::vec_box, reason = "they move into requests, and entries point at them")]
    gathers: Vec<Box<Gather>>,
    /// Completions read to make room while requests were queued.
    early: Vec<Completion>,
}

/// A number that no other ring of this process has or had: a chunk is checked by it.
fn new_id() -> io::Result<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1));
    next.map_err(|_| io::Error::other("2^32 rings were opened"))
}

impl Ring {
    /// Opens a ring for the calling thread. EPERM: not permitted; ENOSYS, EINVAL: the kernel is too old.
    pub fn open(sizes: Sizes) -> io::Result<Self> {
        let ring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(sizes.completions)
            .build(sizes.requests)?;
        let params = ring.params();
        if !params.is_feature_submit_stable() || !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut new = Self {
            id: new_id()?,
            bundles: params.is_feature_recvsend_bundle(),
            // Kernel 6.15: waiting for the network is not waiting for a disk.
            no_iowait: params.is_feature_no_iowait(),
            ring: ManuallyDrop::new(ring),
            groups: ManuallyDrop::new(Vec::with_capacity(usize::from(sizes.groups))),
            requests: ManuallyDrop::default(),
            lists: Vec::new(),
            gathers: Vec::new(),
            early: Vec::new(),
        };
        for id in 0..sizes.groups {
            let mut group = Group::new(new.id, id, sizes.buffers, sizes.buffer_bytes);
            let (list, places) = (group.list_address(), sizes.buffers);
            // SAFETY: the group's list is page-aligned and as long as said. If this fails it is dropped with nothing
            // registered; otherwise it lives until the ring is closed, for both are fields of `Ring` and its drop closes
            // the ring first or leaks the groups.
            unsafe { new.ring.submitter().register_buf_ring_with_flags(list, places, id, 0)? };
            group.fill();
            new.groups.push(group);
        }
        Ok(new)
    }

    /// Whether one completion may bring several buffers (kernel 6.10).
    pub fn bundles(&self) -> bool {
        self.bundles
    }

    /// Requests whose last completion has not been read.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Buffers that are lent to the caller, or being sent.
    pub fn chunks_lent(&self) -> usize {
        self.groups.iter().map(Group::lent).sum()
    }

    /// Whether there are requests that the kernel has not taken in. Their descriptors must stay open until it has.
    pub fn unsubmitted(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Receives whenever bytes arrive, into buffers of a group, until the end of data, an error, or no buffer is left (which
    /// ends it with the last bytes that had one, or with ENOBUFS).
    ///
    /// # Panics
    /// If there is no such group.
    pub fn recv(&mut self, fd: RawFd, group: u16, tag: u64) -> Request {
        self.receive(fd, group, self.bundles, tag)
    }

    /// As [`Ring::recv`], for sockets that keep messages apart: each completion brings one message, in one buffer. What of it
    /// does not fit is lost, so buffers have to be as large as the largest message.
    pub fn recv_messages(&mut self, fd: RawFd, group: u16, tag: u64) -> Request {
        self.receive(fd, group, false, tag)
    }

    fn receive(&mut self, fd: RawFd, group: u16, bundle: bool, tag: u64) -> Request {
        assert!(usize::from(group) < self.groups.len(), "group {group} of {}", self.groups.len());
        self.submit(fd, tag, Operation::Receive { group, bundle })
    }

    /// Accepts whenever a client connects; what is accepted is non-blocking and close-on-exec.
    pub fn accept(&mut self, fd: RawFd, tag: u64) -> Request {
        self.submit(fd, tag, Operation::Accept)
    }

    /// Tells whenever a descriptor becomes readable: once per change, not as long as it is.
    pub fn poll(&mut self, fd: RawFd, tag: u64) -> Request {
        self.submit(fd, tag, Operation::Poll)
    }

    /// Ends a request: its last completion comes soon, with ECANCELED if it had nothing else to say. Nothing happens to one
    /// that has ended.
    pub fn cancel(&mut self, request: Request) {
        self.submit(-1, 0, Operation::Cancel(request));
    }

    /// Sends chunks without waiting: by the time the request is taken in, as much as fits is sent. The chunks come back
    /// with the completion.
    ///
    /// # Panics
    /// If a chunk is of another ring.
    pub fn send_chunks(&mut self, fd: RawFd, chunks: Vec<Chunk>, tag: u64) -> Request {
        let gather = self.gather(&chunks);
        let places = match gather.only() {
            Some(piece) => {
                self.gathers.push(gather);
                Places::One(piece)
            }
            None => Places::Several(gather),
        };
        self.submit(fd, tag, Operation::SendChunks { chunks, places })
    }

    /// Sends chunks by a system call of its own: cheaper than a request when there is only this one to be made.
    ///
    /// # Panics
    /// If a chunk is of another ring.
    pub fn send_chunks_now(&mut self, fd: RawFd, chunks: &[Chunk]) -> io::Result<usize> {
        let gather = self.gather(chunks);
        // SAFETY: header and pieces live across the call, which reads them and the buffers that they name: this ring's,
        // which the caller holds as chunks.
        let sent = unsafe { libc::sendmsg(fd, gather.header(), AT_ONCE) };
        let result = usize::try_from(sent).map_err(|_| io::Error::last_os_error());
        self.gathers.push(gather);
        result
    }

    /// The places of chunks in memory, in order.
    fn gather(&mut self, chunks: &[Chunk]) -> Box<Gather> {
        let mut gather = self.gathers.pop().unwrap_or_else(Gather::new);
        gather.fill(chunks.iter().map(|chunk| self.group(chunk).place(chunk)));
        gather
    }

    /// Sends what follows the first `from` bytes of a buffer as soon as there is room, at least one byte. The buffer comes
    /// back with the completion.
    pub fn send_buffer(&mut self, fd: RawFd, buffer: Vec<u8>, from: usize, tag: u64) -> Request {
        self.submit(fd, tag, Operation::SendBuffer { buffer, from })
    }

    /// Queues a request, which owns what it points to.
    fn submit(&mut self, fd: RawFd, tag: u64, operation: Operation) -> Request {
        let (request, entry) = self.requests.insert(fd, tag, operation);
        loop {
            // SAFETY: the entry points to memory that the operation owns, which stays in `requests` until its last
            // completion is read, and to buffers of `groups`, whose chunks the operation has or which the kernel takes out of
            // the group's list. Both outlive the ring, or are leaked with it.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return request;
            }
            // Full: the kernel takes in what is there, if need be after completions have made room for more.
            self.enter(None).expect("the ring is open, and this is its thread");
            let mut early = std::mem::take(&mut self.early);
            self.read(&mut early);
            self.early = early;
        }
    }

    /// Has the kernel take in all requests and post what has completed; with a wait, at least one completion or until the
    /// time is over.
    pub fn enter(&mut self, wait: Option<Duration>) -> io::Result<()> {
        let requests = self.ring.submission().len() as u32;
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        let time = Timespec::from(wait.unwrap_or_default());
        let mut args = SubmitArgs::new();
        if wait.is_some() {
            args = args.timespec(&time);
            if self.no_iowait {
                flags |= EnterFlags::NO_IOWAIT;
            }
        }
        let least = u32::from(wait.is_some_and(|w| !w.is_zero()));
        // SAFETY: the number of requests is what stands in the queue, and the argument is the structure that EXT_ARG
        // announces; it and the time live across the call.
        let done = unsafe { self.ring.submitter().enter(requests, least, flags.bits(), Some(&args)) };
        match done {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                // Time over, a signal, or completions must be read first: the caller does so in any case.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(e),
            },
        }
    }

    /// Appends what has completed.
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.early);
        self.read(out);
    }

    fn read(&mut self, out: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            let (result, flags) = (entry.result(), entry.flags());
            let request = Request::of(entry.user_data());
            let more = io_uring::cqueue::more(flags);
            let Some((tag, operation)) = self.requests.get(request) else { continue };
            let mut done = Completion { tag, request, socket: None, result, more, chunks: Vec::new(), buffer: None };
            match (operation, io_uring::cqueue::buffer_select(flags)) {
                (Operation::Receive { group, .. }, Some(id)) => {
                    done.chunks = self.lists.pop().unwrap_or_default();
                    self.groups[usize::from(*group)].take(id, result.max(0) as u32, &mut done.chunks);
                }
                (Operation::Accept, _) if result >= 0 => {
                    // SAFETY: what an accept returns is a new descriptor, which nothing else owns.
                    done.socket = Some(unsafe { OwnedFd::from_raw_fd(result) });
                }
                _ => {}
            }
            if !more {
                match self.requests.remove(request) {
                    Some(Operation::SendChunks { chunks, places }) => {
                        done.chunks = chunks;
                        if let Places::Several(gather) = places {
                            self.gathers.push(gather);
                        }
                    }
                    Some(Operation::SendBuffer { buffer, .. }) => done.buffer = Some(buffer),
                    Some(Operation::Cancel(_)) => continue,
                    _ => {}
                }
            }
            out.push(done);
        }
    }

    /// The group of a chunk, if it is one of this ring's.
    fn group(&self, chunk: &Chunk) -> &Group {
        assert_eq!(chunk.ring, self.id, "a chunk of another ring");
        &self.groups[usize::from(chunk.group)]
    }

    /// The bytes of a chunk.
    ///
    /// # Panics
    /// If it is of another ring.
    pub fn bytes(&self, chunk: &Chunk) -> &[u8] {
        self.group(chunk).bytes(chunk)
    }

    /// Gives chunks back; the kernel sees them after [`Ring::publish`].
    ///
    /// # Panics
    /// If one is of another ring.
    pub fn recycle(&mut self, mut chunks: Vec<Chunk>) {
        for chunk in chunks.drain(..) {
            assert_eq!(chunk.ring, self.id, "a chunk of another ring");
            self.groups[usize::from(chunk.group)].put(chunk);
        }
        if chunks.capacity() > 0 && self.lists.len() < SPARE_LISTS {
            self.lists.push(chunks);
        }
    }

    /// Shows the kernel the chunks that were given back.
    pub fn publish(&mut self) {
        for group in self.groups.iter_mut() {
            group.publish();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut seen = Vec::new();
        for _ in 0..LAST_WAITS {
            if self.requests.len() == 0 {
                break;
            }
            let time = Timespec::from(Duration::from_millis(20));
            let all = self.ring.submitter().register_sync_cancel(Some(time), CancelBuilder::any());
            if all.is_err_and(|e| !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EALREADY | libc::ETIME))) {
                break;
            }
            if self.enter(Some(Duration::from_millis(20))).is_err() {
                break;
            }
            self.reap(&mut seen);
            seen.clear();
        }
        if self.requests.len() == 0 {
            // SAFETY: dropped once, here, and not used after. Nothing is in flight, so the kernel touches none of the
            // memory; the ring is closed before its buffers are freed.
            unsafe {
                ManuallyDrop::drop(&mut self.ring);
                ManuallyDrop::drop(&mut self.groups);
                ManuallyDrop::drop(&mut self.requests);
            }
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.requests.len()).field("bundles", &self.bundles).finish()
    }
}

#[cfg(test)]
mod tests;
