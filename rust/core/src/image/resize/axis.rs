//! `Axis`: which source pixels make up each output pixel along one axis, and with which weights.

use std::f64::consts::PI;
use std::ops::Range;

use super::Filter;

/// A sum of 8-bit values times weights, in 32 bits, leaves this much for the weights: 8 bits are
/// for the value, and 2 because the weights of a filter may add up to more than 1.
const MAX_PRECISION: u32 = 32 - 8 - 2;

/// The weights along one axis as 16-bit integers. Recomputed only if the geometry changes.
#[derive(Debug, Default)]
pub(super) struct Axis {
    geometry: Option<Stretch>,
    /// The first source pixel of each output pixel.
    pub(super) starts: Vec<u32>,
    /// The number of source pixels of each output pixel, at least 1 and at most `taps`.
    pub(super) lengths: Vec<u32>,
    /// `taps` weights for each output pixel. Those past its length are zero.
    pub(super) weights: Vec<i16>,
    pub(super) taps: usize,
    /// The weights of an output pixel add up to about `1 << precision`.
    pub(super) precision: u32,
    /// Weights before they are rounded: for each tap, the weights of all output pixels.
    exact: Vec<f64>,
    rounded: Vec<i16>,
    ends: Vec<u32>,
    centers: Vec<f64>,
    sums: Vec<f64>,
}

/// A part of a line of pixels, stretched or shrunk to another number of pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stretch {
    pub(super) filter: Filter,
    /// The number of source pixels that the filter may read.
    pub(super) source: u32,
    /// The part of them that fills the target.
    pub(super) start: f64,
    pub(super) length: f64,
    pub(super) target: u32,
}

impl Axis {
    /// Computes the weights, and returns whether they have changed.
    pub(super) fn prepare(&mut self, stretch: Stretch) -> bool {
        if self.geometry == Some(stretch) {
            return false;
        }
        self.geometry = Some(stretch);
        #[allow(clippy::float_cmp)] // whole numbers are exact
        let unscaled = f64::from(stretch.target) == stretch.length && stretch.start.fract() == 0.0;
        if unscaled {
            self.copy(stretch);
        } else {
            match stretch.filter {
                Filter::Bilinear => self.weigh(stretch, |x| (1.0 - x.abs()).max(0.0)),
                Filter::Bicubic => self.weigh(stretch, cubic),
                Filter::Lanczos => self.weigh(stretch, lanczos),
                Filter::Box => self.weigh(stretch, |x| if x > -0.5 && x <= 0.5 { 1.0 } else { 0.0 }),
            }
        }
        true
    }

    /// Returns the source pixels that have a weight in any output pixel.
    pub(super) fn needed(&self) -> Range<u32> {
        let ends = self.starts.iter().zip(&self.lengths).map(|(start, length)| start + length);
        self.starts.iter().copied().min().unwrap_or(0)..ends.max().unwrap_or(0)
    }

    /// Returns the end of an output pixel's source pixels.
    pub(super) fn end(&self, n: usize) -> Option<u32> {
        Some(self.starts.get(n)? + self.lengths.get(n)?)
    }

    /// Returns the weights of an output pixel.
    pub(super) fn weights_of(&self, n: usize) -> &[i16] {
        &self.weights[n * self.taps..][..self.lengths[n] as usize]
    }

    /// One source pixel per output pixel.
    #[allow(clippy::cast_sign_loss)] // not negative
    fn copy(&mut self, stretch: Stretch) {
        let start = stretch.start as u32;
        self.precision = 14;
        self.taps = 1;
        self.starts.clear();
        self.starts.extend(start..start + stretch.target);
        refill(&mut self.lengths, stretch.target as usize, 1);
        refill(&mut self.weights, stretch.target as usize, 1 << 14);
    }

    #[allow(clippy::cast_sign_loss)] // not negative
    fn weigh(&mut self, stretch: Stretch, filter: impl Fn(f64) -> f64) {
        let Stretch { source, start, target, .. } = stretch;
        let count = target as usize;
        // The end is rounded; the scale uses it as rounded.
        let end = start + stretch.length;
        let scale = (end - start) / f64::from(target);
        let stretched = scale.max(1.0);
        let (radius, shrink) = (stretch.filter.support() * stretched, 1.0 / stretched);

        self.starts.clear();
        self.ends.clear();
        self.centers.clear();
        let mut window = 0;
        for n in 0..target {
            let center = start + (f64::from(n) + 0.5) * scale;
            let from = (center - radius) as u32;
            let to = center + radius;
            let whole = to as u32;
            let to = (whole + u32::from(f64::from(whole) < to)).min(source);
            window = window.max(to.saturating_sub(from));
            self.starts.push(from);
            self.ends.push(to);
            self.centers.push(center - 0.5);
        }

        refill(&mut self.sums, count, 0.0);
        refill(&mut self.exact, count * window as usize, 0.0);
        for (tap, weights) in (0..window).zip(self.exact.chunks_exact_mut(count)) {
            let pixels = self.starts.iter().zip(&self.ends).zip(&self.centers).zip(weights).zip(&mut self.sums);
            for ((((&from, &end), &center), weight), sum) in pixels {
                let at = from + tap;
                let w = filter((f64::from(at.cast_signed()) - center) * shrink);
                *weight = if at < end { w } else { 0.0 };
                *sum += *weight;
            }
        }
        for sum in &mut self.sums {
            *sum = if *sum == 0.0 { 1.0 } else { *sum };
        }
        let mut largest = [0.0_f64; 8];
        for weights in self.exact.chunks_exact_mut(count) {
            for (weight, sum) in weights.iter_mut().zip(&self.sums) {
                *weight /= sum;
            }
            for part in weights.chunks(8) {
                for (largest, &weight) in largest.iter_mut().zip(part) {
                    *largest = if weight > *largest { weight } else { *largest };
                }
            }
        }
        self.round(window as usize, largest.into_iter().fold(0.0, f64::max));
    }

    /// Rounds the weights with the highest precision that keeps the largest one within 16 bits.
    fn round(&mut self, window: usize, largest: f64) {
        let overflows = |precision: &u32| rounded(largest * f64::from(2_u32 << precision)) >= 1 << 15;
        self.precision = (0..MAX_PRECISION).find(overflows).unwrap_or(MAX_PRECISION - 1);
        let one = f64::from(1_u32 << self.precision);
        self.rounded.clear();
        self.rounded.extend(self.exact.iter().map(|weight| rounded(weight * one) as i16));

        // Skip zeros at both ends.
        let count = self.starts.len();
        refill(&mut self.lengths, count, 0);
        let firsts = &mut self.ends;
        firsts.fill(window as u32);
        for (tap, weights) in (0..).zip(self.rounded.chunks_exact(count)) {
            for ((&weight, length), first) in weights.iter().zip(&mut self.lengths).zip(&mut *firsts) {
                *length = if weight == 0 { *length } else { tap + 1 };
                *first = (*first).min(if weight == 0 { window as u32 } else { tap });
            }
        }
        for ((length, first), start) in self.lengths.iter_mut().zip(&mut *firsts).zip(&mut self.starts) {
            *first = if *length == 0 { 0 } else { *first };
            *length = (*length - *first).max(1);
            *start += *first;
        }
        self.taps = self.lengths.iter().copied().max().unwrap_or(1) as usize;
        self.weights.clear();
        for (n, (&first, &length)) in firsts.iter().zip(&self.lengths).enumerate() {
            let weights = (0..self.taps).map(|tap| {
                let at = (first as usize + tap) * count + n;
                if tap < length as usize { self.rounded.get(at).copied().unwrap_or(0) } else { 0 }
            });
            self.weights.extend(weights);
        }
    }
}

/// Makes all items of a vector equal, and keeps its memory.
pub(super) fn refill<T: Clone>(items: &mut Vec<T>, count: usize, value: T) {
    items.clear();
    items.resize(count, value);
}

/// Rounds half away from zero, like `f64::round`, which calls a function on older processors.
fn rounded(x: f64) -> i32 {
    const BELOW_HALF: f64 = 0.5_f64.next_down();
    (x + BELOW_HALF.copysign(x)) as i32
}

/// The Catmull-Rom spline.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn lanczos(x: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
    if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}
