//! The records that the probes send singly: stalls with their stacks, and CPU samples. Keeps them and names their stacks.
use std::collections::HashMap;

use parshall_bpf::diagnose::Event;
use parshall_bpf::diagnose::sample::SampleWire;
use parshall_bpf::diagnose::thread::{ThreadStallWire, UserStackWire, fd_kind};
use parshall_evidence::{Capture, CpuSample, FlowStall, OffCpu, ThreadStall};

use super::syscall_name::syscall_name;
use parshall_host::symbols::{Stacks, in_interrupt};

/// The most stalls of each kind that are kept; the time of the others is in the accounts.
const STALLS_MAX: usize = 200_000;

/// A sample's identity: thread, in user mode, system call, stack.
type SampleKey = (u32, bool, i32, Option<u32>);

/// The records so far.
pub struct Records {
    stacks: Stacks,
    flow_stalls: Vec<FlowStall>,
    thread_stalls: Vec<ThreadStall>,
    /// Index into `thread_stalls` of the stall whose user stack has not arrived yet, by thread.
    open: HashMap<u32, usize>,
    samples: HashMap<SampleKey, u64>,
    events: u64,
}

/// The records of a whole window, times relative to its beginning.
pub struct Recorded {
    /// Long intervals of flows.
    pub flow_stalls: Vec<FlowStall>,
    /// Long times off the CPU.
    pub thread_stalls: Vec<ThreadStall>,
    /// CPU samples.
    pub samples: Vec<CpuSample>,
    /// Stacks that the others refer to.
    pub stacks: Stacks,
    /// Number of records.
    pub events: u64,
}

/// Removes the wakers of wake-ups from interrupts: the interrupted thread did not cause them. Needs named stacks.
pub fn drop_interrupts(capture: &mut Capture) {
    let stacks = &capture.stacks;
    for stall in &mut capture.thread_stalls {
        let waker = stall.waker_stack.and_then(|id| stacks.get(id as usize));
        if waker.is_some_and(in_interrupt) {
            (stall.waker_in_irq, stall.waker_tid) = (true, 0);
            stall.waker_comm.clear();
        }
    }
}

impl Records {
    /// `eager`: name user addresses as they arrive, because their process may end before the window does.
    pub fn new(eager: bool) -> Self {
        Self {
            stacks: Stacks::new(eager),
            flow_stalls: Vec::new(),
            thread_stalls: Vec::new(),
            open: HashMap::new(),
            samples: HashMap::new(),
            events: 0,
        }
    }

    /// Keeps one record.
    pub fn take(&mut self, event: Event) {
        self.events += 1;
        match event {
            Event::FlowStall(wire) if self.flow_stalls.len() < STALLS_MAX => self.flow_stalls.extend(wire.decode()),
            Event::ThreadStall(wire) if self.thread_stalls.len() < STALLS_MAX => self.take_thread_stall(&wire),
            Event::UserStack(wire) => self.take_user_stack(&wire),
            Event::Sample(wire) => self.take_sample(&wire),
            _ => {}
        }
    }

    fn take_thread_stall(&mut self, wire: &ThreadStallWire) {
        let stack = self.stacks.intern(wire.tgid, wire.stack(), &[]);
        let waker_stack = self.stacks.intern(wire.waker_tgid, wire.waker_stack(), &[]);
        let why = wire.why();
        if why == OffCpu::Blocked {
            self.open.insert(wire.head.tid, self.thread_stalls.len());
        }
        let in_irq = wire.waker_irq != 0 || wire.waker_comm.starts_with(b"ksoftirqd");
        self.thread_stalls.push(ThreadStall {
            tid: wire.head.tid,
            begin_ns: wire.begin,
            ns: wire.ns,
            why,
            syscall: wire.nr,
            syscall_name: syscall_name(wire.nr).into_owned(),
            fd: fd_kind(wire.fd),
            waker_tid: if in_irq { 0 } else { wire.waker_tid },
            waker_comm: if in_irq { String::new() } else { parshall_bpf::comm(&wire.waker_comm) },
            waker_in_irq: in_irq,
            stack,
            waker_stack,
        });
    }

    fn take_user_stack(&mut self, wire: &UserStackWire) {
        let user = self.stacks.intern(wire.tgid, &[], wire.stack());
        if let Some(stall) = self.open.remove(&wire.head.tid).and_then(|i| self.thread_stalls.get_mut(i)) {
            stall.stack = self.stacks.join(stall.stack, user);
        }
    }

    fn take_sample(&mut self, wire: &SampleWire) {
        let stack = self.stacks.intern(wire.tgid, wire.kernel_stack(), wire.user_stack());
        *self.samples.entry((wire.head.tid, wire.user != 0, wire.nr, stack)).or_default() += 1;
    }

    /// Samples in user and in kernel mode, by thread.
    pub fn samples_by_thread(&self) -> HashMap<u32, (u64, u64)> {
        let mut by_thread: HashMap<u32, (u64, u64)> = HashMap::new();
        for ((tid, user, _, _), count) in &self.samples {
            let slot = by_thread.entry(*tid).or_default();
            *(if *user { &mut slot.0 } else { &mut slot.1 }) += count;
        }
        by_thread
    }

    /// Everything, with times relative to `begin`.
    pub fn finish(mut self, begin: u64) -> Recorded {
        let thread_stalls = self.thread_stalls.iter_mut().map(|stall| (&mut stall.begin_ns, &mut stall.ns));
        let flow_stalls = self.flow_stalls.iter_mut().map(|stall| (&mut stall.begin_ns, &mut stall.ns));
        for (begin_ns, ns) in thread_stalls.chain(flow_stalls) {
            // What began before the window is cut to it.
            *ns = ns.saturating_sub(begin.saturating_sub(*begin_ns));
            *begin_ns = begin_ns.saturating_sub(begin);
        }
        let mut samples: Vec<CpuSample> = self
            .samples
            .into_iter()
            .map(|((tid, user, syscall, stack), count)| CpuSample {
                tid,
                user,
                syscall,
                syscall_name: if syscall >= 0 { syscall_name(syscall).into_owned() } else { String::new() },
                stack,
                count,
            })
            .collect();
        samples.sort_by(|a, b| b.count.cmp(&a.count).then(a.tid.cmp(&b.tid)).then(a.stack.cmp(&b.stack)));
        Recorded {
            flow_stalls: self.flow_stalls,
            thread_stalls: self.thread_stalls,
            samples,
            stacks: self.stacks,
            events: self.events,
        }
    }
}
