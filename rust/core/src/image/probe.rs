//! What an image is, from its bytes and never from its name.

use super::{DecodeError, Orientation, foreign_kind};
use crate::limits::check_image;

/// The formats that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the usual names
pub enum Format {
    Jpeg,
    Png,
    WebP,
    Gif,
    Bmp,
    Tiff,
    Pnm,
}

impl Format {
    /// The format by the first bytes; `None` if they are of none that is known.
    pub fn sniff(data: &[u8]) -> Option<Self> {
        match data {
            [0xFF, 0xD8, 0xFF, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', 0x0D, 0x0A, 0x1A, 0x0A, ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'B', b'M', ..] => Some(Self::Bmp),
            [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Some(Self::Tiff),
            [b'P', b'1'..=b'7', b' ' | b'\t' | b'\n' | b'\r' | b'#', ..] => Some(Self::Pnm),
            _ => None,
        }
    }

    /// The usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
            Self::Tiff => "TIFF",
            Self::Pnm => "PNM",
        }
    }
}

/// The format by the first bytes.
pub(super) fn sniff(data: &[u8]) -> Result<Format, DecodeError> {
    check_image(data.len() as u64).map_err(|detail| DecodeError::TooLong { detail })?;
    Format::sniff(data).ok_or_else(|| {
        if let Some(kind) = foreign_kind(data) {
            return DecodeError::Unsupported { format: "image", detail: kind };
        }
        let head: Vec<String> = data.iter().take(8).map(|b| format!("{b:02x}")).collect();
        DecodeError::Unknown { bytes: data.len(), head: head.join(" ") }
    })
}

/// How one component of a JPEG is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Component {
    /// Its number in the file.
    pub id: u8,
    /// Samples across, per MCU, in blocks of 8.
    pub horizontal: u8,
    /// Samples down, per MCU, in blocks of 8.
    pub vertical: u8,
}

/// What the headers of a JPEG say, up to its first scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // one for each fact of the header
pub struct JpegInfo {
    /// In pixels, as stored: before any orientation.
    pub width: u32,
    /// In pixels, as stored.
    pub height: u32,
    /// Bits of a sample: 8, nearly always.
    pub precision: u8,
    /// In scans from coarse to fine.
    pub progressive: bool,
    /// Coded arithmetically, not by Huffman's tables.
    pub arithmetic: bool,
    /// Coded without loss, and without blocks.
    pub lossless: bool,
    /// 1, 3 or 4 in all that can be decoded.
    pub components: u8,
    /// The first `components` of them, at most four.
    pub sampling: [Component; 4],
    /// Transform byte of the Adobe marker: 0 none (RGB, CMYK), 1 `YCbCr`, 2 YCCK.
    pub adobe: Option<u8>,
    /// Whether it has a JFIF marker.
    pub jfif: bool,
    /// MCUs from one restart marker to the next; 0 without.
    pub restart_interval: u16,
    /// Where the frame header's marker is.
    pub frame_start: usize,
    /// Where the first scan's marker is.
    pub scan_start: usize,
    /// What EXIF says; upright if it says nothing, or is garbage.
    pub orientation: Orientation,
}

impl JpegInfo {
    /// Size of the interleaved MCU in pixels: width, height.
    pub fn mcu(&self) -> (u32, u32) {
        if self.components == 1 {
            return (8, 8);
        }
        let (horizontal, vertical) = self.largest();
        (8 * u32::from(horizontal), 8 * u32::from(vertical))
    }

    /// Largest sampling factors, across and down.
    fn largest(&self) -> (u8, u8) {
        let used = &self.sampling[..usize::from(self.components).min(4)];
        let largest = |factor: fn(&Component) -> u8| used.iter().map(factor).max().unwrap_or(1).max(1);
        (largest(|c| c.horizontal), largest(|c| c.vertical))
    }

    /// Number of coded blocks of 8 x 8 samples.
    pub(super) fn blocks(&self) -> u64 {
        let (mcu_width, mcu_height) = self.mcu();
        let mcus = u64::from(self.width.div_ceil(mcu_width)) * u64::from(self.height.div_ceil(mcu_height));
        let used = &self.sampling[..usize::from(self.components).min(4)];
        let blocks = used.iter().map(|c| u64::from(c.horizontal) * u64::from(c.vertical)).sum::<u64>();
        mcus * if self.components == 1 { 1 } else { blocks }
    }
}

/// Reads a JPEG's headers, as libjpeg does: bytes between segments are skipped.
///
/// # Errors
/// It is no JPEG, it ends before its first scan, or what it holds is not an image.
pub fn jpeg_info(data: &[u8]) -> Result<JpegInfo, DecodeError> {
    let damaged = |detail: &str| DecodeError::Damaged { format: "JPEG", detail: detail.to_owned() };
    let ended = || DecodeError::Truncated { format: "JPEG", detail: "it ends within its headers".to_owned() };
    if !data.starts_with(&[0xFF, 0xD8]) {
        return Err(damaged("it does not begin with a start marker"));
    }
    let mut info = JpegInfo {
        width: 0,
        height: 0,
        precision: 0,
        progressive: false,
        arithmetic: false,
        lossless: false,
        components: 0,
        sampling: [Component { id: 0, horizontal: 1, vertical: 1 }; 4],
        adobe: None,
        jfif: false,
        restart_interval: 0,
        frame_start: 0,
        scan_start: 0,
        orientation: Orientation::UPRIGHT,
    };
    let mut at = 2;
    loop {
        let (marker, start) = next_marker(data, at).ok_or_else(ended)?;
        at = start + 2;
        match marker {
            // Markers without a segment.
            0x01 | 0xD0..=0xD7 => continue,
            0xD8 => return Err(damaged("it has two start markers")),
            0xD9 => return Err(damaged("it ends before any scan")),
            0xDA if info.components == 0 => return Err(damaged("it has a scan before its frame header")),
            0xDA => {
                info.scan_start = start;
                return Ok(info);
            }
            _ => {}
        }
        let length = data.get(at..at + 2).map(|b| usize::from(u16::from_be_bytes([b[0], b[1]]))).ok_or_else(ended)?;
        let body = length.checked_sub(2).ok_or_else(|| damaged("a segment's length is below 2"))?;
        let segment = data.get(at + 2..at + 2 + body).ok_or_else(ended)?;
        at += length;
        match marker {
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                if info.components > 0 {
                    return Err(damaged("it has two frame headers"));
                }
                frame(marker, segment, &mut info).ok_or_else(|| damaged("its frame header makes no sense"))?;
                info.frame_start = start;
            }
            0xDD => {
                let [high, low] = *segment else { return Err(damaged("its restart interval has a wrong length")) };
                info.restart_interval = u16::from_be_bytes([high, low]);
            }
            0xE0 if segment.starts_with(b"JFIF\0") => info.jfif = true,
            0xE1 if info.orientation == Orientation::UPRIGHT => {
                if let Some(tiff) = segment.strip_prefix(b"Exif\0\0") {
                    info.orientation = Orientation::from_exif(tiff);
                }
            }
            0xEE if segment.starts_with(b"Adobe") => info.adobe = segment.get(11).copied(),
            _ => {}
        }
    }
}

/// The next marker from `at` on: its code, and where its 0xFF is.
pub(super) fn next_marker(data: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += memchr::memchr(0xFF, data.get(at..)?)?;
        match *data.get(at + 1)? {
            0xFF => at += 1,
            0 => at += 2,
            code => return Some((code, at)),
        }
    }
}

fn frame(marker: u8, segment: &[u8], info: &mut JpegInfo) -> Option<()> {
    let [precision, y1, y0, x1, x0, count, components @ ..] = segment else { return None };
    info.precision = *precision;
    info.height = u16::from_be_bytes([*y1, *y0]).into();
    info.width = u16::from_be_bytes([*x1, *x0]).into();
    if info.width == 0 || info.height == 0 || *count == 0 || components.len() != 3 * usize::from(*count) {
        return None;
    }
    info.components = *count;
    for (slot, component) in info.sampling.iter_mut().zip(components.chunks_exact(3)) {
        *slot = Component { id: component[0], horizontal: component[1] >> 4, vertical: component[1] & 15 };
        if !(1..=4).contains(&slot.horizontal) || !(1..=4).contains(&slot.vertical) {
            return None;
        }
    }
    info.progressive = matches!(marker, 0xC2 | 0xC6 | 0xCA | 0xCE);
    info.arithmetic = marker >= 0xC9;
    info.lossless = matches!(marker, 0xC3 | 0xC7 | 0xCB | 0xCF);
    Some(())
}

/// Whether a JPEG has an end marker after the start of its first scan. Looked for from the end: in all but cut files it
/// is in the last bytes, or before a little padding.
pub(super) fn jpeg_has_end(data: &[u8], scan_start: usize) -> bool {
    data.get(scan_start..).is_some_and(|scans| scans.windows(2).rev().any(|pair| pair == [0xFF, 0xD9]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        for (bytes, format) in [
            (&b"\xFF\xD8\xFF\xE0"[..], Some(Format::Jpeg)),
            (b"\x89PNG\r\n\x1a\n", Some(Format::Png)),
            (b"RIFF\0\0\0\0WEBPVP8 ", Some(Format::WebP)),
            (b"GIF89a", Some(Format::Gif)),
            (b"GIF88a", None),
            (b"BM", Some(Format::Bmp)),
            (b"II*\0", Some(Format::Tiff)),
            (b"MM\0*", Some(Format::Tiff)),
            (b"P6\n1 1\n", Some(Format::Pnm)),
            (b"P6x", None),
            (b"", None),
            (b"\xFF\xD8", None),
        ] {
            assert_eq!(Format::sniff(bytes), format, "{bytes:?}");
        }
    }

    #[test]
    fn a_marker_inside_a_segment_is_not_taken_for_one_of_the_image() {
        // An APP1 segment that holds a whole small JPEG header, then 3 stray bytes, then the real frame and scan.
        let thumbnail = b"\xFF\xD8\xFF\xC0\0\x0B\x08\0\x01\0\x01\x01\x01\x11\0\xFF\xD9";
        let mut data = b"\xFF\xD8\xFF\xE1".to_vec();
        data.extend(u16::try_from(thumbnail.len() + 2).unwrap().to_be_bytes());
        data.extend(thumbnail);
        data.extend(b"\x01\x02\x03\xFF\xFF\xC2\0\x0B\x08\0\x10\0\x20\x01\x07\x22\0\xFF\xDA\0\x08");
        let info = jpeg_info(&data).unwrap();
        assert_eq!((info.width, info.height, info.components, info.progressive), (32, 16, 1, true));
        assert_eq!((info.mcu(), info.blocks()), ((8, 8), 8));
        assert_eq!(info.scan_start, data.len() - 4);
        assert!(!jpeg_has_end(&data, info.scan_start));
        data.extend(b"\xFF\xD9\0\0");
        assert!(jpeg_has_end(&data, info.scan_start));
    }

    #[test]
    fn headers_cut_anywhere_are_called_truncated() {
        let data = b"\xFF\xD8\xFF\xE0\0\x04ab\xFF\xC0\0\x0B\x08\0\x10\0\x20\x01\x07\x11\0\xFF\xDA\0\x08";
        assert!(jpeg_info(data).is_ok());
        for end in 2..data.len() - 3 {
            assert!(matches!(jpeg_info(&data[..end]), Err(DecodeError::Truncated { .. })), "{end}");
        }
    }
}
