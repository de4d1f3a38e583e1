//! io_uring for sockets and TUN devices: multishot receives of messages, sends, reads, polls, and nothing else.
//!
//! A [`Ring`] belongs to the thread that opened it. All memory that the kernel reads or writes is owned by the ring until
//! the kernel is done with it. Receive buffers belong to the ring. It lends them to the caller as [`Chunk`]s, which cannot be
//! copied and are given back by [`Ring::recycle`]. Memory to be sent is moved into the ring and comes back with its
//! completion (`requests`). Dropping the ring cancels the requests in flight and waits for them. If that fails, the memory
//! is leaked rather than freed.
//!
//! Flags: SINGLE_ISSUER and, without SQPOLL, DEFER_TASKRUN (kernel 6.1). This thread alone then posts completions, inside `enter`: its other
//! work is not interrupted, it takes no lock, and it handles all pending completions in one call. Opening a ring fails with
//! EINVAL on older kernels.
mod buffers;
mod datagrams;
mod receive_memory;
mod requests;

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{Builder, EnterFlags, IoUring};

use crate::udp_batch::DatagramBatch;
pub use buffers::Chunk;
use buffers::Group;
pub use receive_memory::{DATAGRAM_HEADER_LEN, ReadBuffer};
pub use requests::Request;
use requests::{Operation, Requests};

/// Attempts to cancel the requests in flight, 20 ms each, before the memory is leaked.
const LAST_WAITS: u32 = 50;

/// Sizes of a ring. Only the queues and the lists of buffers are pinned memory: some 100 KiB.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Entries of the submission queue: requests between two calls of [`Ring::enter`].
    pub requests: u32,
    /// Entries of the completion queue.
    pub completions: u32,
    /// Number of groups of receive buffers.
    pub groups: u16,
    /// Buffers in each group; a power of two.
    pub buffers: u16,
    /// Size of each buffer in bytes.
    pub buffer_bytes: u32,
}

/// One completion. Those of cancellations are not reported.
#[derive(Debug)]
pub struct Completion {
    /// The tag that the caller gave with the request.
    pub tag: u64,
    /// The request.
    pub request: Request,
    /// The return value of the corresponding system call, or its negated errno.
    pub result: i32,
    /// Whether further completions of the request follow (IORING_CQE_F_MORE).
    pub more: bool,
    /// The received message.
    pub chunk: Option<Chunk>,
    /// The buffer that was passed to [`Ring::send_buffer`].
    pub buffer: Option<Vec<u8>>,
    /// The batch that was passed to [`Ring::send_message`].
    pub batch: Option<Box<DatagramBatch>>,
    /// The buffer that was passed to [`Ring::read`].
    pub read: Option<ReadBuffer>,
}

/// A ring with its buffers.
pub struct Ring {
    /// Identifies the ring in its chunks.
    id: u32,
    ring: ManuallyDrop<IoUring>,
    groups: ManuallyDrop<Vec<Group>>,
    /// Requests whose last completion has not been read, with the memory that they own.
    requests: ManuallyDrop<Requests>,
    no_iowait: bool,
    /// A kernel thread submits.
    polled: bool,
    /// Completions that `submit` read because the queues were full.
    early: Vec<Completion>,
}

/// Returns a number that no other ring of this process has or had. Chunks are checked against it.
fn new_id() -> io::Result<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1));
    next.map_err(|_| io::Error::other("2^32 rings were opened"))
}

impl Ring {
    /// Opens a ring for the calling thread. EPERM: not permitted; ENOSYS, EINVAL: the kernel is too old.
    pub fn open(sizes: Sizes) -> io::Result<Self> {
        Self::open_with(sizes, IoUring::builder().setup_defer_taskrun())
    }

    /// As [`Ring::open`], with a kernel thread that submits (SQPOLL). It takes a core while there is work, and sleeps `idle_ms`
    /// after the last.
    pub fn open_polled(sizes: Sizes, idle_ms: u32) -> io::Result<Self> {
        let mut new = Self::open_with(sizes, IoUring::builder().setup_sqpoll(idle_ms))?;
        new.polled = true;
        Ok(new)
    }

    fn open_with(sizes: Sizes, builder: &mut Builder) -> io::Result<Self> {
        let ring: IoUring = builder
            .setup_single_issuer()
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
            // Kernel 6.15. Otherwise waiting for completions is accounted as waiting for a disk (iowait).
            no_iowait: params.is_feature_no_iowait(),
            polled: false,
            ring: ManuallyDrop::new(ring),
            groups: ManuallyDrop::new(Vec::with_capacity(usize::from(sizes.groups))),
            requests: ManuallyDrop::default(),
            early: Vec::new(),
        };
        for id in 0..sizes.groups {
            let mut group = Group::new(new.id, id, sizes.buffers, sizes.buffer_bytes);
            let (list, places) = (group.list_address(), sizes.buffers);
            // SAFETY: the group's list is page-aligned and has `places` entries. If registering fails, the group is dropped
            // unregistered. Otherwise it lives until the ring is closed: both are fields of `Ring`, whose drop closes the
            // ring first or leaks the groups.
            unsafe { new.ring.submitter().register_buf_ring_with_flags(list, places, id, 0)? };
            group.fill();
            new.groups.push(group);
        }
        Ok(new)
    }

    /// Whether there are requests that were not submitted to the kernel yet. Their descriptors must stay open until
    /// [`Ring::enter`] has submitted them.
    pub fn unsubmitted(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Receives whenever a message arrives, into one buffer of a group; the rest of a longer message is lost. The request ends at
    /// the end of data, at an error, or when no buffer is left. In the last case it ends with the completion that used the last
    /// buffer, or with ENOBUFS.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn recv_messages(&mut self, fd: RawFd, group: u16, tag: u64) -> Request {
        assert!(usize::from(group) < self.groups.len(), "group {group} of {}", self.groups.len());
        self.submit(fd, tag, Operation::Receive { group })
    }

    /// Completes whenever a descriptor becomes readable (edge-triggered).
    pub fn poll(&mut self, fd: RawFd, tag: u64) -> Request {
        self.submit(fd, tag, Operation::Poll)
    }

    /// Cancels a request. Its last completion follows soon, with ECANCELED unless it completed otherwise before. Has no
    /// effect on a request that has ended.
    pub fn cancel(&mut self, request: Request) {
        self.submit(-1, 0, Operation::Cancel(request));
    }

    /// Sends a buffer. The request waits until at least one byte fits into the send buffer. The buffer comes back with the
    /// completion.
    pub fn send_buffer(&mut self, fd: RawFd, buffer: Vec<u8>, tag: u64) -> Request {
        self.submit(fd, tag, Operation::SendBuffer { buffer })
    }

    /// Adds a request to the submission queue. The operation owns the memory that its entry points to.
    fn submit(&mut self, fd: RawFd, tag: u64, operation: Operation) -> Request {
        let (request, entry) = self.requests.insert(fd, tag, operation);
        loop {
            // SAFETY: the entry points to memory that the operation owns, which stays in `requests` until its last
            // completion is read, and to buffers of `groups`, whose chunks the operation has or which the kernel takes out of
            // the group's list. Both outlive the ring, or are leaked with it.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return request;
            }
            // The submission queue is full. Submitting may fail while the completion queue is full, so that is read too.
            self.enter(None).expect("the ring is open, and this is its thread");
            let mut early = std::mem::take(&mut self.early);
            self.collect(&mut early);
            self.early = early;
        }
    }

    /// Submits all requests and has the kernel post completions. With a wait, returns after the first completion or after
    /// that time.
    pub fn enter(&mut self, wait: Option<Duration>) -> io::Result<()> {
        let submission = self.ring.submission();
        let requests = submission.len() as u32;
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if self.polled && submission.need_wakeup() {
            flags |= EnterFlags::SQ_WAKEUP;
        }
        drop(submission);
        let time = Timespec::from(wait.unwrap_or_default());
        let mut args = SubmitArgs::new();
        if wait.is_some() {
            args = args.timespec(&time);
            if self.no_iowait {
                flags |= EnterFlags::NO_IOWAIT;
            }
        }
        let least = u32::from(wait.is_some_and(|w| !w.is_zero()));
        // SAFETY: `requests` is the length of the submission queue. The argument is the structure that EXT_ARG requires; it
        // and the time live across the call.
        let done = unsafe { self.ring.submitter().enter(requests, least, flags.bits(), Some(&args)) };
        match done {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                // The time is over, a signal came, or completions must be read first. Callers read them in any case.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(e),
            },
        }
    }

    /// Appends the completions that were posted.
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.early);
        self.collect(out);
    }

    fn collect(&mut self, out: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            let (result, flags) = (entry.result(), entry.flags());
            let request = Request::of(entry.user_data());
            let more = io_uring::cqueue::more(flags);
            let Some((tag, operation)) = self.requests.get(request) else { continue };
            let (chunk, buffer, batch, read) = (None, None, None, None);
            let mut done = Completion { tag, request, result, more, chunk, buffer, batch, read };
            if let (Operation::Receive { group } | Operation::ReceiveDatagrams { group, .. }, Some(id)) =
                (operation, io_uring::cqueue::buffer_select(flags))
            {
                done.chunk = Some(self.groups[usize::from(*group)].take(id, result.max(0) as u32));
            }
            if !more {
                match self.requests.remove(request) {
                    Some(Operation::SendBuffer { buffer }) => done.buffer = Some(buffer),
                    Some(Operation::SendMessage { batch, .. }) => done.batch = Some(batch),
                    Some(Operation::Read { buffer }) => done.read = Some(buffer),
                    Some(Operation::Cancel(_)) => continue,
                    _ => {}
                }
            }
            out.push(done);
        }
    }

    /// The group of a chunk. Panics if the chunk is of another ring.
    fn group(&self, chunk: &Chunk) -> &Group {
        assert_eq!(chunk.ring, self.id, "a chunk of another ring");
        &self.groups[usize::from(chunk.group)]
    }

    /// As [`Ring::group`], to change the chunk's bytes.
    fn group_mut(&mut self, chunk: &Chunk) -> &mut Group {
        assert_eq!(chunk.ring, self.id, "a chunk of another ring");
        &mut self.groups[usize::from(chunk.group)]
    }

    /// The bytes of a chunk.
    ///
    /// # Panics
    /// If it is of another ring.
    pub fn bytes(&self, chunk: &Chunk) -> &[u8] {
        self.group(chunk).bytes(chunk)
    }

    /// Gives chunks back. The kernel can use their buffers after [`Ring::publish`].
    ///
    /// # Panics
    /// If one is of another ring.
    pub fn recycle(&mut self, chunks: impl IntoIterator<Item = Chunk>) {
        for chunk in chunks {
            self.group_mut(&chunk).put(chunk);
        }
    }

    /// Makes the buffers of chunks that were given back available to the kernel.
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
        f.debug_struct("Ring").field("in_flight", &self.requests.len()).finish()
    }
}

#[cfg(test)]
mod tests;
