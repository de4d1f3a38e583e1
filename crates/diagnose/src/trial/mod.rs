//! `parshall try`: makes one change to a live service, measures with and without it, reports whether it helped, and reverts it.
//!
//! [`change`] defines what can be changed, [`place`] reads and writes values, [`changer`] finds the places, [`guardian`] reverts
//! them. `parshall_core::trial` decides what is measured, in which order, and what follows from it; the windows are those of one session,
//! in which the probes stay attached.
mod ask;
pub mod change;
mod changer;
mod guardian;
mod place;
mod report;
mod request;

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use parshall_core::trial::{compare, measured, outcome, steps, window};
use parshall_evidence::{
    Rung, Subject, TRIAL_SCHEMA, TrialOutcome, TrialReport, TrialStatus, TrialWindow, TriedChange,
};
use parshall_host::error::UserError;
use parshall_host::{output, proc_fs};

pub use guardian::{GUARDIAN, guard};
pub use request::TryRequest;

use crate::observe::{Session, Until};
use crate::subject::{self, Resolved};
use crate::window::Stop;
use changer::Changer;
use guardian::Guardian;

/// The time between two searches for new connections and threads within a window.
const RESCAN: Duration = Duration::from_millis(500);

/// `parshall try`.
pub fn try_change(request: &TryRequest) -> anyhow::Result<ExitCode> {
    proc_fs::needs_our_numbers("run parshall on the host, or with the host's pid namespace (such as --pid=host)")?;
    let change = &request.change;
    let mut warnings = (change.check)(change)?;
    warnings.extend(change.not_undone.iter().cloned());
    let subject = subject::resolve(&request.select)?;
    let changer = Changer::find(change, &subject)?;
    let mut result = empty(request, &subject, &warnings);
    if changer.in_place() {
        result.places = changer.counts();
        result.outcome = TrialOutcome {
            status: TrialStatus::InPlace,
            summary: format!(
                "{} is in place already: {}. Nothing was changed.",
                change.sets,
                changer.describe().join("; ")
            ),
        };
    } else if ask::agreed(request, &subject, &changer, &warnings)? {
        Trial::begin(request, subject, changer)?.run(&mut result)?;
    } else {
        eprintln!("nothing was changed");
        return Ok(ExitCode::SUCCESS);
    }
    output::print(&report::render(&result, &request.output)?)?;
    Ok(ExitCode::SUCCESS)
}

fn empty(request: &TryRequest, subject: &Resolved, warnings: &[String]) -> TrialReport {
    TrialReport {
        schema: TRIAL_SCHEMA.to_owned(),
        subject: subject.subject.clone(),
        change: TriedChange {
            name: request.change.name.clone(),
            sets: request.change.sets.clone(),
            on: request.change.on.word().to_owned(),
            not_undone: warnings.to_vec(),
            keep: request.change.keep.clone(),
        },
        outcome: outcome(None),
        rung: None,
        figures: Vec::new(),
        windows: Vec::new(),
        places: parshall_evidence::PlaceCounts::default(),
        reverted: parshall_evidence::Reverted::default(),
        notes: Vec::new(),
    }
}

/// A running trial. When it is dropped, the guardian reverts everything.
struct Trial<'a> {
    request: &'a TryRequest,
    session: Session,
    changer: Changer<'a>,
    guardian: Guardian,
    stop: Until,
    begun: Instant,
    rung: Option<Rung>,
    blind: Vec<String>,
}

impl<'a> Trial<'a> {
    fn begin(request: &'a TryRequest, subject: Resolved, changer: Changer<'a>) -> anyhow::Result<Self> {
        let stop = Until::new(&subject)?;
        let mut guardian = Guardian::start()?;
        if let Some(file) = guardian.lock(changer.locks())? {
            return Err(UserError::new(
                format!("another trial is under way: it has locked {}", file.display()),
                "wait for its end: with two changes at a time neither tells what it did",
            )
            .into());
        }
        let session = Session::open(subject, &request.observe, None)?;
        Ok(Self { request, session, changer, guardian, stop, begun: Instant::now(), rung: None, blind: Vec::new() })
    }

    /// Measures, reverts, and fills in the report.
    fn run(mut self, result: &mut TrialReport) -> anyhow::Result<()> {
        let done = self.measure(&mut result.windows);
        // The guardian reverts now, also after an error.
        let reverted = self.guardian.finish();
        done?;
        result.reverted = reverted?;
        result.rung = self.rung;
        result.places = self.changer.counts();
        let first = result.windows.first().cloned().unwrap_or_default();
        let figures = measured(&first);
        result.figures = figures.iter().filter_map(|&figure| compare(figure, &result.windows)).collect();
        result.outcome = match figures.first() {
            None => no_traffic(),
            Some(decides) => outcome(result.figures.iter().find(|figure| figure.figure == decides.id())),
        };
        result.notes = self.changer.notes();
        if self.stop.requested() {
            result.notes.push("interrupted: fewer pairs of windows were measured than were asked for".to_owned());
        }
        result.notes.append(&mut self.blind);
        Ok(())
    }

    fn measure(&mut self, windows: &mut Vec<TrialWindow>) -> anyhow::Result<()> {
        let progress = self.progress();
        windows.push(self.window(0, false)?);
        progress.inc(1);
        if measured(&windows[0]).is_empty() {
            return Ok(());
        }
        let mut changed = false;
        for step in steps(self.request.pairs) {
            if step.changed != changed {
                changed = step.changed;
                self.switch(changed)?;
            }
            if self.stop.requested() {
                break;
            }
            let window = self.window(step.pair, changed)?;
            // A window that was cut short does not count.
            if self.stop.requested() {
                break;
            }
            windows.push(window);
            progress.inc(1);
        }
        progress.finish_and_clear();
        Ok(())
    }

    fn progress(&self) -> ProgressBar {
        if !self.request.observe.progress {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(u64::from(self.request.pairs) * 2 + 1);
        if let Ok(style) = ProgressStyle::with_template("measuring {wide_bar} window {pos} of {len}") {
            bar.set_style(style);
        }
        bar.tick();
        bar
    }

    fn switch(&mut self, changed: bool) -> anyhow::Result<()> {
        if changed {
            self.changer.rescan(true, &mut self.guardian)?;
            if let Some(refused) = self.changer.refused() {
                return Err(refused.into());
            }
        } else {
            self.changer.take_back();
        }
        self.wait(self.request.settle(), changed);
        Ok(())
    }

    /// Waits for `time`, or until the user stops the trial.
    fn wait(&mut self, time: Duration, changed: bool) {
        let end = Instant::now() + time;
        while Instant::now() < end && !self.stop.requested() {
            let step = self.request.change.repeat.filter(|_| changed).unwrap_or(Duration::from_millis(50));
            std::thread::sleep(step.min(end.saturating_duration_since(Instant::now())));
            if changed && self.request.change.repeat.is_some() {
                self.changer.repeat();
            }
        }
    }

    /// Observes one window, and applies the change to new connections and threads meanwhile.
    fn window(&mut self, pair: u32, changed: bool) -> anyhow::Result<TrialWindow> {
        if self.stop.subject_gone() {
            return Err(ended(self.session.subject(), pair));
        }
        let begin = self.begun.elapsed();
        let (session, limit, stop) = (&mut self.session, self.request.observe.window, &self.stop);
        let (changer, guardian) = (&mut self.changer, &mut self.guardian);
        let (observed, kept) = std::thread::scope(|scope| {
            let (over, ends) = channel();
            let applier = scope.spawn(move || keep_applied(changer, guardian, changed, &ends));
            let observed = session.window(limit, stop, || Ok(()));
            drop(over);
            let kept =
                applier.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that makes the change failed")));
            (observed, kept)
        });
        kept?;
        let capture = observed.context("measuring a window")?;
        if self.stop.subject_gone() {
            return Err(ended(self.session.subject(), pair));
        }
        self.rung.get_or_insert(capture.rung);
        for sentence in &capture.blind {
            if !self.blind.contains(sentence) {
                self.blind.push(sentence.clone());
            }
        }
        Ok(TrialWindow { pair, changed, begin_s: begin.as_secs_f64(), ..window(&capture) })
    }
}

/// Applies the change to new places until the window is over. Without the change it only searches for them, so that windows of
/// both kinds have the same cost.
fn keep_applied(
    changer: &mut Changer<'_>,
    guardian: &mut Guardian,
    changed: bool,
    ends: &Receiver<()>,
) -> anyhow::Result<()> {
    let repeat = changer.repeats().filter(|_| changed);
    let mut next = Instant::now() + RESCAN;
    while let Err(RecvTimeoutError::Timeout) = ends.recv_timeout(repeat.unwrap_or(RESCAN)) {
        if repeat.is_some() {
            changer.repeat();
        }
        if Instant::now() >= next {
            next = Instant::now() + RESCAN;
            changer.rescan(changed, guardian)?;
        }
    }
    Ok(())
}

fn no_traffic() -> TrialOutcome {
    TrialOutcome {
        status: TrialStatus::InsufficientEvidence,
        summary: "The connections carried nothing in the first window, so nothing was changed: try it under load."
            .to_owned(),
    }
}

fn ended(subject: &Subject, pair: u32) -> anyhow::Error {
    let names: Vec<String> = subject.pids.iter().zip(&subject.comms).map(|(p, c)| format!("{p} ({c})")).collect();
    UserError::new(
        format!("process {} ended while pair {pair} of the windows was measured", names.join(", ")),
        "what it shared with others is reverted; begin again with the process that serves now",
    )
    .into()
}
