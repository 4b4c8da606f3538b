//! Operations that map each byte to another one: brightness, contrast, posterize, solarize, invert,
//! autocontrast, equalize.

use super::canvas::Canvas;
use super::grey::{byte, mean_luma};
use super::table;
use super::vector::vectorized;

vectorized! {
    fn blend(pixels: &mut [u8], factor: f32, other: f32, rest: f32) {
        for value in pixels {
            *value = byte(other.mul_add(rest, f32::from(*value) * factor));
        }
    }

    fn mask(pixels: &mut [u8], bits: u8) {
        for value in pixels {
            *value &= bits;
        }
    }

    fn flip_from(pixels: &mut [u8], threshold: u8) {
        for value in pixels {
            *value = if *value >= threshold { !*value } else { *value };
        }
    }

    fn extremes(pixels: &[u8]) -> [[u8; 3]; 2] {
        let (chunks, rest) = pixels.as_chunks::<96>();
        let (mut low, mut high) = ([u8::MAX; 96], [0; 96]);
        for chunk in chunks {
            for at in 0..96 {
                low[at] = low[at].min(chunk[at]);
                high[at] = high[at].max(chunk[at]);
            }
        }
        for (at, &value) in rest.iter().enumerate() {
            (low[at], high[at]) = (low[at].min(value), high[at].max(value));
        }
        let of = |channel: usize, all: &[u8; 96], least: bool| {
            let values = all.iter().skip(channel).step_by(3).copied();
            if least { values.min() } else { values.max() }.unwrap_or(0)
        };
        [[0, 1, 2].map(|channel| of(channel, &low, true)), [0, 1, 2].map(|channel| of(channel, &high, false))]
    }

    fn stretch(pixels: &mut [u8], low: &[f32; 24], scale: &[f32; 24]) {
        let (chunks, rest) = pixels.as_chunks_mut::<24>();
        for chunk in chunks {
            for at in 0..24 {
                chunk[at] = byte((f32::from(chunk[at]) - low[at]) / scale[at]);
            }
        }
        for (at, value) in rest.iter_mut().enumerate() {
            *value = byte((f32::from(*value) - low[at]) / scale[at]);
        }
    }
}

/// Multiplies values.
pub(super) fn brightness(values: &mut [u8], factor: f64) {
    blend(values, factor as f32, 0.0, 0.0);
}

/// Moves all values away from, or towards, the mean luma.
pub(super) fn contrast(canvas: &mut Canvas, factor: f64) {
    let mean = if canvas.is_single() { mean_value(canvas.pixels()) } else { mean_luma(canvas.pixels()) };
    map(canvas.pixels_mut(), |values| blend(values, factor as f32, mean, (1.0 - factor) as f32));
}

/// Returns the mean of all values.
fn mean_value(pixels: &[u8]) -> f32 {
    let sum: u64 = pixels.iter().map(|&value| u64::from(value)).sum();
    sum as f32 / pixels.len() as f32 // as torch computes it
}

/// Keeps the highest bits of values.
pub(super) fn posterize(values: &mut [u8], bits: u32) {
    if bits < 8 {
        mask(values, !(0xFF_u8 >> bits));
    }
}

/// Inverts values from a threshold on.
pub(super) fn solarize(values: &mut [u8], threshold: f64) {
    // torch compares in f32; the least whole number at or above it is the same bound.
    let least = (threshold as f32).ceil();
    if least <= 255.0 {
        flip_from(values, least.max(0.0) as u8);
    }
}

/// Inverts values.
pub(super) fn invert(values: &mut [u8]) {
    flip_from(values, 0);
}

/// Changes values by `work`, whose result for each depends on nothing else: by a table, where that is faster.
pub(super) fn map(values: &mut [u8], work: impl Fn(&mut [u8])) {
    if table::is_fast() {
        let mut table = table::identity();
        work(&mut table);
        table::map(values, &table);
    } else {
        work(values);
    }
}

/// Stretches each channel to the whole range.
pub(super) fn autocontrast(canvas: &mut Canvas) {
    let [low, high] = extremes(canvas.pixels());
    let (mut from, mut scale) = ([0.0; 24], [1.0; 24]);
    for at in 0..24 {
        let (low, high) = (low[at % 3], high[at % 3]);
        if low != high {
            (from[at], scale[at]) = (f32::from(low), f32::from(high - low) * (1.0 / 255.0) as f32);
        }
    }
    if table::is_fast() {
        let mut all: [u8; 768] = std::array::from_fn(|at| (at / 3) as u8);
        stretch(&mut all, &from, &scale);
        let tables = std::array::from_fn(|channel| std::array::from_fn(|value| all[3 * value + channel]));
        table::map_channels(canvas.pixels_mut(), &tables);
    } else {
        stretch(canvas.pixels_mut(), &from, &scale);
    }
}

/// Spreads the values of each channel evenly, as Pillow does.
pub(super) fn equalize(canvas: &mut Canvas) {
    let counts = histogram(canvas.pixels());
    let count = (canvas.pixels().len() / 3) as u32;
    let tables = counts.map(|counts| {
        let last = counts.iter().rev().find(|&&count| count > 0).copied().unwrap_or(0);
        let step = (count - last) / 255;
        let mut sum = 0;
        let mut table = table::identity();
        for (value, count) in table.iter_mut().zip(counts) {
            let level: Option<u32> = (sum + step / 2).checked_div(step);
            *value = level.map_or(*value, |level| level.min(255) as u8);
            sum += count;
        }
        table
    });
    table::map_channels(canvas.pixels_mut(), &tables);
}

/// Returns how often each value occurs in each channel.
fn histogram(pixels: &[u8]) -> [[u32; 256]; 3] {
    // Two counts in turns: equal neighbours would wait for each other.
    let mut counts = [[[0_u32; 256]; 3]; 2];
    let [[red, green, blue], [other_red, other_green, other_blue]] = &mut counts;
    let (pairs, rest) = pixels.as_chunks::<6>();
    for &[r, g, b, other_r, other_g, other_b] in pairs {
        red[usize::from(r)] += 1;
        green[usize::from(g)] += 1;
        blue[usize::from(b)] += 1;
        other_red[usize::from(other_r)] += 1;
        other_green[usize::from(other_g)] += 1;
        other_blue[usize::from(other_b)] += 1;
    }
    if let &[r, g, b] = rest {
        red[usize::from(r)] += 1;
        green[usize::from(g)] += 1;
        blue[usize::from(b)] += 1;
    }
    let [mut sum, other] = counts;
    sum.iter_mut().flatten().zip(other.iter().flatten()).for_each(|(sum, other)| *sum += other);
    sum
}
