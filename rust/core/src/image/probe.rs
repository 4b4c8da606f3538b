//! `Format` and `JpegInfo`: the format and headers of an image, from its bytes. It never looks at
//! file names.

use super::{DecodeError, Orientation};

/// The formats that are decoded.
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
    /// Returns the format from the first bytes; `None` if it is unknown.
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

    /// Returns the usual name.
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

/// The storage of one component of a JPEG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Component {
    /// Its number in the file.
    pub id: u8,
    /// Blocks of 8 samples across, per MCU.
    pub horizontal: u8,
    /// Blocks of 8 samples down, per MCU.
    pub vertical: u8,
}

/// The headers of a JPEG, up to its first scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // one for each fact of the header
pub struct JpegInfo {
    /// Width in pixels, as stored: before any orientation.
    pub width: u32,
    /// Height in pixels, as stored.
    pub height: u32,
    /// Bits per sample, nearly always 8.
    pub precision: u8,
    /// Whether it has scans from coarse to fine.
    pub progressive: bool,
    /// Whether it uses arithmetic coding instead of Huffman tables.
    pub arithmetic: bool,
    /// Whether it uses lossless coding, without blocks.
    pub lossless: bool,
    /// Number of components: 1, 3 or 4 in every JPEG that can be decoded.
    pub components: u8,
    /// The first `components` entries are valid, at most four.
    pub sampling: [Component; 4],
    /// Transform byte of the Adobe marker: 0 none (RGB, CMYK), 1 `YCbCr`, 2 YCCK.
    pub adobe: Option<u8>,
    /// Whether it has a JFIF marker.
    pub jfif: bool,
    /// MCUs between restart markers; 0 without markers.
    pub restart_interval: u16,
    /// Position of the frame header's marker.
    pub frame_start: usize,
    /// Position of the first scan's marker.
    pub scan_start: usize,
    /// The EXIF orientation; upright if it is missing or garbage.
    pub orientation: Orientation,
}

impl JpegInfo {
    /// Returns the size of the interleaved MCU in pixels: width, height.
    pub fn mcu(&self) -> (u32, u32) {
        if self.components == 1 {
            return (8, 8);
        }
        let (horizontal, vertical) = self.largest();
        (8 * u32::from(horizontal), 8 * u32::from(vertical))
    }

    /// Reports whether libjpeg's filters for subsampled chroma are known to look no further than
    /// their neighbours.
    pub(super) fn usual_sampling(&self) -> bool {
        let factors = |at: usize| (self.sampling[at].horizontal, self.sampling[at].vertical);
        let luma = matches!(factors(0), (1 | 2 | 4, 1) | (1, 2 | 4) | (2, 2));
        match self.components {
            1 => factors(0) == (1, 1),
            3 => luma && factors(1) == (1, 1) && factors(2) == (1, 1),
            4 => luma && factors(1) == (1, 1) && factors(2) == (1, 1) && factors(3) == factors(0),
            _ => false,
        }
    }

    /// Returns the kind of JPEG, if it is not decoded here.
    pub(super) fn unsupported(&self) -> Option<String> {
        let kind = if self.lossless { "lossless JPEG" } else { "JPEG" };
        if self.precision != 8 || self.lossless {
            return Some(format!("{kind} of {} bits", self.precision));
        }
        (!matches!(self.components, 1 | 3 | 4)).then(|| format!("{kind} of {} components", self.components))
    }

    /// Returns the largest sampling factors, across and down.
    fn largest(&self) -> (u8, u8) {
        let used = &self.sampling[..usize::from(self.components).min(4)];
        let largest = |factor: fn(&Component) -> u8| used.iter().map(factor).max().unwrap_or(1).max(1);
        (largest(|c| c.horizontal), largest(|c| c.vertical))
    }

    /// Returns the number of coded blocks of 8 x 8 samples.
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
/// The data are not a JPEG, end before the first scan, or do not hold an image.
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
            // These markers have no segment.
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
        // Of a segment whose length is below 2, libjpeg passes over the length alone.
        let end = at + length.max(2);
        let segment = data.get(at + 2..end).ok_or_else(ended)?;
        at = end;
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

/// Finds the next marker from `at` on. Returns its code, and the position of its 0xFF.
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

/// Reports whether a JPEG has an end marker after the start of its first scan. The search starts at
/// the end: except in truncated files, the marker is in the last bytes, or before some padding.
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
        // An APP1 segment that holds the header of a small JPEG, then 3 stray bytes, then the real
        // frame and scan.
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
