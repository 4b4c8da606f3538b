//! Packed JPEGs: another form of the same JPEG, whose coefficients are read several times as fast
//! (docs/format.md, "Packed JPEGs"). It does not read files.
//!
//! `streams` makes the streams of a piece, a few MCUs of a row, and `block` reads them, or `x86` by special
//! instructions, where `cursor` has a place. `window` reads the MCUs of a rectangle. `convert` packs whole
//! JPEGs, and makes them again, with `super::restore`.

mod block;
mod convert;
mod cursor;
mod streams;
mod way;
mod window;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use convert::{pack_jpeg, unpack_jpeg};
pub(super) use window::PackedWindow;

use self::block::AT_ONCE;
use self::cursor::Cursor;
use self::streams::Streams;
use self::way::Way;
use super::entropy::MOST_BLOCKS;
use super::segments::{has_no_pixels, mcus, segments};
use super::zigzag::ZigzagBlock;
use crate::image::probe::{JpegInfo, jpeg_info};
use crate::memory;

/// The first bytes. No image begins with them.
pub(in crate::image) const MAGIC: [u8; 4] = *b"\x8Apj1";
/// Bytes before the JPEG's headers.
const HEAD: usize = 16;
/// MCUs of a piece, in rows that are longer than two.
const PIECE: u32 = 32;

/// A packed JPEG whose parts fit together.
#[derive(Debug, Clone, Copy)]
pub(in crate::image) struct Packed<'a> {
    /// The JPEG without the coded data of its scans.
    pub(in crate::image) headers: &'a [u8],
    /// What its headers say.
    pub(in crate::image) info: JpegInfo,
    /// Whether the bits that fill up the last bytes of coded data are ones.
    pub(in crate::image) ones: bool,
    /// MCUs of a piece.
    interval: u32,
    /// The end of each piece, counted from the start of the data.
    ends: &'a [[u8; 4]],
    data: &'a [u8],
}

/// Returns the component of each block of an MCU; `None` if there are too many.
fn components(info: &JpegInfo) -> Option<Vec<u8>> {
    if info.components == 1 {
        return Some(vec![0]);
    }
    let used = info.sampling.get(..usize::from(info.components))?;
    let blocks = used.iter().zip(0..).flat_map(|(component, number)| {
        std::iter::repeat_n(number, usize::from(component.horizontal) * usize::from(component.vertical))
    });
    let blocks: Vec<u8> = blocks.collect();
    (blocks.len() <= MOST_BLOCKS).then_some(blocks)
}

/// Reports whether the coefficients of a JPEG can be packed, according to its headers.
pub(super) fn can_be_packed(info: &JpegInfo) -> bool {
    !info.arithmetic
        && !info.lossless
        && info.precision == 8
        && matches!(info.components, 1 | 3 | 4)
        && components(info).is_some()
}

/// Reports whether quantisation tables may stand after the first scan's header.
fn has_late_tables(headers: &[u8], info: &JpegInfo) -> bool {
    memchr::memmem::find(&headers[info.scan_start.min(headers.len())..], &[0xFF, 0xDB]).is_some()
}

/// Packs the headers of a JPEG, and its blocks in the order of its MCUs, to `out`. Returns `None` if it cannot
/// be packed.
pub(super) fn pack(headers: &[u8], ones: bool, blocks: &[ZigzagBlock], out: &mut Vec<u8>) -> Option<()> {
    let info = jpeg_info(headers).ok().filter(can_be_packed)?;
    let of_mcu = components(&info)?;
    if has_late_tables(headers, &info) {
        return None;
    }
    let (columns, rows) = mcus(&info);
    if blocks.len() as u64 != u64::from(columns) * u64::from(rows) * of_mcu.len() as u64 {
        return None;
    }
    let interval = if columns > 2 * PIECE { PIECE } else { columns };
    out.clear();
    out.extend(MAGIC);
    out.extend([u8::from(ones), 0]);
    out.extend(u16::try_from(interval).ok()?.to_le_bytes());
    out.extend(u32::try_from(headers.len()).ok()?.to_le_bytes());
    let pieces = columns.div_ceil(interval) * rows;
    out.extend(pieces.to_le_bytes());
    out.extend_from_slice(headers);
    let ends = out.len();
    out.resize(ends + 4 * pieces as usize, 0);
    let start = out.len();
    let (mut piece, mut streams) = (0, Streams::default());
    for row in blocks.chunks(columns as usize * of_mcu.len()) {
        for blocks in row.chunks(interval as usize * of_mcu.len()) {
            let mut predictions = [0; 4];
            for (block, component) in blocks.iter().zip(of_mcu.iter().cycle()) {
                streams.push(block, &mut predictions[usize::from(component & 3)])?;
            }
            streams.write(out)?;
            let end = u32::try_from(out.len() - start).ok()?;
            out[ends + 4 * piece..][..4].copy_from_slice(&end.to_le_bytes());
            piece += 1;
        }
    }
    Some(())
}

/// Reports whether bytes are a packed JPEG, according to their first ones.
pub(in crate::image) fn is_packed(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Returns a JPEG's bytes up to its coded data at least, whether it is packed or not.
pub(in crate::image) fn jpeg_headers(bytes: &[u8]) -> &[u8] {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>().filter(|_| is_packed(bytes)) else { return bytes };
    let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
    &rest[..length.min(rest.len())]
}

impl<'a> Packed<'a> {
    /// Reads the head. Returns `None` if it makes no sense.
    pub(in crate::image) fn read(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if !head.starts_with(&MAGIC) || head[4] > 1 || head[5] != 0 {
            return None;
        }
        let interval = u32::from(u16::from_le_bytes([head[6], head[7]]));
        let (headers, rest) = rest.split_at_checked(number(8) as usize)?;
        let info = jpeg_info(headers).ok().filter(can_be_packed)?;
        let (columns, rows) = mcus(&info);
        if !(1..=columns).contains(&interval) || number(12) != columns.div_ceil(interval) * rows {
            return None;
        }
        let (ends, data) = rest.split_at_checked(4 * number(12) as usize)?;
        let (ends, _) = ends.as_chunks();
        (ends.last() == Some(&u32::try_from(data.len()).ok()?.to_le_bytes())).then_some(Self {
            headers,
            info,
            ones: head[4] == 1,
            interval,
            ends,
            data,
        })
    }

    /// Writes the headers of a JPEG with one sequential scan, of the same coefficients. Its Huffman tables have a
    /// code or two: nothing is decoded with them.
    pub(super) fn write_headers(&self, out: &mut Vec<u8>) -> Option<()> {
        let info = &self.info;
        out.clear();
        out.extend([0xFF, 0xD8]);
        for segment in segments(self.headers, info.scan_start) {
            let (marker, range) = segment?;
            // Tables of codes, restart intervals, and what does not affect the pixels.
            if matches!(marker, 0xC4 | 0xDD) || has_no_pixels(marker) {
                continue;
            }
            let at = out.len();
            out.extend_from_slice(&self.headers[range.clone()]);
            if range.start == info.frame_start {
                out[at + 1] = 0xC1;
            }
        }
        let count = info.components;
        for kind in [0x00, 0x10] {
            out.extend([0xFF, 0xC4, 0, 3 + 16 + 1, kind, 1]);
            out.extend([0; 15]);
            out.push(0);
        }
        out.extend([0xFF, 0xDA, 0, 6 + 2 * count, count]);
        info.sampling.get(..usize::from(count))?.iter().for_each(|component| out.extend([component.id, 0]));
        out.extend([0, 63, 0]);
        Some(())
    }

    /// Returns the start and the end of a piece.
    fn piece(&self, row: u32, piece: u32) -> Option<(usize, usize)> {
        let (columns, _) = mcus(&self.info);
        let number = (row * columns.div_ceil(self.interval) + piece) as usize;
        let end = |number: usize| self.ends.get(number).map(|end| u32::from_le_bytes(*end) as usize);
        let start = if number == 0 { 0 } else { end(number - 1)? };
        let end = end(number)?;
        (start <= end && end <= self.data.len()).then_some((start, end))
    }

    /// Unpacks all blocks, in the order of the MCUs.
    pub(super) fn blocks(&self, out: &mut Vec<ZigzagBlock>) -> Option<()> {
        let of_mcu = components(&self.info)?;
        let (columns, rows) = mcus(&self.info);
        let count = columns as usize * rows as usize * of_mcu.len();
        // Each takes at least a byte.
        if count > self.data.len() {
            return None;
        }
        memory::reserve(out, count.saturating_sub(out.len())).ok()?;
        out.resize(count, ZigzagBlock::ZERO);
        let (way, components) = (Way::all().next()?, repeated(&of_mcu));
        let mut left = &mut out[..];
        for row in 0..rows {
            for piece in 0..columns.div_ceil(self.interval) {
                let mcus = self.interval.min(columns - piece * self.interval) as usize;
                let (blocks, others) = std::mem::take(&mut left).split_at_mut(mcus * of_mcu.len());
                let mut cursor = Cursor::new(self, row, piece, blocks.len())?;
                for blocks in blocks.chunks_mut(AT_ONCE / of_mcu.len() * of_mcu.len()) {
                    cursor.next(way, &components, blocks)?;
                }
                cursor.finish()?;
                left = others;
            }
        }
        Some(())
    }
}

/// Returns the component of each block that is read at once.
fn repeated(of_mcu: &[u8]) -> [u8; AT_ONCE] {
    std::array::from_fn(|at| of_mcu[at % of_mcu.len()])
}
