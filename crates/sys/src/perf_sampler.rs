//! CPU samples without BPF, from the ring buffers of perf events (perf_event_open(2)): of threads, or of the kernel on all CPUs.
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::perf_event::{self, Attr, Of};

/// Data pages of each ring buffer, a power of two: half a second at 1000 Hz. One more page holds the metadata.
const DATA_PAGES: usize = 16;
/// `data_head` and `data_tail` in `struct perf_event_mmap_page` (uapi/linux/perf_event.h).
const HEAD_AT: usize = 1024;
const TAIL_AT: usize = 1032;
/// PERF_SAMPLE_TID | PERF_SAMPLE_CALLCHAIN.
const SAMPLE_TYPE: u64 = 1 << 1 | 1 << 5;
/// `exclude_user`, bit 4 of the flags; `exclude_kernel`, bit 5; `exclude_hv`, bit 6; `exclude_idle`, bit 7; `freq`, bit 10.
const EXCLUDE_USER: u64 = 1 << 4;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const EXCLUDE_IDLE: u64 = 1 << 7;
const FREQ: u64 = 1 << 10;
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
/// Addresses of this value or above are no addresses: they name the context of those that follow (PERF_CONTEXT_MAX).
const CONTEXT: u64 = -4095i64 as u64;
const CONTEXT_KERNEL: u64 = -128i64 as u64;
const CONTEXT_USER: u64 = -512i64 as u64;

/// One sample of a thread on a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    /// Thread id.
    pub tid: u32,
    /// Addresses in the kernel, innermost first.
    pub kernel: Vec<u64>,
    /// Addresses in the program, innermost first.
    pub user: Vec<u64>,
}

/// Samples a set of threads, or all CPUs.
#[derive(Debug)]
pub struct Sampler {
    rings: Vec<Ring>,
    hz: u64,
    exclude: u64,
    lost: u64,
}

impl Sampler {
    /// Samples these threads `hz` times per second of their CPU time. Kernel stacks are left out where they are not permitted
    /// (kernel.perf_event_paranoid without CAP_PERFMON).
    ///
    /// # Errors
    /// If no thread can be sampled.
    pub fn start(hz: u64, threads: impl IntoIterator<Item = u32>) -> io::Result<Self> {
        let mut sampler = Self { rings: Vec::new(), hz, exclude: EXCLUDE_HV, lost: 0 };
        let mut refused = io::Error::from_raw_os_error(libc::ESRCH);
        for tid in threads {
            if let Err(error) = sampler.follow(tid) {
                refused = error;
            }
        }
        if sampler.rings.is_empty() { Err(refused) } else { Ok(sampler) }
    }

    /// Samples the kernel on these CPUs `hz` times per second in which they are not idle.
    ///
    /// # Errors
    /// If no CPU can be sampled: without CAP_PERFMON.
    pub fn of_cpus(hz: u64, cpus: impl IntoIterator<Item = u32>) -> io::Result<Self> {
        let mut sampler = Self { rings: Vec::new(), hz, exclude: EXCLUDE_HV | EXCLUDE_USER | EXCLUDE_IDLE, lost: 0 };
        let mut refused = io::Error::from_raw_os_error(libc::ENODEV);
        for cpu in cpus {
            match Ring::open(Of::Cpu(cpu), hz, sampler.exclude) {
                Ok(ring) => sampler.rings.push(ring),
                // One that went offline meanwhile has none (ENODEV).
                Err(error) => refused = error,
            }
        }
        if sampler.rings.is_empty() { Err(refused) } else { Ok(sampler) }
    }

    /// Adds a thread, unless it is sampled already.
    ///
    /// # Errors
    /// If the thread is gone, or the kernel refuses another event or its buffer (RLIMIT_NOFILE, RLIMIT_MEMLOCK).
    pub fn follow(&mut self, tid: u32) -> io::Result<()> {
        let of = Of::Thread(tid);
        if self.rings.iter().any(|ring| ring.of == of) {
            return Ok(());
        }
        let opened = match Ring::open(of, self.hz, self.exclude) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && self.exclude & EXCLUDE_KERNEL == 0 => {
                let ring = Ring::open(of, self.hz, self.exclude | EXCLUDE_KERNEL)?;
                self.exclude |= EXCLUDE_KERNEL;
                ring
            }
            opened => opened?,
        };
        self.rings.push(opened);
        Ok(())
    }

    /// Samples lost so far because a ring buffer was full.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Passes the samples since the last call to `take`.
    pub fn drain(&mut self, take: &mut dyn FnMut(Sample)) {
        let mut bytes = Vec::new();
        for ring in &self.rings {
            ring.read(&mut bytes);
            self.lost += decode(&bytes, take);
        }
    }
}

/// Decodes the records of a ring buffer and returns how many samples the kernel reports as lost. Malformed records are
/// skipped or end the decoding; no input makes it panic.
pub fn decode(mut bytes: &[u8], take: &mut dyn FnMut(Sample)) -> u64 {
    let mut lost = 0;
    while let Some((head, _)) = bytes.split_at_checked(8) {
        let kind = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        let size = usize::from(u16::from_ne_bytes([head[6], head[7]]));
        let Some((record, rest)) = bytes.split_at_checked(size.max(8)) else { break };
        bytes = rest;
        let body = &record[8..];
        match kind {
            RECORD_SAMPLE => take(sample(body)),
            RECORD_LOST => lost += word(body, 1),
            _ => {}
        }
    }
    lost
}

/// The 64-bit word at index `at` of a record; 0 beyond its end.
fn word(body: &[u8], at: usize) -> u64 {
    body.as_chunks::<8>().0.get(at).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Decodes `{ u32 pid, tid; u64 nr; u64 ips[nr]; }`.
fn sample(body: &[u8]) -> Sample {
    let ids = word(body, 0).to_ne_bytes();
    let tid = u32::from_ne_bytes([ids[4], ids[5], ids[6], ids[7]]);
    let mut sample = Sample { tid, ..Sample::default() };
    let count = usize::try_from(word(body, 1)).unwrap_or(usize::MAX);
    let mut context = CONTEXT_USER;
    for bytes in body.as_chunks::<8>().0.iter().skip(2).take(count) {
        match u64::from_ne_bytes(*bytes) {
            address if address >= CONTEXT => context = address,
            address if context == CONTEXT_KERNEL => sample.kernel.push(address),
            address if context == CONTEXT_USER => sample.user.push(address),
            _ => {}
        }
    }
    sample
}

/// An event and its ring buffer.
#[derive(Debug)]
struct Ring {
    of: Of,
    base: NonNull<u8>,
    bytes: usize,
    page: usize,
    _event: File,
}

// SAFETY: the mapping belongs to this value alone and is not bound to a thread.
unsafe impl Send for Ring {}

impl Ring {
    fn open(of: Of, hz: u64, exclude: u64) -> io::Result<Self> {
        let attr = Attr {
            kind: 1, // PERF_TYPE_SOFTWARE
            // PERF_COUNT_SW_TASK_CLOCK counts while a thread runs, PERF_COUNT_SW_CPU_CLOCK always.
            config: u64::from(matches!(of, Of::Thread(_))),
            sample: hz,
            sample_type: SAMPLE_TYPE,
            flags: FREQ | exclude,
            ..Attr::default()
        };
        let event = perf_event::open(attr, of)?;
        let page = usize::try_from(crate::clock::page_bytes()).map_err(io::Error::other)?;
        let bytes = (1 + DATA_PAGES) * page;
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, event.as_raw_fd());
        // SAFETY: a new shared mapping of the event's buffer at an address that the kernel chooses; no memory of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { of, base, bytes, page, _event: event })
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is one of two offsets of aligned 64-bit words in the first page of the mapping, which lives as long
        // as `self`; the kernel and we access them only atomically.
        unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU64>() }
    }

    /// Replaces the contents of `to` by the records since the last call.
    fn read(&self, to: &mut Vec<u8>) {
        to.clear();
        let size = DATA_PAGES * self.page;
        let tail = self.position(TAIL_AT).load(Ordering::Relaxed);
        let head = self.position(HEAD_AT).load(Ordering::Acquire);
        let length = usize::try_from(head.wrapping_sub(tail)).unwrap_or(size).min(size);
        let begin = (tail % size as u64) as usize;
        let first = length.min(size - begin);
        to.reserve(length);
        for (from, count) in [(begin, first), (0, length - first)] {
            // SAFETY: both ranges lie in the data pages of the mapping. The kernel does not write between tail and head
            // until the tail moves, which is below; `to` has room for both.
            unsafe {
                let source = self.base.as_ptr().add(self.page + from);
                std::ptr::copy_nonoverlapping(source, to.as_mut_ptr().add(to.len()), count);
                to.set_len(to.len() + count);
            }
        }
        self.position(TAIL_AT).store(head, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, words: &[u64]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(0u16.to_ne_bytes());
        bytes.extend((8 + 8 * words.len() as u16).to_ne_bytes());
        words.iter().for_each(|w| bytes.extend(w.to_ne_bytes()));
        bytes
    }

    #[test]
    fn records_are_decoded_and_malformed_ones_do_not_panic() {
        let ids = u64::from_ne_bytes([1, 0, 0, 0, 9, 0, 0, 0]);
        let mut bytes = record(RECORD_SAMPLE, &[ids, 5, CONTEXT_KERNEL, 0xffff_8000_0000_0001, CONTEXT_USER, 7, 8]);
        bytes.extend(record(RECORD_LOST, &[1, 3]));
        bytes.extend(record(77, &[]));
        // Its count of addresses is too large.
        bytes.extend(record(RECORD_SAMPLE, &[ids, u64::MAX, 5]));
        let mut seen = Vec::new();
        assert_eq!(decode(&bytes, &mut |s| seen.push(s)), 3);
        let first = Sample { tid: 9, kernel: vec![0xffff_8000_0000_0001], user: vec![7, 8] };
        assert_eq!(seen, [first, Sample { tid: 9, kernel: vec![], user: vec![5] }]);
        for cut in 0..bytes.len() {
            decode(&bytes[..cut], &mut |_| {});
        }
        decode(&[0; 64], &mut |_| {});
    }

    #[test]
    fn a_thread_that_works_is_sampled() {
        let tid = crate::thread_id();
        let mut sampler = match Sampler::start(999, [tid]) {
            Ok(sampler) => sampler,
            Err(e) => return parshall_testkit::skip("samples of a busy thread", &format!("perf_event_open: {e}")),
        };
        let begun = crate::clock::thread_cpu_ns();
        let mut x = 1u64;
        while crate::clock::thread_cpu_ns() < begun + 200_000_000 {
            x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(7));
        }
        let mut samples = 0;
        sampler.drain(&mut |sample| {
            assert_eq!(sample.tid, tid);
            samples += u64::from(!sample.user.is_empty() || !sample.kernel.is_empty());
        });
        // 200 are expected; a virtual machine on a busy host gets fewer.
        assert!(samples + sampler.lost() > 20, "{samples} {x}");
        assert!(sampler.follow(u32::MAX >> 2).is_err());
    }
}
