//! A JPEG as its headers and its coefficients, and back again byte for byte.
//!
//! `Splitter` and `restore` are the two directions. Both walk over the `headers`, whose scans name
//! the blocks of the `grid` that they hold. `read` decodes a scan's data, and `write` codes them by
//! `codes` into `coded`. Imports what `jpeg` does, its Huffman decoder and its list of scans.
//!
//! The coded data follow from the coefficients by the rules that all usual encoders share. Where an
//! encoder did something else, the restored bytes differ: the caller compares them.
#![allow(clippy::inline_always)] // the hot loops keep their state in registers

mod coded;
mod codes;
mod grid;
mod headers;
mod read;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vector;
mod write;

use self::coded::Output;
use self::grid::Grid;
use self::headers::{Headers, Step};
use self::read::ScanReader;
use super::scans::{has_several, scans};
use super::zigzag::ZigzagBlock;
use crate::image::probe::{JpegInfo, jpeg_info};
use crate::limits::{MAX_CROP_INDEX_PIXELS, MAX_JPEG_SCANS};
use crate::memory;

/// The parts of a JPEG. `restore` makes the JPEG of them.
#[derive(Debug, Clone, Copy)]
pub(in crate::image) struct Split<'a> {
    /// The bytes without the coded data of the scans.
    pub(in crate::image) headers: &'a [u8],
    /// Whether the bits after the data, up to a whole byte, are ones.
    pub(in crate::image) ones: bool,
    /// The blocks of each MCU of all components, one component after the other. The MCUs cover the
    /// image row by row.
    pub(in crate::image) blocks: &'a [ZigzagBlock],
}

/// Splits JPEGs. Reuses its memory from image to image.
#[derive(Debug, Default)]
pub(in crate::image) struct Splitter {
    headers: Vec<u8>,
    blocks: Vec<ZigzagBlock>,
    reader: ScanReader,
}

impl Splitter {
    /// Splits a JPEG with Huffman codes, sequential or progressive. Returns `None` for other kinds,
    /// and if the data are incomplete or irregular.
    pub(in crate::image) fn split(&mut self, data: &[u8]) -> Option<Split<'_>> {
        let info = jpeg_info(data).ok()?;
        let grid = Grid::new(data, &info)?;
        let size = u64::from(info.width) * u64::from(info.height);
        // Even with the shortest codes, each block takes a bit.
        if size > MAX_CROP_INDEX_PIXELS || info.blocks() > 8 * data.len() as u64 || !is_complete(data, &info) {
            return None;
        }
        self.headers.clear();
        self.blocks.truncate(grid.blocks());
        // A sequential scan sets all of its blocks.
        if has_several(data, &info) {
            self.blocks.fill(ZigzagBlock::ZERO);
        }
        memory::reserve(&mut self.headers, data.len().min(1 << 16)).ok()?;
        let more = grid.blocks() - self.blocks.len();
        memory::reserve(&mut self.blocks, more).ok()?;
        self.blocks.resize(grid.blocks(), ZigzagBlock::ZERO);
        let mut headers = Headers::new(data, &info);
        let (mut from, mut ones) = (0, None);
        while let Step::Scan(scan) = headers.next()? {
            let start = headers.at();
            self.push_headers(data, from, start)?;
            from = start + self.reader.read(&data[start..], &headers, &scan, &grid, &mut ones, &mut self.blocks)?;
            headers.skip_to(from);
        }
        self.push_headers(data, from, data.len())?;
        Some(Split { headers: &self.headers, ones: ones.unwrap_or(true), blocks: &self.blocks })
    }

    fn push_headers(&mut self, data: &[u8], from: usize, to: usize) -> Option<()> {
        memory::reserve(&mut self.headers, to - from).ok()?;
        self.headers.extend_from_slice(&data[from..to]);
        Some(())
    }

    /// The memory that is used again, in bytes.
    pub(in crate::image) const fn memory(&self) -> usize {
        self.headers.capacity() + size_of::<ZigzagBlock>() * self.blocks.capacity() + self.reader.memory()
    }
}

/// Reports whether the scans hold all coefficients, each down to its last bit.
fn is_complete(data: &[u8], info: &JpegInfo) -> bool {
    if !has_several(data, info) {
        return true;
    }
    let found = scans(data, info, MAX_JPEG_SCANS);
    found.complete && found.count <= MAX_JPEG_SCANS
}

/// Appends the JPEG of a [`Split`], which has `length` bytes, to `out`. Returns `None` if the parts do
/// not make a JPEG of so many bytes, and then leaves some bytes in `out`, at most `length`.
pub(in crate::image) fn restore(
    headers: &[u8],
    ones: bool,
    blocks: &[ZigzagBlock],
    out: &mut Vec<u8>,
    length: usize,
) -> Option<()> {
    let info = jpeg_info(headers).ok()?;
    let grid = Grid::new(headers, &info)?;
    if grid.blocks() != blocks.len() {
        return None;
    }
    memory::reserve(out, length).ok()?;
    let mut out = Output::new(out, length);
    let mut steps = Headers::new(headers, &info);
    let mut from = 0;
    for _ in 0..=MAX_JPEG_SCANS {
        let step = steps.next()?;
        let Step::Scan(scan) = step else {
            out.extend(&headers[from..])?;
            return out.is_full().then_some(());
        };
        out.extend(&headers[from..steps.at()])?;
        from = steps.at();
        write::scan(&steps, &scan, &grid, blocks, ones, &mut out)?;
    }
    None
}
