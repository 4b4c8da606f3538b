//! The packed form of one block of coefficients (docs/format.md, "Packed JPEGs"): its packing, and its
//! unpacking without special instructions.

use crate::image::jpeg::zigzag::ZigzagBlock;

/// The most bytes of a packed block: its head, the first coefficient, the mask, the bits, and two bytes
/// for each of 63 large coefficients.
pub(super) const MOST: usize = 1 + 3 + 8 + 63 + 2 * 63;
/// Bytes that an unpacker may look at from a block's first one on.
pub(super) const AHEAD: usize = 320;

/// The difference that stands in the head: from -7 to 7, and a number for all others.
pub(super) const SMALL: i32 = 7;
pub(super) const LARGE: u8 = 15;
/// The difference in a byte that says that two bytes follow.
pub(super) const LARGER: i8 = i8::MIN;
/// The smallest magnitudes that take a code of two bits, four more, a byte, and a further one.
pub(super) const CODED: u32 = 2;
pub(super) const NIBBLE: u32 = 5;
pub(super) const BYTE: u32 = 20;
pub(super) const WIDE: u32 = 128;
/// The byte of the smallest magnitude that takes a further one.
pub(super) const WIDE_BYTE: u8 = (WIDE - BYTE) as u8;
/// The largest magnitude.
const LARGEST: u32 = i16::MAX as u32;

/// Bits one after the other, the lowest first.
struct BitWriter {
    bytes: [u8; 64],
    length: usize,
}

impl BitWriter {
    /// Adds the lower `count` bits of a number, which has no others. They are at most 504 together.
    #[inline]
    fn put(&mut self, bits: u64, count: u32) {
        let (at, shift) = (self.length / 8, self.length % 8);
        let all = u128::from(bits) << shift;
        for (byte, more) in self.bytes[at..].iter_mut().zip(all.to_le_bytes()).take(9) {
            *byte |= more;
        }
        self.length += count as usize;
    }
}

/// Appends a block. `prediction` is the first coefficient of the component's block before, and becomes
/// this one's. Returns `None` if a coefficient is too large for any JPEG.
pub(super) fn pack(block: &ZigzagBlock, prediction: &mut i16, out: &mut Vec<u8>) -> Option<()> {
    let difference = i32::from(block.values[0]) - i32::from(*prediction);
    *prediction = block.values[0];
    let mask = block.mask >> 1;
    let masks = 8 - mask.leading_zeros() / 8;
    let (mut head, mut length) = ([0; 12], 1);
    if (-SMALL..=SMALL).contains(&difference) {
        head[0] = ((difference + SMALL) as u8) << 4 | masks as u8;
    } else {
        head[0] = LARGE << 4 | masks as u8;
        match i8::try_from(difference) {
            Ok(byte) if byte != LARGER => {
                head[1] = byte as u8;
                length = 2;
            }
            _ => {
                head[1] = LARGER as u8;
                head[2..4].copy_from_slice(&i16::try_from(difference).ok()?.to_le_bytes());
                length = 4;
            }
        }
    }
    out.extend_from_slice(&head[..length]);
    if mask == 0 {
        return Some(());
    }
    out.extend_from_slice(&mask.to_le_bytes()[..masks as usize]);

    let (mut signs, mut coded, mut codes, mut code_count) = (0_u64, 0_u64, [0_u64; 2], 0_u32);
    let (mut nibbles, mut nibble_count) = ([0_u64; 4], 0_u32);
    let (mut bytes, mut byte_count) = ([0_u8; 63], 0);
    let (mut wide, mut wide_count) = ([0_u8; 63], 0);
    let (mut left, mut count) = (block.mask, 0_u32);
    while left != 0 {
        let value = block.values[(left.trailing_zeros() & 63) as usize];
        left &= left - 1;
        let magnitude = u32::from(value.unsigned_abs());
        signs |= u64::from(value < 0) << count;
        if magnitude >= CODED {
            coded |= 1 << count;
            let code = u64::from((magnitude - CODED).min(3));
            codes[(code_count / 32) as usize] |= code << (2 * code_count % 64);
            code_count += 1;
            if magnitude >= NIBBLE {
                let nibble = u64::from((magnitude - NIBBLE).min(15));
                nibbles[(nibble_count / 16) as usize] |= nibble << (4 * nibble_count % 64);
                nibble_count += 1;
                if magnitude >= BYTE {
                    if magnitude >= WIDE {
                        if magnitude > LARGEST {
                            return None;
                        }
                        let above = magnitude - WIDE;
                        bytes[byte_count] = WIDE_BYTE + (above >> 8) as u8;
                        wide[wide_count] = above as u8;
                        wide_count += 1;
                    } else {
                        bytes[byte_count] = (magnitude - BYTE) as u8;
                    }
                    byte_count += 1;
                }
            }
        }
        count += 1;
    }
    let mut bits = BitWriter { bytes: [0; 64], length: 0 };
    bits.put(signs, count);
    bits.put(coded, count);
    for (word, first) in codes.into_iter().zip([0, 32]) {
        bits.put(word, 2 * code_count.saturating_sub(first).min(32));
    }
    for (word, first) in nibbles.into_iter().zip([0, 16, 32, 48]) {
        bits.put(word, 4 * nibble_count.saturating_sub(first).min(16));
    }
    out.extend_from_slice(&bits.bytes[..bits.length.div_ceil(8)]);
    out.extend_from_slice(&bytes[..byte_count]);
    out.extend_from_slice(&wide[..wide_count]);
    Some(())
}

/// The parts of a packed block.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// The first coefficient's difference.
    pub difference: i32,
    /// Bit k: coefficient k is not zero.
    pub mask: u64,
    pub signs: u64,
    /// Which of them have a code.
    pub coded: u64,
    /// Where the bits begin.
    pub bits: usize,
}

impl Parts {
    /// Returns `None` if the head makes no sense.
    #[inline]
    pub(super) fn read(bytes: &[u8; AHEAD]) -> Option<Self> {
        let (masks, small) = (usize::from(bytes[0] & 15), bytes[0] >> 4);
        let mut at = 1;
        let mut difference = i32::from(small) - SMALL;
        if small == LARGE {
            difference = i32::from(bytes[1].cast_signed());
            at = 2;
            if difference == i32::from(LARGER) {
                difference = i16::from_le_bytes([bytes[2], bytes[3]]).into();
                at = 4;
            }
        }
        if masks > 8 {
            return None;
        }
        let mask = word(bytes, at) & low(8 * masks as u32);
        if mask >> 63 != 0 {
            return None;
        }
        at += masks;
        let count = mask.count_ones();
        let signs = word(bytes, at) & low(count);
        let coded = word_at(bytes, at, count) & low(count);
        Some(Self { difference, mask: mask << 1, signs, coded, bits: at })
    }

    fn places(&self, bytes: &[u8; AHEAD]) -> Places {
        let (code, codes) = (2 * self.mask.count_ones(), 2 * self.coded.count_ones());
        let nibble = code + codes;
        let threes = |from: u32| {
            let word = word_at(bytes, self.bits, code + from) & low(codes.saturating_sub(from));
            (word & word >> 1 & EACH_2).count_ones()
        };
        let nibbles = 4 * (threes(0) + if codes > 64 { threes(64) } else { 0 });
        let fifteens = |from: u32| {
            let word = word_at(bytes, self.bits, nibble + from) & low(nibbles - from);
            (word & word >> 1 & word >> 2 & word >> 3 & EACH_4).count_ones()
        };
        let byte = self.bits + (nibble + nibbles).div_ceil(8) as usize;
        let wide = byte + (0..nibbles).step_by(64).map(fifteens).sum::<u32>() as usize;
        Places { code, nibble, byte, wide }
    }
}

/// The lowest of every two and of every four bits.
const EACH_2: u64 = 0x5555_5555_5555_5555;
const EACH_4: u64 = 0x1111_1111_1111_1111;

/// Where the codes and nibbles of a block begin, as bits after its first, and its further bytes.
struct Places {
    code: u32,
    nibble: u32,
    byte: usize,
    wide: usize,
}

/// Returns the lowest `count` bits set, up to 64.
#[inline]
pub(super) fn low(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

#[inline]
fn word(bytes: &[u8; AHEAD], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Returns the 64 bits that begin `bit` bits after a byte.
#[inline]
pub(super) fn word_at(bytes: &[u8; AHEAD], at: usize, bit: u32) -> u64 {
    let (at, shift) = (at + bit as usize / 8, bit % 8);
    let all = bytes[at..].first_chunk().map_or(0, |word| u128::from_le_bytes(*word));
    (all >> shift) as u64
}

/// Unpacks a block, and passes each coefficient that is not zero to `put`, with its place in zigzag order.
/// Returns the length of the packed block; `None` if it makes no sense.
#[inline]
pub(super) fn unpack(bytes: &[u8; AHEAD], prediction: &mut i16, mut put: impl FnMut(usize, i16)) -> Option<usize> {
    let parts = Parts::read(bytes)?;
    *prediction = (i32::from(*prediction) + parts.difference) as i16;
    put(0, *prediction);
    let Places { mut code, mut nibble, mut byte, mut wide } = parts.places(bytes);
    let (mut left, mut signs, mut coded) = (parts.mask, parts.signs, parts.coded);
    while left != 0 {
        let mut magnitude = 1;
        if coded & 1 != 0 {
            let bits = word_at(bytes, parts.bits, code) as u32 & 3;
            code += 2;
            magnitude = CODED + bits;
            if bits == 3 {
                let bits = word_at(bytes, parts.bits, nibble) as u32 & 15;
                nibble += 4;
                magnitude = NIBBLE + bits;
                if bits == 15 {
                    let more = bytes[byte];
                    byte += 1;
                    magnitude = BYTE + u32::from(more);
                    if more >= WIDE_BYTE {
                        magnitude = WIDE + u32::from(more - WIDE_BYTE) * 256 + u32::from(bytes[wide]);
                        wide += 1;
                    }
                }
            }
        }
        let value = i16::try_from(magnitude).ok()?;
        put(left.trailing_zeros() as usize, if signs & 1 != 0 { -value } else { value });
        (left, signs, coded) = (left & (left - 1), signs >> 1, coded >> 1);
    }
    Some(wide)
}

/// Moves over a block: only the first coefficient counts.
#[inline]
pub(super) fn skip(bytes: &[u8; AHEAD], prediction: &mut i16) -> Option<usize> {
    let parts = Parts::read(bytes)?;
    *prediction = (i32::from(*prediction) + parts.difference) as i16;
    let Places { byte, wide, .. } = parts.places(bytes);
    Some(wide + bytes[byte..wide].iter().filter(|&&byte| byte >= WIDE_BYTE).count())
}
