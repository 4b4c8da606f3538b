//! `PixelStage`: pixels from the coefficients of a JPEG, as libjpeg-turbo makes them, bit for bit.
//!
//! It serves the usual kinds at their full size. `header` reads what it must know. Coefficients of a
//! row of MCUs become samples (dequantisation and the inverse DCT of libjpeg's `islow`), rows of
//! chroma are stretched to pairs of pixels, and rows of pixels are made of both. The kernels for that
//! are `portable`, `avx2` and `avx512`, which have part of their code from `vector`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod header;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vector;

use super::entropy::Mcus;
use super::source::McuSource;
use crate::image::Rect;
use crate::image::probe::JpegInfo;
use crate::memory;

use self::header::Colours;
pub(super) use self::header::Header;

/// Coefficients, or factors for them, in natural order.
type Block = [i16; 64];

/// Blocks that are read at once: enough for a group of the largest MCUs, which have ten blocks.
const AT_ONCE: usize = 48;
/// MCUs whose blocks are transformed together. Each row of blocks is then a multiple of four.
const GROUP: usize = 4;
/// Bytes before and after a row of samples. Reads and writes go on after the last sample.
const MARGIN: usize = 128;
/// Rows of stretched chroma that are kept: a power of two.
const KEPT: usize = 4;
/// Dequantised coefficients from this on are in no image. Those of the first row may have an
/// irregular effect in libjpeg-turbo.
const WILD: i16 = 8192;

/// How a row of chroma becomes pairs of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Across {
    /// A sample becomes a pair. Three quarters of each pixel are the sample, the rest is the
    /// neighbour's. The values are not divided yet.
    Fancy,
    /// A sample becomes a pair.
    Copied,
    /// Two samples are a pair.
    Full,
}

/// How chroma is stretched to the size of the image.
#[derive(Debug, Clone, Copy)]
struct Chroma {
    across: Across,
    /// 1 if there is a row of chroma for two rows of pixels, else 0.
    halves_rows: usize,
    /// Whether a quarter comes from the row before or after.
    blends: bool,
    /// Bits to drop from the sum.
    shift: u32,
}

impl Chroma {
    const NONE: Self = Self { across: Across::Full, halves_rows: 0, blends: false, shift: 0 };

    /// As libjpeg chooses. `width` is the whole component's.
    fn new(luma: (u8, u8), chroma: (u8, u8), width: u32) -> Option<Self> {
        let (across, down) = match (luma, chroma) {
            ((x, y), (1, 1)) if x <= 2 && y <= 2 => (x == 2, y == 2),
            _ => return None,
        };
        let smooth = !across || width > 2;
        let kind = match (across, smooth) {
            (true, true) => Across::Fancy,
            (true, false) => Across::Copied,
            (false, _) => Across::Full,
        };
        let blends = down && smooth;
        let shift = 2 * (u32::from(kind == Across::Fancy) + u32::from(blends));
        Some(Self { across: kind, halves_rows: down.into(), blends, shift })
    }

    /// Whether each pixel has its own sample.
    fn is_whole(&self) -> bool {
        self.across == Across::Full && !self.blends
    }

    /// What is added to a sum before bits are dropped: for the first and the second pixel of a pair, in
    /// an even or odd row.
    fn bias(&self, odd_row: bool) -> [i16; 2] {
        match (self.across, self.blends) {
            (Across::Fancy, true) => [8, 7],
            (Across::Fancy, false) => [1, 2],
            (_, true) => [if odd_row { 2 } else { 1 }; 2],
            (_, false) => [0, 0],
        }
    }
}

/// What a row of pixels is made of. The slices may go on after the last pixel.
struct Rows<'a> {
    /// From the first pixel on.
    luma: &'a [u8],
    /// For the first pixels of pairs and the second ones, cb and cr from -128 to 127, or sums: of the
    /// nearest row of chroma, and of the other one.
    near: [&'a [[i16; 2]]; 2],
    far: [&'a [[i16; 2]]; 2],
    /// Instead of both, if chroma is not stretched: cb and cr, from the first pixel on.
    whole: [&'a [u8]; 2],
    bias: [i16; 2],
}

/// A component within the MCUs that are decoded.
#[derive(Debug, Clone, Copy)]
struct Component {
    quantisation: Block,
    /// Its first block in an MCU.
    first: usize,
    /// Blocks across and down in an MCU.
    across: usize,
    down: usize,
    /// Samples of the image.
    width: usize,
    height: usize,
    /// The samples that pixels depend on: columns and rows.
    columns: (usize, usize),
    rows: (usize, usize),
    /// Whether the samples are from 0 to 255, not from -128 to 127.
    unsigned: bool,
}

/// The way from the coefficients of some MCUs to pixels.
#[derive(Debug)]
pub(super) struct Plan {
    colours: Colours,
    mcus: Mcus,
    region: Rect,
    /// The same, from the first MCU.
    columns: (usize, usize),
    rows: (usize, usize),
    components: [Option<Component>; 4],
    /// Blocks of an MCU.
    blocks: usize,
    chroma: Chroma,
}

impl Plan {
    /// Plans to make the pixels of `need` from `mcus`. Returns `None` if the JPEG is of a kind that
    /// libjpeg-turbo must decode.
    pub(super) fn new(info: &JpegInfo, header: &Header, mcus: Mcus, need: Rect) -> Option<Self> {
        let count = usize::from(info.components);
        let factors = |at: usize| (info.sampling[at].horizontal, info.sampling[at].vertical);
        if !info.usual_sampling() {
            return None;
        }
        let (mcu_width, mcu_height) = info.mcu();
        let (x, y) = (mcus.x * mcu_width, mcus.y * mcu_height);
        // Pairs of pixels are made together.
        let region = Rect { x: need.x & !1, width: need.x % 2 + need.width, ..need };
        let columns = ((region.x - x) as usize, (region.x + region.width - x) as usize);
        let rows = ((region.y - y) as usize, (region.y + region.height - y) as usize);
        let chroma = if count == 1 {
            Chroma::NONE
        } else {
            let share = u32::from(factors(0).0) / u32::from(factors(1).0);
            Chroma::new(factors(0), factors(1), info.width.div_ceil(share))?
        };
        let mut components = [None; 4];
        let mut blocks = 0;
        for (at, slot) in components[..count].iter_mut().enumerate() {
            let (across, down) = factors(at);
            let part = |length: u32, from: u32, mcus: u32, mcu: u32, blocks: u8| {
                let share = mcu / (8 * u32::from(blocks));
                let from = from / share;
                (length.div_ceil(share) - from).min(mcus * 8 * u32::from(blocks)) as usize
            };
            let width = part(info.width, x, mcus.columns, mcu_width, across);
            let height = part(info.height, y, mcus.rows, mcu_height, down);
            let is_chroma = at == 1 || at == 2;
            let used = |(from, to): (usize, usize), halved: bool, smooth: bool, length: usize| {
                let (from, to) = if halved { (from / 2, to.div_ceil(2)) } else { (from, to) };
                let margin = usize::from(smooth);
                (from.saturating_sub(margin), (to + margin).min(length))
            };
            let halved = is_chroma && chroma.across != Across::Full;
            *slot = Some(Component {
                quantisation: header.quantisation[at],
                first: blocks,
                across: across.into(),
                down: down.into(),
                width,
                height,
                columns: used(columns, halved, is_chroma && chroma.across == Across::Fancy, width),
                rows: used(rows, is_chroma && chroma.halves_rows > 0, is_chroma && chroma.blends, height),
                unsigned: !is_chroma,
            });
            blocks += usize::from(across * down);
        }
        Some(Self { colours: header.colours, mcus, region, columns, rows, components, blocks, chroma })
    }

    /// The pixels that are made, in the image.
    pub(super) fn region(&self) -> Rect {
        self.region
    }

    /// Bytes of a pixel: 3 for RGB, 4 for CMYK.
    fn channels(&self) -> usize {
        if matches!(self.colours, Colours::Cmyk | Colours::Ycck) { 4 } else { 3 }
    }
}

/// The instructions that are used.
#[derive(Debug, Clone, Copy)]
enum Kernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx2::Avx2, avx512::Avx512),
}

impl Default for Kernel {
    fn default() -> Self {
        #[cfg(target_arch = "x86_64")]
        match (avx2::Avx2::detect(), avx512::Avx512::detect()) {
            (Some(narrow), Some(wide)) => return Self::Avx512(narrow, wide),
            (Some(narrow), None) => return Self::Avx2(narrow),
            _ => {}
        }
        Self::Portable
    }
}

impl Kernel {
    /// Returns those that this processor has.
    #[cfg(test)]
    fn all() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        if let Some(narrow) = avx2::Avx2::detect() {
            all.push(Self::Avx2(narrow));
            all.extend(avx512::Avx512::detect().map(|wide| Self::Avx512(narrow, wide)));
        }
        all
    }

    fn transform(self, blocks: &[&Block; 4], quantisation: &Block, flip: u8, out: &mut [u8], stride: usize) {
        match self {
            Self::Portable => portable::transform(blocks, quantisation, flip, out, stride),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(kernel) => kernel.transform(blocks, quantisation, flip, out, stride),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_, kernel) => kernel.transform(blocks, quantisation, flip, out, stride),
        }
    }

    fn spread(self, across: Across, chroma: [&[u8]; 2], pairs: &mut [Vec<[i16; 2]>; 2], count: usize) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(kernel) | Self::Avx512(kernel, _) if across != Across::Copied => {
                kernel.spread(across, chroma, pairs, count);
            }
            // Few images, and small ones, have copied samples.
            _ => portable::spread(across, chroma, pairs, count),
        }
    }

    fn row(self, rows: &Rows<'_>, chroma: &Chroma, out: &mut [u8]) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(kernel) if chroma.across != Across::Copied => kernel.row(rows, chroma, out),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_, kernel) if chroma.across != Across::Copied => kernel.row(rows, chroma, out),
            _ => portable::row(rows, chroma, out),
        }
    }
}

/// Writes blocks of which only the first coefficient is not zero, as [`portable::transform`].
fn flat(blocks: &[&Block], quantisation: &Block, flip: u8, out: &mut [u8], stride: usize) {
    let mut samples = [[0; 8]; 4];
    for (samples, block) in samples.iter_mut().zip(blocks) {
        let value = i32::from(block[0].wrapping_mul(quantisation[0]) << 2);
        *samples = [((value + 16) >> 5).clamp(-128, 127).cast_unsigned() as u8 ^ flip; 8];
    }
    let samples = &samples[..blocks.len()];
    for row in 0..8 {
        if let Some(out) = out.get_mut(row * stride..).and_then(|out| out.get_mut(..8 * samples.len())) {
            out.copy_from_slice(samples.as_flattened());
        }
    }
}

/// Samples of a component: the last rows, in a ring.
#[derive(Debug, Default)]
struct Plane {
    samples: Vec<u8>,
    stride: usize,
    /// Rows, a power of two.
    rows: usize,
}

impl Plane {
    fn prepare(&mut self, width: usize, rows: usize) -> Option<()> {
        self.stride = width + 2 * MARGIN;
        self.rows = rows;
        grow(&mut self.samples, self.stride * rows)
    }

    fn start(&self, y: usize) -> usize {
        (y & (self.rows - 1)) * self.stride + MARGIN
    }

    /// Returns a row from a sample on, or from those before the first one with `x` below zero.
    fn row(&self, x: usize, before: usize, y: usize) -> &[u8] {
        let start = self.start(y);
        &self.samples[start + x - before..start - MARGIN + self.stride]
    }
}

/// Makes room for items. What is there stays.
fn grow<T: Clone + Default>(items: &mut Vec<T>, count: usize) -> Option<()> {
    if items.len() < count {
        memory::reserve(items, count - items.len()).ok()?;
        items.resize(count, T::default());
    }
    Some(())
}

/// The coefficients of some groups of MCUs.
#[derive(Debug)]
#[repr(align(64))]
struct Blocks([Block; AT_ONCE]);

impl Default for Blocks {
    fn default() -> Self {
        Self([[0; 64]; AT_ONCE])
    }
}

/// Makes pixels. It reuses its memory from image to image.
#[derive(Debug, Default)]
pub(super) struct PixelStage {
    kernel: Kernel,
    blocks: Box<Blocks>,
    planes: [Plane; 4],
    /// Rows of chroma as pairs of pixels: the first pixels, and the second ones.
    pairs: [[Vec<[i16; 2]>; 2]; KEPT],
    /// Chroma of grey images.
    zeros: Vec<u8>,
    /// The next row of pixels, and the next row of chroma to stretch.
    next: (usize, usize),
}

impl PixelStage {
    /// Reports whether this takes less time than libjpeg-turbo.
    pub(super) const fn is_fast(&self) -> bool {
        !matches!(self.kernel, Kernel::Portable)
    }

    /// The memory that is kept, in bytes.
    pub(super) fn memory(&self) -> usize {
        let pairs = self.pairs.as_flattened().iter().map(|pairs| 4 * pairs.capacity());
        self.planes.iter().map(|plane| plane.samples.capacity()).chain(pairs).sum()
    }

    /// Writes the pixels of the plan's region to `out`, row by row without padding. Returns `None` if
    /// the source's data are irregular, or memory is short. The source is read to its last MCU.
    pub(super) fn decode(&mut self, plan: &Plan, source: &mut impl McuSource, out: &mut [u8]) -> Option<()> {
        self.prepare(plan)?;
        let mut out = out.chunks_exact_mut(plan.channels() * plan.region.width as usize);
        let Mcus { columns, rows, .. } = plan.mcus;
        for row in 0..rows as usize {
            let most = (AT_ONCE / plan.blocks / GROUP * GROUP).max(GROUP);
            for column in (0..columns as usize).step_by(most) {
                let count = most.min(columns as usize - column);
                source.next(self.blocks.0.get_mut(..count * plan.blocks)?, plan.blocks)?;
                for first in (0..count).step_by(GROUP) {
                    self.transform(plan, column, first, row);
                }
            }
            let last = row + 1 == rows as usize;
            self.write_rows(plan, row + 1, last, &mut out)?;
        }
        Some(())
    }

    fn prepare(&mut self, plan: &Plan) -> Option<()> {
        for (plane, component) in self.planes.iter_mut().zip(plan.components.iter().flatten()) {
            let groups = (plan.mcus.columns as usize).next_multiple_of(GROUP);
            plane.prepare(8 * component.across * groups, 16 * component.down)?;
        }
        let width = plan.columns.1 - plan.columns.0;
        if plan.colours == Colours::Grey {
            grow(&mut self.zeros, width + MARGIN)?;
        } else if !plan.chroma.is_whole() {
            for row in self.pairs.as_flattened_mut() {
                grow(row, width.div_ceil(2).next_multiple_of(32) + 32)?;
            }
        }
        self.next = (plan.rows.0, plan.components[1].map_or(0, |chroma| chroma.rows.0));
        Some(())
    }

    /// Makes samples of a group of MCUs, where pixels depend on them. The blocks from `column` on were
    /// read; the group begins `skipped` MCUs later.
    fn transform(&mut self, plan: &Plan, column: usize, skipped: usize, row: usize) {
        for (plane, component) in self.planes.iter_mut().zip(plan.components.iter().flatten()) {
            let &Component { across, down, columns, rows, .. } = component;
            for part in 0..down {
                let y = 8 * (down * row + part);
                if y + 8 <= rows.0 || y >= rows.1 {
                    continue;
                }
                for four in 0..across {
                    let x = 8 * (across * (column + skipped) + 4 * four);
                    if x + 32 <= columns.0 || x >= columns.1 {
                        continue;
                    }
                    let first = component.first + part * across + (skipped + 4 * four / across) * plan.blocks;
                    // The next block, and the second and third pair.
                    let next = if across == 1 { plan.blocks } else { 1 };
                    let pair = if across == 1 { 2 * plan.blocks } else { plan.blocks };
                    let block = |place: usize| &self.blocks.0[place];
                    let blocks = [block(first), block(first + next), block(first + pair), block(first + pair + next)];
                    let start = plane.start(y) + x;
                    let flip = if component.unsigned { 0x80 } else { 0 };
                    let out = &mut plane.samples[start..];
                    self.kernel.transform(&blocks, &component.quantisation, flip, out, plane.stride);
                }
            }
        }
    }

    /// Writes the rows of pixels whose samples are all made, after so many rows of MCUs.
    fn write_rows<'a>(
        &mut self,
        plan: &Plan,
        mcu_rows: usize,
        last: bool,
        out: &mut impl Iterator<Item = &'a mut [u8]>,
    ) -> Option<()> {
        let [Some(luma), chroma, ..] = plan.components else { return None };
        // The last row of pixels may depend on the next row of chroma.
        let made = 8 * luma.down * mcu_rows - usize::from(plan.chroma.blends && !last);
        for y in self.next.0..made.min(plan.rows.1) {
            let nearest = y >> plan.chroma.halves_rows;
            let other = if y % 2 == 0 { nearest.saturating_sub(1) } else { nearest + 1 };
            let (near, far) = match chroma {
                None => (0, 0),
                Some(chroma) => (nearest, if plan.chroma.blends { other.min(chroma.height - 1) } else { nearest }),
            };
            if let Some(chroma) = chroma.filter(|_| !plan.chroma.is_whole()) {
                while self.next.1 <= near.max(far) {
                    self.spread(plan, &chroma, self.next.1);
                    self.next.1 += 1;
                }
            }
            let [near, far] = [near, far].map(|row| self.pairs[row % KEPT].each_ref().map(Vec::as_slice));
            let whole = match chroma {
                None => [&self.zeros[..]; 2],
                Some(_) if plan.chroma.is_whole() => [1, 2].map(|at: usize| self.planes[at].row(plan.columns.0, 0, y)),
                Some(_) => [&[][..]; 2],
            };
            let luma = self.planes[0].row(plan.columns.0, 0, y);
            let rows = Rows { luma, near, far, whole, bias: plan.chroma.bias(y % 2 == 1) };
            let out = out.next()?;
            match plan.colours {
                Colours::Grey | Colours::Ycc => self.kernel.row(&rows, &plan.chroma, out),
                Colours::Rgb => portable::rgb_row(&rows, &plan.chroma, out),
                Colours::Cmyk | Colours::Ycck => {
                    let black = self.planes[3].row(plan.columns.0, 0, y);
                    portable::cmyk_row(&rows, black, &plan.chroma, plan.colours == Colours::Ycck, out);
                }
            }
            self.next.0 += 1;
        }
        Some(())
    }

    /// Stretches a row of chroma.
    fn spread(&mut self, plan: &Plan, chroma: &Component, y: usize) {
        let (from, to) = plan.columns;
        let from = if plan.chroma.across == Across::Full { from } else { from / 2 };
        for plane in &mut self.planes[1..3] {
            // The first and the last sample are their own neighbours.
            let start = plane.start(y);
            plane.samples[start - 1] = plane.samples[start];
            plane.samples[start + chroma.width] = plane.samples[start + chroma.width - 1];
        }
        let rows = [1, 2].map(|at: usize| self.planes[at].row(from, 1, y));
        let count = (to - plan.columns.0).div_ceil(2);
        self.kernel.spread(plan.chroma.across, rows, &mut self.pairs[y % KEPT], count);
    }
}
