//! Unpacking of blocks by the instructions of x86-64: AVX-512 with VBMI2 (Ice Lake, Zen 4), or AVX2.
//!
//! What `block::unpack` does coefficient by coefficient is done for all of a block at once: bytes are
//! spread to the places that a mask names, first those with a byte among those with a nibble, these
//! among those with a code, these among all that are not zero, and these among the 64.
#![allow(unsafe_code)]

#[allow(clippy::wildcard_imports)] // some seventy intrinsics
use std::arch::x86_64::*;

use super::block::{
    AHEAD, AT_ONCE, BYTE, CODED, Facts, LARGE, LARGER, NIBBLE, Places, SMALL, Values, WIDE, WIDE_BYTE, low,
};
use crate::image::jpeg::zigzag::{Coefficients, NATURAL, ZIGZAG, ZigzagBlock};

/// Data with at least [`AHEAD`] bytes after each place. Reading [`AT_ONCE`] blocks moves none of them further
/// than `AHEAD - 128`.
struct Data<'a>(&'a [u8]);

impl<'a> Data<'a> {
    #[inline]
    fn new(data: &'a [u8], gap: usize, at: &Places) -> Option<Self> {
        let bits = at.code.max(at.nibble).max(at.value + gap) / 8;
        let last = at.head.max(at.first).max(at.mask).max(at.byte).max(at.wide).max(bits);
        (last + AHEAD <= data.len()).then_some(Self(data))
    }

    /// # Safety
    /// `at` is a place of the next `AT_ONCE` blocks.
    #[inline]
    unsafe fn read<T: Copy>(&self, at: usize) -> T {
        debug_assert!(at + size_of::<T>() <= self.0.len(), "{at} in {} bytes", self.0.len());
        // SAFETY: the data reach further than that. `T` is a number or a vector: any bytes will do.
        unsafe { self.0.as_ptr().add(at).cast::<T>().read_unaligned() }
    }

    /// Returns the 64 bits that begin at a bit.
    ///
    /// # Safety
    /// As `read`.
    #[inline]
    unsafe fn word(&self, bit: usize) -> u64 {
        // SAFETY: the caller's.
        let (low, high): (u64, u64) = unsafe { (self.read(bit / 8), self.read(bit / 8 + 8)) };
        low >> (bit % 8) | (high << 1) << (63 - bit % 8)
    }

    /// Reads the next block's first coefficient and masks, as [`Values::read`].
    ///
    /// # Safety
    /// As `read`.
    #[inline]
    #[target_feature(enable = "bmi1,bmi2,popcnt")]
    unsafe fn values(&self, gap: usize, at: &mut Places, prediction: &mut i16) -> Option<Values> {
        // SAFETY: the caller's.
        let (head, first): (u8, i8) = unsafe { (self.read(at.head), self.read(at.first)) };
        let (small, masks) = (head >> 4, usize::from(head & 15));
        at.head += 1;
        let is_large = small == LARGE;
        let mut difference = if is_large { i32::from(first) } else { i32::from(small) - SMALL };
        at.first += usize::from(is_large);
        if difference == i32::from(LARGER) {
            // SAFETY: the caller's.
            difference = unsafe { self.read::<i16>(at.first) }.into();
            at.first += 2;
        }
        *prediction = (i32::from(*prediction) + difference) as i16;
        // SAFETY: the caller's.
        let mask = _bzhi_u64(unsafe { self.read(at.mask) }, 8 * masks as u32);
        at.mask += masks;
        if masks > 8 || mask >> 63 != 0 {
            return None;
        }
        let count = mask.count_ones();
        // SAFETY: the caller's.
        let (signs, with_code) = unsafe { (self.word(at.value), self.word(at.value + gap)) };
        at.value += count as usize;
        Some(Values { mask: mask << 1, signs: _bzhi_u64(signs, count), coded: _bzhi_u64(with_code, count) })
    }
}

/// As `block::unpack`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub(super) fn unpack_vbmi2<B: Coefficients>(
    data: &[u8],
    gap: usize,
    places: &mut Places,
    predictions: &mut [i16; 4],
    components: &[u8; AT_ONCE],
    blocks: &mut [B],
) -> Option<()> {
    let data = Data::new(data, gap, places)?;
    let (mut at, mut last) = (*places, *predictions);
    for (block, component) in blocks.iter_mut().zip(components) {
        // SAFETY: these are not too many blocks.
        unsafe { block_vbmi2(&data, gap, &mut at, &mut last[usize::from(component & 3)], block) }?;
    }
    (*places, *predictions) = (at, last);
    Some(())
}

/// As [`unpack_vbmi2`], without AVX-512.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn unpack_avx2<B: Coefficients>(
    data: &[u8],
    gap: usize,
    places: &mut Places,
    predictions: &mut [i16; 4],
    components: &[u8; AT_ONCE],
    blocks: &mut [B],
) -> Option<()> {
    let data = Data::new(data, gap, places)?;
    let (mut at, mut last) = (*places, *predictions);
    for (block, component) in blocks.iter_mut().zip(components) {
        // SAFETY: these are not too many blocks.
        unsafe { block_avx2(&data, gap, &mut at, &mut last[usize::from(component & 3)], block) }?;
    }
    (*places, *predictions) = (at, last);
    Some(())
}

/// Reads a block.
///
/// # Safety
/// It is one of the blocks that `Data::new` has made sure of.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
unsafe fn block_vbmi2<B: Coefficients>(
    data: &Data<'_>,
    gap: usize,
    at: &mut Places,
    prediction: &mut i16,
    block: &mut B,
) -> Option<()> {
    // SAFETY: the caller's.
    let of_block = unsafe { data.values(gap, at, prediction) }?;
    block.set_mask(of_block.mask);
    let out = block.values();
    let codes = of_block.coded.count_ones();
    // Each lane of 64 bits gets the bytes that hold its eight codes, and takes them apart.
    // SAFETY: the caller's.
    let (code, nibble, byte): (__m512i, __m512i, __m512i) =
        unsafe { (data.read(at.code / 8), data.read(at.nibble / 8), data.read(at.byte)) };
    let code = _mm512_permutexvar_epi8(by_lane(2), code);
    let code = _mm512_multishift_epi64_epi8(bits(STEPS_2, at.code), code);
    let code = _mm512_and_si512(code, _mm512_set1_epi8(3));
    let with_nibble = _bzhi_u64(_mm512_cmpeq_epi8_mask(code, _mm512_set1_epi8(3)), codes);
    let nibble = _mm512_permutexvar_epi8(by_lane(4), nibble);
    let nibble = _mm512_multishift_epi64_epi8(bits(STEPS_4, at.nibble), nibble);
    let nibble = _mm512_and_si512(nibble, _mm512_set1_epi8(15));
    let nibbles = with_nibble.count_ones();
    let with_byte = _bzhi_u64(_mm512_cmpeq_epi8_mask(nibble, _mm512_set1_epi8(15)), nibbles);
    let bytes = with_byte.count_ones();
    let wider = _bzhi_u64(_mm512_cmpge_epu8_mask(byte, _mm512_set1_epi8(WIDE_BYTE.cast_signed())), bytes);

    let large = _mm512_add_epi8(nibble, _mm512_set1_epi8(NIBBLE as i8));
    let large = _mm512_add_epi8(large, _mm512_maskz_expand_epi8(with_byte, byte));
    let values = _mm512_add_epi8(code, _mm512_set1_epi8(CODED as i8));
    let values = _mm512_mask_expand_epi8(values, with_nibble, large);
    let values = _mm512_mask_expand_epi8(_mm512_set1_epi8(1), of_block.coded, values);
    let values = _mm512_mask_sub_epi8(values, of_block.signs, _mm512_setzero_si512(), values);
    let values = _mm512_maskz_expand_epi8(of_block.mask, values);
    let values = if B::ZIGZAG {
        values
    } else {
        // SAFETY: the table has 64 bytes.
        _mm512_permutexvar_epi8(unsafe { _mm512_loadu_si512(ZIGZAG.as_ptr().cast()) }, values)
    };
    let lower = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(values));
    let upper = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64::<1>(values));
    // SAFETY: the block has 128 bytes.
    unsafe {
        _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_mask_set1_epi16(lower, 1, *prediction));
        _mm512_storeu_si512(out.as_mut_ptr().add(32).cast(), upper);
    }
    if wider != 0 {
        Wide { with_nibble, with_byte, wider }.set::<B>(data.0, at, &of_block, out)?;
    }
    at.code += 2 * codes as usize;
    at.nibble += 4 * nibbles as usize;
    at.byte += bytes as usize;
    at.wide += wider.count_ones() as usize;
    Some(())
}

/// Returns the bytes for each lane of 64 bits: the eight from `step` times its number on.
#[inline]
#[target_feature(enable = "avx512f")]
fn by_lane(step: i64) -> __m512i {
    let first = |lane: i64| 0x0706_0504_0302_0100 + lane * step * EACH;
    _mm512_set_epi64(first(7), first(6), first(5), first(4), first(3), first(2), first(1), first(0))
}

/// Returns the bits at which the values of a lane begin, if the first one begins at a bit of its byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn bits(steps: i64, first: usize) -> __m512i {
    _mm512_add_epi8(_mm512_set1_epi64(steps), _mm512_set1_epi8((first % 8) as i8))
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
}

impl Wide {
    #[cold]
    #[target_feature(enable = "bmi1,bmi2,popcnt")]
    fn set<B: Coefficients>(self, data: &[u8], places: &Places, of_block: &Values, out: &mut [i16; 64]) -> Option<()> {
        /// Returns the mask's bit that has `count` set bits before it.
        #[target_feature(enable = "bmi1,bmi2")]
        fn select(mask: u64, count: u32) -> u32 {
            _pdep_u64(1 << count, mask).trailing_zeros() & 63
        }
        let (mut left, mut more) = (self.wider, places.wide);
        while left != 0 {
            let at = left.trailing_zeros();
            left &= left - 1;
            let byte = data.get(places.byte + at as usize)?;
            let magnitude = WIDE + u32::from(byte - WIDE_BYTE) * 256 + u32::from(*data.get(more)?);
            more += 1;
            let value = i16::try_from(magnitude).ok()?;
            let number = select(of_block.coded, select(self.with_nibble, select(self.with_byte, at)));
            let negative = of_block.signs >> number & 1 != 0;
            let k = select(of_block.mask, number) as usize;
            let place = if B::ZIGZAG { k } else { usize::from(NATURAL[k]) };
            out[place] = if negative { -value } else { value };
        }
        Some(())
    }
}

/// As `Facts::new`.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn facts(block: &ZigzagBlock) -> Facts {
    // No closures here: what `array::map` calls is not compiled for these instructions.
    let mut values = [_mm256_setzero_si256(); 4];
    let mut magnitudes = values;
    for at in 0..4 {
        // SAFETY: the block has 128 bytes.
        values[at] = unsafe { _mm256_loadu_si256(block.values.as_ptr().add(16 * at).cast()) };
        magnitudes[at] = _mm256_abs_epi16(values[at]);
    }
    let two = above(&magnitudes, 1) & block.mask;
    let (three, four, five) = (above(&magnitudes, 2), above(&magnitudes, 3), above(&magnitudes, 4));
    Facts {
        signs: _pext_u64(top_bits(&values), block.mask),
        coded: _pext_u64(two, block.mask),
        code: [_pext_u64(three & !four | five, two), _pext_u64(four, two)],
        large: five & block.mask,
    }
}

/// Returns a bit for each of 64 numbers: whether it is above another one.
#[inline]
#[target_feature(enable = "avx2")]
fn above(parts: &[__m256i; 4], other: i16) -> u64 {
    let mut compared = *parts;
    for part in &mut compared {
        *part = _mm256_cmpgt_epi16(*part, _mm256_set1_epi16(other));
    }
    top_bits(&compared)
}

/// Returns the top bits of 64 numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn top_bits(parts: &[__m256i; 4]) -> u64 {
    let lower = _mm256_permute4x64_epi64::<0b1101_1000>(_mm256_packs_epi16(parts[0], parts[1]));
    let upper = _mm256_permute4x64_epi64::<0b1101_1000>(_mm256_packs_epi16(parts[2], parts[3]));
    let (lower, upper) = (_mm256_movemask_epi8(lower).cast_unsigned(), _mm256_movemask_epi8(upper).cast_unsigned());
    u64::from(lower) | u64::from(upper) << 32
}

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
            let kept = _mm_and_si128(_mm_loadl_epi64(place.cast()), ones_where_negative(order));
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
fn ones_where_negative(bytes: __m128i) -> __m128i {
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

/// As [`block_vbmi2`].
///
/// # Safety
/// It is one of the blocks that `Data::new` has made sure of.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
unsafe fn block_avx2<B: Coefficients>(
    data: &Data<'_>,
    gap: usize,
    at: &mut Places,
    prediction: &mut i16,
    block: &mut B,
) -> Option<()> {
    // SAFETY: the caller's.
    let of_block = unsafe { data.values(gap, at, prediction) }?;
    block.set_mask(of_block.mask);
    let out = block.values();
    let count = of_block.coded.count_ones();
    let mut values = [0_u8; 72];
    let three = _mm256_set1_epi8(3);
    let mut with_nibble = 0_u64;
    let store = |values: &mut [u8; 72], at: usize, value: __m256i| {
        if let Some(place) = values[at..].first_chunk_mut::<32>() {
            // SAFETY: the reference is to 32 bytes.
            unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), value) }
        }
    };
    for part in 0..count.div_ceil(32) {
        // SAFETY: the caller's.
        let codes = codes_of(unsafe { data.word(at.code + 64 * part as usize) });
        with_nibble |= u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(codes, three)).cast_unsigned()) << (32 * part);
        store(&mut values, 32 * part as usize, _mm256_add_epi8(codes, _mm256_set1_epi8(CODED as i8)));
    }
    with_nibble &= low(count);
    let nibbles = with_nibble.count_ones();
    let mut wide = None;
    let mut moved = Places { code: at.code + 2 * count as usize, ..*at };
    if nibbles > 0 {
        let mut large = [0_u8; 72];
        let mut with_byte = 0_u64;
        for part in 0..nibbles.div_ceil(16) {
            // SAFETY: the caller's.
            let word = unsafe { data.word(at.nibble + 64 * part as usize) };
            let pairs = _mm_cvtsi64_si128(word.cast_signed());
            let fifteen = _mm_set1_epi8(15);
            let nibble =
                _mm_unpacklo_epi8(_mm_and_si128(pairs, fifteen), _mm_and_si128(_mm_srli_epi16::<4>(pairs), fifteen));
            with_byte |= u64::from(_mm_movemask_epi8(_mm_cmpeq_epi8(nibble, fifteen)).cast_unsigned()) << (16 * part);
            if let Some(place) = large[16 * part as usize..].first_chunk_mut::<16>() {
                // SAFETY: the reference is to 16 bytes.
                unsafe {
                    _mm_storeu_si128(place.as_mut_ptr().cast(), _mm_add_epi8(nibble, _mm_set1_epi8(NIBBLE as i8)));
                }
            }
        }
        moved.nibble += 4 * nibbles as usize;
        with_byte &= low(nibbles);
        if with_byte != 0 {
            let count = with_byte.count_ones();
            let (mut more, mut wider) = ([0_u8; 72], 0_u64);
            // SAFETY: the caller's.
            more[..64].copy_from_slice(&unsafe { data.read::<[u8; 64]>(at.byte) });
            for (at, byte) in more[..(count & 63) as usize].iter_mut().enumerate() {
                wider |= u64::from(*byte >= WIDE_BYTE) << at;
                *byte = byte.wrapping_add(BYTE as u8);
            }
            spread(&more, with_byte, &mut large);
            if wider != 0 {
                wide = Some(Wide { with_nibble, with_byte, wider });
            }
            moved.byte += count as usize;
            moved.wide += wider.count_ones() as usize;
        }
        spread(&large, with_nibble, &mut values);
    }
    let mut all = [1_u8; 72];
    spread(&values, of_block.coded, &mut all);
    // Signs: eight bytes get a copy of a byte of eight signs, and each keeps its own bit.
    let mut signed = [0_u8; 72];
    for part in 0..of_block.mask.count_ones().div_ceil(32) {
        let bits = _mm256_set1_epi32((of_block.signs >> (32 * part)) as i32);
        #[rustfmt::skip]
        let order = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
        let single = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
        let negative = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(bits, order), single), single);
        // SAFETY: 32 of the 72 bytes lie after 0 or 32.
        let value = unsafe { _mm256_loadu_si256(all.as_ptr().add(32 * (part & 1) as usize).cast()) };
        store(&mut signed, 32 * part as usize, _mm256_sub_epi8(_mm256_xor_si256(value, negative), negative));
    }
    let mut zigzag = [0_u8; 72];
    spread(&signed, of_block.mask, &mut zigzag);
    // SAFETY: the parts of 16 bytes lie within the first 64 of `zigzag`, and the table has four rows of 64.
    // The block has 128 bytes.
    unsafe {
        let part = |at: usize| _mm256_broadcastsi128_si256(_mm_loadu_si128(zigzag.as_ptr().add(16 * at).cast()));
        let (a, b, c, d) = (part(0), part(1), part(2), part(3));
        for half in 0..2 {
            let order = |from: usize| _mm256_loadu_si256(ORDERS[from].as_ptr().add(32 * half).cast());
            let ab = _mm256_or_si256(_mm256_shuffle_epi8(a, order(0)), _mm256_shuffle_epi8(b, order(1)));
            let cd = _mm256_or_si256(_mm256_shuffle_epi8(c, order(2)), _mm256_shuffle_epi8(d, order(3)));
            let all = if B::ZIGZAG {
                _mm256_loadu_si256(zigzag.as_ptr().add(32 * half).cast())
            } else {
                _mm256_or_si256(ab, cd)
            };
            let place = out.as_mut_ptr().add(32 * half);
            _mm256_storeu_si256(place.cast(), _mm256_cvtepi8_epi16(_mm256_castsi256_si128(all)));
            _mm256_storeu_si256(place.add(16).cast(), _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(all)));
        }
    }
    out[0] = *prediction;
    if let Some(wide) = wide {
        wide.set::<B>(data.0, at, &of_block, out)?;
    }
    *at = moved;
    Some(())
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
