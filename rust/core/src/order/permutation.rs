//! `Order`: the epoch order, a pure function of (n, seed, epoch) that maps a position to a record.
//!
//! A permutation of `[0, n)` that needs no memory. Each position is computed independently, in
//! constant time, by integer arithmetic that is identical on every platform. `docs/order.md`
//! specifies the algorithm. An interrupted run must continue with the same batches, so its results
//! never change.
//!
//! ```
//! use fastrecord_core::Order;
//!
//! let order = Order::new(5, 0, 0);
//! let mut rows: Vec<u64> = (0..5).map(|position| order.row(position)).collect();
//! rows.sort_unstable();
//! assert_eq!(rows, [0, 1, 2, 3, 4]);
//! ```

/// Feistel rounds: half of them change the low digit, half the high one.
pub(crate) const ROUNDS: usize = 8;

/// The shortest side of the grid is `2^MIN_BITS`. On a smaller grid, this few rounds do not produce
/// all permutations equally often.
const MIN_BITS: u32 = 4;

/// The increment of `SplitMix64`: 2^64 divided by the golden ratio, made odd.
pub(crate) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// One epoch's permutation of `[0, n)`.
///
/// A Feistel network over a grid of `2^bits` columns and `high` rows, the smallest with at least
/// `n` cells. It uses cycle walking: cells at or above `n` are mapped again until the result is
/// below `n`. From 256 records on, the grid exceeds `n` by less than one row of cells, so nearly
/// every position takes one pass.
#[derive(Debug, Clone)]
pub struct Order {
    n: u64,
    bits: u32,
    high: u64,
    keys: [u64; ROUNDS],
}

impl Order {
    /// Prepares the order of `n` records for one epoch. Every bit of each argument matters: seed 0,
    /// epoch 1 is unrelated to seed 1, epoch 0.
    pub fn new(n: u64, seed: u64, epoch: u64) -> Self {
        Self::keyed(n, keys_of(&[seed, epoch, n]))
    }

    /// Returns the order of `n` records for the given round keys.
    #[inline]
    pub(crate) fn keyed(n: u64, keys: [u64; ROUNDS]) -> Self {
        let width = u64::BITS - n.saturating_sub(1).leading_zeros();
        let bits = (width / 2).max(MIN_BITS);
        Self { n, bits, high: n.div_ceil(1 << bits).max(1 << MIN_BITS), keys }
    }

    /// Returns the number of records.
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Reports whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Returns the record at a position. Each record appears once over all positions in `[0, n)`.
    ///
    /// # Panics
    /// If `position` is not below `n`, as in indexing a slice: cycle walking from such a cell need
    /// not end.
    #[inline]
    pub fn row(&self, position: u64) -> u64 {
        assert!(position < self.n, "position {position} is out of range: the order has {}", self.n);
        let mut cell = self.pass(position);
        while cell >= self.n {
            cell = self.pass(cell);
        }
        cell
    }

    /// One pass of the network: a bijection of the grid's cells.
    #[inline]
    fn pass(&self, cell: u64) -> u64 {
        let mask = (1 << self.bits) - 1;
        let (mut high, mut low) = (cell >> self.bits, cell & mask);
        for pair in self.keys.chunks_exact(2) {
            low = low.wrapping_add(stir(high ^ pair[0]) >> (u64::BITS - self.bits)) & mask;
            high += below(stir(low ^ pair[1]), self.high);
            if high >= self.high {
                high -= self.high;
            }
        }
        high << self.bits | low
    }
}

/// Derives one key per round from all of the words.
pub(crate) fn keys_of(words: &[u64]) -> [u64; ROUNDS] {
    std::array::from_fn(|round| key_of(round as u64 + 1, words))
}

/// Derives a numbered key from all of the words.
pub(crate) fn key_of(number: u64, words: &[u64]) -> u64 {
    words.iter().fold(mix(GOLDEN.wrapping_mul(number)), |key, &word| extended(key, word))
}

/// Mixes `word` into a key.
#[inline]
pub(crate) fn extended(key: u64, word: u64) -> u64 {
    mix(key.wrapping_add(word))
}

/// The output function of `SplitMix64` without its last step. Use only the upper bits, which are as
/// good.
#[inline]
fn stir(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB)
}

/// The output function of `SplitMix64`, a bijection of the 64-bit words.
pub(crate) fn mix(word: u64) -> u64 {
    let word = stir(word);
    word ^ word >> 31
}

/// Maps a random word to `[0, limit)` by its upper bits: the high half of the product.
#[inline]
pub(crate) fn below(word: u64, limit: u64) -> u64 {
    ((u128::from(word) * u128::from(limit)) >> u64::BITS) as u64
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn rows(n: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let order = Order::new(n, seed, epoch);
        (0..n).map(|position| order.row(position)).collect()
    }

    pub(crate) fn is_permutation(rows: &[u64]) -> bool {
        let mut sorted = rows.to_vec();
        sorted.sort_unstable();
        sorted.into_iter().eq(0..rows.len() as u64)
    }

    /// Returns the chi-square statistic of counts that should be equal, in standard deviations from
    /// its mean.
    pub(crate) fn deviation(counts: &[u32]) -> f64 {
        let total: u32 = counts.iter().sum();
        let expected = f64::from(total) / f64::from(counts.len() as u32);
        let statistic: f64 = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        let freedom = f64::from(counts.len() as u32 - 1);
        (statistic - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn the_order_never_changes() {
        assert_eq!(rows(1, 0, 0), [0]);
        assert_eq!(rows(3, 0, 0), [1, 2, 0]);
        assert_eq!(rows(10, 0, 0), [2, 8, 1, 7, 3, 6, 0, 9, 4, 5]);
        assert_eq!(rows(10, 0, 1), [8, 7, 3, 1, 4, 0, 5, 2, 6, 9]);
        assert_eq!(rows(10, 1, 0), [4, 9, 7, 3, 5, 0, 8, 1, 6, 2]);
        assert_eq!(rows(10, u64::MAX, u64::MAX), [2, 9, 6, 1, 3, 5, 8, 0, 7, 4]);
        for (n, seed, epoch, golden) in [
            (1_000, 0, 0, [(0, 878), (1, 761), (2, 920), (999, 176)]),
            (1_281_167, 42, 7, [(0, 540_945), (1, 883_996), (2, 289_680), (1_281_166, 801_614)]),
        ] {
            let order = Order::new(n, seed, epoch);
            assert_eq!(golden.map(|(position, _)| (position, order.row(position))), golden, "n = {n}");
        }
        assert_eq!(Order::new(1 << 40, 0, 0).row(1), 979_136_175_134);
        assert_eq!(Order::new(u64::MAX, 5, 6).row(u64::MAX - 1), 9_117_675_545_560_484_946);
    }

    #[test]
    fn every_small_order_is_a_permutation() {
        for n in 0..=1100 {
            assert!(is_permutation(&rows(n, 7, n)), "n = {n}");
        }
    }

    proptest! {
        #[test]
        fn any_order_is_a_permutation(n in 0_u64..20_000, seed: u64, epoch: u64) {
            prop_assert!(is_permutation(&rows(n, seed, epoch)));
        }

        #[test]
        fn orders_of_any_length_stay_in_range_and_repeat_nothing(n in 1_u64.., seed: u64, epoch: u64, start: u64) {
            let order = Order::new(n, seed, epoch);
            let positions = (0..n.min(500)).map(|step| ((u128::from(start) + u128::from(step)) % u128::from(n)) as u64);
            let rows: HashSet<u64> = positions.map(|position| order.row(position)).collect();
            prop_assert_eq!(rows.len() as u64, n.min(500));
            prop_assert!(rows.iter().all(|&row| row < n));
        }
    }

    #[test]
    fn the_longest_orders_work() {
        for n in [(1 << 40) - 1, 1 << 40, (1 << 40) + 1, 1 << 63, u64::MAX - 1, u64::MAX] {
            let order = Order::new(n, 3, 4);
            let rows: HashSet<u64> = (0..1000).chain(n - 1000..n).map(|position| order.row(position)).collect();
            assert_eq!(rows.len(), 2000, "n = {n}");
            assert!(rows.iter().all(|&row| row < n), "n = {n}");
        }
    }

    #[test]
    fn seed_epoch_and_length_are_separate_words_of_the_key() {
        let orders = [
            (1000, 0, 0),
            (1000, 0, 1),
            (1000, 1, 0),
            (1000, 1, 1),
            (1000, GOLDEN, 0),
            (1000, 0, 1 << 63),
            (1001, 0, 0),
        ];
        for (i, &(n, seed, epoch)) in orders.iter().enumerate() {
            for &(other_n, other_seed, other_epoch) in &orders[..i] {
                let (one, other) = (rows(n, seed, epoch), rows(other_n, other_seed, other_epoch));
                let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
                assert!(same < 8, "{same} of 1000 positions agree");
            }
        }
    }

    #[test]
    fn every_permutation_of_three_and_of_four_comes_equally_often() {
        for (n, permutations) in [(3, 6), (4, 24)] {
            let mut counts = std::collections::HashMap::new();
            for seed in 0..48_000 {
                *counts.entry(rows(n, seed, 0)).or_insert(0_u32) += 1;
            }
            assert_eq!(counts.len(), permutations);
            let counts: Vec<u32> = counts.into_values().collect();
            assert!(deviation(&counts) < 4.0, "n = {n}: {counts:?}");
        }
    }

    #[test]
    fn every_record_comes_to_every_position_equally_often_over_seeds_and_over_epochs() {
        for n in [2_u64, 5, 10, 17, 100] {
            let size = n as usize;
            let mut by_seed = vec![0_u32; size * size];
            let mut by_epoch = vec![0_u32; size * size];
            for key in 0..8_000 {
                for (position, (row, other)) in rows(n, key, 3).into_iter().zip(rows(n, 3, key)).enumerate() {
                    by_seed[position * size + row as usize] += 1;
                    by_epoch[position * size + other as usize] += 1;
                }
            }
            // Rows and columns of the table have fixed sums: n - 1 degrees of freedom each. So the
            // statistic is slightly small.
            assert!(deviation(&by_seed) < 4.0, "n = {n}");
            assert!(deviation(&by_epoch) < 4.0, "n = {n}");
        }
    }

    #[test]
    fn pairs_of_neighbouring_positions_take_every_pair_of_records_equally_often() {
        for n in [16_u64, 40, 257] {
            let size = n as usize;
            let mut steps = vec![0_u32; size];
            for seed in 0..3_000 {
                for pair in rows(n, seed, 0).windows(2) {
                    steps[((n + pair[1] - pair[0]) % n) as usize] += 1;
                }
            }
            assert_eq!(steps[0], 0);
            assert!(deviation(&steps[1..]) < 4.0, "n = {n}");
        }
    }

    #[test]
    fn neighbouring_positions_of_a_long_order_are_uncorrelated() {
        for n in [10_007_u64, 1_281_167, (1 << 40) + 12_345] {
            let order = Order::new(n, 0, 0);
            let mut cells = vec![0_u32; 64 * 64];
            let bin = |position| (u128::from(order.row(position)) * 64 / u128::from(n)) as usize;
            for position in 0..200_000.min(n - 1) {
                cells[bin(position) * 64 + bin(position + 1)] += 1;
            }
            assert!(deviation(&cells).abs() < 4.0, "n = {n}: {}", deviation(&cells));
        }
    }

    #[test]
    fn even_and_odd_permutations_are_equally_likely() {
        for n in [8_u64, 16, 256, 300] {
            let odd = (0..4_000).filter(|&seed| {
                let mut rows = rows(n, seed, 0);
                let mut swaps = 0;
                for i in 0..rows.len() {
                    while rows[i] != i as u64 {
                        let target = rows[i] as usize;
                        rows.swap(i, target);
                        swaps += 1;
                    }
                }
                swaps % 2 == 1
            });
            let odd = odd.count();
            assert!((1_850..2_150).contains(&odd), "n = {n}: {odd} of 4000");
        }
    }

    #[test]
    #[should_panic(expected = "position 5 is out of range: the order has 5")]
    fn a_position_outside_of_the_order_is_refused() {
        Order::new(5, 0, 0).row(5);
    }
}
