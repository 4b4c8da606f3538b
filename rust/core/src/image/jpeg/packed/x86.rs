//! Unpacking of blocks by the instructions of x86-64: AVX-512 with VBMI2 (Ice Lake, Zen 4), or AVX2.
//!
//! What `block::unpack` does coefficient by coefficient is done for all of a block at once: bytes are
//! spread to the places that a mask names, first those with a byte among those with a nibble, these
//! among those with a code, these among all that are not zero, and these among the 64.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::block::{AHEAD, BYTE, CODED, NIBBLE, Parts, WIDE, WIDE_BYTE, low, word_at};
use super::cursor::Cursor;
use crate::image::jpeg::zigzag::{NATURAL, ZIGZAG};

/// Unpacks the blocks of an MCU, whose components are given, to natural order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub(super) fn mcu_vbmi2(cursor: &mut Cursor<'_>, components: &[u8], blocks: &mut [[i16; 64]]) -> Option<()> {
    for (component, block) in components.iter().zip(blocks) {
        cursor.next(*component, |bytes, prediction| unpack_vbmi2(bytes, prediction, block))?;
    }
    Some(())
}

/// As [`mcu_vbmi2`], without AVX-512.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn mcu_avx2(cursor: &mut Cursor<'_>, components: &[u8], blocks: &mut [[i16; 64]]) -> Option<()> {
    for (component, block) in components.iter().zip(blocks) {
        cursor.next(*component, |bytes, prediction| unpack_avx2(bytes, prediction, block))?;
    }
    Some(())
}

/// Loads 64 bytes from a place within a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load(bytes: &[u8; AHEAD], at: usize) -> __m512i {
    let part: &[u8; 64] = bytes[at..at + 64].first_chunk().unwrap_or(&[0; 64]);
    // SAFETY: the reference is to 64 bytes.
    unsafe { _mm512_loadu_si512(part.as_ptr().cast()) }
}

/// As `block::unpack`, to natural order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
fn unpack_vbmi2(bytes: &[u8; AHEAD], prediction: &mut i16, out: &mut [i16; 64]) -> Option<usize> {
    let parts = Parts::read(bytes)?;
    *prediction = (i32::from(*prediction) + parts.difference) as i16;
    let (count, coded) = (parts.mask.count_ones(), parts.coded.count_ones());
    let one = _mm512_set1_epi8(1);
    let (code_bits, nibble_bits) = (2 * count, 2 * count + 2 * coded);
    // Eight codes of two bits from a word of 64 bits in each lane.
    let (first, second) = (word_at(bytes, parts.bits, code_bits), word_at(bytes, parts.bits, code_bits + 64));
    let words = _mm512_set_epi64(
        second.cast_signed(),
        second.cast_signed(),
        second.cast_signed(),
        second.cast_signed(),
        first.cast_signed(),
        first.cast_signed(),
        first.cast_signed(),
        first.cast_signed(),
    );
    let steps = _mm512_set_epi64(
        STEPS_2 + 0x30 * EACH,
        STEPS_2 + 0x20 * EACH,
        STEPS_2 + 0x10 * EACH,
        STEPS_2,
        STEPS_2 + 0x30 * EACH,
        STEPS_2 + 0x20 * EACH,
        STEPS_2 + 0x10 * EACH,
        STEPS_2,
    );
    let codes = _mm512_and_si512(_mm512_multishift_epi64_epi8(steps, words), _mm512_set1_epi8(3));
    let with_nibble = _mm512_cmpeq_epi8_mask(codes, _mm512_set1_epi8(3)) & low(coded);
    let nibbles = with_nibble.count_ones();
    let mut values = _mm512_add_epi8(codes, _mm512_set1_epi8(CODED as i8));
    let mut length = parts.bits + (nibble_bits + 4 * nibbles).div_ceil(8) as usize;
    let mut wide = None;
    if nibbles > 0 {
        let at = parts.bits + nibble_bits as usize / 8;
        let shift = i64::from(nibble_bits % 8);
        let (lower, upper) = (load(bytes, at), load(bytes, at + 8));
        let words = _mm512_or_si512(
            _mm512_srl_epi64(lower, _mm_cvtsi64_si128(shift)),
            _mm512_sll_epi64(upper, _mm_cvtsi64_si128(64 - shift)),
        );
        let words = _mm512_permutexvar_epi64(_mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0), words);
        let steps = _mm512_set_epi64(
            STEPS_4 + 0x20 * EACH,
            STEPS_4,
            STEPS_4 + 0x20 * EACH,
            STEPS_4,
            STEPS_4 + 0x20 * EACH,
            STEPS_4,
            STEPS_4 + 0x20 * EACH,
            STEPS_4,
        );
        let nibble = _mm512_and_si512(_mm512_multishift_epi64_epi8(steps, words), _mm512_set1_epi8(15));
        let with_byte = _mm512_cmpeq_epi8_mask(nibble, _mm512_set1_epi8(15)) & low(nibbles);
        let mut large = _mm512_add_epi8(nibble, _mm512_set1_epi8(NIBBLE as i8));
        if with_byte != 0 {
            let more = load(bytes, length);
            let count = with_byte.count_ones();
            large = _mm512_add_epi8(large, _mm512_maskz_expand_epi8(with_byte, more));
            let wider = _mm512_cmpge_epu8_mask(more, _mm512_set1_epi8(WIDE_BYTE.cast_signed())) & low(count);
            if wider != 0 {
                wide = Some(Wide { with_nibble, with_byte, wider, bytes: length, more: length + count as usize });
            }
            length += (count + wider.count_ones()) as usize;
        }
        values = _mm512_mask_expand_epi8(values, with_nibble, large);
    }
    let values = _mm512_mask_expand_epi8(one, parts.coded, values);
    let values = _mm512_mask_sub_epi8(values, parts.signs, _mm512_setzero_si512(), values);
    let values = _mm512_maskz_expand_epi8(parts.mask, values);
    // SAFETY: the table has 64 bytes.
    let places = unsafe { _mm512_loadu_si512(ZIGZAG.as_ptr().cast()) };
    let values = _mm512_permutexvar_epi8(places, values);
    let halves = [
        _mm512_cvtepi8_epi16(_mm512_castsi512_si256(values)),
        _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64::<1>(values)),
    ];
    // SAFETY: the block has 128 bytes.
    unsafe {
        _mm512_storeu_si512(out.as_mut_ptr().cast(), halves[0]);
        _mm512_storeu_si512(out.as_mut_ptr().add(32).cast(), halves[1]);
    }
    out[0] = *prediction;
    if let Some(wide) = wide {
        wide.set(bytes, &parts, out)?;
    }
    Some(length)
}

/// One in each byte, and the first bits of eight codes of two and of four bits.
const EACH: i64 = 0x0101_0101_0101_0101;
const STEPS_2: i64 = 0x0E0C_0A08_0604_0200;
const STEPS_4: i64 = 0x1C18_1410_0C08_0400;

/// Coefficients beyond eight bits.
struct Wide {
    with_nibble: u64,
    with_byte: u64,
    /// Of those with a byte, the ones with a further one.
    wider: u64,
    /// Where the bytes begin, and the further ones.
    bytes: usize,
    more: usize,
}

impl Wide {
    #[cold]
    #[target_feature(enable = "bmi1,bmi2,popcnt")]
    fn set(self, bytes: &[u8; AHEAD], parts: &Parts, out: &mut [i16; 64]) -> Option<()> {
        /// Returns the mask's bit that has `count` set bits before it.
        #[target_feature(enable = "bmi1,bmi2")]
        fn select(mask: u64, count: u32) -> u32 {
            _pdep_u64(1 << count, mask).trailing_zeros() & 63
        }
        let (mut left, mut more) = (self.wider, self.more);
        while left != 0 {
            let at = left.trailing_zeros();
            left &= left - 1;
            let byte = bytes[self.bytes + at as usize];
            let magnitude = WIDE + u32::from(byte - WIDE_BYTE) * 256 + u32::from(bytes[more]);
            more += 1;
            let value = i16::try_from(magnitude).ok()?;
            let number = select(parts.coded, select(self.with_nibble, select(self.with_byte, at)));
            let negative = parts.signs >> number & 1 != 0;
            out[usize::from(NATURAL[select(parts.mask, number) as usize])] = if negative { -value } else { value };
        }
        Some(())
    }
}

const _: () = assert!(BYTE == NIBBLE + 15 && NIBBLE == CODED + 3);

/// For each mask of eight bits, which of up to eight bytes goes to each place; 0x80 where none does.
static SPREAD: [[u8; 8]; 256] = {
    let mut all = [[0x80; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut place, mut next) = (0, 0);
        while place < 8 {
            if mask >> place & 1 != 0 {
                all[mask][place] = next;
                next += 1;
            }
            place += 1;
        }
        mask += 1;
    }
    all
};

/// Spreads bytes to the places that a mask names, and leaves the others as they are in `out`.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn spread(values: &[u8; 72], mut mask: u64, out: &mut [u8; 72]) {
    let (mut from, mut to) = (0, 0);
    while mask != 0 {
        let part = (mask & 255) as usize;
        // SAFETY: at most 56 values and 56 places lie before these eight. The table's rows have eight bytes.
        unsafe {
            let order = _mm_loadl_epi64(SPREAD[part].as_ptr().cast());
            let values = _mm_shuffle_epi8(_mm_loadl_epi64(values.as_ptr().add(from & 63).cast()), order);
            let place = out.as_mut_ptr().add(to & 63);
            let kept = _mm_and_si128(_mm_loadl_epi64(place.cast()), _mm_srai_epi8_by_sign(order));
            _mm_storel_epi64(place.cast(), _mm_or_si128(values, kept));
        }
        from += part.count_ones() as usize;
        to += 8;
        mask >>= 8;
    }
}

/// Returns ones where a byte's top bit is set.
#[inline]
#[target_feature(enable = "avx2")]
fn _mm_srai_epi8_by_sign(bytes: __m128i) -> __m128i {
    _mm_cmpgt_epi8(_mm_setzero_si128(), bytes)
}

/// Spreads 32 codes of two bits to bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn codes_of(word: u64) -> __m256i {
    let words = _mm256_set1_epi64x(word.cast_signed());
    #[rustfmt::skip]
    let order = _mm256_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7);
    let parts = _mm256_and_si256(_mm256_shuffle_epi8(words, order), _mm256_set1_epi32(0xC030_0C03_u32.cast_signed()));
    let all = _mm256_or_si256(parts, _mm256_srli_epi16::<4>(parts));
    let nibbles = _mm256_and_si256(all, _mm256_set1_epi8(15));
    // Either the lower or the upper two bits of a nibble are the code.
    let values = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0));
    _mm256_shuffle_epi8(values, nibbles)
}

/// As `block::unpack`, to natural order.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn unpack_avx2(bytes: &[u8; AHEAD], prediction: &mut i16, out: &mut [i16; 64]) -> Option<usize> {
    let parts = Parts::read(bytes)?;
    *prediction = (i32::from(*prediction) + parts.difference) as i16;
    let (count, coded) = (parts.mask.count_ones(), parts.coded.count_ones());
    let (code_bits, nibble_bits) = (2 * count, 2 * count + 2 * coded);
    let mut values = [0_u8; 72];
    let three = _mm256_set1_epi8(3);
    let mut with_nibble = 0_u64;
    let store = |values: &mut [u8; 72], at: usize, value: __m256i| {
        if let Some(place) = values[at..].first_chunk_mut::<32>() {
            // SAFETY: the reference is to 32 bytes.
            unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), value) }
        }
    };
    for part in 0..coded.div_ceil(32) {
        let codes = codes_of(word_at(bytes, parts.bits, code_bits + 64 * part));
        with_nibble |= u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(codes, three)).cast_unsigned()) << (32 * part);
        store(&mut values, 32 * part as usize, _mm256_add_epi8(codes, _mm256_set1_epi8(CODED as i8)));
    }
    with_nibble &= low(coded);
    let nibbles = with_nibble.count_ones();
    let mut length = parts.bits + (nibble_bits + 4 * nibbles).div_ceil(8) as usize;
    let mut wide = None;
    if nibbles > 0 {
        let mut large = [0_u8; 72];
        let mut with_byte = 0_u64;
        for part in 0..nibbles.div_ceil(16) {
            let word = word_at(bytes, parts.bits, nibble_bits + 64 * part);
            let pairs = _mm_cvtsi64_si128(word.cast_signed());
            let fifteen = _mm_set1_epi8(15);
            let nibble = _mm_unpacklo_epi8(_mm_and_si128(pairs, fifteen), _mm_and_si128(_mm_srli_epi16::<4>(pairs), fifteen));
            with_byte |= u64::from(_mm_movemask_epi8(_mm_cmpeq_epi8(nibble, fifteen)).cast_unsigned()) << (16 * part);
            if let Some(place) = large[16 * part as usize..].first_chunk_mut::<16>() {
                // SAFETY: the reference is to 16 bytes.
                unsafe { _mm_storeu_si128(place.as_mut_ptr().cast(), _mm_add_epi8(nibble, _mm_set1_epi8(NIBBLE as i8))) }
            }
        }
        with_byte &= low(nibbles);
        if with_byte != 0 {
            let count = with_byte.count_ones();
            let (mut more, mut wider) = ([0_u8; 72], 0_u64);
            more[..64].copy_from_slice(&bytes[length..length + 64]);
            for (at, byte) in more[..(count & 63) as usize].iter_mut().enumerate() {
                wider |= u64::from(*byte >= WIDE_BYTE) << at;
                *byte = byte.wrapping_add(BYTE as u8);
            }
            spread(&more, with_byte, &mut large);
            if wider != 0 {
                wide = Some(Wide { with_nibble, with_byte, wider, bytes: length, more: length + count as usize });
            }
            length += (count + wider.count_ones()) as usize;
        }
        spread(&large, with_nibble, &mut values);
    }
    let mut all = [1_u8; 72];
    spread(&values, parts.coded, &mut all);
    // Signs: a byte of eight bits is spread over eight bytes, each of which keeps its bit.
    let mut signed = [0_u8; 72];
    for part in 0..count.div_ceil(32) {
        let bits = _mm256_set1_epi32((parts.signs >> (32 * part)) as i32);
        #[rustfmt::skip]
        let order = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
        let single = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
        let negative = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(bits, order), single), single);
        // SAFETY: 32 of the 72 bytes lie after 0 or 32.
        let value = unsafe { _mm256_loadu_si256(all.as_ptr().add(32 * (part & 1) as usize).cast()) };
        store(&mut signed, 32 * part as usize, _mm256_sub_epi8(_mm256_xor_si256(value, negative), negative));
    }
    let mut zigzag = [0_u8; 72];
    spread(&signed, parts.mask, &mut zigzag);
    // SAFETY: the parts of 16 bytes lie within the first 64 of `zigzag`, and the table has four rows of 64.
    // The block has 128 bytes.
    unsafe {
        let part = |at: usize| _mm256_broadcastsi128_si256(_mm_loadu_si128(zigzag.as_ptr().add(16 * at).cast()));
        let (a, b, c, d) = (part(0), part(1), part(2), part(3));
        for half in 0..2 {
            let order = |from: usize| _mm256_loadu_si256(ORDERS[from].as_ptr().add(32 * half).cast());
            let ab = _mm256_or_si256(_mm256_shuffle_epi8(a, order(0)), _mm256_shuffle_epi8(b, order(1)));
            let cd = _mm256_or_si256(_mm256_shuffle_epi8(c, order(2)), _mm256_shuffle_epi8(d, order(3)));
            let all = _mm256_or_si256(ab, cd);
            let place = out.as_mut_ptr().add(32 * half);
            _mm256_storeu_si256(place.cast(), _mm256_cvtepi8_epi16(_mm256_castsi256_si128(all)));
            _mm256_storeu_si256(place.add(16).cast(), _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(all)));
        }
    }
    out[0] = *prediction;
    if let Some(wide) = wide {
        wide.set(bytes, &parts, out)?;
    }
    Some(length)
}

/// For each sixteen coefficients in zigzag order, which of them goes to each place in natural order.
static ORDERS: [[u8; 64]; 4] = {
    let mut all = [[0x80; 64]; 4];
    let mut place = 0;
    while place < 64 {
        let k = ZIGZAG[place];
        all[k as usize / 16][place] = k % 16;
        place += 1;
    }
    all
};
