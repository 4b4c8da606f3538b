//! `CodedWriter`: bits of a scan, with zeros stuffed after bytes of ones. `Output`: where they go.

use super::codes::Code;

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
    bytes: [u8; COLLECTED + 8],
    bits: Bits,
    out: &'a mut Output<'b>,
    ones: bool,
}

/// Bits that do not fill a byte yet, and where they go.
#[derive(Debug, Clone, Copy, Default)]
struct Bits {
    at: usize,
    /// The last `count` bits; above them are older ones.
    word: u64,
    count: u32,
}

impl<'a, 'b> CodedWriter<'a, 'b> {
    /// `ones`: what fills the last byte.
    pub(super) const fn new(out: &'a mut Output<'b>, ones: bool) -> Self {
        Self { bytes: [0; COLLECTED + 8], bits: Bits { at: 0, word: 0, count: 0 }, out, ones }
    }

    /// Prepares for the codes of a unit.
    #[inline(always)]
    pub(super) fn next_unit(&mut self) -> Option<()> {
        if self.bits.at > COLLECTED - UNIT { self.flush() } else { Some(()) }
    }

    /// Writes the whole bytes.
    fn flush(&mut self) -> Option<()> {
        self.out.extend_stuffed(self.bytes.get(..self.bits.at)?)?;
        self.bits.at = 0;
        Some(())
    }

    /// Adds up to 57 bits.
    #[inline(always)]
    fn push(&mut self, bits: u64, length: u32) {
        let Bits { at, word, count } = &mut self.bits;
        *word = *word << (length & 63) | bits;
        *count += length;
        let place = *at & (COLLECTED - 1);
        self.bytes[place..place + 8].copy_from_slice(&word.wrapping_shl(64 - *count).to_be_bytes());
        *at += (*count >> 3) as usize;
        *count &= 7;
    }

    /// Adds a code. Returns `None` if it is missing.
    #[inline(always)]
    pub(super) fn code(&mut self, code: Code) -> Option<()> {
        if code.length > MOST_BITS {
            return None;
        }
        self.push(code.bits.into(), code.length);
        Some(())
    }

    /// Adds two codes.
    #[inline(always)]
    pub(super) fn codes(&mut self, first: Code, second: Code) -> Option<()> {
        let length = first.length + second.length;
        if length > MOST_BITS {
            self.code(first)?;
            return self.code(second);
        }
        self.push(u64::from(first.bits) << (second.length & 63) | u64::from(second.bits), length);
        Some(())
    }

    /// Adds up to 64 bits; the bits above them are zeros.
    pub(super) fn bits(&mut self, bits: u64, length: u32) {
        if length > 32 {
            self.push(bits >> 32, length - 32);
        }
        self.push(bits & u64::from(u32::MAX), length.min(32));
    }

    /// Fills the last byte, and writes all.
    pub(super) fn end(&mut self) -> Option<()> {
        let length = self.bits.count.wrapping_neg() & 7;
        self.push(if self.ones { (1 << length) - 1 } else { 0 }, length);
        self.flush()
    }

    /// Writes a marker after the end of a part.
    pub(super) fn marker(&mut self, marker: u8) -> Option<()> {
        self.end()?;
        self.out.extend(&[MARKER, marker])
    }
}
