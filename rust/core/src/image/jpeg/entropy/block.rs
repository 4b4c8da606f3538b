//! Decoding of one block of 8 x 8 coefficients (ITU-T T.81, F.2.2).

use super::bits::Bits;
use super::tables::{AcTable, DcTable, END, LAST, LONG, SkipTable, value};
use crate::image::jpeg::zigzag::NATURAL;

/// The place of each coefficient of a block, in coded order. Numbers above 63, which stand for the
/// end of a block, lead to the last place.
const PLACES: [u8; 256] = {
    let mut places = [63; 256];
    let mut k = 0;
    while k < 64 {
        places[k] = NATURAL[k];
        k += 1;
    }
    places
};
static PLACE: [u8; 256] = PLACES;

#[inline(always)]
fn put<const ZIGZAG: bool>(block: &mut [i16; 64], k: u32, value: i16) {
    let place = if ZIGZAG { k.min(LAST) as usize } else { usize::from(PLACE[k as u8 as usize] & 63) };
    block[place] = value;
}

/// Decodes the difference of the first coefficient from the previous block's.
#[inline(always)]
pub(in crate::image::jpeg) fn difference(bits: &mut Bits<'_>, table: &DcTable) -> Option<i32> {
    bits.fill()?;
    let (length, size) = table.get(bits.peek())?;
    bits.drop(length);
    let difference = value(bits.peek(), 63 - size);
    bits.drop(size);
    Some(difference.into())
}

/// Decodes all coefficients but the first into a block of zeros, in natural order or in zigzag order. Returns `None` if a code is
/// unknown, if the block is too long, or at the end of the bytes.
#[inline(always)]
pub(in crate::image::jpeg) fn coefficients<const ZIGZAG: bool>(
    bits: &mut Bits<'_>,
    table: &AcTable,
    block: &mut [i16; 64],
) -> Option<()> {
    // The last coefficient that is decoded.
    let mut k = 0;
    loop {
        // Two entries have less bits than are there: 2 * (10 + 15), or once 16 + 15 for a long code.
        bits.fill()?;
        for _ in 0..2 {
            let symbols = table.get(bits.peek());
            let (advance, advance2) = symbols.advances();
            let first = k + advance;
            let last = first + advance2;
            // Of a single symbol both places are the same, and the second value is right. Behind
            // the end of a block, zeros go to the last place, which is still zero.
            put::<ZIGZAG>(block, first, symbols.first_value());
            put::<ZIGZAG>(block, last, symbols.last_value(bits.peek()));
            if last >= LAST {
                if last >= LONG {
                    let (length, advance, size) = table.find(bits.peek())?;
                    bits.drop(length);
                    if advance == END {
                        return Some(());
                    }
                    k += advance;
                    if k > LAST {
                        return None;
                    }
                    put::<ZIGZAG>(block, k, value(bits.peek(), 63 - size));
                    bits.drop(size);
                    if k == LAST {
                        return Some(());
                    }
                    break;
                }
                if first == LAST && last != LAST {
                    // The block ends with the first symbol: the second one belongs to the next.
                    block[63] = symbols.first_value();
                    bits.drop(symbols.first_bits());
                    return Some(());
                }
                bits.drop(symbols.bits());
                let ended = last >= END && !(LAST..END).contains(&first);
                return (last == LAST || ended).then_some(());
            }
            bits.drop(symbols.bits());
            k = last;
        }
    }
}

/// Moves over all coefficients but the first. Returns `None` as [`coefficients`] does.
#[inline(always)]
pub(super) fn skip(bits: &mut Bits<'_>, skip: &SkipTable, table: &AcTable) -> Option<()> {
    let mut k = 0;
    loop {
        bits.fill()?;
        for _ in 0..2 {
            let (length, advance, ends) = skip.get(bits.peek());
            let moved = k + advance;
            if ends || moved >= LAST || length == 0 {
                if length == 0 || moved > LAST || ends && moved == LAST {
                    // A code is long, or the block ends somewhere among these symbols.
                    let (length, advance, size) = table.find(bits.peek())?;
                    bits.drop(length + size);
                    k += advance;
                    if k >= LAST {
                        return (k == LAST || advance == END).then_some(());
                    }
                    break;
                }
                bits.drop(length);
                return Some(());
            }
            bits.drop(length);
            k = moved;
        }
    }
}
