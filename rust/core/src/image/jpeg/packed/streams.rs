//! `Streams`: the making of a piece's streams.

use super::block::{BYTE, Facts, LARGE, LARGER, NIBBLE, SMALL, WIDE, WIDE_BYTE};
use super::way::Way;
use crate::image::jpeg::zigzag::ZigzagBlock;

/// Bits one after the other, the lowest of a byte first.
#[derive(Debug, Default)]
struct BitStream {
    bytes: Vec<u8>,
    last: u64,
    /// Bits of `last` that are in use, below 64.
    used: u32,
    count: u32,
}

impl BitStream {
    /// Adds the lower `count` bits of a number that has no others, up to 64.
    #[inline]
    fn push(&mut self, bits: u64, count: u32) {
        self.last |= bits << self.used;
        self.used += count;
        self.count += count;
        if self.used >= 64 {
            self.bytes.extend(self.last.to_le_bytes());
            self.used -= 64;
            self.last = if self.used == 0 { 0 } else { bits >> (count - self.used) };
        }
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes);
        out.extend_from_slice(&self.last.to_le_bytes()[..self.used.div_ceil(8) as usize]);
        self.bytes.clear();
        (self.last, self.used, self.count) = (0, 0, 0);
    }
}

/// The streams of a piece that is being made.
#[derive(Debug, Default)]
pub(super) struct Streams {
    heads: Vec<u8>,
    firsts: Vec<u8>,
    masks: Vec<u8>,
    signs: BitStream,
    coded: BitStream,
    codes: BitStream,
    nibbles: BitStream,
    bytes: Vec<u8>,
    wide: Vec<u8>,
    way: Way,
}

impl Streams {
    /// Adds a block. `prediction` is the first coefficient of the component's block before, and becomes
    /// this one's. Returns `None` if a coefficient is too large for any JPEG.
    pub(super) fn push(&mut self, block: &ZigzagBlock, prediction: &mut i16) -> Option<()> {
        let difference = i32::from(block.values[0]) - i32::from(*prediction);
        *prediction = block.values[0];
        let mask = block.mask >> 1;
        let masks = 8 - mask.leading_zeros() / 8;
        let small = if (-SMALL..=SMALL).contains(&difference) {
            (difference + SMALL).unsigned_abs() as u8
        } else {
            match i8::try_from(difference) {
                Ok(byte) if byte != LARGER => self.firsts.push(byte.cast_unsigned()),
                _ => {
                    self.firsts.push(LARGER.cast_unsigned());
                    self.firsts.extend(i16::try_from(difference).ok()?.to_le_bytes());
                }
            }
            LARGE
        };
        self.heads.push(small << 4 | masks as u8);
        // Eight bytes are copied faster than a few.
        self.masks.extend_from_slice(&mask.to_le_bytes());
        self.masks.truncate(self.masks.len() - 8 + masks as usize);
        let (count, facts) = (block.mask.count_ones(), facts(self.way, block));
        self.signs.push(facts.signs, count);
        self.coded.push(facts.coded, count);
        let codes = 2 * facts.coded.count_ones();
        let all = spread(facts.code[0]) | spread(facts.code[1]) << 1;
        self.codes.push(all as u64, codes.min(64));
        if codes > 64 {
            self.codes.push((all >> 64) as u64, codes - 64);
        }
        let mut left = facts.large;
        while left != 0 {
            let value = block.values[(left.trailing_zeros() & 63) as usize];
            left &= left - 1;
            self.large(value.unsigned_abs().into())?;
        }
        Some(())
    }

    #[inline]
    fn large(&mut self, magnitude: u32) -> Option<()> {
        self.nibbles.push((magnitude - NIBBLE).min(15).into(), 4);
        if magnitude >= WIDE {
            let above = i16::try_from(magnitude).ok()?.cast_unsigned() - WIDE as u16;
            self.bytes.push(WIDE_BYTE + (above >> 8) as u8);
            self.wide.push(above as u8);
        } else if magnitude >= BYTE {
            self.bytes.push((magnitude - BYTE) as u8);
        }
        Some(())
    }

    /// Appends the piece, and begins another one.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let counts = [
            self.firsts.len(),
            self.masks.len(),
            self.signs.count as usize,
            self.codes.count as usize / 2,
            self.nibbles.count as usize / 4,
            self.bytes.len(),
        ];
        for count in counts {
            out.extend(u16::try_from(count).ok()?.to_le_bytes());
        }
        for bytes in [&mut self.heads, &mut self.firsts, &mut self.masks] {
            out.append(bytes);
        }
        for bits in [&mut self.signs, &mut self.coded, &mut self.codes, &mut self.nibbles] {
            bits.write(out);
        }
        out.append(&mut self.bytes);
        out.append(&mut self.wide);
        Some(())
    }
}

/// Moves each bit of a number to twice its place.
fn spread(bits: u64) -> u128 {
    let half = |half: u64| {
        let mut all = half;
        for (shift, mask) in [
            (16, 0x0000_FFFF_0000_FFFF),
            (8, 0x00FF_00FF_00FF_00FF),
            (4, 0x0F0F_0F0F_0F0F_0F0F),
            (2, 0x3333_3333_3333_3333),
            (1, 0x5555_5555_5555_5555),
        ] {
            all = (all | all << shift) & mask;
        }
        u128::from(all)
    };
    half(bits & 0xFFFF_FFFF) | half(bits >> 32) << 64
}

fn facts(way: Way, block: &ZigzagBlock) -> Facts {
    match way {
        // SAFETY: the processor has the instructions: `Way::all` has asked it.
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        Way::Vbmi2 | Way::Avx2 => unsafe { super::x86::facts(block) },
        Way::Portable => Facts::new(block),
    }
}
