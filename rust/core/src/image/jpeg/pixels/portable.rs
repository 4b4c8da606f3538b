//! The kernels without special instructions. The others give the same values.
//!
//! They compute as libjpeg-turbo's instructions for x86-64 do, in 16 bits where these do: for
//! coefficients that no image has, values wrap or are limited in the same places.

use super::{Across, Block, Chroma, Rows};

/// Pairs of factors, as 13-bit fractions. A pair times two values gives a part of a sum.
pub(super) mod factors {
    /// Of inputs 2 and 6.
    pub(in super::super) const EVEN: [[i16; 2]; 2] = [[10703, 4433], [4433, -10704]];
    /// Of inputs 7 + 3 and 5 + 1.
    pub(in super::super) const BOTH: [[i16; 2]; 2] = [[-6436, 9633], [9633, 6437]];
    /// Of inputs 7 and 1.
    pub(in super::super) const OUTER: [[i16; 2]; 2] = [[-4927, -7373], [-7373, 4926]];
    /// Of inputs 5 and 3.
    pub(in super::super) const INNER: [[i16; 2]; 2] = [[-4176, -20995], [-20995, 4177]];
}

/// 0.402 and -0.228, as 15-bit fractions: red is luma + 1.402 cr, blue is luma + 1.772 cb.
pub(super) const RED: i16 = 13174;
pub(super) const BLUE: i16 = -7471;
/// -0.344 and -0.714, as 15-bit fractions: green is luma plus their sum.
pub(super) const GREEN: [i16; 2] = [-11277, -23401];

/// Dequantises blocks, and writes their samples side by side to eight rows that are `stride`
/// bytes apart. The samples are `flip` XOR their values from -128 to 127.
pub(super) fn transform(blocks: &[&Block], quantisation: &Block, flip: u8, out: &mut [u8], stride: usize) {
    for (at, block) in blocks.iter().enumerate() {
        for (row, samples) in samples(block, quantisation).into_iter().enumerate() {
            let out = &mut out[row * stride + 8 * at..][..8];
            out.iter_mut().zip(samples).for_each(|(out, sample)| *out = sample.cast_unsigned() ^ flip);
        }
    }
}

fn samples(block: &Block, quantisation: &Block) -> [[i8; 8]; 8] {
    let mut rows = [[0_i16; 8]; 8];
    for (at, (value, factor)) in block.iter().zip(quantisation).enumerate() {
        rows[at / 8][at % 8] = value.wrapping_mul(*factor);
    }
    let columns = if block[8..].iter().all(|&value| value == 0) {
        // Here libjpeg-turbo does not limit values.
        rows[0].map(|value| [value << 2; 8])
    } else {
        turn(pass(rows, 11))
    };
    turn(pass(columns, 18)).map(|row| row.map(|value| value.clamp(-128, 127) as i8))
}

fn turn(rows: [[i16; 8]; 8]) -> [[i16; 8]; 8] {
    std::array::from_fn(|at| rows.map(|row| row[at]))
}

/// Transforms eight columns, and drops bits from the results.
fn pass(rows: [[i16; 8]; 8], drop: u32) -> [[i16; 8]; 8] {
    let mut out = [[0; 8]; 8];
    for at in 0..8 {
        let input = rows.map(|row| row[at]);
        let sum = |[a, b]: [i16; 2], x: i16, y: i16| i32::from(a) * i32::from(x) + i32::from(b) * i32::from(y);
        let half = 1 << (drop - 1);
        let first = (i32::from(input[0].wrapping_add(input[4])) << 13) + half;
        let second = (i32::from(input[0].wrapping_sub(input[4])) << 13) + half;
        let [third, fourth] = factors::EVEN.map(|factors| sum(factors, input[2], input[6]));
        let even = [first + third, second + fourth, second - fourth, first - third];
        let (a, b) = (input[7].wrapping_add(input[3]), input[5].wrapping_add(input[1]));
        let both = factors::BOTH.map(|factors| sum(factors, a, b));
        let outer = factors::OUTER.map(|factors| sum(factors, input[7], input[1]));
        let inner = factors::INNER.map(|factors| sum(factors, input[5], input[3]));
        let odd = [
            outer[1].wrapping_add(both[1]),
            inner[1].wrapping_add(both[0]),
            inner[0].wrapping_add(both[1]),
            outer[0].wrapping_add(both[0]),
        ];
        for n in 0..4 {
            let limited = |sum: i32| (sum >> drop).clamp(i16::MIN.into(), i16::MAX.into()) as i16;
            out[n][at] = limited(even[n].wrapping_add(odd[n]));
            out[7 - n][at] = limited(even[n].wrapping_sub(odd[n]));
        }
    }
    out
}

/// Stretches a row of chroma to pairs of pixels. Each sample has one before it in the slices: the
/// first pair comes from the second one.
pub(super) fn spread(across: Across, chroma: [&[u8]; 2], pairs: &mut [Vec<[i16; 2]>; 2], count: usize) {
    let value = |channel: usize, at: usize| i16::from(chroma[channel][at].cast_signed());
    for pair in 0..count {
        for (side, out) in pairs.iter_mut().enumerate() {
            out[pair] = [0, 1].map(|channel| match across {
                Across::Fancy => 3 * value(channel, pair + 1) + value(channel, pair + 2 * side),
                Across::Copied => value(channel, pair + 1),
                Across::Full => value(channel, 1 + 2 * pair + side),
            });
        }
    }
}

/// Returns the chroma of a pixel.
fn blend(rows: &Rows<'_>, chroma: &Chroma, x: usize) -> [i16; 2] {
    if chroma.is_whole() {
        return rows.whole.map(|samples| samples[x].cast_signed().into());
    }
    let (side, pair) = (x % 2, x / 2);
    let (near, far) = (rows.near[side][pair], rows.far[side][pair]);
    [0, 1].map(|channel| {
        let sum = if chroma.blends { 3 * near[channel] + far[channel] } else { near[channel] };
        (sum + rows.bias[side]) >> chroma.shift
    })
}

fn ycc_to_rgb(luma: u8, [cb, cr]: [i16; 2]) -> [u8; 3] {
    let product = |value: i16, factor: i16| i32::from(value) * i32::from(factor);
    let half = 1 << 14;
    let red = i32::from(cr) + ((product(cr, RED) + half) >> 15);
    let green = (product(cb, GREEN[0]) + product(cr, GREEN[1]) + half) >> 15;
    let blue = 2 * i32::from(cb) + ((product(cb, BLUE) + half) >> 15);
    [red, green, blue].map(|difference| (i32::from(luma) + difference).clamp(0, 255).cast_unsigned() as u8)
}

/// Writes a row of RGB from luma and chroma.
pub(super) fn row(rows: &Rows<'_>, chroma: &Chroma, out: &mut [u8]) {
    for (x, out) in out.as_chunks_mut::<3>().0.iter_mut().enumerate() {
        *out = ycc_to_rgb(rows.luma[x], blend(rows, chroma, x));
    }
}

/// Returns a sample that is stored as a number from -128 to 127.
fn unsigned(value: i16) -> u8 {
    (value + 128).cast_unsigned() as u8
}

/// Writes a row of RGB from components that are RGB.
pub(super) fn rgb_row(rows: &Rows<'_>, chroma: &Chroma, out: &mut [u8]) {
    for (x, out) in out.as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let [green, blue] = blend(rows, chroma, x).map(unsigned);
        *out = [rows.luma[x], green, blue];
    }
}

/// Writes a row of CMYK. With `converts`, its first components are luma and chroma.
pub(super) fn cmyk_row(rows: &Rows<'_>, black: &[u8], chroma: &Chroma, converts: bool, out: &mut [u8]) {
    for (x, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (luma, values) = (rows.luma[x], blend(rows, chroma, x));
        let [c, m, y] = if converts {
            ycc_to_rgb(luma, values).map(|value| 255 - value)
        } else {
            [luma, unsigned(values[0]), unsigned(values[1])]
        };
        *out = [c, m, y, black[x]];
    }
}
