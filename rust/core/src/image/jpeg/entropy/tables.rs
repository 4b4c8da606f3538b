//! `DcTable`, `AcTable` and `SkipTable`: what the next bits of coded data mean.
//!
//! Tables and codes: ITU-T T.81, annexes C and F.2.2.

/// The bits that index a table. With fewer, fewer symbols fit; with more, the tables crowd the
/// level 1 cache.
const INDEX_BITS: u32 = 10;
const ENTRIES: usize = 1 << INDEX_BITS;

/// The coefficients of a block after the first.
pub(super) const LAST: u32 = 63;
/// An advance that leads beyond any block: the end of a block.
pub(super) const END: u32 = 128;
/// An advance that stands for a code that is too long for the index.
pub(super) const LONG: u32 = 192;
/// The advance of a run of sixteen zeros.
const SIXTEEN: u32 = 16;

/// A Huffman table as a JPEG defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::image::jpeg) struct Huffman {
    /// The number of codes of each length; the first entry is not used.
    pub(in crate::image::jpeg) counts: [u8; 17],
    /// The symbols, from the shortest code to the longest.
    pub(in crate::image::jpeg) symbols: [u8; 256],
}

/// The tables of first coefficients and of others, by their numbers.
pub(in crate::image::jpeg) type HuffmanTables = [[Option<Huffman>; 4]; 2];

impl Huffman {
    /// Reads the tables of a segment. Returns `None` if it is cut, or has other kinds of tables.
    pub(in crate::image::jpeg) fn read(mut segment: &[u8], tables: &mut HuffmanTables) -> Option<()> {
        while let Some((&kind, rest)) = segment.split_first() {
            let (lengths, rest) = rest.split_first_chunk::<16>()?;
            let (symbols, rest) = rest.split_at_checked(lengths.iter().map(|&count| usize::from(count)).sum())?;
            let mut table = Self { counts: [0; 17], symbols: [0; 256] };
            table.counts[1..].copy_from_slice(lengths);
            table.symbols.get_mut(..symbols.len())?.copy_from_slice(symbols);
            *tables.get_mut(usize::from(kind >> 4))?.get_mut(usize::from(kind & 15))? = Some(table);
            segment = rest;
        }
        Some(())
    }

    /// Reports whether libjpeg takes the table, for first coefficients or for others.
    pub(in crate::image::jpeg) fn is_sound(&self, first: bool) -> bool {
        let (mut code, mut count) = (0_u32, 0);
        for length in 1..=16 {
            code = 2 * code + u32::from(self.counts[length]);
            count += usize::from(self.counts[length]);
            // No code consists of ones only.
            if self.counts[length] > 0 && code >= 1 << length {
                return false;
            }
        }
        !first || self.symbols[..count.min(256)].iter().all(|&symbol| symbol < 16)
    }
}

/// A code's length, and its symbol.
type Code = (u32, u8);

/// The codes of a table, found one by one.
#[derive(Debug, Clone)]
pub(super) struct Codes {
    /// For each length, the first 16-bit number above its codes.
    above: [u32; 18],
    /// For each length, what to add to a code for the place of its symbol.
    offset: [i32; 18],
    symbols: [u8; 256],
}

impl Codes {
    fn new(table: &Huffman) -> Self {
        let mut codes = Self { above: [0; 18], offset: [0; 18], symbols: table.symbols };
        let (mut code, mut place) = (0, 0);
        for length in 1..=16 {
            let count = table.counts[length];
            codes.offset[length] = place - code as i32;
            code += u32::from(count);
            place += i32::from(count);
            codes.above[length] = code << (16 - length);
            code <<= 1;
        }
        codes.above[17] = u32::MAX;
        codes
    }

    /// Returns the code at the top of the bits, which may be of any length.
    #[cold]
    pub(super) fn find(&self, bits: u64) -> Option<Code> {
        let next = (bits >> 48) as u32;
        let length = (1..=16).find(|&length| next < self.above[length])?;
        let place = (next >> (16 - length)) as i32 + self.offset[length];
        Some((length as u32, self.symbols[place as usize & 255]))
    }
}

/// A code that fits an index: its length times 256, and its symbol. Zero if the code is too long.
type Short = u16;

/// Returns the code at the top of each index.
fn prefixes(table: &Huffman) -> [Short; ENTRIES] {
    let mut prefixes = [0; ENTRIES];
    let (mut at, mut place) = (0, 0);
    for length in 1..=INDEX_BITS as usize {
        for _ in 0..table.counts[length] {
            let end = at + (ENTRIES >> length);
            let Some(entries) = prefixes.get_mut(at..end) else { return prefixes };
            entries.fill((length as u16) << 8 | u16::from(table.symbols[place & 255]));
            (at, place) = (end, place + 1);
        }
    }
    prefixes
}

/// Returns the code at a bit of an index, if all of it is within the index.
#[inline(always)]
fn code_at(prefixes: &[Short; ENTRIES], index: usize, bit: u32) -> Option<Code> {
    // Bits that are shifted in are zero, and count as missing.
    let code = prefixes[(index << bit.min(INDEX_BITS)) & (ENTRIES - 1)];
    let length = u32::from(code >> 8);
    (length > 0 && length + bit <= INDEX_BITS).then_some((length, code as u8))
}

/// Returns the value that begins at the top (figure F.12). `unused` is 63 minus its size.
#[inline(always)]
pub(in crate::image::jpeg) const fn value(bits: u64, unused: u32) -> i16 {
    // A value below zero begins with 0, and is the complement of its amount.
    let below_zero = !((bits as i64) >> 63) as u64;
    let amount = ((bits ^ below_zero) >> 1) >> (unused & 63);
    (amount ^ below_zero).wrapping_sub(below_zero) as i16
}

/// A kind of table.
pub(in crate::image::jpeg) trait Table: Sized {
    fn new(table: &Huffman) -> Self;
}

/// Tables for the first coefficient of a block.
#[derive(Debug)]
pub(in crate::image::jpeg) struct DcTable {
    entries: [u32; ENTRIES],
    codes: Codes,
}

impl Table for DcTable {
    fn new(table: &Huffman) -> Self {
        let entry = |code: Short| {
            let size = u32::from(code & 15);
            if code == 0 { 0 } else { u32::from(code >> 8) | size << 8 }
        };
        Self { entries: prefixes(table).map(entry), codes: Codes::new(table) }
    }
}

impl DcTable {
    /// Returns the code's length, and the size of the value.
    #[inline(always)]
    pub(super) fn get(&self, bits: u64) -> Option<(u32, u32)> {
        let entry = self.entries[(bits >> (64 - INDEX_BITS)) as usize];
        if entry == 0 {
            let (length, size) = self.codes.find(bits)?;
            return Some((length, u32::from(size & 15)));
        }
        Some((entry & 0xFF, entry >> 8))
    }
}

/// Tables for symbols one by one.
#[derive(Debug)]
pub(in crate::image::jpeg) struct CodeTable {
    entries: [Short; ENTRIES],
    codes: Codes,
}

impl Table for CodeTable {
    fn new(table: &Huffman) -> Self {
        Self { entries: prefixes(table), codes: Codes::new(table) }
    }
}

impl CodeTable {
    /// Returns the code's length, and the symbol.
    #[inline(always)]
    pub(in crate::image::jpeg) fn get(&self, bits: u64) -> Option<(u32, u8)> {
        let entry = self.entries[(bits >> (64 - INDEX_BITS)) as usize];
        if entry == 0 { self.codes.find(bits) } else { Some((u32::from(entry >> 8), entry as u8)) }
    }
}

/// Tables for the other coefficients. An entry holds one symbol or two. Only the value of the last
/// one may lie behind the index: it is always read from the bits, which costs less than to ask.
#[derive(Debug)]
pub(in crate::image::jpeg) struct AcTable {
    entries: [Symbols; ENTRIES],
    codes: Codes,
}

/// One symbol or two that follow each other. From the lowest bit:
///
/// | bits | meaning |
/// |---:|---|
/// | 6 | bits of all |
/// | 6 | bits before the last value |
/// | 6 | 63 minus the size of the last value |
/// | 6 | bits of the first symbol and its value, if there are two symbols |
/// | 8 | advance of the first symbol: the zeros before its value, and the value |
/// | 8 | advance of the second symbol, else zero |
/// | 8 | zero |
/// | 16 | value of the first of two symbols, else zero |
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbols(u64);

impl Symbols {
    /// The next code is too long for the index.
    const LONG: Self = Self::new(0, 0, 0, (LONG, 0), 0);

    const fn new(before: u32, size: u32, first: u32, advances: (u32, u32), value: i16) -> Self {
        Self(
            (before + size) as u64
                | (before as u64) << 6
                | (63 - size as u64) << 12
                | (first as u64) << 18
                | (advances.0 as u64) << 24
                | (advances.1 as u64) << 32
                | (value as u16 as u64) << 48,
        )
    }

    #[inline(always)]
    pub(super) const fn bits(self) -> u32 {
        (self.0 & 63) as u32
    }

    #[inline(always)]
    pub(super) const fn first_bits(self) -> u32 {
        (self.0 >> 18 & 63) as u32
    }

    #[inline(always)]
    pub(super) const fn advances(self) -> (u32, u32) {
        ((self.0 >> 24 & 0xFF) as u32, (self.0 >> 32 & 0xFF) as u32)
    }

    #[inline(always)]
    pub(super) const fn first_value(self) -> i16 {
        (self.0 >> 48) as i16
    }

    /// The value of the last symbol, from the bits that were looked up.
    #[inline(always)]
    pub(super) const fn last_value(self, bits: u64) -> i16 {
        value(bits << (self.0 >> 6 & 63), (self.0 >> 12 & 63) as u32)
    }
}

/// Returns how far a symbol moves within a block, and the size of its value.
pub(super) const fn split(symbol: u8) -> (u32, u32) {
    let (run, size) = ((symbol >> 4) as u32, (symbol & 15) as u32);
    match (run, size) {
        (15, 0) => (SIXTEEN, 0),
        (_, 0) => (END, 0), // libjpeg takes any run without a value for the end
        _ => (run + 1, size),
    }
}

impl Table for AcTable {
    fn new(table: &Huffman) -> Self {
        let prefixes = prefixes(table);
        let entry = |index: usize| {
            let Some((length, symbol)) = code_at(&prefixes, index, 0) else { return Symbols::LONG };
            let (advance, size) = split(symbol);
            let bits = length + size;
            let second = if advance == END { None } else { code_at(&prefixes, index, bits) };
            let Some((length2, symbol2)) = second else { return Symbols::new(length, size, 0, (advance, 0), 0) };
            let (advance2, size2) = split(symbol2);
            let first = value((index as u64) << (64 - INDEX_BITS + length), 63 - size);
            Symbols::new(bits + length2, size2, bits, (advance, advance2), first)
        };
        Self { entries: std::array::from_fn(entry), codes: Codes::new(table) }
    }
}

impl AcTable {
    #[inline(always)]
    pub(super) fn get(&self, bits: u64) -> Symbols {
        self.entries[(bits >> (64 - INDEX_BITS)) as usize]
    }

    /// Returns the length of the code at the top of the bits, how far it moves within the block,
    /// and the size of its value.
    #[cold]
    pub(super) fn find(&self, bits: u64) -> Option<(u32, u32, u32)> {
        let (length, symbol) = self.codes.find(bits)?;
        let (advance, size) = split(symbol);
        Some((length, advance, size))
    }
}

/// Tables for coefficients that are not needed. An entry holds as many symbols as have their codes
/// within the index.
#[derive(Debug)]
pub(super) struct SkipTable {
    /// The bits of the symbols and their values (8 bits), their advance (8), and whether the end of
    /// the block follows (it is among the bits, not in the advance). Zero: the code is too long.
    entries: [u32; ENTRIES],
}

impl Table for SkipTable {
    fn new(table: &Huffman) -> Self {
        let prefixes = prefixes(table);
        let entry = |index: usize| {
            let (mut bits, mut moved) = (0, 0);
            while let Some((length, symbol)) = code_at(&prefixes, index, bits) {
                let (advance, size) = split(symbol);
                bits += length + size;
                if advance == END {
                    return bits | moved << 8 | 1 << 16;
                }
                moved += advance;
            }
            bits | moved << 8
        };
        Self { entries: std::array::from_fn(entry) }
    }
}

impl SkipTable {
    /// Returns the bits of the next symbols, their advance, and whether they end the block; all zero
    /// if the next code is too long for the index.
    #[inline(always)]
    pub(super) fn get(&self, bits: u64) -> (u32, u32, bool) {
        let entry = self.entries[(bits >> (64 - INDEX_BITS)) as usize];
        (entry & 0xFF, entry >> 8 & 0xFF, entry >> 16 != 0)
    }
}

/// The tables that were used last: most images of a data set share theirs.
#[derive(Debug)]
pub(in crate::image::jpeg) struct Recent<T> {
    /// Each with the number of its last use.
    tables: Vec<(u64, Huffman, Box<T>)>,
    uses: u64,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { tables: Vec::new(), uses: 0 }
    }
}

impl<T: Table> Recent<T> {
    /// More than the four that an image can have.
    const KEPT: usize = 12;

    /// Returns the place of a table. It stays the same while the next eleven are asked for.
    pub(in crate::image::jpeg) fn place(&mut self, table: &Huffman) -> usize {
        self.uses += 1;
        if let Some(place) = self.tables.iter().position(|(_, known, _)| known == table) {
            self.tables[place].0 = self.uses;
            return place;
        }
        let made = (self.uses, table.clone(), Box::new(T::new(table)));
        if self.tables.len() < Self::KEPT {
            self.tables.push(made);
            return self.tables.len() - 1;
        }
        let oldest = (0..Self::KEPT).min_by_key(|&place| self.tables[place].0).unwrap_or(0);
        self.tables[oldest] = made;
        oldest
    }

    pub(in crate::image::jpeg) fn at(&self, place: usize) -> &T {
        &self.tables[place].2
    }
}
