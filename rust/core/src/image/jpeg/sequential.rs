//! `Sequential`: decodes JPEGs with one scan of Huffman codes, by our own decoder of those codes, and packed
//! JPEGs.

use super::entropy::{Entropy, Index, Layout, Mcus, Source};
use super::ffi::Format;
use super::packed::{Packed, PackedWindow};
use super::pixels::{Header, PixelStage, Plan};
use super::rows::{RowDecoder, Scan};
use super::scans::has_several;
use super::segments::{check_end, header, mcus, scan_data};
use super::source::Blocks;
use super::{SMOOTHED, jpeg_region, reduced};
use crate::image::Rect;
use crate::image::probe::JpegInfo;

/// Reuses its memory from image to image. All methods return `None` for other kinds of JPEGs, and if
/// anything is irregular.
#[derive(Debug, Default)]
pub(in crate::image) struct Sequential {
    /// A JPEG's header for a part of it.
    header: Vec<u8>,
    rows: Option<RowDecoder>,
    pixels: PixelStage,
    entropy: Entropy,
    index: Index,
}

/// The part of an image to decode.
#[derive(Clone, Copy)]
pub(in crate::image) struct Wanted<'a> {
    pub(in crate::image) data: &'a [u8],
    /// They tell where parts of the data are. May be empty.
    pub(in crate::image) side: &'a [u8],
    pub(in crate::image) info: &'a JpegInfo,
    /// The image is reduced by this factor.
    pub(in crate::image) reduction: u32,
    /// The pixels of the reduced image that are needed.
    pub(in crate::image) need: Rect,
}

impl<'a> Wanted<'a> {
    pub(in crate::image) fn whole(data: &'a [u8], info: &'a JpegInfo) -> Self {
        Self { data, side: &[], info, reduction: 1, need: Rect::whole(info.width, info.height) }
    }
}

/// A part of an image that is being decoded, row by row.
pub(super) struct Part<'a> {
    pixels: Pixels<'a>,
    blocks: Blocks<'a>,
    /// Where it lies in the reduced image.
    pub(super) region: Rect,
    pub(super) format: Format,
}

/// What makes the pixels.
enum Pixels<'a> {
    Own(&'a mut PixelStage, Box<Plan>),
    Stock(Scan<'a>),
}

impl Part<'_> {
    /// Fills `out` with its pixels.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Option<()> {
        match (&mut self.pixels, &mut self.blocks) {
            (Pixels::Own(stage, plan), Blocks::Coded(window)) => stage.decode(plan, window, out),
            (Pixels::Own(stage, plan), Blocks::Packed(window)) => stage.decode(plan, window, out),
            (Pixels::Stock(scan), blocks) => scan.read(out, blocks),
        }
    }

    /// Checks what the last row leaves over.
    pub(super) fn finish(&self) -> Option<()> {
        match &self.blocks {
            Blocks::Coded(window) => window.ends().then_some(()),
            Blocks::Packed(_) => Some(()), // each piece has been checked
        }
    }
}

impl Sequential {
    /// Begins to decode at least what is wanted.
    pub(super) fn begin<'a>(&'a mut self, wanted: Wanted<'a>) -> Option<Part<'a>> {
        let Wanted { data, side, info, reduction, need } = wanted;
        let coded = coded(data, info)?;
        let window = mcu_window(info, reduction, need);
        let part = (window.columns, window.rows) != mcus(info);
        let source = if part && self.index.read(side, mcus(info), usize::from(info.components)).is_some() {
            check_end(coded, self.index.end())?;
            Source::Index(coded, &self.index)
        } else {
            Source::Scan(coded)
        };
        let format = Format::of(info);
        let own = plan(&self.pixels, wanted, window).and_then(|(plan, header)| Some((plan, header.layout(info)?)));
        if let Some((plan, layout)) = own {
            let blocks = Blocks::Coded(self.entropy.window(&layout, window, source)?);
            let region = plan.region();
            return Some(Part { pixels: Pixels::Own(&mut self.pixels, plan), blocks, region, format });
        }
        let (scan, layout, region) = start(&mut self.header, &mut self.rows, wanted, window)?;
        let blocks = Blocks::Coded(self.entropy.window(&layout, window, source)?);
        Some(Part { pixels: Pixels::Stock(scan), blocks, region, format })
    }

    /// Begins to decode at least what is wanted of a packed JPEG. The data that are wanted are its headers, as
    /// those of a JPEG with one scan. With `stock`, libjpeg-turbo makes the pixels.
    pub(super) fn begin_packed<'a>(
        &'a mut self,
        packed: Packed<'a>,
        wanted: Wanted<'a>,
        stock: bool,
    ) -> Option<Part<'a>> {
        let window = mcu_window(wanted.info, wanted.reduction, wanted.need);
        let plan = if stock { None } else { plan(&self.pixels, wanted, window) };
        let (pixels, region) = if let Some((plan, _)) = plan {
            let region = plan.region();
            (Pixels::Own(&mut self.pixels, plan), region)
        } else {
            let (scan, _, region) = start(&mut self.header, &mut self.rows, wanted, window)?;
            (Pixels::Stock(scan), region)
        };
        let blocks = Blocks::Packed(PackedWindow::new(packed, window)?);
        Some(Part { pixels, blocks, region, format: Format::of(wanted.info) })
    }

    /// Makes an index of the whole image with an entry every `interval` MCUs of a row.
    pub(super) fn index(&mut self, data: &[u8], info: &JpegInfo, interval: u32) -> Option<Index> {
        let coded = coded(data, info)?;
        let (columns, rows) = mcus(info);
        let all = Mcus { x: 0, y: 0, columns, rows };
        let (_, layout, _) = start(&mut self.header, &mut self.rows, Wanted::whole(data, info), all)?;
        self.entropy.index(&layout, coded, interval)
    }

    /// The memory for headers, coded data, indexes and samples, in bytes.
    pub(in crate::image) fn memory(&self) -> usize {
        self.header.capacity() + self.pixels.memory() + self.entropy.memory() + self.index.memory()
    }

    /// Frees all memory after an image that needed more than `keep` bytes.
    pub(in crate::image) fn trim(&mut self, keep: usize) {
        if self.memory() > keep {
            *self = Self::default();
        }
    }
}

/// Returns the coded data, and what follows them.
fn coded<'a>(data: &'a [u8], info: &JpegInfo) -> Option<&'a [u8]> {
    if info.progressive || info.arithmetic || info.lossless || has_several(data, info) {
        return None;
    }
    data.get(scan_data(data, info)?..)
}

/// Plans to make the wanted pixels from a window. Returns the JPEG's header too; `None` if libjpeg-turbo
/// takes less time, or knows more.
fn plan(stage: &PixelStage, wanted: Wanted<'_>, window: Mcus) -> Option<(Box<Plan>, Header)> {
    let Wanted { data, info, reduction, need, .. } = wanted;
    if reduction > 1 || !stage.is_fast() {
        return None;
    }
    let header = Header::read(data, info)?;
    Some((Box::new(Plan::new(info, &header, window, need)?), header))
}

/// Starts libjpeg-turbo on the header of an image that consists of the MCUs of a window. Returns the
/// layout of the whole image, and the window's pixels from its first row to the last that is needed.
fn start<'a>(
    smaller: &'a mut Vec<u8>,
    rows: &'a mut Option<RowDecoder>,
    wanted: Wanted<'_>,
    window: Mcus,
) -> Option<(Scan<'a>, Layout, Rect)> {
    let Wanted { data, info, reduction, need, .. } = wanted;
    let (mcu_width, mcu_height) = info.mcu();
    let width = (window.columns * mcu_width).min(info.width - window.x * mcu_width);
    let height = (window.rows * mcu_height).min(info.height - window.y * mcu_height);
    header(data, info, width, height, smaller)?;
    let (scan, layout, shown) = RowDecoder::kept(rows)?.start(smaller, reduction, Format::of(info))?;
    let expected = (width.div_ceil(reduction), height.div_ceil(reduction));
    let same = shown == expected && layout.mcus == (window.columns, window.rows);
    let (x, y) = (window.x * mcu_width / reduction, window.y * mcu_height / reduction);
    let region = Rect { x, y, width: shown.0, height: need.y + need.height - y };
    same.then(|| (scan, Layout { mcus: mcus(info), ..layout }, region))
}

/// Returns the MCUs to decode so that `need` equals the same pixels of the whole image.
fn mcu_window(info: &JpegInfo, reduction: u32, need: Rect) -> Mcus {
    let (columns, rows) = mcus(info);
    if !info.usual_sampling() {
        return Mcus { x: 0, y: 0, columns, rows };
    }
    let (width, height) = info.mcu();
    let region = jpeg_region(info, reduction, need, reduced(info, reduction));
    let margin = if height > 8 { SMOOTHED } else { 0 };
    let axis = |from: u32, to: u32, mcu: u32, count: u32| {
        let first = from * reduction / mcu;
        (first, (to * reduction).div_ceil(mcu).min(count) - first)
    };
    let (mut x, mut columns) = axis(region.x, region.x + region.width, width, columns);
    // The last MCU may show less than 3 samples in a row, as above.
    let shown = |x: u32, columns: u32| ((x + columns) * width).min(info.width) - x * width;
    while x > 0 && shown(x, columns).div_ceil(reduction) < 3 * width / 8 {
        (x, columns) = (x - 1, columns + 1);
    }
    let (y, rows) = axis(region.y.saturating_sub(margin), region.y + region.height + margin, height, rows);
    Mcus { x, y, columns, rows }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{JpegOptions, Subsampling, encode_jpeg, jpeg_info};

    #[test]
    fn regular_jpegs_are_decoded_here() {
        let mut sequential = Sequential::default();
        for subsampling in
            [Subsampling::S444, Subsampling::S422, Subsampling::S420, Subsampling::S440, Subsampling::Grey]
        {
            for restart_every in [0, 3] {
                let pixels: Vec<u8> = (0..3 * 100 * 80_u32).map(|n| ((n * n) >> 7) as u8).collect();
                let options = JpegOptions { subsampling, restart_every, ..JpegOptions::default() };
                let data = encode_jpeg(&pixels, 100, 80, &options).unwrap();
                let info = jpeg_info(&data).unwrap();
                for need in [Rect::whole(100, 80), Rect { x: 60, y: 50, width: 9, height: 9 }] {
                    let mut part = sequential.begin(Wanted { need, ..Wanted::whole(&data, &info) }).unwrap();
                    assert!(part.region.contains(need));
                    let mut out = vec![0; 3 * part.region.width as usize * part.region.height as usize];
                    part.read(&mut out).unwrap();
                    part.finish().unwrap();
                }
                assert!(
                    sequential
                        .begin(Wanted::whole(&data[..data.len() - 3], &info))
                        .is_none_or(|mut part| part.read(&mut vec![0; 3 * 100 * 80]).is_none())
                );
            }
        }
    }
}
