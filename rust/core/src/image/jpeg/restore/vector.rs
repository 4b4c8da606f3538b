//! `Symbols`: the codes of a block's coefficients, sixteen at once by AVX-512.
#![allow(unsafe_code)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)] // lanes of registers

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm512_abs_epi32, _mm512_add_epi32, _mm512_add_epi64, _mm512_and_epi32,
    _mm512_and_epi64, _mm512_cmpgt_epi32_mask, _mm512_cmpgt_epu8_mask, _mm512_cvtepi16_epi32, _mm512_cvtepu8_epi32,
    _mm512_lzcnt_epi32, _mm512_mask_cmpeq_epi32_mask, _mm512_mask_i32gather_epi32, _mm512_mask_permutexvar_epi16,
    _mm512_maskz_compress_epi8, _mm512_maskz_compress_epi16, _mm512_maskz_permutexvar_epi8,
    _mm512_maskz_permutexvar_epi16, _mm512_maskz_sub_epi8, _mm512_or_epi32, _mm512_or_epi64, _mm512_set1_epi8,
    _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_sllv_epi64, _mm512_srli_epi32, _mm512_srli_epi64, _mm512_sub_epi8, _mm512_sub_epi16, _mm512_sub_epi32,
};

use super::ZigzagBlock;
use super::codes::{AcCodes, PACKED_SIZE};

/// Whether the processor has these instructions. Those that are not listed here are older.
pub(super) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
}

/// The numbers of the lanes of a register: constants, since the compiler may not see that a function
/// makes the same ones each time.
const NUMBERS: [u8; 64] = {
    let mut numbers = [0; 64];
    let mut n = 0;
    while n < 64 {
        numbers[n] = n as u8;
        n += 1;
    }
    numbers
};
const WORDS: [u16; 32] = {
    let mut words = [0; 32];
    let mut n = 0;
    while n < 32 {
        words[n] = n as u16;
        n += 1;
    }
    words
};

/// The coefficients of a block after the first, without the zeros, and the end of the block.
pub(super) struct Symbols {
    values: [__m256i; 4],
    /// The zeros before each value.
    runs: [__m128i; 4],
    count: u32,
}

impl Symbols {
    /// Returns `None` if there is a run of more than 15 zeros.
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
    #[inline]
    pub(super) fn new(block: &ZigzagBlock) -> Option<Self> {
        let mask = block.mask & !1;
        let count = mask.count_ones();
        let numbers: __m512i = bytemuck::must_cast(NUMBERS);
        let places = _mm512_maskz_compress_epi8(mask, numbers);
        let before = _mm512_maskz_permutexvar_epi8(!1, _mm512_sub_epi8(numbers, _mm512_set1_epi8(1)), places);
        let runs = _mm512_maskz_sub_epi8((1 << count) - 1, _mm512_sub_epi8(places, before), _mm512_set1_epi8(1));
        if _mm512_cmpgt_epu8_mask(runs, _mm512_set1_epi8(15)) != 0 {
            return None;
        }
        // The values of the second half go after those of the first.
        let [low, high]: [__m512i; 2] = bytemuck::must_cast(block.values);
        let in_low = (mask as u32).count_ones();
        let low = _mm512_maskz_compress_epi16(mask as u32, low);
        let high = _mm512_maskz_compress_epi16((mask >> 32) as u32, high);
        let words: __m512i = bytemuck::must_cast(WORDS);
        let places = _mm512_sub_epi16(words, _mm512_set1_epi16(in_low as i16));
        let after = u32::MAX << (in_low & 31); // at most 31 are in the first half
        // Places count modulo 32. After the last value all is zero, which is the symbol of the end.
        let rest = (u64::from(u32::MAX) >> (64 - count.max(32))) as u32;
        let values = [
            _mm512_mask_permutexvar_epi16(low, after, places, high),
            _mm512_maskz_permutexvar_epi16(rest, places, high),
        ];
        // A block that is full has no end.
        let count = count + 1 - (mask >> 63) as u32;
        Some(Self { values: bytemuck::must_cast(values), runs: bytemuck::must_cast(runs), count })
    }

    pub(super) const fn count(&self) -> usize {
        self.count as usize
    }

    /// Returns pairs of codes with their values, and the lengths of the pairs: at most 52 bits. Returns
    /// `None` if a code is missing, or a value has more than ten bits.
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
    #[inline]
    pub(super) fn pairs(&self, sixteen: usize, codes: &AcCodes) -> Option<([u64; 8], [u64; 8])> {
        let used = (((1_u64 << self.count) - 1) >> (16 * sixteen)) as u16;
        let values = _mm512_cvtepi16_epi32(self.values[sixteen & 3]);
        let runs = _mm512_cvtepu8_epi32(self.runs[sixteen & 3]);
        let sizes = _mm512_sub_epi32(_mm512_set1_epi32(32), _mm512_lzcnt_epi32(_mm512_abs_epi32(values)));
        if _mm512_cmpgt_epi32_mask(sizes, _mm512_set1_epi32(PACKED_SIZE as i32)) != 0 {
            return None;
        }
        let signs = _mm512_srli_epi32::<31>(values);
        let low = _mm512_or_epi32(_mm512_slli_epi32::<1>(sizes), signs);
        let places = _mm512_or_epi32(_mm512_slli_epi32::<5>(runs), low);
        // SAFETY: the 512 numbers of the table are there. No place is above: runs are at most 15 by
        // `new`, sizes at most 10, signs 0 or 1.
        let found = unsafe {
            _mm512_mask_i32gather_epi32::<4>(_mm512_setzero_si512(), used, places, codes.packed().as_ptr().cast())
        };
        if _mm512_mask_cmpeq_epi32_mask(used, found, _mm512_setzero_si512()) != 0 {
            return None;
        }
        let lengths = _mm512_and_epi32(found, _mm512_set1_epi32(31));
        let bits = _mm512_srli_epi32::<5>(_mm512_add_epi32(found, _mm512_slli_epi32::<5>(values)));
        let first = _mm512_set1_epi64(0xFFFF_FFFF);
        let second = _mm512_srli_epi64::<32>(lengths);
        let before = _mm512_sllv_epi64(_mm512_and_epi64(bits, first), second);
        let pairs = _mm512_or_epi64(before, _mm512_srli_epi64::<32>(bits));
        let lengths = _mm512_add_epi64(_mm512_and_epi64(lengths, first), second);
        Some((bytemuck::must_cast(pairs), bytemuck::must_cast(lengths)))
    }
}
