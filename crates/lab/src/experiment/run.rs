//! Running an experiment: trial after trial into the results, until there is an answer.
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parshall_core::experiment::{Role, blocks_order, duets_order, looks, sweep_order};
use parshall_core::units;
use parshall_host::error::UserError;
use parshall_host::utc;

use super::analyse;
use super::duet::{Duet, PartnerFailed};
use super::file::{Experiment, Kind};
use super::manifest::Manifest;
use super::results::{self, EndRecord, Log, RESULTS_SCHEMA, Record, Run, RunRecord, TrialRecord};
use super::trial::{self, Measured};
use crate::interrupt::Interrupt;
use crate::request::{ExperimentRequest, Source};
use crate::terminal::Progress;
use crate::testbed;

/// So many blocks or trials of a pass may be made anew because the host spoilt them, for each that was planned.
const ATTEMPTS: u32 = 2;

/// A run in progress.
pub struct Session<'a> {
    experiment: &'a Experiment,
    interrupt: &'a Interrupt,
    log: Log,
    /// The records of the file of results.
    run: Run,
    progress: Progress,
    begun: Instant,
    /// Trials of this process, without those of an interrupted one.
    made: u32,
}

/// The file for results unless the user names another one: beside the file of the experiment; nowhere without a file.
pub fn results_path(request: &ExperimentRequest) -> Option<PathBuf> {
    let beside = || match &request.source {
        Source::File(file) => Some(file.with_extension("results.jsonl")),
        Source::Commands(_) => None,
    };
    request.results.clone().or_else(beside)
}

impl<'a> Session<'a> {
    /// Begins a run with its results in `path`, or goes on with the last one if it was interrupted and the request says so.
    pub fn begin(
        experiment: &'a Experiment,
        request: &ExperimentRequest,
        path: &Path,
        interrupt: &'a Interrupt,
    ) -> anyhow::Result<Self> {
        let manifest = Manifest::now(experiment);
        let earlier = results::read(path)?.pop();
        let resumed = if request.resume { Some(resumable(earlier, experiment, &manifest, path)?) } else { None };
        let progress = Progress::start(&experiment.title);
        let mut session = Self {
            log: Log::open(path)?,
            run: resumed.clone().unwrap_or_else(|| new_run(experiment, request, manifest)),
            experiment,
            interrupt,
            progress,
            begun: Instant::now(),
            made: 0,
        };
        if resumed.is_none() {
            // A trial of the first and the last value comes first and is not kept: what is wrong with a command shows before anything
            // was measured, and the first trial does not pay alone for cold caches.
            session.progress.show("checking the testbed");
            if let Some(value) = experiment.variable.values.first() {
                testbed::try_out(&experiment.stage(value), interrupt)?;
            }
            session.progress.show("warming up");
            let values = &experiment.variable.values;
            for value in values.first().into_iter().chain(values.last()) {
                trial::run(experiment, value, None, interrupt)?;
            }
            session.log.append(&Record::Run(Box::new(session.run.head.clone())))?;
        }
        session.begun = Instant::now();
        Ok(session)
    }

    /// Makes trials until there is an answer, and notes the end.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        match self.run.head.kind {
            Kind::Ab => self.blocks()?,
            Kind::Sweep => self.passes()?,
        }
        let at = utc::iso(SystemTime::now());
        self.log.append(&Record::End(EndRecord { run: self.run.head.run.clone(), at }))?;
        self.run.complete = true;
        Ok(())
    }

    /// The finished run.
    pub fn into_run(self) -> Run {
        self.run
    }

    fn blocks(&mut self) -> anyhow::Result<()> {
        let looks = looks(self.run.head.most);
        let most = looks.last().copied().unwrap_or_default();
        let begun = self.run.trials.iter().map(|trial| trial.block + 1).max().unwrap_or(0);
        for (order, block) in
            self.orders().zip(0..).skip(begun as usize).take((most * ATTEMPTS).saturating_sub(begun) as usize)
        {
            if self.has_answer(&looks) {
                return Ok(());
            }
            for roles in &order {
                let done = analyse::blocks(&self.run).len() as u32;
                self.show(&format!("block {} of at most {most}", done + 1), order.len() as u32 * (most - done));
                let counts = match roles[..] {
                    [role] => self.trial(block, Some(role), index_of(role))?,
                    _ => self.duet(block, roles)?,
                };
                if !counts {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The trials of each block, in groups that run at the same time.
    fn orders(&self) -> Box<dyn Iterator<Item = Vec<Vec<Role>>>> {
        let seed = self.run.head.seed;
        match self.run.head.duet {
            true => Box::new(duets_order(seed).map(|pairs| pairs.map(Vec::from).into())),
            false => Box::new(blocks_order(seed).map(|roles| roles.map(|role| vec![role]).into())),
        }
    }

    /// Makes trials at the same time and keeps them. Returns whether all count.
    fn duet(&mut self, block: u32, roles: &[Role]) -> anyhow::Result<bool> {
        self.interrupt.check()?;
        let (experiment, interrupt, duet) = (self.experiment, self.interrupt, Duet::default());
        let mut measured: Vec<anyhow::Result<Measured>> = std::thread::scope(|scope| {
            let trials: Vec<_> = roles
                .iter()
                .map(|role| {
                    let (value, partner) = (&experiment.variable.values[index_of(*role)], duet.partner());
                    scope.spawn(move || {
                        trial::run(experiment, value, Some(&partner), interrupt).inspect_err(|_| partner.fail())
                    })
                })
                .collect();
            let join = |trial: std::thread::ScopedJoinHandle<'_, _>| {
                trial.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a trial panicked")))
            };
            trials.into_iter().map(join).collect()
        });
        // The one that failed by itself says why.
        let says_why = |trial: &anyhow::Result<_>| trial.as_ref().is_err_and(|error| !error.is::<PartnerFailed>());
        if let Some(first) = measured.iter().position(says_why) {
            measured.swap(0, first);
        }
        let measured = measured.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let mut counts = true;
        for (role, measured) in roles.iter().zip(measured) {
            counts &= self.keep(block, Some(*role), index_of(*role), measured)?;
        }
        Ok(counts)
    }

    /// Whether one of the looks is due, and leads to an answer.
    fn has_answer(&self, looks: &[u32]) -> bool {
        let blocks = analyse::blocks(&self.run);
        let count = blocks.len() as u32;
        let last = looks.last() == Some(&count);
        looks.contains(&count) && (last || analyse::answer(self.experiment, &blocks, false).is_some())
    }

    fn passes(&mut self) -> anyhow::Result<()> {
        let (count, most) = (self.experiment.variable.values.len(), self.run.head.most);
        for (order, pass) in sweep_order(self.run.head.seed, count).zip(0..most) {
            let mut spare = ATTEMPTS.saturating_sub(1) * count as u32;
            let mut waiting: std::collections::VecDeque<usize> = order.into();
            for trial in self.run.trials.iter().filter(|trial| trial.block == pass) {
                match trial.spoilt {
                    Some(_) => spare = spare.saturating_sub(1),
                    None => waiting.retain(|index| *index != trial.index),
                }
            }
            while let Some(index) = waiting.pop_front() {
                self.show(
                    &format!("pass {} of {most}", pass + 1),
                    (most - pass - 1) * count as u32 + waiting.len() as u32 + 1,
                );
                if !self.trial(pass, None, index)? && spare > 0 {
                    spare -= 1;
                    waiting.push_back(index);
                }
            }
        }
        Ok(())
    }

    /// Makes a trial and keeps it. Returns whether it counts.
    fn trial(&mut self, block: u32, role: Option<Role>, index: usize) -> anyhow::Result<bool> {
        self.interrupt.check()?;
        let value = &self.experiment.variable.values[index];
        let measured = trial::run(self.experiment, value, None, self.interrupt)?;
        self.keep(block, role, index, measured)
    }

    /// Keeps a trial. Returns whether it counts.
    fn keep(&mut self, block: u32, role: Option<Role>, index: usize, measured: Measured) -> anyhow::Result<bool> {
        self.made += 1;
        let record = TrialRecord {
            run: self.run.head.run.clone(),
            block,
            role,
            index,
            value: self.experiment.variable.values[index].to_string(),
            at: utc::iso(SystemTime::now()),
            metrics: measured.metrics,
            wall_s: measured.wall_s,
            cpu_s: measured.cpu_s,
            spoilt: self.experiment.limits.breached(&measured.conditions),
            conditions: measured.conditions,
            counters: measured.counters,
        };
        self.log.append(&Record::Trial(Box::new(record.clone())))?;
        let counts = record.spoilt.is_none();
        self.run.trials.push(record);
        Ok(counts)
    }

    /// Shows what is done, and how long at most the trials that are left take.
    fn show(&self, what: &str, left: u32) {
        let each = self.begun.elapsed().as_secs_f64() / f64::from(self.made.max(1));
        let bound = if self.run.head.kind == Kind::Ab { "at most " } else { "" };
        let time = match self.made {
            0 => String::new(),
            _ => format!(" · {bound}{} left", units::duration(each * f64::from(left) * 1e9)),
        };
        self.progress.show(&format!("{what}{time}"));
    }
}

/// The index of a role's value.
fn index_of(role: Role) -> usize {
    usize::from(role == Role::B)
}

fn new_run(experiment: &Experiment, request: &ExperimentRequest, manifest: Manifest) -> Run {
    let now = SystemTime::now();
    let seed =
        experiment.seed.unwrap_or_else(|| now.duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64));
    let planned = if experiment.variable.kind == Kind::Ab { experiment.blocks } else { experiment.passes };
    let head = RunRecord {
        schema: RESULTS_SCHEMA.to_owned(),
        run: format!("{}-{}", utc::compact(now), std::process::id()),
        kind: experiment.variable.kind,
        experiment: experiment.path.clone(),
        text: experiment.text.clone(),
        seed,
        most: request.most.unwrap_or(planned),
        duet: request.duet,
        manifest,
    };
    Run { head, trials: Vec::new(), complete: false }
}

/// The last run of the file, if it may go on: the same experiment, programs and host.
fn resumable(earlier: Option<Run>, experiment: &Experiment, now: &Manifest, path: &Path) -> Result<Run, UserError> {
    let anew = "leave --resume out to begin a new run";
    let Some(run) = earlier.filter(|run| !run.complete) else {
        return Err(UserError::new(format!("{} holds no interrupted run", path.display()), anew));
    };
    let head = &run.head;
    if head.text != experiment.text || head.kind != experiment.variable.kind {
        return Err(UserError::new(format!("{} has changed since the run was interrupted", experiment.path), anew));
    }
    if let Some((name, _)) = now.files.iter().find(|(name, hash)| head.manifest.files.get(*name) != Some(*hash)) {
        return Err(UserError::new(format!("{name} has changed since the run was interrupted"), anew));
    }
    if let Some(difference) = head.manifest.host.differences(&now.host).into_iter().next() {
        return Err(UserError::new(format!("the host has changed since the run was interrupted: {difference}"), anew));
    }
    Ok(run)
}
