//! The kernels with AVX-512, for processors that have its instructions for bytes.
#![allow(unsafe_code)] // the calls of functions with these instructions
#![allow(clippy::unused_self)] // it shows that the processor has the instructions

use std::arch::x86_64::{
    __m256i, __m512i, _mm256_permute4x64_epi64, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
    _mm512_add_epi16 as add16, _mm512_add_epi32 as add32, _mm512_castsi256_si512, _mm512_cmpge_epu16_mask,
    _mm512_cvtepu8_epi16, _mm512_inserti64x4, _mm512_madd_epi16 as multiply, _mm512_maddubs_epi16,
    _mm512_mask_blend_epi16, _mm512_mask_permutexvar_epi8, _mm512_mulhrs_epi16, _mm512_mullo_epi16, _mm512_or_si512,
    _mm512_packs_epi16, _mm512_packs_epi32 as pack32, _mm512_packus_epi16, _mm512_permutex2var_epi8,
    _mm512_permutexvar_epi64, _mm512_set1_epi8, _mm512_set1_epi16, _mm512_set1_epi32 as set32, _mm512_setr_epi64,
    _mm512_shuffle_i32x4, _mm512_slli_epi32, _mm512_srai_epi16, _mm512_srai_epi32 as shift32, _mm512_srli_epi32,
    _mm512_sub_epi16 as sub16, _mm512_sub_epi32 as sub32, _mm512_test_epi16_mask, _mm512_unpackhi_epi16 as high16,
    _mm512_unpackhi_epi32 as high32, _mm512_unpackhi_epi64 as high64, _mm512_unpacklo_epi16 as low16,
    _mm512_unpacklo_epi32 as low32, _mm512_unpacklo_epi64 as low64, _mm512_xor_si512,
};

use bytemuck::must_cast;

use super::portable::factors::{BOTH, EVEN, INNER, OUTER};
use super::portable::{self, BLUE, GREEN, RED};
use super::vector::transform_passes;
use super::{Block, Chroma, Rows, WILD};

/// The value shows that the processor has the instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi");
        has.then_some(Self(()))
    }

    /// As [`portable::transform`].
    pub(super) fn transform(self, blocks: &[&Block; 4], quantisation: &Block, flip: u8, out: &mut [u8], stride: usize) {
        // SAFETY: only the instructions make the function unsafe. The processor has them, because
        // only `detect` makes an `Avx512`.
        unsafe { transform(blocks, quantisation, flip, out, stride) }
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

transform_passes!(__m512i, "avx512f,avx512bw");

#[target_feature(enable = "avx512f,avx512bw")]
fn transform(blocks: &[&Block; 4], quantisation: &Block, flip: u8, out: &mut [u8], stride: usize) {
    let &[a, b, c, d] = blocks;
    let [a, b, c, d]: [[__m512i; 2]; 4] = [must_cast(*a), must_cast(*b), must_cast(*c), must_cast(*d)];
    let factors: [__m512i; 2] = must_cast(*quantisation);
    let mut used = [0; 2];
    for half in 0..2 {
        let any = _mm512_or_si512(_mm512_or_si512(a[half], b[half]), _mm512_or_si512(c[half], d[half]));
        used[half] = _mm512_test_epi16_mask(any, any);
    }
    if used[0] & !1 | used[1] == 0 {
        return super::flat(blocks, quantisation, flip, out, stride);
    }
    let sparse = (used[1] == 0, (used[0] | used[1]) & 0xF0F0_F0F0 == 0);
    let mut rows = [factors[0]; 8];
    for half in 0..2 {
        if half == 1 && sparse.0 {
            break;
        }
        let factors = factors[half];
        let (a, b) = (_mm512_mullo_epi16(a[half], factors), _mm512_mullo_epi16(b[half], factors));
        let (c, d) = (_mm512_mullo_epi16(c[half], factors), _mm512_mullo_epi16(d[half], factors));
        let (ab, cd) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0x44>(c, d));
        rows[4 * half] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
        rows[4 * half + 1] = _mm512_shuffle_i32x4::<0xDD>(ab, cd);
        let (ab, cd) = (_mm512_shuffle_i32x4::<0xEE>(a, b), _mm512_shuffle_i32x4::<0xEE>(c, d));
        rows[4 * half + 2] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
        rows[4 * half + 3] = _mm512_shuffle_i32x4::<0xDD>(ab, cd);
    }
    let shifted = add16(rows[0], _mm512_set1_epi16(WILD));
    if _mm512_cmpge_epu16_mask(shifted, _mm512_set1_epi16(2 * WILD)) != 0 {
        return portable::transform(blocks, quantisation, flip, out, stride);
    }
    let rows = inverse(&rows, sparse);
    let flip = _mm512_set1_epi8(flip.cast_signed());
    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    for n in 0..4 {
        let packed = _mm512_permutexvar_epi64(order, _mm512_packs_epi16(rows[2 * n], rows[2 * n + 1]));
        let bytes: [[u8; 32]; 2] = must_cast(_mm512_xor_si512(packed, flip));
        for (at, bytes) in bytes.iter().enumerate() {
            if let Some(out) = out.get_mut((2 * n + at) * stride..).and_then(<[u8]>::first_chunk_mut::<32>) {
                *out = *bytes;
            }
        }
    }
}

/// Where the bytes of 64 pixels' channels are after packing, in the order of RGB, for each third.
const PLACES: [[u8; 64]; 3] = {
    let mut places = [[0; 64]; 3];
    let mut at = 0;
    while at < 192 {
        let pixel = at / 3;
        let place = 16 * (pixel % 32 / 8) + 8 * (pixel / 32) + pixel % 8;
        places[at / 64][at % 64] = (place + if at % 3 == 1 { 64 } else { 0 }) as u8;
        at += 1;
    }
    places
};
/// The places of blue in each third.
const BLUES: [u64; 3] = [0x4924_9249_2492_4924, 0x2492_4924_9249_2492, 0x9249_2492_4924_9249];

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn row<const BLENDS: bool, const SHIFT: u32>(rows: &Rows<'_>, out: &mut [u8]) {
    let bias = [_mm512_set1_epi16(rows.bias[0]), _mm512_set1_epi16(rows.bias[1])];
    let places: [__m512i; 3] = must_cast(PLACES);
    let luma = rows.luma.as_chunks::<32>().0;
    let mut at = 0;
    for out in out.chunks_mut(192) {
        let mut halves = [[places[0]; 3]; 2];
        for half in &mut halves {
            let chroma = if SHIFT == 0 { whole(rows, at) } else { blend::<BLENDS, SHIFT>(rows, at, bias) };
            let (Some(luma), Some(chroma)) = (luma.get(at), chroma) else { break };
            let luma: __m256i = must_cast(*luma);
            *half = colour(_mm512_cvtepu8_epi16(luma), chroma);
            at += 1;
        }
        let [first, second] = halves;
        let red = _mm512_packus_epi16(first[0], second[0]);
        let green = _mm512_packus_epi16(first[1], second[1]);
        let blue = _mm512_packus_epi16(first[2], second[2]);
        let mut bytes = [[0_u8; 64]; 3];
        for third in 0..3 {
            let two = _mm512_permutex2var_epi8(red, places[third], green);
            bytes[third] = must_cast(_mm512_mask_permutexvar_epi8(two, BLUES[third], places[third], blue));
        }
        let bytes = bytes.as_flattened();
        match out.first_chunk_mut::<192>() {
            Some(out) => out.copy_from_slice(bytes),
            None => out.copy_from_slice(&bytes[..out.len()]),
        }
    }
}

/// Returns the chroma of 32 pixels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn blend<const BLENDS: bool, const SHIFT: u32>(rows: &Rows<'_>, at: usize, bias: [__m512i; 2]) -> Option<[__m512i; 2]> {
    let mut chroma = bias;
    for side in 0..2 {
        let near: __m512i = must_cast(*rows.near[side].as_chunks::<16>().0.get(at)?);
        let mut sum = near;
        if BLENDS {
            let far: __m512i = must_cast(*rows.far[side].as_chunks::<16>().0.get(at)?);
            sum = add16(add16(add16(near, near), near), far);
        }
        chroma[side] = _mm512_srai_epi16::<SHIFT>(add16(sum, bias[side]));
    }
    Some(chroma)
}

/// As `blend`, if chroma is not stretched.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn whole(rows: &Rows<'_>, at: usize) -> Option<[__m512i; 2]> {
    let [blue, red] = rows.whole;
    let blue: __m256i = must_cast(*blue.as_chunks::<32>().0.get(at)?);
    let red: __m256i = must_cast(*red.as_chunks::<32>().0.get(at)?);
    let (blue, red) = (_mm256_permute4x64_epi64::<0xD8>(blue), _mm256_permute4x64_epi64::<0xD8>(red));
    let (low, high) = (_mm256_unpacklo_epi16(blue, red), _mm256_unpackhi_epi16(blue, red));
    let words = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    Some([
        _mm512_maddubs_epi16(_mm512_set1_epi16(0x0001), words),
        _mm512_maddubs_epi16(_mm512_set1_epi16(0x0100), words),
    ])
}

/// Converts 32 pixels. `chroma` has a register for the first pixel of each pair, and one for the
/// second: pairs of cb and cr.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn colour(luma: __m512i, [even, odd]: [__m512i; 2]) -> [__m512i; 3] {
    const SECOND: u32 = 0xAAAA_AAAA;
    let half = set32(1 << 14);
    let green = factors(GREEN);
    let (first, second) = (add32(multiply(even, green), half), add32(multiply(odd, green), half));
    let green = _mm512_mask_blend_epi16(SECOND, shift32::<15>(first), _mm512_slli_epi32::<1>(second));
    let cb = _mm512_mask_blend_epi16(SECOND, even, _mm512_slli_epi32::<16>(odd));
    let cr = _mm512_mask_blend_epi16(SECOND, _mm512_srli_epi32::<16>(even), odd);
    let red = add16(cr, _mm512_mulhrs_epi16(cr, _mm512_set1_epi16(RED)));
    let blue = add16(add16(cb, cb), _mm512_mulhrs_epi16(cb, _mm512_set1_epi16(BLUE)));
    [add16(luma, red), add16(luma, green), add16(luma, blue)]
}
