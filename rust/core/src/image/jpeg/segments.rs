//! The marker segments of a JPEG. `header`: the header for a part of a JPEG.

use std::ops::Range;

use crate::image::probe::JpegInfo;

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

/// Reports whether a segment does not affect the pixels: comments, and those of applications but JFIF and Adobe.
pub(super) fn has_no_pixels(marker: u8) -> bool {
    matches!(marker, 0xE1..=0xED | 0xEF | 0xFE)
}

/// Writes a JPEG's header with another size, up to the end of the scan's, without the segments that
/// do not affect the pixels. Returns `None` if there are bytes or other markers between segments.
pub(super) fn header(data: &[u8], info: &JpegInfo, width: u32, height: u32, out: &mut Vec<u8>) -> Option<()> {
    let (width, height) = (u16::try_from(width).ok()?, u16::try_from(height).ok()?);
    out.clear();
    out.extend([0xFF, 0xD8]);
    for segment in segments(data, info.scan_start) {
        let (marker, range) = segment?;
        if has_no_pixels(marker) {
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
