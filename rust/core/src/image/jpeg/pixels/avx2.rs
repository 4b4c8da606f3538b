//! The kernels with AVX2.
#![allow(unsafe_code)] // the calls of functions with these instructions
#![allow(clippy::unused_self)] // it shows that the processor has the instructions

use std::arch::x86_64::{
    __m128i, __m256i, _mm_unpackhi_epi16, _mm_unpacklo_epi16, _mm256_abs_epi16, _mm256_add_epi16 as add16,
    _mm256_add_epi32 as add32, _mm256_blend_epi16, _mm256_castsi128_si256, _mm256_cmpgt_epi16, _mm256_cvtepu8_epi16,
    _mm256_inserti128_si256, _mm256_madd_epi16 as multiply, _mm256_maddubs_epi16, _mm256_mulhrs_epi16,
    _mm256_mullo_epi16, _mm256_or_si256, _mm256_packs_epi16, _mm256_packs_epi32 as pack32, _mm256_packus_epi16,
    _mm256_permute2x128_si256, _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_epi32 as set32, _mm256_setr_epi32, _mm256_shuffle_epi8, _mm256_slli_epi32,
    _mm256_srai_epi16, _mm256_srai_epi32 as shift32, _mm256_srli_epi32, _mm256_sub_epi16 as sub16,
    _mm256_sub_epi32 as sub32, _mm256_testz_si256, _mm256_unpackhi_epi8, _mm256_unpackhi_epi16 as high16,
    _mm256_unpackhi_epi32 as high32, _mm256_unpackhi_epi64 as high64, _mm256_unpacklo_epi8,
    _mm256_unpacklo_epi16 as low16, _mm256_unpacklo_epi32 as low32, _mm256_unpacklo_epi64 as low64, _mm256_xor_si256,
};

use bytemuck::must_cast;

use super::portable::factors::{BOTH, EVEN, INNER, OUTER};
use super::portable::{self, BLUE, GREEN, RED};
use super::vector::transform_passes;
use super::{Across, Block, Chroma, Rows, WILD};

/// The value shows that the processor has the instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    /// As [`portable::transform`].
    pub(super) fn transform(self, blocks: &[&Block; 4], quantisation: &Block, flip: u8, out: &mut [u8], stride: usize) {
        // SAFETY: only the instructions make the function unsafe. The processor has them, because
        // only `detect` makes an `Avx2`.
        unsafe { transform(blocks, quantisation, flip, out, stride) }
    }

    /// As [`portable::spread`], but never copies samples. The slices go on 64 bytes after the last sample that is used, and
    /// the pairs up to a multiple of 32.
    pub(super) fn spread(self, across: Across, chroma: [&[u8]; 2], pairs: &mut [Vec<[i16; 2]>; 2], count: usize) {
        // SAFETY: as in `transform`.
        unsafe {
            if across == Across::Fancy {
                spread_smooth(chroma, pairs, count);
            } else {
                spread_pairs(chroma, pairs, count);
            }
        }
    }

    /// As [`portable::row`].
    pub(super) fn row(self, rows: &Rows<'_>, chroma: &Chroma, out: &mut [u8]) {
        // SAFETY: as in `transform`.
        unsafe {
            match (chroma.blends, chroma.shift) {
                (true, 4) => row::<true, 4>(rows, out),
                (true, _) => row::<true, 2>(rows, out),
                (false, 2) => row::<false, 2>(rows, out),
                (false, _) => row::<false, 0>(rows, out),
            }
        }
    }
}

transform_passes!(__m256i, "avx2");

#[target_feature(enable = "avx2")]
fn transform(blocks: &[&Block; 4], quantisation: &Block, flip: u8, out: &mut [u8], stride: usize) {
    let factors: [__m256i; 4] = must_cast(*quantisation);
    let flips = _mm256_set1_epi8(flip.cast_signed());
    // All values but the first of each row, and the last four columns.
    let rest: __m256i = must_cast([0, -1_i16, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1]);
    let last: __m256i = must_cast([[0_i16, 0, 0, 0, -1, -1, -1, -1]; 2]);
    for part in 0..2 {
        let (a, b): ([__m256i; 4], [__m256i; 4]) = (must_cast(*blocks[2 * part]), must_cast(*blocks[2 * part + 1]));
        let first = _mm256_or_si256(a[0], b[0]);
        let second = _mm256_or_si256(a[1], b[1]);
        let lower = _mm256_or_si256(_mm256_or_si256(a[2], b[2]), _mm256_or_si256(a[3], b[3]));
        let all = _mm256_or_si256(_mm256_or_si256(first, second), lower);
        let sparse = (_mm256_testz_si256(lower, lower) != 0, _mm256_testz_si256(all, last) != 0);
        let out = &mut out[16 * part..];
        if sparse.0 && sparse.1 && _mm256_testz_si256(second, second) != 0 && _mm256_testz_si256(first, rest) != 0 {
            super::flat(&blocks[2 * part..][..2], quantisation, flip, out, stride);
            continue;
        }
        let mut rows = [factors[0]; 8];
        for n in 0..4 {
            if n == 2 && sparse.0 {
                break;
            }
            let (a, b) = (_mm256_mullo_epi16(a[n], factors[n]), _mm256_mullo_epi16(b[n], factors[n]));
            rows[2 * n] = _mm256_permute2x128_si256::<0x20>(a, b);
            rows[2 * n + 1] = _mm256_permute2x128_si256::<0x31>(a, b);
        }
        // The smallest number has itself as its amount.
        let amount = _mm256_abs_epi16(rows[0]);
        let wild =
            _mm256_or_si256(_mm256_cmpgt_epi16(amount, _mm256_set1_epi16(WILD - 1)), _mm256_srai_epi16::<15>(amount));
        if _mm256_testz_si256(wild, wild) == 0 {
            portable::transform(&blocks[2 * part..][..2], quantisation, flip, out, stride);
            continue;
        }
        let rows = inverse(&rows, sparse);
        for n in 0..4 {
            let packed = _mm256_permute4x64_epi64::<0xD8>(_mm256_packs_epi16(rows[2 * n], rows[2 * n + 1]));
            let bytes: [[u8; 16]; 2] = must_cast(_mm256_xor_si256(packed, flips));
            for (at, bytes) in bytes.iter().enumerate() {
                if let Some(out) = out.get_mut((2 * n + at) * stride..).and_then(<[u8]>::first_chunk_mut::<16>) {
                    *out = *bytes;
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(samples: &[u8], at: usize) -> __m256i {
    let samples = samples.get(at..).and_then(<[u8]>::first_chunk::<32>);
    must_cast(*samples.unwrap_or(&[0; 32]))
}

/// Stretches chroma by linear interpolation.
#[target_feature(enable = "avx2")]
fn spread_smooth([blue, red]: [&[u8]; 2], [even, odd]: &mut [Vec<[i16; 2]>; 2], count: usize) {
    let weights = _mm256_set1_epi16(0x0103);
    // After this, the low halves of two registers and then the high halves are in order.
    let order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    let pairs = even.as_chunks_mut::<32>().0.iter_mut().zip(odd.as_chunks_mut::<32>().0);
    for (chunk, (even, odd)) in pairs.take(count.div_ceil(32)).enumerate() {
        let mut samples = [[weights; 3]; 2];
        for (samples, channel) in samples.iter_mut().zip([blue, red]) {
            for (n, samples) in samples.iter_mut().enumerate() {
                *samples = _mm256_permutevar8x32_epi32(load(channel, 32 * chunk + n), order);
            }
        }
        let [blue, red] = samples;
        for (out, side) in [(even, 0), (odd, 2)] {
            let blue = [_mm256_unpacklo_epi8(blue[1], blue[side]), _mm256_unpackhi_epi8(blue[1], blue[side])];
            let red = [_mm256_unpacklo_epi8(red[1], red[side]), _mm256_unpackhi_epi8(red[1], red[side])];
            *out = must_cast([
                _mm256_maddubs_epi16(weights, low16(blue[0], red[0])),
                _mm256_maddubs_epi16(weights, high16(blue[0], red[0])),
                _mm256_maddubs_epi16(weights, low16(blue[1], red[1])),
                _mm256_maddubs_epi16(weights, high16(blue[1], red[1])),
            ]);
        }
    }
}

/// Arranges chroma that has a sample for each pixel of a row.
#[target_feature(enable = "avx2")]
fn spread_pairs([blue, red]: [&[u8]; 2], [even, odd]: &mut [Vec<[i16; 2]>; 2], count: usize) {
    let (first, second) = (_mm256_set1_epi16(0x0001), _mm256_set1_epi16(0x0100));
    let pairs = even.as_chunks_mut::<16>().0.iter_mut().zip(odd.as_chunks_mut::<16>().0);
    for (chunk, (even, odd)) in pairs.take(count.div_ceil(16)).enumerate() {
        let blue = _mm256_permute4x64_epi64::<0xD8>(load(blue, 1 + 32 * chunk));
        let red = _mm256_permute4x64_epi64::<0xD8>(load(red, 1 + 32 * chunk));
        let words = [low16(blue, red), high16(blue, red)];
        *even = must_cast([_mm256_maddubs_epi16(first, words[0]), _mm256_maddubs_epi16(first, words[1])]);
        *odd = must_cast([_mm256_maddubs_epi16(second, words[0]), _mm256_maddubs_epi16(second, words[1])]);
    }
}

#[target_feature(enable = "avx2")]
fn row<const BLENDS: bool, const SHIFT: i32>(rows: &Rows<'_>, out: &mut [u8]) {
    // Of 8 pixels, red and green make 16 bytes. Where these and 8 of blue go, in 24 bytes.
    let places: [__m256i; 2] = must_cast([
        [[0, 8, -1, 1, 9, -1, 2, 10, -1, 3, 11, -1, 4, 12, -1, 5_i8]; 2],
        [[13, -1, 6, 14, -1, 7, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1]; 2],
    ]);
    let blues: [[__m256i; 2]; 2] = must_cast([
        [
            [[-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1_i8]; 2],
            [[-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, -1, -1, -1, -1, -1, -1]; 2],
        ],
        [
            [[-1, -1, 8, -1, -1, 9, -1, -1, 10, -1, -1, 11, -1, -1, 12, -1]; 2],
            [[-1, 13, -1, -1, 14, -1, -1, 15, -1, -1, -1, -1, -1, -1, -1, -1]; 2],
        ],
    ]);
    let bias = [_mm256_set1_epi16(rows.bias[0]), _mm256_set1_epi16(rows.bias[1])];
    let luma = rows.luma.as_chunks::<16>().0;
    let mut at = 0;
    for out in out.chunks_mut(96) {
        let (mut warm, mut cold) = ([bias[0]; 2], [bias[0]; 2]);
        for half in 0..2 {
            let chroma = if SHIFT == 0 { whole(rows, at) } else { blend::<BLENDS, SHIFT>(rows, at, bias) };
            let (Some(luma), Some(chroma)) = (luma.get(at), chroma) else { break };
            let luma: __m128i = must_cast(*luma);
            let [red, green, blue] = colour(_mm256_cvtepu8_epi16(luma), chroma);
            (warm[half], cold[half]) = (_mm256_packus_epi16(red, green), blue);
            at += 1;
        }
        let cold = _mm256_packus_epi16(cold[0], cold[1]);
        let mut bytes = [[0_u8; 24]; 4];
        for half in 0..2 {
            let mut parts = [cold; 2];
            for part in 0..2 {
                parts[part] = _mm256_or_si256(
                    _mm256_shuffle_epi8(warm[half], places[part]),
                    _mm256_shuffle_epi8(cold, blues[half][part]),
                );
            }
            let parts: [[[u8; 16]; 2]; 2] = must_cast(parts);
            for lane in 0..2 {
                let bytes = &mut bytes[2 * half + lane];
                bytes[..16].copy_from_slice(&parts[0][lane]);
                bytes[16..].copy_from_slice(&parts[1][lane][..8]);
            }
        }
        let bytes = bytes.as_flattened();
        match out.first_chunk_mut::<96>() {
            Some(out) => out.copy_from_slice(bytes),
            None => out.copy_from_slice(&bytes[..out.len()]),
        }
    }
}

/// Returns the chroma of 16 pixels.
#[inline]
#[target_feature(enable = "avx2")]
fn blend<const BLENDS: bool, const SHIFT: i32>(rows: &Rows<'_>, at: usize, bias: [__m256i; 2]) -> Option<[__m256i; 2]> {
    let mut chroma = bias;
    for side in 0..2 {
        let near: __m256i = must_cast(*rows.near[side].as_chunks::<8>().0.get(at)?);
        let mut sum = near;
        if BLENDS {
            let far: __m256i = must_cast(*rows.far[side].as_chunks::<8>().0.get(at)?);
            sum = add16(add16(add16(near, near), near), far);
        }
        chroma[side] = _mm256_srai_epi16::<SHIFT>(add16(sum, bias[side]));
    }
    Some(chroma)
}

/// As `blend`, if chroma is not stretched.
#[inline]
#[target_feature(enable = "avx2")]
fn whole(rows: &Rows<'_>, at: usize) -> Option<[__m256i; 2]> {
    let [blue, red] = rows.whole;
    let blue: __m128i = must_cast(*blue.as_chunks::<16>().0.get(at)?);
    let red: __m128i = must_cast(*red.as_chunks::<16>().0.get(at)?);
    let (low, high) = (_mm_unpacklo_epi16(blue, red), _mm_unpackhi_epi16(blue, red));
    let words = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
    Some([
        _mm256_maddubs_epi16(_mm256_set1_epi16(0x0001), words),
        _mm256_maddubs_epi16(_mm256_set1_epi16(0x0100), words),
    ])
}

/// Converts 16 pixels. `chroma` has a register for the first pixel of each pair, and one for the
/// second: pairs of cb and cr.
#[inline]
#[target_feature(enable = "avx2")]
fn colour(luma: __m256i, [even, odd]: [__m256i; 2]) -> [__m256i; 3] {
    let half = set32(1 << 14);
    let green = factors(GREEN);
    let (first, second) = (add32(multiply(even, green), half), add32(multiply(odd, green), half));
    let green = _mm256_blend_epi16::<0xAA>(shift32::<15>(first), _mm256_slli_epi32::<1>(second));
    let cb = _mm256_blend_epi16::<0xAA>(even, _mm256_slli_epi32::<16>(odd));
    let cr = _mm256_blend_epi16::<0xAA>(_mm256_srli_epi32::<16>(even), odd);
    let red = add16(cr, _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(RED)));
    let blue = add16(add16(cb, cb), _mm256_mulhrs_epi16(cb, _mm256_set1_epi16(BLUE)));
    [add16(luma, red), add16(luma, green), add16(luma, blue)]
}
