//! `Kernel`: makes an output row from source rows, with the best instructions of this processor.

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
use super::axis::{Axis, Stretch};
use super::{BLOCK, RowPair, grow, portable};
use crate::image::DecodeError;

/// The weights across a row, and memory for one row.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) columns: Axis,
    mirror: bool,
    /// The blended row. It begins with the first needed pixel.
    line: Vec<[u8; BLOCK]>,
    /// The same with four values for each pixel.
    wide: Vec<[i16; 4]>,
    #[cfg(target_arch = "x86_64")]
    avx2: Option<Avx2>,
}

impl Kernel {
    pub(super) fn new() -> Self {
        Self {
            columns: Axis::default(),
            mirror: false,
            line: Vec::new(),
            wide: Vec::new(),
            #[cfg(target_arch = "x86_64")]
            avx2: Avx2::detect(),
        }
    }

    #[cfg(test)]
    pub(super) fn portable() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            avx2: None,
            ..Self::new()
        }
    }

    /// Returns the name of the instructions in use.
    pub(super) fn instructions(&self) -> &'static str {
        #[cfg(target_arch = "x86_64")]
        if self.avx2.is_some() {
            return "avx2";
        }
        "portable"
    }

    pub(super) fn prepare(&mut self, columns: Stretch, mirror: bool) -> Result<(), DecodeError> {
        let changed = self.columns.prepare(columns) || self.mirror != mirror;
        self.mirror = mirror;
        let mut bytes = 3 * self.columns.needed().len();
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = &mut self.avx2 {
            if changed {
                avx2.prepare(&self.columns, mirror);
            }
            bytes = bytes.max(avx2.reach());
        }
        grow(&mut self.line, bytes.div_ceil(BLOCK), [0; BLOCK])
    }

    /// Adds up rows, each times its weight, and resizes the sum into `out`.
    ///
    /// Each block of columns has `weights.len()` pairs of rows, and the first block begins with the
    /// first needed column.
    pub(super) fn make_row(&mut self, stacks: &[RowPair], weights: &[[i16; 2]], precision: u32, out: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = &self.avx2
            && avx2.reach() > 0
        {
            return avx2.make_row(stacks, weights, precision, &mut self.line, out);
        }
        portable::blend(stacks, weights, precision, &mut self.line);
        let line = &self.line.as_flattened()[..3 * self.columns.needed().len()];
        portable::stretch(line, &self.columns, self.mirror, &mut self.wide, out);
    }
}
