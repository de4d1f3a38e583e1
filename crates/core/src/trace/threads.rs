//! Lanes of threads: their times off the CPU. Between these they ran, as far as slices show it.
use std::collections::BTreeMap;

use parshall_evidence::thread;
use parshall_evidence::timeline::{OffCpu, Waker, Why};
use parshall_evidence::{Capture, FdKind, NO_SYSCALL, ThreadStall, Timeline};

use super::lane::{Draft, Of, Span, Texts};
use super::state::State;
use super::uring::Outstanding;
use crate::sorting::StableSort as _;
use crate::units::or;
use crate::wait::Wait;

/// The call in which threads wait for requests to io_uring.
const URING_WAIT: &str = "io_uring_enter";

/// Those of processes that were asked about come first, then the others, by process and thread.
pub fn lanes(capture: &Capture, texts: &mut Texts) -> Vec<Draft> {
    match &capture.timeline {
        Some(timeline) => of_timeline(timeline, &mut Outstanding::new(capture), texts),
        None => of_stalls(capture, texts),
    }
}

fn of_timeline(timeline: &Timeline, outstanding: &mut Outstanding<'_>, texts: &mut Texts) -> Vec<Draft> {
    let mut lanes: Vec<(bool, u32, Draft)> = Vec::new();
    for (tid, offs) in &timeline.off_cpu {
        let names = timeline.names.get(tid);
        let pid = names.map_or(0, |names| names.pid);
        let process = names.map_or("", |names| names.process.as_str());
        let thread = names.map_or("", |names| names.thread.as_str());
        let mut spans = Vec::with_capacity(offs.len());
        for off in offs {
            let is_uring = timeline.syscalls.get(&off.syscall).is_some_and(|call| call == URING_WAIT);
            let open = if is_uring { outstanding.text(*tid, off.begin_ns) } else { String::new() };
            push(timeline, pid, (off, &open), texts, &mut spans);
        }
        let group = format!("{} {pid}", or(process, "process"));
        let name = format!("{} {tid}", or(thread, "thread"));
        let draft = Draft { of: Of::Thread(*tid), group, name, spans };
        lanes.push((!timeline.asked_pids.contains(&pid), pid, draft));
    }
    lanes.stable_sort_by_key(|(others, pid, draft)| (*others, *pid, draft.of));
    lanes.into_iter().map(|(_, _, draft)| draft).collect()
}

/// The sleep, and the wait for a CPU behind it.
fn push(
    timeline: &Timeline,
    pid: u32,
    (off, outstanding): (&OffCpu, &str),
    texts: &mut Texts,
    out: &mut Vec<(Span, u32)>,
) {
    let waker = match off.waker {
        Waker::Thread(tid) | Waker::KernelThread(tid) => tid,
        Waker::Unknown | Waker::SoftIrq | Waker::HardIrq => 0,
    };
    let span = |begin_ns, end_ns, state, text| Span { begin_ns, end_ns, state, text, ended_by: None, stack: off.stack };
    let ready_from = match off.why {
        Why::Preempted => off.begin_ns,
        Why::Throttled | Why::Stopped => off.end_ns,
        Why::Slept | Why::SleptForIo | Why::SleptUninterruptibly => {
            // A case that was changed by hand may have any order.
            off.wake_ns.clamp(off.begin_ns, off.end_ns.max(off.begin_ns))
        }
    };
    if ready_from > off.begin_ns {
        let text = texts.id(text(timeline, pid, off, outstanding));
        out.push((span(off.begin_ns, ready_from, state(timeline, off), text), waker));
    }
    if off.end_ns > ready_from {
        let ran =
            timeline.names.get(&off.ran_instead_tid).map(|n| format!("{} {} ran there", n.thread, off.ran_instead_tid));
        let text = texts.id(ran.unwrap_or_default());
        out.push((span(ready_from, off.end_ns, State::Ready, text), 0));
    }
}

fn state(timeline: &Timeline, off: &OffCpu) -> State {
    match off.why {
        Why::Preempted => State::Ready,
        Why::Throttled => State::Throttled,
        Why::Stopped => State::Stopped,
        Why::SleptForIo => State::Disk,
        Why::Slept | Why::SleptUninterruptibly => {
            let name = timeline.syscalls.get(&off.syscall).map_or("", String::as_str);
            of_wait(Wait::of(name, off.fd, off.syscall))
        }
    }
}

fn of_wait(wait: Wait) -> State {
    match wait {
        Wait::Multiplex => State::Events,
        Wait::Futex => State::Futex,
        Wait::Sleep => State::Timer,
        Wait::SocketReceive => State::Receive,
        Wait::SocketSend => State::Send,
        Wait::Accept => State::Accept,
        Wait::Connect => State::Connect,
        Wait::Pipe => State::Pipe,
        Wait::File => State::Disk,
        Wait::PageFault => State::Memory,
        Wait::Other => State::Kernel,
    }
}

/// The call and its object, what is outstanding at io_uring, and who ended the wait: `recvfrom 10.0.0.2:5432 · ended by a softirq`.
fn text(timeline: &Timeline, pid: u32, off: &OffCpu, outstanding: &str) -> String {
    let call = timeline.syscalls.get(&off.syscall).map_or("", String::as_str);
    let object = match off.fd {
        FdKind::Tcp | FdKind::Udp | FdKind::Unix | FdKind::Socket => timeline
            .sockets
            .get(&off.target)
            .map(|socket| if socket.remote.port() == 0 { socket.local } else { socket.remote }.to_string()),
        _ => timeline.files.get(&(pid, off.fd_number)).cloned(),
    };
    let object =
        object.or_else(|| (call.starts_with("futex") && off.target != 0).then(|| format!("{:#x}", off.target)));
    let ended = match off.waker {
        Waker::Unknown => None,
        Waker::Thread(tid) | Waker::KernelThread(tid) => {
            let name = timeline.names.get(&tid).map_or("thread", |names| names.thread.as_str());
            Some(format!("ended by {name} {tid}"))
        }
        Waker::SoftIrq => Some("ended by a softirq".to_owned()),
        Waker::HardIrq => Some("ended by an interrupt".to_owned()),
    };
    let what = [call.to_owned(), object.unwrap_or_default()];
    let what = what.iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join(" ");
    [what, outstanding.to_owned(), ended.unwrap_or_default()]
        .iter()
        .filter(|part| !part.is_empty())
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" · ")
}

/// Of a rung without single events: the long times off the CPU.
fn of_stalls(capture: &Capture, texts: &mut Texts) -> Vec<Draft> {
    let mut outstanding = Outstanding::new(capture);
    let mut by_tid: BTreeMap<u32, Vec<&ThreadStall>> = BTreeMap::new();
    for stall in &capture.thread_stalls {
        by_tid.entry(stall.tid).or_default().push(stall);
    }
    let mut lanes: Vec<(u32, Draft)> = Vec::new();
    for (tid, mut stalls) in by_tid {
        stalls.stable_sort_by_key(|stall| stall.begin_ns);
        let record = capture.threads.iter().find(|thread| thread.tid == tid);
        let (pid, comm) = record.map_or((0, ""), |record| (record.pid, record.comm.as_str()));
        let process = capture.subject.pids.iter().position(|known| *known == pid);
        let process = process.and_then(|at| capture.subject.comms.get(at)).map_or("", String::as_str);
        let spans: Vec<(Span, u32)> = stalls.iter().map(|stall| of_stall(stall, &mut outstanding, texts)).collect();
        let group = format!("{} {pid}", or(process, "process"));
        let name = format!("{} {tid}", or(comm, "thread"));
        lanes.push((pid, Draft { of: Of::Thread(tid), group, name, spans }));
    }
    lanes.stable_sort_by_key(|(pid, draft)| (*pid, draft.of));
    lanes.into_iter().map(|(_, draft)| draft).collect()
}

fn of_stall(stall: &ThreadStall, outstanding: &mut Outstanding<'_>, texts: &mut Texts) -> (Span, u32) {
    let state = match stall.why {
        thread::OffCpu::Runnable => State::Ready,
        thread::OffCpu::Throttled => State::Throttled,
        thread::OffCpu::Blocked => of_wait(Wait::of(&stall.syscall_name, stall.fd, stall.syscall)),
    };
    let call = if stall.syscall == NO_SYSCALL { "" } else { &stall.syscall_name };
    let open = if call == URING_WAIT { outstanding.text(stall.tid, stall.begin_ns) } else { String::new() };
    let text = [call, &open].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ");
    let span = Span {
        begin_ns: stall.begin_ns,
        end_ns: stall.begin_ns.saturating_add(stall.ns),
        state,
        text: texts.id(text),
        ended_by: None,
        stack: stall.stack,
    };
    (span, if stall.waker_in_irq { 0 } else { stall.waker_tid })
}
