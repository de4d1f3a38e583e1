//! The order of trials, and the numbers of blocks after which an answer is looked for.
use serde::{Deserialize, Serialize};

/// Probability that one look sees a difference where there is none. Five looks, whose blocks overlap, then err in about 4 % of all
/// experiments; the tests of `judge` count it. A power of two is reached exactly by the ranks of 8 blocks.
pub const LOOK_ALPHA: f64 = 1.0 / 64.0;
/// Fewer blocks cannot tell anything at [`LOOK_ALPHA`].
pub const BLOCKS_MIN: u32 = 8;
/// With more blocks the trials should be longer instead.
pub const BLOCKS_MAX: u32 = 256;
/// The looks at 32 blocks.
const LOOKS: [u32; 5] = [8, 12, 16, 24, 32];

/// The role of a trial of an A/B experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The first variant.
    A,
    /// The second variant.
    B,
    /// The first variant again: what differs from it is not the change.
    Control,
    /// The first variant beside [`Role::Control`], where two trials run at the same time.
    Beside,
}

/// Numbers of blocks after which [`super::judge`] is asked, ascending; the last is `most`. From 32 on they are the same fractions of
/// `most`, so that the probability of an error stays the same.
pub fn looks(most: u32) -> Vec<u32> {
    let most = most.clamp(BLOCKS_MIN, BLOCKS_MAX);
    if most >= 32 {
        return LOOKS.iter().map(|look| (look * most).div_ceil(32)).collect();
    }
    LOOKS.into_iter().filter(|look| *look < most).chain([most]).collect()
}

/// The order of the trials of each block. The same seed gives the same order, and more blocks only add to it.
pub fn blocks_order(seed: u64) -> impl Iterator<Item = [Role; 3]> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(move || {
        let mut order = [Role::A, Role::B, Role::Control];
        random.shuffle(&mut order);
        order
    })
}

/// The pairs of each block whose trials run at the same time, in the order in which they do.
pub fn duets_order(seed: u64) -> impl Iterator<Item = [[Role; 2]; 2]> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(move || {
        let mut order = [[Role::A, Role::B], [Role::Beside, Role::Control]];
        random.shuffle(&mut order);
        order
    })
}

/// The order in which each pass of a sweep visits `values` values: their indices.
pub fn sweep_order(seed: u64, values: usize) -> impl Iterator<Item = Vec<usize>> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(move || {
        let mut order: Vec<usize> = (0..values).collect();
        random.shuffle(&mut order);
        order
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_end_with_the_last_block() {
        assert_eq!(looks(32), [8, 12, 16, 24, 32]);
        assert_eq!(looks(64), [16, 24, 32, 48, 64]);
        assert_eq!(looks(12), [8, 12]);
        assert_eq!(looks(10), [8, 10]);
        assert_eq!(looks(1), [8]);
        for most in BLOCKS_MIN..=BLOCKS_MAX {
            let looks = looks(most);
            assert!(looks.is_sorted() && looks.last() == Some(&most) && looks.len() <= 5, "{most}: {looks:?}");
        }
    }

    #[test]
    fn every_order_of_a_block_comes_equally_often() {
        let mut seen = std::collections::BTreeMap::new();
        for order in blocks_order(7).take(6000) {
            *seen.entry(order).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 6);
        assert!(seen.values().all(|count| (850..1150).contains(count)), "{seen:?}");
        assert_ne!(blocks_order(7).take(20).collect::<Vec<_>>(), blocks_order(8).take(20).collect::<Vec<_>>());
    }

    #[test]
    fn a_change_and_its_control_come_first_equally_often() {
        let first = duets_order(3).take(2000).filter(|pairs| pairs[0] == [Role::A, Role::B]).count();
        assert!((900..1100).contains(&first), "{first}");
    }

    #[test]
    fn a_pass_visits_every_value_once() {
        for mut order in sweep_order(3, 5).take(20) {
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3, 4]);
        }
    }
}
