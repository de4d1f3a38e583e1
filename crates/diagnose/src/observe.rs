//! One observation, from the subject to the capture: picks the rung, and falls back to the next lower one if it fails.
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::SystemTime;

use parshall_core::observe::background::Phase;
use parshall_evidence::{Capture, Counters, OwnRelay, Rung, Waiting};
use parshall_host::end_signals::end_signals;
use parshall_host::{left_out, proc_fs};

use super::background::Background;
use super::counters::Watch;
use super::origin::origin;
use super::subject::{self, Process, Resolved, Select};
use super::window::Stop;
use super::{btf, procfs, tracepoint, waiting};
use crate::doctor;
use crate::request::ObserveOptions;

/// What is added to our nice value while we observe.
const NICE_INCREMENT: i32 = 5;

/// Ends on SIGINT, SIGTERM or SIGHUP, and when all of the subject's processes are gone.
pub struct Until {
    signalled: Arc<AtomicBool>,
    handlers: Vec<signal_hook::SigId>,
    watched: Vec<Process>,
}

impl Until {
    /// Watches the processes of `resolved`.
    pub fn new(resolved: &Resolved) -> anyhow::Result<Self> {
        let signalled = Arc::new(AtomicBool::new(false));
        let mut handlers = Vec::new();
        for signal in end_signals() {
            handlers.push(signal_hook::flag::register(signal, Arc::clone(&signalled))?);
        }
        Ok(Self { signalled, handlers, watched: resolved.processes.clone() })
    }
}

impl Drop for Until {
    fn drop(&mut self) {
        for id in self.handlers.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

impl Stop for Until {
    fn requested(&self) -> bool {
        self.signalled.load(Ordering::Relaxed)
    }

    fn subject_gone(&self) -> bool {
        !self.watched.is_empty() && !self.watched.iter().any(subject::alive)
    }
}

/// Observes the subject for the window, or until its last process exits or the user interrupts. Leaves the background where the
/// rung of evidence asks for it.
pub fn observe(
    select: &Select,
    options: &ObserveOptions,
    background: &mut Option<Background>,
) -> anyhow::Result<Capture> {
    let resolved = subject::resolve(select)?;
    let stop = Until::new(&resolved)?;
    observe_resolved(&resolved, options, &stop, background)
}

/// As [`observe`], for a subject that is known already.
pub fn observe_resolved(
    resolved: &Resolved,
    options: &ObserveOptions,
    stop: &dyn Stop,
    background: &mut Option<Background>,
) -> anyhow::Result<Capture> {
    if resolved.processes.iter().any(|process| process.pid == proc_fs::own_pid()) {
        background.iter().for_each(Background::leave_group);
    }
    let (best, mut reasons) = doctor::best_rung();
    let mut rung = options.rung.map_or(best, |wanted| wanted.min(best));
    if options.rung.is_none_or(|wanted| wanted <= best) && options.rung.is_some_and(|wanted| wanted < best) {
        reasons = vec![format!("the {} rung was requested", rung.as_str())];
    }
    // On a CPU that both want, the service gets three quarters, and is scheduled at once when it wakes up.
    let _niced = (rung > Rung::Procfs).then(|| parshall_sys::nice::increase(NICE_INCREMENT));
    // In the background we would sample only while the CPU is idle. Only on the rung btf does nothing depend on when we run.
    if rung != Rung::Btf {
        *background = None;
    }
    let stop = &Watched {
        stop,
        resolved,
        begun: Cell::new(SystemTime::now()),
        watch: RefCell::new(None),
        counters: RefCell::new(None),
        before: RefCell::new(None),
        waiting: RefCell::new(None),
        phases: background.as_ref().map(Background::phases),
    };
    // A relay may be gone when the window is over.
    let at_start = resolved.processes.iter().filter_map(|process| own_relay(process.pid, options)).collect();
    loop {
        let attempt = match rung {
            Rung::Btf => btf::observe(resolved, options, stop),
            Rung::Tracepoint => tracepoint::observe(resolved, options, stop),
            Rung::Procfs => sampled(resolved, options, stop),
        };
        match attempt {
            Ok(mut capture) => {
                capture.blind.splice(0..0, reasons);
                capture.blind.extend(left_out::take());
                capture.own_relays = own_relays(&capture, options, at_start);
                capture.counters = stop.counters.take();
                capture.waiting = stop.waiting.take();
                capture.origin = Some(origin(stop.begun.get(), capture.host.kernel.clone()));
                return Ok(capture);
            }
            // The kernel may refuse something that the doctor could not foresee.
            Err(error) if rung > Rung::Procfs => {
                *background = None;
                reasons.push(format!("not on the {} rung: {error:#}", rung.as_str()));
                rung = if rung == Rung::Btf { Rung::Tracepoint } else { Rung::Procfs };
            }
            Err(error) => return Err(error),
        }
    }
}

/// Notes when the window begins, announces it to the background's rule, and reads what waits and the counters around the subject at
/// its begin and end.
struct Watched<'a> {
    stop: &'a dyn Stop,
    resolved: &'a Resolved,
    begun: Cell<SystemTime>,
    watch: RefCell<Option<Watch<'a>>>,
    counters: RefCell<Option<Counters>>,
    before: RefCell<Option<waiting::Watch<'a>>>,
    waiting: RefCell<Option<Waiting>>,
    phases: Option<Sender<Phase>>,
}

impl Watched<'_> {
    fn announce(&self, phase: Phase) {
        // Nobody receives once the background was left.
        let _ = self.phases.as_ref().map(|phases| phases.send(phase));
    }
}

impl Stop for Watched<'_> {
    fn attached(&self) -> anyhow::Result<()> {
        tracing::debug!("the window begins");
        self.announce(Phase::Window);
        self.watch.replace(Some(Watch::start(self.resolved)));
        self.before.replace(Some(waiting::Watch::start(self.resolved)));
        self.begun.set(SystemTime::now());
        self.stop.attached()
    }

    fn ended(&self) {
        self.announce(Phase::Finishing);
        self.waiting.replace(self.before.take().and_then(|before| before.finish()));
        self.counters.replace(self.watch.take().map(|watch| watch.finish()));
    }

    fn requested(&self) -> bool {
        self.stop.requested()
    }

    fn subject_gone(&self) -> bool {
        self.stop.subject_gone()
    }
}

fn own_relay(pid: u32, options: &ObserveOptions) -> Option<OwnRelay> {
    let start = (options.read_relay)(&subject::own_arguments(pid)?)?;
    Some(OwnRelay { pid, start })
}

/// The relays among the subject's processes, with those that started during the window. The arguments at the end of the window
/// count, because a command that was observed from its start was still the gate when the window began.
fn own_relays(capture: &Capture, options: &ObserveOptions, at_start: Vec<OwnRelay>) -> Vec<OwnRelay> {
    let now: Vec<_> = capture.subject.pids.iter().filter_map(|&pid| own_relay(pid, options)).collect();
    let gone: Vec<_> = at_start.into_iter().filter(|old| !now.iter().any(|new| new.pid == old.pid)).collect();
    gone.into_iter().chain(now).collect()
}

fn sampled(resolved: &Resolved, options: &ObserveOptions, stop: &dyn Stop) -> anyhow::Result<Capture> {
    stop.attached()?;
    let options = procfs::Options { window: options.window, ..procfs::Options::default() };
    let capture = procfs::observe(resolved, &options, &|| stop.requested() || stop.subject_gone());
    stop.ended();
    capture
}
