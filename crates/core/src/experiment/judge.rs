//! The answer of an A/B experiment, or that more blocks are needed.
//!
//! Everything is computed from differences of the same block: B less A, and the control less A. For a metric that is compared by its
//! ratio they are logarithms, so that twice and half lie equally far from no difference.
use serde::{Deserialize, Serialize};

use super::schedule::LOOK_ALPHA;
use crate::stats::ranks::{Interval, SignedRank};

/// Standard errors from the centre to the ends of an interval at [`LOOK_ALPHA`], for the normal distribution.
const ENDS: f64 = 2.418;
/// Standard errors that four of five samples stay above.
const POWER: f64 = 0.842;

/// The question of an experiment. Decided before its first trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Smaller values of the metric are better.
    pub lower_is_better: bool,
    /// A smaller difference is not worth a change.
    pub smallest: f64,
}

/// The answer of an A/B experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// B is better than A, by at least the smallest difference that matters.
    Better,
    /// B is worse than A, by at least that.
    Worse,
    /// B differs from A, by less than that.
    RealButSmall,
    /// The difference is smaller than what matters.
    Equivalent,
    /// The blocks do not suffice to tell.
    Inconclusive,
    /// A differs from its own repeat, so a difference between B and A means nothing.
    ControlDiffers,
}

/// A difference with what is known about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    /// Blocks that it is made of.
    pub blocks: usize,
    /// The Hodges-Lehmann estimate.
    pub estimate: f64,
    /// The interval; None with too few blocks.
    pub interval: Option<Interval>,
    /// Two-sided probability of such ranks without a difference.
    pub p: f64,
    /// The difference that as many blocks find in four of five experiments.
    pub detectable: Option<f64>,
}

/// The result of a look.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    #[allow(missing_docs)]
    pub verdict: Verdict,
    /// B against A.
    pub effect: Effect,
    /// The repeat of A against A.
    pub control: Effect,
    /// When inconclusive: how many further blocks would find the smallest difference that matters in four of five experiments.
    pub more_blocks: Option<u32>,
}

/// The differences at this level of the interval; None without any.
pub fn effect(differences: &[f64], alpha: f64) -> Option<Effect> {
    let ranks = SignedRank::new(differences)?;
    let interval = ranks.interval(alpha);
    Some(Effect {
        blocks: ranks.count(),
        estimate: ranks.estimate(),
        interval,
        p: ranks.p(),
        detectable: interval.map(|interval| interval.half() * (1.0 + POWER / ENDS)),
    })
}

/// Judges the blocks so far. None asks for more of them; with `last` there are no more, and there is an answer unless there is no
/// block at all.
pub fn judge(differences: &[f64], control: &[f64], rule: Rule, last: bool) -> Option<Answer> {
    let (effect, control) = (effect(differences, LOOK_ALPHA)?, self::effect(control, LOOK_ALPHA)?);
    let verdict = match verdict(&effect, rule, last) {
        None if last => Verdict::Inconclusive,
        found => found?,
    };
    // The control is asked only once an answer is due: each time more would be one more chance to refuse wrongly.
    let differs = control.interval.is_some_and(Interval::excludes_zero);
    let verdict = if differs { Verdict::ControlDiffers } else { verdict };
    let more_blocks = (verdict == Verdict::Inconclusive).then(|| more_blocks(&effect, rule)).flatten();
    Some(Answer { verdict, effect, control, more_blocks })
}

fn verdict(effect: &Effect, rule: Rule, last: bool) -> Option<Verdict> {
    let interval = effect.interval?;
    let matters = effect.estimate.abs() >= rule.smallest;
    let small = interval.is_within(rule.smallest);
    match interval.excludes_zero() {
        true if matters && (effect.estimate < 0.0) == rule.lower_is_better => Some(Verdict::Better),
        true if matters => Some(Verdict::Worse),
        // The estimate is small. Unless all of the interval is, more blocks may still show that the difference matters.
        true if small || last => Some(Verdict::RealButSmall),
        false if small => Some(Verdict::Equivalent),
        _ => None,
    }
}

/// The width of an interval shrinks with the square root of the blocks.
fn more_blocks(effect: &Effect, rule: Rule) -> Option<u32> {
    let wanted = effect.blocks as f64 * (effect.detectable? / rule.smallest).powi(2);
    Some((wanted - effect.blocks as f64).ceil().clamp(1.0, 1e6) as u32)
}

#[cfg(test)]
mod tests;
