//! Images: formats, decoding, cropping and resizing of the part that a training step needs. May
//! import `error`, `limits`, `memory`, `order`.
//!
//! A [`Decoder`] belongs to one thread and reuses its buffers. For a JPEG it decodes only the
//! region that a crop needs. It decodes at a half, a quarter or an eighth of the size if that is
//! still as large as the output.

mod crop;
mod decode;
mod foreign;
mod formats;
mod jpeg;
mod native;
mod orientation;
mod probe;
mod raw;
mod resize;
mod row;
pub(crate) mod size;
mod tiff;

pub use crate::error::decode::DecodeError;
pub use crate::order::random::{Random, uniform};
pub(crate) use crop::check_size;
pub use crop::{Crop, Geometry, Place, Rect, Scaling, resized};
pub(crate) use decode::with_decoded;
pub use decode::{Decoded, Decoder, Image, Opened, Pixels, Timings, Wish, decode_image};
pub(crate) use foreign::jpeg2000_size;
pub use foreign::{Channels, foreign_kind};
pub use jpeg::{JpegOptions, Subsampling, check_crop_index, crop_index, encode_jpeg, pack_jpeg, unpack_jpeg};
pub use native::Native;
pub use orientation::Orientation;
pub use probe::{Component, Format, JpegInfo, jpeg_info};
pub use raw::{raw_header, raw_pixels};
pub use resize::Filter;
pub(crate) use resize::instructions as resize_instructions;

use crate::limits::MAX_PIXELS;
use crate::memory;

/// The kind of side bytes that are the crop index of a JPEG. All other kinds are ignored.
pub const CROP_INDEX: u8 = 2;

/// The handling of an image that ends too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Truncated {
    /// Raises an error.
    #[default]
    Reject,
    /// Decodes the part that is there. The rest of a JPEG is grey or shows its coarser scans; other
    /// formats are black.
    Accept,
}

/// The handling of a 16-bit image with one channel. Images with three channels always lose their
/// lower half, as in Pillow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SixteenBit {
    /// Raises an error.
    #[default]
    Reject,
    /// Divides values by 257 and rounds: 65535 becomes 255.
    Scale,
    /// Sets values above 255 to 255, as in Pillow.
    Clip,
}

/// Options for decoding images.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeOptions {
    /// The handling of an image that ends too early.
    pub truncated: Truncated,
    /// The handling of 16-bit grey.
    pub sixteen_bit: SixteenBit,
    /// Turn images as their EXIF data specifies. Otherwise they stay as stored, as in torchvision.
    pub orientation: bool,
    /// Images with more pixels are refused before memory is allocated for them.
    pub max_pixels: u64,
    /// The filter for resizing.
    pub filter: Filter,
    /// Minimum size of a reduced crop relative to the output, on both axes. JPEGs are decoded at `1
    /// / n` of their size (`n` is 2, 4 or 8) if the crop stays that large. Infinity turns this off.
    /// At 2.5 the result differs from Pillow's by less than 1.0 of 255 on average over each image.
    /// At 1.0 it differs by up to 2.6, because it lacks some of the filter's smoothing.
    pub min_reduced: f64,
    /// Decode JPEGs by libjpeg-turbo alone. The result is the same; tests compare both.
    pub stock_jpeg: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            truncated: Truncated::Reject,
            sixteen_bit: SixteenBit::Reject,
            orientation: false,
            max_pixels: MAX_PIXELS,
            filter: Filter::Bilinear,
            min_reduced: 2.5,
            stock_jpeg: false,
        }
    }
}

impl DecodeOptions {
    fn check_size(&self, width: u32, height: u32) -> Result<(), DecodeError> {
        if u64::from(width) * u64::from(height) > self.max_pixels {
            return Err(DecodeError::TooLarge { width, height, limit: self.max_pixels });
        }
        if width == 0 || height == 0 {
            return Err(DecodeError::Internal { detail: format!("an image of {width} x {height} pixels") });
        }
        Ok(())
    }
}

/// Returns the first `len` bytes of a buffer that grows and is never cleared.
fn reserve(buffer: &mut Vec<u8>, len: usize) -> Result<&mut [u8], DecodeError> {
    if buffer.len() < len {
        // Do not use `resize`: it would copy the old contents, which are useless, and keep them
        // meanwhile.
        *buffer = Vec::new();
        *buffer = memory::zeros(len).map_err(|_| DecodeError::Memory { bytes: len as u64 })?;
    }
    Ok(&mut buffer[..len])
}

/// Checks that a library can allocate this many bytes by itself.
fn check_memory(bytes: usize) -> Result<(), DecodeError> {
    memory::check(bytes).map_err(|_| DecodeError::Memory { bytes: bytes as u64 })
}
