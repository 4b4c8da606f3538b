//! Random numbers as a pure function of what they are for.
//!
//! `Random::new(seed, epoch, position)` is a key of 64 bits: a start value, into which `SplitMix64`'s output function
//! mixes the seed, the epoch and the position one after the other. Draw `i` (0, 1, ...) is the same function of
//! `key + (i + 1) * 0x9E3779B97F4A7C15`: `SplitMix64` itself, begun at the key. A real number is the upper 53 bits of a
//! draw over 2^53; an integer below `n` is the upper half of a draw times `n`.
//!
//! The results never change, so that an interrupted run continues with the same crops.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Sets these numbers apart from those of the epoch order, which come from the same seeds: "crop" in ASCII.
const PURPOSE: u64 = 0x6372_6F70;

/// The random numbers of one image at one position of one epoch.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Each argument matters in every bit: seed 0, epoch 1 is unrelated to seed 1, epoch 0.
    pub fn new(seed: u64, epoch: u64, position: u64) -> Self {
        let state = [seed, epoch, position].into_iter().fold(mix(PURPOSE), |key, word| mix(key.wrapping_add(word)));
        Self { state }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A fair coin.
    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// Uniform in `[low, high)`; `low` if they are equal.
    #[allow(clippy::cast_precision_loss)] // 53 bits
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        low + (high - low) * unit
    }

    /// Uniform in `[0, limit)`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u32
    }
}

/// The output function of `SplitMix64`, a bijection of the 64-bit words.
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
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
    fn numbers_of_neighbouring_keys_are_uniform_and_uncorrelated() {
        const N: u64 = 100_000;
        for key in [|n| Random::new(n, 0, 0), |n| Random::new(0, n, 0), |n| Random::new(0, 0, n)] {
            let draws: Vec<f64> = (0..N).map(|n| key(n).uniform(-1.0, 1.0)).collect();
            let n = f64::from(u32::try_from(N).unwrap());
            let mean = draws.iter().sum::<f64>() / n;
            let variance = draws.iter().map(|x| x * x).sum::<f64>() / n;
            let serial = draws.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / n;
            // Five standard deviations of each.
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
