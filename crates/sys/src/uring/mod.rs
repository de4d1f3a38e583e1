//! io_uring for sockets: multishot accept and receive, sends, and nothing else.
//!
//! A [`Ring`] belongs to the thread that opened it. All memory that the kernel reads or writes is owned by the ring until
//! the kernel is done with it: receive buffers are the ring's own and lent to the caller as [`Chunk`]s, which cannot be
//! copied and are given back by [`Ring::recycle`]; a buffer that is sent and has to wait is moved into the ring and comes
//! back with its completion. Dropping the ring cancels what is in flight and waits for it; should that fail, the memory
//! is leaked rather than freed.
//!
//! Flags: SINGLE_ISSUER and DEFER_TASKRUN (kernel 6.1). Completions are then posted only inside `enter` by this thread: no
//! interrupt of its work, no lock against itself, and whatever came in meanwhile is handled in one go. A kernel without
//! them also lacks what makes the ring worth having, so it is refused.
mod buffers;

use std::collections::HashMap;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};

pub use buffers::Chunk;
use buffers::Group;

/// Attempts to end what is in flight before the memory is given up.
const LAST_WAITS: u32 = 50;
/// A send that takes what fits, and no signal when the peer is gone.
const AT_ONCE: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
/// Pieces of one gathered send: UIO_MAXIOV.
const PIECES_MAX: usize = 1024;

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

/// One completion.
#[derive(Debug)]
pub struct Completion {
    /// What the request was tagged with.
    pub tag: u64,
    /// The accepted connection.
    pub socket: Option<OwnedFd>,
    /// What the system call would have returned, or minus its errno.
    pub result: i32,
    /// The request goes on; without it this was its last completion.
    pub more: bool,
    /// The received bytes, in order.
    pub chunks: Vec<Chunk>,
    /// The buffer of [`Ring::send_buffer`].
    pub buffer: Option<Vec<u8>>,
}

/// The header and pieces of a gathered send.
struct Gather {
    header: libc::msghdr,
    pieces: Vec<libc::iovec>,
}

// SAFETY: the pointers lead to the pieces of the same value and to memory of the ring it belongs to.
unsafe impl Send for Gather {}

/// A ring with its buffers.
pub struct Ring {
    ring: ManuallyDrop<IoUring>,
    groups: ManuallyDrop<Vec<Group>>,
    /// Buffers of sends in flight, by tag.
    lent: ManuallyDrop<HashMap<u64, Vec<u8>>>,
    /// Read by the kernel when it takes the requests in, not after (IORING_FEAT_SUBMIT_STABLE).
    #[expect(clippy::vec_box, reason = "requests point at them while the list grows")]
    gathers: Vec<Box<Gather>>,
    /// Requests whose last completion has not been read.
    in_flight: usize,
    bundles: bool,
    no_iowait: bool,
    /// Lists for the chunks of completions, used again.
    lists: Vec<Vec<Chunk>>,
    /// Completions read to make room while requests were queued.
    early: Vec<Completion>,
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
        let bundles = params.is_feature_recvsend_bundle();
        // Kernel 6.15: waiting for the network is not waiting for a disk.
        let no_iowait = params.is_feature_no_iowait();
        let mut groups = Vec::with_capacity(usize::from(sizes.groups));
        for id in 0..sizes.groups {
            let mut group = Group::new(id, sizes.buffers, sizes.buffer_bytes);
            // SAFETY: the group's list is page-aligned and as long as said. If this fails it is dropped with nothing
            // registered; otherwise it lives until the ring is closed, for both are fields of `Ring` and its drop closes
            // the ring first or leaks the groups.
            unsafe { ring.submitter().register_buf_ring_with_flags(group.list_address(), sizes.buffers, id, 0)? };
            group.fill();
            groups.push(group);
        }
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            groups: ManuallyDrop::new(groups),
            lent: ManuallyDrop::new(HashMap::new()),
            gathers: Vec::new(),
            in_flight: 0,
            bundles,
            no_iowait,
            lists: Vec::new(),
            early: Vec::new(),
        })
    }

    /// Whether one completion may bring several buffers (kernel 6.10).
    pub fn bundles(&self) -> bool {
        self.bundles
    }

    /// Requests whose last completion has not been read.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Buffers that are lent to the caller.
    pub fn chunks_lent(&self) -> usize {
        self.groups.iter().map(Group::lent).sum()
    }

    /// Whether there are requests that the kernel has not taken in. Their descriptors must stay open until it has.
    pub fn unsubmitted(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Receives whenever bytes arrive, into buffers of a group, until the end of data, an error, or no buffer is left (which
    /// ends it with the last bytes that had one, or with ENOBUFS).
    pub fn recv(&mut self, fd: RawFd, group: u16, tag: u64) {
        let entry = if self.bundles {
            opcode::RecvMultiBundle::new(Fd(fd), group).build()
        } else {
            opcode::RecvMulti::new(Fd(fd), group).build()
        };
        // SAFETY: the request names no memory but the group's buffers, which the ring owns.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// As [`Ring::recv`], for sockets that keep messages apart: each completion brings one message, in one buffer. What of it
    /// does not fit is lost, so buffers have to be as large as the largest message.
    pub fn recv_messages(&mut self, fd: RawFd, group: u16, tag: u64) {
        let entry = opcode::RecvMulti::new(Fd(fd), group).build();
        // SAFETY: the request names no memory but the group's buffers, which the ring owns.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Accepts whenever a client connects; what is accepted is non-blocking and close-on-exec.
    pub fn accept(&mut self, fd: RawFd, tag: u64) {
        let entry = opcode::AcceptMulti::new(Fd(fd)).flags(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC).build();
        // SAFETY: the request names no memory.
        unsafe { self.push(entry.user_data(tag | ACCEPTS)) }
    }

    /// Tells whenever a descriptor becomes readable: once per change, not as long as it is.
    pub fn poll(&mut self, fd: RawFd, tag: u64) {
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).multi(true).build();
        // SAFETY: the request names no memory.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Ends a request: its last completion comes soon, with ECANCELED if it had nothing else to say. The cancellation
    /// itself completes with `tag`.
    pub fn cancel(&mut self, request: u64, tag: u64) {
        self.cancel_raw(request, tag);
    }

    /// As [`Ring::cancel`], for a request of [`Ring::accept`].
    pub fn cancel_accept(&mut self, request: u64, tag: u64) {
        self.cancel_raw(request | ACCEPTS, tag);
    }

    fn cancel_raw(&mut self, request: u64, tag: u64) {
        // SAFETY: the request names no memory.
        unsafe { self.push(opcode::AsyncCancel::new(request).build().user_data(tag)) }
    }

    /// Sends chunks without waiting: by the time the request is taken in, as much as fits is sent. The caller keeps the
    /// chunks until it has the completion.
    pub fn send_chunks(&mut self, fd: RawFd, chunks: &[Chunk], tag: u64) {
        let mut gather = self.gather(chunks);
        let entry = if let [piece] = gather.pieces[..] {
            let len = u32::try_from(piece.iov_len).unwrap_or(u32::MAX);
            opcode::Send::new(Fd(fd), piece.iov_base.cast(), len).flags(AT_ONCE).build()
        } else {
            gather.header.msg_iov = gather.pieces.as_mut_ptr();
            gather.header.msg_iovlen = gather.pieces.len() as _;
            let gather = Box::new(gather);
            let entry = opcode::SendMsg::new(Fd(fd), &raw const gather.header).flags(AT_ONCE as u32).build();
            // The box does not move when the list does.
            self.gathers.push(gather);
            entry
        };
        // SAFETY: the pieces lie in buffers of the ring, which live as long as it does; header and pieces are kept until
        // the kernel has read them.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Sends chunks by a system call of its own: cheaper than a request when there is only this one to be made.
    pub fn send_chunks_now(&self, fd: RawFd, chunks: &[Chunk]) -> io::Result<usize> {
        let mut gather = self.gather(chunks);
        gather.header.msg_iov = gather.pieces.as_mut_ptr();
        gather.header.msg_iovlen = gather.pieces.len() as _;
        // SAFETY: header and pieces live across the call, which reads them and the ring's buffers that they name.
        let sent = unsafe { libc::sendmsg(fd, &raw const gather.header, AT_ONCE) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// The places of chunks in memory, in order.
    fn gather(&self, chunks: &[Chunk]) -> Gather {
        let mut pieces: Vec<libc::iovec> = Vec::new();
        for chunk in chunks {
            let (start, len) = self.groups[usize::from(chunk.group)].place(chunk);
            let full = pieces.len() == PIECES_MAX;
            match pieces.last_mut() {
                // Buffers come in the order they were given back in, so neighbours are often neighbours in memory.
                Some(last) if last.iov_base.addr() + last.iov_len == start.addr() => last.iov_len += len,
                _ if full => break,
                _ => pieces.push(libc::iovec { iov_base: start.cast(), iov_len: len }),
            }
        }
        // SAFETY: all-zero bytes are a msghdr without address, pieces and control data.
        Gather { header: unsafe { std::mem::zeroed() }, pieces }
    }

    /// Sends what follows the first `from` bytes of a buffer as soon as there is room, at least one byte. The buffer comes
    /// back with the completion. `tag` must not be that of another buffer in flight.
    pub fn send_buffer(&mut self, fd: RawFd, buffer: Vec<u8>, from: usize, tag: u64) {
        let rest = buffer.get(from..).unwrap_or_default();
        let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let entry = opcode::Send::new(Fd(fd), rest.as_ptr(), len).flags(libc::MSG_NOSIGNAL).build();
        let before = self.lent.insert(tag, buffer);
        assert!(before.is_none(), "one buffer per tag: the other one is still read by the kernel");
        // SAFETY: the bytes belong to a Vec that `lent` owns and does not touch until the last completion of this tag, and
        // moving a Vec does not move its bytes.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// # Safety
    /// What the entry points to lives until the kernel has read it (or until its last completion).
    unsafe fn push(&mut self, entry: squeue::Entry) {
        let accepts = entry.get_opcode() == u32::from(opcode::AcceptMulti::CODE);
        assert!(accepts || entry.get_user_data() & ACCEPTS == 0, "the highest bit of a tag is taken");
        self.in_flight += 1;
        loop {
            // SAFETY: as promised by the caller.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
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
        if self.ring.submission().is_empty() {
            self.gathers.clear();
        }
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
            let (tag, result, flags) = (entry.user_data(), entry.result(), entry.flags());
            let more = io_uring::cqueue::more(flags);
            let mut chunks = Vec::new();
            if let Some(id) = io_uring::cqueue::buffer_select(flags) {
                // Tags of receives carry their group in the lowest bits: the completion does not say it.
                let group = &mut self.groups[usize::from(group_of(tag))];
                chunks = self.lists.pop().unwrap_or_default();
                group.take(id, result.max(0) as u32, &mut chunks);
            }
            // SAFETY: only requests of `accept` have this bit (`push` checks), and what they return is a new descriptor,
            // which nothing else owns.
            let socket = (tag & ACCEPTS != 0 && result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
            let tag = tag & !ACCEPTS;
            let mut buffer = None;
            if !more {
                self.in_flight -= 1;
                if !self.lent.is_empty() {
                    buffer = self.lent.remove(&tag);
                }
            }
            out.push(Completion { tag, socket, result, more, chunks, buffer });
        }
    }

    /// The bytes of a chunk.
    pub fn bytes(&self, chunk: &Chunk) -> &[u8] {
        self.groups[usize::from(chunk.group)].bytes(chunk)
    }

    /// Gives chunks back; the kernel sees them after [`Ring::publish`].
    pub fn recycle(&mut self, mut chunks: Vec<Chunk>) {
        for chunk in chunks.drain(..) {
            self.groups[usize::from(chunk.group)].put(chunk);
        }
        if chunks.capacity() > 0 && self.lists.len() < 256 {
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

/// Marks the tags of accepts inside the ring; callers leave this bit alone.
const ACCEPTS: u64 = 1 << 63;
/// Bits of a tag that name the group of a receive.
pub const GROUP_BITS: u32 = 4;

fn group_of(tag: u64) -> u16 {
    (tag & ((1 << GROUP_BITS) - 1)) as u16
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut seen = Vec::new();
        for _ in 0..LAST_WAITS {
            if self.in_flight == 0 {
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
        if self.in_flight == 0 {
            // SAFETY: dropped once, here, and not used after. Nothing is in flight, so the kernel touches none of the
            // memory; the ring is closed before its buffers are freed.
            unsafe {
                ManuallyDrop::drop(&mut self.ring);
                ManuallyDrop::drop(&mut self.groups);
                ManuallyDrop::drop(&mut self.lent);
            }
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.in_flight).field("bundles", &self.bundles).finish()
    }
}

#[cfg(test)]
mod tests;
