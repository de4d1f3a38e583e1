//! A session with a subject: picks the rung, falls back to the next lower one if it fails, and observes window after window.
#[cfg(test)]
mod further_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parshall_core::observe::background::Phase;
use parshall_evidence::{Capture, OwnRelay, Rung, Subject};
use parshall_host::end_signals::end_signals;
use parshall_host::proc_fs;
use parshall_sys::nice::{self, Increased};

use super::around::{Additions, Around};
use super::background::Background;
use super::subject::{self, Process, Resolved, Select};
use super::window::{self, Attached, Progress, Stop};
use crate::btf::Btf;
use crate::doctor;
use crate::further::Further;
use crate::procfs::Procfs;
use crate::request::ObserveOptions;
use crate::tracepoint::Tracepoints;

/// Added to our nice value while we observe.
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

    fn may_begin_again(&self) -> bool {
        true
    }
}

/// One window on the subject, until `options` end it, its last process exits, or the user interrupts. Returns the background, if the
/// rung leaves us in it, for what is done with the capture.
pub fn observe(
    select: &Select,
    options: &ObserveOptions,
    background: Option<Background>,
) -> anyhow::Result<(Capture, Option<Background>)> {
    let resolved = subject::resolve(select)?;
    let stop = Until::new(&resolved)?;
    let mut session = Session::open(resolved, options, background)?;
    let capture = session.window(options.window, &stop, || Ok(()))?;
    Ok((capture, session.close()))
}

/// A subject that is observed. The probes stay attached from window to window.
pub struct Session {
    resolved: Resolved,
    options: ObserveOptions,
    rung: Rung,
    attached: Box<dyn Attached>,
    /// The time that attaching has taken, of the window that is to come.
    attach_time: Duration,
    /// Why it is on no better rung, a sentence each.
    reasons: Vec<String>,
    /// Relays of our own among the subject. One may be gone when a window is over.
    relays: Vec<OwnRelay>,
    /// Evidence that the rung does not have, where it was asked for.
    further: Further,
    background: Option<Background>,
    /// Windows that have begun.
    windows: u64,
    /// On a CPU that both want, the service gets three quarters, and is scheduled at once when it wakes up.
    _niced: Option<Increased>,
}

impl Session {
    /// Attaches to the subject. Leaves the background where the rung asks for it.
    pub fn open(
        resolved: Resolved,
        options: &ObserveOptions,
        mut background: Option<Background>,
    ) -> anyhow::Result<Self> {
        if resolved.processes.iter().any(|process| process.pid == proc_fs::own_pid()) {
            background.iter().for_each(Background::leave_group);
        }
        let (best, mut reasons) = doctor::best_rung();
        let rung = options.rung.map_or(best, |wanted| wanted.min(best));
        if options.rung.is_some_and(|wanted| wanted < best) {
            reasons = vec![format!("the {} rung was requested", rung.as_str())];
        }
        let niced = (rung > Rung::Procfs).then(|| nice::increase(NICE_INCREMENT));
        let relays = resolved.processes.iter().filter_map(|process| own_relay(process.pid, options)).collect();
        let began = Instant::now();
        let (rung, attached) = attach(rung, &resolved, options, &mut background, &mut reasons)?;
        let further = Further::load(rung, &resolved, options, &mut reasons);
        Ok(Self {
            resolved,
            options: options.clone(),
            rung,
            attached,
            attach_time: began.elapsed(),
            reasons,
            relays,
            further,
            background,
            windows: 0,
            _niced: niced,
        })
    }

    /// Observes for `limit`, or until `stop` says so. `on_begin` is called once, when the window has begun; its error ends the window.
    /// May be called again and again. Where the subject is gone, each window ends at once.
    pub fn window(
        &mut self,
        limit: Duration,
        stop: &dyn Stop,
        on_begin: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Capture> {
        let mut on_begin = Some(on_begin);
        loop {
            let failed = match self.attempt(limit, stop, &mut on_begin) {
                Ok(capture) => return capture,
                Err(error) => error,
            };
            let began = Instant::now();
            let rung = lower(self.rung, failed, &mut self.reasons)?;
            (self.rung, self.attached) =
                attach(rung, &self.resolved, &self.options, &mut self.background, &mut self.reasons)?;
            self.attach_time = began.elapsed();
        }
    }

    /// The subject as it was when the last window began.
    pub fn subject(&self) -> &Subject {
        &self.resolved.subject
    }

    /// Detaches everything. Work on the captures may go on in the background.
    pub fn close(self) -> Option<Background> {
        self.background
    }

    /// A window on the present rung. The outer error is one of the rung.
    fn attempt(
        &mut self,
        limit: Duration,
        stop: &dyn Stop,
        on_begin: &mut Option<impl FnOnce() -> anyhow::Result<()>>,
    ) -> anyhow::Result<anyhow::Result<Capture>> {
        let asked = Instant::now();
        self.refresh();
        let phases = self.background.as_ref().map(Background::phases);
        self.further.prepare(&self.resolved, false, &mut self.reasons);
        let mut window = self.attached.begin(&self.resolved)?;
        let attach_time = std::mem::take(&mut self.attach_time) + asked.elapsed();
        tracing::debug!("the window begins, {:.1} ms after it was asked for", asked.elapsed().as_secs_f64() * 1e3);
        announce(phases.as_ref(), Phase::Window);
        let around = Around::start(&self.resolved, self.rung, &mut self.further, limit);
        if let Some(Err(error)) = on_begin.take().map(|on_begin| on_begin()) {
            return Ok(Err(error));
        }
        window.watch(limit, stop, &mut Progress::new(self.options.progress, limit))?;
        if window.begins_again() {
            tracing::debug!("the window begins anew");
            drop((window, around.finish()));
            self.attach_time = attach_time;
            return self.attempt(limit, stop, on_begin);
        }
        announce(phases.as_ref(), Phase::Finishing);
        let readings = around.finish();
        let seen = window.end()?;
        self.relays = own_relays(&seen.subject, &self.options, std::mem::take(&mut self.relays));
        let mut reasons = self.reasons.clone();
        if self.options.interpreters && self.rung < Rung::Btf {
            let of = "of threads that hold up an unanswered request";
            reasons.push(format!("on this rung the functions that interpreters run are seen only {of}"));
        }
        Ok(Ok(readings.complete(
            seen,
            Additions {
                reasons: &reasons,
                own_relays: self.relays.clone(),
                attach_ms: attach_time.as_secs_f64() * 1e3,
                naming: self.options.naming,
                interpreters: self.options.interpreters,
            },
        )))
    }

    /// Finds what has become of the subject since it was resolved, or since the last window.
    fn refresh(&mut self) {
        // A subject that is the whole host, a group or a namespace has all processes already.
        let resolved_now = self.windows == 0 && !matches!(self.resolved.select, Select::Pids(_) | Select::Ports(..));
        if !resolved_now {
            self.resolved.refresh();
        }
        self.windows += 1;
    }
}

/// Attaches on this rung, or on the next lower one that is possible: the kernel may refuse something that the doctor could not foresee.
fn attach(
    mut rung: Rung,
    resolved: &Resolved,
    options: &ObserveOptions,
    background: &mut Option<Background>,
    reasons: &mut Vec<String>,
) -> anyhow::Result<(Rung, Box<dyn Attached>)> {
    loop {
        // In the background we would sample only while the CPU is idle. Only on the rung btf does nothing depend on when we run.
        if rung != Rung::Btf {
            *background = None;
        }
        let chosen: &dyn window::Rung = match rung {
            Rung::Btf => &Btf,
            Rung::Tracepoint => &Tracepoints,
            Rung::Procfs => &Procfs,
        };
        match chosen.open(resolved, options) {
            Ok(attached) => return Ok((rung, attached)),
            Err(error) => rung = lower(rung, error, reasons)?,
        }
    }
}

/// The rung below one that has failed.
fn lower(rung: Rung, error: anyhow::Error, reasons: &mut Vec<String>) -> anyhow::Result<Rung> {
    let lower = match rung {
        Rung::Btf => Rung::Tracepoint,
        Rung::Tracepoint => Rung::Procfs,
        Rung::Procfs => return Err(error),
    };
    reasons.push(format!("not on the {} rung: {error:#}", rung.as_str()));
    Ok(lower)
}

fn announce(phases: Option<&Sender<Phase>>, phase: Phase) {
    // Nobody receives once the background was left.
    let _ = phases.map(|phases| phases.send(phase));
}

fn own_relay(pid: u32, options: &ObserveOptions) -> Option<OwnRelay> {
    let start = (options.read_relay)(&subject::own_arguments(pid)?)?;
    Some(OwnRelay { pid, start })
}

/// The relays among the subject's processes, with those that started during the window. The arguments at the end of the window
/// count, because a command that was observed from its start was still the gate when the window began.
fn own_relays(subject: &Subject, options: &ObserveOptions, before: Vec<OwnRelay>) -> Vec<OwnRelay> {
    let now: Vec<_> = subject.pids.iter().filter_map(|&pid| own_relay(pid, options)).collect();
    let gone: Vec<_> = before.into_iter().filter(|old| !now.iter().any(|new| new.pid == old.pid)).collect();
    gone.into_iter().chain(now).collect()
}
