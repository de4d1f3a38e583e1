//! Asks questions of a thread of its own, for a bounded time.
//!
//! What an observed process has mapped may lie on a file system that does not answer, or be made to keep a parser busy. What is
//! not known in time stays unknown; the observation is not lost.
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// For all slow answers of an observation together.
const TIME_MAX: Duration = Duration::from_secs(10);
/// An answer within this time is not slow.
const SLOW: Duration = Duration::from_millis(10);

/// Makes what answers, on the thread that will ask it.
pub type Make<Q, A> = fn() -> Box<dyn FnMut(Q) -> A>;

/// The thread begins with the first question, and ends with this.
pub struct Asker<Q, A> {
    make: Make<Q, A>,
    worker: Option<Worker<Q, A>>,
    left: Duration,
}

struct Worker<Q, A> {
    questions: Sender<Q>,
    answers: Receiver<A>,
}

impl<Q: Send + 'static, A: Send + 'static> Asker<Q, A> {
    /// Nothing was asked yet.
    pub const fn new(make: Make<Q, A>) -> Self {
        Self { make, worker: None, left: TIME_MAX }
    }

    /// The answer; None when there was none in time, then and from then on, or when answering panicked.
    pub fn ask(&mut self, question: Q) -> Option<A> {
        if self.left.is_zero() {
            return None;
        }
        if self.worker.is_none() {
            self.worker = start(self.make);
        }
        let worker = self.worker.as_ref()?;
        worker.questions.send(question).ok()?;
        let asked = Instant::now();
        let answer = worker.answers.recv_timeout(self.left);
        if asked.elapsed() > SLOW {
            self.left = self.left.saturating_sub(asked.elapsed());
        }
        match answer {
            Ok(answer) => return Some(answer),
            Err(RecvTimeoutError::Timeout) => self.left = Duration::ZERO,
            Err(RecvTimeoutError::Disconnected) => {}
        }
        self.worker = None;
        None
    }
}

fn start<Q: Send + 'static, A: Send + 'static>(make: Make<Q, A>) -> Option<Worker<Q, A>> {
    let (questions, asked) = channel();
    let (answer, answers) = channel();
    let work = move || {
        let mut source = make();
        while let Ok(question) = asked.recv() {
            if answer.send(source(question)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("asked".into()).spawn(work).ok()?;
    Some(Worker { questions, answers })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doubles a number; 1 never comes back, 2 panics.
    fn odd(left: Duration) -> Asker<u32, u32> {
        let make: Make<u32, u32> = || {
            Box::new(|number| match number {
                1 => loop {
                    thread::park();
                },
                2 => panic!("a parser's own mistake"),
                _ => 2 * number,
            })
        };
        Asker { left, ..Asker::new(make) }
    }

    #[test]
    fn who_does_not_answer_is_left_behind() {
        let mut asker = odd(Duration::from_millis(50));
        assert_eq!((asker.ask(1), asker.ask(3)), (None, None), "the time is used up");
    }

    #[test]
    fn a_panic_costs_that_question_only() {
        let mut asker = odd(Duration::from_secs(60));
        assert_eq!((asker.ask(2), asker.ask(4)), (None, Some(8)));
    }

    #[test]
    fn quick_answers_take_nothing_of_the_time() {
        let mut asker = odd(Duration::from_secs(60));
        // Some may be slow on a busy host.
        assert!((0..1_000).all(|_| asker.ask(4) == Some(8)));
        assert!(asker.left > Duration::from_secs(30), "{:?}", asker.left);
    }
}
