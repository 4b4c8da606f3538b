//! The two passes over one output row, with AVX2.
//!
//! The functions with instructions contain no closures: the compiler does not inline a closure into
//! a function of the standard library that may not use these instructions.
#![allow(unsafe_code)] // one call

use std::arch::x86_64::{
    __m128i, __m256i, _mm256_add_epi32, _mm256_castsi128_si256, _mm256_inserti128_si256, _mm256_madd_epi16,
    _mm256_packs_epi32, _mm256_packus_epi16, _mm256_permutevar8x32_epi32, _mm256_set1_epi32, _mm256_setr_epi32,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srav_epi32, _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
};

use bytemuck::must_cast;

use super::axis::Axis;
use super::portable::half;
use super::{BLOCK, RowPair};

/// Output pixels that are computed together, two in a register.
const GROUP: usize = 8;
/// Bytes of a load: five pixels.
const LOAD: usize = 16;
/// Pixels by which the loads of an output pixel are apart.
const STEP: usize = 4;

/// Two output pixels' weights for two source pixels: for each colour, a pair.
type Weights = [i16; 16];

/// The weights across a row, in the order in which the instructions use them.
///
/// An output pixel reads `steps` times four source pixels, and then the rest, 1 to 5 of them. A
/// register holds a pixel of the first half of a group and one of the second half.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Where the source pixels of each output pixel begin, for near ones and for far ones.
    near: Vec<Group<u8>>,
    far: Vec<Group<u16>>,
    /// The weights of the steps: of one group after the other, in it of one step after the other.
    steps: Vec<[[Weights; 2]; GROUP / 2]>,
    /// The weights of the rest: of each register of each group, `pairs` of them.
    rest: Vec<Weights>,
    /// Steps of each output pixel.
    count: usize,
    /// Pairs of source pixels in the rest.
    pairs: usize,
    precision: u32,
}

/// A group of output pixels.
#[derive(Debug)]
struct Group<Offset> {
    /// The first byte in the output row.
    out: usize,
    /// The first byte of the source pixels of all.
    first: usize,
    /// The distance from there to the source pixels of each, in register order.
    offsets: [Offset; GROUP],
}

/// Bytes from the first byte of a group: the offsets that its type can express, and a load.
const NEAR: usize = 256 + LOAD;
const FAR: usize = 65536 + LOAD;

impl Table {
    /// Returns the bytes that a row must have, or `None` if a group takes pixels from too far apart.
    fn prepare(&mut self, axis: &Axis, mirror: bool) -> Option<usize> {
        self.count = axis.taps.saturating_sub(2) / STEP;
        self.pairs = (axis.taps - STEP * self.count).div_ceil(2);
        self.precision = axis.precision;
        self.near.clear();
        self.far.clear();
        self.steps.clear();
        self.rest.clear();
        let (begin, count) = (axis.needed().start, axis.starts.len());
        let mut reach = 0;
        for group in (0..count).step_by(GROUP) {
            // The last group overlaps the one before. A group that is the only one repeats its last pixels.
            let group = group.min(count.saturating_sub(GROUP));
            let pixels: [usize; GROUP] = std::array::from_fn(|n| {
                let n = (group + n / 2 + n % 2 * (GROUP / 2)).min(count - 1);
                if mirror { count - 1 - n } else { n }
            });
            let starts = pixels.map(|n| 3 * (axis.starts[n] - begin));
            let first = starts.into_iter().min()?;
            let offsets = starts.map(|start| start - first);
            if offsets.iter().any(|&offset| offset > u16::MAX.into()) {
                return None;
            }
            self.far.push(Group {
                out: 3 * group,
                first: first as usize,
                offsets: offsets.map(|offset| offset as u16),
            });
            reach = reach.max(first as usize);
            let weights = pixels.map(|n| &axis.weights[n * axis.taps..][..axis.taps]);
            let pair = |register: usize, at: usize| -> Weights {
                let of = |weights: &[i16]| match weights[at..] {
                    [a, b, ..] => [a, b],
                    [a] => [a, 0],
                    [] => [0, 0],
                };
                let [a, b] = [of(weights[2 * register]), of(weights[2 * register + 1])];
                must_cast([[a; 4], [b; 4]])
            };
            for step in 0..self.count {
                let at = STEP * step;
                self.steps.push(std::array::from_fn(|register| [pair(register, at), pair(register, at + 2)]));
            }
            for register in 0..GROUP / 2 {
                self.rest.extend((0..self.pairs).map(|n| pair(register, STEP * self.count + 2 * n)));
            }
        }
        if self.far.iter().flat_map(|group| group.offsets).all(|offset| offset < 256) {
            let near = |group: &Group<u16>| Group {
                out: group.out,
                first: group.first,
                offsets: group.offsets.map(|offset| offset as u8),
            };
            self.near.extend(self.far.iter().map(near));
        }
        Some(reach + 3 * STEP * self.count + if self.near.is_empty() { FAR } else { NEAR })
    }
}

/// The passes with AVX2. The value shows that the processor has it.
#[derive(Debug)]
pub(super) struct Avx2 {
    table: Table,
    reach: usize,
}

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then(|| Self { table: Table::default(), reach: 0 })
    }

    /// Prepares the weights across a row.
    pub(super) fn prepare(&mut self, columns: &Axis, mirror: bool) {
        self.reach = self.table.prepare(columns, mirror).unwrap_or(0);
    }

    /// Returns the bytes that a row must have, or 0 if the weights are not for these instructions.
    pub(super) fn reach(&self) -> usize {
        self.reach
    }

    /// Adds up rows, each times its weight, into `line`, and resizes `line` into `out`.
    pub(super) fn make_row(
        &self,
        stacks: &[RowPair],
        weights: &[[i16; 2]],
        precision: u32,
        line: &mut [[u8; BLOCK]],
        out: &mut [u8],
    ) {
        // SAFETY: only the instructions make the function unsafe. The processor has them, because
        // only `detect` makes an `Avx2`.
        unsafe { make_row(stacks, weights, precision, line, &self.table, out) }
    }
}

#[target_feature(enable = "avx2")]
fn make_row(
    stacks: &[RowPair],
    weights: &[[i16; 2]],
    precision: u32,
    line: &mut [[u8; BLOCK]],
    table: &Table,
    out: &mut [u8],
) {
    match *weights {
        [a] => blend([a], stacks, precision, line),
        [a, b] => blend([a, b], stacks, precision, line),
        [a, b, c] => blend([a, b, c], stacks, precision, line),
        _ => blend_many(weights, stacks, precision, line),
    }
    let line = line.as_flattened();
    let mut group = [0; 3 * GROUP];
    let (few, len) = (out.len() < group.len(), out.len());
    let whole = if few { &mut group[..] } else { &mut *out };
    match (table.near.is_empty(), table.pairs) {
        (false, 1) => stretch::<_, NEAR, 1>(line, table, &table.near, whole),
        (false, 2) => stretch::<_, NEAR, 2>(line, table, &table.near, whole),
        (false, _) => stretch::<_, NEAR, 3>(line, table, &table.near, whole),
        (true, 1) => stretch::<_, FAR, 1>(line, table, &table.far, whole),
        (true, 2) => stretch::<_, FAR, 2>(line, table, &table.far, whole),
        (true, _) => stretch::<_, FAR, 3>(line, table, &table.far, whole),
    }
    if few {
        out.copy_from_slice(&group[..len]);
    }
}

/// Blends a fixed number of pairs of rows.
#[inline]
#[target_feature(enable = "avx2")]
fn blend<const PAIRS: usize>(weights: [[i16; 2]; PAIRS], stacks: &[RowPair], precision: u32, line: &mut [[u8; BLOCK]]) {
    let mut factors = [_mm256_setzero_si256(); PAIRS];
    for (factor, weights) in factors.iter_mut().zip(weights) {
        *factor = _mm256_set1_epi32(must_cast(weights));
    }
    let (start, shift) = (_mm256_set1_epi32(half(precision)), _mm256_set1_epi32(precision.cast_signed()));
    for (stack, out) in stacks.as_chunks::<PAIRS>().0.iter().zip(line) {
        let mut sums = [[start; 4]; 2];
        for (pair, &factor) in stack.iter().zip(&factors) {
            add_rows(&mut sums, pair, factor);
        }
        *out = must_cast([narrow(sums[0], shift), narrow(sums[1], shift)]);
    }
}

/// Blends any number of pairs of rows.
#[inline]
#[target_feature(enable = "avx2")]
fn blend_many(weights: &[[i16; 2]], stacks: &[RowPair], precision: u32, line: &mut [[u8; BLOCK]]) {
    let (start, shift) = (_mm256_set1_epi32(half(precision)), _mm256_set1_epi32(precision.cast_signed()));
    for (stack, out) in stacks.chunks_exact(weights.len()).zip(line) {
        let mut sums = [[start; 4]; 2];
        for (pair, &weights) in stack.iter().zip(weights) {
            add_rows(&mut sums, pair, _mm256_set1_epi32(must_cast(weights)));
        }
        *out = must_cast([narrow(sums[0], shift), narrow(sums[1], shift)]);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_rows(sums: &mut [[__m256i; 4]; 2], pair: &RowPair, weights: __m256i) {
    let zero = _mm256_setzero_si256();
    let pair: [[__m256i; 2]; 2] = must_cast(*pair);
    for (n, sums) in sums.iter_mut().enumerate() {
        let low = _mm256_unpacklo_epi8(pair[0][n], pair[1][n]);
        let high = _mm256_unpackhi_epi8(pair[0][n], pair[1][n]);
        sums[0] = add_products(sums[0], _mm256_unpacklo_epi8(low, zero), weights);
        sums[1] = add_products(sums[1], _mm256_unpackhi_epi8(low, zero), weights);
        sums[2] = add_products(sums[2], _mm256_unpacklo_epi8(high, zero), weights);
        sums[3] = add_products(sums[3], _mm256_unpackhi_epi8(high, zero), weights);
    }
}

/// Adds the sum of two products to each sum.
#[inline]
#[target_feature(enable = "avx2")]
fn add_products(sum: __m256i, values: __m256i, weights: __m256i) -> __m256i {
    _mm256_add_epi32(sum, _mm256_madd_epi16(values, weights))
}

/// Removes the fraction from sums, and limits them to 8 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn narrow(sums: [__m256i; 4], shift: __m256i) -> __m256i {
    let [a, b, c, d] = sums;
    let low = _mm256_packs_epi32(_mm256_srav_epi32(a, shift), _mm256_srav_epi32(b, shift));
    let high = _mm256_packs_epi32(_mm256_srav_epi32(c, shift), _mm256_srav_epi32(d, shift));
    _mm256_packus_epi16(low, high)
}

#[inline]
#[target_feature(enable = "avx2")]
fn stretch<Offset: Copy + Into<usize>, const WINDOW: usize, const PAIRS: usize>(
    line: &[u8],
    table: &Table,
    groups: &[Group<Offset>],
    out: &mut [u8],
) {
    // From five pixels, pairs of values of one colour as 16-bit numbers: pixels 0 and 1, 2 and 3, 4.
    const PLACES: [[[i8; 16]; 2]; 3] = [
        [[0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1]; 2],
        [[6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1]; 2],
        [[12, -1, -1, -1, 13, -1, -1, -1, 14, -1, -1, -1, -1, -1, -1, -1]; 2],
    ];
    let pairs: [__m256i; 3] = must_cast(PLACES);
    let colours: __m256i = must_cast([[0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1_i8, -1, -1, -1]; 2]);
    let joined = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7);
    let start = _mm256_set1_epi32(half(table.precision));
    let shift = _mm256_set1_epi32(table.precision.cast_signed());

    let rest = table.rest.as_chunks::<PAIRS>().0.as_chunks::<{ GROUP / 2 }>().0;
    let mut steps = &table.steps[..];
    for (group, rest) in groups.iter().zip(rest) {
        let mut sums = [start; GROUP / 2];
        let mut first = group.first;
        if table.count > 0 {
            let (these, others) = steps.split_at(table.count);
            steps = others;
            for weights in these {
                let Some(window) = window::<WINDOW>(line, first) else { return };
                for (n, (sum, weights)) in sums.iter_mut().zip(weights).enumerate() {
                    add_pixels(sum, load(window, &group.offsets, n), weights, &pairs);
                }
                first += 3 * STEP;
            }
        }
        let Some(window) = window::<WINDOW>(line, first) else { return };
        for (n, (sum, weights)) in sums.iter_mut().zip(rest).enumerate() {
            add_pixels(sum, load(window, &group.offsets, n), weights, &pairs);
        }
        let pixels = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(narrow(sums, shift), colours), joined);
        let bytes: [u8; 32] = must_cast(pixels);
        let Some(out) = out.get_mut(group.out..group.out + 3 * GROUP) else { return };
        out.copy_from_slice(&bytes[..3 * GROUP]);
    }
}

#[inline]
fn window<const WINDOW: usize>(line: &[u8], first: usize) -> Option<&[u8; WINDOW]> {
    line.get(first..)?.first_chunk()
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_pixels(sum: &mut __m256i, values: __m256i, weights: &[Weights], pairs: &[__m256i; 3]) {
    for (&weights, &pair) in weights.iter().zip(pairs) {
        let pair = _mm256_shuffle_epi8(values, pair);
        *sum = add_products(*sum, pair, must_cast(weights));
    }
}

/// Loads five pixels for each of the output pixels of register `n`.
#[inline]
#[target_feature(enable = "avx2")]
fn load<Offset: Copy + Into<usize>, const WINDOW: usize>(
    window: &[u8; WINDOW],
    offsets: &[Offset; GROUP],
    n: usize,
) -> __m256i {
    // The types show the compiler that no load exceeds the window.
    let (a, b): (usize, usize) = (offsets[2 * n].into(), offsets[2 * n + 1].into());
    let (Some(low), Some(high)) = (window[a..].first_chunk::<LOAD>(), window[b..].first_chunk::<LOAD>()) else {
        return _mm256_setzero_si256();
    };
    let (low, high): (__m128i, __m128i) = (must_cast(*low), must_cast(*high));
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
}
