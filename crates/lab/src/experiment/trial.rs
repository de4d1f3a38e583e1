//! A trial: a fresh testbed, fresh processes and connections, the command from its start to its end, and its metrics.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use parshall_core::experiment::Conditions;
use parshall_core::sorting::IntoOrdered as _;
use parshall_core::text::quote;
use parshall_host::error::UserError;

use super::conditions::{self, Before};
use super::duet::{Partner, PartnerFailed};
use super::file::{Experiment, Value};
use super::metric::{self, COMMAND, Trial};
use super::profile::{Profile, Profiled};
use crate::interrupt::Interrupt;
use crate::testbed::Testbed;

/// Processes of the testbed end by themselves this long after the command should have.
const MARGIN: Duration = Duration::from_secs(20);
/// How often an interrupt or the timeout is looked for while the command runs. Its own end ends the wait at once.
const CHECK: Duration = Duration::from_millis(50);

/// The delay line among the users of CPU time.
const DELAY_LINE: &str = "delay line";

/// The result of a trial.
#[derive(Debug, Clone)]
pub struct Measured {
    pub metrics: BTreeMap<String, f64>,
    pub wall_s: f64,
    /// CPU time of the command and the processes, in s.
    pub cpu_s: BTreeMap<String, f64>,
    pub conditions: Conditions,
    /// How much the network counters of the testbed's namespaces grew, and the profile's.
    pub counters: BTreeMap<String, u64>,
}

/// Runs a trial with one value of the variable. With `beside`, its command starts when that of the other trial does.
pub fn run(
    experiment: &Experiment,
    value: &Value,
    beside: Option<&Partner<'_>>,
    interrupt: &Interrupt,
) -> anyhow::Result<Measured> {
    let stage = experiment.stage(value);
    let mut testbed = Testbed::make(&stage, experiment.timeout + MARGIN)?;
    testbed.start_all(&stage, interrupt)?;
    let mut profile = experiment.profile.then(Profile::start).transpose().map_err(|error| {
        let what = format!("the CPUs cannot be sampled: {error}");
        UserError::new(what, "run it as root, or leave out `profile = true`")
    })?;
    let counters_before = counters(&testbed)?;
    let emulated = testbed.delay_line_cpu_s();
    if let Some(partner) = beside {
        partner.wait_for_other();
    }
    let before = Before::now();
    let begun = Instant::now();
    let mut command =
        testbed.start_command(&experiment.command(value), &experiment.environment(value), &experiment.cpus)?;
    while !command.wait_for(CHECK)? {
        interrupt.check()?;
        if beside.is_some_and(Partner::has_failed) {
            return Err(PartnerFailed.into());
        }
        if let Some(profile) = &mut profile {
            profile.drain();
        }
        if begun.elapsed() > experiment.timeout {
            return Err(failed(
                value,
                &format!("it took longer than {:?}", experiment.timeout),
                "raise timeout, or make the trial shorter",
            ));
        }
    }
    let wall_s = begun.elapsed().as_secs_f64();
    let profiled = profile.map(Profile::stop);
    let after = counters(&testbed)?;
    let emulator_s = testbed.delay_line_cpu_s().zip(emulated).map(|(after, before)| after - before);
    let command = command.finish().context("waiting for the command")?;
    let used = |ended: &crate::process::Ended| ended.usage.user_s + ended.usage.system_s;
    let command_cpu_s = used(&command);
    let mut conditions = before.until_now(command_cpu_s);
    if !command.status.success() {
        interrupt.check()?;
        let what = format!("it ended with {}{}", command.status, command.stderr_tail);
        return Err(failed(value, &what, "run the command by hand to see why; what was measured is kept"));
    }
    testbed.check_alive().with_context(|| format!("the trial of {}", quote(&value.to_string())))?;
    let mut ended = testbed.finish_all()?;
    ended.insert(COMMAND.to_owned(), command);
    let mut cpu_s: BTreeMap<String, f64> = ended.iter().map(|(name, ended)| (name.clone(), used(ended))).into_map();
    cpu_s.extend(emulator_s.map(|used| (DELAY_LINE.to_owned(), used)));
    if cpu_s.len() > 1 {
        // Only now is it known what the processes used; the share is too small by what they used before the command began.
        conditions = correct(conditions, cpu_s.values().sum::<f64>() - command_cpu_s, wall_s);
    }
    let trial = Trial { ended, wall_s };
    let metrics = metric::values(&experiment.metrics, &trial)
        .map_err(|why| failed(value, &why, "run the command by hand and compare its output with the metric"))?;
    let mut counters = conditions::growth(&counters_before, &after);
    counters.extend(profiled.map(Profiled::by_name).unwrap_or_default());
    Ok(Measured { metrics, wall_s, cpu_s, conditions, counters })
}

fn correct(conditions: Conditions, processes_cpu_s: f64, wall_s: f64) -> Conditions {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as f64;
    let share = processes_cpu_s / (wall_s * cpus).max(1e-6);
    Conditions { other_cpu: conditions.other_cpu.map(|other| (other - share).max(0.0)), ..conditions }
}

fn counters(testbed: &Testbed) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut texts = testbed.proc_net("snmp")?;
    texts.extend(testbed.proc_net("netstat")?);
    Ok(conditions::counters(&texts))
}

fn failed(value: &Value, why: &str, hint: &str) -> anyhow::Error {
    UserError::new(format!("the trial of {} failed: {why}", quote(&value.to_string())), hint).into()
}
