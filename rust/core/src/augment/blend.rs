//! `Mixing`: what is asked for of the pairs of a batch, `MixUp` and `CutMix`; `Blend`: what is done to a pair.
//!
//! Record i of a batch of B is mixed with record B - 1 - i, so that both change in one pass. The middle one of
//! an odd batch stays. Distributions are torchvision's: <https://arxiv.org/abs/1710.09412>,
//! <https://arxiv.org/abs/1905.04899>.

use serde::{Deserialize, Serialize};

use super::floats::{FloatType, bfloat16_of};
use super::gamma::beta;
use super::op::hash;
use super::vector::vectorized;
use crate::order::random::Random;

/// What is done to the values of two records.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op")]
pub enum Blend {
    /// Each becomes `share` times itself and `1 - share` times the other.
    MixUp {
        /// In [0, 1].
        share: f64,
    },
    /// They exchange a rectangle, in pixels.
    #[allow(missing_docs)]
    CutMix { x: usize, y: usize, width: usize, height: usize },
}

/// What a user asks for: one operation is chosen for each batch, all with equal weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixing(Vec<Op>);

/// An operation, whose shares are drawn from Beta(alpha, alpha).
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(tag = "op")]
enum Op {
    MixUp { alpha: f64 },
    CutMix { alpha: f64 },
}

impl Mixing {
    /// Reads the operations from JSON.
    ///
    /// # Errors
    /// What is wrong.
    pub fn new(json: &str) -> Result<Self, String> {
        let operations: Vec<Op> = serde_json::from_str(json).map_err(|error| error.to_string())?;
        for &(Op::MixUp { alpha } | Op::CutMix { alpha }) in &operations {
            if !(1e-6..=1e6).contains(&alpha) {
                return Err(format!("alpha is from 1e-6 to 1e6, not {alpha}"));
            }
        }
        if operations.is_empty() {
            return Err("there is no operation".to_owned());
        }
        Ok(Self(operations))
    }

    /// Decides what is done to the pairs of a batch, and the share that each record keeps of its label.
    /// `position` is that of the batch's first record, `size` the images' width and height.
    pub fn draw(&self, seed: u64, epoch: u64, position: u64, size: (usize, usize)) -> (Blend, f64) {
        let base = Random::new(seed, epoch, position);
        let random = |name| base.keyed_by(Random::key(&[hash(name)]));
        let chosen = random("Mixing").below(self.0.len() as u32) as usize;
        match self.0[chosen] {
            Op::MixUp { alpha } => {
                let share = beta(alpha, &mut random("MixUp"));
                (Blend::MixUp { share }, share)
            }
            Op::CutMix { alpha } => cut_mix(alpha, size, &mut random("CutMix")),
        }
    }
}

/// Draws a rectangle around a uniform centre, and cuts off what is outside the image.
fn cut_mix(alpha: f64, (width, height): (usize, usize), random: &mut Random) -> (Blend, f64) {
    let radius = 0.5 * (1.0 - beta(alpha, random)).sqrt();
    let mut span = |side: usize| {
        let (centre, half) = (random.below(side as u32) as usize, (radius * side as f64) as usize);
        let start = centre.saturating_sub(half);
        (start, (centre + half).min(side) - start)
    };
    let ((x, across), (y, down)) = (span(width), span(height));
    let share = 1.0 - (across * down) as f64 / (width * height) as f64;
    (Blend::CutMix { x, y, width: across, height: down }, share)
}

impl Blend {
    /// Changes the values of two images of one size, (width, height), with any number of channels: one
    /// after the other if `planar`.
    ///
    /// # Panics
    /// If the rectangle or the images do not fit the size.
    pub fn apply(&self, dtype: FloatType, planar: bool, size: (usize, usize), first: &mut [u8], second: &mut [u8]) {
        let channel = dtype.size() * size.0 * size.1;
        let fits = first.len() == second.len() && first.len().is_multiple_of(channel.max(1));
        assert!(fits, "images of {} and {} bytes of size {size:?}", first.len(), second.len());
        let channels = first.len() / channel.max(1);
        let (pixel, planes) = if planar { (dtype.size(), channels) } else { (channels * dtype.size(), 1) };
        match *self {
            Self::MixUp { share } => {
                let shares = (share as f32, (1.0 - share) as f32);
                match dtype {
                    FloatType::Float32 => mix_float32(first, second, shares),
                    FloatType::Float16 => mix_float16(first, second, shares),
                    FloatType::Bfloat16 => mix_bfloat16(first, second, shares),
                }
            }
            Self::CutMix { x, y, width, height } => {
                for plane in 0..planes {
                    for row in y..y + height {
                        let start = pixel * ((plane * size.1 + row) * size.0 + x);
                        let part = start..start + pixel * width;
                        first[part.clone()].swap_with_slice(&mut second[part]);
                    }
                }
            }
        }
    }
}

/// Blends two values, as torch does: it rounds each product and the sum.
#[inline(always)]
fn both(one: f32, other: f32, (share, rest): (f32, f32)) -> [f32; 2] {
    [one * share + other * rest, other * share + one * rest]
}

/// Blends values that `read` and `write` convert, in one pass over both images.
#[inline(always)]
fn mix<const SIZE: usize>(
    first: &mut [u8],
    second: &mut [u8],
    shares: (f32, f32),
    read: impl Fn([u8; SIZE]) -> f32,
    write: impl Fn(f32) -> [u8; SIZE],
) {
    for (one, other) in first.as_chunks_mut().0.iter_mut().zip(second.as_chunks_mut().0) {
        [*one, *other] = both(read(*one), read(*other), shares).map(&write);
    }
}

vectorized! {
    fn mix_float32(first: &mut [u8], second: &mut [u8], shares: (f32, f32)) {
        mix(first, second, shares, f32::from_le_bytes, f32::to_le_bytes);
    }

    fn mix_bfloat16(first: &mut [u8], second: &mut [u8], shares: (f32, f32)) {
        let read = |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
        mix(first, second, shares, read, bfloat16_of);
    }
}

fn mix_float16(first: &mut [u8], second: &mut [u8], shares: (f32, f32)) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") && is_x86_feature_detected!("avx") {
        // SAFETY: only the instructions make the function unsafe, and the processor supports them.
        #[allow(unsafe_code)]
        return unsafe { mix_float16_by_instruction(first, second, shares) };
    }
    mix_float16_portably(first, second, shares);
}

fn mix_float16_portably(first: &mut [u8], second: &mut [u8], shares: (f32, f32)) {
    let read = |bytes| half::f16::from_le_bytes(bytes).to_f32_const();
    mix(first, second, shares, read, |value| half::f16::from_f32_const(value).to_le_bytes());
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
fn mix_float16_by_instruction(first: &mut [u8], second: &mut [u8], shares: (f32, f32)) {
    use std::arch::x86_64::{_mm256_add_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_mul_ps, _mm256_set1_ps};

    let (share, rest) = (_mm256_set1_ps(shares.0), _mm256_set1_ps(shares.1));
    let ((ones, rest_of_first), (others, rest_of_second)) = (first.as_chunks_mut(), second.as_chunks_mut());
    for (one, other) in ones.iter_mut().zip(others) {
        let (a, b) = (_mm256_cvtph_ps(bytemuck::must_cast(*one)), _mm256_cvtph_ps(bytemuck::must_cast(*other)));
        let mixed = |a, b| _mm256_cvtps_ph::<0>(_mm256_add_ps(_mm256_mul_ps(a, share), _mm256_mul_ps(b, rest)));
        let made: [[u8; 16]; 2] = [bytemuck::must_cast(mixed(a, b)), bytemuck::must_cast(mixed(b, a))];
        [*one, *other] = made;
    }
    mix_float16_portably(rest_of_first, rest_of_second, shares);
}

#[cfg(test)]
#[allow(clippy::float_cmp)] // exactly
mod tests {
    use super::*;

    /// Returns all values of float16, in two orders.
    fn halves() -> [Vec<u8>; 2] {
        let order = |step: u16| (0..=u16::MAX).flat_map(move |at| at.wrapping_mul(step).to_le_bytes()).collect();
        [order(1), order(40_503)]
    }

    fn is_nan(bytes: [u8; 2]) -> bool {
        half::f16::from_le_bytes(bytes).is_nan()
    }

    #[test]
    fn float16_is_mixed_to_the_same_bits_with_and_without_instructions() {
        for share in [0.0, 0.3, 0.5, 0.999, 1.0] {
            let shares = (share, 1.0 - share);
            let ([mut a, mut b], [mut c, mut d]) = (halves(), halves());
            mix_float16(&mut a[6..], &mut b[6..], shares);
            mix_float16_portably(&mut c[6..], &mut d[6..], shares);
            for (fast, plain) in [(a, c), (b, d)] {
                let pairs = fast.as_chunks().0.iter().zip(plain.as_chunks().0);
                assert!(pairs.clone().all(|(&fast, &plain)| fast == plain || is_nan(fast) && is_nan(plain)));
            }
        }
    }

    #[test]
    fn a_rectangle_is_exchanged_and_nothing_else() {
        let size = (5, 4);
        let inside = |x: usize, y: usize| (1..4).contains(&x) && (2..4).contains(&y);
        let blend = Blend::CutMix { x: 1, y: 2, width: 3, height: 2 };
        for (dtype, planar) in [(FloatType::Float32, false), (FloatType::Float16, true), (FloatType::Bfloat16, false)] {
            let length = 3 * 20 * dtype.size();
            let (mut first, mut second) = (vec![1; length], vec![2; length]);
            blend.apply(dtype, planar, size, &mut first, &mut second);
            for at in 0..length {
                let pixel = if planar { at / dtype.size() % 20 } else { at / (3 * dtype.size()) };
                let wanted = if inside(pixel % 5, pixel / 5) { (2, 1) } else { (1, 2) };
                assert_eq!((first[at], second[at]), wanted);
            }
        }
    }

    #[test]
    fn draws_never_change() {
        let mixing = Mixing::new(r#"[{"op": "MixUp", "alpha": 0.2}, {"op": "CutMix", "alpha": 1.0}]"#).unwrap();
        let draw = |position| mixing.draw(42, 7, position, (224, 160));
        // The last bits of logarithms differ between systems.
        let (Blend::MixUp { share }, same) = draw(256) else { panic!("{:?}", draw(256)) };
        assert!(share == same && (share - 0.988_569_564).abs() < 1e-9, "{share}");
        let (blend, share) = draw(1280);
        assert_eq!(blend, Blend::CutMix { x: 81, y: 3, width: 143, height: 146 });
        assert!((share - (1.0 - f64::from(143 * 146) / f64::from(224 * 160))).abs() < 1e-9, "{share}");
    }

    #[test]
    fn bad_lists_are_refused() {
        for list in ["", r#"{"op": "MixUp", "alpha": 0}"#, r#"{"op": "CutMix", "alpha": 1e9}"#, r#"{"op": "Mix"}"#] {
            assert!(Mixing::new(&format!("[{list}]")).is_err(), "{list}");
        }
        // A small alpha gives the whole of either record.
        let mixing = Mixing::new(r#"[{"op": "MixUp", "alpha": 1e-6}]"#).unwrap();
        let shares = (0..100).map(|position| mixing.draw(0, 0, position, (1, 1)).1);
        assert!(shares.clone().all(|share| share == 0.0 || share == 1.0), "{:?}", shares.collect::<Vec<_>>());
    }
}
