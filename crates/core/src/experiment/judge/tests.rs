//! Verdicts of made differences, and how often whole experiments err: thousands of them, simulated.
use super::*;
use crate::experiment::{Role, blocks_order, looks};

const RULE: Rule = Rule { lower_is_better: true, smallest: 0.02 };

/// Eight blocks whose differences lie around `centre`, at most `spread` away.
fn around(centre: f64, spread: f64) -> Vec<f64> {
    (0..8).map(|i| centre + spread * (f64::from(i) / 3.5 - 1.0)).collect()
}

fn verdict_of(differences: &[f64], last: bool) -> Option<Verdict> {
    judge(differences, &around(0.0, 0.01), RULE, last).map(|answer| answer.verdict)
}

#[test]
fn a_clear_difference_is_better_or_worse() {
    assert_eq!(verdict_of(&around(-0.1, 0.03), false), Some(Verdict::Better));
    assert_eq!(verdict_of(&around(0.1, 0.03), false), Some(Verdict::Worse));
    let more_is_better = Rule { lower_is_better: false, ..RULE };
    let answer = judge(&around(0.1, 0.03), &around(0.0, 0.01), more_is_better, false).expect("an answer");
    assert_eq!(answer.verdict, Verdict::Better);
}

#[test]
fn a_small_difference_is_called_so_only_when_it_cannot_be_large() {
    assert_eq!(verdict_of(&around(0.01, 0.005), false), Some(Verdict::RealButSmall));
    let wide = [0.001, 0.002, 0.003, 0.005, 0.006, 0.03, 0.05, 0.06];
    assert_eq!(verdict_of(&wide, false), None);
    assert_eq!(verdict_of(&wide, true), Some(Verdict::RealButSmall));
}

#[test]
fn no_difference_is_equivalent_when_the_interval_is_narrow_and_inconclusive_when_it_is_wide() {
    assert_eq!(verdict_of(&around(0.0, 0.01), false), Some(Verdict::Equivalent));
    assert_eq!(verdict_of(&around(0.01, 0.1), false), None);
    let answer = judge(&around(0.01, 0.1), &around(0.0, 0.1), RULE, true).expect("an answer");
    assert_eq!(answer.verdict, Verdict::Inconclusive);
    let (detectable, more) = (answer.effect.detectable.expect("eight blocks"), answer.more_blocks.expect("some"));
    assert!(detectable > 0.08 && more > 100, "{answer:?}");
}

#[test]
fn a_control_that_differs_refuses_any_answer() {
    for effect in [around(0.1, 0.03), around(0.0, 0.01), around(0.01, 0.1)] {
        let answer = judge(&effect, &around(0.05, 0.01), RULE, true).expect("an answer");
        assert_eq!((answer.verdict, answer.more_blocks), (Verdict::ControlDiffers, None));
    }
}

#[test]
fn too_few_blocks_say_nothing() {
    assert_eq!(judge(&[], &[], RULE, true), None);
    assert_eq!(verdict_of(&[0.5, 0.6, 0.7], false), None);
    let answer = judge(&[0.5, 0.6, 0.7], &[0.0, 0.1, -0.1], RULE, true).expect("an answer");
    assert_eq!((answer.verdict, answer.effect.interval, answer.more_blocks), (Verdict::Inconclusive, None, None));
}

/// A host: its speed wanders, trials spread by some per cent, and some are disturbed and much slower.
struct Host {
    random: fastrand::Rng,
    speed: f64,
    spread: f64,
}

impl Host {
    fn new(seed: u64, spread: f64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), speed: 0.0, spread }
    }

    fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.random.f64(), self.random.f64());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// The logarithm of the time of a trial.
    fn trial(&mut self) -> f64 {
        self.speed = 0.95 * self.speed + 0.2 * self.spread * self.normal();
        let disturbed = if self.random.f64() < 0.05 { self.random.f64() } else { 0.0 };
        self.speed + self.spread * self.normal() + disturbed
    }

    /// An experiment in which B takes longer by `slower`: its verdict and the number of its blocks.
    fn experiment(&mut self, seed: u64, slower: f64) -> (Verdict, u32) {
        let (mut differences, mut control) = (Vec::new(), Vec::new());
        let mut orders = blocks_order(seed);
        for look in looks(32) {
            for order in orders.by_ref().take(look as usize - differences.len()) {
                let mut of = [0.0; 3];
                order.into_iter().for_each(|role| of[role as usize] = self.trial());
                differences.push(of[Role::B as usize] + slower - of[Role::A as usize]);
                control.push(of[Role::Control as usize] - of[Role::A as usize]);
            }
            if let Some(answer) = judge(&differences, &control, RULE, look == 32) {
                return (answer.verdict, look);
            }
        }
        unreachable!("the last look has an answer")
    }
}

fn verdicts(experiments: u64, spread: f64, slower: f64) -> Vec<(Verdict, u32)> {
    (0..experiments).map(|seed| Host::new(seed, spread).experiment(seed ^ 0x5eed, slower)).collect()
}

fn count(of: &[(Verdict, u32)], wanted: &[Verdict]) -> usize {
    of.iter().filter(|(verdict, _)| wanted.contains(verdict)).count()
}

#[test]
fn the_same_program_twice_differs_in_at_most_five_per_cent_of_experiments() {
    the_same_program_twice(150);
}

#[test]
#[ignore = "make test-all"]
fn the_same_program_twice_differs_in_at_most_five_per_cent_of_many_experiments() {
    the_same_program_twice(1000);
}

fn the_same_program_twice(experiments: u64) {
    let most = experiments as usize / 20;
    for spread in [0.005, 0.03, 0.1] {
        let found = verdicts(experiments, spread, 0.0);
        let (better, worse) = (count(&found, &[Verdict::Better]), count(&found, &[Verdict::Worse]));
        let (small, refused) = (count(&found, &[Verdict::RealButSmall]), count(&found, &[Verdict::ControlDiffers]));
        eprintln!("spread {spread}: {better} better, {worse} worse, {small} small, {refused} refused");
        assert!(better + worse + small <= most, "spread {spread}: {better}, {worse}, {small} of {experiments}");
        // Both directions alike: three standard deviations of the difference of two such counts.
        assert!((better as f64 - worse as f64).abs() <= 3.0 * ((better + worse) as f64).sqrt(), "{better} and {worse}");
        assert!(refused <= most, "spread {spread}: {refused}");
    }
}

#[test]
fn five_per_cent_slower_is_found() {
    five_per_cent_slower(150);
}

#[test]
#[ignore = "make test-all"]
fn five_per_cent_slower_is_found_in_many_experiments() {
    five_per_cent_slower(1000);
}

fn five_per_cent_slower(experiments: u64) {
    for (spread, least_percent) in [(0.01, 95), (0.03, 90), (0.04, 80)] {
        let found = verdicts(experiments, spread, 0.05);
        let worse = count(&found, &[Verdict::Worse]);
        eprintln!("spread {spread}: {worse} of {experiments}");
        assert!(worse as u64 * 100 >= least_percent * experiments, "spread {spread}: {worse} of {experiments}");
        assert_eq!(count(&found, &[Verdict::Better]), 0, "spread {spread}");
    }
}

#[test]
fn a_quiet_host_needs_few_blocks() {
    let found = verdicts(300, 0.005, 0.05);
    assert!(found.iter().filter(|(_, blocks)| *blocks <= 12).count() > 200, "{found:?}");
}
