//! JPEG decoding for `Decoder`: the choice of the region and of the reduction. Imports what `image`
//! does, and from `image` its types and the probe.
//!
//! `sequential` decodes the part of a JPEG that a crop needs: `entropy` its coded data, `pixels` its
//! pixels; or else `rows`, by libjpeg-turbo. `source` connects them. `ffi` is libjpeg-turbo alone,
//! for all other JPEGs. `crop_index` prepares JPEGs for crops. `restore` splits a JPEG into headers and
//! coefficients, and makes the same JPEG of them. `packed` is another form of both.

mod crop_index;
mod entropy;
mod ffi;
mod packed;
mod pixels;
mod restore;
mod rows;
mod scans;
mod segments;
mod sequential;
mod source;
mod zigzag;

pub use crop_index::{check_crop_index, crop_index};
pub use ffi::{JpegOptions, Subsampling, encode_jpeg};
pub(super) use packed::{is_packed, jpeg_headers};
pub use packed::{pack_jpeg, unpack_jpeg};
pub(super) use sequential::{Sequential, Wanted};

use self::ffi::{Format, Outcome};
use self::packed::Packed;
use self::scans::{has_several, scans};
use self::segments::{END, scan_data};
use self::sequential::Part;
use super::probe::{self, JpegInfo, jpeg_info, next_marker};
use super::{Crop, DecodeError, Decoder, Rect, Truncated, reserve};
use crate::limits::MAX_JPEG_SCANS;

/// libjpeg interpolates subsampled chroma from neighbours less than this many pixels away.
const SMOOTHED: u32 = 2;

impl Decoder {
    /// Reads the headers, and refuses images that cannot be decoded.
    pub(super) fn jpeg_header(&self, data: &[u8]) -> Result<JpegInfo, DecodeError> {
        if is_packed(data) {
            let info = Packed::read(data).ok_or_else(no_packed_jpeg)?.info;
            return self.options.check_size(info.width, info.height).map(|()| info);
        }
        let info = jpeg_info(data)?;
        self.options.check_size(info.width, info.height)?;
        if let Some(detail) = info.unsupported() {
            return Err(DecodeError::Unsupported { format: "image", detail });
        }
        let found = has_several(data, &info).then(|| scans(data, &info, MAX_JPEG_SCANS));
        if found.is_some_and(|found| found.count > MAX_JPEG_SCANS) {
            return Err(DecodeError::Scans { limit: MAX_JPEG_SCANS });
        }
        if self.options.truncated == Truncated::Reject {
            let scans = data.len() - info.scan_start;
            // The codec notices missing data within a scan. It does not notice a missing scan, nor
            // missing data of arithmetic coding.
            let unnoticed = info.arithmetic || found.is_some_and(|found| !found.complete);
            if unnoticed && self.lacks_end(data, &info) {
                return Err(cut("it has no end marker"));
            }
            // Even with the shortest codes for the file's kind, each block takes at least one bit.
            if !info.arithmetic && info.blocks() > 8 * scans as u64 {
                return Err(cut(&format!("its {scans} bytes of scans are too few for its size")));
            }
        }
        Ok(info)
    }

    /// Reports whether the end marker is missing although the image must be complete.
    fn lacks_end(&self, data: &[u8], info: &JpegInfo) -> bool {
        self.options.truncated == Truncated::Reject && !probe::jpeg_has_end(data, info.scan_start)
    }

    /// Returns the largest factor of 8, 4 and 2 by which a JPEG may be reduced during decoding,
    /// else 1.
    pub(super) fn reduction(&self, info: &JpegInfo, crop: &Crop) -> u32 {
        let mcu = info.mcu();
        // If chroma is subsampled equally on both axes, libjpeg reduces it less by the same factor.
        // Otherwise chroma loses more.
        let (coarse_x, coarse_y) = if mcu.0 == mcu.1 { (1, 1) } else { (mcu.0 / 8, mcu.1 / 8) };
        let fits = |n: u32, coarse: u32, length: f64, target: u32| {
            length >= f64::from(n * coarse) * self.options.min_reduced * f64::from(target)
        };
        let both = |&n: &u32| {
            fits(n, coarse_x, crop.width, crop.target.width) && fits(n, coarse_y, crop.height, crop.target.height)
        };
        [8, 4, 2].into_iter().find(both).unwrap_or(1)
    }

    /// Decodes at least what is wanted to the start of `pixels`; returns the decoded area.
    pub(super) fn decode_jpeg(&mut self, wanted: Wanted<'_>) -> Result<Rect, DecodeError> {
        if is_packed(wanted.data) {
            return self.decode_packed(wanted);
        }
        if !self.options.stock_jpeg {
            let mut own = self.decode_sequential(wanted);
            if own.is_none() && !wanted.side.is_empty() {
                own = self.decode_sequential(Wanted { side: &[], ..wanted });
            }
            if let Some(region) = own {
                return Ok(region);
            }
        }
        let Wanted { data, info, .. } = wanted;
        if self.lacks_end(data, info) {
            let ended = scan_alone(data, info).unwrap_or_else(|| [data, &END].concat());
            return self.decode_stock(Wanted { data: &ended, ..wanted }, true);
        }
        self.decode_stock(wanted, false).or_else(|error| match (&error, scan_alone(data, info)) {
            // What follows the only scan has no effect on the pixels, whatever it is.
            (DecodeError::Damaged { .. } | DecodeError::Truncated { .. }, Some(ended)) => {
                self.decode_stock(Wanted { data: &ended, ..wanted }, true).map_err(|_| error)
            }
            _ => Err(error),
        })
    }

    /// As [`Decoder::decode_jpeg`], by libjpeg-turbo alone. `ended`: the end marker is ours. Then only
    /// decoding the whole image shows whether its data are complete.
    fn decode_stock(&mut self, wanted: Wanted<'_>, ended: bool) -> Result<Rect, DecodeError> {
        let Wanted { data, info, reduction, need, .. } = wanted;
        let mut jpeg = open(data, info)?;
        let whole = reduced(info, reduction);
        let by_region = jpeg.regions && !ended;
        let mut region = if by_region { jpeg_region(info, reduction, need, whole) } else { whole };
        loop {
            let outcome = self.decode_region(&mut jpeg, info, reduction, region)?;
            let cut_short = outcome == Outcome::Truncated || ended && outcome == Outcome::Damaged;
            if cut_short && self.options.truncated == Truncated::Reject {
                return Err(cut("its data ends before the image does"));
            }
            if outcome == Outcome::Clean || region == whole {
                return Ok(region);
            }
            // libjpeg may conceal damage in a way that depends on the region. Decode the whole
            // image for the same result.
            region = whole;
        }
    }

    /// As [`Decoder::decode_jpeg`], for a packed JPEG.
    fn decode_packed(&mut self, wanted: Wanted<'_>) -> Result<Rect, DecodeError> {
        let Wanted { reduction, need, .. } = wanted;
        let packed = Packed::read(wanted.data).ok_or_else(no_packed_jpeg)?;
        let mut headers = std::mem::take(&mut self.headers);
        let region = packed.write_headers(&mut headers).and_then(|()| {
            let info = &jpeg_info(&headers).ok()?;
            let wanted = Wanted { data: &headers, side: &[], info, reduction, need };
            // Ours do not make the pixels of coefficients that no image has.
            let ways = if self.options.stock_jpeg { &[true][..] } else { &[false, true] };
            ways.iter().find_map(|&stock| {
                let part = self.sequential.begin_packed(packed, wanted, stock)?;
                read(part, &mut self.pixels, &mut self.scratch)
            })
        });
        self.headers = headers;
        region.ok_or_else(no_packed_jpeg)
    }

    /// As [`Decoder::decode_jpeg`], by our own Huffman decoder.
    fn decode_sequential(&mut self, wanted: Wanted<'_>) -> Option<Rect> {
        let part = self.sequential.begin(wanted)?;
        read(part, &mut self.pixels, &mut self.scratch)
    }

    /// Decodes only the region of the reduced image to the start of `pixels`.
    fn decode_region(
        &mut self,
        jpeg: &mut ffi::Jpeg<'_>,
        info: &JpegInfo,
        reduction: u32,
        region: Rect,
    ) -> Result<Outcome, DecodeError> {
        let count = region.width as usize * region.height as usize;
        let (format, target) = if info.components == 4 {
            (Format::Cmyk, reserve(&mut self.scratch, 4 * count)?)
        } else {
            (Format::Rgb, reserve(&mut self.pixels, 3 * count)?)
        };
        let outcome = jpeg.decode(region, reduction, format, target).map_err(damaged)?;
        if format == Format::Cmyk {
            cmyk_to_rgb(&self.scratch, &mut self.pixels, count)?;
        }
        Ok(outcome)
    }
}

/// Decodes a part to the start of `pixels`. Returns where it lies.
fn read(mut part: Part<'_>, pixels: &mut Vec<u8>, scratch: &mut Vec<u8>) -> Option<Rect> {
    let (region, format) = (part.region, part.format);
    let count = region.width as usize * region.height as usize;
    let target = if format == Format::Cmyk { &mut *scratch } else { &mut *pixels };
    part.read(reserve(target, format.channels() * count).ok()?)?;
    part.finish()?;
    if format == Format::Cmyk {
        cmyk_to_rgb(scratch, pixels, count).ok()?;
    }
    Some(region)
}

/// Converts pixels at the start of `cmyk` to the start of `rgb`.
fn cmyk_to_rgb(cmyk: &[u8], rgb: &mut Vec<u8>, count: usize) -> Result<(), DecodeError> {
    let cmyk = cmyk[..4 * count].chunks_exact(4).filter_map(<[u8]>::first_chunk);
    let rgb = reserve(rgb, 3 * count)?.chunks_exact_mut(3);
    rgb.zip(cmyk).for_each(|(rgb, &cmyk)| rgb.copy_from_slice(&inverted_cmyk_to_rgb(cmyk)));
    Ok(())
}

/// Returns a JPEG of one scan up to the end of the scan's data, with an end marker. Returns `None` if it
/// has several scans, or ends there anyway.
fn scan_alone(data: &[u8], info: &JpegInfo) -> Option<Vec<u8>> {
    let mut at = scan_data(data, info).filter(|_| !has_several(data, info))?;
    let end = loop {
        match next_marker(data, at) {
            Some((0xD0..=0xD7, start)) => at = start + 2,
            Some((_, start)) => break start,
            None => break data.len(),
        }
    };
    (!data[end..].starts_with(&END)).then(|| [&data[..end], &END].concat())
}

fn open<'a>(data: &'a [u8], info: &JpegInfo) -> Result<ffi::Jpeg<'a>, DecodeError> {
    let jpeg = ffi::Jpeg::open(data).map_err(damaged)?;
    if (jpeg.width, jpeg.height) != (info.width, info.height) {
        return Err(damaged(format!("its decoder found {} x {}, and its headers {info:?}", jpeg.width, jpeg.height)));
    }
    Ok(jpeg)
}

/// Returns the size of the image reduced by `reduction`.
pub(super) fn reduced(info: &JpegInfo, reduction: u32) -> Rect {
    Rect::whole(info.width.div_ceil(reduction), info.height.div_ceil(reduction))
}

/// Returns the region to decode so that `need` equals the same pixels of the whole image. It starts
/// at a column of whole MCUs, and includes the neighbours that chroma smoothing reads.
pub(super) fn jpeg_region(info: &JpegInfo, reduction: u32, need: Rect, whole: Rect) -> Rect {
    let mcu = info.mcu().0;
    let align = (mcu / reduction).max(1);
    let subsampled = if mcu > 8 { SMOOTHED } else { 0 };
    // In a progressive file that lacks its finer scans, libjpeg smooths blocks with two neighbours
    // on each side.
    let smoothed = if info.progressive { 2 * align } else { 0 };
    let margin = subsampled + smoothed;
    let x = need.x.saturating_sub(margin) / align * align;
    // With less than 3 samples in a row, libjpeg chooses another interpolation.
    let end = (need.x + need.width + margin).max(x + 4 * mcu / 8).min(whole.width);
    Rect { x, y: need.y, width: end - x, height: need.height }
}

/// Converts as Pillow does: all JPEGs with four components are treated as inverted, as Adobe writes
/// them.
fn inverted_cmyk_to_rgb([c, m, y, k]: [u8; 4]) -> [u8; 3] {
    [c, m, y].map(|ink| {
        let product = u32::from(255 - ink) * u32::from(k) + 128;
        k.saturating_sub((((product >> 8) + product) >> 8) as u8)
    })
}

fn damaged(detail: String) -> DecodeError {
    // These are the messages of libjpeg and TurboJPEG.
    if ["Insufficient memory", "Memory allocation failure"].iter().any(|text| detail.contains(text)) {
        return DecodeError::Memory { bytes: 0 };
    }
    DecodeError::Damaged { format: "JPEG", detail }
}

fn no_packed_jpeg() -> DecodeError {
    damaged("its packed form makes no sense".to_owned())
}

fn cut(detail: &str) -> DecodeError {
    DecodeError::Truncated { format: "JPEG", detail: detail.to_owned() }
}
