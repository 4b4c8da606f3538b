//! `Header`: what the segments before a scan say about coefficients and colours.
//!
//! It accepts only what libjpeg-turbo accepts without a warning. For all else it returns `None`, and
//! libjpeg-turbo decides.

use crate::image::jpeg::entropy::{Huffman, HuffmanTables, Layout};
use crate::image::jpeg::segments::{mcus, segments};
use crate::image::jpeg::zigzag::NATURAL;
use crate::image::probe::JpegInfo;

/// libjpeg's limit for width and height.
const MAX_DIMENSION: u32 = 65_500;

/// The meaning of the components.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::image::jpeg) enum Colours {
    Grey,
    Ycc,
    Rgb,
    Cmyk,
    Ycck,
}

/// The tables and colours of a JPEG that has all its components in one sequential scan.
#[derive(Debug)]
pub(in crate::image::jpeg) struct Header {
    pub(in crate::image::jpeg) colours: Colours,
    /// Each component's quantisation table, in natural order.
    pub(in crate::image::jpeg) quantisation: [[i16; 64]; 4],
    /// Tables for first coefficients and for others, by their numbers.
    huffman: HuffmanTables,
    /// Each component's numbers of these tables.
    coding: [[usize; 2]; 4],
}

impl Header {
    /// Reads the segments, up to the end of the scan's header. Huffman tables may be missing.
    pub(in crate::image::jpeg) fn read(data: &[u8], info: &JpegInfo) -> Option<Self> {
        if info.precision != 8 || info.width > MAX_DIMENSION || info.height > MAX_DIMENSION {
            return None;
        }
        let (mut tables, mut huffman) = ([None; 4], HuffmanTables::default());
        for segment in segments(data, info.scan_start) {
            let (marker, range) = segment?;
            let body = data.get(range.start + 4..range.end)?;
            match marker {
                0xC0 | 0xC1 if range.start == info.frame_start => {}
                0xC4 => Huffman::read(body, &mut huffman)?,
                0xDB => read_quantisation(body, &mut tables)?,
                // libjpeg ignores a marker that is too short, and warns of another version.
                0xE0 if body.starts_with(b"JFIF\0") => (body.len() >= 14 && body[5] == 1).then_some(())?,
                0xEE if body.starts_with(b"Adobe") => (body.len() >= 12).then_some(())?,
                0xDD | 0xE0..=0xEF | 0xFE => {}
                _ => return None,
            }
        }
        let count = usize::from(info.components);
        let frame = data.get(info.frame_start + 10..)?.get(..3 * count)?;
        let scan = data.get(info.scan_start + 2..)?.get(..2 * count + 6)?;
        if scan[..2] != (2 * count as u16 + 6).to_be_bytes()
            || scan[2] != info.components
            || scan[2 * count + 3..] != [0, 63, 0]
        {
            return None;
        }
        let mut quantisation = [[0; 64]; 4];
        let mut coding = [[0; 2]; 4];
        for (at, (frame, scan)) in frame.chunks_exact(3).zip(scan[3..].chunks_exact(2)).enumerate() {
            if frame[0] != scan[0] || info.sampling[..at].iter().any(|other| other.id == frame[0]) {
                return None;
            }
            quantisation[at] = (*tables.get(usize::from(frame[2]))?)?;
            coding[at] = [usize::from(scan[1] >> 4), usize::from(scan[1] & 15)];
        }
        Some(Self { colours: colours(info)?, quantisation, huffman, coding })
    }

    /// Returns how the MCUs are coded; `None` if a Huffman table is missing or wrong.
    pub(in crate::image::jpeg) fn layout(&self, info: &JpegInfo) -> Option<Layout> {
        let components = usize::from(info.components);
        let mut blocks = Vec::new();
        for (at, component) in info.sampling[..components].iter().enumerate() {
            let table = |kind: usize| self.huffman[kind].get(self.coding[at][kind])?.as_ref();
            let (dc, ac) =
                (table(0).filter(|table| table.is_sound(true))?, table(1).filter(|table| table.is_sound(false))?);
            let count = if components == 1 { 1 } else { component.horizontal * component.vertical };
            blocks.extend((0..count).map(|_| (at, dc.clone(), ac.clone())));
        }
        Some(Layout { components, blocks, mcus: mcus(info), restart_interval: info.restart_interval.into() })
    }
}

/// Guesses colours as libjpeg does.
fn colours(info: &JpegInfo) -> Option<Colours> {
    let ids = [0, 1, 2].map(|at| info.sampling[at].id);
    match (info.components, info.jfif, info.adobe) {
        (1, ..) => Some(Colours::Grey),
        (3, false, Some(0)) => Some(Colours::Rgb),
        (3, false, None) if ids == *b"RGB" => Some(Colours::Rgb),
        (3, true, _) | (3, false, Some(1) | None) => Some(Colours::Ycc),
        (4, _, Some(2)) => Some(Colours::Ycck),
        (4, _, Some(0) | None) => Some(Colours::Cmyk),
        _ => None,
    }
}

fn read_quantisation(mut body: &[u8], tables: &mut [Option<[i16; 64]>; 4]) -> Option<()> {
    while let Some((&kind, rest)) = body.split_first() {
        let (values, rest) = match kind >> 4 {
            0 => {
                let (values, rest) = rest.split_first_chunk::<64>()?;
                (values.map(u16::from), rest)
            }
            1 => {
                let (values, rest) = rest.split_first_chunk::<128>()?;
                let mut pairs = values.as_chunks::<2>().0.iter();
                ([(); 64].map(|()| pairs.next().map_or(0, |&pair| u16::from_be_bytes(pair))), rest)
            }
            _ => return None,
        };
        let table = tables.get_mut(usize::from(kind & 15))?.insert([0; 64]);
        for (&place, value) in NATURAL.iter().zip(values) {
            table[usize::from(place)] = value.cast_signed();
        }
        body = rest;
    }
    Some(())
}
