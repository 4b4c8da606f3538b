//! `ToFloat`: pixels as normalised floats of 32 or 16 bits, channels last or channel by channel.

use serde::Deserialize;

use super::plane::{Pixels, Sample};
use super::planes::read_by_channels;
use super::step::Step;
use super::vector::vectorized;

/// The type of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FloatType {
    /// 32 bits.
    Float32,
    /// IEEE 754 binary16.
    Float16,
    /// The upper half of 32 bits.
    Bfloat16,
}

/// How pixels become floats: `(value / 255 - mean) / std`, for each channel.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ToFloat {
    /// The type of the values.
    pub dtype: FloatType,
    /// The mean of each channel, of 1.
    pub mean: Vec<f64>,
    /// The standard deviation of each channel, of 1, above 0.
    pub std: Vec<f64>,
    /// Whether values lie channel by channel, instead of pixel by pixel.
    pub planar: bool,
}

/// Values that are converted together: of eight pixels.
const GROUP: usize = 24;

/// What a value is multiplied by, and what is added: of eight pixels, or of one channel.
#[derive(Debug, Clone, Copy)]
struct Line {
    factor: [f32; GROUP],
    offset: [f32; GROUP],
}

impl Line {
    #[inline(always)]
    fn at(&self, at: usize, value: u8) -> f32 {
        f32::from(value).mul_add(self.factor[at], self.offset[at])
    }
}

/// Calls `$convert(line, place in a group, value)` for each value, and writes what it returns.
macro_rules! convert {
    ($line:ident, $pixels:ident, $out:ident, $size:literal, $convert:expr) => {
        let (groups, rest) = $pixels.as_chunks::<GROUP>();
        let (outs, rest_out) = $out.as_chunks_mut::<$size>().0.as_chunks_mut::<GROUP>();
        for (group, out) in groups.iter().zip(outs) {
            for at in 0..GROUP {
                out[at] = $convert($line, at, group[at]);
            }
        }
        for (at, (&value, out)) in rest.iter().zip(rest_out).enumerate() {
            *out = $convert($line, at, value);
        }
    };
}

#[inline(always)]
fn float32(line: &Line, at: usize, value: u8) -> [u8; 4] {
    line.at(at, value).to_le_bytes()
}

#[inline(always)]
fn float16(line: &Line, at: usize, value: u8) -> [u8; 2] {
    half::f16::from_f32_const(line.at(at, value)).to_le_bytes()
}

#[inline(always)]
fn bfloat16(line: &Line, at: usize, value: u8) -> [u8; 2] {
    bfloat16_of(line.at(at, value))
}

/// Rounds to the nearest, ties to even.
#[inline(always)]
pub(super) fn bfloat16_of(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    ((bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16) as u16).to_le_bytes()
}

vectorized! {
    fn to_float32(line: &Line, pixels: &[u8], out: &mut [u8]) {
        convert!(line, pixels, out, 4, float32);
    }

    fn to_bfloat16(line: &Line, pixels: &[u8], out: &mut [u8]) {
        convert!(line, pixels, out, 2, bfloat16);
    }
}

fn to_float16(line: &Line, pixels: &[u8], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2") {
        // SAFETY: only the instructions make the function unsafe, and the processor supports them.
        #[allow(unsafe_code)]
        return unsafe { to_float16_by_instruction(line, pixels, out) };
    }
    convert!(line, pixels, out, 2, float16);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn to_float16_by_instruction(line: &Line, pixels: &[u8], out: &mut [u8]) {
    use std::arch::x86_64::{
        __m256, _mm_cvtsi64_si128, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtps_ph, _mm256_fmadd_ps,
    };

    let each = |values: &[f32; GROUP]| -> [__m256; 3] { bytemuck::must_cast(*values) };
    let (factor, offset) = (each(&line.factor), each(&line.offset));
    let (groups, rest) = pixels.as_chunks::<GROUP>();
    let (outs, rest_out) = out.as_chunks_mut::<{ 2 * GROUP }>();
    for (group, out) in groups.iter().zip(outs) {
        for (at, (eight, out)) in group.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<16>().0).enumerate() {
            let bytes = _mm_cvtsi64_si128(i64::from_le_bytes(*eight));
            let values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
            *out = bytemuck::must_cast(_mm256_cvtps_ph::<0>(_mm256_fmadd_ps(values, factor[at], offset[at])));
        }
    }
    convert!(line, rest, rest_out, 2, float16);
}

impl FloatType {
    /// Returns the bytes of a value.
    pub fn size(self) -> usize {
        if self == Self::Float32 { 4 } else { 2 }
    }

    /// Writes one value.
    fn write_one(self, value: f32, out: &mut [u8]) {
        match self {
            Self::Float32 => out.copy_from_slice(&value.to_le_bytes()),
            Self::Float16 => out.copy_from_slice(&half::f16::from_f32_const(value).to_le_bytes()),
            Self::Bfloat16 => out.copy_from_slice(&bfloat16_of(value)),
        }
    }

    fn write(self, line: &Line, pixels: &[u8], out: &mut [u8]) {
        match self {
            Self::Float32 => to_float32(line, pixels, out),
            Self::Float16 => to_float16(line, pixels, out),
            Self::Bfloat16 => to_bfloat16(line, pixels, out),
        }
    }
}

impl ToFloat {
    /// Writes the values of RGB pixels. `out` has room for all of them.
    pub fn write(&self, pixels: &[u8], out: &mut [u8]) {
        if !self.planar {
            return self.dtype.write(&self.line(|at| at % 3), pixels, out);
        }
        let lines = [0, 1, 2].map(|channel| self.line(|_| channel));
        let mut planes = out.chunks_mut((pixels.len() / 3 * self.dtype.size()).max(1));
        let mut planes: [&mut [u8]; 3] = std::array::from_fn(|_| planes.next().unwrap_or_default());
        let mut done = 0;
        read_by_channels(pixels, |red, green, blue| {
            for ((plane, line), values) in planes.iter_mut().zip(&lines).zip([red, green, blue]) {
                self.dtype.write(line, values, &mut plane[done..done + values.len() * self.dtype.size()]);
            }
            done += red.len() * self.dtype.size();
        });
    }

    /// Returns the factors and offsets of values; `channel` returns the channel of each.
    fn line(&self, channel: impl Fn(usize) -> usize) -> Line {
        let each = |of: &dyn Fn(usize) -> f64| std::array::from_fn(|at| of(channel(at)) as f32);
        Line { factor: each(&|at| 1.0 / (255.0 * self.std[at])), offset: each(&|at| -self.mean[at] / self.std[at]) }
    }

    /// Writes the values of images of one channel.
    pub fn write_grey(&self, pixels: &[u8], out: &mut [u8]) {
        self.dtype.write(&self.line(|_| 0), pixels, out);
    }

    /// Writes the values of pixels of any type, one by one; `unit` is what 1 is there.
    pub fn write_plane(&self, plane: &Pixels<'_>, out: &mut [u8]) {
        let (bytes, channels, size) = (plane.sample.size(), self.mean.len(), self.dtype.size());
        let count = plane.bytes.len() / plane.pixel;
        let unit = plane.sample.unit();
        for (at, value) in plane.bytes.chunks_exact(bytes).enumerate() {
            let channel = at % channels;
            let value = (f64::from(Sample::read(value)) / unit - self.mean[channel]) / self.std[channel];
            let at = if self.planar { channel * count + at / channels } else { at };
            self.dtype.write_one(value as f32, &mut out[at * size..][..size]);
        }
    }

    /// Applies a step to converted values of an image of that width: only parts can be erased.
    pub fn apply(&self, step: &Step, (image_width, image_height): (usize, usize), out: &mut [u8]) {
        let &Step::Erase { x, y, width, height, value } = step else { return };
        let (size, channels) = (self.dtype.size(), self.mean.len());
        let one: Vec<u8> = (0..channels)
            .flat_map(|channel| {
                let mut bytes = [0; 4];
                self.dtype.write_one(value[channel.min(2)] as f32, &mut bytes[..size]);
                bytes.into_iter().take(size)
            })
            .collect();
        for row in y..y + height {
            let start = row * image_width + x;
            if !self.planar {
                let out = &mut out[start * one.len()..(start + width) * one.len()];
                out.chunks_exact_mut(one.len()).for_each(|out| out.copy_from_slice(&one));
                continue;
            }
            for (channel, one) in one.chunks_exact(size).enumerate() {
                let start = channel * image_width * image_height + start;
                let out = &mut out[start * size..(start + width) * size];
                out.chunks_exact_mut(size).for_each(|out| out.copy_from_slice(one));
            }
        }
    }
}
