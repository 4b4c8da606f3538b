//! `rewrite`: lossless conversion of JPEGs to crop-ready ones. Restart markers and a table of rows
//! allow partial decoding.

use super::ffi::{self, Format, Outcome};
use super::segments::{KIND, mcus, scan_data, segments};
use crate::image::probe::{self, JpegInfo, jpeg_info};
use crate::image::{DecodeError, Rect};
use crate::limits::MAX_CROP_READY_PIXELS;

/// Target number of MCUs between restart markers. Each marker slows libjpeg down and takes 3 to 4
/// bytes.
const INTERVAL: u32 = 6;
/// Images with fewer pixels stay unchanged: decoding them is faster than selecting their parts.
const MIN_PIXELS: u64 = 96 * 96;
/// A sequential image may grow by its length divided by this. Images with few bits per pixel would
/// grow most and gain least.
const GROWTH: usize = 8;
/// A progressive image always grows, and gains more: its scans are decoded one after the other.
const PROGRESSIVE_GROWTH: usize = 3;

/// The marker segments that a rewritten JPEG keeps. Segments that affect the pixels are always
/// kept: tables, JFIF and Adobe segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Markers {
    /// EXIF, including the orientation.
    pub exif: bool,
    /// ICC colour profiles.
    pub icc: bool,
    /// Comments, XMP, thumbnails and all other segments.
    pub other: bool,
}

impl Markers {
    /// Keeps all segments.
    pub const ALL: Self = Self { exif: true, icc: true, other: true };
    /// Keeps only the segments that affect the pixels. Without EXIF, an image loses its
    /// orientation.
    pub const NONE: Self = Self { exif: false, icc: false, other: false };

    fn keeps(self, marker: u8, segment: &[u8]) -> bool {
        match marker {
            0xE1 if segment.starts_with(b"Exif\0") => self.exif,
            // It holds the positions of further images, which are not kept.
            0xE2 if segment.starts_with(b"MPF\0") => false,
            0xE2 if segment.starts_with(b"ICC_PROFILE\0") => self.icc,
            0xE0 if segment.starts_with(b"JFIF\0") => true,
            0xEE if segment.starts_with(b"Adobe") => true,
            0xE0..=0xEF | 0xFE => self.other,
            _ => true,
        }
    }
}

impl Default for Markers {
    fn default() -> Self {
        Self::ALL
    }
}

/// A rewritten JPEG.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CropReady {
    /// The JPEG. Any decoder can read it, and gets the original's pixels.
    pub bytes: Vec<u8>,
    /// The positions of its rows, for
    /// [`Decoder::crop_resize_side`](crate::image::Decoder::crop_resize_side). docs/format.md specifies
    /// the bytes.
    pub side: Vec<u8>,
}

/// Rewrites a JPEG losslessly: the same quantised coefficients, as one sequential scan. It has
/// optimised Huffman tables and a restart marker every few MCUs. Both versions are decoded and
/// compared.
///
/// Returns `None` if the image should stay unchanged. It is then not a JPEG, or of a rare kind
/// (arithmetic, lossless, 12 bits, unusual subsampling). Or it is damaged, truncated or incomplete.
/// Or it is too small to gain, too large to check, or would grow too much.
///
/// # Errors
/// [`DecodeError::Internal`] if the codec returns an unexpected result.
pub fn rewrite(data: &[u8], keep: Markers) -> Result<Option<CropReady>, DecodeError> {
    let Some((info, original)) = rewritable(data) else { return Ok(None) };
    let Ok(interval) = u16::try_from(interval(mcus(&info).0)) else { return Ok(None) };
    let Ok(mut bytes) = ffi::transform(data, interval) else { return Ok(None) };
    drop_segments(&mut bytes, keep).ok_or_else(|| internal("the rewritten headers cannot be read"))?;
    let growth = if info.progressive { PROGRESSIVE_GROWTH } else { GROWTH };
    if bytes.len() > data.len() + data.len() / growth || u32::try_from(bytes.len()).is_err() {
        return Ok(None);
    }
    // libjpeg smooths the blocks of a progressive file that lacks its finest scans, but not of a
    // sequential one.
    if pixels(&bytes)? != original {
        return Ok(None);
    }
    let side = side_bytes(&bytes).ok_or_else(|| internal("the rewritten scan is not as it should be"))?;
    Ok(Some(CropReady { bytes, side }))
}

/// Returns the headers and the pixels, if rewriting is possible and worthwhile.
fn rewritable(data: &[u8]) -> Option<(JpegInfo, Vec<u8>)> {
    if probe::Format::sniff(data) != Some(probe::Format::Jpeg) {
        return None;
    }
    let info = jpeg_info(data).ok()?;
    let size = u64::from(info.width) * u64::from(info.height);
    let usual = !info.arithmetic && !info.lossless && info.precision == 8 && matches!(info.components, 1 | 3 | 4);
    let scans = (data.len() - info.scan_start) as u64;
    let whole = probe::jpeg_has_end(data, info.scan_start) && info.blocks() <= 8 * scans;
    if !usual || !whole || !(MIN_PIXELS..=MAX_CROP_READY_PIXELS).contains(&size) {
        return None;
    }
    Some((info, pixels(data).ok()?))
}

/// Returns the pixels, if the image can be decoded in parts and is not damaged.
fn pixels(data: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut jpeg = ffi::Jpeg::open(data).map_err(|detail| internal(&detail))?;
    if !jpeg.regions {
        return Err(internal("its kind of subsampling cannot be decoded in parts"));
    }
    let info = jpeg_info(data)?;
    let format = if info.components == 4 { Format::Cmyk } else { Format::Rgb };
    let whole = Rect::whole(jpeg.width, jpeg.height);
    let mut pixels = vec![0; format.channels() * whole.width as usize * whole.height as usize];
    match jpeg.decode(whole, 1, format, &mut pixels) {
        Ok(Outcome::Clean) => Ok(pixels),
        Ok(outcome) => Err(internal(&format!("{outcome:?}"))),
        Err(detail) => Err(internal(&detail)),
    }
}

fn internal(detail: &str) -> DecodeError {
    DecodeError::Internal { detail: format!("crop-ready JPEG: {detail}") }
}

/// Returns the divisor of the MCUs per row that is nearest to the target. It is above 1, unless
/// there is only one MCU. Each row of MCUs begins with a restart.
fn interval(columns: u32) -> u32 {
    (2..=columns).filter(|k| columns.is_multiple_of(*k)).min_by_key(|k| k.abs_diff(INTERVAL)).unwrap_or(1)
}

/// Removes the segments that are not kept.
fn drop_segments(bytes: &mut Vec<u8>, keep: Markers) -> Option<()> {
    let scan_start = jpeg_info(bytes).ok()?.scan_start;
    let mut kept = bytes.get(..2)?.to_vec();
    for segment in segments(bytes, scan_start) {
        let (marker, range) = segment?;
        if keep.keeps(marker, bytes.get(range.start + 4..range.end)?) {
            kept.extend_from_slice(&bytes[range]);
        }
    }
    bytes.splice(..scan_start, kept);
    Some(())
}

/// Returns the table of rows of a rewritten JPEG, or `None` for other JPEGs.
fn side_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
    let info = jpeg_info(bytes).ok()?;
    let ((columns, rows), interval) = (mcus(&info), u32::from(info.restart_interval));
    if interval == 0 || !columns.is_multiple_of(interval) {
        return None;
    }
    let per_row = columns / interval;
    let mut side = vec![KIND, 0];
    side.extend(info.restart_interval.to_le_bytes());
    side.extend(rows.to_le_bytes());
    let mut start = scan_data(bytes, &info)?;
    for segment in 0..rows * per_row {
        if segment % per_row == 0 {
            side.extend(u32::try_from(start).ok()?.to_le_bytes());
        }
        let (marker, at) = next_marker(bytes, start)?;
        let last = segment + 1 == rows * per_row;
        if marker != if last { 0xD9 } else { 0xD0 + (segment % 8) as u8 } {
            return None;
        }
        start = at + 2;
    }
    (start == bytes.len()).then_some(side)
}

/// Returns the next marker in coded data, and its position.
fn next_marker(data: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += memchr::memchr(0xFF, data.get(at..)?)?;
        match *data.get(at + 1)? {
            0 => at += 2,
            code => return Some((code, at)),
        }
    }
}
