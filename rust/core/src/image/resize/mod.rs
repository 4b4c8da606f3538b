//! `Resizer`: resizes RGB with Pillow's weights, antialiased, in one pass over the rows of a source.
//!
//! Pixels are first blended down, then across, each time rounded to 8 bits. An output row is made
//! as soon as its last source row is there. Only the rows that one output row needs are kept.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod axis;
mod kernel;
mod portable;
#[cfg(test)]
mod tests;

use std::ops::Range;

use serde::Deserialize;

use super::{DecodeError, Rect};
use crate::memory;
use axis::{Axis, Stretch, refill};
use kernel::Kernel;

/// The filter for resizing. Its support is in the larger of input and output pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    /// A triangle, 1 pixel to each side: torchvision's default.
    #[default]
    Bilinear,
    /// The Catmull-Rom cubic, 2 pixels to each side.
    Bicubic,
    /// The Lanczos windowed sinc, 3 pixels to each side.
    Lanczos,
    /// The mean of the pixels that an output pixel covers.
    Box,
}

impl Filter {
    /// Returns the support in pixels to each side.
    pub(super) const fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
            Self::Box => 0.5,
        }
    }
}

/// Decoded pixels, and the part to resize.
pub(super) struct Source<'a> {
    pub(super) pixels: &'a [u8],
    pub(super) width: u32,
    pub(super) height: u32,
    /// The pixels that the filter may read.
    pub(super) bounds: Rect,
    /// The part that fills the target: left, top, width, height, in these pixels.
    pub(super) part: [f64; 4],
}

impl Source<'_> {
    /// Returns the part as whole pixels, if it needs no resizing.
    pub(super) fn unscaled(&self, target: Rect) -> Option<Rect> {
        let [left, top, width, height] = self.part;
        #[allow(clippy::float_cmp)] // whole numbers are exact
        let same = (width, height) == (f64::from(target.width), f64::from(target.height))
            && left.fract() == 0.0
            && top.fract() == 0.0;
        #[allow(clippy::cast_sign_loss)] // within the bounds, which are checked
        let part = Rect { x: left.max(0.0) as u32, y: top.max(0.0) as u32, width: target.width, height: target.height };
        (same && Rect::whole(self.width, self.height).contains(part)).then_some(part)
    }
}

/// Bytes of a row that are blended at a time.
const BLOCK: usize = 64;

/// One block of two rows whose weights are applied together.
type RowPair = [[u8; BLOCK]; 2];

/// Resizes images, one after the other. It reuses its buffers, and the weights if the geometry
/// stays the same.
#[derive(Debug)]
pub(super) struct Resizer {
    rows: Axis,
    kernel: Kernel,
    /// The last source rows: for each block of columns, as many pairs of rows as `weights` has.
    stacks: Vec<RowPair>,
    /// The weights of the kept rows in the next output row.
    weights: Vec<[i16; 2]>,
}

/// The output rows of one image, made while source rows come in.
pub(super) struct RowResizer<'a> {
    resizer: &'a mut Resizer,
    /// The rows of the output in which the target lies.
    out: std::slice::ChunksExactMut<'a, u8>,
    /// The bytes of the target in each of them.
    target: Range<usize>,
    /// The bytes of a source row that are needed.
    columns: Range<usize>,
    /// Rows above the bounds.
    top: u32,
    needed: Range<u32>,
    /// The next source row and output row.
    next: u32,
    made: usize,
}

/// The pixels to resize.
pub(super) struct Part {
    /// The pixels that the filter may read.
    pub(super) bounds: Rect,
    /// The part that fills the target: left, top, width, height.
    pub(super) part: [f64; 4],
}

/// The place of the resized pixels.
pub(super) struct Target<'a> {
    pub(super) pixels: &'a mut [u8],
    /// Pixels in a row.
    pub(super) width: u32,
    pub(super) area: Rect,
    /// Mirrors the whole output left to right.
    pub(super) mirror: bool,
}

impl Resizer {
    pub(super) fn new() -> Self {
        Self { rows: Axis::default(), kernel: Kernel::new(), stacks: Vec::new(), weights: Vec::new() }
    }

    /// Prepares for an image whose rows are pushed next.
    ///
    /// # Errors
    /// Too little memory.
    pub(super) fn start<'a>(
        &'a mut self,
        filter: Filter,
        part: &Part,
        out: Target<'a>,
    ) -> Result<RowResizer<'a>, DecodeError> {
        let Target { pixels: out, width: out_width, area, mirror } = out;
        let Part { bounds, part: [left, top, width, height] } = *part;
        // A sum of fractions may exceed the edge by one unit in the last place.
        let stretch = |start: f64, length: f64, offset: u32, source: u32, target: u32| {
            let limit = f64::from(source);
            let start = (start - f64::from(offset)).clamp(0.0, limit);
            Stretch { filter, source, start, length: length.min(limit - start), target }
        };
        self.kernel.prepare(stretch(left, width, bounds.x, bounds.width, area.width), mirror)?;
        self.rows.prepare(stretch(top, height, bounds.y, bounds.height, area.height));
        let (needed, columns) = (self.rows.needed(), self.kernel.columns.needed());
        // Output rows may need rows that have come long before, if the last ones have no weight.
        let mut end = 0;
        let mut kept = 1;
        for (&start, &length) in self.rows.starts.iter().zip(&self.rows.lengths) {
            end = end.max(start + length);
            kept = kept.max(end - start);
        }
        refill(&mut self.weights, kept.div_ceil(2) as usize, [0; 2]);
        let bytes = 3 * columns.len();
        grow(&mut self.stacks, bytes.div_ceil(BLOCK) * self.weights.len(), [[0; BLOCK]; 2])?;

        let pitch = 3 * out_width as usize;
        let first = if mirror { out_width - area.x - area.width } else { area.x };
        let first_byte = 3 * (bounds.x + columns.start) as usize;
        Ok(RowResizer {
            resizer: self,
            out: out[pitch * area.y as usize..].chunks_exact_mut(pitch),
            target: 3 * first as usize..3 * (first + area.width) as usize,
            columns: first_byte..first_byte + bytes,
            top: bounds.y,
            next: needed.start,
            needed,
            made: 0,
        })
    }

    /// Makes output row `n` from the kept rows, which begin with row `first` of the bounds and have
    /// `bytes` bytes.
    fn make(&mut self, n: usize, first: u32, bytes: usize, out: &mut [u8]) {
        self.weights.fill([0; 2]);
        let weights = self.weights.as_flattened_mut();
        let slots = (self.rows.starts[n] - first) as usize..;
        for (slot, &weight) in slots.zip(self.rows.weights_of(n)) {
            weights[slot % weights.len()] = weight;
        }
        let stacks = &self.stacks[..bytes.div_ceil(BLOCK) * self.weights.len()];
        self.kernel.make_row(stacks, &self.weights, self.rows.precision, out);
    }
}

impl RowResizer<'_> {
    /// Returns the source rows to push.
    pub(super) fn needed_rows(&self) -> Range<u32> {
        self.top + self.needed.start..self.top + self.needed.end
    }

    /// Takes the next of the needed source rows, and makes the output rows for which it was the last
    /// one missing.
    ///
    /// # Panics
    /// If the row is shorter than the bounds.
    pub(super) fn push(&mut self, row: &[u8]) {
        let Resizer { stacks, weights, .. } = &mut *self.resizer;
        let pairs = weights.len();
        let slot = (self.next - self.needed.start) as usize % (2 * pairs);
        let (blocks, rest) = row[self.columns.clone()].as_chunks::<BLOCK>();
        let mut places = stacks.chunks_exact_mut(pairs).map(|stack| &mut stack[slot / 2][slot % 2]);
        // `zip` asks the blocks first, so that it takes no place without a block.
        for (block, place) in blocks.iter().zip(places.by_ref()) {
            *place = *block;
        }
        if let Some(place) = places.next() {
            place[..rest.len()].copy_from_slice(rest);
        }
        self.next += 1;
        while let Some(end) = self.resizer.rows.end(self.made)
            && end <= self.next
            && let Some(out) = self.out.next()
        {
            self.resizer.make(self.made, self.needed.start, self.columns.len(), &mut out[self.target.clone()]);
            self.made += 1;
        }
    }
}

/// Gives a buffer at least `len` items. It is never cleared.
fn grow<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) -> Result<(), DecodeError> {
    let more = len.saturating_sub(buffer.len());
    let error = |_| DecodeError::Memory { bytes: (len * size_of::<T>()) as u64 };
    memory::reserve(buffer, more).map_err(error)?;
    buffer.resize(len.max(buffer.len()), value);
    Ok(())
}

/// Returns the name of the instructions in use.
pub(crate) fn instructions() -> &'static str {
    Kernel::new().instructions()
}

/// Resizes the source's part into the target.
pub(super) fn resize(
    resizer: &mut Resizer,
    filter: Filter,
    source: &Source<'_>,
    out: Target<'_>,
) -> Result<(), DecodeError> {
    let Source { pixels, width, height, bounds, part } = *source;
    let pitch = 3 * width as usize;
    if !Rect::whole(width, height).contains(bounds) || pixels.len() < pitch * height as usize {
        return Err(DecodeError::Internal { detail: "resize: the bounds exceed the pixels".to_owned() });
    }
    let mut rows = resizer.start(filter, &Part { bounds, part }, out)?;
    let needed = rows.needed_rows();
    for row in pixels.chunks_exact(pitch).skip(needed.start as usize).take(needed.len()) {
        rows.push(row);
    }
    Ok(())
}
