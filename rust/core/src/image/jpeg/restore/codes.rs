//! `DcCodes` and `AcCodes`: the codes of coefficients.

use crate::image::jpeg::entropy::Huffman;

/// A code, and bits after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code {
    pub(super) bits: u32,
    pub(super) length: u32,
}

impl Code {
    /// The table has no such code. Its length is beyond what can be written.
    pub(super) const MISSING: Self = Self { bits: 0, length: 64 };
    pub(super) const EMPTY: Self = Self { bits: 0, length: 0 };
}

/// The largest size of a value that a symbol can express.
const MOST_SIZE: u32 = 15;

/// Calls `each` with every symbol of a table and its code. Returns `None` if there are more codes of a
/// length than fit.
fn codes(table: &Huffman, mut each: impl FnMut(u8, Code)) -> Option<()> {
    let (mut code, mut symbols) = (0, table.symbols.iter());
    for length in 1..=16_u32 {
        for _ in 0..table.counts[length as usize] {
            if code >> length != 0 {
                return None;
            }
            each(*symbols.next()?, Code { bits: code, length });
            code += 1;
        }
        code <<= 1;
    }
    Some(())
}

/// Returns a code with room for a value after it. Returns `None` if this is too long.
const fn with_value(code: Code, size: u32) -> Code {
    Code { bits: code.bits << size, length: code.length + size }
}

/// The codes of the first coefficients, each with room for its value.
#[derive(Debug)]
pub(super) struct DcCodes([Code; 32]);

impl DcCodes {
    /// Returns `None` if the table is not one.
    pub(super) fn new(table: &Huffman) -> Option<Self> {
        let mut by_size = [Code::MISSING; 32];
        codes(table, |symbol, code| {
            let size = u32::from(symbol);
            if size <= MOST_SIZE {
                by_size[size as usize] = with_value(code, size);
            }
        })?;
        Some(Self(by_size))
    }

    /// Returns the code of a value.
    #[inline(always)]
    pub(super) fn get(&self, value: i32) -> Code {
        let size = size(value.unsigned_abs());
        let code = self.0[size as usize & 31];
        Code { bits: code.bits | amount(value, size), ..code }
    }
}

/// The codes of the other coefficients, each with room for its value.
#[derive(Debug)]
pub(super) struct AcCodes([Code; 512]);

impl AcCodes {
    /// Returns `None` if the table is not one.
    pub(super) fn new(table: &Huffman) -> Option<Self> {
        let mut by_run = [Code::MISSING; 512];
        codes(table, |symbol, code| {
            let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            by_run[run << 5 | size as usize] = with_value(code, size);
        })?;
        Some(Self(by_run))
    }

    /// Returns the code of a value after a run of at most 15 zeros.
    #[inline(always)]
    pub(super) fn get(&self, run: u32, value: i32) -> Code {
        let size = size(value.unsigned_abs());
        let code = self.0[(run << 5 | size) as usize & 511];
        Code { bits: code.bits | amount(value, size), ..code }
    }

    /// Returns the code of a symbol without a value: 0 for the end of a block, 15 for sixteen zeros,
    /// else for a run of ends.
    #[inline(always)]
    pub(super) const fn alone(&self, run: u32) -> Code {
        self.0[(run << 5) as usize & 511]
    }
}

/// Returns the bits of a number.
#[inline(always)]
const fn size(amount: u32) -> u32 {
    u32::BITS - amount.leading_zeros()
}

/// Returns the bits of a value: below zero, the complement of its amount.
#[inline(always)]
const fn amount(value: i32, size: u32) -> u32 {
    (value + (value >> 31)).cast_unsigned() & ((1 << size) - 1)
}
