//! From encoded bytes to pixels, and to the output of a crop.

use std::time::{Duration, Instant};

use fast_image_resize::Resizer;

use super::ffi::{self, Outcome};
use super::probe::{self, Format, JpegInfo, jpeg_info};
use super::resize::{Source, resize};
use super::row::copy_row;
use super::segments::Rows;
use super::{Crop, DecodeError, DecodeOptions, Filter, Orientation, Rect, Truncated, formats, reserve};

/// Buffers of up to so many bytes are kept from one image to the next; larger ones go with the image that needed them.
const KEEP: usize = 64 << 20;

/// Where colours are stored more coarsely, libjpeg interpolates them from neighbours that are less than so many pixels away.
const SMOOTHED: u32 = 2;

/// Where the time of one image went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Reading headers and decoding.
    pub decode: Duration,
    /// Resizing, turning and mirroring.
    pub resize: Duration,
}

/// A decoded image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image<'a> {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// RGB, a byte each, row after row without padding.
    pub pixels: &'a [u8],
}

/// Decodes images one after the other in one thread, and keeps its buffers from image to image.
#[derive(Debug)]
pub struct Decoder {
    options: DecodeOptions,
    resizer: Resizer,
    pixels: Vec<u8>,
    scratch: Vec<u8>,
    /// A JPEG made of a part of another.
    cut: Vec<u8>,
}

impl Decoder {
    /// Prepares to decode; no image's memory is allocated yet.
    pub fn new(options: DecodeOptions) -> Self {
        Self { options, resizer: Resizer::new(), pixels: Vec::new(), scratch: Vec::new(), cut: Vec::new() }
    }

    /// Width and height in pixels that decoding would give, from the headers alone.
    ///
    /// # Errors
    /// The bytes are of no known format, their headers are damaged or cut, or say more pixels than allowed.
    pub fn size(&self, data: &[u8]) -> Result<(u32, u32), DecodeError> {
        let (width, height, orientation) = match probe::sniff(data)? {
            Format::Jpeg => {
                let info = jpeg_info(data)?;
                self.options.check_size(info.width, info.height)?;
                (info.width, info.height, self.orientation(&info))
            }
            other => formats::size(other, data, &self.options)?,
        };
        Ok(orientation.size(width, height))
    }

    /// How the image asks to be turned, whatever the options say; from the headers alone.
    ///
    /// # Errors
    /// As [`Decoder::size`].
    pub fn orientation_of(data: &[u8]) -> Result<Orientation, DecodeError> {
        match probe::sniff(data)? {
            Format::Jpeg => jpeg_info(data).map(|info| info.orientation),
            other => {
                let options = DecodeOptions { orientation: true, ..DecodeOptions::default() };
                formats::size(other, data, &options).map(|(_, _, orientation)| orientation)
            }
        }
    }

    /// Decodes the whole image into the decoder's own buffer.
    ///
    /// # Errors
    /// The bytes are no image, or one that is damaged, cut, too large, or of an unsupported kind.
    pub fn decode(&mut self, data: &[u8]) -> Result<Image<'_>, DecodeError> {
        self.trim();
        let (width, height, orientation) = match probe::sniff(data)? {
            Format::Jpeg => {
                let info = self.jpeg_header(data)?;
                self.decode_jpeg(data, &info, 1, Rect::whole(info.width, info.height))?;
                (info.width, info.height, self.orientation(&info))
            }
            other => formats::decode(other, data, &self.options, &mut self.pixels, &mut self.scratch)?,
        };
        let len = 3 * width as usize * height as usize;
        let pixels = if orientation == Orientation::UPRIGHT {
            &self.pixels[..len]
        } else {
            let shown = reserve(&mut self.scratch, len);
            orientation.apply(&self.pixels[..len], width as usize, shown);
            shown
        };
        let (width, height) = orientation.size(width, height);
        Ok(Image { width, height, pixels })
    }

    /// Decodes the part of an image that `crop` names, and resizes it into `out`, `size` (width, height) in pixels of
    /// RGB, row after row; with `flip` the output is mirrored left to right.
    ///
    /// # Errors
    /// As [`Decoder::decode`]; or the crop does not fit the image, or `out` not `size`.
    pub fn crop_resize(
        &mut self,
        data: &[u8],
        crop: &Crop,
        flip: bool,
        size: (u32, u32),
        out: &mut [u8],
    ) -> Result<Timings, DecodeError> {
        self.crop_resize_with(data, size, out, |_, _| (*crop, flip))
    }

    /// As [`Decoder::crop_resize`], with the crop and the flip of an image whose size is known only now: `plan` gets
    /// its width and height.
    ///
    /// # Errors
    /// As [`Decoder::crop_resize`].
    pub fn crop_resize_with(
        &mut self,
        data: &[u8],
        size: (u32, u32),
        out: &mut [u8],
        plan: impl FnOnce(u32, u32) -> (Crop, bool),
    ) -> Result<Timings, DecodeError> {
        self.crop_resize_side(data, &[], size, out, plan)
    }

    /// As [`Decoder::crop_resize_with`], of an image that may have side bytes, as [`rewrite`](super::rewrite) makes them: then
    /// only those bytes of it are decoded that its crop touches. The output is the same; side bytes that do not fit the image
    /// change nothing.
    ///
    /// # Errors
    /// As [`Decoder::crop_resize`].
    pub fn crop_resize_side(
        &mut self,
        data: &[u8],
        side_bytes: &[u8],
        size: (u32, u32),
        out: &mut [u8],
        plan: impl FnOnce(u32, u32) -> (Crop, bool),
    ) -> Result<Timings, DecodeError> {
        let start = Instant::now();
        self.trim();
        check_output(out, size)?;
        let (info, (width, height, orientation)) = match probe::sniff(data)? {
            Format::Jpeg => {
                let info = self.jpeg_header(data)?;
                let stored = (info.width, info.height, self.orientation(&info));
                (Some(info), stored)
            }
            other => (None, formats::decode(other, data, &self.options, &mut self.pixels, &mut self.scratch)?),
        };
        let shown = orientation.size(width, height);
        let (crop, flip) = plan(shown.0, shown.1);
        crop.check(shown, size)?;
        let turned = orientation.flipped(flip);
        let crop = crop.stored(orientation, shown, size);
        if crop.target.is_empty() {
            out.fill(0);
            return Ok(Timings { decode: start.elapsed(), resize: Duration::ZERO });
        }

        let (region, need, part) = if let Some(info) = info {
            let reduction = self.reduction(&info, &crop);
            let (need, part) = needed(&crop, reduction, self.options.filter.support());
            let rows = Rows::find(data, side_bytes, &info);
            let cut = rows.and_then(|rows| self.decode_cut(&rows, &info, reduction, need));
            let region = cut.map_or_else(|| self.decode_jpeg(data, &info, reduction, need), Ok)?;
            (region, need, part)
        } else {
            let (need, part) = needed(&crop, 1, self.options.filter.support());
            (Rect::whole(width, height), need, part)
        };
        let decoded = start.elapsed();

        let source = Source {
            pixels: &self.pixels,
            width: region.width,
            height: region.height,
            bounds: Rect { x: need.x - region.x, y: need.y - region.y, ..need },
            part: [part[0] - f64::from(region.x), part[1] - f64::from(region.y), part[2], part[3]],
        };
        let output = Output { pixels: out, size, target: crop.target, turned };
        render(&mut self.resizer, self.options.filter, &source, output, &mut self.scratch)?;
        Ok(Timings { decode: decoded, resize: start.elapsed().saturating_sub(decoded) })
    }

    /// As [`Decoder::crop_resize`], of pixels that are decoded already.
    ///
    /// # Errors
    /// The crop does not fit the image, or the pixels or `out` not their sizes.
    pub fn crop_resize_pixels(
        &mut self,
        image: Image<'_>,
        crop: &Crop,
        flip: bool,
        size: (u32, u32),
        out: &mut [u8],
    ) -> Result<Timings, DecodeError> {
        let start = Instant::now();
        check_output(image.pixels, (image.width, image.height))?;
        check_output(out, size)?;
        crop.check((image.width, image.height), size)?;
        let Crop { x, y, width, height, bounds, target } = *crop;
        if target.is_empty() {
            out.fill(0);
        } else {
            let part = [x, y, width, height];
            let source = Source { pixels: image.pixels, width: image.width, height: image.height, bounds, part };
            let output = Output { pixels: out, size, target, turned: Orientation::UPRIGHT.flipped(flip) };
            render(&mut self.resizer, self.options.filter, &source, output, &mut self.scratch)?;
        }
        Ok(Timings { decode: Duration::ZERO, resize: start.elapsed() })
    }

    fn orientation(&self, info: &JpegInfo) -> Orientation {
        if self.options.orientation { info.orientation } else { Orientation::UPRIGHT }
    }

    fn trim(&mut self) {
        for buffer in [&mut self.pixels, &mut self.scratch, &mut self.cut] {
            if buffer.capacity() > KEEP {
                *buffer = Vec::new();
            }
        }
    }

    /// Reads the headers, and refuses what need not be tried.
    fn jpeg_header(&self, data: &[u8]) -> Result<JpegInfo, DecodeError> {
        let info = jpeg_info(data)?;
        self.options.check_size(info.width, info.height)?;
        if !matches!(info.components, 1 | 3 | 4) || info.precision != 8 {
            let detail = format!("{} components of {} bits", info.components, info.precision);
            return Err(DecodeError::Unsupported { format: "JPEG", detail });
        }
        if self.options.truncated == Truncated::Reject {
            let scans = data.len() - info.scan_start;
            if !probe::jpeg_has_end(data, info.scan_start) {
                return Err(cut("it has no end marker"));
            }
            // Of the file's kind with the shortest codes each block takes a bit at least.
            if !info.arithmetic && !info.lossless && info.blocks() > 8 * scans as u64 {
                return Err(cut(&format!("its {scans} bytes of scans are too few for its size")));
            }
        }
        Ok(info)
    }

    /// Largest n of 8, 4 and 2 by which a JPEG may be reduced while it is decoded, else 1.
    fn reduction(&self, info: &JpegInfo, crop: &Crop) -> u32 {
        let mcu = info.mcu();
        // Where colours are subsampled alike on both axes libjpeg reduces them less by as much; else they lose more.
        let (coarse_x, coarse_y) = if mcu.0 == mcu.1 { (1, 1) } else { (mcu.0 / 8, mcu.1 / 8) };
        let fits = |n: u32, coarse: u32, length: f64, target: u32| {
            length >= f64::from(n * coarse) * self.options.min_reduced * f64::from(target)
        };
        let both = |&n: &u32| {
            fits(n, coarse_x, crop.width, crop.target.width) && fits(n, coarse_y, crop.height, crop.target.height)
        };
        [8, 4, 2].into_iter().find(both).unwrap_or(1)
    }

    /// Decodes at least `need` of the image reduced by `reduction` to the start of `pixels`; gives what was decoded.
    fn decode_jpeg(&mut self, data: &[u8], info: &JpegInfo, reduction: u32, need: Rect) -> Result<Rect, DecodeError> {
        let mut jpeg = open(data, info)?;
        let whole = reduced(info, reduction);
        let mut region = if jpeg.regions { jpeg_region(info, reduction, need, whole) } else { whole };
        loop {
            let outcome = self.decode_region(&mut jpeg, info, reduction, region)?;
            if outcome == Outcome::Truncated && self.options.truncated == Truncated::Reject {
                return Err(cut("its data ends before the image does"));
            }
            if outcome == Outcome::Clean || region == whole {
                return Ok(region);
            }
            // How libjpeg conceals damage may depend on the region: as in the whole image, then.
            region = whole;
        }
    }

    /// As [`Decoder::decode_jpeg`], of the pieces of a crop-ready JPEG that are needed; `None` if it has to be decoded whole.
    fn decode_cut(&mut self, rows: &Rows<'_>, info: &JpegInfo, reduction: u32, need: Rect) -> Option<Rect> {
        let region = jpeg_region(info, reduction, need, reduced(info, reduction));
        let margin = if info.mcu().1 > 8 { SMOOTHED } else { 0 };
        let mut bytes = std::mem::take(&mut self.cut);
        let decoded = rows.cut(region, margin, reduction, &mut bytes).and_then(|((x, y), part)| {
            let mut jpeg = open(&bytes, &part).ok().filter(|jpeg| jpeg.regions)?;
            let moved = Rect { x: region.x - x, y: region.y - y, ..region };
            let outcome = self.decode_region(&mut jpeg, &part, reduction, moved).ok()?;
            (outcome == Outcome::Clean).then_some(region)
        });
        self.cut = bytes;
        decoded
    }

    /// Decodes just the region of the image reduced by `reduction` to the start of `pixels`.
    fn decode_region(
        &mut self,
        jpeg: &mut ffi::Jpeg<'_>,
        info: &JpegInfo,
        reduction: u32,
        region: Rect,
    ) -> Result<Outcome, DecodeError> {
        let count = region.width as usize * region.height as usize;
        let (format, target) = if info.components == 4 {
            (ffi::Format::Cmyk, reserve(&mut self.scratch, 4 * count))
        } else {
            (ffi::Format::Rgb, reserve(&mut self.pixels, 3 * count))
        };
        let outcome = jpeg.decode(region, reduction, format, target).map_err(damaged)?;
        if format == ffi::Format::Cmyk {
            let cmyk = self.scratch[..4 * count].chunks_exact(4).filter_map(<[u8]>::first_chunk);
            let rgb = reserve(&mut self.pixels, 3 * count).chunks_exact_mut(3);
            rgb.zip(cmyk).for_each(|(rgb, &cmyk)| rgb.copy_from_slice(&inverted_cmyk_to_rgb(cmyk)));
        }
        Ok(outcome)
    }
}

fn open<'a>(data: &'a [u8], info: &JpegInfo) -> Result<ffi::Jpeg<'a>, DecodeError> {
    let jpeg = ffi::Jpeg::open(data).map_err(damaged)?;
    if (jpeg.width, jpeg.height) != (info.width, info.height) {
        return Err(damaged(format!("its headers say {} x {} and {info:?}", jpeg.width, jpeg.height)));
    }
    Ok(jpeg)
}

/// All of the image reduced by `reduction`.
fn reduced(info: &JpegInfo, reduction: u32) -> Rect {
    Rect::whole(info.width.div_ceil(reduction), info.height.div_ceil(reduction))
}

/// The region to decode so that `need` comes out as in the whole image: from a column of whole MCUs, and with the
/// neighbours that the smoothing of colours looks at.
fn jpeg_region(info: &JpegInfo, reduction: u32, need: Rect, whole: Rect) -> Rect {
    let mcu = info.mcu().0;
    let align = (mcu / reduction).max(1);
    let subsampled = if mcu > 8 { SMOOTHED } else { 0 };
    // Of a progressive file that lacks its finer scans, libjpeg smooths blocks by two neighbours on each side.
    let smoothed = if info.progressive { 2 * align } else { 0 };
    let margin = subsampled + smoothed;
    let x = need.x.saturating_sub(margin) / align * align;
    // Of less than 3 samples in a row, libjpeg chooses another way to interpolate.
    let end = (need.x + need.width + margin).max(x + 4 * mcu / 8).min(whole.width);
    Rect { x, y: need.y, width: end - x, height: need.height }
}

/// What of the image reduced by `reduction` the filter looks at, and the crop's part (left, top, width, height) in it.
fn needed(crop: &Crop, reduction: u32, support: f64) -> (Rect, [f64; 4]) {
    let n = f64::from(reduction);
    let part = [crop.x / n, crop.y / n, crop.width / n, crop.height / n];
    let axis = |start: f64, length: f64, target: u32, low: u32, side: u32| {
        let low = low / reduction;
        let high = (side).div_ceil(reduction);
        let reach = support * (length / f64::from(target)).max(1.0) + 1.0;
        #[allow(clippy::cast_sign_loss)] // not below `low`
        let number = |x: f64| x.clamp(low.into(), high.into()) as u32;
        let from = number((start - reach).floor()).min(high - 1);
        (from, number((start + length + reach).ceil()).max(from + 1) - from)
    };
    let Rect { x, y, width, height } = crop.bounds;
    let (x, width) = axis(part[0], part[2], crop.target.width, x, x + width);
    let (y, height) = axis(part[1], part[3], crop.target.height, y, y + height);
    (Rect { x, y, width, height }, part)
}

fn check_output(pixels: &[u8], (width, height): (u32, u32)) -> Result<(), DecodeError> {
    if pixels.is_empty() || pixels.len() as u64 != 3 * u64::from(width) * u64::from(height) {
        return Err(DecodeError::Output { found: pixels.len(), width, height });
    }
    Ok(())
}

/// Where a crop goes.
struct Output<'a> {
    pixels: &'a mut [u8],
    size: (u32, u32),
    /// Part of the output before it is turned.
    target: Rect,
    turned: Orientation,
}

fn render(
    resizer: &mut Resizer,
    filter: Filter,
    source: &Source<'_>,
    output: Output<'_>,
    scratch: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let Output { pixels: out, size, target, turned } = output;
    let (width, height) = turned.size(size.0, size.1);
    let in_place = !turned.transpose && !turned.mirror_y;
    let unturned = if in_place { &mut *out } else { reserve(scratch, out.len()) };
    if target != Rect::whole(width, height) {
        unturned.fill(0);
    }
    if let Some(part) = source.unscaled(target) {
        copy_pixels(source, part, unturned, width, target, in_place && turned.mirror_x);
    } else {
        resize(resizer, filter, source, unturned, width, target)?;
        if in_place && turned.mirror_x {
            let copy = reserve(scratch, 3 * width as usize);
            for row in out.chunks_exact_mut(3 * width as usize) {
                copy.copy_from_slice(row);
                copy_row(copy, row, true);
            }
        }
    }
    if !in_place {
        turned.apply(&scratch[..out.len()], width as usize, out);
    }
    Ok(())
}

/// Copies whole pixels to the target, or to where it is once the output, rows of `out_width`, was mirrored.
fn copy_pixels(source: &Source<'_>, part: Rect, out: &mut [u8], out_width: u32, target: Rect, mirror: bool) {
    let left = if mirror { out_width - target.x - target.width } else { target.x };
    let (from_pitch, to_pitch) = (3 * source.width as usize, 3 * out_width as usize);
    let from = source.pixels.chunks_exact(from_pitch).skip(part.y as usize);
    let to = out.chunks_exact_mut(to_pitch).skip(target.y as usize);
    let (length, from_x, to_x) = (3 * part.width as usize, 3 * part.x as usize, 3 * left as usize);
    for (from, to) in from.zip(to).take(part.height as usize) {
        copy_row(&from[from_x..from_x + length], &mut to[to_x..to_x + length], mirror);
    }
}

/// Pillow's way: all JPEGs of four components are taken for inverted ones, as Adobe writes them.
fn inverted_cmyk_to_rgb([c, m, y, k]: [u8; 4]) -> [u8; 3] {
    [c, m, y].map(|ink| {
        let product = u32::from(255 - ink) * u32::from(k) + 128;
        k.saturating_sub((((product >> 8) + product) >> 8) as u8)
    })
}

fn damaged(detail: String) -> DecodeError {
    DecodeError::Damaged { format: "JPEG", detail }
}

fn cut(detail: &str) -> DecodeError {
    DecodeError::Truncated { format: "JPEG", detail: detail.to_owned() }
}
