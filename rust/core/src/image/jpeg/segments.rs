//! `Rows`: the rows of MCUs in a crop-ready JPEG. `header`: the header for a part of a JPEG.

use std::ops::Range;

use super::entropy::RESTART;
use crate::image::probe::JpegInfo;

/// The kind of side bytes of a crop-ready JPEG.
pub(super) const KIND: u8 = 1;
/// Length of the side bytes before the table of rows.
const HEAD: usize = 8;

/// The end marker.
pub(super) const END: [u8; 2] = [0xFF, 0xD9];

/// Returns `None` unless the end marker is at `stop`: where data are missing, libjpeg-turbo decides.
pub(super) fn check_end(data: &[u8], stop: usize) -> Option<()> {
    data.get(stop..)?.starts_with(&END).then_some(())
}

/// Returns the MCUs per row, and the rows of MCUs.
pub(super) fn mcus(info: &JpegInfo) -> (u32, u32) {
    let (width, height) = info.mcu();
    (info.width.div_ceil(width), info.height.div_ceil(height))
}

/// The rows of a crop-ready JPEG whose headers and side bytes agree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    data: &'a [u8],
    starts: &'a [u8],
    /// Pieces of coded data per row, each with the same number of MCUs.
    pieces: u32,
    /// Position of the first row.
    scan_data: usize,
}

impl<'a> Rows<'a> {
    /// Returns `None` if the side bytes do not belong to this JPEG.
    pub(super) fn find(data: &'a [u8], side: &'a [u8], info: &JpegInfo) -> Option<Self> {
        let (head, starts) = side.split_at_checked(HEAD)?;
        let (columns, rows) = mcus(info);
        let interval = u32::from(info.restart_interval);
        let fits = head[..2] == [KIND, 0]
            && head[2..4] == info.restart_interval.to_le_bytes()
            && head[4..] == rows.to_le_bytes()
            && starts.len() == 4 * rows as usize;
        let cut = interval > 0 && columns.is_multiple_of(interval);
        let sequential = !info.progressive && !info.arithmetic && !info.lossless && info.precision == 8;
        if !fits || !cut || !sequential || !data.ends_with(&END) {
            return None;
        }
        let scan_data = scan_data(data, info)?;
        Some(Self { data, starts, pieces: columns / interval, scan_data })
    }

    /// Returns the coded data of a row of MCUs, and the number of the first restart marker in them.
    pub(super) fn row(&self, row: u32) -> Option<(&'a [u8], u8)> {
        let coded = self.data.get(self.start(row)?..self.end(row)?)?;
        Some((coded, (row.wrapping_mul(self.pieces) % 8) as u8))
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

/// Writes a JPEG's header with another size, up to the end of the scan's, without the segments that
/// do not affect the pixels. Returns `None` if there are bytes or other markers between segments.
pub(super) fn header(data: &[u8], info: &JpegInfo, width: u32, height: u32, out: &mut Vec<u8>) -> Option<()> {
    let (width, height) = (u16::try_from(width).ok()?, u16::try_from(height).ok()?);
    out.clear();
    out.extend([0xFF, 0xD8]);
    for segment in segments(data, info.scan_start) {
        let (marker, range) = segment?;
        if matches!(marker, 0xE1..=0xED | 0xEF | 0xFE) {
            continue;
        }
        let at = out.len();
        out.extend_from_slice(&data[range.clone()]);
        if range.start == info.frame_start {
            out[at + 5..at + 7].copy_from_slice(&height.to_be_bytes());
            out[at + 7..at + 9].copy_from_slice(&width.to_be_bytes());
        }
    }
    out.extend_from_slice(&data[info.scan_start..scan_data(data, info)?]);
    Some(())
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
    let [0xFF, marker @ (0xC0..=0xCF | 0xDA..=0xFE), high, low] = *data.get(at..at + 4)? else { return None };
    Some((marker, at..at + 2 + usize::from(u16::from_be_bytes([high, low])).max(2)))
}
