//! A small capture with all that further forms of a report show.
use parshall_core::testkit::timeline::{Script, client_socket, off, served_socket};
use parshall_core::testkit::{FlowBuilder, MS, capture};
use parshall_evidence::timeline::{OffCpu, Waker};
use parshall_evidence::{
    Capture, CpuSample, FdKind, FlowState, Frame, NO_SYSCALL, Release, Role, Stack, ThreadStall, thread,
};

use super::further;

/// A client's thread 201 sends a request, which thread 101 answers after it slept for a lock that 102 released.
pub fn exchange() -> Capture {
    let sleep = OffCpu { waker: Waker::Thread(102), stack: Some(0), ..off(101, 300_000, 700_000, 750_000) };
    let mut script = Script::new()
        .socket(1, served_socket(7000), 101)
        .socket(2, client_socket(7000), 201)
        .pair(1, 2)
        .sends(201, 2, 90_000)
        .receives(101, 1, 100_000, 200_000)
        .off(sleep)
        .sends(101, 1, 800_000)
        .sleeps(102, 0, 650_000, 35, Waker::HardIrq);
    script.timeline.names.get_mut(&101).unwrap().thread = "worker".to_owned();
    let flow = FlowBuilder::new(1, Role::Client).stall(10 * MS, 40 * MS, FlowState::Nagle, Release::RxAckDelayed);
    let frame = |name: &str| Frame { name: name.to_owned(), module: "libc.so.6".to_owned(), kernel: false };
    let stall = ThreadStall {
        tid: 101,
        begin_ns: 10 * MS,
        ns: 40 * MS,
        why: thread::OffCpu::Blocked,
        syscall: 202,
        syscall_name: "futex".to_owned(),
        fd: FdKind::None,
        waker_tid: 102,
        waker_comm: "t102".to_owned(),
        waker_in_irq: false,
        stack: Some(0),
        waker_stack: Some(1),
    };
    let samples = vec![CpuSample {
        tid: 101,
        user: true,
        syscall: NO_SYSCALL,
        syscall_name: String::new(),
        stack: Some(0),
        count: 3,
    }];
    Capture {
        timeline: Some(script.timeline),
        stacks: vec![
            Stack { frames: vec![frame("futex"), frame("lock"), frame("main")] },
            Stack { frames: vec![frame("unlock"), frame("work")] },
        ],
        thread_stalls: vec![stall],
        samples,
        uring: Some(further::uring()),
        log: Some(further::log()),
        ..capture(vec![flow.fill()], Vec::new())
    }
}
