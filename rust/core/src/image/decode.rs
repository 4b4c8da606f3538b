//! `Decoder`: decodes encoded images to pixels, and crops and resizes them. It does not read files.

use crate::memory;
use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::foreign;
use super::jpeg::{Sequential, Wanted, is_packed, jpeg_headers};
use super::probe::{Format, JpegInfo, jpeg_info};
use super::resize::{Resizer, Source, Target, resize};
use super::row::copy_row;
use super::{Crop, DecodeError, DecodeOptions, Filter, Orientation, Rect, formats, reserve};

/// Buffers up to this size are kept for the next image. Larger ones are freed after their image.
const KEEP: usize = 64 << 20;

/// The time spent on one image.
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
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// RGB, one byte per channel, row after row without padding.
    pub pixels: &'a [u8],
}

/// What becomes of a part of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish {
    /// The part.
    pub crop: Crop,
    /// Whether the output is mirrored left to right.
    pub flip: bool,
    /// Width and height of the output.
    pub size: (u32, u32),
    /// The filter for resizing.
    pub filter: Filter,
    /// The colour of the output where it shows nothing of the image.
    pub fill: [u8; 3],
}

impl Wish {
    fn clear(&self, out: &mut [u8]) {
        out.as_chunks_mut().0.fill(self.fill);
    }
}

/// The headers of an image that a [`Decoder`] decodes next.
#[derive(Debug)]
pub struct Opened {
    info: Option<JpegInfo>,
    width: u32,
    height: u32,
    orientation: Orientation,
}

impl Opened {
    /// Returns width and height in pixels, after the image was turned upright if that was requested.
    pub fn size(&self) -> (u32, u32) {
        self.orientation.size(self.width, self.height)
    }

    /// Returns the crop in the coordinates of the stored image.
    fn stored(&self, wish: &Wish) -> Crop {
        wish.crop.stored(self.orientation, self.size(), wish.size)
    }
}

/// The part of an image that a [`Decoder`] has decoded, at a fraction of its size.
#[derive(Debug, Clone, Copy)]
pub struct Decoded {
    region: Rect,
    reduction: u32,
}

/// Decodes images in one thread, one after the other. It reuses its buffers.
#[derive(Debug)]
pub struct Decoder {
    pub(super) options: DecodeOptions,
    resizer: Resizer,
    pub(super) pixels: Vec<u8>,
    pub(super) scratch: Vec<u8>,
    pub(super) sequential: Sequential,
    /// The headers of a packed JPEG.
    pub(super) headers: Vec<u8>,
}

impl Decoder {
    /// Creates a decoder. Memory for images is allocated later.
    pub fn new(options: DecodeOptions) -> Self {
        Self {
            options,
            resizer: Resizer::new(),
            pixels: Vec::new(),
            scratch: Vec::new(),
            sequential: Sequential::default(),
            headers: Vec::new(),
        }
    }

    /// Returns width and height in pixels after decoding, from the headers alone.
    ///
    /// # Errors
    /// The format is unknown, the headers are damaged or truncated, or the image has too many
    /// pixels.
    pub fn size(&self, data: &[u8]) -> Result<(u32, u32), DecodeError> {
        let (width, height, orientation) = match foreign::sniff(data)? {
            Format::Jpeg => {
                let info = jpeg_info(jpeg_headers(data))?;
                self.options.check_size(info.width, info.height)?;
                (info.width, info.height, self.orientation(&info))
            }
            other => formats::size(other, data, &self.options)?,
        };
        Ok(orientation.size(width, height))
    }

    /// Returns the image's own orientation, whatever the options; from the headers alone.
    ///
    /// # Errors
    /// As [`Decoder::size`].
    pub fn orientation_of(data: &[u8]) -> Result<Orientation, DecodeError> {
        match foreign::sniff(data)? {
            Format::Jpeg => jpeg_info(jpeg_headers(data)).map(|info| info.orientation),
            other => {
                let options = DecodeOptions { orientation: true, ..DecodeOptions::default() };
                formats::size(other, data, &options).map(|(_, _, orientation)| orientation)
            }
        }
    }

    /// Decodes the whole image into the decoder's own buffer.
    ///
    /// # Errors
    /// The bytes are not an image, or the image is damaged, truncated, too large, or of an
    /// unsupported kind.
    pub fn decode(&mut self, data: &[u8]) -> Result<Image<'_>, DecodeError> {
        self.trim();
        let (width, height, orientation) = match foreign::sniff(data)? {
            Format::Jpeg => {
                let info = self.jpeg_header(data)?;
                self.decode_jpeg(Wanted::whole(data, &info))?;
                (info.width, info.height, self.orientation(&info))
            }
            other => formats::decode(other, data, &self.options, &mut self.pixels, &mut self.scratch)?,
        };
        let len = 3 * width as usize * height as usize;
        let pixels = if orientation == Orientation::UPRIGHT {
            &self.pixels[..len]
        } else {
            let shown = reserve(&mut self.scratch, len)?;
            orientation.apply(&self.pixels[..len], width as usize, shown);
            shown
        };
        let (width, height) = orientation.size(width, height);
        Ok(Image { width, height, pixels })
    }

    /// Decodes the part of an image that `crop` selects, and resizes it into `out`.
    ///
    /// The output has `size` (width, height) in pixels of RGB, row after row. With `flip` it is
    /// mirrored left to right.
    ///
    /// # Errors
    /// As [`Decoder::decode`]; or the crop does not fit the image; or `out` does not match `size`.
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

    /// As [`Decoder::crop_resize`], for a crop and a flip that depend on the image's size. `plan`
    /// gets its width and height.
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

    /// As [`Decoder::crop_resize_with`], for an image that may have side bytes from
    /// [`rewrite`](super::rewrite) or [`crop_index`](super::crop_index()).
    ///
    /// With side bytes, only the parts of the data that the crop touches are decoded. The output is
    /// the same. Side bytes that do not match the image have no effect.
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
        check_output(out, size)?;
        let opened = self.open(data)?;
        let (width, height) = opened.size();
        let (crop, flip) = plan(width, height);
        let wanted = Wish { crop, flip, size, filter: self.options.filter, fill: [0; 3] };
        let found = self.decode_for(&opened, (data, side_bytes), &[wanted])?;
        let decode = start.elapsed();
        self.render(&opened, found, &wanted, out)?;
        Ok(Timings { decode, resize: start.elapsed().saturating_sub(decode) })
    }

    /// Reads the headers of an image, for [`Decoder::decode_for`]. Images of formats other than JPEG are
    /// decoded.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn open(&mut self, data: &[u8]) -> Result<Opened, DecodeError> {
        self.trim();
        let (info, (width, height, orientation)) = match foreign::sniff(data)? {
            Format::Jpeg => {
                let info = self.jpeg_header(data)?;
                let stored = (info.width, info.height, self.orientation(&info));
                (Some(info), stored)
            }
            other => (None, formats::decode(other, data, &self.options, &mut self.pixels, &mut self.scratch)?),
        };
        Ok(Opened { info, width, height, orientation })
    }

    /// Decodes the parts of an open image that some crops need, all at once, for [`Decoder::render`].
    /// `data` are the image and its side bytes.
    ///
    /// # Errors
    /// As [`Decoder::crop_resize`].
    pub fn decode_for(
        &mut self,
        opened: &Opened,
        (data, side): (&[u8], &[u8]),
        wanted: &[Wish],
    ) -> Result<Decoded, DecodeError> {
        let whole = Rect::whole(opened.width, opened.height);
        for wish in wanted {
            wish.crop.check(opened.size(), wish.size)?;
        }
        let Some((info, reduction, need)) = self.area(opened, wanted) else {
            return Ok(Decoded { region: whole, reduction: 1 });
        };
        let region = self.decode_jpeg(Wanted { data, side, info, reduction, need })?;
        Ok(Decoded { region, reduction })
    }

    /// Reports whether crops are decoded faster one by one: of a packed JPEG or with side bytes, if the area around
    /// all of them is larger than all of theirs.
    pub fn apart(&self, opened: &Opened, (data, side): (&[u8], &[u8]), wanted: &[Wish]) -> bool {
        let pixels = |wanted: &[Wish]| {
            self.area(opened, wanted).map_or(0, |(_, reduction, need)| {
                u64::from(reduction * reduction) * u64::from(need.width) * u64::from(need.height)
            })
        };
        let in_parts = !side.is_empty() || is_packed(data);
        in_parts && wanted.len() > 1 && wanted.iter().map(|wish| pixels(&[*wish])).sum::<u64>() < pixels(wanted)
    }

    /// Returns the area that some crops need, in pixels of the JPEG after that reduction; `None` if they need nothing.
    fn area<'a>(&self, opened: &'a Opened, wanted: &[Wish]) -> Option<(&'a JpegInfo, u32, Rect)> {
        let info = opened.info.as_ref()?;
        let crops =
            || wanted.iter().filter(|wish| !wish.crop.target.is_empty()).map(|wish| (wish, opened.stored(wish)));
        let reduction = crops().map(|(_, crop)| self.reduction(info, &crop)).min()?;
        let needs = crops().map(|(wish, crop)| needed(&crop, reduction, wish.filter.support()).0);
        Some((info, reduction, needs.reduce(Rect::around)?))
    }

    /// Resizes what [`Decoder::decode_for`] has decoded.
    ///
    /// # Errors
    /// As [`Decoder::crop_resize`].
    pub fn render(&mut self, opened: &Opened, found: Decoded, wish: &Wish, out: &mut [u8]) -> Result<(), DecodeError> {
        check_output(out, wish.size)?;
        let (crop, Decoded { region, reduction }) = (opened.stored(wish), found);
        if crop.target.is_empty() {
            wish.clear(out);
            return Ok(());
        }
        let (need, part) = needed(&crop, reduction, wish.filter.support());
        let source = Source {
            pixels: &self.pixels,
            width: region.width,
            height: region.height,
            bounds: Rect { x: need.x - region.x, y: need.y - region.y, ..need },
            part: [part[0] - f64::from(region.x), part[1] - f64::from(region.y), part[2], part[3]],
        };
        let turned = opened.orientation.flipped(wish.flip);
        render(&mut self.resizer, wish, &source, Output { pixels: out, target: crop.target, turned }, &mut self.scratch)
    }

    /// As [`Decoder::render`], for decoded pixels.
    ///
    /// # Errors
    /// The crop does not fit the image; or the pixels or `out` do not match their sizes.
    pub fn render_pixels(&mut self, image: Image<'_>, wish: &Wish, out: &mut [u8]) -> Result<(), DecodeError> {
        let Image { width, height, pixels } = image;
        check_output(pixels, (width, height))?;
        check_output(out, wish.size)?;
        wish.crop.check((width, height), wish.size)?;
        let Crop { x, y, width: across, height: down, bounds, target } = wish.crop;
        if target.is_empty() {
            wish.clear(out);
            return Ok(());
        }
        let source = Source { pixels, width, height, bounds, part: [x, y, across, down] };
        let output = Output { pixels: out, target, turned: Orientation::UPRIGHT.flipped(wish.flip) };
        render(&mut self.resizer, wish, &source, output, &mut self.scratch)
    }

    /// As [`Decoder::crop_resize`], for decoded pixels.
    ///
    /// # Errors
    /// As [`Decoder::render_pixels`].
    pub fn crop_resize_pixels(
        &mut self,
        image: Image<'_>,
        crop: &Crop,
        flip: bool,
        size: (u32, u32),
        out: &mut [u8],
    ) -> Result<Timings, DecodeError> {
        let start = Instant::now();
        let wish = Wish { crop: *crop, flip, size, filter: self.options.filter, fill: [0; 3] };
        self.render_pixels(image, &wish, out)?;
        Ok(Timings { decode: Duration::ZERO, resize: start.elapsed() })
    }

    fn orientation(&self, info: &JpegInfo) -> Orientation {
        if self.options.orientation { info.orientation } else { Orientation::UPRIGHT }
    }

    pub(super) fn trim(&mut self) {
        self.sequential.trim(KEEP);
        for buffer in [&mut self.pixels, &mut self.scratch] {
            if buffer.capacity() > KEEP {
                *buffer = Vec::new();
            }
        }
    }
}

/// Returns the area of the reduced image that the filter reads, and the crop's part (left, top,
/// width, height) in it.
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

/// The output of a crop.
struct Output<'a> {
    pixels: &'a mut [u8],
    /// The target area in the output before it is turned.
    target: Rect,
    turned: Orientation,
}

fn render(
    resizer: &mut Resizer,
    wish: &Wish,
    source: &Source<'_>,
    output: Output<'_>,
    scratch: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let Output { pixels: out, target, turned } = output;
    let (width, height) = turned.size(wish.size.0, wish.size.1);
    let in_place = !turned.transpose && !turned.mirror_y;
    let unturned = if in_place { &mut *out } else { reserve(scratch, out.len())? };
    if target != Rect::whole(width, height) {
        wish.clear(unturned);
    }
    let mirror = in_place && turned.mirror_x;
    if let Some(part) = source.unscaled(target) {
        copy_pixels(source, part, unturned, width, target, mirror);
    } else {
        resize(resizer, wish.filter, source, Target { pixels: unturned, width, area: target, mirror })?;
    }
    if !in_place {
        turned.apply(&scratch[..out.len()], width as usize, out);
    }
    Ok(())
}

/// Copies whole pixels to the target, or to its mirrored place. Rows of the output have `out_width`
/// pixels.
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

thread_local! {
    static DECODER: RefCell<Option<(DecodeOptions, Decoder)>> = const { RefCell::new(None) };
}

/// A decoded image that owns its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pixels {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// RGB, one byte per channel, row after row without padding.
    pub pixels: Vec<u8>,
}

/// Decodes a whole image, with one decoder per thread.
///
/// # Errors
/// As [`Decoder::decode`].
pub fn decode_image(data: &[u8], options: DecodeOptions) -> std::result::Result<Pixels, DecodeError> {
    with_decoded(data, options, |image| {
        let bytes = image.pixels.len() as u64;
        let pixels = memory::copied(image.pixels).map_err(|_| DecodeError::Memory { bytes })?;
        Ok(Pixels { width: image.width, height: image.height, pixels })
    })?
}

/// Decodes a whole image with one decoder per thread, and passes it to `take`.
pub(crate) fn with_decoded<T>(
    data: &[u8],
    options: DecodeOptions,
    take: impl FnOnce(Image<'_>) -> T,
) -> std::result::Result<T, DecodeError> {
    with_decoder(options, |decoder| decoder.decode(data).map(take))
}

/// Passes this thread's decoder to `work`.
pub(super) fn with_decoder<T>(options: DecodeOptions, work: impl FnOnce(&mut Decoder) -> T) -> T {
    DECODER.with_borrow_mut(|kept| {
        if kept.as_ref().is_none_or(|(before, _)| *before != options) {
            *kept = None;
        }
        let (_, decoder) = kept.get_or_insert_with(|| (options, Decoder::new(options)));
        work(decoder)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{JpegOptions, encode_jpeg};

    #[test]
    fn memory_for_a_long_image_is_not_kept() {
        let small = encode_jpeg(&[200; 3 * 20 * 10], 20, 10, &JpegOptions::default()).unwrap();
        let (start, end) = small.split_at(small.len() - 2);
        // Nothing belongs after the last MCU; libjpeg passes over it.
        let long = [start, &[0xFF, 0].repeat(KEEP / 8), end].concat();
        let mut decoder = Decoder::new(DecodeOptions::default());
        let expected = decoder.decode(&small).unwrap().pixels.to_vec();
        assert!(decoder.decode(&long).unwrap().pixels == expected && decoder.sequential.memory() > KEEP);
        assert!(decoder.decode(&small).unwrap().pixels == expected && decoder.sequential.memory() < 1 << 16);
    }

    #[test]
    fn a_thread_decodes_by_the_options_of_each_call() {
        let data = encode_jpeg(&[200; 3 * 20 * 10], 20, 10, &JpegOptions::default()).unwrap();
        let small = DecodeOptions { max_pixels: 199, ..DecodeOptions::default() };
        for _ in 0..2 {
            let image = decode_image(&data, DecodeOptions::default()).unwrap();
            assert_eq!((image.width, image.height, image.pixels.len()), (20, 10, 600));
            assert!(matches!(decode_image(&data, small), Err(DecodeError::TooLarge { limit: 199, .. })));
        }
    }
}
