//! The time of threads, by stack: CPU samples, and times off the CPU with the stacks of those who ended them above those of the
//! sleepers. Formats of flame graphs draw it.
use std::collections::{BTreeMap, BTreeSet};

use parshall_evidence::thread::OffCpu;
use parshall_evidence::timeline::Why;
use parshall_evidence::{Capture, NO_SYSCALL, Stack};

use crate::report::simplified;
use crate::sorting::IntoOrdered as _;
use crate::units::or;

/// Stands between the stack of a sleeper and that of who woke it.
pub const WOKEN_BY: &str = "--";

/// The kinds of frames of a flame graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// A thread, by its name.
    Thread,
    /// A function of a program.
    User,
    /// A function of the kernel, or the system call where there is no stack.
    Kernel,
    /// The same of who ended the sleep, and [`WOKEN_BY`] below it.
    Waker,
}

/// A frame. Names are as they came from the host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    /// Its name.
    pub name: String,
    /// The kind of the function or thread.
    pub of: Of,
}

impl Frame {
    fn new(of: Of, name: &str) -> Frame {
        Frame { name: name.to_owned(), of }
    }
}

/// Stacks from the outermost frame, which is the thread, to the innermost one, with what was seen in each.
pub type Stacks = BTreeMap<Vec<Frame>, u64>;

/// Both kinds of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flames {
    /// CPU samples of the window.
    pub on_cpu: Stacks,
    /// Microseconds off the CPU in the observed time, as far as they were seen one by one.
    pub off_cpu: Stacks,
}

impl Flames {
    /// Of a capture. Threads of the subject have their long times off the CPU (1 ms and more) with those who ended them; others have
    /// what the timeline has of them.
    pub fn new(capture: &Capture) -> Flames {
        let mut flames = Flames::default();
        let names = names(capture);
        let thread = |tid: u32| Frame::new(Of::Thread, &or(names.get(&tid).map_or("", |name| name), "thread"));
        for sample in &capture.samples {
            let mut frames = vec![thread(sample.tid)];
            match sample.stack.and_then(|stack| capture.stacks.get(stack as usize)) {
                Some(stack) => frames.extend(outermost_first(stack)),
                None if sample.user => frames.push(Frame::new(Of::User, "[user]")),
                None => frames.push(Frame::new(Of::Kernel, "[kernel]")),
            }
            add(&mut flames.on_cpu, frames, sample.count);
        }
        let stalled: BTreeSet<u32> = capture.thread_stalls.iter().map(|stall| stall.tid).into_set();
        for stall in &capture.thread_stalls {
            let mut frames = vec![thread(stall.tid)];
            let call = if stall.syscall == NO_SYSCALL { "" } else { stall.syscall_name.as_str() };
            let why = match stall.why {
                OffCpu::Blocked => "",
                OffCpu::Runnable => "[waits for a CPU]",
                OffCpu::Throttled => "[out of CPU quota]",
            };
            frames.extend(asleep(capture, stall.stack, call, why));
            let waker = stall.waker_stack.and_then(|stack| capture.stacks.get(stack as usize));
            frames.extend(awaken(waker, stall.waker_tid, stall.waker_in_irq, &stall.waker_comm));
            add(&mut flames.off_cpu, frames, stall.ns / 1_000);
        }
        let others = capture.timeline.iter().flat_map(|timeline| &timeline.off_cpu);
        for off in others.filter(|(tid, _)| !stalled.contains(tid)).flat_map(|(_, offs)| offs) {
            let calls = capture.timeline.as_ref().map(|timeline| &timeline.syscalls);
            let call = calls.and_then(|calls| calls.get(&off.syscall)).map_or("", String::as_str);
            let why = match off.why {
                Why::Slept | Why::SleptForIo | Why::SleptUninterruptibly => "",
                Why::Preempted => "[waits for a CPU]",
                Why::Throttled => "[out of CPU quota]",
                Why::Stopped => "[stopped]",
            };
            let mut frames = vec![thread(off.tid)];
            frames.extend(asleep(capture, off.stack, call, why));
            add(&mut flames.off_cpu, frames, off.end_ns.saturating_sub(off.begin_ns) / 1_000);
        }
        flames
    }

    /// Nothing was seen.
    pub fn is_empty(&self) -> bool {
        self.on_cpu.is_empty() && self.off_cpu.is_empty()
    }
}

fn add(stacks: &mut Stacks, frames: Vec<Frame>, weight: u64) {
    if weight > 0 {
        let sum = stacks.entry(frames).or_default();
        *sum = sum.saturating_add(weight);
    }
}

/// Names of threads by their ids.
fn names(capture: &Capture) -> BTreeMap<u32, &str> {
    let observed = capture.timeline.iter().flat_map(|timeline| &timeline.names);
    let mut names: BTreeMap<u32, &str> = observed.map(|(tid, names)| (*tid, names.thread.as_str())).into_map();
    names.extend(capture.threads.iter().map(|thread| (thread.tid, thread.comm.as_str())));
    names
}

fn outermost_first(stack: &Stack) -> impl Iterator<Item = Frame> {
    let of = |kernel: bool| if kernel { Of::Kernel } else { Of::User };
    stack.frames.iter().rev().map(move |frame| Frame::new(of(frame.kernel), &simplified(&frame.name)))
}

/// The stack of a sleeper; its system call where there is none.
fn asleep(capture: &Capture, stack: Option<u32>, call: &str, why: &str) -> Vec<Frame> {
    let found = stack.and_then(|stack| capture.stacks.get(stack as usize)).filter(|stack| !stack.frames.is_empty());
    let mut frames: Vec<Frame> = match found {
        Some(stack) => outermost_first(stack).collect(),
        None if call.is_empty() => Vec::new(),
        None => vec![Frame::new(Of::Kernel, call)],
    };
    if !why.is_empty() {
        frames.push(Frame::new(Of::Kernel, why));
    }
    frames
}

/// The stack of a waker from its innermost frame, which is next to the sleeper, to its name.
fn awaken(stack: Option<&Stack>, tid: u32, in_irq: bool, comm: &str) -> Vec<Frame> {
    if stack.is_none() && tid == 0 && !in_irq {
        return Vec::new();
    }
    let innermost = stack.iter().flat_map(|stack| &stack.frames).map(|frame| simplified(&frame.name));
    let mut frames = vec![Frame::new(Of::Waker, WOKEN_BY)];
    frames.extend(innermost.map(|name| Frame::new(Of::Waker, &name)));
    // The thread that the interrupt stopped did not end the sleep.
    frames.push(Frame::new(Of::Waker, if in_irq { "[interrupt]" } else { comm }));
    frames
}

#[cfg(test)]
mod tests {
    use parshall_evidence::thread::FdKind;
    use parshall_evidence::{CpuSample, ThreadStall};

    use super::*;
    use crate::testkit::timeline::{Script, off};
    use crate::testkit::{MS, empty_capture};

    fn frame(name: &str, kernel: bool) -> parshall_evidence::Frame {
        parshall_evidence::Frame { name: name.to_owned(), module: String::new(), kernel }
    }

    fn stall() -> ThreadStall {
        ThreadStall {
            tid: 101,
            begin_ns: 0,
            ns: 40 * MS,
            why: OffCpu::Blocked,
            syscall: 202,
            syscall_name: "futex".to_owned(),
            fd: FdKind::None,
            waker_tid: 102,
            waker_comm: "holder".to_owned(),
            waker_in_irq: false,
            stack: Some(0),
            waker_stack: Some(1),
        }
    }

    fn capture() -> Capture {
        let sample = |count| CpuSample {
            tid: 102,
            user: true,
            syscall: NO_SYSCALL,
            syscall_name: String::new(),
            stack: Some(1),
            count,
        };
        let timeline = Script::new().off(off(101, 0, 900_000, 900_000)).off(off(202, 0, 500_000, 500_000)).timeline;
        Capture {
            stacks: vec![
                Stack { frames: vec![frame("futex_wait", true), frame("lock", false), frame("main", false)] },
                Stack { frames: vec![frame("unlock", false), frame("work", false)] },
            ],
            thread_stalls: vec![stall(), stall(), ThreadStall { waker_in_irq: true, waker_stack: None, ..stall() }],
            samples: vec![sample(3), sample(4)],
            timeline: Some(timeline),
            ..empty_capture()
        }
    }

    fn lines(stacks: &Stacks) -> Vec<(String, u64)> {
        let line = |frames: &Vec<Frame>| frames.iter().map(|f| f.name.as_str()).collect::<Vec<_>>().join(";");
        stacks.iter().map(|(frames, n)| (line(frames), *n)).collect()
    }

    #[test]
    fn wakers_stand_above_sleepers_with_their_innermost_frame_first() {
        let flames = Flames::new(&capture());
        // Nothing on record names the thread that was sampled.
        assert_eq!(lines(&flames.on_cpu), [("thread;work;unlock".to_owned(), 7)]);
        assert_eq!(
            lines(&flames.off_cpu),
            [
                ("t101;main;lock;futex_wait;--;[interrupt]".to_owned(), 40_000),
                ("t101;main;lock;futex_wait;--;unlock;work;holder".to_owned(), 80_000),
                // It has no long times: what the timeline has of it.
                ("t202;futex".to_owned(), 500),
            ]
        );
        assert!(!flames.is_empty() && Flames::new(&empty_capture()).is_empty());
    }
}
