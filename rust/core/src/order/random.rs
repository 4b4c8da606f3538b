//! `Random`: random numbers as a pure function of seed, epoch and position.
//!
//! `Random::new(seed, epoch, position)` is a 64-bit key. `SplitMix64`'s output function mixes the
//! seed, the epoch and the position into a start value, one after the other. Draw `i` (0, 1, ...)
//! applies the same function to `key + (i + 1) * 0x9E3779B97F4A7C15`. That is `SplitMix64` itself,
//! started at the key. A real number is the upper 53 bits of a draw divided by 2^53. An integer
//! below `n` is the upper half of a draw times `n`.
//!
//! Transforms of whole batches use their own numbers, [`uniform`], with another start value, and a
//! stream as a fourth word.
//!
//! The results never change, so that an interrupted run continues with the same crops.

use crate::order::permutation::{GOLDEN, below, extended, mix};

/// Separates these numbers from the epoch order, which uses the same seeds: "crop" in ASCII.
const PURPOSE: u64 = 0x6372_6F70;

/// Separates numbers for batches from the crops of the same images: "batch" in ASCII.
const BATCH: u64 = 0x62_6174_6368;

/// The random numbers of one image at one position of one epoch.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

/// Separates the operations on an image from each other: "step" in ASCII.
const OPERATION: u64 = 0x7374_6570;

impl Random {
    /// Creates the generator. Every bit of each argument matters: seed 0, epoch 1 is unrelated to
    /// seed 1, epoch 0.
    pub fn new(seed: u64, epoch: u64, position: u64) -> Self {
        Self::keyed(PURPOSE, &[seed, epoch, position])
    }

    fn keyed(purpose: u64, words: &[u64]) -> Self {
        Self { state: words.iter().fold(mix(purpose), |key, &word| extended(key, word)) }
    }

    /// Returns a number that stands for some words, as a key of its own.
    pub(crate) fn key(words: &[u64]) -> u64 {
        Self::keyed(OPERATION, words).state
    }

    /// Returns the numbers of an operation on the same record.
    pub(crate) fn keyed_by(&self, key: u64) -> Self {
        Self { state: extended(self.state, key) }
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Returns true or false with equal probability.
    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// Returns a uniform number in `[low, high)`; `low` if they are equal.
    #[allow(clippy::cast_precision_loss)] // 53 bits
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        low + (high - low) * unit
    }

    /// Returns a uniform integer in `[0, limit)`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        below(self.bits(), limit.into()) as u32
    }
}

/// Returns `draws` numbers, uniform in [0, 1), for each position, back to back, for a transform of
/// a batch.
///
/// The numbers depend only on the seed, the epoch, the position and the stream, never on the batch.
/// With more draws, the first ones stay the same.
pub fn uniform(seed: u64, epoch: u64, stream: u64, positions: &[u64], draws: usize) -> Vec<f64> {
    let mut numbers = Vec::with_capacity(positions.len() * draws);
    for &position in positions {
        let mut random = Random::keyed(BATCH, &[seed, epoch, position, stream]);
        numbers.extend((0..draws).map(|_| random.uniform(0.0, 1.0)));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_never_change() {
        let first = |seed, epoch, position| Random::new(seed, epoch, position).bits();
        assert_eq!(first(0, 0, 0), 1_879_793_468_912_415_018);
        assert_eq!(first(1, 0, 0), 8_474_424_706_501_811_877);
        assert_eq!(first(0, 1, 0), 6_702_858_051_324_105_020);
        assert_eq!(first(0, 0, 1), 10_333_914_277_666_206_973);
        assert_eq!(first(u64::MAX, 7, 1_281_166), 4_490_084_124_744_914_731);
        let mut random = Random::new(42, 7, 3);
        let golden = [5_925_210_035_018_293_389, 12_775_267_790_531_620_387, 17_887_570_758_772_780_700];
        assert_eq!([random.bits(), random.bits(), random.bits()], golden);
        assert_eq!((random.below(1000), random.coin()), (172, true));
        assert_eq!(random.uniform(0.0, 1.0).to_bits(), 0.758_331_649_661_522_8_f64.to_bits());
    }

    #[test]
    fn the_numbers_of_batches_never_change() {
        let found = uniform(42, 7, 0, &[3, 0, u64::MAX], 2);
        let golden = [
            0.307_240_084_118_948_f64,
            0.369_156_450_784_352_8,
            0.216_277_268_240_644_53,
            0.789_188_890_100_821_8,
            0.524_775_444_321_152_6,
            0.142_492_490_496_576_09,
        ];
        assert_eq!(found.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), golden.map(f64::to_bits));
        assert_eq!(uniform(42, 7, 1, &[3], 1)[0].to_bits(), 0.890_851_101_213_209_f64.to_bits());
    }

    #[test]
    fn a_position_draws_the_same_numbers_in_any_batch_and_others_in_another_stream_or_for_its_crop() {
        let three = uniform(1, 2, 0, &[5, 6, 5], 3);
        assert_eq!(three[..3], three[6..]);
        assert_eq!(uniform(1, 2, 0, &[6], 2), three[3..5]);
        for other in [uniform(1, 2, 1, &[6], 1)[0], Random::new(1, 2, 6).uniform(0.0, 1.0)] {
            assert!(three.iter().all(|number| number.to_bits() != other.to_bits()));
        }
        assert!(uniform(1, 2, 0, &[], 3).is_empty());
    }

    #[test]
    fn numbers_of_neighbouring_keys_are_uniform_and_uncorrelated() {
        const N: u64 = 100_000;
        let batch = |n| Random::keyed(BATCH, &[0, 0, n, 0]);
        let stream = |n| Random::keyed(BATCH, &[0, 0, 0, n]);
        let seed = |n| Random::new(n, 0, 0);
        for key in [seed, |n| Random::new(0, n, 0), |n| Random::new(0, 0, n), batch, stream] {
            let draws: Vec<f64> = (0..N).map(|n| key(n).uniform(-1.0, 1.0)).collect();
            let n = f64::from(u32::try_from(N).unwrap());
            let mean = draws.iter().sum::<f64>() / n;
            let variance = draws.iter().map(|x| x * x).sum::<f64>() / n;
            let serial = draws.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / n;
            // The bounds are five standard deviations each.
            assert!(mean.abs() < 5.0 * (1.0 / 3.0 / n).sqrt(), "{mean}");
            assert!((variance - 1.0 / 3.0).abs() < 5.0 * (4.0 / 45.0 / n).sqrt(), "{variance}");
            assert!(serial.abs() < 5.0 / 3.0 / n.sqrt(), "{serial}");
        }
    }

    #[test]
    fn integers_stay_below_their_limit() {
        let mut random = Random::new(1, 2, 3);
        assert_eq!(random.below(0), 0);
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[random.below(7) as usize] += 1);
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert!(random.below(u32::MAX) < u32::MAX);
    }
}
