//! The two passes over one output row, for any processor. The compiler makes vector instructions
//! of the loops.

use super::axis::Axis;
use super::{BLOCK, RowPair};

/// Bytes for which sums fit in registers.
const LANES: usize = 16;

/// Adds up rows, each with its weight, into `line`.
///
/// `stacks` has `weights.len()` pairs of rows for each block of `line`.
pub(super) fn blend(stacks: &[RowPair], weights: &[[i16; 2]], precision: u32, line: &mut [[u8; BLOCK]]) {
    for (stack, out) in stacks.chunks_exact(weights.len()).zip(line) {
        for (at, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut sums = [half(precision); LANES];
            for (pair, weights) in stack.iter().zip(weights) {
                for (row, &weight) in pair.iter().zip(weights) {
                    for (sum, &byte) in sums.iter_mut().zip(&row.as_chunks::<LANES>().0[at]) {
                        *sum += i32::from(byte) * i32::from(weight);
                    }
                }
            }
            *out = sums.map(|sum| clip(sum, precision));
        }
    }
}

/// Resizes `line`, which begins with the first pixel that is needed, into `out`.
pub(super) fn stretch(line: &[u8], axis: &Axis, mirror: bool, wide: &mut Vec<[i16; 4]>, out: &mut [u8]) {
    // With four values for each pixel, one instruction multiplies a pixel by its weight.
    wide.clear();
    wide.extend(line.as_chunks::<3>().0.iter().map(|&[r, g, b]| [r, g, b, 0].map(i16::from)));
    let (first, count) = (axis.needed().start, axis.starts.len());
    let pixels = axis.starts.iter().zip(axis.weights.chunks_exact(axis.taps)).enumerate();
    let out = out.as_chunks_mut::<3>().0;
    for (n, (&start, weights)) in pixels {
        let mut sums = [half(axis.precision); 4];
        for (pixel, &weight) in wide[(start - first) as usize..].iter().zip(weights) {
            for (sum, &value) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(value) * i32::from(weight);
            }
        }
        let [r, g, b, _] = sums.map(|sum| clip(sum, axis.precision));
        out[if mirror { count - 1 - n } else { n }] = [r, g, b];
    }
}

/// Half of the last place that a shift by `precision` removes, for rounding.
pub(super) const fn half(precision: u32) -> i32 {
    (1 << precision) >> 1
}

fn clip(sum: i32, precision: u32) -> u8 {
    (sum >> precision).clamp(0, 255).cast_unsigned() as u8
}
