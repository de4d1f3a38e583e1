//! Forwards signals from `parshall run` to its command. `parshall_core::observe::signals` decides which ones.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use parshall_core::observe::signals::{Arrival, Signals};
use parshall_sys::clock::monotonic_ns;
use parshall_sys::group_signals::{self, GroupSignals};
use parshall_sys::pidfd::Pidfd;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::Cause;

/// The forwarded signals. SIGTSTP, SIGCONT and SIGWINCH of a terminal reach the command by themselves.
const SIGNALS: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// How long to hold a signal back for the same one to the whole process group, which timeout(1) sends second.
const GROUP_WAIT: Duration = Duration::from_millis(100);
/// How long a host without a free CPU may take to say whether there was one.
const WITNESS_WAIT: Duration = Duration::from_secs(2);
/// timeout(1) sends a signal to its child and to the group: two that arrive this close to each other are the same signal.
const SAME_SIGNAL_NS: u64 = 200_000_000;

/// Forwards signals until it is dropped.
pub struct Forward {
    signals: Arc<Mutex<Signals>>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Forward {
    /// Starts to forward signals to a child that has not been reaped. Call this from a thread that outlives the child.
    pub fn to(pid: u32) -> anyhow::Result<Self> {
        let mut group = GroupSignals::watch(&SIGNALS).context("watching the signals of the process group")?;
        let target = Pidfd::open(pid).context("opening the command's process")?;
        let mut arrivals = SignalsInfo::<WithOrigin>::new(SIGNALS).context("listening for signals")?;
        let handle = arrivals.handle();
        let signals = Arc::new(Mutex::new(Signals::default()));
        let seen = Arc::clone(&signals);
        let thread = std::thread::spawn(move || {
            let mut last = HashMap::new();
            for origin in arrivals.forever() {
                let ends = matches!(origin.signal, SIGINT | SIGQUIT | SIGTERM);
                let typed = matches!(origin.cause, Cause::Kernel);
                let at_ns = monotonic_ns();
                let to_group = !typed
                    && group_was_sent(&mut group, &mut last, origin.signal, at_ns)
                    && group_signals::shares_group(pid);
                let arrival = Arrival { ends, typed, to_group, at_ns };
                if seen.lock().unwrap_or_else(PoisonError::into_inner).arrived(arrival) {
                    // It fails only when the command has ended, or runs as another user and we may not end it.
                    target.send(origin.signal).ok();
                }
            }
        });
        Ok(Self { signals, handle, thread: Some(thread) })
    }

    /// Whether the observation should end although the command still runs.
    pub fn over(&self) -> bool {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner).over(monotonic_ns())
    }
}

/// Whether the signal that arrived at `at_ns` was sent to the whole process group.
fn group_was_sent(group: &mut GroupSignals, last: &mut HashMap<i32, u64>, signal: i32, at_ns: u64) -> bool {
    let deadline = Instant::now() + GROUP_WAIT;
    let same = |last: &HashMap<i32, u64>| last.get(&signal).is_some_and(|sent| sent.abs_diff(at_ns) < SAME_SIGNAL_NS);
    while !same(last) {
        let Some(next) = group.next(deadline.saturating_duration_since(Instant::now())) else {
            last.extend(group.sent_before(WITNESS_WAIT).into_iter().map(|sent| (sent.number, sent.at_ns)));
            break;
        };
        last.insert(next.number, next.at_ns);
    }
    same(last)
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and there is no caller to report an error to.
            thread.join().ok();
        }
    }
}
