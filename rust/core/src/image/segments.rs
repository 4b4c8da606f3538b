//! `Rows`: builds a small JPEG of a part of a crop-ready one. The coded data between two restart
//! markers are self-contained. The pieces that the part touches are appended to the original's
//! tables, row by row.

use std::ops::Range;

use super::Rect;
use super::crop_ready::KIND;
use super::probe::JpegInfo;

/// Length of the side bytes before the table of rows.
const HEAD: usize = 8;

const END: [u8; 2] = [0xFF, 0xD9];

/// The first of the eight restart markers.
const RESTART: u8 = 0xD0;

/// Returns the MCUs per row, and the rows of MCUs.
pub(super) fn mcus(info: &JpegInfo) -> (u32, u32) {
    let (width, height) = info.mcu();
    (info.width.div_ceil(width), info.height.div_ceil(height))
}

/// The rows of a crop-ready JPEG whose headers and side bytes agree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    data: &'a [u8],
    info: &'a JpegInfo,
    starts: &'a [u8],
    /// Pieces of coded data per row, each with the same number of MCUs.
    pieces: u32,
    /// Width of a piece, and height of a row, in pixels.
    piece: (u32, u32),
    /// Position of the first row.
    scan_data: usize,
}

impl<'a> Rows<'a> {
    /// Returns `None` if the side bytes do not belong to this JPEG.
    pub(super) fn find(data: &'a [u8], side: &'a [u8], info: &'a JpegInfo) -> Option<Self> {
        let (head, starts) = side.split_at_checked(HEAD)?;
        let (columns, rows) = mcus(info);
        let interval = u32::from(info.restart_interval);
        let fits = head[..2] == [KIND, 0]
            && head[2..4] == info.restart_interval.to_le_bytes()
            && head[4..] == rows.to_le_bytes()
            && starts.len() == 4 * rows as usize;
        // A piece of one MCU may show so few pixels that libjpeg would choose another
        // interpolation.
        let cut = columns.is_multiple_of(interval.max(1)) && (interval > 1 || interval == columns);
        let sequential = !info.progressive && !info.arithmetic && !info.lossless && info.precision == 8;
        if !fits || !cut || !sequential || !data.ends_with(&END) {
            return None;
        }
        let scan_data = scan_data(data, info)?;
        let (width, height) = info.mcu();
        let (pieces, piece) = (columns / interval, (interval * width, height));
        Some(Self { data, info, starts, pieces, piece, scan_data })
    }

    /// Writes a JPEG to `out` that contains at least the columns of `region`, and its rows with
    /// `margin` more above and below. Returns its position in the image, and its header. All
    /// numbers are pixels of the image reduced by `reduction`, including the position.
    ///
    /// Returns `None` if that would be the whole image, or if the data do not match the table.
    pub(super) fn cut(
        &self,
        region: Rect,
        margin: u32,
        reduction: u32,
        out: &mut Vec<u8>,
    ) -> Option<((u32, u32), JpegInfo)> {
        let info = self.info;
        let end = |at: u32, side: u32| at.saturating_mul(reduction).min(side);
        let columns =
            region.x * reduction / self.piece.0..end(region.x + region.width, info.width).div_ceil(self.piece.0);
        let rows = region.y.saturating_sub(margin) * reduction / self.piece.1
            ..end(region.y + region.height + margin, info.height).div_ceil(self.piece.1);
        let all_rows = u32::try_from(self.starts.len() / 4).ok()?;
        if columns == (0..self.pieces) && rows == (0..all_rows) {
            return None;
        }
        let (x, y) = (columns.start * self.piece.0, rows.start * self.piece.1);
        let width = (columns.end * self.piece.0).min(info.width) - x;
        let height = (rows.end * self.piece.1).min(info.height) - y;
        out.clear();
        self.header(width, height, out)?;
        let mut number = 0;
        for row in rows {
            self.row(row, &columns, &mut number, out)?;
        }
        // The last piece is followed by the end marker, not by a restart.
        out.truncate(out.len() - 2);
        out.extend(END);
        Some(((x / reduction, y / reduction), JpegInfo { width, height, ..*info }))
    }

    /// Writes the original's header with another size, without the segments that do not affect the
    /// pixels.
    fn header(&self, width: u32, height: u32, out: &mut Vec<u8>) -> Option<()> {
        let (width, height) = (u16::try_from(width).ok()?, u16::try_from(height).ok()?);
        out.extend([0xFF, 0xD8]);
        for segment in segments(self.data, self.info.scan_start) {
            let (marker, range) = segment?;
            if matches!(marker, 0xE1..=0xED | 0xEF | 0xFE) {
                continue;
            }
            let at = out.len();
            out.extend_from_slice(&self.data[range.clone()]);
            if range.start == self.info.frame_start {
                out[at + 5..at + 7].copy_from_slice(&height.to_be_bytes());
                out[at + 7..at + 9].copy_from_slice(&width.to_be_bytes());
            }
        }
        out.extend_from_slice(&self.data[self.info.scan_start..self.scan_data]);
        Some(())
    }

    /// Writes one row's pieces, with a restart marker after each.
    fn row(&self, row: u32, columns: &Range<u32>, number: &mut u8, out: &mut Vec<u8>) -> Option<()> {
        let (start, end) = (self.start(row)?, self.end(row)?);
        let coded = self.data.get(start..end)?;
        let first = row.wrapping_mul(self.pieces);
        let (mut piece, mut from) = (0, 0);
        let mut put = |piece: u32, range: Range<usize>| {
            if columns.contains(&piece) {
                out.extend_from_slice(&coded[range]);
                out.extend([0xFF, RESTART + *number % 8]);
                *number = number.wrapping_add(1);
            }
        };
        for at in memchr::memchr_iter(0xFF, coded) {
            match coded.get(at + 1) {
                Some(0) => {}
                Some(&marker) if marker == restart(first + piece) && piece + 1 < self.pieces => {
                    put(piece, from..at);
                    (piece, from) = (piece + 1, at + 2);
                }
                _ => return None,
            }
        }
        put(piece, from..coded.len());
        (piece + 1 == self.pieces).then_some(())
    }

    /// Returns the start of a row's coded data, if the expected bytes precede it.
    fn start(&self, row: u32) -> Option<usize> {
        let at = 4 * row as usize;
        let start = u32::from_le_bytes(*self.starts.get(at..at + 4)?.first_chunk()?) as usize;
        let good = if row == 0 {
            start == self.scan_data
        } else {
            start >= self.scan_data + 2
                && *self.data.get(start - 2..start)? == [0xFF, restart((row * self.pieces).wrapping_sub(1))]
        };
        good.then_some(start)
    }

    /// Returns the end of a row's coded data.
    fn end(&self, row: u32) -> Option<usize> {
        let last = 4 * (row as usize + 1) == self.starts.len();
        Some(if last { self.data.len() } else { self.start(row + 1)? } - 2)
    }
}

/// Returns the restart marker after a piece, counted over the image.
fn restart(piece: u32) -> u8 {
    RESTART + (piece % 8) as u8
}

/// Returns the start of the first scan's coded data, if it lies within the data.
pub(super) fn scan_data(data: &[u8], info: &JpegInfo) -> Option<usize> {
    let [high, low, components] = *data.get(info.scan_start + 2..info.scan_start + 5)? else { return None };
    let start = info.scan_start + 2 + usize::from(u16::from_be_bytes([high, low]));
    (components == info.components && start <= data.len()).then_some(start)
}

/// Iterates over the segments before the scan: the marker, and the range of the whole segment.
/// Yields `None` where a segment is missing.
pub(super) fn segments(data: &[u8], scan_start: usize) -> impl Iterator<Item = Option<(u8, Range<usize>)>> {
    let mut at = 2;
    std::iter::from_fn(move || {
        if at >= scan_start {
            return None;
        }
        let found = segment(data, at).filter(|(_, range)| range.end <= scan_start);
        at = found.as_ref().map_or(scan_start, |(_, range)| range.end);
        Some(found)
    })
}

fn segment(data: &[u8], at: usize) -> Option<(u8, Range<usize>)> {
    let [0xFF, marker, high, low] = *data.get(at..at + 4)? else { return None };
    Some((marker, at..at + 2 + usize::from(u16::from_be_bytes([high, low])).max(2)))
}
