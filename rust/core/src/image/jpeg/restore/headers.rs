//! `Headers`: the segments of a JPEG from scan to scan, and the tables that they define.

use crate::image::jpeg::entropy::{Huffman, HuffmanTables};
use crate::image::probe::JpegInfo;

/// The largest shift of a coefficient: more is refused by libjpeg too.
const MOST_SHIFT: u8 = 13;

/// A component of a scan.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    pub(super) id: u8,
    dc: usize,
    ac: usize,
}

/// The coefficients that a scan codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// All of each block.
    Sequential,
    /// The first one without its lowest bits.
    DcFirst { shift: u32 },
    /// One bit of the first one.
    DcRefine { shift: u32 },
    /// A band of the others without their lowest bits.
    AcFirst { from: u32, to: u32, shift: u32 },
    /// One bit of a band.
    AcRefine { from: u32, to: u32, shift: u32 },
}

/// The header of a scan.
#[derive(Debug)]
pub(super) struct Scan {
    parts: [Part; 4],
    count: usize,
    pub(super) pass: Pass,
}

impl Scan {
    pub(super) fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }

    fn read(segment: &[u8], progressive: bool) -> Option<Self> {
        let (&count, rest) = segment.split_first()?;
        let count = usize::from(count);
        let (bytes, &[from, to, bits]) = rest.split_at_checked(2 * count)? else { return None };
        let mut parts = [Part::default(); 4];
        for (part, bytes) in parts.get_mut(..count)?.iter_mut().zip(bytes.chunks_exact(2)) {
            *part = Part { id: bytes[0], dc: usize::from(bytes[1] >> 4), ac: usize::from(bytes[1] & 15) };
        }
        let pass = if progressive { Self::pass(from, to, bits, count)? } else { Pass::Sequential };
        (count > 0).then_some(Self { parts, count, pass })
    }

    fn pass(from: u8, to: u8, bits: u8, count: usize) -> Option<Pass> {
        let (high, low) = (bits >> 4, bits & 15);
        if low > MOST_SHIFT || high != 0 && high != low + 1 {
            return None;
        }
        let shift = u32::from(low);
        let (band, first) = ((from.into(), to.into()), high == 0);
        match band {
            (0, 0) if first => Some(Pass::DcFirst { shift }),
            (0, 0) => Some(Pass::DcRefine { shift }),
            (from @ 1.., to @ ..64) if from <= to && count == 1 => {
                Some(if first { Pass::AcFirst { from, to, shift } } else { Pass::AcRefine { from, to, shift } })
            }
            _ => None,
        }
    }
}

/// What follows the segments.
#[derive(Debug)]
pub(super) enum Step {
    /// Coded data of this scan.
    Scan(Scan),
    /// The end marker.
    End,
}

/// Walks over the segments.
#[derive(Debug)]
pub(super) struct Headers<'a> {
    data: &'a [u8],
    at: usize,
    frame: usize,
    progressive: bool,
    pub(super) restart_interval: u32,
    tables: HuffmanTables,
}

impl<'a> Headers<'a> {
    pub(super) fn new(data: &'a [u8], info: &JpegInfo) -> Self {
        Self {
            data,
            at: 2,
            frame: info.frame_start,
            progressive: info.progressive,
            restart_interval: 0,
            tables: HuffmanTables::default(),
        }
    }

    /// The next byte.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// Goes on at another byte.
    pub(super) const fn skip_to(&mut self, at: usize) {
        self.at = at;
    }

    /// The table for the first coefficients of a component.
    pub(super) fn dc(&self, part: &Part) -> Option<&Huffman> {
        self.tables[0].get(part.dc)?.as_ref()
    }

    /// The table for the other coefficients of a component.
    pub(super) fn ac(&self, part: &Part) -> Option<&Huffman> {
        self.tables[1].get(part.ac)?.as_ref()
    }

    /// Moves over the segments up to the end of the next scan's header. Returns `None` if anything
    /// is irregular.
    pub(super) fn next(&mut self) -> Option<Step> {
        loop {
            let start = self.at;
            let [0xFF, marker] = *self.data.get(start..)?.first_chunk()? else { return None };
            match marker {
                0xD9 => return Some(Step::End),
                0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF if start != self.frame => return None,
                // No other marker without a segment is regular here.
                0..=0xBF | 0xD0..=0xD8 | 0xFF => return None,
                _ => {}
            }
            let length = usize::from(u16::from_be_bytes(*self.data.get(start + 2..)?.first_chunk()?));
            let segment = self.data.get(start + 4..start + 2 + length)?;
            self.at = start + 2 + length;
            match marker {
                0xC4 => Huffman::read(segment, &mut self.tables)?,
                0xDA => return Scan::read(segment, self.progressive).map(Step::Scan),
                0xDD => self.restart_interval = u16::from_be_bytes(*segment.first_chunk()?).into(),
                _ => {}
            }
        }
    }
}
