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

    #[inline(always)]
    const fn with(self, value: i32) -> Self {
        Self { bits: self.bits.wrapping_add_signed(value), ..self }
    }
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

/// Returns what to add a value to for its code, and for the bits of the value: below zero these are
/// the complement of its amount.
const fn with_value(code: Code, size: u32, negative: bool) -> Code {
    let complement = if negative { (1 << size) - 1 } else { 0 };
    Code { bits: (code.bits << size) + complement, length: code.length + size }
}

/// The codes of the first coefficients, by the size of the value and its sign.
#[derive(Debug)]
pub(super) struct DcCodes([[Code; 2]; 32]);

impl DcCodes {
    /// Returns `None` if the table is not one.
    pub(super) fn new(table: &Huffman) -> Option<Self> {
        if !table.is_sound(true) {
            return None;
        }
        let mut by_size = [[Code::MISSING; 2]; 32];
        codes(table, |symbol, code| {
            let size = u32::from(symbol);
            if size <= MOST_SIZE {
                by_size[size as usize] = [false, true].map(|negative| with_value(code, size, negative));
            }
        })?;
        Some(Self(by_size))
    }

    /// Returns the code of a value.
    #[inline(always)]
    pub(super) fn get(&self, value: i32) -> Code {
        let size = u32::BITS - value.unsigned_abs().leading_zeros();
        self.0[size as usize & 31][usize::from(value < 0)].with(value)
    }
}

/// The largest size of a value whose code is in the packed table.
pub(super) const PACKED_SIZE: u32 = 10;

/// The codes of the other coefficients.
#[derive(Debug)]
pub(super) struct AcCodes {
    /// By the run of zeros, the size of the value and its sign.
    codes: [[Code; 2]; 512],
    /// As `codes`, with half as many sizes: the bits times 32, and the length. Zero if there is no
    /// code, or it is too long.
    packed: [u32; 512],
}

impl AcCodes {
    /// Returns `None` if the table is not one.
    pub(super) fn new(table: &Huffman) -> Option<Self> {
        if !table.is_sound(false) {
            return None;
        }
        let mut by_run = [[Code::MISSING; 2]; 512];
        codes(table, |symbol, code| {
            let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            by_run[run << 5 | size as usize] = [false, true].map(|negative| with_value(code, size, negative));
        })?;
        let mut packed = [0; 512];
        for (at, packed) in packed.iter_mut().enumerate() {
            let code = by_run[at >> 5 << 5 | at >> 1 & 15][at & 1];
            if at as u32 >> 1 & 15 <= PACKED_SIZE && code.length < 32 {
                *packed = code.bits << 5 | code.length;
            }
        }
        Some(Self { codes: by_run, packed })
    }

    /// The codes by `run << 5 | size << 1 | sign`: the bits times 32, and the length. Zero if there
    /// is no code, or the size is above [`PACKED_SIZE`].
    pub(super) const fn packed(&self) -> &[u32; 512] {
        &self.packed
    }

    /// Returns the code of a value that is not zero, after a run of at most 15 zeros.
    #[inline(always)]
    pub(super) fn get(&self, run: u32, value: i16) -> Code {
        let value = i32::from(value);
        let size = (value.unsigned_abs() | 1).ilog2() + 1;
        self.codes[(run << 5 | size) as usize & 511][usize::from(value < 0)].with(value)
    }

    /// Returns the code of a symbol without a value: 0 for the end of a block, 15 for sixteen zeros,
    /// else for a run of ends.
    #[inline(always)]
    pub(super) const fn alone(&self, run: u32) -> Code {
        self.codes[(run << 5) as usize & 511][0]
    }
}
