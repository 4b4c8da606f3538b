//! `WeightedDraw`, `BalancedDraw` and `MixedDraw`: draws with replacement, by weight, by class in
//! turns, or by shares of several sources, as pure functions of the position.
//!
//! A draw depends only on (n, seed, epoch, position), as in [`Order`]. No generator state is
//! advanced, so each position is computed independently. `docs/order.md` specifies the draws,
//! which never change.

use crate::order::permutation::{GOLDEN, Order, ROUNDS, extended, key_of, keys_of, mix};

/// The number of the key for draws. It follows the round keys of an [`Order`].
const DRAWS: u64 = ROUNDS as u64 + 1;

/// Purposes of the keys for turns.
const ORDER_OF_CLASSES: u64 = 0;
const ORDER_OF_RECORDS: u64 = 1;

/// The draws of one epoch; a record's frequency follows its weight.
#[derive(Debug, Clone)]
pub struct WeightedDraw {
    base: u64,
}

impl WeightedDraw {
    /// Prepares the draws among `n` records for one epoch.
    pub fn new(n: u64, seed: u64, epoch: u64) -> Self {
        Self { base: key_of(DRAWS, &[seed, epoch, n]) }
    }

    /// Returns a number in `[0, 1)` for a position, a multiple of 2^-53.
    #[inline]
    #[allow(clippy::cast_precision_loss)] // 53 bits
    pub fn unit(&self, position: u64) -> f64 {
        // Output number `position` of SplitMix64, with the base as the initial state.
        let word = mix(self.base.wrapping_add(GOLDEN.wrapping_mul(position.wrapping_add(1))));
        (word >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the record drawn at a position: the first whose cumulative weight exceeds
    /// `unit(position)` times the total.
    ///
    /// `cumulative` has for each record the sum of the weights up to and including it. A record of
    /// weight 0 is never drawn. Returns `None` if the sums are all zero, not finite or not
    /// ascending.
    #[inline]
    pub fn record(&self, cumulative: &[f64], position: u64) -> Option<u64> {
        let total = cumulative.last().copied().filter(|&total| total > 0.0 && total.is_finite())?;
        // Below 2^-1022 floats have fewer bits, and the product may round up to the total.
        let target = (self.unit(position) * total).min(total.next_down());
        let record = cumulative.partition_point(|&sum| sum <= target);
        (record < cumulative.len()).then_some(record as u64)
    }
}

/// The turns of one epoch: each class once per round, in random order, and the records of a class
/// in random order.
///
/// Records are numbered class by class: class c has the records `[ends[c - 1], ends[c])`.
#[derive(Debug, Clone)]
pub struct BalancedDraw<'a> {
    ends: &'a [u64],
    keys: [u64; ROUNDS],
}

impl<'a> BalancedDraw<'a> {
    /// Prepares the turns of one epoch. Returns `None` without classes, or if a class is empty.
    pub fn new(ends: &'a [u64], seed: u64, epoch: u64) -> Option<Self> {
        let n = *ends.last()?;
        let empty = ends[0] == 0 || ends.windows(2).any(|pair| pair[0] >= pair[1]);
        (!empty).then(|| Self { ends, keys: keys_of(&[seed, epoch, n, ends.len() as u64]) })
    }

    /// Returns the record at a position.
    #[inline]
    pub fn record(&self, position: u64) -> u64 {
        let classes = self.ends.len() as u64;
        let (round, turn) = (position / classes, position % classes);
        let keys = self.keys.map(|key| extended(extended(key, ORDER_OF_CLASSES), round));
        let class = Order::keyed(classes, keys).row(turn);

        // A class comes once per round, so this is its record number `round`. After its last
        // record, a class starts over.
        let start = if class == 0 { 0 } else { self.ends[class as usize - 1] };
        let records = self.ends[class as usize] - start;
        let (pass, number) = (round / records, round % records);
        let keys = self.keys.map(|key| extended(extended(extended(key, ORDER_OF_RECORDS), class), pass));
        start + Order::keyed(records, keys).row(number)
    }
}

/// The draws of one epoch from several sources, each with its share.
///
/// Draws come in blocks, in which each source has its number of turns, in random order. The numbers
/// follow the shares as closely as whole numbers can, from the first block on. The records of a
/// source come in random order, each once before any comes again.
///
/// Records are numbered source by source, as for [`BalancedDraw`].
#[derive(Debug, Clone)]
pub struct MixedDraw<'a> {
    ends: &'a [u64],
    /// The shares of each source and of all earlier ones.
    shares: &'a [u64],
    keys: [u64; ROUNDS],
}

/// Draws in a block of a [`MixedDraw`].
const BLOCK: usize = 64;

impl<'a> MixedDraw<'a> {
    /// Prepares the draws of one epoch. `shares` has for each source, in whole numbers, its share and
    /// those of all earlier sources. Returns `None` if the numbers do not ascend, or a source with a
    /// share is empty.
    pub fn new(ends: &'a [u64], shares: &'a [u64], seed: u64, epoch: u64) -> Option<Self> {
        let (n, total) = (*ends.last()?, *shares.last()?);
        let good = ends.len() == shares.len() && total > 0 && ends.is_sorted() && shares.is_sorted();
        let good = good && (0..ends.len()).all(|at| own(ends, at) > 0 || own(shares, at) == 0);
        good.then(|| Self { ends, shares, keys: keys_of(&[seed, epoch, n, total]) })
    }

    /// Returns the record at a position.
    pub fn record(&self, position: u64) -> u64 {
        let place = (position % BLOCK as u64) as usize;
        let start = position - place as u64;

        // How many of the draws up to the start and the end of the block are of each source: its share
        // of those that are of no earlier source.
        let (mut before, mut after, mut rest) = (start, start + BLOCK as u64, self.shares[self.shares.len() - 1]);
        let (mut order, mut filled) = ([(0, 0); BLOCK], 0);
        for source in 0..self.shares.len() {
            let own = own(self.shares, source);
            if own == 0 {
                continue;
            }
            let share = |draws| rounded_share(draws, own, rest);
            let (first, stop) = (share(before), share(after));
            order[filled..][..(stop - first) as usize].fill((source, first));
            filled += (stop - first) as usize;
            (before, after, rest) = (before - first, after - stop, rest - own);
        }
        let key = extended(extended(self.keys[0], ORDER_OF_CLASSES), start / BLOCK as u64);
        for last in (1..BLOCK).rev() {
            let word = mix(key.wrapping_add(GOLDEN.wrapping_mul(last as u64)));
            order.swap(last, ((u128::from(word) * (last as u128 + 1)) >> 64) as usize);
        }

        // The number of this draw among all of the source. After its last record, a source starts over.
        let (source, first) = order[place];
        let draw = first + order[..place].iter().filter(|(other, _)| *other == source).count() as u64;
        let records = own(self.ends, source);
        let (pass, number) = (draw / records, draw % records);
        let keys = self.keys.map(|key| extended(extended(extended(key, ORDER_OF_RECORDS), source as u64), pass));
        self.ends[source] - records + Order::keyed(records, keys).row(number)
    }
}

/// Returns a number of ascending sums without the sum before it.
fn own(sums: &[u64], at: usize) -> u64 {
    sums[at] - at.checked_sub(1).map_or(0, |before| sums[before])
}

/// Returns `draws * own / all`, rounded to the nearest whole number.
fn rounded_share(draws: u64, own: u64, all: u64) -> u64 {
    let (own, all) = (u128::from(own), u128::from(all));
    ((u128::from(draws) * own + all / 2) / all) as u64
}

#[cfg(test)]
#[allow(clippy::cast_sign_loss)] // the numbers are not negative
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::order::permutation::tests::deviation;

    fn cumulative(weights: &[f64]) -> Vec<f64> {
        weights
            .iter()
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect()
    }

    fn weighted(weights: &[f64], draws: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let sums = cumulative(weights);
        let draw = WeightedDraw::new(sums.len() as u64, seed, epoch);
        (0..draws).map(|position| draw.record(&sums, position).unwrap()).collect()
    }

    fn balanced(counts: &[u64], draws: u64, seed: u64, epoch: u64) -> Vec<(usize, u64)> {
        let ends: Vec<u64> = counts
            .iter()
            .scan(0, |sum, count| {
                *sum += count;
                Some(*sum)
            })
            .collect();
        let draw = BalancedDraw::new(&ends, seed, epoch).unwrap();
        let class = |record| ends.partition_point(|&end| end <= record);
        (0..draws).map(|position| draw.record(position)).map(|record| (class(record), record)).collect()
    }

    #[test]
    fn the_draws_never_change() {
        let draw = WeightedDraw::new(10, 0, 0);
        let units: [f64; 3] = [0.641_760_862_702_728_9, 0.524_872_530_432_692_1, 0.634_131_958_618_940_5];
        assert!(
            [0, 1, u64::MAX].iter().zip(units).all(|(&position, unit)| draw.unit(position).to_bits() == unit.to_bits())
        );
        for ((seed, epoch), by_weight, in_turns) in [
            ((0, 0), [3, 3, 1, 0, 1, 0, 3, 3, 3, 3, 3, 3], [5, 0, 2, 0, 1, 6, 1, 4, 0, 3, 2, 0]),
            ((0, 1), [1, 3, 3, 3, 3, 3, 1, 1, 3, 0, 1, 3], [2, 0, 5, 1, 6, 0, 0, 3, 1, 2, 7, 0]),
            ((1, 0), [3, 0, 0, 1, 1, 1, 0, 3, 3, 3, 3, 1], [0, 3, 1, 7, 0, 2, 0, 2, 4, 0, 6, 1]),
        ] {
            assert_eq!(weighted(&[1.0, 2.0, 0.0, 4.0], 12, seed, epoch), by_weight, "seed {seed}, epoch {epoch}");
            let records: Vec<u64> = balanced(&[1, 2, 5], 12, seed, epoch).into_iter().map(|pair| pair.1).collect();
            assert_eq!(records, in_turns, "seed {seed}, epoch {epoch}");
        }

        let sums = cumulative(&(0..1000).map(|i| f64::from(i % 7)).collect::<Vec<_>>());
        let draw = WeightedDraw::new(1000, 42, 7);
        let golden = [(0, 604), (1, 306), (2, 633), (999_999_999_999, 972)];
        assert_eq!(golden.map(|(position, _)| (position, draw.record(&sums, position).unwrap())), golden);

        let ends: Vec<u64> =
            (1..=10).map(|class| class * 732).chain((1..=5).map(|class| 7320 + class * 1300)).collect();
        let draw = BalancedDraw::new(&ends, 42, 7).unwrap();
        let golden = [(0, 9508), (1, 106), (2, 2724), (99_999, 3950)];
        assert_eq!(golden.map(|(position, _)| (position, draw.record(position))), golden);
    }

    #[test]
    fn units_are_spread_evenly_alone_and_with_their_neighbours() {
        let draw = WeightedDraw::new(1000, 3, 4);
        let units: Vec<f64> = (0..200_000).map(|position| draw.unit(position)).collect();
        assert!(units.iter().all(|unit| (0.0..1.0).contains(unit)));
        let mut cells = vec![0_u32; 64 * 64];
        for pair in units.windows(2) {
            cells[(pair[0] * 64.0) as usize * 64 + (pair[1] * 64.0) as usize] += 1;
        }
        assert!(deviation(&cells).abs() < 4.0, "{}", deviation(&cells));
    }

    #[test]
    fn one_position_is_spread_evenly_over_seeds_and_over_epochs() {
        let mut cells = [[0_u32; 64]; 2];
        for key in 0..20_000 {
            for (cells, (seed, epoch)) in cells.iter_mut().zip([(key, 5), (5, key)]) {
                cells[(WeightedDraw::new(1000, seed, epoch).unit(17) * 64.0) as usize] += 1;
            }
        }
        assert!(cells.iter().all(|cells| deviation(cells).abs() < 4.0), "{cells:?}");
    }

    #[test]
    fn records_come_as_often_as_their_weights_say_and_those_without_weight_never() {
        let weights = [0.0, 1.0, 0.5, 0.0, 0.0, 3.0, 0.25, 0.0];
        let mut counts = [0_u32; 8];
        for record in weighted(&weights, 190_000, 7, 8) {
            counts[record as usize] += 1;
        }
        let total: f64 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(weights) {
            let (expected, spread) = (190_000.0 * weight / total, (190_000.0 * weight / total).sqrt());
            assert!((f64::from(*count) - expected).abs() <= 4.0 * spread, "{counts:?}");
        }
    }

    #[test]
    fn sums_that_name_no_record_are_none() {
        let draw = WeightedDraw::new(2, 0, 0);
        for sums in [&[][..], &[0.0, 0.0], &[1.0, f64::NAN]] {
            assert_eq!(draw.record(sums, 0), None, "{sums:?}");
        }
    }

    #[test]
    fn each_class_comes_once_in_a_round_and_no_record_twice_before_its_class_is_used_up() {
        let counts = [1, 4, 9, 2];
        let drawn = balanced(&counts, 4 * 36, 1, 2);
        for round in drawn.chunks(4) {
            assert_eq!(round.iter().map(|&(class, _)| class).collect::<HashSet<_>>().len(), 4);
        }
        for (class, &count) in counts.iter().enumerate() {
            let records: Vec<u64> = drawn.iter().filter(|pair| pair.0 == class).map(|pair| pair.1).collect();
            for pass in records.chunks(count as usize) {
                assert_eq!(pass.iter().collect::<HashSet<_>>().len(), count as usize, "class {class}: {pass:?}");
            }
        }
    }

    #[test]
    fn the_order_of_classes_and_that_of_records_change_from_round_to_round_and_from_pass_to_pass() {
        let drawn = balanced(&[6, 6, 6], 3 * 600, 0, 0);
        let mut orders = std::collections::HashMap::new();
        for round in drawn.chunks(3) {
            *orders.entry(round.iter().map(|pair| pair.0).collect::<Vec<_>>()).or_insert(0_u32) += 1;
        }
        assert_eq!(orders.len(), 6);
        assert!(deviation(&orders.into_values().collect::<Vec<_>>()) < 4.0);

        let mut firsts = vec![0_u32; 18];
        for class in 0..3 {
            let records: Vec<u64> = drawn.iter().filter(|pair| pair.0 == class).map(|pair| pair.1).collect();
            for pass in records.chunks(6) {
                firsts[pass[0] as usize] += 1;
            }
        }
        assert!(deviation(&firsts) < 4.0, "{firsts:?}");
    }

    #[test]
    fn every_record_of_a_class_comes_to_every_position_equally_often() {
        let mut counts = vec![0_u32; 5 * 5];
        for seed in 0..8_000 {
            let drawn = balanced(&[3, 5], 10, seed, 9);
            for (position, pair) in drawn.iter().filter(|pair| pair.0 == 1).enumerate() {
                counts[position * 5 + (pair.1 - 3) as usize] += 1;
            }
        }
        assert!(deviation(&counts) < 4.0, "{counts:?}");
    }

    #[test]
    fn ends_that_name_a_class_without_records_are_none() {
        for ends in [&[][..], &[0], &[0, 3], &[2, 2], &[3, 2]] {
            assert!(BalancedDraw::new(ends, 0, 0).is_none(), "{ends:?}");
        }
    }

    #[test]
    fn each_source_has_its_share_and_repeats_no_record_before_it_is_used_up() {
        let (ends, shares) = ([5, 105, 105, 112], [7, 17, 17, 20]);
        let draw = MixedDraw::new(&ends, &shares, 3, 1).unwrap();
        let drawn: Vec<u64> = (0..64 * 50).map(|position| draw.record(position)).collect();
        for (at, start, size) in [(0, 0_u64, 5_u64), (1, 5, 100), (3, 105, 7)] {
            let of = |records: &[u64]| {
                let own = records.iter().copied().filter(|record| (start..start + size).contains(record));
                own.collect::<Vec<u64>>()
            };
            let share = [7, 10, 0, 3][at];
            for stop in (64..=drawn.len()).step_by(64) {
                let difference = of(&drawn[..stop]).len().abs_diff(stop * share / 20);
                assert!(difference <= 1, "source {at}, {stop}");
            }
            for pass in of(&drawn).chunks_exact(size as usize) {
                let mut pass = pass.to_vec();
                pass.sort_unstable();
                assert_eq!(pass, (start..start + size).collect::<Vec<u64>>());
            }
        }
        assert!(!drawn.iter().any(|record| *record >= 112));
    }

    /// The same numbers on every CPU; `docs/order.md` has them too, and `tests/dataset/test_mix.py`
    /// computes them in another way.
    #[test]
    fn mixed_draws_never_change() {
        let drawn = |ends: &[u64], turns: &[u64], seed, epoch, from: u64| -> Vec<u64> {
            let draw = MixedDraw::new(ends, turns, seed, epoch).unwrap();
            (from..from + 10).map(|position| draw.record(position)).collect()
        };
        assert_eq!(drawn(&[4, 24], &[7, 10], 0, 0, 0), [13, 1, 20, 2, 3, 5, 6, 0, 1, 0]);
        assert_eq!(drawn(&[4, 24], &[7, 10], 1, 5, 0), [0, 2, 1, 13, 3, 1, 0, 2, 3, 0]);
        let drawn = drawn(&[1 << 40, (1 << 40) + 3], &[1, 65536], u64::MAX, u64::MAX - 1, (1 << 62) - 5);
        let offsets: Vec<u64> = drawn.iter().map(|record| record - (1 << 40)).collect();
        assert_eq!(offsets, [1, 2, 1, 0, 2, 1, 0, 2, 0, 2]);
    }

    #[test]
    fn shares_that_no_source_can_have_are_none() {
        for (ends, turns) in
            [(&[][..], &[][..]), (&[3], &[0]), (&[0], &[1]), (&[2, 2], &[1, 2]), (&[3, 2], &[1, 2]), (&[2], &[1, 2])]
        {
            assert!(MixedDraw::new(ends, turns, 0, 0).is_none(), "{ends:?} {turns:?}");
        }
    }

    proptest! {
        #[test]
        fn any_draw_is_in_range(
            weights in prop::collection::vec(0.0..1e9_f64, 1..40), seed: u64, epoch: u64, position: u64
        ) {
            let sums = cumulative(&weights);
            let draw = WeightedDraw::new(sums.len() as u64, seed, epoch);
            match draw.record(&sums, position) {
                Some(record) => prop_assert!(weights[record as usize] > 0.0),
                None => prop_assert!(weights.iter().all(|&weight| weight == 0.0)),
            }
            let ends: Vec<u64> = (0..weights.len()).scan(0, |end, i| { *end += 1 + weights[i] as u64; Some(*end) }).collect();
            let record = BalancedDraw::new(&ends, seed, epoch).unwrap().record(position);
            prop_assert!(record < *ends.last().unwrap());
        }
    }
}
