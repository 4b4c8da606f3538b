//! `foreign_kind` and `Channels`: facts from image headers. They tell whether this crate decodes an
//! image, and how many channels it has.

use std::fmt;

use imagesize::{Compression, ImageType, image_type};

use super::jpeg::{is_packed, jpeg_headers};
use super::probe::{Format, jpeg_info};
use super::tiff::entries;
use super::{DecodeError, formats};
use crate::limits::check_image;

/// The compressions that are decoded: none, fax, LZW, JPEG, Deflate, `PackBits`, Deflate's old
/// number.
const TIFF_COMPRESSIONS: [u16; 7] = [1, 4, 5, 7, 8, 32_773, 32_946];

/// Returns the kind of an image that is recognized but not decoded here, such as `AVIF`, from its
/// headers. Returns `None` if it is decoded, or is not recognized.
pub fn foreign_kind(data: &[u8]) -> Option<String> {
    let Some(format) = Format::sniff(data) else { return other_kind(data) };
    match format {
        Format::Jpeg => jpeg_info(data).ok()?.unsupported(),
        Format::Tiff if compression(data).is_some_and(|number| !TIFF_COMPRESSIONS.contains(&number)) => {
            Some(format!("TIFF of compression {}", compression(data).unwrap_or_default()))
        }
        Format::Tiff | Format::Bmp | Format::Pnm => {
            formats::unsupported(format, data).map(|detail| format!("{} ({detail})", format.name()))
        }
        Format::Png | Format::WebP | Format::Gif => None,
    }
}

/// Returns the format from the first bytes, or the reason why it is not decoded.
pub(super) fn sniff(data: &[u8]) -> Result<Format, DecodeError> {
    check_image(data.len() as u64).map_err(|detail| DecodeError::TooLong { detail })?;
    if is_packed(data) {
        return Ok(Format::Jpeg);
    }
    Format::sniff(data).ok_or_else(|| {
        if let Some(kind) = foreign_kind(data) {
            return DecodeError::Unsupported { format: "image", detail: kind };
        }
        let head: Vec<String> = data.iter().take(8).map(|b| format!("{b:02x}")).collect();
        DecodeError::Unknown { bytes: data.len(), head: head.join(" ") }
    })
}

/// Returns the number of a TIFF file's compression.
fn compression(tiff: &[u8]) -> Option<u16> {
    entries(tiff).find(|entry| entry.tag == 259).map(|entry| entry.value)
}

fn other_kind(data: &[u8]) -> Option<String> {
    if jpeg2000_size(data).is_some() {
        return Some("JPEG 2000".to_owned());
    }
    Some(match image_type(data).ok()? {
        ImageType::Heif(Compression::Av1) => "AVIF".to_owned(),
        ImageType::Heif(Compression::Hevc) => "HEIC".to_owned(),
        ImageType::Heif(_) => "HEIF".to_owned(),
        ImageType::Jxl => "JPEG XL".to_owned(),
        // For these formats, the check above needs more than the first bytes.
        ImageType::Jpeg | ImageType::Png | ImageType::Webp | ImageType::Gif | ImageType::Bmp | ImageType::Pnm => {
            return None;
        }
        other => {
            let name = format!("{other:?}");
            name.split('(').next().unwrap_or_default().to_uppercase()
        }
    })
}

/// Returns width and height of a JPEG 2000 image: a file of boxes, or a bare codestream.
pub(crate) fn jpeg2000_size(data: &[u8]) -> Option<(u32, u32)> {
    let number = |at: usize| Some(u32::from_be_bytes(*data.get(at..at.checked_add(4)?)?.first_chunk()?));
    if data.starts_with(b"\0\0\0\x0cjP  \r\n\x87\n") {
        // The header box comes early, and its first box holds the size: height, width.
        let at = memchr::memmem::find(data.get(..4096.min(data.len()))?, b"ihdr")? + 4;
        return Some((number(at + 4)?, number(at)?));
    }
    let rest = data.strip_prefix(&[0xFF, 0x4F, 0xFF, 0x51])?;
    let _whole = rest.get(..20)?;
    Some((number(8)?.checked_sub(number(16)?)?, number(12)?.checked_sub(number(20)?)?))
}

/// The channels of an image's pixels, as far as they matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// Palette indices.
    Palette,
    /// One value per pixel, with or without alpha.
    One,
    /// Colours.
    Several,
}

impl Channels {
    /// Reads the headers. The default is several.
    pub fn of(data: &[u8]) -> Self {
        let data = jpeg_headers(data);
        let palette = |is: bool| if is { Self::Palette } else { Self::Several };
        match Format::sniff(data) {
            Some(Format::Jpeg) if jpeg_info(data).is_ok_and(|info| info.components == 1) => Self::One,
            Some(Format::Png) => match data.get(25) {
                Some(3) => Self::Palette,
                Some(0 | 4) => Self::One,
                _ => Self::Several,
            },
            Some(Format::Gif) => Self::Palette,
            Some(Format::Bmp) => {
                // After the oldest of its headers, the bits per pixel are at another offset.
                let at = if data.get(14) == Some(&12) { 24 } else { 28 };
                palette(data.get(at).is_some_and(|&bits| (1..=8).contains(&bits)))
            }
            Some(Format::Tiff) => match entries(data).find(|entry| entry.tag == 262).map(|entry| entry.value) {
                Some(3) => Self::Palette,
                Some(0 | 1) => Self::One,
                _ => Self::Several,
            },
            Some(Format::Pnm) if matches!(data.get(1), Some(b'1' | b'2' | b'4' | b'5')) => Self::One,
            _ => Self::Several,
        }
    }
}

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Palette => "an image with a palette",
            Self::One => "an image of one channel",
            Self::Several => "an image of several channels",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_are_not_decoded_are_named_by_their_headers() {
        let jpeg = |marker: u8, precision: u8, components: u8| {
            let mut data = vec![0xFF, 0xD8, 0xFF, marker, 0, 8 + 3 * components, precision, 0, 9, 0, 7, components];
            (0..components).for_each(|id| data.extend([id, 0x11, 0]));
            data.extend(b"\xFF\xDA\0\x08");
            data
        };
        for (data, kind) in [
            (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1".to_vec(), Some("AVIF")),
            (b"\0\0\0\x1cftypheic\0\0\0\0heicmif1".to_vec(), Some("HEIC")),
            (b"\xFF\x0A\xFA\x1F\x01\x90\x0B\x00\0\0\0\0".to_vec(), Some("JPEG XL")),
            (b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x16ihdr\0\0\0\x05\0\0\0\x09".to_vec(), Some("JPEG 2000")),
            (jpeg(0xC1, 12, 3), Some("JPEG of 12 bits")),
            (jpeg(0xC3, 16, 1), Some("lossless JPEG of 16 bits")),
            (jpeg(0xC0, 8, 2), Some("JPEG of 2 components")),
            (jpeg(0xC0, 8, 3), None),
            (jpeg(0xC3, 8, 3), Some("lossless JPEG of 8 bits")),
            (b"P6\n3 2\n255\n".to_vec(), None),
            (b"hello, world".to_vec(), None),
            (Vec::new(), None),
        ] {
            assert_eq!(foreign_kind(&data).as_deref(), kind, "{data:?}");
        }
        assert_eq!(jpeg2000_size(b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x16ihdr\0\0\0\x05\0\0\0\x09"), Some((9, 5)));
        assert_eq!(jpeg2000_size(b"\xFF\x4F\xFF\x51\0\x2F\0\0\0\0\0\x09\0\0\0\x05\0\0\0\x02\0\0\0\x01"), Some((7, 4)));
    }
}
