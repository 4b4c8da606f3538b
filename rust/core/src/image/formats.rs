//! Decoding of formats other than JPEG, with the crate `image`. The pixels are the same as with Pillow's
//! `convert("RGB")`: alpha is dropped and not blended, and 16-bit colours lose their lower half.
//! 16-bit grey is an error unless the options allow it.

use std::io::{Cursor, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ::image::codecs::{bmp, gif, png, pnm, tiff, webp};
use ::image::error::{ImageError, ImageResult, UnsupportedErrorKind};
use ::image::{ColorType, ImageDecoder, Limits};

use super::probe::Format;
use super::tiff::entries;
use super::{DecodeError, DecodeOptions, Orientation, SixteenBit, Truncated, check_memory, reserve};
use crate::limits::MAX_IMAGE_WORKSPACE;

type Boxed<'a> = Box<dyn ImageDecoder + 'a>;

/// Returns the size as stored, and the orientation if the options request it.
pub(super) fn size(
    format: Format,
    data: &[u8],
    options: &DecodeOptions,
) -> Result<(u32, u32, Orientation), DecodeError> {
    guarded(format, || {
        let mut decoder = open(format, data, options)?;
        header(format, data, &mut decoder, options)
    })
}

/// Returns why an image is of a kind that is not decoded, from its headers.
pub(super) fn unsupported(format: Format, data: &[u8]) -> Option<String> {
    let reason = guarded(format, || {
        let decoder = open(format, data, &DecodeOptions::default())?;
        convert(format, decoder.color_type(), None, &[], &mut [])
    });
    match reason {
        Err(DecodeError::Unsupported { detail, .. }) => Some(detail),
        _ => None,
    }
}

/// Decodes the whole image to RGB at the start of `pixels`; returns its size as stored.
pub(super) fn decode(
    format: Format,
    data: &[u8],
    options: &DecodeOptions,
    pixels: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Result<(u32, u32, Orientation), DecodeError> {
    guarded(format, || {
        let mut decoder = open(format, data, options)?;
        let (width, height, orientation) = header(format, data, &mut decoder, options)?;
        let count = width as usize * height as usize;
        let color = decoder.color_type();
        let grey = sixteen_bit_grey(format, color, data);
        if grey && options.sixteen_bit == SixteenBit::Reject {
            return Err(DecodeError::SixteenBit { format: format.name() });
        }
        // A decoder of this crate allocates at most as much again as the pixels.
        check_memory(count * usize::from(color.bytes_per_pixel()))?;
        let rgb = reserve(pixels, 3 * count)?;
        if color == ColorType::Rgb8 {
            read(format, decoder, rgb, options)?;
        } else {
            let raw = reserve(scratch, count * usize::from(color.bytes_per_pixel()))?;
            read(format, decoder, raw, options)?;
            convert(format, color, grey.then_some(options.sixteen_bit), raw, rgb)?;
        }
        Ok((width, height, orientation))
    })
}

/// Decodes the whole image as stored to the start of `out`; returns its size and the type of its pixels.
pub(super) fn raw(
    format: Format,
    data: &[u8],
    options: &DecodeOptions,
    out: &mut Vec<u8>,
) -> Result<(u32, u32, Orientation, ColorType), DecodeError> {
    guarded(format, || {
        let mut decoder = open(format, data, options)?;
        let (width, height, orientation) = header(format, data, &mut decoder, options)?;
        let color = decoder.color_type();
        let bytes = width as usize * height as usize * usize::from(color.bytes_per_pixel());
        check_memory(bytes)?;
        read(format, decoder, reserve(out, bytes)?, options)?;
        Ok((width, height, orientation, color))
    })
}

/// Third-party decoders process hostile bytes: a panic in one becomes an error of this image.
pub(super) fn guarded<T>(format: Format, work: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(damaged(format, "its decoder panicked".to_owned())))
}

fn open<'a>(format: Format, data: &'a [u8], options: &DecodeOptions) -> Result<Boxed<'a>, DecodeError> {
    // The crate reads tags before it accepts a limit, and allocates as many values as they claim.
    if format == Format::Tiff
        && let Some(entry) = entries(data).find(|entry| entry.count as usize > data.len())
    {
        return Err(damaged(format, format!("tag {} of {} values, in {} bytes", entry.tag, entry.count, data.len())));
    }
    boxed(format, data, options).map_err(|e| translate(format, e))
}

fn boxed<'a>(format: Format, data: &'a [u8], options: &DecodeOptions) -> ImageResult<Boxed<'a>> {
    let bytes = Cursor::new(data);
    let mut limits = Limits::default();
    limits.max_alloc = Some(options.max_pixels.saturating_mul(8).saturating_add(MAX_IMAGE_WORKSPACE));
    let mut decoder: Boxed<'a> = match format {
        Format::Png => return Ok(Box::new(png::PngDecoder::with_limits(bytes, limits)?)),
        Format::WebP => Box::new(webp::WebPDecoder::new(bytes)?),
        Format::Gif => Box::new(gif::GifDecoder::new(bytes)?),
        Format::Bmp => Box::new(bmp::BmpDecoder::new(bytes)?),
        Format::Tiff => Box::new(tiff::TiffDecoder::new(bytes)?),
        Format::Pnm => Box::new(pnm::PnmDecoder::new(bytes)?),
        Format::Jpeg => unreachable!("JPEGs are TurboJPEG's"),
    };
    decoder.set_limits(limits)?;
    Ok(decoder)
}

fn header(
    format: Format,
    data: &[u8],
    decoder: &mut Boxed<'_>,
    options: &DecodeOptions,
) -> Result<(u32, u32, Orientation), DecodeError> {
    let (width, height) = decoder.dimensions();
    options.check_size(width, height)?;
    let orientation = match format {
        _ if !options.orientation => None,
        // EXIF data have the layout of TIFF files, which use the same tag.
        Format::Tiff => Some(Orientation::from_exif(data)),
        _ => decoder.exif_metadata().ok().flatten().map(|tiff| Orientation::from_exif(&tiff)),
    };
    Ok((width, height, orientation.unwrap_or(Orientation::UPRIGHT)))
}

fn read(format: Format, decoder: Boxed<'_>, out: &mut [u8], options: &DecodeOptions) -> Result<(), DecodeError> {
    let accept = options.truncated == Truncated::Accept;
    if accept {
        // Undecoded pixels stay black.
        out.fill(0);
    }
    match decoder.read_image_boxed(out).map_err(|e| translate(format, e)) {
        Err(DecodeError::Truncated { .. }) if accept => Ok(()),
        outcome => outcome,
    }
}

/// Reports whether the pixels are 16-bit grey. A PNG's transparent value becomes an alpha channel.
fn sixteen_bit_grey(format: Format, color: ColorType, data: &[u8]) -> bool {
    color == ColorType::L16 || color == ColorType::La16 && format == Format::Png && data.get(25) == Some(&0)
}

/// Converts pixels to RGB. `grey` is how to convert 16-bit grey, if they are that.
fn convert(
    format: Format,
    color: ColorType,
    grey: Option<SixteenBit>,
    raw: &[u8],
    rgb: &mut [u8],
) -> Result<(), DecodeError> {
    // The crate returns 16-bit samples in native byte order.
    #[allow(clippy::host_endian_bytes)]
    let wide = |bytes: [u8; 2]| u16::from_ne_bytes(bytes);
    // Pillow scales 16-bit PNM files. All other formats lose their lower half.
    let narrow = |bytes: [u8; 2]| match format {
        Format::Pnm => ((u32::from(wide(bytes)) * 255 + 32_767) / 65_535) as u8,
        _ => (wide(bytes) >> 8) as u8,
    };
    let fold = |bytes: [u8; 2]| match grey {
        Some(SixteenBit::Scale) => [((u32::from(wide(bytes)) + 128) / 257) as u8; 3],
        Some(_) => [wide(bytes).min(255) as u8; 3],
        None => [narrow(bytes); 3],
    };
    match color {
        ColorType::Rgb8 => rgb.copy_from_slice(raw),
        ColorType::L8 => each(raw, rgb, |&[l]| [l; 3]),
        ColorType::La8 => each(raw, rgb, |&[l, _]| [l; 3]),
        ColorType::Rgba8 => each(raw, rgb, |&[r, g, b, _]| [r, g, b]),
        ColorType::L16 => each(raw, rgb, |&l| fold(l)),
        ColorType::La16 => each(raw, rgb, |&[h, l, _, _]| fold([h, l])),
        ColorType::Rgb16 => {
            each(raw, rgb, |&[r0, r1, g0, g1, b0, b1]| [narrow([r0, r1]), narrow([g0, g1]), narrow([b0, b1])]);
        }
        ColorType::Rgba16 => {
            each(raw, rgb, |&[r0, r1, g0, g1, b0, b1, _, _]| [narrow([r0, r1]), narrow([g0, g1]), narrow([b0, b1])]);
        }
        other => {
            return Err(DecodeError::Unsupported { format: format.name(), detail: format!("pixels of {other:?}") });
        }
    }
    Ok(())
}

fn each<const N: usize>(raw: &[u8], rgb: &mut [u8], pixel: impl Fn(&[u8; N]) -> [u8; 3]) {
    for (to, from) in rgb.chunks_exact_mut(3).zip(raw.chunks_exact(N).filter_map(<[u8]>::first_chunk)) {
        to.copy_from_slice(&pixel(from));
    }
}

fn translate(format: Format, error: ImageError) -> DecodeError {
    match error {
        ImageError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => {
            DecodeError::Truncated { format: format.name(), detail: e.to_string() }
        }
        ImageError::Unsupported(e) => {
            let detail = match e.kind() {
                UnsupportedErrorKind::Color(color) => format!("pixels of {color:?}"),
                UnsupportedErrorKind::GenericFeature(feature) => feature,
                _ => e.to_string(),
            };
            DecodeError::Unsupported { format: format.name(), detail }
        }
        other => damaged(format, other.to_string()),
    }
}

fn damaged(format: Format, detail: String) -> DecodeError {
    DecodeError::Damaged { format: format.name(), detail }
}
