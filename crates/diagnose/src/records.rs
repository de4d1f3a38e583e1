//! The records that the probes send singly: stalls with their stacks, and CPU samples. Keeps them and names their stacks.
use std::collections::{HashMap, HashSet};

use parshall_bpf::diagnose::Event;
use parshall_bpf::diagnose::interpreter::{InterpretedFrameWire, InterpretedWire, InterpreterWire};
use parshall_bpf::diagnose::sample::SampleWire;
use parshall_bpf::diagnose::thread::{ThreadStallWire, UserMemoryWire, UserStackWire, fd_kind};
use parshall_core::observe::clients::uninvolved;
use parshall_core::sorting::StableSort as _;
use parshall_evidence::{CpuSample, FlowRecord, FlowStall, OffCpu, Stack, ThreadRecord, ThreadStall};

use super::syscall_name::syscall_name;
use parshall_host::symbols::python::{Id, Place as Interpreter, RawFrame};
use parshall_host::symbols::{Stacks, UserStack, in_interrupt};

/// The most stalls of each kind that are kept; the time of the others is in the accounts.
const STALLS_MAX: usize = 200_000;

/// The most stacks that are unwound from a copy of their memory.
const UNWOUND_MAX: usize = 512;

/// The place where a thread sleeps: its id, its stack pointer, and the frames that the kernel found. The same place is the same chain of
/// calls, nearly always: the callers' frames lie above in the same memory.
type Place = (u32, u64, u32);

/// A sample's identity: thread, in user mode, system call, stack.
type SampleKey = (u32, bool, i32, Option<u32>);

/// The records so far.
pub struct Records {
    stacks: Stacks,
    flow_stalls: Vec<FlowStall>,
    thread_stalls: Vec<ThreadStall>,
    /// Index into `thread_stalls` of the stall whose user stack has not arrived yet, by thread.
    open: HashMap<u32, usize>,
    /// Index into `thread_stalls` of each thread's last stall that has a user stack, and where the thread slept.
    last: HashMap<u32, (usize, Place)>,
    /// Stacks that were unwound, by where their threads slept.
    unwound: HashMap<Place, u32>,
    samples: HashMap<SampleKey, u64>,
    events: u64,
    /// Interpreters are looked for in the processes that records are of.
    interpreters: bool,
    /// Those that were found and that the probes do not know yet.
    found: Vec<(u32, InterpreterWire)>,
    /// Index into `thread_stalls` of each thread's last stall whose user stack has arrived, with its sequence number.
    stacked: HashMap<u32, (usize, u32)>,
    /// Functions of each thread's next sample, with its time.
    sampled: HashMap<u32, (u64, Vec<Id>)>,
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

/// Takes threads of the port's clients that have nothing to do with it out of the records.
pub fn keep_involved(
    clients: &HashSet<u32>,
    flows: &[FlowRecord],
    threads: &mut Vec<ThreadRecord>,
    stalls: &mut Vec<ThreadStall>,
    samples: &mut Vec<CpuSample>,
) {
    let of_clients = threads.iter().filter(|thread| clients.contains(&thread.pid));
    let strangers = uninvolved(of_clients.map(|thread| (thread.pid, thread.tid)), flows);
    threads.retain(|thread| !strangers.contains(&thread.tid));
    stalls.retain(|stall| !strangers.contains(&stall.tid));
    samples.retain(|sample| !strangers.contains(&sample.tid));
}

/// Removes the wakers of wake-ups from interrupts: the interrupted thread did not cause them. Needs the names of wakers' stacks.
pub fn drop_interrupts(stalls: &mut [ThreadStall], stacks: &[Stack]) {
    for stall in stalls {
        let waker = stall.waker_stack.and_then(|id| stacks.get(id as usize));
        if waker.is_some_and(in_interrupt) {
            (stall.waker_in_irq, stall.waker_tid) = (true, 0);
            stall.waker_comm.clear();
        }
    }
}

/// Stacks of which none is known yet. `eager` is that of [`Records::new`].
pub fn stacks(eager: bool) -> Stacks {
    Stacks::new(eager, |addresses| parshall_bpf::kernel_names::names(addresses).ok())
}

impl Records {
    /// `eager`: name user addresses as they arrive, because their process may end before the window does. `interpreters`: look for
    /// interpreters in the processes that records are of.
    pub fn new(eager: bool, interpreters: bool) -> Self {
        Self {
            stacks: stacks(eager),
            flow_stalls: Vec::new(),
            thread_stalls: Vec::new(),
            open: HashMap::new(),
            last: HashMap::new(),
            unwound: HashMap::new(),
            samples: HashMap::new(),
            events: 0,
            interpreters,
            found: Vec::new(),
            stacked: HashMap::new(),
            sampled: HashMap::new(),
        }
    }

    /// Interpreters that were found since the last call, by their processes: the probes are to report their stacks from now on.
    pub fn found_interpreters(&mut self) -> Vec<(u32, InterpreterWire)> {
        std::mem::take(&mut self.found)
    }

    /// Keeps one record.
    pub fn take(&mut self, event: Event) {
        self.events += 1;
        match event {
            Event::FlowStall(wire) if self.flow_stalls.len() < STALLS_MAX => self.flow_stalls.extend(wire.decode()),
            Event::ThreadStall(wire) if self.thread_stalls.len() < STALLS_MAX => self.take_thread_stall(&wire),
            Event::UserStack(wire) => self.take_user_stack(&wire),
            Event::UserMemory(wire) => self.take_user_memory(&wire),
            Event::Sample(wire) => self.take_sample(&wire),
            Event::Interpreted(wire) => self.take_interpreted(&wire),
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
        self.look_for_interpreter(wire.tgid);
        let Some(index) = self.open.remove(&wire.head.tid) else { return };
        self.stacked.insert(wire.head.tid, (index, wire.seq));
        let Some(user) = self.stacks.intern(wire.tgid, &[], wire.stack()) else { return };
        let place = (wire.head.tid, wire.sp, user);
        self.last.insert(wire.head.tid, (index, place));
        let whole = self.unwound.get(&place).filter(|_| wire.sp != 0).copied();
        self.set_user_stack(index, whole.unwrap_or(user));
    }

    /// Replaces the user stack that arrived before, if more frames are found.
    fn take_user_memory(&mut self, wire: &UserMemoryWire) {
        let Some((index, place)) = self.last.remove(&wire.head.tid) else { return };
        if place.1 != wire.sp || self.unwound.len() >= UNWOUND_MAX {
            return;
        }
        let addresses = self.stacks.unwind(UserStack {
            tgid: wire.tgid,
            ip: wire.ip,
            sp: wire.sp,
            fp: wire.fp,
            lr: wire.lr,
            memory: wire.memory().to_vec(),
        });
        if addresses.len() <= self.stacks.user_frames(place.2).len() {
            return;
        }
        if let Some(whole) = self.stacks.intern(wire.tgid, &[], &addresses) {
            self.unwound.insert(place, whole);
            self.set_user_stack(index, whole);
        }
    }

    fn set_user_stack(&mut self, stall: usize, user: u32) {
        if let Some(stall) = self.thread_stalls.get_mut(stall) {
            stall.stack = self.stacks.join(stall.stack, Some(user));
        }
    }

    /// Functions of the next sample, or of a user stack that has arrived.
    fn take_interpreted(&mut self, wire: &InterpretedWire) {
        let raw = |frame: &InterpretedFrameWire| RawFrame {
            code: frame.code,
            instruction: frame.instruction,
            kind: frame.kind as u8,
        };
        let frames: Vec<RawFrame> = wire.frames().iter().map(raw).collect();
        let functions = self.stacks.functions(wire.tgid, &frames);
        if wire.head.at != 0 {
            self.sampled.insert(wire.head.tid, (wire.head.at, functions));
            return;
        }
        let stalled = self.stacked.remove(&wire.head.tid).filter(|(_, seq)| *seq == wire.seq);
        let Some(stall) = stalled.and_then(|(index, _)| self.thread_stalls.get_mut(index)) else { return };
        stall.stack = self.stacks.interpreted(wire.tgid, stall.stack, &functions);
    }

    fn look_for_interpreter(&mut self, tgid: u32) {
        if !self.interpreters {
            return;
        }
        let found = self.stacks.see_process(tgid);
        self.found.extend(found.map(|found| (tgid, wire(&found))));
    }

    fn take_sample(&mut self, wire: &SampleWire) {
        self.look_for_interpreter(wire.tgid);
        let mut stack = self.stacks.intern(wire.tgid, wire.kernel_stack(), wire.user_stack());
        let functions = self.sampled.remove(&wire.head.tid).filter(|(at, _)| *at == wire.head.at);
        if let Some((_, functions)) = functions {
            stack = self.stacks.interpreted(wire.tgid, stack, &functions);
        }
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
            // A wait that began before the window is cut to it.
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
        samples.stable_sort_by(|a, b| b.count.cmp(&a.count).then(a.tid.cmp(&b.tid)).then(a.stack.cmp(&b.stack)));
        Recorded {
            flow_stalls: self.flow_stalls,
            thread_stalls: self.thread_stalls,
            samples,
            stacks: self.stacks,
            events: self.events,
        }
    }
}

/// An interpreter as the probes take it.
fn wire(found: &Interpreter) -> InterpreterWire {
    let of = found.offsets;
    InterpreterWire {
        interpreters: found.interpreters,
        next_interpreter: of.next_interpreter,
        first_state: of.first_state,
        next_state: of.next_state,
        state_identity: of.state_identity,
        state_frame: of.state_frame,
        through_cframe: of.cframe_frame.is_some().into(),
        cframe_frame: of.cframe_frame.unwrap_or(0),
        frame_caller: of.frame_caller,
        frame_code: of.frame_code,
        frame_instruction: of.frame_instruction,
        frame_kind: of.frame_kind,
        pad: 0,
    }
}
