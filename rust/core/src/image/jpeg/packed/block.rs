//! The streams of a piece, a few MCUs of a row (docs/format.md, "Packed JPEGs"): their layout, and their
//! reading without special instructions.

use crate::image::jpeg::zigzag::{Coefficients, NATURAL, ZigzagBlock};

/// Bytes before the streams of a piece.
const HEAD: usize = 12;
/// The most blocks that are read at once: at least one MCU. The reader checks its place after each batch.
pub(super) const AT_ONCE: usize = 48;
/// Bytes after a piece at which its reader may look.
pub(super) const AHEAD: usize = AT_ONCE * 63 + 128;

/// The difference that stands in a block's head: from -7 to 7, and a number for all others.
pub(super) const SMALL: i32 = 7;
pub(super) const LARGE: u8 = 15;
/// The byte of a difference that says that two bytes follow.
pub(super) const LARGER: i8 = i8::MIN;
/// The smallest magnitudes that take a code of two bits, four bits more, a byte, and another one.
pub(super) const CODED: u32 = 2;
pub(super) const NIBBLE: u32 = 5;
pub(super) const BYTE: u32 = 20;
pub(super) const WIDE: u32 = 128;
/// The byte of the smallest magnitude that takes another one.
pub(super) const WIDE_BYTE: u8 = (WIDE - BYTE) as u8;

const _: () = assert!(NIBBLE == CODED + 3 && BYTE == NIBBLE + 15);

/// Facts of the coefficients of a block that are not zero.
pub(super) struct Facts {
    /// A bit for each of them: whether it is negative, and whether it has a code.
    pub(super) signs: u64,
    pub(super) coded: u64,
    /// The lower and the upper bit of the code, for each that has one.
    pub(super) code: [u64; 2],
    /// Bit k: coefficient k has a nibble.
    pub(super) large: u64,
}

impl Facts {
    pub(super) fn new(block: &ZigzagBlock) -> Self {
        let mut facts = Self { signs: 0, coded: 0, code: [0; 2], large: 0 };
        let (mut left, mut count, mut codes) = (block.mask, 0, 0);
        while left != 0 {
            let k = left.trailing_zeros() & 63;
            left &= left - 1;
            let value = block.values[k as usize];
            let magnitude = u32::from(value.unsigned_abs());
            facts.signs |= u64::from(value < 0) << count;
            facts.coded |= u64::from(magnitude >= CODED) << count;
            if magnitude >= CODED {
                let code = u64::from((magnitude - CODED).min(3));
                facts.code[0] |= (code & 1) << codes;
                facts.code[1] |= (code >> 1) << codes;
                codes += 1;
            }
            facts.large |= u64::from(magnitude >= NIBBLE) << k;
            count += 1;
        }
        facts
    }
}

/// Places in the streams of a piece: bytes of the data, or bits of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) head: usize,
    pub(super) first: usize,
    pub(super) mask: usize,
    /// A bit, of signs.
    pub(super) value: usize,
    /// A bit.
    pub(super) code: usize,
    /// A bit.
    pub(super) nibble: usize,
    pub(super) byte: usize,
    pub(super) wide: usize,
}

/// The streams of a piece of so many blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) starts: Places,
    pub(super) ends: Places,
    /// Bits from a sign to the bit that says whether the same value has a code.
    pub(super) gap: usize,
}

impl Piece {
    /// Reads the head of the piece that lies at `start..end`. Returns `None` if it makes no sense.
    pub(super) fn read(data: &[u8], start: usize, end: usize, blocks: usize) -> Option<Self> {
        let counts: &[[u8; 2]] = data.get(start..end)?.get(..HEAD)?.as_chunks().0;
        let count = |at: usize| usize::from(u16::from_le_bytes(counts[at]));
        let head = start + HEAD;
        let first = head + blocks;
        let mask = first + count(0);
        let value = mask + count(1);
        let coded = count(2).div_ceil(8);
        let code = value + 2 * coded;
        let nibble = code + (2 * count(3)).div_ceil(8);
        let byte = nibble + (4 * count(4)).div_ceil(8);
        let wide = byte + count(5);
        let starts = Places { head, first, mask, value: 8 * value, code: 8 * code, nibble: 8 * nibble, byte, wide };
        let ends = Places {
            head: first,
            first: mask,
            mask: value,
            value: 8 * value + count(2),
            code: 8 * code + 2 * count(3),
            nibble: 8 * nibble + 4 * count(4),
            byte: wide,
            wide: end,
        };
        (wide <= end).then_some(Self { starts, ends, gap: 8 * coded })
    }
}

impl Places {
    /// Reports whether no place lies behind another one.
    pub(super) fn within(&self, ends: &Self) -> bool {
        self.head <= ends.head
            && self.first <= ends.first
            && self.mask <= ends.mask
            && self.value <= ends.value
            && self.code <= ends.code
            && self.nibble <= ends.nibble
            && self.byte <= ends.byte
            && self.wide <= ends.wide
    }
}

/// A block's first coefficient and its masks.
pub(super) struct Values {
    /// Bit k: coefficient k is not zero.
    pub(super) mask: u64,
    pub(super) signs: u64,
    /// Which of them have a code.
    pub(super) coded: u64,
}

/// Returns the lowest `count` bits set, up to 64.
#[inline]
pub(super) fn low(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Returns the 64 bits that begin at a bit.
#[inline]
pub(super) fn word(data: &[u8], bit: usize) -> u64 {
    let all = data.get(bit / 8..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u128::from_le_bytes(*bytes));
    (all >> (bit % 8)) as u64
}

/// Reads the first coefficient of a block into `prediction`, and returns its mask; `None` if it has more than
/// 63 bits.
#[inline]
pub(super) fn head(data: &[u8], at: &mut Places, prediction: &mut i16) -> Option<u64> {
    let head = *data.get(at.head)?;
    let (small, masks) = (head >> 4, usize::from(head & 15));
    at.head += 1;
    let mut difference = i32::from(small) - SMALL;
    if small == LARGE {
        difference = i32::from(data.get(at.first)?.cast_signed());
        at.first += 1;
        if difference == i32::from(LARGER) {
            difference = i16::from_le_bytes(*data.get(at.first..)?.first_chunk()?).into();
            at.first += 2;
        }
    }
    *prediction = (i32::from(*prediction) + difference) as i16;
    let mask = u64::from_le_bytes(*data.get(at.mask..)?.first_chunk()?) & low(8 * masks as u32);
    at.mask += masks;
    (masks <= 8 && mask >> 63 == 0).then_some(mask << 1)
}

impl Values {
    /// Reads the next block's, as [`head`].
    #[inline]
    pub(super) fn read(data: &[u8], gap: usize, at: &mut Places, prediction: &mut i16) -> Option<Self> {
        let mask = head(data, at, prediction)?;
        let count = mask.count_ones();
        let signs = word(data, at.value) & low(count);
        let coded = word(data, at.value + gap) & low(count);
        at.value += count as usize;
        Some(Self { mask, signs, coded })
    }
}

/// Reads up to [`AT_ONCE`] blocks of MCUs. The component of each is given. Returns `None` if they make no sense.
pub(super) fn unpack<B: Coefficients>(
    data: &[u8],
    gap: usize,
    at: &mut Places,
    predictions: &mut [i16; 4],
    components: &[u8; AT_ONCE],
    blocks: &mut [B],
) -> Option<()> {
    for (component, block) in components.iter().zip(blocks) {
        let prediction = &mut predictions[usize::from(component & 3)];
        let Values { mut mask, mut signs, mut coded } = Values::read(data, gap, at, prediction)?;
        block.set_mask(mask);
        let values = block.values();
        *values = [0; 64];
        values[0] = *prediction;
        let mut bits = word(data, at.code);
        let mut number = 0;
        while mask != 0 {
            let mut magnitude = 1;
            if coded & 1 != 0 {
                if number == 32 {
                    bits = word(data, at.code);
                }
                number += 1;
                at.code += 2;
                magnitude = CODED + (bits as u32 & 3);
                if bits & 3 == 3 {
                    magnitude = large(data, at)?;
                }
                bits >>= 2;
            }
            let value = i16::try_from(magnitude).ok()?;
            let k = (mask.trailing_zeros() & 63) as usize;
            let place = if B::ZIGZAG { k } else { usize::from(NATURAL[k] & 63) };
            values[place] = if signs & 1 != 0 { -value } else { value };
            (mask, signs, coded) = (mask & (mask - 1), signs >> 1, coded >> 1);
        }
    }
    Some(())
}

/// Reads a magnitude that has a nibble.
#[inline]
fn large(data: &[u8], at: &mut Places) -> Option<u32> {
    let nibble = data.get(at.nibble / 8)? >> (at.nibble % 8) & 15;
    at.nibble += 4;
    if nibble < 15 {
        return Some(NIBBLE + u32::from(nibble));
    }
    let byte = *data.get(at.byte)?;
    at.byte += 1;
    if byte < WIDE_BYTE {
        return Some(BYTE + u32::from(byte));
    }
    let more = u32::from(*data.get(at.wide)?);
    at.wide += 1;
    Some(WIDE + 256 * u32::from(byte - WIDE_BYTE) + more)
}

/// Moves over the blocks of MCUs.
pub(super) fn skip(
    data: &[u8],
    gap: usize,
    at: &mut Places,
    predictions: &mut [i16; 4],
    components: impl Iterator<Item = u8>,
) -> Option<()> {
    const EACH_2: u64 = 0x5555_5555_5555_5555;
    const EACH_4: u64 = 0x1111_1111_1111_1111;
    let mut values = 0;
    for component in components {
        values += head(data, at, &mut predictions[usize::from(component & 3)])?.count_ones() as usize;
    }
    // Sums over the words of the next `bits` bits.
    let sum = |from: usize, bits: usize, count: fn(u64) -> u32| {
        let one = |bit: usize| count(word(data, from + bit) & low((bits - bit).min(64) as u32));
        (0..bits).step_by(64).map(one).sum::<u32>() as usize
    };
    let codes = 2 * sum(at.value + gap, values, u64::count_ones);
    let nibbles = 4 * sum(at.code, codes, |word| (word & word >> 1 & EACH_2).count_ones());
    let bytes = sum(at.nibble, nibbles, |word| (word & word >> 1 & word >> 2 & word >> 3 & EACH_4).count_ones());
    let wide = data.get(at.byte..at.byte + bytes)?.iter().filter(|&&byte| byte >= WIDE_BYTE).count();
    at.value += values;
    at.code += codes;
    at.nibble += nibbles;
    at.byte += bytes;
    at.wide += wide;
    Some(())
}
