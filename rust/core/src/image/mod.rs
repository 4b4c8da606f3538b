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

pub use crate::order::random::{Random, uniform};
pub use crop::{Crop, Geometry, Rect, resized};
pub use crop_ready::{CropReady, Markers, rewrite};
pub use decode::{Decoder, Image, Timings};
pub use ffi::{JpegOptions, Subsampling, encode_jpeg};
pub(crate) use foreign::jpeg2000_size;
pub use foreign::{Channels, foreign_kind};
pub use orientation::Orientation;
pub use probe::{Component, Format, JpegInfo, jpeg_info};
pub use raw::{raw_header, raw_pixels};
pub use resize::Filter;

use crate::limits::MAX_PIXELS;
use crate::memory;

/// Why bytes gave no pixels. Who has the bytes adds where they come from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum DecodeError {
    #[error("not an image of a known type: {bytes} bytes, the first are {head}")]
    Unknown { bytes: usize, head: String },

    #[error("the {format} is truncated: {detail}")]
    Truncated { format: &'static str, detail: String },

    #[error("the {format} is damaged: {detail}")]
    Damaged { format: &'static str, detail: String },

    #[error("this kind of {format} is not supported: {detail}")]
    Unsupported { format: &'static str, detail: String },

    #[error(
        "{width} x {height} pixels are more than the limit of {limit}: `max_pixels` of the loader or of decode_image sets another"
    )]
    TooLarge { width: u32, height: u32, limit: u64 },

    #[error("{detail}")]
    TooLong { detail: String },

    #[error(
        "a grey {format} of 16 bits, where an image has 8: sixteen_bit=\"scale\" divides by 257, sixteen_bit=\"clip\" makes all above 255 white, as Pillow does"
    )]
    SixteenBit { format: &'static str },

    #[error(
        "the JPEG has more than {limit} scans, of which each takes as long as a whole image: `jpegtran -copy all -optimize` rewrites them as one, without loss"
    )]
    Scans { limit: u32 },

    #[error(
        "{channels} beside another image would be resized as colours, which mixes the numbers of a mask: store masks as arrays, or load them by a DataLoader over FastRecordDataset(decode=\"pil\")"
    )]
    Mask { channels: Channels },

    #[error("the output of {found} bytes is not one of {width} x {height} pixels")]
    Output { found: usize, width: u32, height: u32 },

    #[error("the crop does not fit the image of {width} x {height} pixels, or the output: {detail}")]
    Crop { detail: String, width: u32, height: u32 },

    #[error("{detail}")]
    Pair { detail: String },

    #[error("no memory for {bytes} bytes")]
    Memory { bytes: u64 },

    #[error("internal error of the decoder: {detail}")]
    Internal { detail: String },
}

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
