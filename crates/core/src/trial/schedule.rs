//! The order of the windows.

/// One window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The pair that it belongs to, from 1.
    pub pair: u32,
    /// The change is in place.
    pub changed: bool,
}

/// Pairs of windows without the change and with it, every second pair the other way round: a load that grows or shrinks
/// steadily then favours neither, and the change is made and reverted half as often.
pub fn steps(pairs: u32) -> impl Iterator<Item = Step> {
    (1..=pairs).flat_map(|pair| {
        let first = pair % 2 == 0;
        [Step { pair, changed: first }, Step { pair, changed: !first }]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_drift_favours_neither() {
        let order: Vec<Step> = steps(4).collect();
        let changed: Vec<bool> = order.iter().map(|step| step.changed).collect();
        assert_eq!(changed, [false, true, true, false, false, true, true, false]);
        let mean = |of: bool| {
            let at: Vec<usize> = (0..order.len()).filter(|&i| order[i].changed == of).collect();
            at.iter().sum::<usize>() as f64 / at.len() as f64
        };
        assert_eq!(mean(true), mean(false));
    }

    #[test]
    fn each_pair_has_both() {
        for pair in 1..=5 {
            let both: Vec<bool> = steps(5).filter(|step| step.pair == pair).map(|step| step.changed).collect();
            assert!(both == [false, true] || both == [true, false], "{both:?}");
        }
    }
}
