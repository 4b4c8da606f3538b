//! `blur`: a Gaussian blur in two passes, down and across. Borders are mirrored without their last pixel.
//!
//! Up to `MOST` pixels to each side, values between the passes have 7 bits behind the point, in 16 bits: twice as
//! many fit into a register as of f32. The errors stay below half of a value. Wider kernels are blended in f32.

use super::canvas::Canvas;
use super::grey::byte;
use super::vector::vectorized;

/// Values that are computed together.
const LANES: usize = 32;

vectorized! {
    /// Blends `2 * r + 1` rows of one length with `r + 1` weights: of the middle one, then outwards.
    fn down(rows: &[&[u8]], weights: &[f32], out: &mut [f32]) {
        let reach = weights.len() - 1;
        for start in starts(out.len()) {
            let mut sums = [0.0; LANES];
            for (distance, &weight) in weights.iter().enumerate() {
                let above: &[u8; LANES] = lanes(rows[reach - distance], start);
                let below: &[u8; LANES] = lanes(rows[reach + distance], start);
                for lane in 0..LANES {
                    let both = f32::from(u16::from(above[lane]) + u16::from(below[lane]));
                    sums[lane] = both.mul_add(weight, sums[lane]);
                }
            }
            if let Some(out) = out[start..].first_chunk_mut() {
                *out = sums;
            }
        }
    }

    /// Blends each pixel of a padded row with those beside it.
    fn across(padded: &[f32], weights: &[f32], out: &mut [u8]) {
        let reach = 3 * (weights.len() - 1);
        for start in starts(out.len()) {
            let mut sums = [0.0; LANES];
            for (distance, &weight) in weights.iter().enumerate() {
                let left: &[f32; LANES] = lanes(padded, start + reach - 3 * distance);
                let right: &[f32; LANES] = lanes(padded, start + reach + 3 * distance);
                for lane in 0..LANES {
                    sums[lane] = (left[lane] + right[lane]).mul_add(weight, sums[lane]);
                }
            }
            if let Some(out) = out[start..].first_chunk_mut::<LANES>() {
                for lane in 0..LANES {
                    out[lane] = byte(sums[lane] + 0.5);
                }
            }
        }
    }
}

/// Values between the passes: `f32`, or in 16 bits.
trait Value: Copy + Default {
    type Weight: Copy;

    /// Returns weights: half of the middle one, then outwards.
    fn weights(exact: &[f64]) -> Vec<Self::Weight>;
    /// Blends rows; see [`down`].
    fn down(rows: &[&[u8]], weights: &[Self::Weight], out: &mut [Self]);
    /// Blends neighbours; see [`across`].
    fn across(padded: &[Self], weights: &[Self::Weight], out: &mut [u8]);
}

impl Value for f32 {
    type Weight = f32;

    fn weights(exact: &[f64]) -> Vec<f32> {
        exact.iter().map(|&weight| weight as f32).collect()
    }

    fn down(rows: &[&[u8]], weights: &[f32], out: &mut [f32]) {
        down(rows, weights, out);
    }

    fn across(padded: &[f32], weights: &[f32], out: &mut [u8]) {
        across(padded, weights, out);
    }
}

impl Value for u16 {
    type Weight = u16;

    fn weights(exact: &[f64]) -> Vec<u16> {
        let mut weights: Vec<u16> = exact.iter().map(|&weight| (weight * 65_536.0).round() as u16).collect();
        // Their sum is a half: the middle one takes what rounding has lost.
        let sum: u16 = weights.iter().fold(0, |sum, &weight| sum.wrapping_add(weight));
        weights[0] = weights[0].wrapping_add(0x8000_u16.wrapping_sub(sum));
        weights
    }

    fn down(rows: &[&[u8]], weights: &[u16], out: &mut [u16]) {
        down_16(rows, weights, out);
    }

    fn across(padded: &[u16], weights: &[u16], out: &mut [u8]) {
        across_16(padded, weights, out);
    }
}

/// The most pixels to each side that are blended in 16 bits.
const MOST: usize = 24;
/// Bits behind the point.
const POINT: u32 = 7;

/// Returns the upper half of a product, rounded down.
#[inline(always)]
fn share(value: u16, weight: u16) -> u16 {
    ((u32::from(value) * u32::from(weight)) >> 16) as u16
}

vectorized! {
    fn down_16(rows: &[&[u8]], weights: &[u16], out: &mut [u16]) {
        let reach = weights.len() - 1;
        for start in starts(out.len()) {
            // Each product loses half of the last bit on average.
            let mut sums = [weights.len() as u16 / 2; LANES];
            for (distance, &weight) in weights.iter().enumerate() {
                let above: &[u8; LANES] = lanes(rows[reach - distance], start);
                let below: &[u8; LANES] = lanes(rows[reach + distance], start);
                for lane in 0..LANES {
                    let both = (u16::from(above[lane]) + u16::from(below[lane])) << POINT;
                    sums[lane] += share(both, weight);
                }
            }
            if let Some(out) = out[start..].first_chunk_mut() {
                *out = sums;
            }
        }
    }

    fn across_16(padded: &[u16], weights: &[u16], out: &mut [u8]) {
        let reach = 3 * (weights.len() - 1);
        for start in starts(out.len()) {
            let mut sums = [weights.len() as u16 / 2 + (1 << (POINT - 1)); LANES];
            for (distance, &weight) in weights.iter().enumerate() {
                let left: &[u16; LANES] = lanes(padded, start + reach - 3 * distance);
                let right: &[u16; LANES] = lanes(padded, start + reach + 3 * distance);
                for lane in 0..LANES {
                    sums[lane] += share(left[lane] + right[lane], weight);
                }
            }
            if let Some(out) = out[start..].first_chunk_mut::<LANES>() {
                for lane in 0..LANES {
                    out[lane] = (sums[lane] >> POINT).min(255) as u8;
                }
            }
        }
    }
}

/// Returns where the groups of a row of that length begin. The last one overlaps the one before it.
#[inline(always)]
fn starts(length: usize) -> impl Iterator<Item = usize> {
    (0..length.div_ceil(LANES)).map(move |at| (at * LANES).min(length - LANES))
}

#[inline(always)]
fn lanes<T>(row: &[T], start: usize) -> &[T; LANES] {
    row[start..].first_chunk().expect("rows have at least that many values")
}

/// Blurs with a kernel of `size` pixels across and down, both odd. Each is at most twice the image's
/// side less one.
pub(super) fn blur(canvas: &mut Canvas, size: (usize, usize), sigma: (f64, f64)) {
    let weights = (weights(size.0, sigma.0), weights(size.1, sigma.1));
    if size.0.max(size.1) / 2 <= MOST {
        blur_in::<u16>(canvas, (&weights.0, &weights.1));
    } else {
        blur_in::<f32>(canvas, (&weights.0, &weights.1));
    }
}

fn blur_in<T: Value>(canvas: &mut Canvas, weights: (&[f64], &[f64])) {
    let (width, height) = canvas.size();
    let (x_weights, y_weights) = (T::weights(weights.0), T::weights(weights.1));
    let (x, y) = (x_weights.len() - 1, y_weights.len() - 1);
    // Rows are at least as long as a group.
    let length = (3 * width).max(LANES);
    let mut padded = vec![T::default(); length + 6 * x];
    let (mut wide, mut last) = (Vec::new(), vec![0; length]);
    canvas.replace(|from, to| {
        let rows_of = if length == 3 * width {
            from
        } else {
            wide.resize(length * height, 0);
            for (from, to) in from.chunks_exact(3 * width).zip(wide.chunks_exact_mut(length)) {
                to[..3 * width].copy_from_slice(from);
            }
            &wide[..]
        };
        let mut rows: Vec<&[u8]> = Vec::with_capacity(2 * y + 1);
        for (line, out) in to.chunks_exact_mut(3 * width).enumerate() {
            rows.clear();
            rows.extend((0..=2 * y).map(|at| &rows_of[length * mirrored(line + at, y, height)..][..length]));
            T::down(&rows, &y_weights, &mut padded[3 * x..][..length]);
            for at in (0..x).chain(width + x..width + 2 * x) {
                let pixel = 3 * (x + mirrored(at, x, width));
                padded.copy_within(pixel..pixel + 3, 3 * at);
            }
            if length == 3 * width {
                T::across(&padded, &x_weights, out);
            } else {
                T::across(&padded, &x_weights, &mut last);
                out.copy_from_slice(&last[..3 * width]);
            }
        }
    });
}

/// Returns the place `at - reach`, mirrored at both ends of `length` places.
fn mirrored(at: usize, reach: usize, length: usize) -> usize {
    let at = at.abs_diff(reach);
    if at < length { at } else { (2 * length - 2).saturating_sub(at) }
}

/// Returns half of the weight of the middle pixel, which is added twice, and then the weights outwards.
fn weights(size: usize, sigma: f64) -> Vec<f64> {
    let exact: Vec<f64> = (0..=size / 2).map(|at| (-0.5 * (at as f64 / sigma).powi(2)).exp()).collect();
    let sum = exact[0] + 2.0 * exact[1..].iter().sum::<f64>();
    let share = |(at, weight): (usize, f64)| weight / sum * if at == 0 { 0.5 } else { 1.0 };
    exact.into_iter().enumerate().map(share).collect()
}
