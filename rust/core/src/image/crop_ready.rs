//! JPEGs of which a part can be decoded by itself: rewritten without loss, with restart markers and a table of rows.

use super::ffi::{self, Format, Outcome};
use super::probe::{self, JpegInfo, jpeg_info};
use super::segments::{mcus, scan_data, segments};
use super::{DecodeError, Rect};
use crate::limits::MAX_CROP_READY_PIXELS;

/// MCUs between two restart markers that are aimed at: libjpeg decodes more slowly around each of them, and each takes 3 to 4 bytes.
const INTERVAL: u32 = 6;
/// Images with fewer pixels stay as they are: they are decoded in less time than their parts are picked.
const MIN_PIXELS: u64 = 96 * 96;
/// A sequential image may grow by its length divided by this. Those of few bits per pixel would grow most and gain least.
const GROWTH: usize = 8;
/// A progressive one grows by nature, and gains more: its scans are decoded one after the other.
const PROGRESSIVE_GROWTH: usize = 3;

/// First byte of the side bytes: their kind.
pub(super) const KIND: u8 = 1;

/// Which of a JPEG's marker segments a rewritten one keeps. Those that its pixels depend on are always kept: tables, JFIF and
/// Adobe segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Markers {
    /// EXIF, with the orientation.
    pub exif: bool,
    /// Colour profiles.
    pub icc: bool,
    /// Comments, XMP, thumbnails and whatever else programs leave there.
    pub other: bool,
}

impl Markers {
    /// All of them.
    pub const ALL: Self = Self { exif: true, icc: true, other: true };
    /// None but those that the pixels depend on. Without EXIF an image that asks to be turned is no longer.
    pub const NONE: Self = Self { exif: false, icc: false, other: false };

    fn keeps(self, marker: u8, segment: &[u8]) -> bool {
        match marker {
            0xE1 if segment.starts_with(b"Exif\0") => self.exif,
            // Says where in the file further images lie, which are not kept.
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
    /// The JPEG: any decoder reads it, and gives the original's pixels.
    pub bytes: Vec<u8>,
    /// Where its rows are, for [`Decoder::crop_resize_side`](super::Decoder::crop_resize_side); docs/format.md has
    /// the bytes.
    pub side: Vec<u8>,
}

/// Rewrites a JPEG without loss: the same quantised coefficients, as one sequential scan with optimised Huffman tables and a
/// restart marker every few MCUs. Both are decoded and compared.
///
/// `None` where it is better left as it is: no JPEG, one of a rare kind (arithmetic, lossless, 12 bits, unusual subsampling),
/// damaged, truncated or incomplete, too small to gain from it, too large to be checked, or one that would grow too much.
///
/// # Errors
/// [`DecodeError::Internal`] if the codec gives what it should not.
pub fn rewrite(data: &[u8], keep: Markers) -> Result<Option<CropReady>, DecodeError> {
    let Some((info, original)) = rewritable(data) else { return Ok(None) };
    let Ok(interval) = u16::try_from(interval(mcus(&info).0)) else { return Ok(None) };
    let Ok(mut bytes) = ffi::transform(data, interval) else { return Ok(None) };
    drop_segments(&mut bytes, keep).ok_or_else(|| internal("the rewritten headers cannot be read"))?;
    let growth = if info.progressive { PROGRESSIVE_GROWTH } else { GROWTH };
    if bytes.len() > data.len() + data.len() / growth || u32::try_from(bytes.len()).is_err() {
        return Ok(None);
    }
    // Of a progressive file that lacks its finest scans libjpeg smooths the blocks, of a sequential one not.
    if pixels(&bytes)? != original {
        return Ok(None);
    }
    let side = side_bytes(&bytes).ok_or_else(|| internal("the rewritten scan is not as it should be"))?;
    Ok(Some(CropReady { bytes, side }))
}

/// What the headers say and the pixels, if it is worth it and possible.
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

/// Its pixels, if it can be decoded in parts and has no damage.
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

/// The divisor of the MCUs in a row, above 1 if there are as many, that is nearest to what is aimed at: each row of MCUs
/// begins with a restart.
fn interval(columns: u32) -> u32 {
    (2..=columns).filter(|k| columns.is_multiple_of(*k)).min_by_key(|k| k.abs_diff(INTERVAL)).unwrap_or(1)
}

/// Removes what is not to be kept.
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

/// The table of rows of a rewritten JPEG, if it is one.
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

/// The next marker in coded data, and where it is.
fn next_marker(data: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += memchr::memchr(0xFF, data.get(at..)?)?;
        match *data.get(at + 1)? {
            0 => at += 2,
            code => return Some((code, at)),
        }
    }
}
