//! A thread that sleeps until the reply to its own question has come over a connection that others use too ([`super::shared`]).
use parshall_evidence::HopKind;
use parshall_evidence::timeline::{OffCpu, Waker};

use super::index::Index;
use super::shared::Question;
use super::step::{Next, Step, Target, Task};
use super::walk::Walk;
use crate::wait::Wait;

impl Index<'_> {
    /// The question that a thread had asked when it fell asleep, and that had no reply yet.
    fn question(&self, off: &OffCpu) -> Option<Question> {
        let all = self.questions.get(&off.tid).filter(|_| matches!(self.wait(off), Wait::Futex | Wait::Multiplex))?;
        let last = *all[..all.partition_point(|question| question.from_ns <= off.begin_ns)].last()?;
        (off.begin_ns < last.to_ns).then_some(last)
    }
}

impl Walk<'_> {
    /// A sleep, cut to `span`, of a thread that waits for the reply to a question of its own on a connection that others use too.
    pub(super) fn answer(&mut self, off: &OffCpu, (begin, wake): (u64, u64)) -> Option<Next> {
        let question = self.index.question(off)?;
        let heard = question.to_ns.clamp(begin, wake);
        let step = Step::of(off, HopKind::Reply).to(Target::Remote(question.socket));
        self.within(step, |w| w.asked(question, begin, heard));
        // Whoever received it wakes the thread.
        let step = Step::of(off, HopKind::Worker);
        match off.waker {
            Waker::Thread(by) => self.within(step, |w| w.thread(by, heard, wake, Task::Other)),
            _ => self.emit(step, wake - heard),
        }
        Some(Next::Before(begin))
    }

    /// The time of a question between `lo` and `hi`, at whoever was asked.
    fn asked(&mut self, question: Question, lo: u64, hi: u64) {
        let other_end = self.index.socket(question.socket).and_then(|socket| socket.other_end);
        let all = other_end.and_then(|end| self.index.requests.get(&end)).map_or(&[][..], Vec::as_slice);
        let next = all.get(all.partition_point(|request| request.arrived_ns < question.from_ns));
        let Some(request) = next.filter(|request| request.arrived_ns <= question.to_ns).copied() else {
            return self.emit_here(hi - lo);
        };
        let (arrived, end) = (request.arrived_ns.clamp(lo, hi), request.end_ns.clamp(lo, hi));
        if arrived < end {
            self.emit(Step::new(0, HopKind::Network), hi - end);
            self.request(&request, arrived, end);
            self.emit(Step::new(0, HopKind::Network), arrived - lo);
        } else {
            self.emit(Step::new(0, HopKind::Network), hi - lo);
        }
    }
}
