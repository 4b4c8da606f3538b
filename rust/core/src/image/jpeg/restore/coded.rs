//! `CodedWriter`: bits of a scan, with zeros stuffed after bytes of ones. `Output`: where they go.

use super::ZigzagBlock;
use super::codes::{AcCodes, Code};
#[cfg(target_arch = "x86_64")]
use super::vector::Symbols;

const MARKER: u8 = 0xFF;

/// Bytes of a JPEG, up to a given number.
#[derive(Debug)]
pub(super) struct Output<'a> {
    bytes: &'a mut Vec<u8>,
    left: usize,
}

impl<'a> Output<'a> {
    /// Appends at most `length` bytes; there is room for them.
    pub(super) const fn new(bytes: &'a mut Vec<u8>, length: usize) -> Self {
        Self { bytes, left: length }
    }

    /// Returns `None` if this would be too many bytes.
    pub(super) fn extend(&mut self, bytes: &[u8]) -> Option<()> {
        self.left = self.left.checked_sub(bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        Some(())
    }

    pub(super) const fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Appends coded data, and a zero after each byte of ones.
    fn extend_stuffed(&mut self, bytes: &[u8]) -> Option<()> {
        let mut from = 0;
        for at in memchr::memchr_iter(MARKER, bytes) {
            self.extend(&bytes[from..=at])?;
            self.extend(&[0])?;
            from = at + 1;
        }
        self.extend(&bytes[from..])
    }
}

/// Bytes that are collected before zeros are stuffed: a power of two.
const COLLECTED: usize = 1 << 13;
/// More bytes than the blocks of an MCU can have: ten of 64 codes of 32 bits, or an end run's bits.
const UNIT: usize = 10 * 64 * 4 + 256;
/// The most bits that are added at once: there are up to 7 before.
const MOST_BITS: u32 = 57;

/// Writes bits, the most significant one of a byte first.
pub(super) struct CodedWriter<'a, 'b> {
    bytes: Box<Bytes>,
    bits: Bits,
    out: &'a mut Output<'b>,
    ones: bool,
}

type Bytes = [u8; COLLECTED + 8];

/// Bits that do not fill a byte yet, and where they go. A loop that writes many codes has its own copy,
/// in registers.
#[derive(Debug, Clone, Copy, Default)]
struct Bits {
    at: usize,
    /// The last `count` bits; above them are older ones.
    word: u64,
    count: u32,
}

impl Bits {
    /// Adds up to 57 bits.
    #[inline(always)]
    fn push(&mut self, bytes: &mut Bytes, bits: u64, length: u32) {
        self.word = self.word << (length & 63) | bits;
        self.count += length;
        // There is always room for eight bytes.
        if let Some(next) = bytes[self.at & (COLLECTED - 1)..].first_chunk_mut() {
            *next = self.word.wrapping_shl(64 - self.count).to_be_bytes();
        }
        self.at += (self.count >> 3) as usize;
        self.count &= 7;
    }

    /// Adds a code. Returns `None` if it is missing.
    #[inline(always)]
    fn code(&mut self, bytes: &mut Bytes, code: Code) -> Option<()> {
        if code.length > MOST_BITS {
            return None;
        }
        self.push(bytes, code.bits.into(), code.length);
        Some(())
    }

    /// Adds two codes.
    #[inline(always)]
    fn codes(&mut self, bytes: &mut Bytes, first: Code, second: Code) -> Option<()> {
        let length = first.length + second.length;
        if length > MOST_BITS {
            self.code(bytes, first)?;
            return self.code(bytes, second);
        }
        self.push(bytes, u64::from(first.bits) << (second.length & 63) | u64::from(second.bits), length);
        Some(())
    }
}

impl<'a, 'b> CodedWriter<'a, 'b> {
    /// `ones`: what fills the last byte.
    pub(super) fn new(out: &'a mut Output<'b>, ones: bool) -> Self {
        Self { bytes: Box::new([0; COLLECTED + 8]), bits: Bits::default(), out, ones }
    }

    /// Prepares for the codes of a unit.
    #[inline(always)]
    pub(super) fn next_unit(&mut self) -> Option<()> {
        if self.bits.at > COLLECTED - UNIT { self.flush() } else { Some(()) }
    }

    /// Writes the whole bytes.
    #[cold]
    fn flush(&mut self) -> Option<()> {
        self.out.extend_stuffed(self.bytes.get(..self.bits.at)?)?;
        self.bits.at = 0;
        Some(())
    }

    /// Adds a code. Returns `None` if it is missing.
    pub(super) fn code(&mut self, code: Code) -> Option<()> {
        self.bits.code(&mut self.bytes, code)
    }

    /// Adds up to 64 bits; the bits above them are zeros.
    pub(super) fn bits(&mut self, bits: u64, length: u32) {
        if length > 32 {
            self.bits.push(&mut self.bytes, bits >> 32, length - 32);
        }
        self.bits.push(&mut self.bytes, bits & u64::from(u32::MAX), length.min(32));
    }

    /// Adds the codes of a block, after the one of its first coefficient. Returns `None` if one is
    /// missing.
    #[inline(always)]
    pub(super) fn block(&mut self, first: Code, codes: &AcCodes, block: &ZigzagBlock) -> Option<()> {
        let Self { bytes, bits: kept, .. } = self;
        let mut bits = *kept;
        let mut rest = block.mask & !1;
        let mut last = 0;
        // The codes go out in pairs.
        let mut before = first;
        while rest != 0 {
            let k = rest.trailing_zeros();
            rest &= rest - 1;
            let mut run = k - last - 1;
            while run > 15 {
                bits.codes(bytes, before, codes.alone(15))?;
                before = Code::EMPTY;
                run -= 16;
            }
            let code = codes.get(run, block.values[k as usize & 63]);
            bits.codes(bytes, before, code)?;
            before = Code::EMPTY;
            last = k;
            let next = rest.trailing_zeros();
            let run = next.wrapping_sub(k + 1);
            if run > 15 || rest == 0 {
                continue;
            }
            rest &= rest - 1;
            last = next;
            before = codes.get(run, block.values[next as usize & 63]);
        }
        let end = if last < 63 { codes.alone(0) } else { Code::EMPTY };
        bits.codes(bytes, before, end)?;
        *kept = bits;
        Some(())
    }

    /// As [`CodedWriter::block`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
    #[inline]
    pub(super) fn block_avx512(&mut self, first: Code, codes: &AcCodes, block: &ZigzagBlock) -> Option<()> {
        let Some(symbols) = Symbols::new(block) else { return self.block(first, codes, block) };
        let mut bits = self.bits;
        bits.code(&mut self.bytes, first)?;
        let count = symbols.count();
        for sixteen in 0..count.div_ceil(16) {
            let Some((pairs, lengths)) = symbols.pairs(sixteen, codes) else { return self.block(first, codes, block) };
            for at in 0..(count - 16 * sixteen).min(16).div_ceil(2) {
                bits.push(&mut self.bytes, pairs[at], lengths[at] as u32);
            }
        }
        self.bits = bits;
        Some(())
    }

    /// Fills the last byte, and writes all.
    pub(super) fn end(&mut self) -> Option<()> {
        let length = self.bits.count.wrapping_neg() & 7;
        self.bits.push(&mut self.bytes, if self.ones { (1 << length) - 1 } else { 0 }, length);
        self.flush()
    }

    /// Writes a marker after the end of a part.
    pub(super) fn marker(&mut self, marker: u8) -> Option<()> {
        self.end()?;
        self.out.extend(&[MARKER, marker])
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::image::jpeg::entropy::Huffman;
    use crate::image::jpeg::restore::vector::has_avx512;

    fn block(values: &[(usize, i16)]) -> ZigzagBlock {
        let mut block = ZigzagBlock::ZERO;
        for &(k, value) in values.iter().filter(|(_, value)| *value != 0) {
            block.values[k] = value;
            block.mask |= 1 << k;
        }
        block
    }

    proptest! {
        #[test]
        fn vector_instructions_write_the_same_codes(
            blocks in vec(vec((1..64_usize, prop_oneof![-3..4_i16, -1200..1200_i16, any::<i16>()]), 0..100), 1..8),
            full: bool,
        ) {
            if !has_avx512() {
                return Ok(());
            }
            let mut table = Huffman { counts: [0; 17], symbols: std::array::from_fn(|symbol| symbol as u8) };
            (table.counts[8], table.counts[9]) = if full { (255, 1) } else { (200, 0) };
            let codes = AcCodes::new(&table).unwrap();
            for values in blocks {
                let block = block(&values);
                let first = Code { bits: 5, length: 3 };
                let (mut one, mut other) = (Vec::new(), Vec::new());
                let (mut one_out, mut other_out) = (Output::new(&mut one, 4096), Output::new(&mut other, 4096));
                let mut portable = CodedWriter::new(&mut one_out, true);
                let done = portable.block(first, &codes, &block).and_then(|()| portable.end());
                let mut vector = CodedWriter::new(&mut other_out, true);
                // SAFETY: the processor has the instructions.
                #[allow(unsafe_code)]
                let also = unsafe { vector.block_avx512(first, &codes, &block) }.and_then(|()| vector.end());
                prop_assert_eq!((done, one), (also, other));
            }
        }
    }
}
