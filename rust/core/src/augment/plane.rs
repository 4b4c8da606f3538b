//! `Plane`: pixels of any type that only move: masks, arrays, 16-bit images, images with alpha.

use serde::Deserialize;

use super::step::Step;
use super::warp::{OUTSIDE, Warp};

/// The type of a pixel's values, as far as it can be blended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sample {
    /// 8 bits, without a sign.
    Uint8,
    /// 16 bits, without a sign.
    Uint16,
    /// 32 bits, IEEE 754.
    Float32,
    /// Any other: its pixels are copied, never blended.
    #[default]
    Other,
}

impl Sample {
    /// Returns the bytes of a value; 1 for others.
    pub fn size(self) -> usize {
        match self {
            Self::Uint8 | Self::Other => 1,
            Self::Uint16 => 2,
            Self::Float32 => 4,
        }
    }

    /// Returns what 1 is, in these values.
    pub(super) fn unit(self) -> f64 {
        match self {
            Self::Uint8 => 255.0,
            Self::Uint16 => 65_535.0,
            Self::Float32 | Self::Other => 1.0,
        }
    }

    /// Reads a value from its bytes.
    pub(super) fn read(bytes: &[u8]) -> f32 {
        match *bytes {
            [value] => f32::from(value),
            [a, b] => f32::from(u16::from_le_bytes([a, b])),
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            _ => 0.0,
        }
    }

    /// Writes a value, rounded to the nearest if it is an integer.
    fn write(self, value: f32, bytes: &mut [u8]) {
        match self {
            Self::Uint8 | Self::Other => bytes.copy_from_slice(&[value.round_ties_even() as u8]),
            Self::Uint16 => bytes.copy_from_slice(&(value.round_ties_even() as u16).to_le_bytes()),
            Self::Float32 => bytes.copy_from_slice(&value.to_le_bytes()),
        }
    }
}

/// Pixels of some bytes each, row by row, in the computer's byte order.
#[derive(Debug, Default)]
pub struct Plane {
    size: (usize, usize),
    /// Bytes of a pixel.
    pixel: usize,
    sample: Sample,
    pixels: Vec<u8>,
    spare: Vec<u8>,
}

/// A part of an image, and its place in the output; see [`Crop`](crate::image::Crop).
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Left, top, width and height of the part.
    pub part: [f64; 4],
    /// Left, top, width and height of the pixels that may be blended.
    pub bounds: [usize; 4],
    /// Left, top, width and height of its place in the output.
    pub target: [usize; 4],
}

/// Pixels that are cut from.
#[derive(Debug, Clone, Copy)]
pub struct Pixels<'a> {
    /// Width and height.
    pub size: (usize, usize),
    /// Bytes of a pixel.
    pub pixel: usize,
    /// The type of its values.
    pub sample: Sample,
    /// Row by row, without gaps.
    pub bytes: &'a [u8],
}

impl Plane {
    /// Makes an output of that size from a part of `from`: the nearest pixels, or blended with a triangle
    /// as wide as an output pixel. `fill` is the pixel outside the target.
    ///
    /// # Panics
    /// If the part does not lie in the pixels.
    pub fn cut(&mut self, from: Pixels<'_>, cut: &Cut, size: (usize, usize), nearest: bool, fill: &[u8]) {
        let Pixels { pixel, sample, bytes, .. } = from;
        (self.size, self.pixel, self.sample) = (size, pixel, sample);
        let total = size.0 * size.1 * pixel;
        if self.pixels.len() < total {
            self.pixels = vec![0; total];
        }
        let out = &mut self.pixels[..total];
        let [left, top, width, height] = cut.target;
        if (width, height) != size {
            out.chunks_exact_mut(pixel).for_each(|out| out.copy_from_slice(fill));
        }
        if width == 0 || height == 0 {
            return;
        }
        let pitch = from.size.0 * pixel;
        if nearest {
            // As torch's "nearest": the pixel under the output pixel's corner.
            let places = |start: f64, length: f64, count: usize, low: usize, side: usize| -> Vec<usize> {
                let scale = length / count as f64;
                let at = |at: usize| (start + at as f64 * scale + 1e-7).max(0.0) as usize;
                (0..count).map(|place| at(place).clamp(low, low + side - 1)).collect()
            };
            let columns = places(cut.part[0], cut.part[2], width, cut.bounds[0], cut.bounds[2]);
            let rows = places(cut.part[1], cut.part[3], height, cut.bounds[1], cut.bounds[3]);
            for (row, out) in rows.iter().zip(out.chunks_exact_mut(size.0 * pixel).skip(top)) {
                let from = &bytes[row * pitch..][..pitch];
                gather(from, pixel, columns.iter().copied(), &mut out[left * pixel..]);
            }
            return;
        }
        let columns = weights(cut.part[0], cut.part[2], width, cut.bounds[0], cut.bounds[2]);
        let rows = weights(cut.part[1], cut.part[3], height, cut.bounds[1], cut.bounds[3]);
        let (bytes_of, channels) = (sample.size(), pixel / sample.size());
        let mut across = vec![0.0_f32; width * channels];
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(size.0 * pixel).skip(top)) {
            across.fill(0.0);
            for (&down, line) in row.1.iter().zip(bytes[row.0 * pitch..].chunks_exact(pitch)) {
                for (column, sums) in columns.iter().zip(across.chunks_exact_mut(channels)) {
                    let near = line[column.0 * pixel..].chunks_exact(bytes_of);
                    for (at, value) in near.take(column.1.len() * channels).enumerate() {
                        sums[at % channels] += down * column.1[at / channels] * Sample::read(value);
                    }
                }
            }
            for (&value, out) in across.iter().zip(out[left * pixel..].chunks_exact_mut(bytes_of)) {
                sample.write(value, out);
            }
        }
    }

    /// Returns the pixels.
    pub fn pixels(&self) -> Pixels<'_> {
        let Self { size, pixel, sample, .. } = *self;
        Pixels { size, pixel, sample, bytes: &self.pixels[..size.0 * size.1 * pixel] }
    }

    /// Moves the pixels as a step moves those of an image of the same scene, `scale` times smaller along
    /// each axis. Steps that change colours have no effect.
    pub fn follow(&mut self, step: &Step, lead: (usize, usize), nearest: bool, fill: &[u8]) {
        let scale = (self.size.0 as f64 / lead.0 as f64, self.size.1 as f64 / lead.1 as f64);
        let (width, pixel) = (self.size.0, self.pixel);
        match step {
            Step::HorizontalFlip => self.replace(|from, to| {
                for (from, to) in from.chunks_exact(width * pixel).zip(to.chunks_exact_mut(width * pixel)) {
                    gather(from, pixel, (0..width).rev(), to);
                }
            }),
            Step::VerticalFlip => self.replace(|from, to| {
                let rows = from.chunks_exact(width * pixel).rev();
                rows.zip(to.chunks_exact_mut(width * pixel)).for_each(|(from, to)| to.copy_from_slice(from));
            }),
            _ => {
                if let Some(warp) = step.warp(lead) {
                    self.warp(&warp.scaled(scale), nearest, fill);
                }
            }
        }
    }

    fn replace(&mut self, work: impl FnOnce(&[u8], &mut [u8])) {
        let total = self.size.0 * self.size.1 * self.pixel;
        if self.spare.len() < total {
            self.spare = vec![0; total];
        }
        work(&self.pixels[..total], &mut self.spare[..total]);
        std::mem::swap(&mut self.pixels, &mut self.spare);
    }

    fn warp(&mut self, warp: &Warp, nearest: bool, fill: &[u8]) {
        let ((width, height), pixel, sample) = (self.size, self.pixel, self.sample);
        let rows = warp.rows(self.size);
        let (mut xs, mut ys, mut numbers) = (vec![0.0; width], vec![0.0; width], vec![0; width]);
        self.replace(|from, to| {
            for (line, out) in to.chunks_exact_mut(width * pixel).enumerate() {
                rows.places(line, &mut xs, &mut ys);
                if nearest {
                    rows.nearest(&xs, &ys, &mut numbers);
                    for (&number, out) in numbers.iter().zip(out.chunks_exact_mut(pixel)) {
                        let at = if number == OUTSIDE { None } else { from.get(number as usize * pixel..) };
                        out.copy_from_slice(at.map_or(fill, |from| &from[..pixel]));
                    }
                    continue;
                }
                for ((&x, &y), out) in xs.iter().zip(&ys).zip(out.chunks_exact_mut(pixel)) {
                    blend(from, (width, height), sample, (x, y), fill, out);
                }
            }
        });
    }
}

/// Copies the pixels of a row that have those numbers.
fn gather(from: &[u8], pixel: usize, numbers: impl Iterator<Item = usize>, to: &mut [u8]) {
    /// With a size that is known, a copy is one instruction.
    fn sized<const N: usize>(from: &[u8], numbers: impl Iterator<Item = usize>, to: &mut [u8]) {
        let from = from.as_chunks::<N>().0;
        to.as_chunks_mut::<N>().0.iter_mut().zip(numbers).for_each(|(to, number)| *to = from[number]);
    }
    match pixel {
        1 => sized::<1>(from, numbers, to),
        2 => sized::<2>(from, numbers, to),
        4 => sized::<4>(from, numbers, to),
        8 => sized::<8>(from, numbers, to),
        _ => to.chunks_exact_mut(pixel).zip(numbers).for_each(|(to, number)| {
            to.copy_from_slice(&from[number * pixel..][..pixel]);
        }),
    }
}

/// Writes a blend of the four pixels around a place; `fill` is outside.
fn blend(
    from: &[u8],
    (width, height): (usize, usize),
    sample: Sample,
    (x, y): (f32, f32),
    fill: &[u8],
    out: &mut [u8],
) {
    let (left, top) = (x.floor(), y.floor());
    let (right, below) = (x - left, y - top);
    let four = [
        (left, top, (1.0 - right) * (1.0 - below)),
        (left + 1.0, top, right * (1.0 - below)),
        (left, top + 1.0, (1.0 - right) * below),
        (left + 1.0, top + 1.0, right * below),
    ];
    let (size, pixel) = (sample.size(), out.len());
    for (at, out) in out.chunks_exact_mut(size).enumerate() {
        let sum: f32 = four
            .iter()
            .map(|&(column, row, weight)| {
                let inside = column >= 0.0 && row >= 0.0 && column < width as f32 && row < height as f32;
                let start = if inside { (row as usize * width + column as usize) * pixel } else { 0 };
                weight * Sample::read(&(if inside { &from[start..] } else { fill })[at * size..][..size])
            })
            .sum();
        sample.write(sum, out);
    }
}

/// Returns for each output pixel the first input pixel and the weights of those from it on: a triangle, at
/// least one input pixel to each side.
fn weights(start: f64, length: f64, count: usize, low: usize, side: usize) -> Vec<(usize, Vec<f32>)> {
    let scale = length / count as f64;
    let reach = scale.max(1.0);
    (0..count)
        .map(|at| {
            let middle = start + (at as f64 + 0.5) * scale;
            let from = ((middle - reach + 0.5).max(0.0) as usize).clamp(low, low + side - 1);
            let end = ((middle + reach + 0.5).max(0.0) as usize).clamp(from + 1, low + side);
            let weight = |at: usize| (1.0 - ((at as f64 - middle + 0.5) / reach).abs()).max(0.0);
            let sum: f64 = (from..end).map(weight).sum();
            let even = 1.0 / (end - from) as f64;
            (from, (from..end).map(|at| if sum > 0.0 { weight(at) / sum } else { even } as f32).collect())
        })
        .collect()
}
