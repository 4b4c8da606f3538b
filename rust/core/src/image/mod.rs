//! Images: what they are, their pixels, and the part of them that a training step wants.
//!
//! A [`Decoder`] belongs to one thread and keeps its buffers from image to image. Only the region that a crop needs is
//! decoded of a JPEG, and at a half, a quarter or an eighth of the size where that is still as large as the output.

mod crop;
mod crop_ready;
mod decode;
mod ffi;
mod foreign;
mod formats;
mod jpeg;
mod orientation;
mod probe;
mod raw;
mod resize;
mod row;
mod scans;
mod segments;
pub(crate) mod size;
mod tiff;

pub use crate::error::decode::DecodeError;
pub use crate::order::random::{Random, uniform};
pub use crop::{Crop, Geometry, Rect, resized};
pub use crop_ready::{CropReady, Markers, rewrite};
pub(crate) use decode::with_decoded;
pub use decode::{Decoder, Image, Pixels, Timings, decode_image};
pub use ffi::{JpegOptions, Subsampling, encode_jpeg};
pub(crate) use foreign::jpeg2000_size;
pub use foreign::{Channels, foreign_kind};
pub use orientation::Orientation;
pub use probe::{Component, Format, JpegInfo, jpeg_info};
pub use raw::{raw_header, raw_pixels};
pub use resize::Filter;

use crate::limits::MAX_PIXELS;
use crate::memory;

/// What to do with an image that ends too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Truncated {
    /// It is an error.
    #[default]
    Reject,
    /// What is there is decoded; the rest of a JPEG is grey or what its coarser scans held, of other formats black.
    Accept,
}

/// What to do with an image of one channel of 16 bits. Those of three lose their lower half in any case, as in Pillow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SixteenBit {
    /// It is an error.
    #[default]
    Reject,
    /// Values are divided by 257 and rounded: 65535 becomes 255.
    Scale,
    /// Values above 255 become 255, as in Pillow.
    Clip,
}

/// How images are decoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeOptions {
    /// What to do with an image that ends too early.
    pub truncated: Truncated,
    /// What to do with grey of 16 bits.
    pub sixteen_bit: SixteenBit,
    /// Turn images as their EXIF data says; otherwise they stay as stored, as in torchvision.
    pub orientation: bool,
    /// Images with more pixels are refused before anything is allocated for them.
    pub max_pixels: u64,
    /// The filter of a resize.
    pub filter: Filter,
    /// JPEGs are decoded at `1 / n` of their size, `n` being 2, 4 or 8, where the crop then is still at least
    /// `min_reduced` times as large as the output on both axes; never if this is infinite. At 2.5 the result differs
    /// from Pillow's by less than 1.0 of 255 on average of each image; at 1.0 by up to 2.6, as it then lacks some of the
    /// filter's smoothing.
    pub min_reduced: f64,
    /// Decode only what a crop needs; otherwise all of the image, at its full size, as a yardstick.
    pub region: bool,
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
            region: true,
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

/// The first `len` bytes of a buffer that grows and is never cleared.
fn reserve(buffer: &mut Vec<u8>, len: usize) -> Result<&mut [u8], DecodeError> {
    if buffer.len() < len {
        // Not `resize`: the old contents are worth nothing, and are neither copied nor kept meanwhile.
        *buffer = Vec::new();
        *buffer = memory::zeros(len).map_err(|_| DecodeError::Memory { bytes: len as u64 })?;
    }
    Ok(&mut buffer[..len])
}

/// Checks that a library finds so many bytes that it allocates by itself.
fn check_memory(bytes: usize) -> Result<(), DecodeError> {
    memory::check(bytes).map_err(|_| DecodeError::Memory { bytes: bytes as u64 })
}
