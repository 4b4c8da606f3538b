//! `Warp`: moves pixels by a 3 x 3 matrix, nearest or bilinear: rotation, affine maps, perspective.
//!
//! Coordinates are in f32, as torchvision computes them: of pixel centres, relative to the middle of
//! the image.
#![allow(clippy::many_single_char_names)] // the elements of matrices
#![allow(clippy::needless_bitwise_bool)] // conditions without branches become vectors

use serde::{Deserialize, Serialize};

use super::canvas::Canvas;
use super::grey::byte;
use super::matrix::{self, Matrix};
use super::vector::vectorized;

/// How a pixel between others is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// The nearest pixel.
    #[default]
    Nearest,
    /// A blend of four pixels.
    Bilinear,
}

/// Moves each pixel of the output from its place in the input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warp {
    /// `x' = (m[0] x + m[1] y + m[2]) / (m[6] x + m[7] y + 1)`, and `y'` with `m[3..6]`.
    pub(super) matrix: [f64; 8],
    /// Whether (0, 0) is the middle of the image. Else it is its upper left corner.
    pub(super) centered: bool,
    pub(super) interpolation: Interpolation,
    /// The colour outside the input; `None`: black.
    pub(super) fill: Option<[u8; 3]>,
}

vectorized! {
    /// Computes the places in the input of the pixels of row `y`, in pixels from the first one's centre.
    fn places(matrix: &[f32; 8], start: f32, y: f32, shift: (f32, f32), xs: &mut [f32], ys: &mut [f32]) {
        let [a, b, c, d, e, f, g, h] = *matrix;
        let (of_x, of_y, of_scale) = (b * y + c, e * y + f, h * y + 1.0);
        for (at, (to_x, to_y)) in xs.iter_mut().zip(ys.iter_mut()).enumerate() {
            let x = at as i32 as f32 + start;
            let scale = g * x + of_scale;
            (*to_x, *to_y) = ((a * x + of_x) / scale + shift.0, (d * x + of_y) / scale + shift.1);
        }
    }

    /// Computes the number of the upper left of the four pixels around each place, if they are all inside,
    /// and the weights of the three others.
    fn corners(xs: &[f32], ys: &[f32], size: (f32, f32), numbers: &mut [i32], weights: &mut [[i32; 3]]) {
        let width = size.0 as i32;
        for (((number, weights), &x), &y) in numbers.iter_mut().zip(weights).zip(xs).zip(ys) {
            let (left, top) = (x.floor(), y.floor());
            let (across, down) = ((x - left) * ONE, (y - top) * ONE);
            let both = whole((x - left) * down);
            *weights = [whole(across) - both, whole(down) - both, both];
            let inside = (left >= 0.0) & (left + 1.0 < size.0) & (top >= 0.0) & (top + 1.0 < size.1);
            let at = whole(top).wrapping_mul(width).wrapping_add(whole(left));
            let near = (left >= -1.0) & (left < size.0) & (top >= -1.0) & (top < size.1);
            *number = if inside { at } else if near { BORDER } else { OUTSIDE };
        }
    }

    /// Computes the number of the nearest pixel, or `OUTSIDE`.
    fn nearest(xs: &[f32], ys: &[f32], size: (f32, f32), out: &mut [i32]) {
        let width = size.0 as i32;
        for ((out, &x), &y) in out.iter_mut().zip(xs).zip(ys) {
            let (x, y) = (x.round_ties_even(), y.round_ties_even());
            let inside = (x >= 0.0) & (x < size.0) & (y >= 0.0) & (y < size.1);
            let at = whole(y).wrapping_mul(width).wrapping_add(whole(x));
            *out = if inside { at } else { OUTSIDE };
        }
    }
}

/// Which pixel of the input becomes each pixel of a row of the output.
pub(super) struct Rows {
    matrix: [f32; 8],
    size: (f32, f32),
    /// The centre of the first pixel.
    start: (f32, f32),
    /// What leads from a place in the input to the number of a pixel.
    shift: (f32, f32),
}

impl Rows {
    /// Computes the places of the first pixels of a row, as numbers of pixels of the input.
    pub(super) fn places(&self, line: usize, xs: &mut [f32], ys: &mut [f32]) {
        places(&self.matrix, self.start.0, self.start.1 + line as f32, self.shift, xs, ys);
    }

    /// Computes the numbers of the nearest pixels, or [`OUTSIDE`].
    pub(super) fn nearest(&self, xs: &[f32], ys: &[f32], out: &mut [i32]) {
        nearest(xs, ys, self.size, out);
    }
}

impl Warp {
    /// Returns the same map for an image of another size that shows the same scene.
    #[must_use]
    pub fn scaled(&self, (across, down): (f64, f64)) -> Self {
        let [a, b, c, d, e, f, g, h] = self.matrix;
        let matrix = [a, b * across / down, c * across, d * down / across, e, f * down, g / across, h / down];
        Self { matrix, ..*self }
    }

    /// Returns the matrix that maps a point of the input, of that size, to a point of the output; `None` if
    /// there is none.
    pub fn forward(&self, (width, height): (usize, usize)) -> Option<Matrix> {
        let [a, b, c, d, e, f, g, h] = self.matrix;
        let back = matrix::inverse([[a, b, c], [d, e, f], [g, h, 1.0]])?;
        if !self.centered {
            return Some(back);
        }
        let (x, y) = (width as f64 / 2.0, height as f64 / 2.0);
        Some(matrix::product(matrix::moved(x, y), matrix::product(back, matrix::moved(-x, -y))))
    }

    /// Prepares for an image of that size.
    pub(super) fn rows(&self, (width, height): (usize, usize)) -> Rows {
        let size = (width as f32, height as f32);
        let (start, shift) = if self.centered {
            (((1.0 - size.0) * 0.5, (1.0 - size.1) * 0.5), ((size.0 - 1.0) * 0.5, (size.1 - 1.0) * 0.5))
        } else {
            ((0.5, 0.5), (-0.5, -0.5))
        };
        Rows { matrix: self.matrix.map(|value| value as f32), size, start, shift }
    }

    /// Applies the warp.
    pub(super) fn apply(&self, canvas: &mut Canvas) {
        let (width, height) = canvas.size();
        let rows = self.rows((width, height));
        let (mut xs, mut ys) = (vec![0.0; width], vec![0.0; width]);
        let (mut numbers, mut weights) = (vec![0; width], vec![[0; 3]; width]);
        let outside = self.fill.unwrap_or_default();
        // A translation, or a shear along the rows: neighbours stay neighbours.
        #[allow(clippy::float_cmp)] // exactly
        let run = self.interpolation == Interpolation::Nearest
            && [self.matrix[0], self.matrix[3], self.matrix[6], self.matrix[7]] == [1.0, 0.0, 0.0, 0.0];
        canvas.replace(|from, to| {
            for (line, out) in to.chunks_exact_mut(3 * width).enumerate() {
                let count = if run { 1 } else { width };
                rows.places(line, &mut xs[..count], &mut ys[..count]);
                if run {
                    copy_run(from, (width, height), whole(xs[0]), whole(ys[0]), outside, out);
                    continue;
                }
                match self.interpolation {
                    Interpolation::Nearest => {
                        rows.nearest(&xs, &ys, &mut numbers);
                        gather(from, &numbers, outside, out);
                    }
                    Interpolation::Bilinear => {
                        corners(&xs, &ys, rows.size, &mut numbers, &mut weights);
                        let out = out.as_chunks_mut::<3>().0;
                        for (at, (out, &number)) in out.iter_mut().zip(&numbers).enumerate() {
                            *out = if number == OUTSIDE {
                                outside
                            } else if let Some(pixel) = inside(from, number, 3 * width, weights[at]) {
                                pixel
                            } else {
                                border(from, (width, height), self.fill, xs[at], ys[at])
                            };
                        }
                    }
                }
            }
        });
    }
}

/// Copies pixels that lie side by side, from place (x, y) on.
fn copy_run(from: &[u8], (width, height): (usize, usize), x: i32, y: i32, outside: [u8; 3], out: &mut [u8]) {
    out.as_chunks_mut::<3>().0.fill(outside);
    let (Ok(y), skip) = (usize::try_from(y), (-x).max(0) as usize) else { return };
    let start = x.max(0) as usize;
    if y < height && start < width && skip < width {
        let count = (width - start).min(width - skip);
        let row = &from[3 * width * y..][..3 * width];
        out[3 * skip..3 * (skip + count)].copy_from_slice(&row[3 * start..3 * (start + count)]);
    }
}

/// Copies the pixels of those numbers.
#[inline(never)] // so that its few variables stay in registers
fn gather(from: &[u8], numbers: &[i32], [red, green, blue]: [u8; 3], out: &mut [u8]) {
    let outside = u32::from_le_bytes([red, green, blue, 0]);
    let last = if let &[.., red, green, blue] = from { u32::from_le_bytes([red, green, blue, 0]) } else { outside };
    for (at, &number) in numbers.iter().enumerate() {
        // Four bytes are one instruction. Where three remain, they are the last pixel.
        let four = match from.get((number as usize).wrapping_mul(3)..).and_then(|rest| rest.first_chunk()) {
            Some(four) => u32::from_le_bytes(*four),
            None if number == OUTSIDE => outside,
            None => last,
        };
        // The next pixel overwrites the fourth byte.
        let to = &mut out[3 * at..];
        if let Some(to) = to.first_chunk_mut() {
            *to = four.to_le_bytes();
        } else {
            to.copy_from_slice(&four.to_le_bytes()[..3]);
        }
    }
}

/// Returns a blend of four pixels inside the image, all channels in one multiplication.
#[inline(always)]
fn inside(from: &[u8], number: i32, pitch: usize, weights: [i32; 3]) -> Option<[u8; 3]> {
    let at = usize::try_from(number).ok()? * 3;
    let above = u64::from_le_bytes(*from.get(at..)?.first_chunk()?);
    let below = u64::from_le_bytes(*from.get(at + pitch..)?.first_chunk()?);
    let spread = |pixel: u64| pixel & 0xFF | (pixel & 0xFF00) << (LANE - 8) | (pixel & 0xFF_0000) << (2 * LANE - 16);
    let [b, c, d] = weights.map(|weight| weight as u64);
    let half = 1_u64 << (WEIGHT - 1);
    // Rounding may leave -1 for the first weight: the sum is right modulo 2^64, and no channel falls below 0.
    let a = (1_u64 << WEIGHT).wrapping_sub(b + c + d);
    let sum = (half | half << LANE | half << (2 * LANE))
        .wrapping_add(spread(above).wrapping_mul(a))
        .wrapping_add(spread(above >> 24) * b)
        .wrapping_add(spread(below) * c)
        .wrapping_add(spread(below >> 24) * d);
    Some([sum >> WEIGHT, sum >> (LANE + WEIGHT), sum >> (2 * LANE + WEIGHT)].map(|value| value as u8))
}

/// Returns a blend of the four pixels around a place. Outside the image they are black; a fill
/// replaces as much of the colour as lies outside, as in torchvision.
fn border(from: &[u8], (width, height): (usize, usize), fill: Option<[u8; 3]>, x: f32, y: f32) -> [u8; 3] {
    let from = from.as_chunks::<3>().0;
    let (left, top) = (x.floor(), y.floor());
    let (right, below) = (x - left, y - top);
    let weights = [
        (left, top, (1.0 - right) * (1.0 - below)),
        (left + 1.0, top, right * (1.0 - below)),
        (left, top + 1.0, (1.0 - right) * below),
        (left + 1.0, top + 1.0, right * below),
    ];
    let (mut sums, mut inside) = ([0.0_f32; 3], 0.0);
    for (column, row, weight) in weights {
        if column >= 0.0 && row >= 0.0 && column < width as f32 && row < height as f32 {
            let pixel = from[row as usize * width + column as usize];
            (0..3).for_each(|channel| sums[channel] += f32::from(pixel[channel]) * weight);
            inside += weight;
        }
    }
    if let Some(fill) = fill.filter(|_| inside < 1.0) {
        for (sum, fill) in sums.iter_mut().zip(fill.map(f32::from)) {
            *sum = (*sum - fill) * inside + fill;
        }
    }
    sums.map(|sum| byte(sum.round_ties_even()))
}

/// Returns the nearest whole number, ties to even, of a number below 2^22. Others give a wrong one: a cast
/// would treat them in a way that takes more instructions.
#[inline(always)]
fn whole(value: f32) -> i32 {
    const BASE: f32 = 12_582_912.0; // 1.5 * 2^23
    (value + BASE).to_bits().wrapping_sub(BASE.to_bits()).cast_signed()
}

/// Stand for the number of a pixel where there is none.
pub(super) const OUTSIDE: i32 = -1;
const BORDER: i32 = -2;

/// The bits of a channel in a number that holds a whole pixel, and of a weight.
const LANE: u32 = 21;
const WEIGHT: u32 = LANE - 8;
/// The sum of all weights.
const ONE: f32 = (1 << WEIGHT) as f32;

/// Returns the inverse of a rotation by `angle`, a scale, and shears (all in degrees) around `center`,
/// followed by a translation: the matrix that torchvision's `affine` uses.
pub(super) fn inverse_affine(
    center: (f64, f64),
    angle: f64,
    translate: (f64, f64),
    scale: f64,
    shear: (f64, f64),
) -> [f64; 8] {
    let (rotation, shear_x, shear_y) = (angle.to_radians(), shear.0.to_radians(), shear.1.to_radians());
    let a = (rotation - shear_y).cos() / shear_y.cos();
    let b = -(a * shear_x.tan() + rotation.sin());
    let c = (rotation - shear_y).sin() / shear_y.cos();
    let d = rotation.cos() - c * shear_x.tan();
    let (xx, xy, yx, yy) = (d / scale, -b / scale, -c / scale, a / scale);
    let (moved_x, moved_y) = (center.0 + translate.0, center.1 + translate.1);
    let x = center.0 - xx * moved_x - xy * moved_y;
    let y = center.1 - yx * moved_x - yy * moved_y;
    [xx, xy, x, yx, yy, y, 0.0, 0.0]
}

/// Returns the coefficients that map the `to` corners to the `from` corners, as (x, y), in pixels;
/// `None` if three of them lie on a line.
pub(super) fn perspective(from: [(f64, f64); 4], to: [(f64, f64); 4]) -> Option<[f64; 8]> {
    let mut rows = [[0.0; 9]; 8];
    for (at, ((x, y), (u, v))) in to.into_iter().zip(from).enumerate() {
        rows[2 * at] = [x, y, 1.0, 0.0, 0.0, 0.0, -u * x, -u * y, u];
        rows[2 * at + 1] = [0.0, 0.0, 0.0, x, y, 1.0, -v * x, -v * y, v];
    }
    // Gauss and Jordan, with the largest pivot.
    for column in 0..8 {
        let pivot = (column..8).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        let own = rows[column];
        if own[column].abs() < 1e-12 {
            return None;
        }
        for (_, row) in rows.iter_mut().enumerate().filter(|(at, _)| *at != column) {
            let factor = row[column] / own[column];
            row.iter_mut().zip(own).for_each(|(value, own)| *value -= factor * own);
        }
    }
    Some(std::array::from_fn(|at| rows[at][8] / rows[at][at]))
}
